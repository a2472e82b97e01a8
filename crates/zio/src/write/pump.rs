//! Batches in chunks: while one is on its way to the devices, the next is prepared.

use std::sync::mpsc;
use std::{mem, thread};

use base::{Txg, tasks};
use ondisk::BlkPtr;
use vdev::{BlockWrite, VdevType};

use super::place::{Chunk, From, Placer, Undo};
use super::prepare::{Batch, Grain};
use super::{Payload, SpaceSource, WriteCx, WriteReq};
use crate::{Error, Zio};

/// Bytes of logical blocks in a chunk, about.
const CHUNK: usize = 8 << 20;

impl Zio {
    /// Writes a batch of blocks; gives their pointers, in the order of `reqs`. When it returns, the blocks are with the devices (not flushed).
    ///
    /// What it replaces is not freed: the caller knows whether a snapshot needs it. A pointer that comes back equal to the one that was replaced says that
    /// nothing changed; one with the same address, that the block was overwritten in place.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Write`], [`Error::KeyNotLoaded`], [`Error::ReadOnly`] and what else the variants tell. Nothing of the batch is then
    /// allocated any more.
    pub fn write(&self, cx: &WriteCx, reqs: Vec<WriteReq>) -> Result<Vec<BlkPtr>, Error> {
        let Some(bm) = reqs.first().map(|req| req.bm) else { return Ok(Vec::new()) };
        let space = self.write.space().ok_or(Error::ReadOnly { bm })?;
        let batch = Batch {
            zio: self,
            cx: *cx,
            grain: self.grain(),
            dedup: self.write.dedup(),
            hole_birth: self.write.hole_birth(),
        };
        let mut placer = Placer::new(&batch, space.clone());
        let done = self.pump(&batch, &mut placer, reqs);
        if done.is_err() {
            self.undo(mem::take(&mut placer.undo), &*space, cx.txg);
        }
        done
    }

    fn pump(&self, batch: &Batch<'_>, placer: &mut Placer<'_>, reqs: Vec<WriteReq>) -> Result<Vec<BlkPtr>, Error> {
        let txg = batch.cx.txg;
        let mut pointers = Vec::with_capacity(reqs.len());
        let mut chunks = Chunks { rest: reqs.into_iter() };
        let Some(first) = chunks.next() else { return Ok(pointers) };
        pointers.extend(advance(batch, placer, first)?);
        let last = chunks.rest.as_slice().is_empty();
        // one of the threads that prepare must not wait for a writer, who needs them
        let is_worker = rayon::current_thread_index().is_some();
        if last || is_worker || tasks::width() == 1 {
            self.write_chunk(txg, mem::take(&mut placer.chunk))?;
            for chunk in chunks {
                pointers.extend(advance(batch, placer, chunk)?);
                self.write_chunk(txg, mem::take(&mut placer.chunk))?;
            }
            return Ok(pointers);
        }
        thread::scope(|scope| {
            let (queue, waiting) = mpsc::sync_channel::<Chunk>(1);
            let writer = scope.spawn(move || waiting.into_iter().try_for_each(|chunk| self.write_chunk(txg, chunk)));
            let feed = || {
                // a writer that failed has hung up; it tells why
                let mut going = queue.send(mem::take(&mut placer.chunk)).is_ok();
                for chunk in chunks {
                    if !going {
                        break;
                    }
                    pointers.extend(advance(batch, placer, chunk)?);
                    going = queue.send(mem::take(&mut placer.chunk)).is_ok();
                }
                Ok(())
            };
            let fed = feed();
            drop(queue);
            let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            written.and(fed)
        })?;
        Ok(pointers)
    }

    /// Hands a chunk to the devices, then keeps its data in the cache.
    fn write_chunk(&self, txg: Txg, chunk: Chunk) -> Result<(), Error> {
        let bytes = |from: From| match from {
            From::Block(n, at, len) => chunk.blocks.get(n).and_then(|block| block.stored.get(at..at.checked_add(len)?)),
            From::Header(n) => chunk.headers.get(n).map(Vec::as_slice),
        };
        let writes: Vec<BlockWrite<'_>> = chunk
            .writes
            .iter()
            .filter_map(|planned| Some(BlockWrite { dva: planned.dva, data: bytes(planned.from)? }))
            .collect();
        if let Err(source) = self.tree().write(txg, &writes) {
            return Err(self.blame(txg, &chunk, &writes, source));
        }
        self.stats().written.add(writes.len() as u64);
        self.stats().written_bytes.add(writes.iter().map(|write| write.data.len() as u64).sum());
        for block in &chunk.blocks {
            if let Some(key) = &block.overwritten {
                self.arc().remove(key);
            }
            if let Some((key, data)) = &block.cache {
                self.arc().insert(key, data);
            }
        }
        Ok(())
    }

    /// Finds the block for which the devices failed, by writing each by itself.
    fn blame(&self, txg: Txg, chunk: &Chunk, writes: &[BlockWrite<'_>], whole: vdev::Error) -> Error {
        for (write, planned) in writes.iter().zip(&chunk.writes) {
            let Err(source) = self.tree().write(txg, &[BlockWrite { dva: write.dva, data: write.data }]) else {
                continue;
            };
            let block = match planned.from {
                From::Block(n, ..) => chunk.blocks.get(n),
                From::Header(_) => chunk.blocks.first(),
            };
            let bm = block.map(|block| block.bm).unwrap_or_default();
            return Error::Write { bm, source: Box::new(source) };
        }
        let bm = chunk.blocks.first().map(|block| block.bm).unwrap_or_default();
        Error::Write { bm, source: Box::new(whole) }
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

    /// How finely the normal class hands out space.
    pub(crate) fn grain(&self) -> Grain {
        let normal = self.tree().tops().iter().filter(|top| {
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
    let prepared = tasks::map(batch.secrets(chunk), |(req, secrets)| batch.prepare(req, &secrets));
    placer.place(prepared.into_iter().collect::<Result<_, _>>()?)
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
            bytes += match &req.payload {
                Payload::Logical(data) => data.len(),
                Payload::Stored { bytes, .. } => bytes.len(),
                Payload::Embedded { .. } | Payload::Clone(_) => 128,
            };
            fits
        });
        let count = fits.count();
        (count > 0).then(|| self.rest.by_ref().take(count).collect())
    }
}

fn gcd(a: usize, b: usize) -> usize {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(512)
}
