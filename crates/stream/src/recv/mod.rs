//! Receive: a stream becomes a snapshot (OpenZFS: `dmu_recv.c`).
//!
//! # The few ideas
//! * **Two threads, one queue.** One reads, verifies and checks records ([`source`], [`check`]) and groups them into batches; the
//!   other applies each batch in one transaction ([`writer`], [`object`]). The queue between them holds `zfs_recv_queue_length`
//!   bytes.
//! * **A batch is limited by bytes, not by a range.** Consecutive records share a transaction, across gaps, objects and kinds of
//!   records, up to `zfs_recv_write_batch_size`: many small files cost as little as a large one.
//! * **Blocks are written as they are.** A compressed block that is a whole block of the object is written as it came.
//! * **The first error ends the receive.** Each stage stops at its first error. Finishing a receive requires a [`queue::Whole`],
//!   which is created only when END is read and which passes through the queue after all batches. No later success can hide an
//!   earlier error.
//!
//! # Invariants
//! The target is unchanged until END: the data is received into a dataset of its own (`pool::Receiving`). No field of a record is
//! used before it is checked.
//!
//! # A crash, or a stream that ends early
//! Leaves the target as it was. With `resumable`, applied records are kept, and each txg saves the position reached along with
//! them.
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
use ondisk::ObjsetType;
use ondisk::send::{Begin, DRR_FLAG_SPILL_BLOCK, RECORD_SIZE};
use pool::{NewKey, Receiving, RecvBegin, Spa, WithoutKey};
use zpl::{FileSystem, OutOfReach};

use crate::Reader;
use check::Check;
pub use error::Error;
use queue::{Queue, Whole, Writing};
use writer::Writer;

/// The options of a receive.
#[derive(Clone, Debug, Default)]
pub struct RecvArgs {
    /// The snapshot to create.
    pub target: String,
    /// `-o origin`: the snapshot of which the new file system becomes a clone.
    pub origin: Option<String>,
    /// `-F`: roll back changes since the stream's base, destroying later snapshots too.
    pub force: bool,
    /// `-s`: records received before an error are kept, so that the receive can be resumed.
    pub resumable: bool,
    /// `-o encryption=…`: the key of a new encryption root.
    pub key: Option<NewKey>,
    /// The encryption of a new dataset that has no key of its own.
    pub without_key: WithoutKey,
}

/// The progress of a receive.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of the stream applied.
    pub bytes: AtomicU64,
    /// Records applied.
    pub records: AtomicU64,
}

/// The result of a receive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// The snapshot.
    pub snapshot: String,
    /// Bytes of the stream.
    pub bytes: u64,
    /// True if the base was received raw and this stream is not: later raw streams of the source will not fit any more.
    pub ivset_diverged: bool,
    /// Names that came with the stream and cannot be looked up here. Only directories that it changed are read, and only in a file system with
    /// `normalization` or without case; none is known of if the contents cannot be read (raw, without the key).
    pub out_of_reach: OutOfReach,
}

/// Receives one stream, whose BEGIN record, with its `payload`, was already read from `reader`. On return the reader is
/// positioned after END.
///
/// # Errors
/// The first error, see [`Error`]; the target is unchanged or, with `resumable`, can be resumed.
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
    let opening = (RECORD_SIZE + payload.len()) as u64;
    assert!(reader.offset() >= opening, "BEGIN was read from another reader");
    let from = reader.offset() - opening;
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
    let span = tracing::info_span!(target: "zuse::stream", "receive", target = args.target, toguid = begin.toguid.0);
    let _span = span.entered();
    let ivset_diverged = receiving.ivset_diverged();
    match records(reader, begin, from, &receiving, progress) {
        Ok(Whole { .. }) => receiving.finish()?,
        Err(error) => {
            tracing::info!(target: "zuse::stream", target = args.target, %error, "a receive has failed");
            // the first error is returned, not one from the cleanup
            if let Err(error) = receiving.abandon(true) {
                tracing::warn!(target: "zuse::stream", target = args.target, %error, "its state is left behind");
            }
            return Err(error);
        }
    }
    let bytes = reader.offset() - from;
    let out_of_reach = out_of_reach(spa, begin, &args.target).unwrap_or_default();
    tracing::info!(target: "zuse::stream", snapshot = args.target, bytes, "received");
    Ok(Received { snapshot: args.target.clone(), bytes, ivset_diverged, out_of_reach })
}

/// Returns the names that were received and cannot be looked up; `None` if the contents cannot be read.
fn out_of_reach(spa: &Arc<Spa>, begin: &Begin, snapshot: &str) -> Option<OutOfReach> {
    (ObjsetType::from(u64::from(begin.objset_type)) == ObjsetType::Zfs).then_some(())?;
    let snapshot = spa.view().ok()?.dataset(snapshot).ok()?;
    Some(FileSystem::open(&snapshot).ok()?.names_out_of_reach(snapshot.phys().prev_snap_txg))
}

/// Discards the state that an interrupted receive left for `fs` (`zfs receive -A`).
///
/// # Errors
/// As [`Spa::receive_discard`].
pub fn discard(spa: &Arc<Spa>, fs: &str) -> Result<(), Error> {
    Ok(spa.receive_discard(fs)?)
}

/// Receives all records up to END.
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
