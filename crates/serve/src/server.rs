//! The server itself: it takes the seat, opens the pools, accepts connections, and ends in order.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use base::{Errno, Stop};
use control::Failed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use site::seat::Seat;
use site::{Machine, Site};

use crate::connection::Connection;
use crate::core::{Core, Watched};
use crate::frame::Kind;
use crate::listen;
use crate::message::Answer;
use crate::peer::{Identify, Peer};
use crate::run::Runner;
use crate::wire;

/// The time that requests have to end when the server ends. Those that wait are cancelled; the others change something.
const GRACE: Duration = Duration::from_secs(10);
/// The time that pools have to be closed. One whose requests or devices hang for longer is left to the end of the process.
const CLOSING: Duration = Duration::from_secs(120);
/// The interval at which it is looked whether they have ended.
const LOOK: Duration = Duration::from_millis(10);
/// The pause after a connection that could not be accepted, as there are no descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether a server is in use without clients.
pub type InUse = Arc<dyn Fn() -> bool + Send + Sync>;

/// What is to be done before the pools of a server are closed.
pub type Ending = Arc<dyn Fn() + Send + Sync>;

/// How a server serves.
#[derive(Clone)]
pub struct Options {
    /// All users may connect; they may do what they are allowed to.
    pub delegation: bool,
    /// It ends after so long without a connection of the owner, a request, or work in the background of a pool.
    pub idle: Option<Duration>,
    /// Whether it is in use without clients: something of its pools is mounted. As long as that is so it does not end by itself.
    pub in_use: Option<InUse>,
    /// Called at the end, when no request is under way any more, before the pools are closed: what is mounted of them is unmounted.
    pub ending: Option<Ending>,
    /// Carries out command lines.
    pub runner: Option<Arc<dyn Runner>>,
    /// Finds out who a peer is.
    pub identify: Identify,
}

impl Default for Options {
    fn default() -> Options {
        Options { delegation: false, idle: None, in_use: None, ending: None, runner: None, identify: Peer::of }
    }
}

/// A server of the pools of a site.
pub struct Server {
    site: Site,
    seat: Seat,
    listener: UnixListener,
    /// The socket is its own, and not one that was handed over.
    own_socket: bool,
    core: Arc<Core>,
    options: Options,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("seat", &self.seat).finish_non_exhaustive()
    }
}

impl Server {
    /// Becomes the server of the pools of a site: from now on there can be no other, and whoever connects waits for [`Server::run`].
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if there is one; what the system says.
    pub fn new(site: Site, options: Options) -> io::Result<Server> {
        // keys are in it from when pools are opened
        site::keys::no_core_dumps();
        let _locked = site::keys::lock_memory();
        raise_descriptors();
        let inherited = listen::inherited()?;
        let seat = Seat::take()?;
        let own_socket = inherited.is_none();
        let listener = inherited.map_or_else(|| seat.listen(options.delegation), Ok)?;
        listener.set_nonblocking(true)?;
        let core = Arc::new(Core::new(Machine::new(site.clone()), options.runner.clone())?);
        Ok(Server { site, seat, listener, own_socket, core, options })
    }

