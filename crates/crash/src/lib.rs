//! Test support: the crash harness. Power cuts, and random operations against a model, for pools that are written. Nothing here ships.
//!
//! # What it is for
//! A pool must survive that the power goes, whenever it goes. No test can pull the plug between each two writes of a real run, but
//! it can record the run once, and then rebuild from the record any state that a plug pulled at any moment could have left.
//!
//! # The few ideas
//! * **One tape.** All devices of a pool are [`RecordingDevice`]s of one [`Recording`]. Every write (with its bytes) and every flush
//!   becomes an event of one log; its place there is its number, in one order for all devices. What the run was told to be safe
//!   by then is put between the events as a [`Promise`]. [`Recording::finish`] freezes this into a [`Tape`].
//! * **A device promises nothing but flushes.** A write that was followed by a completed flush of *its* device is on the medium. Any
//!   other write that was issued before the cut may have reached the medium, or not, or in part: in whole sectors of 512 bytes
//!   or 4 KiB, any of them. Between two writes of one place without a flush between them there is no order. Devices know
//!   nothing of each other.
//! * **A [`Cut`] is a place on the tape and a seed.** The seed decides what becomes of the writes that are still pending there. Some fates
//!   find bugs much more often than a coin thrown for each write does, so these have a share of their own: nothing was lost, all was
//!   lost, one write alone was lost, one alone came through, one device was fast and the others were slow. The same seed on
//!   the same tape is the same state, byte for byte.
//! * **A state costs what differs.** A [`Cutter`] goes along the tape once and keeps one image per device, of what is safe. A state is an
//!   [`Overlay`] on each: pages that differ. What is written on the state (a pool that is imported and goes on) stays in the overlay.
//! * **Nothing is trusted but the model.** What must be found after a cut is not "some consistent pool" but exactly the contents that
//!   the model had when the txg that is found was closed, and that txg must be at least the last one promised.
//!
//! # What a check does
//! [`pools::check`] opens the state for reading; the txg and all contents are compared; everything is verified (all
//! copies, all checksums, the space maps against the block tree). Then the state is imported for writing, goes on for a txg, is
//! exported, and is verified again: damage that lies in wait (space that was freed too early, a log of space maps that was cut
//! short) shows itself by then.
//!
//! # Limits
//! A tape keeps every byte written and refuses to grow past the limit it was given. [`Overlay`]s hold on to the image of their cutter: a
//! cutter that moves on while one lives copies the image.
//!
//! # Who judges the judge
//! [`toy`] is a store of two slots that can be told to forget its flushes. The harness must find that, and must say nothing of the
//! store that does it right.
#![forbid(unsafe_code)]

mod chores;
pub mod compare;
mod cut;
mod driver;
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
