//! What the connections of a server share.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use base::Stop;
use base::counter::Counter;
use parking_lot::Mutex;
use site::Machine;

use crate::bounds::Quota;
use crate::connection::Connection;
use crate::peer::Peer;
use crate::run::Runner;

pub(crate) struct Core {
    pub(crate) machine: Machine,
    /// The user that the pools belong to.
    pub(crate) owner: u32,
    pub(crate) runner: Option<Arc<dyn Runner>>,
    pub(crate) connections: Arc<Quota>,
    pub(crate) requests: Arc<Quota>,
    /// Requests of `control`, command lines, and those of both that were refused for want of room, since the server began.
    pub(crate) calls: Counter,
    pub(crate) commands: Counter,
    pub(crate) refused: Counter,
    live: Mutex<HashMap<u64, Weak<Connection>>>,
    ending: AtomicBool,
    /// A client may end the server.
    pub(crate) told: Stop,
}

/// A server, for those who look at what it does.
#[derive(Clone)]
pub struct Watched(pub(crate) Arc<Core>);

/// What a server does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections at present.
    pub connections: usize,
    /// Requests that are under way.
    pub requests: usize,
    /// Requests of `control` since it began.
    pub calls: u64,
    /// Command lines since it began.
    pub commands: u64,
    /// Those of both that were refused, as there were too many at once.
    pub refused: u64,
}

impl Watched {
    /// The pools.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.0.machine
    }

    /// What the server does.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic {
            connections: self.0.connections.used(),
            requests: self.0.requests.used(),
            calls: self.0.calls.get(),
            commands: self.0.commands.get(),
            refused: self.0.refused.get(),
        }
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.traffic().fmt(f)
    }
}

/// A connection that is served; until dropped, also by a panic. Its requests end then.
struct Live<'a> {
    core: &'a Core,
    number: u64,
    connection: &'a Connection,
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        self.connection.close();
        self.core.live.lock().remove(&self.number);
    }
}

impl Core {
    pub(crate) fn new(machine: Machine, runner: Option<Arc<dyn Runner>>) -> io::Result<Core> {
        Ok(Core {
            machine,
            owner: site::records::owner(),
            runner,
            connections: Quota::of_connections(),
            requests: Quota::of_requests(),
            calls: Counter::new(),
            commands: Counter::new(),
            refused: Counter::new(),
            live: Mutex::default(),
            ending: AtomicBool::new(false),
            told: Stop::new()?,
        })
    }

    /// The user of a peer, if it is not the owner: for these there are other bounds.
    pub(crate) fn stranger(&self, peer: Peer) -> Option<u32> {
        (!peer.is_owner(self.owner)).then_some(peer.uid)
    }

    /// Whether no more requests are taken.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Serves a connection, the one with this number, until it is closed.
    pub(crate) fn serve(&self, number: u64, connection: &Arc<Connection>) {
        self.live.lock().insert(number, Arc::downgrade(connection));
        let _live = Live { core: self, number, connection };
        if !self.is_ending() {
            connection.serve();
        }
    }

    /// Takes no more requests, and ends what those wait for that are in flight.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        self.each(|connection| connection.cancel());
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.each(|connection| connection.close());
    }

    fn each(&self, work: impl Fn(&Connection)) {
        let live: Vec<Arc<Connection>> = self.live.lock().values().filter_map(Weak::upgrade).collect();
        live.iter().for_each(|connection| work(connection));
    }
}
