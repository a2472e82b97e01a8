//! Changes to micro ZAPs: entries in place, growth, and conversion to a fat ZAP.

use base::tunable;
use ondisk::zap::{FatHeader, LEAF_ARRAY_BYTES, MZAP_ENT_LEN, MZAP_NAME_LEN, PointerTable};
use ondisk::zap_edit::{self, LeafKey, LeafMut, LeafValue};

use super::fat::Fat;
use super::fat_write::{Mode, Target};
use super::micro::{Block, EntryOrder, HASH_BITS, Micro};
use super::{hash, norm};
use crate::Error;

/// The number of bytes by which a micro ZAP grows.
const STEP: usize = 512;
/// Block size of a fat ZAP that was a micro ZAP (OpenZFS: `fzap_default_block_shift`).
const FAT_BLOCK: usize = 1 << 14;
/// Chunks that an entry of a micro ZAP can take in a leaf.
const ENTRY_CHUNKS: usize = 1 + MZAP_NAME_LEN.div_ceil(LEAF_ARRAY_BYTES) + 1;
/// Chunks of a leaf of [`FAT_BLOCK`] bytes.
const LEAF_CHUNKS: usize = (FAT_BLOCK - FAT_BLOCK / 16) / 24 - 2;
/// Differentiators of micro ZAPs have 16 bits in memory, and so in cookies.
const CD_BITS: u32 = 0xffff;

impl Micro {
    /// A new micro ZAP of one block.
    pub(super) fn fresh(block: Vec<u8>, salt: u64, normflags: u64) -> Micro {
        let mut micro = Micro::none();
        (micro.block, micro.salt, micro.normflags) = (Block::Own(block), salt, normflags);
        micro
    }

    fn hash_of(&self, name: &[u8]) -> u64 {
        hash::of_name(self.salt, &norm::normalise(name, self.normflags), HASH_BITS)
    }

    fn capacity(&self) -> usize {
        (self.block.len() / MZAP_ENT_LEN).saturating_sub(1)
    }

    fn place_of(&self, hash: u64, name: &[u8]) -> Option<EntryOrder> {
        self.places_of(hash).iter().copied().find(|place| self.entry(place).is_some_and(|entry| entry.name == name))
    }

    fn set_slot(&mut self, to: &Target<'_>, slot: u32, entry: &[u8; MZAP_ENT_LEN]) -> Result<(), Error> {
        let at = (slot as usize + 1) * MZAP_ENT_LEN;
        let store = |block: &mut [u8]| match block.get_mut(at..at + MZAP_ENT_LEN) {
            Some(place) => place.copy_from_slice(entry),
            None => panic!("slot {slot} is not in a micro ZAP of {} bytes", block.len()),
        };
        to.modify(0, |block| {
            store(block);
            Ok(())
        })?;
        if let Block::Own(bytes) = &mut self.block {
            store(bytes);
        }
        Ok(())
    }

    /// Stores a value. Returns `false` if this needs a fat ZAP.
    pub(super) fn put(&mut self, to: &Target<'_>, name: &[u8], value: u64, mode: Mode) -> Result<bool, Error> {
        let hash = self.hash_of(name);
        if let Some(place) = self.place_of(hash, name) {
            if mode == Mode::Add {
                return Err(to.exists(String::from_utf8_lossy(name).into_owned()));
            }
            let Some(entry) = zap_edit::micro_entry(name, value, place.cd) else { return Ok(false) };
            return self.set_slot(to, place.slot, &entry).map(|()| true);
        }
        let same = self.places_of(hash);
        if (same.len() + 1) * ENTRY_CHUNKS >= LEAF_CHUNKS {
            return Ok(false);
        }
        let cd = same.iter().zip(0..).take_while(|(place, n)| place.cd == *n).count() as u32;
        let Some(entry) = zap_edit::micro_entry(name, value, cd & CD_BITS) else { return Ok(false) };
        let Some(slot) = self.free_slot(to)? else { return Ok(false) };
        self.set_slot(to, slot, &entry)?;
        let place = EntryOrder { hash, cd, slot };
        if let Some(places) = self.index.get_mut() {
            places.insert(places.partition_point(|other| *other < place), place);
        }
        Ok(true)
    }

