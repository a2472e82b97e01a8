//! Micro ZAPs: one block of fixed entries, sorted in memory.

use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use base::Endian;
use ondisk::zap::{MicroEntry, MicroZap};
use zio::Buf;

use super::norm::Wanted;
use super::{hash, norm};

/// The number of bits in a micro ZAP's hashes.
pub(super) const HASH_BITS: u32 = 28;
/// The number of linear searches before the entries are sorted.
const SCANS_BEFORE_INDEX: u32 = 4;

/// An open micro ZAP.
pub(super) struct Micro {
    pub(super) block: Block,
    pub(super) endian: Endian,
    pub(super) salt: u64,
    pub(super) normflags: u64,
    scans: AtomicU32,
    pub(super) index: OnceLock<Vec<EntryOrder>>,
    /// The slot at which the search for a free slot begins.
    pub(super) rotor: usize,
}

/// The block: as it was read, or a copy that changes together with the object's block.
pub(super) enum Block {
    Shared(Buf),
    Own(Vec<u8>),
}

impl Block {
    /// Returns a copy that can be changed: this one, if it is a copy already.
    pub(super) fn own(&mut self) -> &mut Vec<u8> {
        if let Block::Shared(buf) = self {
            *self = Block::Own(buf.to_vec());
        }
        match self {
            Block::Own(bytes) => bytes,
            Block::Shared(_) => panic!("a block that was copied is not a copy"),
        }
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Block::Shared(buf) => buf,
            Block::Own(bytes) => bytes,
        }
    }
}

/// An entry's position in the order of the cursor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryOrder {
    pub(super) hash: u64,
    pub(super) cd: u32,
    pub(super) slot: u32,
}

impl Micro {
    pub(super) fn parse(block: Buf, endian: Endian) -> Result<Micro, ondisk::Error> {
        let view = MicroZap::parse(&block, endian)?;
        let (salt, normflags) = (view.salt, view.normflags);
        Ok(Micro {
            block: Block::Shared(block),
            endian,
            salt,
            normflags,
            scans: AtomicU32::new(0),
            index: OnceLock::new(),
            rotor: 0,
        })
    }

    /// Parses a micro ZAP that may change.
    pub(super) fn parse_live(block: Buf, endian: Endian) -> Result<Micro, ondisk::Error> {
        let mut micro = Micro::parse(block, endian)?;
        let mut bytes = micro.block.to_vec();
        ondisk::zap_edit::to_little(&mut bytes);
        (micro.block, micro.endian) = (Block::Own(bytes), Endian::Little);
        Ok(micro)
    }

    /// A micro ZAP without entries and without room for any.
    pub(super) fn none() -> Micro {
        Micro {
            block: Block::Own(Vec::new()),
            endian: Endian::Little,
            salt: 0,
            normflags: 0,
            scans: AtomicU32::new(0),
            index: OnceLock::new(),
            rotor: 0,
        }
    }

    /// Every entry in use, in the order of the block. (The block was checked to be a micro ZAP when it was opened.)
    pub(super) fn in_use(&self) -> impl Iterator<Item = (u32, MicroEntry<'_>)> {
        let view = MicroZap::parse(&self.block, self.endian).ok();
        let capacity = view.map_or(0, |view| view.capacity());
        let entries = (0..capacity).filter_map(move |slot| Some((slot as u32, view?.entry(slot)?)));
        entries.filter(|(_, entry)| !entry.name.is_empty())
    }

    pub(super) fn count(&self) -> u64 {
        self.in_use().count() as u64
    }

    pub(super) fn block_size(&self) -> u64 {
        self.block.len() as u64
    }

    /// The entries by hash and collision differentiator.
    pub(super) fn ordered(&self) -> &[EntryOrder] {
        self.index.get_or_init(|| {
            let place = |(slot, entry): (u32, MicroEntry<'_>)| {
                let name = norm::normalise(entry.name, self.normflags);
                // OpenZFS keeps 16 bits of the cd in memory, and so in cookies
                EntryOrder { hash: hash::of_name(self.salt, &name, HASH_BITS), cd: entry.cd & 0xffff, slot }
            };
            let mut places: Vec<EntryOrder> = self.in_use().map(place).collect();
            places.sort_unstable();
            places
        })
    }

    pub(super) fn entry(&self, place: &EntryOrder) -> Option<MicroEntry<'_>> {
        MicroZap::parse(&self.block, self.endian).ok()?.entry(place.slot as usize)
    }

    /// The entry of exactly this name.
    pub(super) fn exact(&self, name: &[u8]) -> Option<MicroEntry<'_>> {
        if self.index.get().is_none() && self.scans.fetch_add(1, Ordering::Relaxed) < SCANS_BEFORE_INDEX {
            return self.in_use().map(|(_, entry)| entry).find(|entry| entry.name == name);
        }
        let hash = hash::of_name(self.salt, &norm::normalise(name, self.normflags), HASH_BITS);
        self.of_hash(hash).find(|entry| entry.name == name)
    }

    /// The first entry that matches, and whether another has the same normalised name.
    pub(super) fn matching(&self, wanted: &Wanted) -> Option<(MicroEntry<'_>, bool)> {
        let hash = hash::of_name(self.salt, wanted.hashed(), HASH_BITS);
        let mut same = self.of_hash(hash).filter(|entry| wanted.matches(entry.name));
        let first = same.next()?;
        Some((first, same.next().is_some()))
    }

    fn of_hash(&self, hash: u64) -> impl Iterator<Item = MicroEntry<'_>> {
        self.places_of(hash).iter().filter_map(|place| self.entry(place))
    }

    /// The positions of all entries with this hash.
    pub(super) fn places_of(&self, hash: u64) -> &[EntryOrder] {
        let places = self.ordered();
        let start = places.partition_point(|place| place.hash < hash);
        let end = places.partition_point(|place| place.hash <= hash);
        places.get(start..end).unwrap_or(&[])
    }
}
