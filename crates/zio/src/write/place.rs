//! The ordered part of writing: each block gets its addresses, so that blocks written together are adjacent.
//!
//! A block may need none: it equals the one it replaces, or is in the dedup table, or was born in this txg and is
//! overwritten in place. All others are allocated in runs. Allocations are noted in [`Undo`], to be freed if the batch
//! fails.

use std::collections::HashMap;
use std::sync::Arc;

use codec::{ChecksumKind, Checksummer};
use ondisk::{BlkPtr, Dva};

use super::pointer;
use super::prepare::{Batch, Outcome, Prepared};
use super::{AllocError, AllocRequest, DedupLookup, SpaceSource};
use crate::{ArcKey, Bookmark, Buf, Error};

/// The source of a write's bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum From {
    /// A part of a block of the chunk: index of the block, offset, length.
    Block(usize, usize, usize),
    /// A gang header of the chunk.
    Header(usize),
}

/// One address to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planned {
    pub(crate) dva: Dva,
    pub(crate) from: From,
}

/// Blocks that have their addresses, ready for the devices.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    pub(crate) blocks: Vec<Placed>,
    pub(crate) headers: Vec<Vec<u8>>,
    pub(crate) writes: Vec<Planned>,
}

impl Chunk {
    /// Adds another chunk.
    pub(crate) fn append(&mut self, more: Chunk) {
        let (blocks, headers) = (self.blocks.len(), self.headers.len());
        self.blocks.extend(more.blocks);
        self.headers.extend(more.headers);
        let behind = |planned: Planned| {
            let from = match planned.from {
                From::Block(n, at, len) => From::Block(blocks + n, at, len),
                From::Header(n) => From::Header(headers + n),
            };
            Planned { from, ..planned }
        };
        self.writes.extend(more.writes.into_iter().map(behind));
    }
}

/// The addresses of a block while they are being allocated.
#[derive(Debug, Clone, Copy, Default)]
struct Home {
    dvas: [Dva; 3],
    len: usize,
    /// True if not all could be allocated: the block becomes a gang block.
    gang: bool,
}

impl Home {
    fn dvas(&self) -> &[Dva] {
        self.dvas.get(..self.len).unwrap_or(&[])
    }

    fn push(&mut self, dva: Dva) {
        assert!(self.len < self.dvas.len(), "a block got a fourth address");
        if let Some(place) = self.dvas.get_mut(self.len) {
            *place = dva;
            self.len += 1;
        }
    }
}

/// A block with its addresses.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) bm: Bookmark,
    pub(crate) metadata: bool,
    pub(crate) stored: Buf,
    /// The data to insert in the cache, and its key.
    pub(crate) cache: Option<(ArcKey, Buf)>,
    /// The key under which the cache may hold the overwritten contents.
    pub(crate) overwritten: Option<ArcKey>,
}

/// The allocations that a failed batch must free.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    pub(crate) dvas: Vec<Dva>,
    pub(crate) inserted: Vec<BlkPtr>,
    pub(crate) references: Vec<BlkPtr>,
    pub(crate) cached: Vec<ArcKey>,
}

impl Undo {
    /// Adds another batch's allocations.
    pub(crate) fn append(&mut self, more: Undo) {
        self.dvas.extend(more.dvas);
        self.inserted.extend(more.inserted);
        self.references.extend(more.references);
        self.cached.extend(more.cached);
    }
}

/// Allocates addresses for the blocks of one batch.
pub(crate) struct Placer<'a> {
    pub(crate) batch: &'a Batch<'a>,
    pub(crate) space: Arc<dyn SpaceSource>,
    pub(crate) sums: &'a Checksummer,
    pub(crate) undo: Undo,
    pub(crate) chunk: Chunk,
    /// Content that this batch put into the dedup table and that may not be on the devices yet, by first address.
    fresh: HashMap<Dva, Buf>,
}

impl<'a> Placer<'a> {
    pub(crate) fn new(batch: &'a Batch<'a>, space: Arc<dyn SpaceSource>) -> Self {
        let sums = batch.zio.sums();
        Placer { batch, space, sums, undo: Undo::default(), chunk: Chunk::default(), fresh: HashMap::new() }
    }

    /// Places `outcomes`; returns their pointers in order, and leaves the writes in [`Placer::chunk`].
    pub(crate) fn place(&mut self, outcomes: Vec<Outcome>) -> Result<Vec<BlkPtr>, Error> {
        let mut pointers = vec![BlkPtr::HOLE; outcomes.len()];
        let mut run: Vec<(usize, Box<Prepared>)> = Vec::with_capacity(outcomes.len());
        for (n, outcome) in outcomes.into_iter().enumerate() {
            let done = match outcome {
                Outcome::Done(bp) => bp,
                Outcome::Place(block) if is_nop(&block, self.batch) => block.orig,
                Outcome::Place(block) if self.is_in_place(&block) => self.rewrite(block)?,
                Outcome::Place(block) if block.bp.is_dedup() => {
                    self.allocate_run(std::mem::take(&mut run), &mut pointers)?;
                    self.deduplicate(block)?
                }
                Outcome::Place(block) => {
                    run.push((n, block));
                    continue;
                }
            };
            if let Some(slot) = pointers.get_mut(n) {
                *slot = done;
            }
        }
        self.allocate_run(run, &mut pointers)?;
        Ok(pointers)
    }

