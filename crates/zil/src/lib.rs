//! The intent log: what applications were promised between two txgs.
//!
//! # What it is
//! Each dataset has a log: a chain of blocks from its header in the object set. A record tells one change (a file made, bytes
//! written, …). When the pool is opened after a crash, the chain is walked, and what no synced txg holds is played again.
//!
//! # The few ideas
//! * **A chain ends at the first block that is not its own.** The next block is allocated and named before it is written, so
//!   the end is an unwritten or stale block: its checksum, seeded with {guid, guid, object set, sequence}, does not match, or
//!   its own next pointer does not carry the sequence plus one. Nothing of that is an error: it is [`ChainEnd`].
//! * **[`walk`] streams**: block pointer, then its records, one block in memory. [`read_log`] keeps all of it.
//! * **A chain is read ahead**: the blocks of a log mostly lie behind one another, so what is read is a window of the device, in which the
//!   next blocks are found once the pointers to them are known.
//! * **A claimed log has a known end** (the header's highest block and record sequence): records beyond it were written by a
//!   chain that this pool does not continue.
//! * **Encrypted logs** are decrypted if the dataset's key is loaded; else the records' headers and block pointers, which stand
//!   in clear for claiming, are all there is ([`LogBlock::sealed`]).
//!
//! # Invariants
//! Only [`write`](mod@write) writes. A block's content is valid at one sequence number alone (it names its successor's), so a walk cannot go in circles:
//! it ends after as many blocks as the pool holds.
//!
//! # Callers
//! `zdb -i` ([`list`]); an import, which [claims](claim); who opens a dataset for changes, and [replays](replay), then [writes](mod@write). OpenZFS: `zil.c`, `zdb_il.c`.
#![forbid(unsafe_code)]

mod chain;
pub mod claim;
mod error;
pub mod list;
mod plan;
mod prime;
pub mod replay;
mod show;
mod window;
pub mod write;

pub use chain::{ChainEnd, Log, LogBlock, Step, Summary, data_of, read_log, walk};
pub use error::Error;
pub use show::ShowBlkPtr;
