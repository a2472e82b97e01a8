//! Basics that all crates share.
//!
//! * [`Endian`] and [`bytes`]: a pool or stream is in its writer's byte order, and each structure is decoded once, on input, into native
//!   integers. Every read of foreign bytes uses the checked accessors here: a short buffer is a `None`, never a panic.
//! * [`Txg`], [`Guid`], [`ObjectId`]: newtypes for numbers that must not be mixed up.
//! * [`Errno`]: the one table of error numbers.
//! * [`tunable`]: one table of the numbers that a user may set, under OpenZFS's names.
//! * [`counter`]: kstat-style counters.
//! * [`Versioned`]: a lock whose version shows, without taking the lock, whether the data it guards has changed.
//! * [`UseTable`]: a table of what is in use, which keeps some of what is not.
//! * [`Env`]: clock and randomness, which can be seeded; [`tasks`]: batches of work on all cores; [`pump`]: batches that wait for devices.
//! * [`Stop`]: tells a server to end.
//!
//! Nothing here does I/O, but for the pipe of a [`Stop`]. Every other crate uses this one; it depends on none of them.
#![forbid(unsafe_code)]

pub mod bytes;
pub mod counter;
mod endian;
mod env;
mod errno;
mod ids;
pub mod pump;
mod stop;
pub mod tasks;
pub mod tunable;
mod use_table;
mod versioned;

pub use endian::Endian;
pub use env::Env;
pub use errno::Errno;
pub use ids::{Guid, ObjectId, Txg};
pub use stop::Stop;
pub use use_table::UseTable;
pub use versioned::{Versioned, VersionedWriteGuard};
