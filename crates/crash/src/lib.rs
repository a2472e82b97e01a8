//! Test support: the crash harness, which runs power cuts, and random operations against a model, on writable pools. Nothing here ships.
//!
//! # Purpose
//! A pool must survive a power cut at any moment. No test can pull the plug between any two writes of a real run, but it can record the run
//! once, and then rebuild from the record any state that a plug pulled at any moment could have left.
//!
//! # Design
//! * **One tape.** All devices of a pool are [`RecordingDevice`]s of one [`Recording`]. Every write (with its bytes) and every flush
//!   becomes an event of one log; its position there is its number, in one order for all devices. A [`Promise`] between the events records
//!   what the run had been told to be safe at that point. [`Recording::finish`] freezes this into a [`Tape`].
//! * **A device promises nothing but flushes.** A write that was followed by a completed flush of *its* device is on the medium. Any other
//!   write that was issued before the cut may have reached the medium, or not, or in part: in whole sectors of 512 bytes or 4 KiB, any of
//!   them. Two writes to the same offset without a flush between them have no order. Devices are independent of each other.
//! * **A [`Cut`] is a position on the tape and a seed.** The seed decides the fate of the writes that are still pending there. Some fates
//!   find bugs much more often than a coin tossed for each write does, so these are drawn explicitly: nothing was lost, everything was
//!   lost, one write alone was lost, one alone survived, one device was fast and the others were slow. The same seed on the same tape gives
//!   the same state, byte for byte.
//! * **A state costs only its differences.** A [`Cutter`] moves along the tape once and keeps one image per device, of the safe contents. A
//!   state is an [`Overlay`] on each: the pages that differ. Later writes to the state (by a pool that is imported and continues) stay in
//!   the overlay.
//! * **Nothing is trusted but the model.** After a cut, a check must find not "some consistent pool" but exactly the contents that the
//!   model had when the txg found was closed, and that txg must be at least the last one promised.
//!
//! # What a check does
//! [`pools::check`] opens the state for reading, compares the txg and all contents, and verifies everything (all copies, all checksums, the
//! space maps against the block tree). Then it imports the state for writing, lets it sync another txg, exports it, and verifies it again:
//! latent damage (space that was freed too early, a truncated log of space maps) shows by then.
//!
//! # Limits
//! A tape keeps every byte written and refuses to grow beyond its limit. An [`Overlay`] keeps a reference to the image of its cutter: a
//! cutter that moves on while one exists copies the image.
//!
//! # Testing the harness
//! [`toy`] is a store of two slots that can be told to omit its flushes. The harness must detect that, and must report nothing for the
//! correct store.
#![forbid(unsafe_code)]

mod chores;
pub mod compare;
pub mod config_changes;
mod cut;
mod driver;
pub mod exchange;
pub mod fsynced;
pub mod model;
mod overlay;
mod plug;
pub mod pools;
pub mod promises;
mod recording;
mod rng;
mod run;
pub mod slog;
pub mod storage;
pub mod toy;
pub mod writers;

pub use compare::compare;
pub use cut::{Cut, Cutter, Fate, Loss, Tear};
pub use driver::{Driver, Limits};
pub use overlay::Overlay;
pub use plug::{Loss as PowerLoss, Plug, PluggedDevice};
pub use recording::{Event, Promise, Recording, RecordingDevice, Tape};
pub use rng::Rng;
pub use run::{Failure, State, number_from_env, report, try_cuts};
