//! Reads of the newest state: dirty blocks of the open txgs, then the tree on disk.
//!
//! A reader searches the layers under the dnode's lock and reads the tree without it. A sync may replace the tree
//! meanwhile. The blocks of the old tree keep their contents for some txgs, but blocks written in the very same txg can
//! be overwritten in place: a reader that meets an error retries if the tree has changed.

use std::ops::Range;
use std::sync::Arc;

use base::Endian;
use ondisk::{DnodePhys, ObjectType, byteswap};
use zio::{Bookmark, Buf, Payload};

use super::dnode::{Block, BlockState, LiveDnode};
use crate::tree::{Child, Interest, LevelCache, Tree};
use crate::{Error, Object, PrimaryCache};

/// The number of retries of a reader whose tree changes under it.
const RETRIES: u32 = 64;

impl Object {
    /// Runs `read` on the tree that is on disk; runs it again if it fails and the tree has changed meanwhile.
    pub(crate) fn on_synced<R>(
        &self,
        live: &LiveDnode,
        mut read: impl FnMut(&Arc<DnodePhys>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut dn = live.synced();
        for _ in 0..RETRIES {
            match read(&dn) {
                Ok(result) => return Ok(result),
                Err(err) => {
                    let now = live.synced();
                    if Arc::ptr_eq(&now, &dn) {
                        return Err(err);
                    }
                    dn = now;
                }
            }
        }
        read(&dn)
    }

    /// The newest content of a block.
    pub(crate) fn live_block(
        &self,
        live: &LiveDnode,
        blkid: u64,
        cache: &mut LiveCache,
        interest: Interest,
    ) -> Result<Option<(Buf, Endian)>, Error> {
        let seen = cache.see(live);
        if let Some(dn) = cache.dn.as_ref().filter(|_| seen.settled) {
            if blkid >= seen.nblocks {
                return Ok(None);
            }
            let got = self.block_on_disk(dn, &mut cache.cache, blkid, interest);
            if got.is_ok() || live.state.is(seen.version) {
                return got;
            }
        }
        for last in (0..RETRIES).rev() {
            let found = live.state.read().find(blkid);
            let dn = match found {
                BlockState::Dirty(block) => {
                    return Ok(Some((self.decoded(block, blkid)?, Endian::Little)));
                }
                BlockState::Hole { .. } | BlockState::End => return Ok(None),
                BlockState::Below(dn) => dn,
            };
            match self.block_on_disk(&dn, cache.of(&dn), blkid, interest) {
                Err(_) if last > 0 && !Arc::ptr_eq(&live.synced(), &dn) => {}
                other => return other,
            }
        }
        Ok(None)
    }

    /// A block of the tree that is on disk.
    fn block_on_disk(
        &self,
        dn: &DnodePhys,
        cache: &mut LevelCache,
        blkid: u64,
        interest: Interest,
    ) -> Result<Option<(Buf, Endian)>, Error> {
        let tree = self.tree_of(dn);
        match cache.pointer(&tree, 0, blkid)? {
            Child::Block(bp) => Ok(Some((tree.read_data(&bp, blkid, interest)?, bp.endian()))),
            Child::Hole { .. } | Child::End => Ok(None),
        }
    }

    /// The newest spill block.
    pub(crate) fn live_spill(&self, live: &LiveDnode) -> Result<Option<(Buf, Endian)>, Error> {
        let found = live.state.read().find_spill();
        match found {
            Ok(None) => Ok(None),
            Ok(Some(block)) => Ok(Some((self.decoded(block, Bookmark::SPILL_BLKID)?, Endian::Little))),
            Err(_) => self.on_synced(live, |dn| self.spill_of(dn)),
        }
    }

    /// The contents of a block that is not on disk, as readers see them.
    pub(crate) fn decoded(&self, block: Block, blkid: u64) -> Result<Buf, Error> {
        let payload = match block {
            Block::Data(buf) => return Ok(buf),
            stored => Payload::from(stored),
        };
        let bm = Bookmark { objset: self.objset().id(), object: self.id(), level: 0, blkid };
        match payload {
            Payload::Logical(buf) => Ok(buf),
            Payload::Clone(bp) => {
                let kept = self.objset().primary_cache() == PrimaryCache::All;
                let buf = if kept { self.zio().read(&bp, &bm)? } else { self.zio().read_uncached(&bp, &bm)? };
                self.turned(self.phys().object_type, bp.endian(), buf)
            }
            Payload::Stored { bytes, lsize, compress, crypt: None, byteorder }
            | Payload::Embedded { bytes, lsize, compress, byteorder, .. } => {
                if compress == codec::Compress::Off {
                    return self.turned(self.phys().object_type, byteorder, bytes);
                }
                let mut out = vec![0; usize::try_from(lsize).unwrap_or(0)];
                codec::decompress(compress, &bytes, &mut out)
                    .map_err(|_| self.corrupt("block in stored form that does not expand,", blkid))?;
                self.turned(self.phys().object_type, byteorder, Buf::from(out))
            }
            Payload::Stored { .. } => Err(self.refused("reading of an encrypted block before it is on disk", blkid)),
        }
    }

    /// A block that was read, converted to little-endian (OpenZFS keeps no block in memory in foreign byte order).
    pub(crate) fn turned(&self, object_type: ObjectType, from: Endian, mut block: Buf) -> Result<Buf, Error> {
        if from != Endian::Little && !byteswap::is_orderless(object_type) {
            byteswap::to_little(object_type, from, block.make_mut()).map_err(|source| self.format(source))?;
        }
        Ok(block)
    }

    /// The first block from `from` on that is data (`data`) or a hole (not `data`).
    pub(crate) fn live_search(
        &self,
        live: &LiveDnode,
        from: u64,
        cache: &mut LiveCache,
        data: bool,
    ) -> Result<Option<u64>, Error> {
        let (mut at, mut retries) = (from, RETRIES);
        loop {
            // layers and tree are of one moment: a sync moves blocks from those to this
            let (found, dirty, freed) = {
                let state = live.state.read();
                (state.find(at), state.next_dirty(at), state.next_freed(at))
            };
            let next = match found {
                BlockState::End => return Ok(None),
                BlockState::Dirty(_) if data => return Ok(Some(at)),
                BlockState::Dirty(_) => at.checked_add(1),
                BlockState::Hole { .. } if !data => return Ok(Some(at)),
                BlockState::Hole { end } => Some(end),
                // blocks beyond the tree on disk were never written
                BlockState::Below(dn) if !data && at > dn.maxblkid => return Ok(Some(at)),
                BlockState::Below(dn) => {
                    let below = match cache.of(&dn).search(&self.tree_of(&dn), at, data) {
                        Err(_) if retries > 0 && !Arc::ptr_eq(&live.synced(), &dn) => {
                            retries -= 1;
                            continue;
                        }
                        // after the last block on disk
                        Ok(None) if !data => dn.maxblkid.checked_add(1),
                        found => found?,
                    };
                    let over = if data { dirty } else { freed };
                    let Some(next) = below.into_iter().chain(over).min() else { return Ok(None) };
                    if next <= at && below == Some(at) {
                        return Ok(Some(at));
                    }
                    Some(next)
                }
            };
            match next {
                Some(next) if next != u64::MAX => at = next,
                _ => return Ok(None),
            }
        }
    }

    pub(crate) fn tree_of<'a>(&'a self, dn: &'a DnodePhys) -> Tree<'a> {
        self.objset().tree(self.id(), dn)
    }
}

/// Cached indirect blocks of the tree that is on disk, dropped when the tree is replaced; and the last view of the dnode.
#[derive(Default)]
pub(crate) struct LiveCache {
    dn: Option<Arc<DnodePhys>>,
    cache: LevelCache,
    seen: Option<Seen>,
}

/// A snapshot of the dnode's shape. While its version is current, the dnode's lock need not be taken.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    version: u64,
    /// True if all of it is on disk: the tree of the cached dnode is the newest.
    settled: bool,
    pub(crate) nblocks: u64,
    pub(crate) block_size: u64,
}

