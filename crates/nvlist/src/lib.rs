//! Name-value lists: an ordered list of named, typed values, and its packed forms.
//!
//! A pool keeps its configuration in such lists (labels, the config object of the MOS), a send stream opens with one, and every command
//! of OpenZFS takes one and answers with one. Counterparts in OpenZFS: `nvlist_t`, `nvpair_t`, `nvlist_pack()`, `nvlist_print_json()`.
//!
//! # In memory
//! An [`NvList`] has three parts, and none of them is allocated per pair:
//! * **slots**: the pairs in the order in which they were added, value and name side by side. A removed pair leaves an empty slot behind.
//!   Pairs of the same name (allowed without a uniqueness flag) are a chain through the slots;
//! * **names**: the few that are too long for a slot;
//! * **index**: from 25 slots on, a table with an entry for each distinct name: 32 bits of hash and its first slot.
//!
//! So a lookup waits for memory twice in a list of any size: for the entry, and for the slot. Adding appends to a vector and writes an
//! entry; removing empties a slot. When half of the memory is dead, everything moves together once: amortised O(1), and the
//! order of insertion stays.
//!
//! What bounds a lookup in a list of a million pairs is memory: the name asked for, the entry and the slot (two lines, 96 bytes) are four lines that no
//! cache holds, each behind a miss of the page table's cache, and one leads to the next. Looked up one by one, in random order, 100,000 to a million names
//! take a third of libnvpair's time on a busy machine, and more on an idle one, where its misses are cheap too. Whoever has many names asks for all
//! of them at once ([`NvList::get_many`], [`NvList::remove_many`]): then the misses of a dozen names overlap, and it is a quarter to a fifth.
//!
//! The hash is keyed with secret random numbers and universal (`hash`). Names come from streams and foreign pools, and whoever chooses
//! names must not be able to choose collisions: OpenZFS's ELF hash turns a list of chosen names into quadratic work. The key never
//! shows: order is the order of insertion.
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
