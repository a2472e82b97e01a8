//! Batches in chunks: while one is being written to the devices, the next is prepared.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::{mem, thread};

use base::{ObjectId, Txg, tasks};
use ondisk::BlkPtr;
use parking_lot::Mutex;
use vdev::{BlockWrite, VdevType};

use super::place::{Chunk, From, Placer, Planned, Undo};
use super::prepare::{Batch, Grain, Outcome, Secrets};
use super::{Payload, SpaceSource, WriteCx, WriteReq};
use crate::{Error, Zio};

/// The approximate number of logical bytes in a chunk.
const CHUNK: usize = 8 << 20;
/// The largest batch, in bytes, that is held if the caller asks for it.
const HOLD: usize = 1 << 20;
/// The largest chunk, in bytes, that one thread prepares alone: to wake others takes longer.
const ALONE: usize = 128 << 10;
/// The largest number of chunks being written at a time.
const WRITERS: usize = 8;

/// Blocks that have their addresses, but are not written yet.
///
/// The levels of a tree are separate batches, as each level holds the checksums of the one below. But most have few
/// blocks, and the allocator places batch after batch: held together they become one write instead of one each.
#[must_use = "it is to be written or dropped"]
#[derive(Debug, Default)]
pub struct HeldWrites {
    pub(super) chunk: Chunk,
    pub(super) undo: Undo,
}

impl Zio {
    /// Writes a batch of blocks; returns their pointers, in the order of `reqs`. When it returns, the blocks have been
    /// written to the devices (not flushed).
    ///
    /// The replaced blocks are not freed: the caller knows whether a snapshot needs them. A returned pointer equal to the
    /// one replaced means that nothing changed; one with the same address, that the block was overwritten in place.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Write`], [`Error::KeyNotLoaded`], [`Error::ReadOnly`] and other variants as described
    /// there. Nothing of the batch is then allocated any more.
    pub fn write(&self, cx: &WriteCx, reqs: Vec<WriteReq>) -> Result<Vec<BlkPtr>, Error> {
        let Some(bm) = reqs.first().map(|req| req.bm) else { return Ok(Vec::new()) };
        let space = self.write.space().ok_or(Error::ReadOnly { bm })?;
        let batch = self.batch(cx);
        let mut placer = Placer::new(&batch, space.clone());
        let done = self.pump(&batch, &mut placer, reqs);
        if done.is_err() {
            self.undo(mem::take(&mut placer.undo), &*space, cx.txg);
        }
        done
    }

    /// As [`Zio::write`], but a small batch only gets its addresses: it is written with `held`, together with its
    /// neighbours. Until [`Zio::write_held`] its blocks cannot be read.
    ///
    /// # Errors
    /// As [`Zio::write`].
    pub fn write_or_hold(
        &self,
        cx: &WriteCx,
        reqs: Vec<WriteReq>,
        held: &mut HeldWrites,
    ) -> Result<Vec<BlkPtr>, Error> {
        let bytes: usize = reqs.iter().map(|req| bytes_of(&req.payload)).sum();
        // a writer of equal content reads the block that the dedup table names
        if bytes > HOLD || reqs.iter().any(|req| req.props.dedup.is_some()) {
            return self.write(cx, reqs);
        }
        let Some(bm) = reqs.first().map(|req| req.bm) else { return Ok(Vec::new()) };
        let space = self.write.space().ok_or(Error::ReadOnly { bm })?;
        let batch = self.batch(cx);
        let mut placer = Placer::new(&batch, space.clone());
        let done = advance(&batch, &mut placer, reqs);
        if done.is_err() {
            self.undo(mem::take(&mut placer.undo), &*space, cx.txg);
            return done;
        }
        held.chunk.append(mem::take(&mut placer.chunk));
        held.undo.append(mem::take(&mut placer.undo));
        done
    }

    /// Writes the held blocks. When it returns, all of them have been written to the devices (not flushed).
    ///
    /// # Errors
    /// [`Error::Write`]. None of the blocks is then allocated any more.
    pub fn write_held(&self, cx: &WriteCx, held: HeldWrites) -> Result<(), Error> {
        let HeldWrites { chunk, undo } = held;
        if chunk.writes.is_empty() {
            return Ok(());
        }
        let done = self.write_chunk(cx, chunk);
        if done.is_err() {
            self.drop_held(cx, HeldWrites { chunk: Chunk::default(), undo });
        }
        done
    }

