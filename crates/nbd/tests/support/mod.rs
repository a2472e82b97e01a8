//! A server in this process, and its client.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use nbd::{Export, Listener, Named, Options, Server, Stop};

mod client;

pub use client::*;

/// A server of some exports on a socket of its own.
pub struct Served {
    dir: tempfile::TempDir,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<bool>>,
}

impl Served {
    pub fn new(exports: &[(&str, Arc<dyn Export>)], options: Options) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let listener = Listener::unix(&dir.path().join("socket")).unwrap();
        let named = |(name, export): &(&str, Arc<dyn Export>)| Named {
            name: (*name).to_owned(),
            description: format!("about {name}"),
            export: export.clone(),
        };
        let server = Server::new(exports.iter().map(named).collect::<Vec<_>>(), vec![listener], options);
        let stop = Arc::new(Stop::new().unwrap());
        let told = stop.clone();
        let thread = std::thread::Builder::new().spawn(move || server.run(&told)).unwrap();
        Served { dir, stop, thread: Some(thread) }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub fn stop(&self) {
        self.stop.stop();
    }

    /// Ends the server; returns whether all connections ended.
    pub fn end(mut self) -> bool {
        self.stop();
        self.thread.take().unwrap().join().unwrap()
    }

    /// A client that has not said anything.
    pub fn connect(&self) -> Client {
        Client::connect(&self.path())
    }

    /// A client that has chosen an export.
    pub fn client(&self, name: &str, structured: bool) -> Client {
        Client::of(&self.path(), name, structured)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop();
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}
