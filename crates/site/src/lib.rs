//! The pools of this machine: which are imported, who has them open, and how they are opened.
//!
//! # Model
//! A *site* is a folder of records ([`records`]): one for each imported pool, with its name, its devices and how it was imported. In OpenZFS the
//! kernel knows this (`spa_namespace`, and `zpool.cache` on disk), and holds the pools open; here any number of processes do, each for as long as it
//! works. What they must know of each other is in the same folder:
//!
//! * `GUID.json`: the record of an import; `.changes`: the lock of who changes one; `.name.NAME`, `.guid.GUID`: those of who gives a pool its name, and who
//!   imports it ([`records`]).
//! * `GUID.left`: the last txg that was written, so that a pool never goes back in time unnoticed ([`left`]).
//! * `GUID.io`: what was read and written since the import, and what failed ([`iostats`]).
//! * `events`: the last events of all pools ([`events`]).
//! * `readers`, `given-up`: the txgs that readers see, whose blocks are not reused meanwhile ([`readers`]).
//! * `holds`: the datasets that are read for long, and the heads that are open ([`long_holds`]).
//! * `GUID.suspended`, `GUID.clear`: a pool that waits for its devices, and the request that it goes on ([`suspended`]).
//! * `server.socket`, `server.lock`: the process that serves the pools to others ([`seat`]).
//! * `agent.UID`: the process that keeps typed keys ([`agent`]); [`keys`] finds and loads keys.
//!
//! All of them are opened in one place (`state`), which follows no links there: the folder may be another user's.
//!
//! One process at a time writes a pool: it has the locks of the devices ([`writing`]), and others wait for it. Readers take no lock.
//!
//! # Use
//! A [`Site`] is a process's handle: it opens imported pools for reading or for writing, once each. A [`Front`] takes its warnings. The records
//! themselves can be used without one. What commands show of a pool they ask a [`Query`], which knows what all processes have counted. A
//! [`Machine`] takes all requests there are, about one pool or all, from many callers at once, and keeps pools open: it is what a server hands them to.
//!
//! # What a crash leaves
//! Files that nobody has locked are stale, and the next process that meets them removes them. Records are replaced as a whole.
//!
//! # Absent
//! Words for users, terminals, prompts: errors name the pool and the cause, and the front end has its own words for some.
#![forbid(unsafe_code)]

pub mod agent;
mod catch_up;
pub mod devices;
mod error;
pub mod events;
pub mod hostid;
pub mod import;
pub mod iostats;
pub mod keys;
pub mod left;
pub mod long_holds;
mod machine;
mod patience;
mod query;
pub mod readers;
pub mod records;
pub mod rewind;
pub mod seat;
mod sending;
mod site;
mod state;
pub mod suspended;
pub mod tryimport;
mod vdevs;
pub mod with_log;
pub mod writing;

pub use catch_up::{CaughtUp, catch_up};
pub use error::Error;
pub use machine::{Borrowed, LiveHeld, LivePool, Machine, Mounted, Session};
pub use query::{Query, place_devices};
pub use records::Imported;
pub use site::{Front, Silent, Site};
