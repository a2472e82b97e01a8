//! Lists of block pointers: bpobj (deadlists, deferred frees) and bptree (asynchronous destroy).

use base::{Endian, ObjectId, Txg, bytes};

use crate::{BlkPtr, Error, Position};

/// The bonus of a bpobj (OpenZFS: `bpobj_phys_t`). Older versions store fewer words; missing ones are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BpobjPhys {
    /// Pointers in the object itself.
    pub num_blkptrs: u64,
    /// Space of all pointers, including those of sub-objects.
    pub bytes: u64,
    /// Compressed bytes of them.
    pub comp: u64,
    /// Uncompressed bytes of them.
    pub uncomp: u64,
    /// The object that lists the sub-objects, 0 if none.
    pub subobjs: ObjectId,
    /// Number of sub-objects.
    pub num_subobjs: u64,
    /// Pointers marked FREE (livelists).
    pub num_freed: u64,
    /// True if `comp` and `uncomp` are stored.
    pub have_comp: bool,
}

impl BpobjPhys {
    /// Decodes a bonus buffer of 16, 32, 48 or 56 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`] below 16 bytes.
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        if buf.len() < 16 {
            return Err(Error::short("bpobj", 16, buf.len()));
        }
        let w = |n: usize| bytes::u64(buf, n * 8, e).unwrap_or(0);
        let subobjs = buf.len() >= 48;
        Ok(BpobjPhys {
            num_blkptrs: w(0),
            bytes: w(1),
            comp: w(2),
            uncomp: w(3),
            subobjs: if subobjs { ObjectId(w(4)) } else { ObjectId::NONE },
            num_subobjs: if subobjs { w(5) } else { 0 },
            num_freed: if buf.len() >= 56 { w(6) } else { 0 },
            have_comp: buf.len() >= 32,
        })
    }
}

impl BpobjPhys {
    /// Bytes of the bonus buffer before pools of version 15.
    pub const SIZE_V0: usize = 16;
    /// Bytes of it before pools of version 26.
    pub const SIZE_V1: usize = 32;
    /// Bytes of it without feature `livelist`.
    pub const SIZE_V2: usize = 48;
    /// Bytes of it with that feature.
    pub const SIZE: usize = 56;

    /// Encodes as much as a bonus buffer of `len` bytes has.
    #[must_use]
    pub fn encode(&self, e: Endian, len: usize) -> Vec<u8> {
        let words =
            [self.num_blkptrs, self.bytes, self.comp, self.uncomp, self.subobjs.0, self.num_subobjs, self.num_freed];
        let mut out: Vec<u8> = words.into_iter().flat_map(|word| e.put_u64(word)).collect();
        out.resize(len, 0);
        out
    }
}

/// The form in which lists store a pointer: without the fields that are not needed, and marked FREE or not (OpenZFS: `bpobj_enqueue`).
#[must_use]
pub fn list_entry(bp: &BlkPtr, free: bool) -> BlkPtr {
    const PROP: usize = 6;
    const BIRTH: usize = 10;
    const FILL: usize = 11;
    const CHECKSUM: usize = 12;
    let mut words = bp.words;
    if bp.is_embedded() {
        words = [0; 16];
        (words[PROP], words[BIRTH]) = (bp.words[PROP], bp.words[BIRTH]);
    } else if !bp.is_dedup() {
        words[CHECKSUM..].fill(0);
    }
    words[FILL] = u64::from(free);
    BlkPtr { words }
}

/// True if a livelist entry is a FREE, false if it is an ALLOC (OpenZFS: `BP_GET_FREE`).
#[must_use]
pub const fn livelist_entry_is_free(bp: &BlkPtr) -> bool {
    bp.words[11] & 1 != 0
}

/// The bonus of a bptree (OpenZFS: `bptree_phys_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BptreePhys {
    /// First entry still to be freed.
    pub begin: u64,
    /// One beyond the last entry.
    pub end: u64,
    /// Space to be freed.
    pub bytes: u64,
    /// Compressed bytes of it.
    pub comp: u64,
    /// Uncompressed bytes of it.
    pub uncomp: u64,
}

impl BptreePhys {
    /// Decodes 40 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let w = |n: usize| bytes::u64(buf, n * 8, e).ok_or(Error::short("bptree", 40, buf.len()));
        Ok(BptreePhys { begin: w(0)?, end: w(1)?, bytes: w(2)?, comp: w(3)?, uncomp: w(4)? })
    }
}

impl BptreePhys {
    /// Bytes of the bonus buffer.
    pub const SIZE: usize = 40;

    /// Encodes the bonus buffer.
    #[must_use]
    pub fn encode(&self, e: Endian) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        let words = [self.begin, self.end, self.bytes, self.comp, self.uncomp];
        out.as_chunks_mut::<8>().0.iter_mut().zip(words).for_each(|(chunk, word)| *chunk = e.put_u64(word));
        out
    }
}

/// One tree of blocks being destroyed (OpenZFS: `bptree_entry_phys_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BptreeEntry {
    /// The object set whose blocks are freed.
    pub bp: BlkPtr,
    /// Only blocks born after this are freed.
    pub birth_txg: Txg,
    /// The progress of the destroy.
    pub bookmark: Position,
}

impl BptreeEntry {
    /// Bytes of an entry.
    pub const SIZE: usize = 168;

    /// Decodes 168 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let w = |n: usize| bytes::u64(buf, 128 + n * 8, e).ok_or(Error::short("bptree entry", Self::SIZE, buf.len()));
        Ok(BptreeEntry {
            bp: BlkPtr::decode(buf, e)?,
            birth_txg: Txg(w(0)?),
            bookmark: Position::from_words([w(1)?, w(2)?, w(3)?, w(4)?]),
        })
    }

    /// Encodes an entry.
    #[must_use]
    pub fn encode(&self, e: Endian) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        let words = self.bp.words.into_iter().chain([self.birth_txg.0]).chain(self.bookmark.to_words());
        out.as_chunks_mut::<8>().0.iter_mut().zip(words).for_each(|(chunk, word)| *chunk = e.put_u64(word));
        out
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_version_of_the_bonus_decodes() {
        let all: Vec<u8> = (1..=7u64).flat_map(u64::to_be_bytes).collect();
        for (len, comp, subobjs, freed) in [(16, 0, 0, 0), (32, 3, 0, 0), (48, 3, 5, 0), (56, 3, 5, 7)] {
            let p = BpobjPhys::decode(&all[..len], Endian::Big).unwrap();
            assert_eq!((p.num_blkptrs, p.comp, p.subobjs, p.num_freed), (1, comp, ObjectId(subobjs), freed));
            assert_eq!(p.encode(Endian::Big, len), all[..len]);
        }
        assert!(BpobjPhys::decode(&all[..8], Endian::Big).is_err());
        assert!(BptreeEntry::decode(&all, Endian::Big).is_err());
    }

    #[test]
    fn trees_round_trip() {
        let tree = BptreePhys { begin: 1, end: 3, bytes: 4096, comp: 2048, uncomp: 8192 };
        let mut bp = BlkPtr::HOLE;
        (bp.words[0], bp.words[15]) = (7, 9);
        let entry = BptreeEntry { bp, birth_txg: Txg(5), bookmark: Position::from_words([u64::MAX, 2, 0, 77]) };
        for e in [Endian::Little, Endian::Big] {
            assert_eq!(BptreePhys::decode(&tree.encode(e), e).unwrap(), tree);
            assert_eq!(BptreeEntry::decode(&entry.encode(e), e).unwrap(), entry);
        }
    }
}
