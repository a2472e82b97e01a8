//! Serves the pools of this machine to other processes, over a Unix socket.
//!
//! # What it is
//! A [`Server`] has the pools of its state folder open, and takes requests to them from many clients at once. What OpenZFS's kernel is to its commands it is to ours: a connection is an open
//! `/dev/zfs`, with one [`site::Session`]; a request is an ioctl. A [`Client`] makes requests of `control` ([`Client::call`]), or has a whole command line carried out
//! ([`Client::begin_run`]) by a [`Runner`], which the program supplies.
//!
//! Who does not ask a server meets it as any process that writes a pool: it has the locks of the devices ([`site::writing`]), and pools can be read beside it.
//!
//! # The wire
//! Both sides send frames ([`frame`]): a header of 24 bytes, a body, which is a packed name-value list ([`message`]), and descriptors ([`wire`]). The server begins with `Hello`, or with an `Answer` about
//! request 0 that says why it does not serve this peer. Then the client sends `Call` or `Run`, each with a number that no other of its requests in flight has, as many at once as it may; each gets one
//! `Answer`, in any order. `Cancel` and `Signal` are about a request in flight. A frame that is not understood in itself, but whose end is known, is answered; after anything else the server says why in an
//! `Answer` about request 0, and closes the connection.
//!
//! # Who may ask
//! The system tells who the peer is ([`peer`]). The owner of the pools and root may do all; with [`Options::delegation`] others may connect, and make those requests that are open to them
//! ([`control::Ioc::check_caller`]). They have narrower bounds ([`message::Bounds`]): a client is hostile until it is known to be the owner.
//!
//! # Threads and bounds
//! Each connection has a thread that reads its frames, and each request one that does it. There are bounds for both, of all users, and of each that is not the owner ([`mod@bounds`]), and for the size of a
//! frame and the time it may take. No thread waits for a client without a limit but that of the request that the client waits for: a stream that stalls ends with its request or
//! connection ([`mod@files`]).
//!
//! # How it begins and ends
//! [`Server::new`] takes the seat of the state folder ([`site::seat`]), which one process has at a time. Told to end ([`Stop`]) it removes the socket, cancels what waits, lets requests end for a
//! while, and closes the pools. One that is killed leaves pools as a power cut does, which lose nothing that was answered; the next one replaces its socket.
#![forbid(unsafe_code)]

mod bounds;
mod calls;
mod client;
mod connection;
mod core;
mod files;
pub mod frame;
mod listen;
pub mod message;
pub mod peer;
mod run;
mod server;
mod start;
pub mod wire;

pub use self::core::{Traffic, Watched};
pub use base::Stop;
pub use client::{Client, Error, Request, Signals};
pub use peer::Peer;
pub use run::{Command, Runner, SIGNALS, is_taken};
pub use server::{Ending, InUse, Options, Server};
pub use start::start;
