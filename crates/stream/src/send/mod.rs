//! Send: a dataset, or its changes since a base, as a stream (OpenZFS: `dmu_send.c`).
//!
//! # The few ideas
//! * **Three stages that work on chunks of 1 MiB.** A traversal ([`traverse`]) finds the blocks that are newer than the base and
//!   lays out records in chunks ([`records`], [`chunk`]); workers read the payloads into place and sum them; the caller's thread
//!   joins the sums and writes. Chunks that are laid out but not yet written take at most `zfs_send_queue_length` bytes
//!   ([`line`]), whatever the dataset's size.
//! * **One write per chunk.** Records and payloads lie in the chunk as in the stream, so nothing has to be gathered for the
//!   write: a vectored write of the blocks where they were read would save a copy out of the window, and cost as much
//!   (docs/performance.md).
//! * **The cache is bypassed.** A block is copied from the ARC if it is there, otherwise read straight into the chunk; the ARC is
//!   neither filled nor reordered. Within a chunk blocks are read in disk order, through a window: neighbours are one I/O.
//! * **Every byte is checksummed at most once.** See [`chunk`].
//!
//! # Invariants
//! Objects ascend, offsets within an object ascend, no byte is sent twice: receivers rely on it. After any error the stream has
//! no END, so a receiver cannot mistake it for a complete one.
//!
//! Called by `control` and `cli`. Format: docs/format.md §15.

mod base_of;
mod begin;
mod chunk;
mod error;
mod estimate;
mod line;
mod records;
mod traverse;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::base::{Endian, Guid, Txg, tunable};
use codec::fletcher::Fletcher4;
use dmu::Objset;
use ondisk::dsl::RedactEntry;
use ondisk::send::{Begin, End, Header, Record};
use pool::Dataset;
use vdev::AheadSource;
use zio::Zio;

pub use base_of::Base;
use chunk::{CHUNK, Chunk, Worker};
pub use error::Error;
pub use estimate::{estimate, measure};
use line::{LaysOut, Line, Taken, Writes};
use records::Scribe;
pub use traverse::ResumeAt;
use traverse::Traversal;

/// The byte order in which streams are made.
pub(crate) const OURS: Endian = Endian::Little;
/// Minimum number of chunks in flight, so that all stages have work.
const CHUNKS_MIN: u64 = 4;

/// A function that accepts a full chunk and returns an empty one.
type Emit<'a> = &'a mut dyn FnMut(Chunk) -> Result<Chunk, Error>;

/// The options of a stream (OpenZFS: `lzc_send_flags`).
#[derive(Clone, Debug, Default)]
pub struct SendFlags {
    /// `-e`: blocks embedded in their pointers are sent as they are.
    pub embed: bool,
    /// `-L`: blocks above 128 KiB.
    pub large_block: bool,
    /// `-c`: compressed blocks are sent as they are.
    pub compress: bool,
    /// `-w`: encrypted blocks are sent as they are.
    pub raw: bool,
    /// The position at which to resume.
    pub resume: Option<ResumeAt>,
    /// `-S`: a partially received dataset; the stream has no END.
    pub saved: Option<Saved>,
}

/// The snapshot that a partially received dataset will become.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The guid of the snapshot that is being received.
    pub guid: Guid,
    /// Its name at the sender.
    pub name: String,
}

/// The progress of a send; other threads may read it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes written.
    pub bytes: AtomicU64,
    /// Ranges visited.
    pub blocks: AtomicU64,
}

fn thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.to_owned())
}