impl LiveCache {
    /// The cache for the tree of `dn`.
    pub(crate) fn of(&mut self, dn: &Arc<DnodePhys>) -> &mut LevelCache {
        if !self.dn.as_ref().is_some_and(|own| Arc::ptr_eq(own, dn)) {
            self.dn = Some(dn.clone());
            self.cache = LevelCache::default();
            self.seen = None;
        }
        &mut self.cache
    }

    /// The dnode on disk and the cache of its tree, if all of it is on disk.
    pub(crate) fn settled(&mut self, live: &LiveDnode) -> Option<(&DnodePhys, &LevelCache)> {
        let seen = self.see(live);
        self.dn.as_deref().filter(|_| seen.settled).map(|dn| (dn, &self.cache))
    }

    /// As [`LevelCache::damaged`], in the tree that was searched last.
    pub(crate) fn damaged(&mut self, object: &Object) -> Range<u64> {
        match self.dn.clone() {
            Some(dn) => self.cache.damaged(&object.tree_of(&dn)),
            None => 0..1,
        }
    }

    /// The current shape of the dnode.
    pub(crate) fn see(&mut self, live: &LiveDnode) -> Seen {
        if let Some(seen) = self.seen.filter(|seen| live.state.is(seen.version)) {
            return seen;
        }
        let state = live.state.read();
        let settled = state.is_settled();
        if settled {
            self.of(&state.synced);
        }
        let (nblocks, block_size) = (state.newest.maxblkid.saturating_add(1), state.newest.datablksz());
        // no writer is active while the lock is held: there is a version
        let version = live.state.version().unwrap_or(u64::MAX);
        let seen = Seen { version, settled, nblocks, block_size };
        self.seen = Some(seen);
        seen
    }
}
