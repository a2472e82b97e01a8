//! The entries of a ZAP in the order of its cursor: by hash, then by collision differentiator.

use super::fat::{self, Fat, LeafBlock};
use super::like;
use super::micro::{self, Micro};
use super::value::{ZapEntry, ZapValue};
use super::{Body, Zap};
use crate::Error;

/// Iterates over a ZAP; ends after the first error. Returned by [`Zap::entries`] and [`Zap::entries_from`].
pub struct Entries {
    zap: Zap,
    /// The cursor: the next entry is the first at or after it. `None` at the end.
    at: Option<(u64, u32)>,
    leaf: Option<Run>,
}

/// A leaf's entries in order.
struct Run {
    block: LeafBlock,
    /// hash, cd, chunk
    places: Vec<(u64, u32, u16)>,
    next: usize,
    /// The first hash that belongs after this leaf; `None` if it is the last.
    behind: Option<u64>,
}

impl Entries {
    pub(super) fn new(zap: Zap, at: Option<(u64, u32)>) -> Self {
        Entries { zap, at, leaf: None }
    }

    fn make(&self, bits: u32, hash: u64, cd: u32, name: Vec<u8>, value: ZapValue) -> ZapEntry {
        let cookie = |cd: u64| (hash >> (64 - bits)) | (cd << bits);
        ZapEntry { name, value, cookie: cookie(cd.into()), next_cookie: cookie(u64::from(cd) + 1), hash, cd }
    }

    fn next_micro(&mut self, micro: &Micro) -> Option<ZapEntry> {
        let at = self.at?;
        let places = micro.ordered();
        // in a sound ZAP no two entries have the same (hash, cd); in another the cursor skips the second
        let place = places.get(places.partition_point(|place| (place.hash, place.cd) < at))?;
        let entry = micro.entry(place)?;
        self.at = place.cd.checked_add(1).map(|cd| (place.hash, cd));
        Some(self.make(micro::HASH_BITS, place.hash, place.cd, entry.name.to_vec(), ZapValue::from_u64(entry.value)))
    }

    fn next_fat(&mut self, fat: &Fat) -> Result<Option<ZapEntry>, Error> {
        let zap = self.zap.clone();
        let object = zap.object();
        loop {
            let Some((hash, cd)) = self.at else { return Ok(None) };
            if self.leaf.is_none() {
                let Some(block) = fat.leaf(object, hash)? else { return Ok(None) };
                self.leaf = Some(Run::new(&zap, block, (hash, cd))?);
            }
            let Some(run) = &mut self.leaf else { return Ok(None) };
            let Some((hash, cd, chunk)) = run.places.get(run.next).copied() else {
                self.at = run.behind.map(|hash| (hash, 0));
                self.leaf = None;
                continue;
            };
            run.next += 1;
            let leaf = run.block.view(object)?;
            let entry = leaf.entry(chunk).map_err(|source| object.format(source))?;
            let name = leaf.name(&entry, fat.word_keys()).map_err(|source| object.format(source))?;
            let value = fat::value(object, &leaf, &entry)?;
            return Ok(Some(self.make(fat.header.hash_bits(), hash, cd, name, value)));
        }
    }
}

impl Run {
    fn new(zap: &Zap, block: LeafBlock, at: (u64, u32)) -> Result<Run, Error> {
        let object = zap.object();
        let leaf = block.view(object)?;
        let mut places = Vec::with_capacity(usize::from(leaf.header.nentries).min(leaf.chunk_count()));
        for found in like::entries(object, leaf) {
            let (chunk, entry) = found?;
            places.push((entry.hash, entry.cd, chunk));
        }
        places.sort_unstable();
        let next = places.partition_point(|(hash, cd, _)| (*hash, *cd) < at);
        let behind = leaf.behind();
        Ok(Run { places, next, behind, block })
    }
}

impl Iterator for Entries {
    type Item = Result<ZapEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let zap = self.zap.clone();
        let found = match &*zap.body() {
            Body::Micro(micro) => Ok(self.next_micro(micro)),
            Body::Fat(fat) => self.next_fat(fat),
        };
        if !matches!(found, Ok(Some(_))) {
            self.at = None;
            self.leaf = None;
        }
        found.transpose()
    }
}
