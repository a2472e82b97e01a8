//! The ZFS intent log (ZIL): synchronous changes made durable between two txgs.
//!
//! # What it is
//! Each dataset has a log: a chain of blocks that starts at the ZIL header in its object set. A record describes one change (a
//! file created, bytes written, …). When the pool is opened after a crash, the chain is walked, and the records that no synced
//! txg holds are replayed.
//!
//! # The few ideas
//! * **A chain ends at the first block that does not belong to it.** The next block is allocated, and its pointer written, before
//!   the block itself is. The end of the chain is therefore an unwritten or stale block: its checksum, seeded with {guid, guid,
//!   object set, sequence}, does not match, or its own next pointer does not carry the sequence plus one. Neither is an error: it
//!   is a [`ChainEnd`].
//! * **[`walk`] streams**: it visits each block pointer and then that block's records, with one block in memory. [`read_log`]
//!   keeps the whole log.
//! * **A chain is read ahead**: blocks of a log are mostly contiguous, so a read brings in a window of the device, and the next
//!   blocks are taken from it once the pointers to them are known.
//! * **A claimed log has a known end** (the header's highest block and record sequence): records beyond it were written by a
//!   chain that this pool does not continue.
//! * **Encrypted logs** are decrypted if the dataset's key is loaded; otherwise only the record headers and block pointers, which
//!   are stored in the clear for claiming, are available ([`LogBlock::sealed`]).
//!
//! # Invariants
//! Only [`write`](mod@write) writes. A block's content is valid at exactly one sequence number (a block names its successor's),
//! so a walk cannot loop: it ends after at most as many blocks as the pool holds.
//!
//! # Callers
//! `zdb -i` ([`list`]); pool import, which [claims](claim) the logs; opening a dataset for changes, which [replays](replay) its
//! log and then [writes](mod@write) to it. OpenZFS: `zil.c`, `zdb_il.c`.
#![forbid(unsafe_code)]

mod ahead;
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