    /// Frees the addresses of the held blocks.
    pub fn drop_held(&self, cx: &WriteCx, held: HeldWrites) {
        if let Some(space) = self.write.space() {
            self.undo(held.undo, &*space, cx.txg);
        }
    }

    fn batch(&self, cx: &WriteCx) -> Batch<'_> {
        Batch {
            zio: self,
            cx: *cx,
            grain: self.grain(),
            dedup: self.write.dedup(),
            hole_birth: self.write.hole_birth(),
        }
    }

    fn pump(&self, batch: &Batch<'_>, placer: &mut Placer<'_>, reqs: Vec<WriteReq>) -> Result<Vec<BlkPtr>, Error> {
        let cx = &batch.cx;
        if reqs.iter().map(|req| bytes_of(&req.payload)).sum::<usize>() <= CHUNK {
            let pointers = advance(batch, placer, reqs)?;
            self.write_chunk(cx, mem::take(&mut placer.chunk))?;
            return Ok(pointers);
        }
        let mut pointers = Vec::with_capacity(reqs.len());
        let mut chunks = Chunks { rest: reqs.into_iter() };
        let Some(first) = chunks.next() else { return Ok(pointers) };
        pointers.extend(advance(batch, placer, first)?);
        let last = chunks.rest.as_slice().is_empty();
        // a thread of the pool that prepares must not wait for a writer, which needs these threads
        let is_worker = rayon::current_thread_index().is_some();
        if last || is_worker || tasks::width() == 1 {
            self.write_chunk(cx, mem::take(&mut placer.chunk))?;
            for chunk in chunks {
                pointers.extend(advance(batch, placer, chunk)?);
                self.write_chunk(cx, mem::take(&mut placer.chunk))?;
            }
            return Ok(pointers);
        }
        thread::scope(|scope| {
            let mut writers = Writers::new(scope, |chunk| self.write_chunk(cx, chunk));
            let feed = || {
                let mut going = writers.give(mem::take(&mut placer.chunk));
                for chunk in chunks {
                    if !going {
                        break;
                    }
                    pointers.extend(advance(batch, placer, chunk)?);
                    going = writers.give(mem::take(&mut placer.chunk));
                }
                Ok(())
            };
            let fed = feed();
            writers.finish().and(fed)
        })?;
        Ok(pointers)
    }

    /// Writes a chunk to the devices, then inserts its data in the cache. Waits where too few devices are there, if the pool wants that.
    pub(super) fn write_chunk(&self, cx: &WriteCx, chunk: Chunk) -> Result<(), Error> {
        let bytes = |from: From| match from {
            From::Block(n, at, len) => chunk.blocks.get(n).and_then(|block| block.stored.get(at..at.checked_add(len)?)),
            From::Header(n) => chunk.headers.get(n).map(Vec::as_slice),
        };
        let write = |planned: &Planned| Some(BlockWrite { dva: planned.dva, data: bytes(planned.from)? });
        let writes: Option<Vec<BlockWrite<'_>>> = chunk.writes.iter().map(write).collect();
        let writes = writes.ok_or_else(|| {
            let bm = chunk.blocks.first().map(|block| block.bm).unwrap_or_default();
            Error::Bug { bm, what: "it, or a neighbour, has an address and no bytes to be written there" }
        })?;
        let mut seen = None;
        loop {
            let written = self.tree().write(cx.txg, &writes);
            let Err(source) = written else { break };
            let error = Self::blame(&chunk, source);
            if !self.writes_again(&error, cx.pass > 0, &mut seen) {
                return Err(error);
            }
        }
        self.stats().written.add(writes.len() as u64);
        self.stats().written_bytes.add(writes.iter().map(|write| write.data.len() as u64).sum());
        self.count_metadata(&chunk);
        self.write.late.replaced_by(&chunk);
        self.settle_cache(&chunk);
        Ok(())
    }

    /// Makes the cache show what was written.
    pub(super) fn settle_cache(&self, chunk: &Chunk) {
        for block in &chunk.blocks {
            if let Some(key) = &block.overwritten {
                self.arc().remove(key);
            }
            if let Some((key, data)) = &block.cache {
                self.arc().insert(key, data);
            }
        }
    }

    /// Counts the runs of neighbours among the metadata of a chunk. A run counts as the MOS's if its first block is.
    fn count_metadata(&self, chunk: &Chunk) {
        let mut places: Vec<(u64, u64, u64, bool)> = Vec::new();
        for planned in &chunk.writes {
            let mos = match planned.from {
                From::Block(n, ..) => {
                    chunk.blocks.get(n).filter(|block| block.metadata).map(|b| b.bm.objset == ObjectId::MOS)
                }
                From::Header(_) => Some(false),
            };
            let dva = planned.dva;
            places.extend(mos.map(|mos| (dva.vdev(), dva.offset(), dva.asize(), mos)));
        }
        places.sort_unstable();
        let mut behind = None;
        for (vdev, offset, asize, mos) in places {
            let stats = self.stats();
            let starts = u64::from(behind != Some((vdev, offset)));
            behind = Some((vdev, offset + asize));
            let (writes, bytes) = if mos {
                (&stats.written_mos, &stats.written_mos_bytes)
            } else {
                (&stats.written_metadata, &stats.written_metadata_bytes)
            };
            writes.add(starts);
            bytes.add(asize);
        }
    }

    /// Finds the block for which the devices failed.
    fn blame(chunk: &Chunk, source: vdev::Error) -> Error {
        let failed = chunk.writes.iter().find(|planned| match &source {
            vdev::Error::WriteFailed { vdev, offset, .. } | vdev::Error::BadAddress { vdev, offset, .. } => {
                (planned.dva.vdev(), planned.dva.offset()) == (*vdev, *offset)
            }
            vdev::Error::NoVdev { id } => planned.dva.vdev() == *id,
            _ => false,
        });
        let number = failed.map_or(0, |planned| match planned.from {
            From::Block(n, ..) => n,
            From::Header(_) => 0,
        });
        let bm = chunk.blocks.get(number).map(|block| block.bm).unwrap_or_default();
        Error::Write { bm, source: Box::new(source) }
    }

    fn undo(&self, undo: Undo, space: &dyn SpaceSource, txg: Txg) {
        undo.cached.iter().for_each(|key| {
            self.arc().remove(key);
        });
        if let Some(table) = self.write.dedup() {
            for bp in undo.references.iter().rev() {
                // it was just there, in memory
                let _ = table.release(txg, bp);
            }
            undo.inserted.iter().rev().for_each(|bp| table.forget(txg, bp));
        }
        undo.dvas.iter().rev().for_each(|dva| space.release(dva, txg));
    }

    /// The granularity of allocation in the normal class.
    pub(crate) fn grain(&self) -> Grain {
        let tree = self.tree();
        let normal = tree.tops().iter().filter(|top| {
            let config = top.config();
            top.is_concrete() && !config.is_log && config.alloc_bias.is_none()
        });
        let smallest = normal.map(|top| {
            let sector = 1u64 << top.ashift();
            let draid = top.config().kind == VdevType::Draid;
            let unit = if draid { sector.saturating_mul(top.config().draid_ndata) } else { sector };
            usize::try_from(unit).unwrap_or(512).max(512)
        });
        let grain = smallest.fold(None, |grain: Option<Grain>, unit| {
            Some(
                grain.map_or(Grain { min: unit, gcd: unit }, |g| Grain { min: g.min.min(unit), gcd: gcd(g.gcd, unit) }),
            )
        });
        grain.unwrap_or(Grain { min: 512, gcd: 512 })
    }
}

