//! Send streams: the sequence of records that `zfs send` writes, and the tools that inspect and edit one.
//!
//! * [`Reader`] walks a stream record by record, in either byte order, over any [`std::io::Read`]. It reads chunks of 1 MiB and
//!   parses records and payloads in place; a receive keeps payloads there until they are written. The chunks are reused, so
//!   memory is bounded by the payloads that are kept plus the largest block (16 MiB) or the largest nvlist that the tunables
//!   allow, whatever the stream's length and whatever its headers claim.
//! * The running fletcher4 covers every byte of the stream. [`Reader::next_record`] refuses a record whose checksum is wrong, a
//!   substream whose END does not match, and a truncated stream. `zstream dump` prints such a stream up to the error, so
//!   [`dump::Dumper`] uses the lenient walk underneath.
//! * [`send`] makes streams from datasets, [`recv`] makes snapshots from streams.
//! * [`package`]: several streams after one common header (compound streams).
//! * [`edit`]: stream filters, which change records in transit.
//! * [`token`]: resume tokens, from which an interrupted receive is continued.
//!
//! The format in short (docs/format.md §15): BEGIN with an nvlist, records, END. A replication stream is a compound header (BEGIN of
//! header type 2, END), then one such substream per snapshot, then an END of zeros. The checksum starts over after each END.
//!
//! Invariant: input is untrusted; every length is compared with a limit before it is used.
//! Called by the `cli` (`zstream`). OpenZFS: `cmd/zstream`, `libzfs_sendrecv.c`.
#![forbid(unsafe_code)]

mod ahead;
pub mod dump;
pub mod edit;
mod error;
mod nvprint;
pub mod package;
mod reader;
pub mod recv;
pub mod send;
pub mod token;

pub use error::Error;
pub use nvprint::print as print_nvlist;
pub use ondisk::send::{Header, Record, RecordType};
pub use reader::{Entry, Reader, begin_record};
