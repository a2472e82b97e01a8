//! Changes to fat ZAPs: entries, leaf splits, growth of the pointer table, and shrinking.
//!
//! A block is changed in place in the object's dirty data; the header, which counts entries, is written once per call
//! ([`Fat::flush`]). All of a step that can fail comes before what it changes: the blocks that it is going to change are taken into memory as
//! blocks of the txg ([`Fat::hold_header`], [`Fat::hold_table`]), new ones are written behind the end, and only then do entries, pointers and
//! header change, in memory ([`Target::modify_held`]). So a failed call leaves the ZAP with the entries that it had, and what it did can be
//! undone by a call that reads nothing.

use base::Endian;
use ondisk::zap::{LEAF_CHUNK_SIZE, Leaf, LeafHeader};
use ondisk::zap_edit::{self, LeafKey, LeafMut, LeafValue, Put};

use super::fat::Fat;
use crate::{Error, Object, Tx};

/// The handling of a key that already exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Add,
    Update,
}

/// The object to change, and the txg.
pub(super) struct Target<'a> {
    pub(super) object: &'a Object,
    pub(super) tx: &'a Tx,
}

impl Target<'_> {
    pub(super) fn modify<R>(
        &self,
        blkid: u64,
        change: impl FnOnce(&mut [u8]) -> Result<R, ondisk::Error>,
    ) -> Result<R, Error> {
        self.object.modify_block(self.tx, blkid, change)?.map_err(|source| self.object.format(source))
    }

    /// True if a block is in memory as one that the txg has changed. A handle may outlive a sync pass, in which its txg was written.
    fn is_held(&self, blkid: u64) -> Result<bool, Error> {
        self.object.is_dirty(self.tx, blkid)
    }

    /// Changes a block that is [held](Target::is_held).
    fn modify_held(
        &self,
        blkid: u64,
        change: impl FnOnce(&mut [u8]) -> Result<(), ondisk::Error>,
    ) -> Result<(), Error> {
        self.object.modify_dirty(self.tx, blkid, change)?.map_err(|source| self.object.format(source))
    }

    pub(super) fn write(&self, blkid: u64, block: Vec<u8>) -> Result<(), Error> {
        self.object.write_block(self.tx, blkid, block)
    }

    pub(super) fn set_block_size(&self, size: usize) -> Result<(), Error> {
        self.object.set_block_size(self.tx, size as u64, 0)
    }

    pub(super) fn free(&self, blkid: u64, count: u64, size: usize) -> Result<(), Error> {
        let size = size as u64;
        self.object.free_range(self.tx, blkid.saturating_mul(size), count.saturating_mul(size))
    }

    pub(super) fn exists(&self, key: String) -> Error {
        Error::KeyExists { objset: self.object.objset().id(), object: self.object.id(), key }
    }

    pub(super) fn refused(&self, what: &'static str, value: u64) -> Error {
        Error::Refused { objset: self.object.objset().id(), object: self.object.id(), what, value }
    }
}

/// Larger pointer tables are refused: they would take more than 32 GiB. (OpenZFS stops at two bits less than a hash has.)
const TABLE_SHIFT_MAX: u64 = 32;

/// The number of leading bits that all hashes in a leaf have in common with `hash`: no split with fewer bits helps.
fn common_bits(leaf: &[u8], hash: u64) -> Result<u64, ondisk::Error> {
    let leaf = Leaf::parse(leaf, Endian::Little)?;
    let mut common = 64;
    for chain in 0..leaf.hash_entries() {
        for found in leaf.chain(chain) {
            common = common.min((found?.1.hash ^ hash).leading_zeros());
        }
    }
    Ok(common.into())
}

enum Outcome {
    /// The header will change as well, and must be held first.
    Hold,
    Exists,
    Put {
        put: Put,
        new: bool,
        prefix_len: u16,
    },
}

/// Two empty leaves that are to be joined.
struct Pair {
    stays: u64,
    goes: u64,
    /// The pointers to the one that goes.
    first: u64,
    count: u64,
}

enum Removed {
    /// The header will change as well, and must be held first.
    Hold,
    Missing,
    /// The entry is gone; the leaf's header.
    Done(LeafHeader),
}

fn is_key(leaf: &Leaf<'_>, entry: &ondisk::zap::LeafEntry, key: &LeafKey<'_>) -> bool {
    entry.name_numints == key.numints && leaf.array_is(entry.name_chunk, key.bytes)
}