/// Writes the stream that takes a receiver from `base` (or from nothing) to `to`, a snapshot or a head dataset, which is
/// [held](Dataset::long_hold) meanwhile.
///
/// # Errors
/// [`Error::Output`] if the stream cannot be written; other errors if something cannot be read or sent. After an error the stream
/// is never complete.
pub fn send(
    to: &Dataset,
    base: Option<&Base>,
    flags: &SendFlags,
    out: &mut dyn Write,
    progress: &Progress,
) -> Result<(), Error> {
    let _span = tracing::info_span!(target: "zuse::stream", "send", snapshot = to.name()).entered();
    let _held = to.long_hold()?;
    let plan = Plan::new(to, base, flags)?;
    let (zio, toguid) = (to.pool().zio(), plan.begin.toguid);
    let mut sum = Fletcher4::new();
    let line = Line::new(tunable::ZFS_SEND_QUEUE_LENGTH.get().max(CHUNKS_MIN * CHUNK as u64));
    std::thread::scope(|scope| {
        let line = &line;
        // the filling threads end with the traversal, even if that never starts
        let ends = LaysOut(line);
        for n in 0..::base::tasks::width() {
            match thread("send-fill").spawn_scoped(scope, move || fill_chunks(zio, line)) {
                Err(source) if n == 0 => return Err(pool::Error::Thread { source }.into()),
                // fewer threads are enough
                Err(_) => break,
                Ok(_) => {}
            }
        }
        let traversal = thread("send-traverse").spawn_scoped(scope, move || {
            let _ends = ends;
            let visited = || {
                progress.blocks.fetch_add(1, Ordering::Relaxed);
            };
            plan.traverse(&mut |chunk| line.put(chunk).ok_or(Error::Stopped), &visited)
        });
        let traversal = traversal.map_err(|source| pool::Error::Thread { source })?;
        let written = {
            let _writes = Writes(line);
            write_chunks(line, &mut sum, out, progress)
        };
        let traversed = traversal.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // the writer's error is the cause: a writer that stops makes the traversal stop
        written.and(traversed)
    })?;
    if flags.saved.is_some() {
        return Ok(());
    }
    let (mut last, ahead) = (Chunk::default(), AheadSource::default());
    let end = Header { payloadlen: 0, checksum: [0; 4], record: Record::End(End { checksum: sum.value(), toguid }) };
    last.put(&end.encode(OURS), &[], None, 0);
    last.begin(zio, &ahead);
    last.fill(zio, ahead, &mut Worker::default())?;
    write(last.seal(&mut sum), out, progress)
}

/// The parameters of a stream, before a block is visited.
struct Plan<'a> {
    to: &'a Dataset,
    objset: Arc<Objset>,
    from: Txg,
    redacted: &'a [RedactEntry],
    flags: &'a SendFlags,
    features: u64,
    begin: Begin,
    payload: Vec<u8>,
}

impl<'a> Plan<'a> {
    fn new(to: &'a Dataset, base: Option<&'a Base>, flags: &'a SendFlags) -> Result<Plan<'a>, Error> {
        let features = begin::features(to, flags)?;
        let (begin, payload) = begin::begin(to, base, flags, features)?;
        let from = base.map_or(Txg(0), |base| base.txg);
        let redacted = base.map_or(&[][..], |base| &base.redacted);
        Ok(Plan { to, objset: to.objset()?, from, redacted, flags, features, begin, payload })
    }

    /// Passes the whole stream except END to `emit`, in chunks; `visited` is called for each range.
    fn traverse(self, emit: Emit<'_>, visited: &dyn Fn()) -> Result<(), Error> {
        let mut scribe = Scribe {
            objset: self.to.id(),
            toguid: self.begin.toguid,
            features: self.features,
            from: self.from,
            max_object: records::max_object(&self.objset.phys().meta_dnode),
            resume: self.flags.resume.unwrap_or_default(),
            unmodified_spills: tunable::ZFS_SEND_UNMODIFIED_SPILL_BLOCKS.get() != 0,
            pending: None,
            chunk: Chunk::default(),
            emit,
        };
        let len = self.payload.len() as u64;
        scribe.put(Record::Begin(self.begin), &self.payload, None, len)?;
        let traversal = Traversal {
            objset: &self.objset,
            from: scribe.from,
            redacted: self.redacted,
            resume: scribe.resume,
            raw: self.features & ondisk::send::feature::RAW != 0,
            encrypted: self.to.is_encrypted()?,
            left: AtomicU64::new(traverse::most_blocks(self.to.pool().zio())),
        };
        traversal.run(&mut |range| {
            visited();
            scribe.take(range)
        })?;
        scribe.flush()?;
        scribe.finish()
    }
}

fn fill_chunks<'a>(zio: &Zio, line: &'a Line) {
    let mut worker = Worker::default();
    let begun = |mut taken: Taken<'a>| {
        let ahead = AheadSource::default();
        taken.begin(|chunk| chunk.begin(zio, &ahead));
        (taken, ahead)
    };
    let mut next = line.take().map(begun);
    while let Some((taken, ahead)) = next.take() {
        // the devices read it while this one is summed
        let second = line.try_take().map(begun);
        taken.fill(|chunk| chunk.fill(zio, ahead, &mut worker));
        next = second.or_else(|| line.take().map(begun));
    }
}

fn write_chunks(line: &Line, sum: &mut Fletcher4, out: &mut dyn Write, progress: &Progress) -> Result<(), Error> {
    while let Some(filled) = line.next() {
        let mut chunk = filled?;
        if !chunk.is_empty() {
            write(chunk.seal(sum), out, progress)?;
        }
        line.written(chunk);
    }
    Ok(())
}

fn write(bytes: &[u8], out: &mut dyn Write, progress: &Progress) -> Result<(), Error> {
    out.write_all(bytes).map_err(Error::Output)?;
    progress.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    Ok(())
}
