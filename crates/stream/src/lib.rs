//! Send streams: the row of records that `zfs send` writes, and the tools that look into one.
//!
//! * [`Reader`] walks a stream record by record, in either byte order, over any [`std::io::Read`]. It reads pieces of a megabyte, in which
//!   records and payloads are looked at where they stand; a receive keeps them there until they are written. Pieces are used again, so memory is
//!   bounded by what is kept and the largest block (16 MiB), or the largest nvlist that the tunables allow, whatever the stream's length and whatever
//!   its headers claim.
//! * The running fletcher4 is taken over every byte as it passes. [`Reader::next_record`] refuses a record whose sum is
//!   wrong, a substream whose END does not agree, and a stream that stops in the middle; `zstream dump` shows such a
//!   stream as far as it goes, so [`dump::Dumper`] works on the lenient walk below it.
//! * [`send`] makes streams of datasets, [`recv`] makes snapshots of streams.
//! * [`package`]: several streams behind one header.
//! * [`edit`]: streams changed on their way.
//! * [`token`]: the text from which an interrupted receive goes on.
//!
//! A stream, in short (docs/format.md §15): BEGIN with an nvlist, records, END. A replication stream is a compound header (BEGIN of
//! header type 2, END), then one such substream a snapshot, then an END of zeros. The sum starts anew after each END.
//!
//! Invariants: bytes are hostile, a length is compared with a limit before it is believed.
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
pub use reader::{Entry, Reader};
