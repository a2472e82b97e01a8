//! Name-value lists: an ordered list of named, typed values, and its packed forms.
//!
//! A pool keeps its configuration in such lists (labels, the config object of the MOS), a send stream opens with one, and every command
//! of OpenZFS takes one and answers with one. Counterparts in OpenZFS: `nvlist_t`, `nvpair_t`, `nvlist_pack()`, `nvlist_print_json()`.
//!
//! # In memory
//! An [`NvList`] has three parts, and none of them is allocated per pair:
//! * **slots**: the pairs in the order in which they were added. A removed pair leaves an empty slot behind;
//! * **names**: one byte arena, a record per *distinct* name, which knows the first slot of that name. Pairs of the same name
//!   (allowed without a uniqueness flag) are a chain through the slots;
//! * **index**: from 17 names on, an open-addressing table of 8-byte entries: 32 bits of hash and the place of the record.
//!
//! So a lookup costs two cache misses in a list of any size (table, record) and a third for the value; adding appends to two vectors and
//! writes a table entry; removing empties a slot. When half of the memory is empty slots and dead names, everything moves
//! together once: amortised O(1), and the order of insertion stays.
//!
//! The hash is SipHash-1-3 under a random key of each index's own. Names come from streams and foreign pools, and whoever
//! chooses names must not be able to choose collisions: a fast unkeyed hash (OpenZFS uses the ELF hash) turns a list of chosen names into quadratic
//! work, and the seeded multiplicative hashes (foldhash, FxHash) promise no resistance. SipHash-1-3 is what `std` trusts for this; on names of
//! 10 to 50 bytes it costs less than one cache miss. The key never shows: order is the order of insertion.
//!
//! # Packed
//! XDR (disks and streams) and NATIVE (the in-memory image of a C program, in either byte order) share a reader over borrowed bytes:
//! [`NvListRef`] walks and looks up without building anything; [`NvList::unpack`] builds the list. A list that was packed by OpenZFS
//! packs to the same bytes again.
//!
//! # Invariants
//! * Bytes are hostile. Every length is checked against what is there before it is used, nesting is bounded, and memory is bounded by
//!   [`Limits`], never by what a header claims.
//! * Names and strings are C strings: bytes without NUL, not always UTF-8. The `&str` getters answer `None` for what is no UTF-8;
//!   [`NvList::iter_bytes`] and [`NvString`] show all bytes, so nothing is lost.
//! * Nothing here knows what a pool is.

#![forbid(unsafe_code)]

mod access;
mod decode;
mod encode;
mod error;
mod index;
mod json;
mod list;
mod names;
mod print;
mod reader;
mod sip;
mod types;
mod value;
mod view;

pub use base::Endian;
pub use decode::Limits;
pub use error::Error;
pub use list::{Iter, IterBytes, NvList};
pub use json::JsonStyle;
pub use types::{DataType, Encoding, Uniqueness};
pub use value::{NvString, Value};
pub use view::{Elements, ListsRef, NvListRef, PairRef, Pairs, StringsRef, ValueRef};
