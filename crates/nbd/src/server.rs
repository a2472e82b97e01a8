//! The server itself: it accepts connections, and ends in order.

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use base::Stop;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::budget::{self, Budget};
use crate::negotiate::{Error, Outcome, Security, negotiate, negotiate_secured};
use crate::socket::{Socket, Stream};
use crate::tls::Secured;
use crate::transmit::{Bounds, Watch, transmit};
use crate::{Exports, Listener, Tls};

/// The time that a client has for its negotiation.
const NEGOTIATION_TIME: Duration = Duration::from_secs(30);
/// Connections that have not chosen an export.
const NEGOTIATIONS: usize = 64;
/// Connections that were closed for others, and have not ended: they may wait for a pool still. Beyond that nobody is let in for another one.
const EVICTED_MAX: usize = 256;
/// The time that requests have to end when the server ends.
const GRACE: Duration = Duration::from_secs(10);
/// The time that connections have to end once they are closed.
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// The pause after a connection that could not be accepted, as there are no descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// How a server serves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The maximum number of connections that have chosen an export. One more is closed.
    pub connections: usize,
    /// The maximum number of connections that have not. For one more the oldest is closed.
    pub negotiations: usize,
    /// How many bytes of all connections together may be in flight.
    pub bytes: usize,
    /// How much of each may be in flight.
    pub bounds: Bounds,
    /// The time that a client has for its negotiation.
    pub negotiation_time: Duration,
    /// The time that requests have to end when the server ends.
    pub grace: Duration,
    /// The certificates, if there is TLS.
    pub tls: Option<Tls>,
}

impl Default for Options {
    fn default() -> Options {
        let (negotiation_time, bounds) = (NEGOTIATION_TIME, Bounds::default());
        let (negotiations, bytes) = (NEGOTIATIONS, budget::of_machine());
        Options { connections: 16, negotiations, bytes, bounds, negotiation_time, grace: GRACE, tls: None }
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
    exports: Box<dyn Exports>,
    options: Options,
    budget: Arc<Budget>,
    live: Mutex<BTreeMap<u64, Known>>,
    /// Wakes the server that waits for connections to end.
    ended: Condvar,
    ending: AtomicBool,
}

/// A connection that the server knows. Numbers count up.
struct Known {
    socket: Arc<Socket>,
    stage: Stage,
}

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It negotiates.
    Negotiates,
    /// It has been closed for another one, and ends.
    Evicted,
    /// It has chosen an export.
    Chosen,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Server {
    /// A server of these exports. Who connects to a listener waits for [`Server::run`].
    #[must_use]
    pub fn new(exports: impl Exports + 'static, listeners: Vec<Listener>, options: Options) -> Server {
        let (live, ended, ending) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        let (exports, budget) = (Box::new(exports), Arc::new(Budget::new(options.bytes, options.connections)));
        Server { listeners, core: Arc::new(Core { exports, options, budget, live, ended, ending }) }
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
                Err(e) if is_of_connection(&e) => {
                    tracing::debug!(target: "zuse::nbd", %e, "a connection was gone before it was accepted");
                }
                // no descriptor or memory is left: it stays in the queue, and is ready at once again
                Err(e) => {
                    tracing::debug!(target: "zuse::nbd", %e, "no connection can be accepted");
                    thread::sleep(PAUSE);
                }
            }
        }
    }
}

/// Returns whether a connection could not be accepted for a reason of its own, or there is none: others can be accepted at once (accept(2), "Error handling").
fn is_of_connection(e: &io::Error) -> bool {
    let passing = [
        Errno::WOULDBLOCK,
        Errno::INTR,
        Errno::CONNABORTED,
        Errno::CONNRESET,
        Errno::PERM,
        Errno::PROTO,
        Errno::NETDOWN,
        Errno::NOPROTOOPT,
        Errno::HOSTDOWN,
        Errno::NONET,
        Errno::HOSTUNREACH,
        Errno::OPNOTSUPP,
        Errno::NETUNREACH,
        // of a socket that is prepared, and closed meanwhile
        Errno::INVAL,
        Errno::NOTCONN,
    ];
    Errno::from_io_error(e).is_some_and(|errno| passing.contains(&errno))
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
        gone.into_iter().for_each(|known| known.socket.shutdown(Shutdown::Both));
        self.core.ended.notify_all();
    }
}