    /// Returns the pools, for who serves something of them besides. That has to end with [`Options::ending`].
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.core.machine
    }

    /// Ends before it has served anybody: those who wait see that the connection is closed.
    pub fn give_up(self) {
        // what cannot be removed is replaced by the next one
        let _left = self.own_socket.then(|| self.seat.leave());
    }

    /// Returns what others may look at while it serves. Its pools are closed at its end, whoever has this still.
    #[must_use]
    pub fn watched(&self) -> Watched {
        Watched(self.core.clone())
    }

    /// Serves until it is stopped, or idle for long. Pools that are imported are opened at once; those that do not open are told to the front of the site, and tried again by the first
    /// request to them.
    ///
    /// # Errors
    /// When a pool could not be closed.
    pub fn run(self, stop: &Stop) -> Result<(), Failed> {
        self.open_pools();
        self.accept(stop);
        let Server { seat, listener, own_socket, core, options, .. } = self;
        // what cannot be removed is replaced by the next one
        let _left = own_socket.then(|| seat.leave());
        drop(listener);
        core.end();
        let begun = Instant::now();
        while core.requests.used() > 0 && begun.elapsed() < GRACE {
            thread::sleep(LOOK);
        }
        core.close();
        // what waits for them would hold up the end of what is served, and is given up afterwards in any case
        core.machine.give_up_suspended();
        options.ending.iter().for_each(|ending| ending());
        let closed = core.machine.end(CLOSING);
        drop(seat);
        closed
    }

    /// Opens all pools, beside the requests that come.
    fn open_pools(&self) {
        let (site, core) = (self.site.clone(), self.core.clone());
        let open = move || {
            let warn = |what: &str| site.front().warn(what);
            let all = site.all().inspect_err(|e| warn(&e.to_string())).unwrap_or_default();
            for pool in all {
                if core.is_ending() {
                    break;
                }
                if let Err(failed) = core.machine.open(&pool.name) {
                    warn(&format!("cannot open '{}': {failed}", pool.name));
                }
            }
        };
        // without a thread the first request to each opens it
        let _spawned = thread::Builder::new().name("serve-open".to_owned()).spawn(open);
    }

    fn accept(&self, stop: &Stop) {
        let (mut number, mut used) = (0, Instant::now());
        loop {
            let idle = self.options.idle.map(|idle| idle.saturating_sub(used.elapsed()));
            if self.is_used() {
                used = Instant::now();
            } else if idle.is_some_and(|left| left.is_zero()) {
                let in_use = self.options.in_use.as_ref().is_some_and(|in_use| in_use());
                if !in_use && !self.core.machine.is_working() {
                    return;
                }
                used = Instant::now();
            }
            let timeout = idle.map(|left| left.max(LOOK)).and_then(|left| Timespec::try_from(left).ok());
            let wanted = [self.listener.as_fd(), stop.as_fd(), self.core.told.as_fd()];
            let mut fds = wanted.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
            let _ready = poll(&mut fds, timeout.as_ref());
            if fds[1..].iter().any(|fd| !fd.revents().is_empty()) {
                return;
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    number += 1;
                    self.welcome(number, stream);
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                // one that has gone by now, or no descriptor is left
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    /// Whether its owner is connected, or somebody waits for an answer.
    fn is_used(&self) -> bool {
        self.core.connections.used_by_owner() > 0 || self.core.requests.used() > 0
    }

    /// Serves a connection in a thread of its own, if its peer may have one.
    fn welcome(&self, number: u64, stream: UnixStream) {
        // the system does not know who it was
        let Ok(peer) = (self.options.identify)(&stream) else { return };
        let stranger = self.core.stranger(peer);
        if stranger.is_some() && !self.options.delegation {
            return refuse(&stream, Errno::EPERM, "permission denied");
        }
        let Some(permit) = self.core.connections.take(stranger) else {
            return refuse(&stream, Errno::EAGAIN, "too many connections");
        };
        let core = self.core.clone();
        let serve = move || {
            let connection = Arc::new(Connection::new(core.clone(), stream, peer));
            core.serve(number, &connection);
            drop(permit);
        };
        // the peer sees that it is closed
        let _spawned = thread::Builder::new().name("serve-client".to_owned()).spawn(serve);
    }
}

/// Says why there is no connection. What the peer does not take at once is left out.
fn refuse(stream: &UnixStream, errno: Errno, why: &str) {
    let body = Answer::failed(errno, why).encode();
    let _sent = body.map(|body| wire::send(stream, Kind::Answer, 0, &body, &[]));
}

/// Lets the process have as many descriptors open as it may.
fn raise_descriptors() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // with fewer there are fewer connections
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