/// True if a leaf has no entries, by its count of them and by that of free chunks: one that had some would lose them.
fn is_empty(leaf: &LeafHeader, block_size: usize) -> bool {
    leaf.nentries == 0 && usize::from(leaf.nfree) == (block_size - block_size / 16) / LEAF_CHUNK_SIZE - 2
}

/// Takes one away from a counter of the header. A counter that is too low came so from disk: it is held at zero, as all
/// entries can still be found, and recorded.
fn one_less(to: &Target<'_>, what: &'static str, value: &mut u64) {
    *value = value.checked_sub(1).unwrap_or_else(|| {
        let (objset, object) = (to.object.objset().id(), to.object.id());
        tracing::error!(target: "zuse::space", dataset = objset.0, object = object.0, what, "wrong counter: it is 0");
        0
    });
}

/// The header of a leaf, checked to be the leaf of `hash` under a table of `2^shift` pointers.
fn checked(leaf: &Leaf<'_>, hash: u64, shift: u64) -> Result<LeafHeader, ondisk::Error> {
    if u64::from(leaf.header.prefix_len) > shift || !leaf.holds(hash) {
        return Err(ondisk::Error::Invalid { what: "ZAP leaf", field: "prefix", value: leaf.header.prefix });
    }
    Ok(leaf.header)
}