impl Core {
    /// Notes a connection, if there may be one more.
    fn admit(&self, number: u64, socket: &Arc<Socket>) -> bool {
        let mut live = self.live.lock();
        let count = |live: &BTreeMap<u64, Known>, stage| live.values().filter(|known| known.stage == stage).count();
        // it could choose nothing
        if count(&live, Stage::Chosen) >= self.options.connections {
            return false;
        }
        if count(&live, Stage::Negotiates) >= self.options.negotiations {
            if count(&live, Stage::Evicted) >= EVICTED_MAX {
                return false;
            }
            let oldest = live.values_mut().find(|known| known.stage == Stage::Negotiates);
            let Some(oldest) = oldest else { return false };
            oldest.stage = Stage::Evicted;
            oldest.socket.shutdown(Shutdown::Both);
        }
        live.insert(number, Known { socket: socket.clone(), stage: Stage::Negotiates });
        true
    }

    /// Notes that a connection has chosen an export. Returns whether it may have it.
    fn choose(&self, number: u64) -> bool {
        let mut live = self.live.lock();
        let chosen = live.values().filter(|known| known.stage == Stage::Chosen).count();
        match live.get_mut(&number) {
            Some(known) if known.stage == Stage::Negotiates && chosen < self.options.connections => {
                known.stage = Stage::Chosen;
                true
            }
            _ => false,
        }
    }

    /// Serves a connection in a thread of its own, if there may be one more.
    fn welcome(self: &Arc<Core>, number: u64, socket: Socket) {
        let socket = Arc::new(socket);
        if !self.admit(number, &socket) {
            tracing::debug!(target: "zuse::nbd", "a connection is refused: there are too many already");
            return;
        }
        let live = Live { core: self.clone(), number };
        let serve = move || {
            // a bug in one connection ends that connection
            let served = catch_unwind(AssertUnwindSafe(|| live.core.serve(number, &socket)));
            if let Ok(Err(why)) = served {
                tracing::debug!(target: "zuse::nbd", connection = number, %why, "a connection ends");
            }
            drop((socket, live));
        };
        // without a thread the client sees that it is closed
        let _spawned = thread::Builder::new().name("nbd-client".to_owned()).spawn(serve);
    }

    fn serve(&self, number: u64, socket: &Arc<Socket>) -> Result<(), Error> {
        socket.set_deadline(Some(Instant::now() + self.options.negotiation_time))?;
        let mut stream = Stream::Plain(socket.clone());
        let security = match &self.options.tls {
            None => Security::None,
            Some(tls) if tls.is_required() => Security::Required,
            Some(_) => Security::Offered,
        };
        let mut outcome = negotiate(&mut &stream, &mut &stream, &*self.exports, security)?;
        if let (Outcome::StartTls { no_zeroes }, Some(tls)) = (&outcome, &self.options.tls) {
            stream = Stream::Secured(Box::new(Secured::accept(tls, socket.clone())?));
            outcome = negotiate_secured(&mut &stream, &mut &stream, &*self.exports, *no_zeroes)?;
        }
        let Outcome::Chosen(chosen) = outcome else { return Ok(()) };
        if !self.choose(number) {
            return Ok(());
        }
        socket.set_deadline(None)?;
        let is_ending = || self.ending.load(Ordering::SeqCst);
        let watch = Watch { is_ending: &is_ending, is_gone: &|| socket.is_gone() };
        let done = transmit(&mut &stream, &stream, &chosen, (self.options.bounds, &self.budget), watch);
        // one that takes nothing any more is not waited for long
        socket.set_deadline(Some(Instant::now() + CLOSE_TIME))?;
        stream.finish();
        done
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
        live.values().for_each(|known| known.socket.shutdown(how));
        while !live.is_empty() && !self.ended.wait_until(&mut live, until).timed_out() {}
        live.is_empty()
    }
}
