//! Fat ZAPs: from a hash through the pointer table to a leaf.

use std::collections::HashMap;

use base::{Endian, bytes};
use ondisk::zap::{FatHeader, Leaf, LeafEntry};
use zio::Buf;

use super::norm::Wanted;
use super::value::{FatStats, ZapMatch, ZapValue};
use crate::tree::{Child, Interest, SharedCache};
use crate::{Error, Object};

/// An open fat ZAP.
pub(super) struct Fat {
    pub(super) header: FatHeader,
    /// Block 0; empty in a writable ZAP, where [`Fat::table`] is authoritative.
    block0: Buf,
    endian: Endian,
    cache: SharedCache,
    /// The known part of the pointer table of a writable ZAP, by block; `None` in a read-only one.
    pub(super) table: Option<HashMap<u64, Vec<u64>>>,
    /// True if the header has to be written.
    pub(super) dirty: bool,
}

/// A leaf's block.
pub(super) struct LeafBlock {
    pub(super) buf: Buf,
    pub(super) endian: Endian,
}

impl LeafBlock {
    /// The leaf in it (its header was checked when the block was read).
    pub(super) fn view(&self, object: &Object) -> Result<Leaf<'_>, Error> {
        Leaf::parse(&self.buf, self.endian).map_err(|source| object.format(source))
    }
}

impl Fat {
    pub(super) fn parse(block0: Buf, endian: Endian) -> Result<Fat, ondisk::Error> {
        let header = FatHeader::decode(&block0, endian)?;
        Ok(Fat { header, block0, endian, cache: SharedCache::default(), table: None, dirty: false })
    }

    /// Parses a writable ZAP: only the decoded form of block 0 is kept.
    pub(super) fn parse_live(block0: Buf, endian: Endian) -> Result<Fat, ondisk::Error> {
        let mut fat = Fat::parse(block0, endian)?;
        let mut table = HashMap::new();
        if fat.header.ptrtbl.numblks == 0 {
            let half = fat.block0.get(fat.table_start()..).unwrap_or_default();
            table.insert(0, bytes::u64s(half, endian).collect());
        }
        fat.table = Some(table);
        fat.block0 = Buf::zeros(0);
        Ok(fat)
    }

    /// A new ZAP: its header, and the pointers in it.
    pub(super) fn fresh(header: FatHeader, pointers: Vec<u64>) -> Fat {
        Fat {
            header,
            block0: Buf::zeros(0),
            endian: Endian::Little,
            cache: SharedCache::default(),
            table: Some(HashMap::from([(0, pointers)])),
            dirty: false,
        }
    }

    pub(super) fn word_keys(&self) -> bool {
        self.header.flags & FatHeader::FLAG_UINT64_KEY != 0
    }

    fn block(&self, object: &Object, blkid: u64) -> Result<Option<(Buf, Endian)>, Error> {
        if self.table.is_some() {
            return object.block_with_endian(blkid);
        }
        let tree = object.tree();
        match self.cache.pointer(&tree, 0, blkid)? {
            Child::Block(bp) => Ok(Some((tree.read_data(&bp, blkid, Interest::Whole)?, bp.endian()))),
            Child::Hole { .. } | Child::End => Ok(None),
        }
    }

    /// The pointer table's block `n` and its byte order; the table in the header counts as block 0.
    pub(super) fn table_block(&self, object: &Object, n: u64) -> Result<Option<(Buf, Endian)>, Error> {
        let table = &self.header.ptrtbl;
        if table.numblks == 0 {
            return Ok(Some((self.block0.clone(), self.endian)));
        }
        let blkid =
            table.blk.checked_add(n).ok_or_else(|| object.corrupt("start of a ZAP's pointer table", table.blk))?;
        self.block(object, blkid)
    }

    /// The offset in its block at which the table begins, in bytes.
    fn table_start(&self) -> usize {
        if self.header.ptrtbl.numblks == 0 { self.header.block_size / 2 } else { 0 }
    }

    /// The block of the leaf for a hash; 0 if the ZAP was emptied (a crash can leave one so).
    pub(super) fn leaf_of(&self, object: &Object, hash: u64) -> Result<u64, Error> {
        let index = self.header.index(hash);
        let shift = self.header.block_shift() - 3;
        let within = usize::try_from(index & ((1 << shift) - 1)).unwrap_or(usize::MAX);
        if let Some(words) = self.table.as_ref().and_then(|table| table.get(&(index >> shift))) {
            let leaf = words.get(within).copied();
            return leaf.ok_or_else(|| object.corrupt("index in a ZAP's pointer table", index));
        }
        let Some((block, endian)) = self.table_block(object, index >> shift)? else { return Ok(0) };
        let leaf = bytes::u64(&block, self.table_start().saturating_add(within.saturating_mul(8)), endian);
        leaf.ok_or_else(|| object.corrupt("index in a ZAP's pointer table", index))
    }

    pub(super) fn read_leaf(&self, object: &Object, blkid: u64) -> Result<LeafBlock, Error> {
        let block = self.block(object, blkid)?;
        let (buf, endian) = block.ok_or_else(|| object.corrupt("block of a ZAP leaf, a hole,", blkid))?;
        let leaf = LeafBlock { buf, endian };
        leaf.view(object)?;
        Ok(leaf)
    }

