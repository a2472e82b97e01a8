//! Serves block devices to other programs, over the NBD protocol.
//!
//! # What it is
//! A [`Server`] listens on Unix sockets and TCP ports ([`Listener`]) and serves a list of [`Export`]s: what a block device is to the system's block layer an export is to NBD. The Linux kernel (`nbd-client`),
//! libnbd (`nbdcopy`, `nbdinfo`, `fio`) and QEMU are clients. The protocol is that of `doc/proto.md` in the repository of the reference implementation
//! (<https://github.com/NetworkBlockDevice/nbd>); the names here are its names.
//!
//! # A connection
//! 1. *Negotiation* ([`negotiate`]): fixed newstyle. The server greets, and answers the client's options one by one, until the client has chosen an export (`NBD_OPT_GO`, or `NBD_OPT_EXPORT_NAME` of older
//!    clients). Structured replies and the context `base:allocation` are offered. With certificates ([`Tls`]) the client may begin TLS
//!    (`NBD_OPT_STARTTLS`), or has to: then it is told of nothing before. Behind it the negotiation begins anew. Exports may come and go ([`Exports`]): one is in use from when a client selects a context for it, or chooses it; who only asks about it uses it for that moment.
//! 2. *Transmission* ([`transmit`]): one thread reads requests, checks each ([`mod@request`]) and hands it to the threads of the connection, which carry out several at once and reply in any order
//!    ([`mod@reply`]). Requests that overlap are put in order by the export itself. At `NBD_CMD_DISC`, and when the client closes its side, what has been taken is carried out and answered first.
//!    Once nobody can be answered, as the client has closed both directions or a reply could not be sent, what has not begun is dropped, and what takes long stops ([`Stopped`]).
//!
//! # Why several connections may write one export
//! `NBD_FLAG_CAN_MULTI_CONN` says that a flush on one connection covers what was answered on all. All connections to a name share one [`Export`], or several of one device ([`Exports::find`]), which have no cache per connection,
//! and a write is answered after the device has taken it: so [`Export::flush`], which covers all that the device has taken, covers it.
//!
//! # Hostile clients
//! Who may connect may read and write the exports; that is all that a client can do. Every length is checked before memory is taken for it, and a payload's memory grows with the bytes that come. A request that is
//! not valid is answered with `NBD_EINVAL`, as the specification says; where the next request would not be found (another magic number, a payload larger than [`PAYLOAD_MAX`]) the connection ends. Bounds:
//! connections ([`Options::connections`]); the time of a negotiation ([`Options::negotiation_time`]), the size of an option ([`negotiate::OPTION_MAX`]); per connection the requests, the threads and the bytes in flight
//! ([`transmit::Bounds`]); zeros that are to be written, and what is to be read ahead, count as data. All connections together have a bound of bytes ([`Options::bytes`]), of which each has a share that others cannot take ([`Budget`]). Negotiations have
//! places apart from the connections that have chosen an export ([`Options::negotiations`]): who comes when there is none takes that of the oldest, so that idle strangers shut out nobody. After the negotiation there is no limit of time, as a disk may be idle for days and a paused virtual machine takes no replies: such a client holds up its own connection alone, and one
//! over TCP that has vanished, or takes nothing of what was sent for two minutes, is closed (keepalive probes, `TCP_USER_TIMEOUT`).
//!
//! # How it ends
//! Told to end ([`Stop`]) a server accepts nobody any more, and reads no more requests. What it has taken is carried out and answered, for at most [`Options::grace`]; then it closes the connections, which stops what they have begun. The caller syncs what
//! is behind the exports. A server that is killed loses nothing that was flushed, if the export keeps its promise; its socket file is replaced by the next one ([`Listener::unix`]).
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

mod budget;
mod export;
mod listen;
pub mod memory;
pub mod negotiate;
mod proto;
mod reply;
mod request;
mod server;
mod socket;
mod tls;
pub mod transmit;
mod workers;

pub use base::Stop;
pub use budget::Budget;
pub use export::{Export, Exports, Extent, Failed, Listed, Named, Stopped, Zero};
pub use listen::{Listener, PORT};
pub use proto::PAYLOAD_MAX;
pub use server::{Options, Server};
pub use tls::{Tls, TlsError};
