//! Receive: a stream becomes a snapshot (OpenZFS: `dmu_recv.c`).
//!
//! # The few ideas
//! * **Two threads, one queue.** One reads, verifies and checks records ([`source`], [`check`]) and lays them into batches; the other applies each
//!   batch in one transaction ([`writer`], [`object`]). The queue between them holds `zfs_recv_queue_length` bytes.
//! * **A batch is bytes, not a range.** What is written near each other shares a transaction, across gaps, objects and kinds of records, up to
//!   `zfs_recv_write_batch_size`: many small files cost as little as a large one.
//! * **Blocks as they are.** A compressed block that is a block of the object is written as it came.
//! * **The first error ends it.** Each stage stops at its first error; the end of a receive needs a [`queue::Whole`], which only the reader of END makes and
//!   which comes through the queue behind all batches. No later success can hide an earlier error.
//!
//! # Invariants
//! The target is untouched until END: what is received stands in a dataset of its own (`pool::Receiving`). Nothing of a record is believed before it was
//! checked.
//!
//! # A crash, or a stream that ends early
//! Leaves the target as it was. With `resumable`, what was applied stays, and each txg saves with it how far it came.
//!
//! Called by `control` and `cli`. Format: docs/format.md §15.

mod check;
mod error;
mod object;
mod queue;
mod raw;
mod source;
mod writer;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ::base::{Endian, tunable};
use nvlist::NvList;
use ondisk::send::{Begin, DRR_FLAG_SPILL_BLOCK, RECORD_SIZE};
use pool::{NewKey, Receiving, RecvBegin, Spa, WithoutKey};

use crate::Reader;
use check::Check;
pub use error::Error;
use queue::{Queue, Whole, Writing};
use writer::Writer;

/// How a stream is to be received.
#[derive(Clone, Debug, Default)]
pub struct RecvArgs {
    /// The snapshot to be made.
    pub target: String,
    /// `-o origin`: the snapshot that a new file system shall be a clone of.
    pub origin: Option<String>,
    /// `-F`: what changed since the stream's base, later snapshots included, goes.
    pub force: bool,
    /// `-s`: what was received before an error stays, so that it can be resumed.
    pub resumable: bool,
    /// `-o encryption=…`: the key of a new encryption root.
    pub key: Option<NewKey>,
    /// How a new dataset is encrypted without a key of its own.
    pub without_key: WithoutKey,
}

/// How far a receive has come.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of the stream applied.
    pub bytes: AtomicU64,
    /// Records applied.
    pub records: AtomicU64,
}

/// What was received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// The snapshot.
    pub snapshot: String,
    /// Bytes of the stream.
    pub bytes: u64,
    /// The base was received raw, and this stream is not: later raw streams of the source will not fit any more.
    pub ivset_diverged: bool,
}

/// Receives one stream, whose BEGIN record, with its `payload`, was taken from `reader`. When it returns, the reader stands behind END.
///
/// # Errors
/// The first that came up, see [`Error`]; the target is as it was, or, with `resumable`, can be resumed.
pub fn receive<R: Read + Send>(
    spa: &Arc<Spa>,
    reader: &mut Reader<R>,
    begin: &Begin,
    payload: &[u8],
    args: &RecvArgs,
    progress: &Progress,
) -> Result<Received, Error> {
    let (fs, snap) = args.target.split_once('@').ok_or_else(|| Error::Name(args.target.clone()))?;
    let list = if payload.is_empty() { NvList::new() } else { NvList::unpack(payload)? };
    let from = reader.offset().saturating_sub((RECORD_SIZE + payload.len()) as u64);
    let receiving = spa.receive_begin(RecvBegin {
        fs: fs.to_string(),
        snap: snap.to_string(),
        origin: args.origin.clone(),
        force: args.force,
        resumable: args.resumable,
        begin: begin.clone(),
        list,
        key: args.key.clone(),
        without_key: args.without_key,
    })?;
    let ivset_diverged = receiving.ivset_diverged();
    match records(reader, begin, from, &receiving, progress) {
        Ok(Whole { .. }) => receiving.finish()?,
        Err(error) => {
            // the first error is told, not what comes of cleaning up
            let _ = receiving.abandon(true);
            return Err(error);
        }
    }
    let bytes = reader.offset().saturating_sub(from);
    Ok(Received { snapshot: args.target.clone(), bytes, ivset_diverged })
}

/// Drops what an interrupted receive left for `fs` (`zfs receive -A`).
///
/// # Errors
/// As [`Spa::receive_discard`].
pub fn discard(spa: &Arc<Spa>, fs: &str) -> Result<(), Error> {
    Ok(spa.receive_discard(fs)?)
}

/// All records up to END.
fn records<R: Read + Send>(
    reader: &mut Reader<R>,
    begin: &Begin,
    from: u64,
    receiving: &Receiving,
    progress: &Progress,
) -> Result<Whole, Error> {
    let (max_block, max_dnode) = receiving.limits()?;
    let spill = begin.flags & DRR_FLAG_SPILL_BLOCK != 0;
    let check = Check { features: begin.features(), spill, max_block, max_dnode };
    let order = reader.endian().unwrap_or(Endian::Little);
    let queue = Queue::new(tunable::ZFS_RECV_QUEUE_LENGTH.get());
    let (shared, toguid) = (&queue, begin.toguid);
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("recv-read".to_owned())
            .spawn_scoped(scope, move || source::read_records(reader, from, toguid, &check, shared))
            .map_err(|source| pool::Error::Thread { source })?;
        let _close = Writing(shared);
        Writer::new(receiving, begin, order, progress).run(shared)
    })
}
