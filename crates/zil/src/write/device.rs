//! The interface through which a log writes to its pool.

use base::{Env, ObjectId, Txg};
use dmu::Tx;
use ondisk::{BlkPtr, ZilHeader};
use vdev::{Flushes, Written};

use super::LogPlaces;
use crate::Error;

/// A block of the log that is allocated but has no content yet.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// The pointer, with the block's identity in the checksum words.
    pub bp: BlkPtr,
    /// True if it is on a log device.
    pub slog: bool,
}

/// The pool, as the log of one dataset sees it. No method waits for a txg unless its doc says so.
pub trait LogDevice: Send + Sync {
    /// Returns the dataset's object number.
    fn objset(&self) -> ObjectId;

    /// Returns the clock and the source of randomness.
    fn env(&self) -> Env;

    /// Returns the current header.
    ///
    /// # Errors
    /// When the dataset is closed.
    fn header(&self) -> Result<ZilHeader, Error>;

    /// True while no chain may begin: commits wait for txgs (OpenZFS: `zl_suspend`).
    fn is_suspended(&self) -> bool;

    /// Returns the blocks of a chain left by an earlier session, to be freed when another chain begins.
    ///
    /// # Errors
    /// When the dataset is closed.
    fn left_behind(&self) -> Result<Vec<BlkPtr>, Error>;

    /// Returns a transaction in the open txg, however much data is dirty: a commit must not be throttled behind the writers that
    /// wait for it.
    ///
    /// # Errors
    /// When the pool is suspended.
    fn open(&self) -> Result<Tx, Error>;

    /// Returns the open txg, also while nothing can be changed.
    fn newest(&self) -> Txg;

    /// Returns the last txg that is on disk.
    fn synced(&self) -> Txg;

    /// Returns the bytes of the pool's changes that are not on disk.
    fn dirty(&self) -> u64;

    /// Waits until `txg` is on disk.
    ///
    /// # Errors
    /// When the pool is suspended.
    fn wait_synced(&self, txg: Txg) -> Result<(), Error>;

    /// Allocates a block of `size` bytes in the txg of `tx`.
    ///
    /// # Errors
    /// If there is no space, or the key is not loaded.
    fn allocate(&self, tx: &Tx, size: u64, identity: [u64; 4]) -> Result<Placed, Error>;

    /// Called when a chain begins in the txg of `tx`.
    fn created(&self, tx: &Tx);

    /// Writes the used part of each block, all blocks in parallel.
    ///
    /// # Errors
    /// If one of them would be unreadable afterwards.
    fn write(&self, blocks: Vec<(BlkPtr, Vec<u8>)>) -> Result<(), Error>;

    /// Returns the flushes that have failed so far: with it [`flush`](LogDevice::flush) detects a failure after this point, which
    /// may lose later writes.
    fn flushes(&self) -> Flushes;

    /// Brings the blocks `written` since `before` to stable storage.
    ///
    /// # Errors
    /// If some of the data may be lost.
    fn flush(&self, written: &Written, before: &Flushes) -> Result<(), Error>;

    /// Returns which kinds of devices log blocks and data can be placed on.
    fn places(&self) -> LogPlaces;
}