fn encode(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Fat {
    fn per_block(&self) -> u64 {
        (self.header.block_size / 8) as u64
    }

    fn is_sorted(&self) -> bool {
        self.header.normflags != 0
    }

    fn leaf_to_change(&mut self, to: &Target<'_>, hash: u64) -> Result<u64, Error> {
        match self.leaf_held(to, hash)? {
            0 => Err(to.object.corrupt("pointer to a ZAP leaf", 0)),
            blkid => Ok(blkid),
        }
    }

    /// As [`Fat::leaf_of`]; the pointer stays in memory.
    fn leaf_held(&mut self, to: &Target<'_>, hash: u64) -> Result<u64, Error> {
        self.remember(to, self.header.index(hash) / self.per_block())?;
        self.leaf_of(to.object, hash)
    }

    /// Makes block 0 one that the txg has changed.
    pub(super) fn hold_header(&self, to: &Target<'_>) -> Result<(), Error> {
        if to.is_held(0)? { Ok(()) } else { to.modify(0, |_| Ok(())) }
    }

    /// Loads the `count` pointers from `first` on, and makes their blocks ones that the txg has changed.
    fn hold_table(&mut self, to: &Target<'_>, first: u64, count: u64) -> Result<(), Error> {
        self.hold_header(to)?;
        self.load(to, first, count)?;
        let (table, per_block) = (self.header.ptrtbl, self.per_block());
        if table.numblks != 0 {
            for n in first / per_block..=(first + count.max(1) - 1) / per_block {
                to.modify(table.blk + n, |_| Ok(()))?;
            }
        }
        Ok(())
    }

    /// Writes the header, if it changed.
    pub(super) fn flush(&mut self, to: &Target<'_>) -> Result<(), Error> {
        if self.dirty {
            let header = self.header;
            to.modify_held(0, |block| {
                header.encode_into(block);
                Ok(())
            })?;
            self.dirty = false;
        }
        Ok(())
    }

    /// Stores a value under a key. The caller flushes.
    pub(super) fn put(
        &mut self,
        to: &Target<'_>,
        key: &LeafKey<'_>,
        cd: Option<u32>,
        value: &LeafValue<'_>,
        mode: Mode,
    ) -> Result<(), Error> {
        let word_keys = self.word_keys();
        loop {
            let blkid = self.leaf_to_change(to, key.hash)?;
            let (shift, held) = (self.header.ptrtbl.shift, to.is_held(0)?);
            let outcome = to.modify(blkid, |block| {
                let mut leaf = LeafMut::new(block)?;
                let prefix_len = checked(&leaf.view()?, key.hash, shift)?.prefix_len;
                Ok(match leaf.find(key.hash, |leaf, entry| is_key(leaf, entry, key))? {
                    Some(_) if mode == Mode::Add => Outcome::Exists,
                    Some((n, _)) => Outcome::Put { put: leaf.set_value(n, word_keys, value)?, new: false, prefix_len },
                    None if !held => Outcome::Hold,
                    None => Outcome::Put { put: leaf.insert(key, cd, value)?, new: true, prefix_len },
                })
            })?;
            match outcome {
                Outcome::Hold => self.hold_header(to)?,
                Outcome::Exists => return Err(to.exists(show(key, word_keys))),
                Outcome::Put { put: Put::Done, new, .. } => {
                    if new {
                        self.header.num_entries = self.header.num_entries.saturating_add(1);
                        self.dirty = true;
                    }
                    return Ok(());
                }
                Outcome::Put { put: Put::TooLarge, .. } => {
                    return Err(to.refused("size of a ZAP entry", (key.bytes.len() + value.bytes.len()) as u64));
                }
                Outcome::Put { put: Put::Full, prefix_len, .. } => self.expand(to, key.hash, blkid, prefix_len)?,
            }
        }
    }

    /// Removes a key; `false` if it does not exist. The caller flushes.
    pub(super) fn remove(&mut self, to: &Target<'_>, key: &LeafKey<'_>) -> Result<bool, Error> {
        let word_keys = self.word_keys();
        let blkid = match self.leaf_held(to, key.hash)? {
            0 => return Ok(false),
            blkid => blkid,
        };
        let shift = self.header.ptrtbl.shift;
        loop {
            let held = to.is_held(0)?;
            let removed = to.modify(blkid, |block| {
                let mut leaf = LeafMut::new(block)?;
                checked(&leaf.view()?, key.hash, shift)?;
                Ok(match leaf.find(key.hash, |leaf, entry| is_key(leaf, entry, key))? {
                    None => Removed::Missing,
                    Some(_) if !held => Removed::Hold,
                    Some((n, _)) => {
                        leaf.remove(n, word_keys)?;
                        Removed::Done(leaf.view()?.header)
                    }
                })
            })?;
            match removed {
                Removed::Hold => self.hold_header(to)?,
                Removed::Missing => return Ok(false),
                Removed::Done(header) => {
                    one_less(to, "number of entries of a ZAP", &mut self.header.num_entries);
                    self.dirty = true;
                    if is_empty(&header, self.header.block_size) {
                        self.shrink(to, blkid, header)?;
                    }
                    return Ok(true);
                }
            }
        }
    }

    /// Splits the leaf in `blkid`, to which `hash` belongs; doubles the table first if necessary.
    fn expand(&mut self, to: &Target<'_>, hash: u64, blkid: u64, prefix_len: u16) -> Result<(), Error> {
        let (buf, endian) = to
            .object
            .block_with_endian(blkid)?
            .ok_or_else(|| to.object.corrupt("block of a ZAP leaf, a hole,", blkid))?;
        let mut low = buf.to_vec();
        drop(buf);
        if endian == Endian::Big {
            zap_edit::to_little(&mut low);
        }
        let common = common_bits(&low, hash).map_err(|source| to.object.format(source))?;
        if common >= u64::from(self.header.hash_bits() - 2).min(TABLE_SHIFT_MAX) {
            return Err(self.too_many(to));
        }
        self.hold_header(to)?;
        if self.header.ptrtbl.nextblk != 0 || u64::from(prefix_len) >= self.header.ptrtbl.shift {
            self.grow_table(to)?;
        }
        let (words, sorted) = (self.word_keys(), self.is_sorted());
        let high = LeafMut::new(&mut low).and_then(|mut leaf| leaf.split(words, sorted));
        let high = high.map_err(|source| to.object.format(source))?;
        let below = self.header.ptrtbl.shift - (u64::from(prefix_len) + 1);
        let prefix = hash >> (63 - u32::from(prefix_len));
        let (first, count) = ((prefix | 1) << below, 1 << below);
        self.hold_table(to, first, count)?;
        if !self.points(first, count, blkid) {
            return Err(to.object.corrupt("pointer to a ZAP leaf that is split, not to block", blkid));
        }
        let new = self.free_blocks(to, 1)?;
        to.write(new, high)?;
        // nothing can fail any more
        self.header.freeblk = new + 1;
        self.header.num_leafs = self.header.num_leafs.saturating_add(1);
        self.dirty = true;
        to.modify_held(blkid, |block| {
            block.copy_from_slice(&low);
            Ok(())
        })?;
        self.set_pointers(to, first, count, new)
    }

    fn too_many(&self, to: &Target<'_>) -> Error {
        Error::TooManyCollisions { objset: to.object.objset().id(), object: to.object.id() }
    }

    /// The first of `count` blocks behind the end.
    fn free_blocks(&self, to: &Target<'_>, count: u64) -> Result<u64, Error> {
        let first = self.header.freeblk;
        match first.checked_add(count) {
            Some(_) => Ok(first),
            None => Err(to.object.corrupt("first free block of a ZAP", first)),
        }
    }

    /// Loads the `count` pointers from `first` on.
    fn load(&mut self, to: &Target<'_>, first: u64, count: u64) -> Result<(), Error> {
        let per_block = self.per_block();
        for n in first / per_block..=(first + count.max(1) - 1) / per_block {
            if !self.remember(to, n)? {
                return Err(to.object.corrupt("block of a ZAP's pointer table, a hole,", n));
            }
        }
        Ok(())
    }

    /// Loads block `n` of the pointer table; `false` if it is a hole.
    fn remember(&mut self, to: &Target<'_>, n: u64) -> Result<bool, Error> {
        if self.table.as_ref().is_some_and(|table| table.contains_key(&n)) {
            return Ok(true);
        }
        let Some((block, endian)) = self.table_block(to.object, n)? else { return Ok(false) };
        let words = base::bytes::u64s(&block, endian).collect();
        self.table.get_or_insert_default().insert(n, words);
        Ok(true)
    }

    /// True if these pointers, which were loaded, all lead to `blkid`.
    fn points(&self, first: u64, count: u64, blkid: u64) -> bool {
        let per_block = self.per_block();
        let Some(table) = &self.table else { return false };
        (first..first + count).all(|index| {
            let words = table.get(&(index / per_block));
            words.and_then(|words| words.get((index % per_block) as usize)) == Some(&blkid)
        })
    }

    /// Sets pointers, which are [held](Fat::hold_table).
    fn set_pointers(&mut self, to: &Target<'_>, first: u64, count: u64, blkid: u64) -> Result<(), Error> {
        let (per_block, embedded) = (self.per_block(), self.header.ptrtbl.numblks == 0);
        let (mut at, end) = (first, first + count);
        while at < end {
            let (n, within) = (at / per_block, (at % per_block) as usize);
            let here = (end - at).min(per_block - at % per_block) as usize;
            let words = self.table.as_mut().and_then(|table| table.get_mut(&n));
            let words = words.ok_or_else(|| to.object.corrupt("block of a ZAP's pointer table", n))?;
            words.iter_mut().skip(within).take(here).for_each(|word| *word = blkid);
            let start = if embedded { words.len() } else { 0 } + within;
            to.modify_held(if embedded { 0 } else { self.header.ptrtbl.blk + n }, |block| {
                store(block, start, here, blkid);
                Ok(())
            })?;
            at += here as u64;
        }
        Ok(())
    }

    /// Doubles the pointer table in one step. If OpenZFS left a doubling half done, the blocks it allocated are used.
    fn grow_table(&mut self, to: &Target<'_>) -> Result<(), Error> {
        let (old, per_block) = (self.header.ptrtbl, self.per_block());
        if old.shift >= u64::from(self.header.hash_bits() - 2).min(TABLE_SHIFT_MAX) {
            return Err(self.too_many(to));
        }
        let pointers = 1u64 << old.shift;
        if old.numblks != 0 && (old.numblks.checked_mul(per_block) != Some(pointers) || old.blk == 0) {
            return Err(to.object.corrupt("number of blocks of a ZAP's pointer table", old.numblks));
        }
        for n in 0..old.numblks.max(1) {
            self.load(to, n * per_block, per_block.min(pointers))?;
        }
        let numblks = (old.numblks * 2).max(1);
        let blk = if old.nextblk != 0 { old.nextblk } else { self.free_blocks(to, numblks)? };
        let end = blk.checked_add(numblks);
        if blk == 0 || end.is_none_or(|end| (blk..end).any(|blkid| self.is_table(blkid))) {
            return Err(to.object.corrupt("start of a ZAP's next pointer table", blk));
        }
        let Some(before) = &self.table else {
            return Err(to.object.corrupt("start of a ZAP's pointer table", old.blk));
        };
        let loaded = before.len() as u64;
        // what is not in memory would be missing in the new table
        assert!(loaded == old.numblks.max(1), "{loaded} of {} blocks of a pointer table were loaded", old.numblks);
        let mut after = std::collections::HashMap::new();
        for (n, words) in before {
            let doubled: Vec<u64> = words.iter().flat_map(|word| [*word, *word]).collect();
            for (half, words) in doubled.chunks(per_block as usize).enumerate() {
                let n = n * 2 + half as u64;
                to.write(blk + n, encode(words))?;
                after.insert(n, words.to_vec());
            }
        }
        if old.numblks != 0 {
            to.free(old.blk, old.numblks, self.header.block_size)?;
        }
        // nothing can fail any more
        self.table = Some(after);
        if old.nextblk == 0 {
            self.header.freeblk = blk + numblks;
        }
        let table = &mut self.header.ptrtbl;
        (table.blk, table.numblks, table.shift) = (blk, numblks, old.shift + 1);
        (table.nextblk, table.blks_copied) = (0, 0);
        self.dirty = true;
        Ok(())
    }

    /// Joins an empty leaf with its sibling, as long as that is empty too (OpenZFS: `zap_shrink`). A leaf that cannot be joined, as its sibling
    /// or the pointers to it cannot be read, stays as it is: it is only one more.
    fn shrink(&mut self, to: &Target<'_>, mut blkid: u64, mut header: LeafHeader) -> Result<(), Error> {
        while header.prefix_len > 0 && self.header.ptrtbl.nextblk == 0 {
            match self.hold_pair(to, blkid, header) {
                Ok(Some(pair)) => (blkid, header) = self.join(to, &pair, header)?,
                Ok(None) => break,
                Err(error) => {
                    let (objset, object) = (to.object.objset().id(), to.object.id());
                    tracing::debug!(target: "zuse::space", dataset = objset.0, object = object.0, %error, "a ZAP leaf is not joined");
                    break;
                }
            }
        }
        Ok(())
    }

    /// Finds the sibling of an empty leaf, if that is empty too, frees the block of one of the two, and makes what else changes when they are
    /// joined blocks of the txg. On an error nothing has changed.
    fn hold_pair(&mut self, to: &Target<'_>, blkid: u64, header: LeafHeader) -> Result<Option<Pair>, Error> {
        let len = header.prefix_len;
        let below = self.header.ptrtbl.shift.saturating_sub(len.into());
        let (mine, theirs) = (header.prefix << below, (header.prefix ^ 1) << below);
        let count = 1u64 << below;
        self.load(to, theirs, count)?;
        self.load(to, mine, count)?;
        let sibling = self.pointer(theirs);
        if sibling == 0 || !self.points(theirs, count, sibling) || self.is_table(sibling) || self.is_table(blkid) {
            return Ok(None);
        }
        let other = {
            let block = self.read_leaf(to.object, sibling)?;
            block.view(to.object)?.header
        };
        let is_sibling = (other.prefix, other.prefix_len) == (header.prefix ^ 1, len);
        if !is_sibling || !is_empty(&other, self.header.block_size) {
            return Ok(None);
        }
        let (stays, goes, first) =
            if header.prefix & 1 == 0 { (blkid, sibling, theirs) } else { (sibling, blkid, mine) };
        to.modify(stays, |_| Ok(()))?;
        self.hold_table(to, first, count)?;
        to.free(goes, 1, self.header.block_size)?;
        Ok(Some(Pair { stays, goes, first, count }))
    }

    /// Joins two leaves, which are held. Returns the block and the header of the one that stays.
    fn join(&mut self, to: &Target<'_>, pair: &Pair, header: LeafHeader) -> Result<(u64, LeafHeader), Error> {
        let Pair { stays, goes, first, count } = *pair;
        self.set_pointers(to, first, count, stays)?;
        if goes.checked_add(1) == Some(self.header.freeblk) {
            self.header.freeblk = goes;
        }
        one_less(to, "number of leaves of a ZAP", &mut self.header.num_leafs);
        self.dirty = true;
        let joined = LeafHeader { prefix: header.prefix >> 1, prefix_len: header.prefix_len - 1, ..header };
        to.modify_held(stays, |block| {
            LeafMut::new(block)?.set_prefix(joined.prefix, joined.prefix_len);
            Ok(())
        })?;
        Ok((stays, joined))
    }

    /// True if a block is a part of the table of pointers.
    fn is_table(&self, blkid: u64) -> bool {
        let table = self.header.ptrtbl;
        blkid.checked_sub(table.blk).is_some_and(|n| n < table.numblks)
    }

    /// Pointer `index`, which must have been loaded; 0 if it was not.
    fn pointer(&self, index: u64) -> u64 {
        let per_block = self.per_block();
        let words = self.table.as_ref().and_then(|table| table.get(&(index / per_block)));
        words.and_then(|words| words.get((index % per_block) as usize)).copied().unwrap_or(0)
    }
}

fn store(block: &mut [u8], first: usize, count: usize, word: u64) {
    for place in block.as_chunks_mut::<8>().0.iter_mut().skip(first).take(count) {
        *place = word.to_le_bytes();
    }
}

fn show(key: &LeafKey<'_>, word_keys: bool) -> String {
    if word_keys {
        let words: Vec<String> = base::bytes::u64s(key.bytes, Endian::Big).map(|word| format!("{word:x}")).collect();
        return words.join(":");
    }
    String::from_utf8_lossy(base::bytes::until_nul(key.bytes)).into_owned()
}
