//! Name-value lists: an ordered list of named, typed values, and its packed forms.
//!
//! A pool stores its configuration in such lists (labels, the config object of the MOS), a send stream begins with one, and every command
//! of OpenZFS takes one as argument and returns one. Counterparts in OpenZFS: `nvlist_t`, `nvpair_t`, `nvlist_pack()`,
//! `nvlist_print_json()`.
//!
//! # In memory
//! An [`NvList`] has three parts, none of them allocated per pair:
//! * **slots**: the pairs in insertion order, value and name side by side. A removed pair leaves an empty slot. Pairs of the same name
//!   (allowed without a uniqueness flag) form a chain through the slots;
//! * **names**: an arena for the few names that are too long for a slot;
//! * **index**: from 25 slots on, a table with an entry for each distinct name: a 32-bit hash and the name's first slot.
//!
//! So a lookup waits for memory twice in a list of any size: for the entry, and for the slot. An insertion appends to a vector and writes
//! an entry; a removal empties a slot. When half of the memory is dead, the list is compacted: amortised O(1), and insertion order is kept.
//!
//! Memory latency bounds a lookup in a list of a million pairs: the name asked for, the entry and the slot (two lines, 96 bytes) are four
//! cache lines, each of them a cache miss behind a TLB miss, and each leads to the next. Looking up 100,000 to a million names one by one,
//! in random order, takes a third of libnvpair's time on a busy machine, and more on an idle one, where misses are cheap for libnvpair too.
//! A caller that has many names asks for all of them at once ([`NvList::get_many`], [`NvList::remove_many`]): then the misses of a dozen
//! names overlap, and the time is a quarter to a fifth.
//!
//! The hash is universal and keyed with secret random numbers (`hash`). Names come from streams and foreign pools, and their author must
//! not be able to choose collisions: with OpenZFS's ELF hash, a list of chosen names costs quadratic time. The key is never visible from
//! outside: iteration is in insertion order.
//!
//! # Packed
//! XDR (disks and streams) and NATIVE (the in-memory image of a C program, in either byte order) share a reader over borrowed bytes:
//! [`NvListRef`] iterates and looks up without building anything; [`NvList::unpack`] builds the list. A list packed by OpenZFS packs to the
//! same bytes again.
//!
//! # Invariants
//! * Input is hostile. Every length is checked against the bytes present before it is used, nesting is bounded, and memory is bounded by
//!   [`Limits`], never by the sizes that a header claims.
//! * Names and strings are C strings: bytes without NUL, not always UTF-8. The `&str` getters return `None` for bytes that are not UTF-8;
//!   [`NvList::iter_bytes`] and [`NvString`] give access to all bytes, so nothing is lost.
//! * Nothing here knows what a pool is.

#![forbid(unsafe_code)]

mod access;
mod batch;
mod decode;
mod encode;
mod error;
mod hash;
mod index;
mod iter;
mod json;
mod list;
mod names;
mod print;
mod reader;
mod types;
mod upkeep;
mod value;
mod view;

pub use base::Endian;
pub use batch::GetMany;
pub use decode::Limits;
pub use error::Error;
pub use iter::{Iter, IterBytes};
pub use json::JsonStyle;
pub use list::NvList;
pub use types::{DataType, Encoding, Uniqueness};
pub use value::{NvString, Value};
pub use view::{Elements, ListsRef, NvListRef, PairRef, Pairs, StringsRef, ValueRef};
