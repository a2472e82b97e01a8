//! The server itself: it accepts connections, and ends in order.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use base::Stop;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::negotiate::{Error, negotiate};
use crate::transmit::{Bounds, Watch, transmit};
use crate::{Listener, Named};

/// The time that a client has for its negotiation.
const NEGOTIATION_TIME: Duration = Duration::from_secs(30);
/// The time that requests have to end when the server ends.
const GRACE: Duration = Duration::from_secs(10);
/// The time that connections have to end once they are closed.
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// The pause after a connection that could not be accepted, as there are no descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// How a server serves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The maximum number of connections. One more is closed at once.
    pub connections: usize,
    /// How much of each may be in flight.
    pub bounds: Bounds,
    /// The time that a client has for its negotiation.
    pub negotiation_time: Duration,
    /// The time that requests have to end when the server ends.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { connections: 16, bounds: Bounds::default(), negotiation_time: NEGOTIATION_TIME, grace: GRACE }
    }
}

/// The socket of a connection.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Unix(stream) => stream.set_read_timeout(timeout).and(stream.set_write_timeout(timeout)),
            Socket::Tcp(stream) => stream.set_read_timeout(timeout).and(stream.set_write_timeout(timeout)),
        }
    }

    /// Returns whether both directions are closed, by the client or by the server. A client that has closed its side alone may be answered.
    fn is_gone(&self) -> bool {
        let mut fds = [match self {
            Socket::Unix(stream) => PollFd::new(stream, PollFlags::empty()),
            Socket::Tcp(stream) => PollFd::new(stream, PollFlags::empty()),
        }];
        let ready = poll(&mut fds, Some(&Timespec::default()));
        ready.is_ok() && fds.iter().any(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR))
    }

    fn shutdown(&self, how: Shutdown) {
        // it may be closed already
        let _closed = match self {
            Socket::Unix(stream) => stream.shutdown(how),
            Socket::Tcp(stream) => stream.shutdown(how),
        };
    }
}

impl Read for &Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&*stream).read(buf),
            Socket::Tcp(stream) => (&*stream).read(buf),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&*stream).write(buf),
            Socket::Tcp(stream) => (&*stream).write(buf),
        }
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&*stream).write_vectored(bufs),
            Socket::Tcp(stream) => (&*stream).write_vectored(bufs),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket that is read and written until a point in time.
struct Until<'a>(&'a Socket, Instant);

impl Until<'_> {
    fn begin(&self) -> io::Result<()> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { self.0.set_timeouts(Some(left)) }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.begin()?;
        self.0.read(buf)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.begin()?;
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A server of exports.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    core: Arc<Core>,
}

/// What the connections of a server share.
struct Core {
    exports: Vec<Named>,
    options: Options,
    live: Mutex<HashMap<u64, Arc<Socket>>>,
    /// Wakes the server that waits for connections to end.
    ended: Condvar,
    ending: AtomicBool,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.exports.iter().map(|named| named.name.as_str()).collect();
        f.debug_struct("Core").field("exports", &names).field("options", &self.options).finish_non_exhaustive()
    }
}

impl Server {
    /// A server of these exports, the first of which is the default one. Who connects to a listener waits for [`Server::run`].
    #[must_use]
    pub fn new(exports: Vec<Named>, listeners: Vec<Listener>, options: Options) -> Server {
        let (live, ended, ending) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        Server { listeners, core: Arc::new(Core { exports, options, live, ended, ending }) }
    }

    /// Serves until it is stopped. Returns whether all connections have ended: if not, a request of one waits for its export still.
    #[must_use]
    pub fn run(self, stop: &Stop) -> bool {
        let Server { listeners, core } = self;
        accept(&listeners, &core, stop);
        drop(listeners);
        core.end()
    }
}

fn accept(listeners: &[Listener], core: &Arc<Core>, stop: &Stop) {
    let mut number = 0;
    loop {
        let mut fds: Vec<PollFd<'_>> = listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
        fds.push(PollFd::new(stop, PollFlags::IN));
        let _ready = poll(&mut fds, None);
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if fds.last().is_some_and(is_ready) {
            return;
        }
        for (listener, _) in listeners.iter().zip(&fds).filter(|(_, fd)| is_ready(fd)) {
            match listener.accept() {
                Ok(socket) => {
                    number += 1;
                    core.welcome(number, socket);
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                // one that has gone by now, or no descriptor is left
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }
}

/// A connection that is served. It is known until this is dropped.
struct Live {
    core: Arc<Core>,
    number: u64,
}

impl Drop for Live {
    fn drop(&mut self) {
        let gone = self.core.live.lock().remove(&self.number);
        // the client sees the end now, also if somebody else has the socket still
        gone.into_iter().for_each(|socket| socket.shutdown(Shutdown::Both));
        self.core.ended.notify_all();
    }
}

impl Core {
    /// Serves a connection in a thread of its own, if there may be one more.
    fn welcome(self: &Arc<Core>, number: u64, socket: Socket) {
        let socket = Arc::new(socket);
        {
            let mut live = self.live.lock();
            if live.len() >= self.options.connections {
                tracing::debug!(target: "zuse::nbd", "a connection is refused: there are {} already", live.len());
                return;
            }
            live.insert(number, socket.clone());
        }
        let live = Live { core: self.clone(), number };
        let serve = move || {
            // a bug in one connection ends that connection
            let served = catch_unwind(AssertUnwindSafe(|| live.core.serve(&socket)));
            if let Ok(Err(why)) = served {
                tracing::debug!(target: "zuse::nbd", connection = number, %why, "a connection ends");
            }
            drop((socket, live));
        };
        // without a thread the client sees that it is closed
        let _spawned = thread::Builder::new().name("nbd-client".to_owned()).spawn(serve);
    }

    fn serve(&self, socket: &Socket) -> Result<(), Error> {
        let until = Instant::now() + self.options.negotiation_time;
        let chosen = negotiate(&mut Until(socket, until), &mut Until(socket, until), &self.exports)?;
        let Some(chosen) = chosen else { return Ok(()) };
        socket.set_timeouts(None)?;
        let is_ending = || self.ending.load(Ordering::SeqCst);
        let watch = Watch { is_ending: &is_ending, is_gone: &|| socket.is_gone() };
        transmit(&mut &*socket, socket, &chosen, self.options.bounds, watch)
    }

    /// Lets connections answer what they have taken, and closes them.
    fn end(&self) -> bool {
        self.ending.store(true, Ordering::SeqCst);
        self.wait(Shutdown::Read, self.options.grace) || self.wait(Shutdown::Both, CLOSE_TIME)
    }

    /// Closes one or both directions of all connections. Returns whether they end within some time.
    fn wait(&self, how: Shutdown, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut live = self.live.lock();
        live.values().for_each(|socket| socket.shutdown(how));
        while !live.is_empty() && !self.ended.wait_until(&mut live, until).timed_out() {}
        live.is_empty()
    }
}