/// Prepares and places a chunk; its writes are then in the placer.
fn advance(batch: &Batch<'_>, placer: &mut Placer<'_>, chunk: Vec<WriteReq>) -> Result<Vec<BlkPtr>, Error> {
    let alone = chunk.iter().map(|req| bytes_of(&req.payload)).sum::<usize>() <= ALONE;
    let prepared = if alone { tasks::inline(|| prepare(batch, chunk)) } else { prepare(batch, chunk) }?;
    placer.place(prepared)
}

fn prepare(batch: &Batch<'_>, chunk: Vec<WriteReq>) -> Result<Vec<Outcome>, Error> {
    let prepared = if chunk.iter().any(|req| req.props.encrypt) {
        tasks::map(batch.secrets(chunk)?, |(req, secrets)| batch.prepare(req, &secrets))
    } else {
        let none = Secrets::default();
        tasks::map(chunk, |req| batch.prepare(req, &none))
    };
    prepared.into_iter().collect()
}

/// Threads that write chunks: one, and one more each time that chunks come faster than they go, as they do where each write takes long, however
/// many are under way (OpenZFS: `zfs_vdev_async_write_max_active`). Where no thread can be had, who gives a chunk writes it.
struct Writers<'scope, 'env, F> {
    scope: &'scope thread::Scope<'scope, 'env>,
    write: F,
    queue: mpsc::SyncSender<Chunk>,
    /// The threads' own: without any left, nothing can be given.
    waiting: Weak<Mutex<mpsc::Receiver<Chunk>>>,
    failed: Arc<AtomicBool>,
    threads: Vec<thread::ScopedJoinHandle<'scope, Result<(), Error>>>,
    /// How what was written without a thread went.
    own: Result<(), Error>,
}