    /// A free slot; the block grows if there is none. `None` if it has reached its largest size.
    fn free_slot(&mut self, to: &Target<'_>) -> Result<Option<u32>, Error> {
        let capacity = self.capacity();
        if self.ordered().len() >= capacity {
            let size = self.block.len() + STEP;
            let most = tunable::ZAP_MICRO_MAX_SIZE.get().min(128 << 10);
            if size as u64 > most || !size.is_multiple_of(STEP) {
                return Ok(None);
            }
            // the block grows with its size
            to.set_block_size(size)?;
            self.block.own().resize(size, 0);
            self.rotor = capacity;
        }
        let capacity = self.capacity();
        let is_free = |n: &usize| {
            let at = (n + 2) * MZAP_ENT_LEN - MZAP_NAME_LEN;
            self.block.get(at) == Some(&0)
        };
        let found = (self.rotor..capacity).chain(0..self.rotor.min(capacity)).find(is_free);
        self.rotor = found.map_or(0, |n| n + 1);
        Ok(found.map(|n| n as u32))
    }

    /// Removes an entry; `false` if there is none of this name.
    pub(super) fn remove(&mut self, to: &Target<'_>, name: &[u8]) -> Result<bool, Error> {
        let Some(place) = self.place_of(self.hash_of(name), name) else { return Ok(false) };
        self.set_slot(to, place.slot, &[0; MZAP_ENT_LEN])?;
        if let Some(places) = self.index.get_mut()
            && let Ok(n) = places.binary_search(&place)
        {
            places.remove(n);
        }
        Ok(true)
    }

    /// Converts it to a fat ZAP. `flags` are those of a ZAP that is fat from the start: its blocks then keep their size. On an error it is a
    /// micro ZAP again.
    pub(super) fn upgrade(&self, to: &Target<'_>, flags: u64) -> Result<Fat, Error> {
        // a micro ZAP has one block; what is behind it, in a damaged pool, could not be put back
        if to.object.nblocks() != 1 {
            return Err(to.refused("blocks of a micro ZAP", to.object.nblocks()));
        }
        let made = self.make_fat(to, flags);
        if made.is_err()
            && let Err(error) = self.put_back(to)
        {
            to.tx.break_txg(&error);
        }
        made
    }

    /// Writes the block as it was before. All that it overwrites is in memory.
    fn put_back(&self, to: &Target<'_>) -> Result<(), Error> {
        let (size, now) = (self.block.len(), usize::try_from(to.object.block_size()).unwrap_or(0));
        to.free(1, u64::MAX, now)?;
        if now != size {
            to.set_block_size(size)?;
        }
        to.write(0, self.block.to_vec())
    }

    fn make_fat(&self, to: &Target<'_>, flags: u64) -> Result<Fat, Error> {
        let block_size = if flags == 0 { FAT_BLOCK } else { self.block.len() };
        let entries: Vec<(Vec<u8>, u64, u32)> =
            self.in_use().map(|(_, entry)| (entry.name.to_vec(), entry.value, entry.cd)).collect();
        let header = FatHeader {
            ptrtbl: PointerTable { shift: u64::from(block_size.ilog2()) - 4, ..PointerTable::default() },
            freeblk: 2,
            num_leafs: 1,
            num_entries: 0,
            salt: self.salt,
            normflags: self.normflags,
            flags,
            block_size,
        };
        if block_size != self.block.len() {
            to.set_block_size(block_size)?;
        }
        let mut block = vec![0; block_size];
        header.encode_into(&mut block);
        for pointer in block.chunks_exact_mut(8).skip(block_size / 16) {
            pointer.copy_from_slice(&1u64.to_le_bytes());
        }
        to.write(0, block)?;
        to.write(1, LeafMut::init(block_size, 0, 0, self.normflags != 0))?;
        let mut fat = Fat::fresh(header, vec![1; block_size / 16]);
        fat.hold_header(to)?;
        for (mut name, value, cd) in entries {
            let hash = hash::of_name(self.salt, &norm::normalise(&name, self.normflags), header.hash_bits());
            name.push(0);
            let key = LeafKey { hash, bytes: &name, numints: name.len() as u16 };
            let value = LeafValue { int_size: 8, bytes: &value.to_be_bytes() };
            fat.put(to, &key, Some(cd), &value, Mode::Add)?;
        }
        fat.flush(to)?;
        Ok(fat)
    }
}