    pub(crate) fn request<'r>(&self, block: &Prepared, copy: u8, avoid: &'r [Dva]) -> AllocRequest<'r> {
        let props = &block.props;
        let none = props.storage_type == ondisk::ObjectType::NONE;
        AllocRequest {
            object_type: if none { props.object_type } else { props.storage_type },
            level: props.level,
            psize: block.stored.len() as u64,
            lsize: block.bp.lsize(),
            copies_index: copy,
            txg: self.batch.cx.txg,
            bm: block.bm,
            avoid,
            gang_child: false,
            gang_header: false,
            slog: false,
            special_small: props.special_small,
        }
    }

    /// Allocates addresses for blocks in order: the first copies of all together, then the second ones.
    fn allocate_run(&mut self, run: Vec<(usize, Box<Prepared>)>, pointers: &mut [BlkPtr]) -> Result<(), Error> {
        let mut homes = vec![Home::default(); run.len()];
        for copy in 0..3u8 {
            let wants = |(n, ((_, block), home)): (usize, (&(usize, Box<Prepared>), &Home))| {
                (!home.gang && copies(block) > copy).then_some(n)
            };
            let mut waiting: Vec<usize> = run.iter().zip(&homes).enumerate().filter_map(wants).collect();
            while !waiting.is_empty() {
                let requests: Vec<AllocRequest<'_>> = waiting
                    .iter()
                    .filter_map(|n| Some(self.request(&run.get(*n)?.1, copy, homes.get(*n)?.dvas())))
                    .collect();
                let given = self.space.allocate_many(&requests);
                drop(requests);
                if given.is_empty() {
                    let bm = waiting.first().and_then(|n| run.get(*n)).map(|(_, b)| b.bm).unwrap_or_default();
                    return Err(Error::Space { bm, reason: "no answer to a request for space".to_owned() });
                }
                let served = given.len();
                assert!(served <= waiting.len(), "{served} answers to {} requests for space", waiting.len());
                for (n, answer) in waiting.drain(..served).zip(given) {
                    let (Some((_, block)), Some(home)) = (run.get(n), homes.get_mut(n)) else { continue };
                    match answer {
                        Ok(dva) => {
                            self.undo.dvas.push(dva);
                            home.push(dva);
                        }
                        Err(AllocError::NoSpace) => home.gang = true,
                        Err(AllocError::Failed(reason)) => return Err(Error::Space { bm: block.bm, reason }),
                    }
                }
            }
        }
        self.chunk.blocks.reserve(run.len());
        self.chunk.writes.reserve(run.len());
        for ((n, block), home) in run.into_iter().zip(homes) {
            let bm = block.bm;
            let bp = if home.gang {
                self.give_back(home.dvas());
                self.place_gang(block)?
            } else {
                self.put(block, home.dvas())
            };
            let slot = pointers.get_mut(n).ok_or(Error::Bug { bm, what: "it was placed for nobody" })?;
            *slot = bp;
        }
        Ok(())
    }

    /// Frees the addresses of a block that does not get all that it needs.
    pub(crate) fn give_back(&mut self, home: &[Dva]) {
        for dva in home {
            self.space.release(dva, self.batch.cx.txg);
            if let Some(at) = self.undo.dvas.iter().rposition(|d| d == dva) {
                self.undo.dvas.swap_remove(at);
            }
        }
    }

    /// Records the writes of a block with the addresses `home`, and completes its pointer.
    fn put(&mut self, block: Box<Prepared>, home: &[Dva]) -> BlkPtr {
        let mut bp = block.bp;
        let (at, len) = (self.chunk.blocks.len(), block.stored.len());
        // a pointer without addresses is a hole
        assert!(home.len() == copies(&block).into(), "block {}: {} copies were placed", block.bm, home.len());
        for (n, dva) in home.iter().enumerate() {
            pointer::set_dva(&mut bp, n, *dva);
            self.chunk.writes.push(Planned { dva: *dva, from: From::Block(at, 0, len) });
        }
        self.keep(block, &bp, false);
        bp
    }

    /// Adds the bytes of a block to the chunk for the writer.
    pub(crate) fn keep(&mut self, block: Box<Prepared>, bp: &BlkPtr, overwritten: bool) {
        // destructured in place: it is large
        let Prepared { bm, props, orig, stored, logical, .. } = *block;
        let key = ArcKey::of(bp);
        let cache = key.zip(logical.filter(|_| props.cache));
        if let Some((key, _)) = &cache {
            self.undo.cached.push(*key);
        }
        let overwritten = ArcKey::of(&orig).filter(|_| overwritten);
        let metadata = props.level > 0 || props.object_type.is_metadata();
        self.chunk.blocks.push(Placed { bm, metadata, stored, cache, overwritten });
    }

    /// Places one block by itself.
    fn place_one(&mut self, block: Box<Prepared>) -> Result<BlkPtr, Error> {
        let mut pointers = [BlkPtr::HOLE];
        self.allocate_run(vec![(0, block)], &mut pointers)?;
        let [bp] = pointers;
        Ok(bp)
    }

    /// Returns whether the block overwrites the one that it replaces, which was written in an earlier pass of this sync.
    fn is_in_place(&self, block: &Prepared) -> bool {
        let orig = &block.orig;
        self.batch.stays_in_place()
            && self.batch.is_rewrite(orig)
            && !orig.is_embedded()
            && !orig.is_dedup()
            // the same salt and initialisation vector must not be used twice
            && !block.bp.is_encrypted()
            && orig.psize() == block.stored.len() as u64
    }

    fn rewrite(&mut self, block: Box<Prepared>) -> Result<BlkPtr, Error> {
        let mut bp = block.bp;
        pointer::set_dedup(&mut bp, false);
        for n in 0..3 {
            pointer::set_dva(&mut bp, n, block.orig.dva(n));
        }
        if block.orig.is_gang() {
            self.rewrite_gang(&block, &bp)?;
        } else {
            let (at, len) = (self.chunk.blocks.len(), block.stored.len());
            let writes = bp.dvas().map(|dva| Planned { dva, from: From::Block(at, 0, len) });
            self.chunk.writes.extend(writes);
        }
        self.keep(block, &bp, true);
        Ok(bp)
    }

    /// Takes a reference to equal content, or adds new content to the table.
    fn deduplicate(&mut self, mut block: Box<Prepared>) -> Result<BlkPtr, Error> {
        let (txg, bm) = (self.batch.cx.txg, block.bm);
        let table = self.batch.dedup.clone();
        let table = table.ok_or(Error::Bug { bm, what: "it is for the dedup table, and there is none" })?;
        let failed = |source| Error::Table { bm, source };
        let zio = self.batch.zio;
        let _order = zio.write.dedup_order.lock();
        match table.find(txg, &block.bp, copies(&block)).map_err(failed)? {
            DedupLookup::Hit(bp) if block.props.dedup != Some(true) || self.is_same(&block, &bp) => {
                table.add_ref(txg, &bp);
                zio.note_shared(&bp);
                self.undo.references.push(bp);
                Ok(bp)
            }
            DedupLookup::Hit(_) | DedupLookup::Ordinary => {
                pointer::set_dedup(&mut block.bp, false);
                self.place_one(block)
            }
            DedupLookup::Missing => {
                let verify = block.props.dedup == Some(true);
                let stored = verify.then(|| block.stored.clone());
                let bp = self.place_one(block)?;
                table.insert(txg, &bp);
                self.undo.inserted.push(bp);
                if let Some(stored) = stored {
                    self.fresh.insert(bp.dva(0), stored);
                }
                Ok(bp)
            }
        }
    }

    /// Returns whether the block at `bp` has the same content; one that cannot be read does not.
    fn is_same(&self, block: &Prepared, bp: &BlkPtr) -> bool {
        match self.fresh.get(&bp.dva(0)) {
            Some(stored) => *stored == block.stored,
            None => self.batch.zio.read_raw(bp, &block.bm).is_ok_and(|there| there == block.stored),
        }
    }
}