    /// The leaf in which a hash belongs; `None` if the ZAP was emptied.
    pub(super) fn leaf(&self, object: &Object, hash: u64) -> Result<Option<LeafBlock>, Error> {
        let blkid = self.leaf_of(object, hash)?;
        if blkid == 0 {
            return Ok(None);
        }
        let block = self.read_leaf(object, blkid)?;
        let header = block.view(object)?.header;
        if u64::from(header.prefix_len) > self.header.ptrtbl.shift || !block.view(object)?.holds(hash) {
            return Err(object.corrupt("prefix of a ZAP leaf", header.prefix));
        }
        Ok(Some(block))
    }

    /// The value of the key of this hash for whose name `is` returns true.
    pub(super) fn find(
        &self,
        object: &Object,
        hash: u64,
        is: impl Fn(&Leaf<'_>, &LeafEntry) -> bool,
    ) -> Result<Option<ZapValue>, Error> {
        let Some(block) = self.leaf(object, hash)? else { return Ok(None) };
        let leaf = block.view(object)?;
        for found in leaf.chain(leaf.chain_of(hash)) {
            let (_, entry) = found.map_err(|source| object.format(source))?;
            if entry.hash == hash && is(&leaf, &entry) {
                return value(object, &leaf, &entry).map(Some);
            }
        }
        Ok(None)
    }

    /// The first entry that matches, and whether another has the same normalised name.
    pub(super) fn matching(&self, object: &Object, hash: u64, wanted: &Wanted) -> Result<Option<ZapMatch>, Error> {
        let Some(block) = self.leaf(object, hash)? else { return Ok(None) };
        let leaf = block.view(object)?;
        let mut first: Option<ZapMatch> = None;
        for found in leaf.chain(leaf.chain_of(hash)) {
            let (_, entry) = found.map_err(|source| object.format(source))?;
            if entry.hash != hash {
                continue;
            }
            let name = leaf.name(&entry, false).map_err(|source| object.format(source))?;
            if !wanted.matches(&name) {
                continue;
            }
            match &mut first {
                Some(first) => first.conflict = true,
                None => first = Some(ZapMatch { name, value: value(object, &leaf, &entry)?, conflict: false }),
            }
        }
        Ok(first)
    }

    /// The shape of all leaves. Unreadable parts are left out, as in zdb.
    pub(super) fn stats(&self, object: &Object) -> FatStats {
        let mut stats = FatStats {
            header: self.header,
            leafs_with_2n_pointers: [0; 10],
            blocks_with_n5_entries: [0; 10],
            blocks_n_tenths_full: [0; 10],
            entries_using_n_chunks: [0; 10],
            buckets_with_n_entries: [0; 10],
        };
        let (tree, table) = (object.tree(), &self.header.ptrtbl);
        let (mut n, mut last) = (0, 0);
        while n < table.numblks.clamp(1, self.header.freeblk.max(1)) {
            if let Ok(Some(pointers)) = self.pointers(object, n) {
                for blkid in pointers {
                    if blkid == last || blkid == 0 {
                        continue;
                    }
                    last = blkid;
                    if let Ok(leaf) = self.read_leaf(object, blkid) {
                        let _ = leaf.view(object).map(|leaf| self.count_leaf(&leaf, &mut stats));
                    }
                }
            }
            if self.table.is_some() {
                n += 1;
                continue;
            }
            let next = table.blk.saturating_add(n + 1);
            match self.cache.next_data(&tree, next) {
                Ok(Some(blkid)) if table.numblks > 0 => n = blkid - table.blk,
                _ => break,
            }
        }
        stats
    }

    /// The pointers in block `n` of the table.
    fn pointers(&self, object: &Object, n: u64) -> Result<Option<Vec<u64>>, Error> {
        if let Some(words) = self.table.as_ref().and_then(|table| table.get(&n)) {
            return Ok(Some(words.clone()));
        }
        let Some((block, endian)) = self.table_block(object, n)? else { return Ok(None) };
        Ok(Some(bytes::u64s(block.get(self.table_start()..).unwrap_or(&[]), endian).collect()))
    }

    fn count_leaf(&self, leaf: &Leaf<'_>, stats: &mut FatStats) {
        let count = |histogram: &mut [u64; 10], n: usize| {
            if let Some(place) = histogram.get_mut(n.min(9)) {
                *place += 1;
            }
        };
        let size = self.header.block_size;
        let used = size.saturating_sub(usize::from(leaf.header.nfree) * (ondisk::zap::LEAF_ARRAY_BYTES + 1));
        count(
            &mut stats.leafs_with_2n_pointers,
            (self.header.ptrtbl.shift as usize).saturating_sub(leaf.header.prefix_len.into()),
        );
        count(&mut stats.blocks_with_n5_entries, usize::from(leaf.header.nentries) / 5);
        count(&mut stats.blocks_n_tenths_full, used * 10 / size.max(1));
        for chain in 0..leaf.hash_entries() {
            let mut entries = 0;
            for (_, entry) in leaf.chain(chain).map_while(Result::ok) {
                let name = usize::from(entry.name_numints).div_ceil(ondisk::zap::LEAF_ARRAY_BYTES);
                count(
                    &mut stats.entries_using_n_chunks,
                    1 + name + entry.value_len().div_ceil(ondisk::zap::LEAF_ARRAY_BYTES),
                );
                entries += 1;
            }
            count(&mut stats.buckets_with_n_entries, entries);
        }
    }
}

/// The value of an entry.
pub(super) fn value(object: &Object, leaf: &Leaf<'_>, entry: &LeafEntry) -> Result<ZapValue, Error> {
    let bytes = leaf.value(entry).map_err(|source| object.format(source))?;
    Ok(ZapValue { int_size: entry.value_intlen, bytes })
}
