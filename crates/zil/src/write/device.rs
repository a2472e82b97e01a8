//! What the log writes to.

use base::{Env, Txg};
use dmu::Tx;
use ondisk::{BlkPtr, ZilHeader};
use vdev::{Flushes, Written};

use super::LogPlaces;
use crate::Error;

/// A block of the log that has a place and no content yet.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// The pointer, with its identity for a checksum.
    pub bp: BlkPtr,
    /// Whether it is on a log device.
    pub slog: bool,
}

/// The pool, as the log of one dataset sees it. Nothing here waits for a txg but what says so.
pub trait LogDevice: Send + Sync {
    /// The dataset's object number.
    fn objset(&self) -> u64;

    /// Clock and randomness.
    fn env(&self) -> Env;

    /// The header as it is now.
    ///
    /// # Errors
    /// When the dataset is closed.
    fn header(&self) -> Result<ZilHeader, Error>;

    /// The blocks of a chain that an earlier user left behind, to be freed when another begins.
    ///
    /// # Errors
    /// When the dataset is closed.
    fn left_behind(&self) -> Result<Vec<BlkPtr>, Error>;

    /// A place in the open txg, whatever is dirty: a commit must not wait for the writers who wait for it.
    ///
    /// # Errors
    /// When the pool is suspended.
    fn open(&self) -> Result<Tx, Error>;

    /// The last txg that is on disk.
    fn synced(&self) -> Txg;

    /// Waits until `txg` is on disk.
    ///
    /// # Errors
    /// When the pool is suspended.
    fn wait_synced(&self, txg: Txg) -> Result<(), Error>;

    /// Allocates a block of `size` bytes in the txg of `tx`.
    ///
    /// # Errors
    /// When there is no space, or no key.
    fn allocate(&self, tx: &Tx, size: u64, identity: [u64; 4]) -> Result<Placed, Error>;

    /// A chain begins in the txg of `tx`.
    fn created(&self, tx: &Tx);

    /// Writes blocks, the used part of each, all at once.
    ///
    /// # Errors
    /// When one of them cannot be read again.
    fn write(&self, blocks: Vec<(BlkPtr, Vec<u8>)>) -> Result<(), Error>;

    /// Flushes that have failed up to now: later ones may lose what is written from now on.
    fn flushes(&self) -> Flushes;

    /// Brings what was `written` since `before` to stable storage.
    ///
    /// # Errors
    /// When some of it may be lost.
    fn flush(&self, written: &Written, before: &Flushes) -> Result<(), Error>;

    /// Where log blocks and data can lie.
    fn places(&self) -> LogPlaces;
}