/// The number of copies of a block, within the limit of its pointer.
pub(crate) fn copies(block: &Prepared) -> u8 {
    block.props.copies.clamp(1, if block.bp.is_encrypted() { 2 } else { 3 })
}

/// Returns whether the block is unchanged, so that the old one stays (OpenZFS: `zio_nop_write`).
fn is_nop(block: &Prepared, batch: &Batch<'_>) -> bool {
    let (bp, orig) = (&block.bp, &block.orig);
    let strong = matches!(
        ChecksumKind::from_u8(bp.checksum()),
        Some(
            ChecksumKind::Sha256
                | ChecksumKind::Sha512
                | ChecksumKind::Skein
                | ChecksumKind::Edonr
                | ChecksumKind::Blake3
        )
    );
    block.props.nopwrite
        && block.props.dedup.is_none()
        && strong
        && !orig.is_hole()
        && !orig.is_embedded()
        && !bp.is_encrypted()
        && !orig.is_encrypted()
        // sizes, compression, checksum, type, dedup: all in one word
        && bp.words[6] == orig.words[6]
        && bp.cksum() == orig.cksum()
        && usize::from(block.props.copies) == orig.dvas().count()
        // a block on a removed vdev is better moved
        && orig.dvas().all(|dva| batch.zio.tree().top(dva.vdev()).is_some_and(vdev::TopVdev::is_concrete))
}
