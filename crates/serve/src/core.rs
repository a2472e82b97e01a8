//! What the connections of a server share.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use base::Stop;
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
    live: Mutex<HashMap<u64, Weak<Connection>>>,
    ending: AtomicBool,
    /// A client may end the server.
    pub(crate) told: Stop,
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