impl<'scope, 'env, F> Writers<'scope, 'env, F>
where
    F: Fn(Chunk) -> Result<(), Error> + Copy + Send + 'scope,
{
    fn new(scope: &'scope thread::Scope<'scope, 'env>, write: F) -> Self {
        let (queue, waiting) = mpsc::sync_channel(1);
        let waiting = Arc::new(Mutex::new(waiting));
        let failed = Arc::default();
        let (threads, own) = (Vec::new(), Ok(()));
        let mut writers = Writers { scope, write, queue, waiting: Arc::downgrade(&waiting), failed, threads, own };
        writers.begin(waiting);
        writers
    }

    fn begin(&mut self, waiting: Arc<Mutex<mpsc::Receiver<Chunk>>>) {
        let (write, failed) = (self.write, self.failed.clone());
        let work = move || {
            let mut done = Ok(());
            let next = || waiting.lock().recv();
            while let Ok(chunk) = next() {
                // what comes behind a failure is undone with the rest
                if !failed.load(Ordering::Relaxed) {
                    done = write(chunk).inspect_err(|_| failed.store(true, Ordering::Relaxed));
                }
            }
            done
        };
        // with fewer it takes longer
        self.threads.extend(thread::Builder::new().name("zio-write".to_owned()).spawn_scoped(self.scope, work).ok());
    }

    /// Hands over a chunk; `false` if one has failed, and there is no use in going on.
    fn give(&mut self, chunk: Chunk) -> bool {
        if self.threads.is_empty() {
            self.own = (self.write)(chunk);
            return self.own.is_ok();
        }
        let given = match self.queue.try_send(chunk) {
            Err(mpsc::TrySendError::Full(chunk)) => {
                let waiting = self.waiting.upgrade().filter(|_| self.threads.len() < WRITERS);
                waiting.into_iter().for_each(|waiting| self.begin(waiting));
                self.queue.send(chunk).is_ok()
            }
            tried => tried.is_ok(),
        };
        given && !self.failed.load(Ordering::Relaxed)
    }

    /// Waits for all chunks; gives the failure, if there was one.
    fn finish(self) -> Result<(), Error> {
        drop(self.queue);
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let all: Vec<Result<(), Error>> = self.threads.into_iter().map(join).collect();
        all.into_iter().chain([self.own]).collect()
    }
}

/// Cuts a batch.
struct Chunks {
    rest: std::vec::IntoIter<WriteReq>,
}

impl Iterator for Chunks {
    type Item = Vec<WriteReq>;

    fn next(&mut self) -> Option<Vec<WriteReq>> {
        let mut bytes = 0;
        let fits = self.rest.as_slice().iter().take_while(|req| {
            let fits = bytes < CHUNK;
            bytes += bytes_of(&req.payload);
            fits
        });
        let count = fits.count();
        (count > 0).then(|| self.rest.by_ref().take(count).collect())
    }
}

fn bytes_of(payload: &Payload) -> usize {
    match payload {
        Payload::Logical(data) => data.len(),
        Payload::Stored { bytes, .. } => bytes.len(),
        Payload::Embedded { .. } | Payload::Clone(_) => 128,
    }
}

fn gcd(a: usize, b: usize) -> usize {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(512)
}
