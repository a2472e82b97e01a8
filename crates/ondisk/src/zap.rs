//! ZAP blocks (docs/format.md §7; OpenZFS: `mzap_phys_t`, `zap_phys_t`, `zap_leaf_phys_t`).
//!
//! A micro ZAP is one block of fixed entries. A fat ZAP is a header block, a table of pointers (second half of the header, or separate
//! blocks) indexed by the top bits of a key's hash, and leaves. A leaf is a small heap: a hash table of chains of *entry* chunks, each with
//! a chain of *array* chunks for its name and one for its value. Integers of names and values are always big-endian; everything else is in
//! the writer's byte order. The views here borrow the block and decode on demand; every chain is bounded by the number of chunks.

use base::{Endian, bytes};

use crate::Error;

/// First word of a leaf (OpenZFS: `ZBT_LEAF`).
pub const ZBT_LEAF: u64 = 1 << 63;
/// First word of a fat ZAP's header (OpenZFS: `ZBT_HEADER`).
pub const ZBT_HEADER: u64 = (1 << 63) + 1;
/// First word of a micro ZAP (OpenZFS: `ZBT_MICRO`).
pub const ZBT_MICRO: u64 = (1 << 63) + 3;
/// Second word of a fat ZAP's header.
pub const ZAP_MAGIC: u64 = 0x2_F52A_B2AB;
/// Magic number of a leaf.
pub const ZAP_LEAF_MAGIC: u32 = 0x02AB_1EAF;
/// Size of a micro ZAP's header and of each of its entries.
pub const MZAP_ENT_LEN: usize = 64;
/// Longest name in a micro ZAP, including its NUL.
pub const MZAP_NAME_LEN: usize = MZAP_ENT_LEN - 8 - 4 - 2;
/// End of a chain of chunks.
pub const CHAIN_END: u16 = 0xffff;
/// Size of a chunk.
pub const LEAF_CHUNK_SIZE: usize = 24;
/// Bytes of a name or value that one array chunk holds.
pub const LEAF_ARRAY_BYTES: usize = LEAF_CHUNK_SIZE - 3;

pub(crate) const LEAF_HEADER: usize = 2 * LEAF_CHUNK_SIZE;
pub(crate) const CHUNK_ENTRY: u8 = 252;
pub(crate) const CHUNK_ARRAY: u8 = 251;

/// A micro ZAP: a view of its block.
#[derive(Clone, Copy)]
pub struct MicroZap<'a> {
    /// Stirred into hashes.
    pub salt: u64,
    /// How names are normalised before they are hashed (U8_TEXTPREP flags).
    pub normflags: u64,
    entries: &'a [[u8; MZAP_ENT_LEN]],
    endian: Endian,
}

/// An entry of a micro ZAP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MicroEntry<'a> {
    /// The value.
    pub value: u64,
    /// Tells entries of equal hash apart.
    pub cd: u32,
    /// The name, without NUL; empty in a free entry.
    pub name: &'a [u8],
}

impl<'a> MicroZap<'a> {
    /// Looks at a block.
    ///
    /// # Errors
    /// [`Error::Truncated`], or [`Error::BadMagic`] if this is no micro ZAP.
    pub fn parse(block: &'a [u8], endian: Endian) -> Result<Self, Error> {
        let what = "micro ZAP";
        let word = |off| bytes::u64(block, off, endian).ok_or(Error::short(what, MZAP_ENT_LEN, block.len()));
        match word(0)? {
            ZBT_MICRO => {}
            found => return Err(Error::BadMagic { what, found }),
        }
        let entries = block.as_chunks().0.get(1..).unwrap_or(&[]);
        Ok(MicroZap { salt: word(8)?, normflags: word(16)?, entries, endian })
    }

    /// Number of entry slots.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Slot `n`, free or not; `None` beyond the last.
    #[must_use]
    pub fn entry(&self, n: usize) -> Option<MicroEntry<'a>> {
        self.entries.get(n).map(|raw| MicroEntry {
            value: bytes::u64(raw, 0, self.endian).unwrap_or(0),
            cd: bytes::u32(raw, 8, self.endian).unwrap_or(0),
            name: bytes::until_nul(&raw[14..]),
        })
    }
}

/// The table of a fat ZAP that maps hashes to leaves (OpenZFS: `zap_table_phys_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PointerTable {
    /// First block of the table; 0 if it is the second half of the header.
    pub blk: u64,
    /// Number of its blocks; 0 if it is the second half of the header.
    pub numblks: u64,
    /// log2 of the number of pointers.
    pub shift: u64,
    /// First block of the larger table that is being built, or 0.
    pub nextblk: u64,
    /// Number of blocks already copied to it.
    pub blks_copied: u64,
}

/// The header of a fat ZAP (OpenZFS: `zap_phys_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FatHeader {
    /// The pointer table.
    pub ptrtbl: PointerTable,
    /// The next unused block.
    pub freeblk: u64,
    /// Number of leaves.
    pub num_leafs: u64,
    /// Number of entries.
    pub num_entries: u64,
    /// Stirred into hashes.
    pub salt: u64,
    /// How names are normalised before they are hashed.
    pub normflags: u64,
    /// See the `FLAG_` constants.
    pub flags: u64,
    /// Size of its block, and so of all blocks of the ZAP.
    pub block_size: usize,
}

impl FatHeader {
    /// Hashes have 48 bits, not 28 (OpenZFS: `ZAP_FLAG_HASH64`).
    pub const FLAG_HASH64: u64 = 1;
    /// Keys are 64-bit words, not names (OpenZFS: `ZAP_FLAG_UINT64_KEY`).
    pub const FLAG_UINT64_KEY: u64 = 2;
    /// The first word of a key is its hash (OpenZFS: `ZAP_FLAG_PRE_HASHED_KEY`).
    pub const FLAG_PRE_HASHED_KEY: u64 = 4;

    /// Decodes block 0 of a fat ZAP.
    ///
    /// # Errors
    /// [`Error::Truncated`]; [`Error::BadMagic`]; [`Error::Invalid`] for a block size that is not a power of two, or a pointer table
    /// in the header that does not fit there.
    pub fn decode(block: &[u8], endian: Endian) -> Result<Self, Error> {
        let what = "ZAP header";
        let word = |n: usize| bytes::u64(block, n * 8, endian).ok_or(Error::short(what, 128, block.len()));
        for (n, right) in [(0, ZBT_HEADER), (1, ZAP_MAGIC)] {
            let found = word(n)?;
            if found != right {
                return Err(Error::BadMagic { what, found });
            }
        }
        if !block.len().is_power_of_two() || block.len() < 512 {
            return Err(Error::Invalid { what, field: "block size", value: block.len() as u64 });
        }
        let ptrtbl = PointerTable {
            blk: word(2)?,
            numblks: word(3)?,
            shift: word(4)?,
            nextblk: word(5)?,
            blks_copied: word(6)?,
        };
        let header = FatHeader {
            ptrtbl,
            freeblk: word(7)?,
            num_leafs: word(8)?,
            num_entries: word(9)?,
            salt: word(10)?,
            normflags: word(11)?,
            flags: word(12)?,
            block_size: block.len(),
        };
        if ptrtbl.shift > header.max_shift().into() {
            return Err(Error::Invalid { what, field: "pointer table shift", value: ptrtbl.shift });
        }
        Ok(header)
    }

    /// log2 of the block size.
    #[must_use]
    pub fn block_shift(&self) -> u32 {
        self.block_size.trailing_zeros()
    }

    fn max_shift(&self) -> u32 {
        match self.ptrtbl.numblks {
            0 => self.block_shift().saturating_sub(4),
            n => (self.block_shift().saturating_sub(3) + n.ilog2()).min(63),
        }
    }

    /// Number of significant bits of a hash: 28 or 48.
    #[must_use]
    pub const fn hash_bits(&self) -> u32 {
        if self.flags & Self::FLAG_HASH64 != 0 { 48 } else { 28 }
    }

    /// The index in the pointer table for a hash: its top bits.
    #[must_use]
    pub fn index(&self, hash: u64) -> u64 {
        hash.checked_shr(64u32.saturating_sub(self.ptrtbl.shift as u32)).unwrap_or(0)
    }
}

/// The header of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafHeader {
    /// The top bits common to the hashes of all its entries.
    pub prefix: u64,
    /// Number of those bits.
    pub prefix_len: u16,
    /// Free chunks.
    pub nfree: u16,
    /// Entries.
    pub nentries: u16,
    /// First free chunk.
    pub freelist: u16,
    /// Bit 0: chains are sorted by collision differentiator.
    pub flags: u8,
}

/// A leaf of a fat ZAP: a view of its block.
#[derive(Clone, Copy)]
pub struct Leaf<'a> {
    /// Its header.
    pub header: LeafHeader,
    hash: &'a [[u8; 2]],
    chunks: &'a [[u8; LEAF_CHUNK_SIZE]],
    endian: Endian,
}

/// An entry of a leaf: the positions of its name and value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafEntry {
    /// Size of the value's integers: 1, 2, 4 or 8 bytes.
    pub value_intlen: u8,
    /// The next entry of the chain, or [`CHAIN_END`].
    pub next: u16,
    /// First chunk of the name.
    pub name_chunk: u16,
    /// Its length in integers: bytes with the NUL, or 64-bit words.
    pub name_numints: u16,
    /// First chunk of the value.
    pub value_chunk: u16,
    /// Its length in integers.
    pub value_numints: u16,
    /// Tells entries of equal hash apart.
    pub cd: u32,
    /// The hash of the key.
    pub hash: u64,
}

impl LeafEntry {
    /// Bytes of the value.
    #[must_use]
    pub fn value_len(&self) -> usize {
        usize::from(self.value_intlen) * usize::from(self.value_numints)
    }
}

impl<'a> Leaf<'a> {
    /// Looks at a block.
    ///
    /// # Errors
    /// [`Error::Truncated`] below 512 bytes; [`Error::BadMagic`]; [`Error::Invalid`] for a block size that is not a power of two or
    /// a prefix length beyond 64.
    pub fn parse(block: &'a [u8], endian: Endian) -> Result<Self, Error> {
        let what = "ZAP leaf";
        if block.len() < 512 {
            return Err(Error::short(what, 512, block.len()));
        }
        if !block.len().is_power_of_two() {
            return Err(Error::Invalid { what, field: "block size", value: block.len() as u64 });
        }
        let half = |off| bytes::u16(block, off, endian).unwrap_or(0);
        match bytes::u64(block, 0, endian) {
            Some(ZBT_LEAF) => {}
            found => return Err(Error::BadMagic { what, found: found.unwrap_or(0) }),
        }
        match bytes::u32(block, 24, endian) {
            Some(ZAP_LEAF_MAGIC) => {}
            found => return Err(Error::BadMagic { what, found: found.unwrap_or(0).into() }),
        }
        let header = LeafHeader {
            prefix: bytes::u64(block, 16, endian).unwrap_or(0),
            nfree: half(28),
            nentries: half(30),
            prefix_len: half(32),
            freelist: half(34),
            flags: bytes::u8(block, 36).unwrap_or(0),
        };
        if header.prefix_len > 64 {
            return Err(Error::Invalid { what, field: "prefix length", value: header.prefix_len.into() });
        }
        let (hash, chunks) = block.get(LEAF_HEADER..).unwrap_or(&[]).split_at(block.len() / 16);
        Ok(Leaf { header, hash: hash.as_chunks().0, chunks: chunks.as_chunks().0, endian })
    }

    /// Number of chains.
    #[must_use]
    pub fn hash_entries(&self) -> usize {
        self.hash.len()
    }

    /// Number of chunks.
    #[must_use]
    pub fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// The chain that a hash belongs to: the bits just below the prefix.
    #[must_use]
    pub fn chain_of(&self, hash: u64) -> usize {
        let below = hash.checked_shl(self.header.prefix_len.into()).unwrap_or(0);
        let shift = self.hash.len().trailing_zeros();
        below.checked_shr(64 - shift).unwrap_or(0) as usize
    }

    /// True if a hash belongs in this leaf.
    #[must_use]
    pub fn holds(&self, hash: u64) -> bool {
        hash.checked_shr(64 - u32::from(self.header.prefix_len)).unwrap_or(0) == self.header.prefix
    }

    /// The first hash after this leaf's range; `None` if it is the last leaf.
    #[must_use]
    pub fn behind(&self) -> Option<u64> {
        let below = 64 - u32::from(self.header.prefix_len);
        let span = 1u64.checked_shl(below)?;
        self.header.prefix.checked_shl(below)?.checked_add(span)
    }

    /// The entries of chain `n`, with their chunk numbers. A chain that has more entries than there are chunks, or leads to a chunk that is
    /// not an entry, ends with an error.
    pub fn chain(&self, n: usize) -> impl Iterator<Item = Result<(u16, LeafEntry), Error>> + use<'a> {
        let leaf = *self;
        let mut next = leaf.hash.get(n).map_or(CHAIN_END, |raw| leaf.endian.u16(*raw));
        let mut left = leaf.chunks.len();
        std::iter::from_fn(move || {
            let chunk = next;
            if chunk == CHAIN_END {
                return None;
            }
            next = CHAIN_END;
            if left == 0 {
                return Some(Err(Error::Invalid { what: "ZAP leaf", field: "chain of entries", value: chunk.into() }));
            }
            left -= 1;
            Some(leaf.entry(chunk).map(|entry| {
                next = entry.next;
                (chunk, entry)
            }))
        })
    }

    /// The entry in chunk `n`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such chunk, it is not an entry, or its integers have an impossible size.
    pub fn entry(&self, n: u16) -> Result<LeafEntry, Error> {
        let bad = |field, value| Error::Invalid { what: "ZAP leaf", field, value };
        let raw = self.chunks.get(usize::from(n)).ok_or(bad("entry chunk", n.into()))?;
        if raw[0] != CHUNK_ENTRY {
            return Err(bad("type of an entry chunk", raw[0].into()));
        }
        let half = |off| bytes::u16(raw, off, self.endian).unwrap_or(0);
        let entry = LeafEntry {
            value_intlen: raw[1],
            next: half(2),
            name_chunk: half(4),
            name_numints: half(6),
            value_chunk: half(8),
            value_numints: half(10),
            cd: bytes::u32(raw, 12, self.endian).unwrap_or(0),
            hash: bytes::u64(raw, 16, self.endian).unwrap_or(0),
        };
        match entry.value_intlen {
            1 | 2 | 4 | 8 => Ok(entry),
            n => Err(bad("integer size of a value", n.into())),
        }
    }

    /// The pieces of an array of `len` bytes that begins in chunk `first`. If the chain is too short, it ends with an error.
    fn pieces(&self, first: u16, len: usize) -> impl Iterator<Item = Result<&'a [u8], Error>> + use<'a> {
        let (chunks, endian) = (self.chunks, self.endian);
        let (mut next, mut left) = (first, len);
        // every piece but the last is full, so the length bounds the chain
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let chunk = chunks
                .get(usize::from(next))
                .filter(|raw| raw[0] == CHUNK_ARRAY && left <= chunks.len() * LEAF_ARRAY_BYTES);
            let Some(raw) = chunk else {
                left = 0;
                return Some(Err(Error::Invalid { what: "ZAP leaf", field: "array chunk", value: next.into() }));
            };
            let (piece, link) = (&raw[1..=LEAF_ARRAY_BYTES], &raw[LEAF_ARRAY_BYTES + 1..]);
            next = bytes::u16(link, 0, endian).unwrap_or(CHAIN_END);
            let take = left.min(LEAF_ARRAY_BYTES);
            left -= take;
            Some(Ok(&piece[..take]))
        })
    }

    /// The array of `len` bytes that begins in chunk `first`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the chain is shorter, or leads to a chunk that is not an array.
    pub fn array(&self, first: u16, len: usize) -> Result<Vec<u8>, Error> {
        let mut out = Vec::with_capacity(len.min(self.chunks.len() * LEAF_ARRAY_BYTES));
        for piece in self.pieces(first, len) {
            out.extend_from_slice(piece?);
        }
        Ok(out)
    }

    /// The first integer of an entry's value, 0 if it has none.
    ///
    /// # Errors
    /// As [`Leaf::array`].
    pub fn first_int(&self, entry: &LeafEntry) -> Result<u64, Error> {
        let Some(piece) = self.pieces(entry.value_chunk, entry.value_len()).next() else { return Ok(0) };
        let bytes = piece?.iter().take(entry.value_intlen.into());
        Ok(bytes.fold(0, |int, byte| int << 8 | u64::from(*byte)))
    }

    /// True if the array that begins in chunk `first` equals `expected`; false if it is broken.
    #[must_use]
    pub fn array_is(&self, first: u16, mut expected: &[u8]) -> bool {
        for piece in self.pieces(first, expected.len()) {
            let Some(rest) = piece.ok().and_then(|piece| expected.strip_prefix(piece)) else { return false };
            expected = rest;
        }
        expected.is_empty()
    }

    /// The name of an entry: bytes without the NUL, or with `word_keys` the big-endian words of a key.
    ///
    /// # Errors
    /// As [`Leaf::array`].
    pub fn name(&self, entry: &LeafEntry, word_keys: bool) -> Result<Vec<u8>, Error> {
        let mut name = Vec::new();
        self.name_into(entry, word_keys, &mut name)?;
        Ok(name)
    }

    /// Like [`Leaf::name`], replacing the contents of `name`.
    ///
    /// # Errors
    /// As [`Leaf::array`].
    pub fn name_into(&self, entry: &LeafEntry, word_keys: bool, name: &mut Vec<u8>) -> Result<(), Error> {
        name.clear();
        let ints = usize::from(entry.name_numints);
        for piece in self.pieces(entry.name_chunk, if word_keys { ints * 8 } else { ints }) {
            name.extend_from_slice(piece?);
        }
        if !word_keys {
            name.truncate(bytes::until_nul(name).len());
        }
        Ok(())
    }

    /// The name of an entry as stored, with its NUL; with `word_keys`, as [`Leaf::name`].
    ///
    /// # Errors
    /// As [`Leaf::array`].
    pub fn name_bytes(&self, entry: &LeafEntry, word_keys: bool) -> Result<Vec<u8>, Error> {
        let ints = usize::from(entry.name_numints);
        self.array(entry.name_chunk, if word_keys { ints * 8 } else { ints })
    }

    /// The value of an entry: big-endian integers of [`LeafEntry::value_intlen`] bytes.
    ///
    /// # Errors
    /// As [`Leaf::array`].
    pub fn value(&self, entry: &LeafEntry) -> Result<Vec<u8>, Error> {
        self.array(entry.value_chunk, entry.value_len())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn leaf_block(e: Endian) -> Vec<u8> {
        let mut block = vec![0u8; 512];
        block[..8].copy_from_slice(&e.put_u64(ZBT_LEAF));
        block[24..28].copy_from_slice(&e.put_u32(ZAP_LEAF_MAGIC));
        block[48..80].fill(0xff);
        block
    }

    fn put_entry(block: &mut [u8], e: Endian, chunk: usize, next: u16, hash: u64) {
        let at = 80 + chunk * LEAF_CHUNK_SIZE;
        block[at] = CHUNK_ENTRY;
        block[at + 1] = 8;
        for (off, v) in [(2, next), (4, 1), (6, 3), (8, 2), (10, 1)] {
            block[at + off..at + off + 2].copy_from_slice(&e.put_u16(v));
        }
        block[at + 16..at + 24].copy_from_slice(&e.put_u64(hash));
    }

    #[test]
    fn a_leaf_is_read_in_both_orders() {
        for e in [Endian::Little, Endian::Big] {
            let mut block = leaf_block(e);
            let hash = 0x5000_0000_0000_0000;
            block[48 + 5 * 2..48 + 6 * 2].copy_from_slice(&e.put_u16(0));
            put_entry(&mut block, e, 0, CHAIN_END, hash);
            for (chunk, text) in [(1, &b"ab\0"[..]), (2, &7u64.to_be_bytes()[..])] {
                let at = 80 + chunk * LEAF_CHUNK_SIZE;
                block[at] = CHUNK_ARRAY;
                block[at + 1..at + 1 + text.len()].copy_from_slice(text);
                block[at + 22..at + 24].copy_from_slice(&e.put_u16(CHAIN_END));
            }
            let leaf = Leaf::parse(&block, e).unwrap();
            assert_eq!((leaf.hash_entries(), leaf.chunk_count()), (16, 18));
            let chain: Vec<_> = leaf.chain(leaf.chain_of(hash)).collect::<Result<_, _>>().unwrap();
            let entry = chain[0].1;
            assert_eq!(leaf.name(&entry, false).unwrap(), b"ab");
            assert_eq!(leaf.value(&entry).unwrap(), 7u64.to_be_bytes());
            assert!(leaf.array_is(1, b"ab\0") && !leaf.array_is(1, b"ax\0") && !leaf.array_is(0, b"ab\0"));
        }
    }

    #[test]
    fn a_chain_that_bites_its_tail_ends_with_an_error() {
        let e = Endian::Little;
        let mut block = leaf_block(e);
        block[48..50].copy_from_slice(&e.put_u16(0));
        put_entry(&mut block, e, 0, 0, 0);
        let leaf = Leaf::parse(&block, e).unwrap();
        assert!(leaf.chain(0).last().unwrap().is_err());
        assert!(leaf.array(0, 100).is_err());
        assert!(leaf.array(1, 1 << 20).is_err());
    }

    #[test]
    fn a_pointer_table_has_room_where_it_stands() {
        let e = Endian::Little;
        let mut block = vec![0u8; 1024];
        for (n, v) in [(0, ZBT_HEADER), (1, ZAP_MAGIC), (4, 6)] {
            block[n * 8..n * 8 + 8].copy_from_slice(&e.put_u64(v));
        }
        assert_eq!(FatHeader::decode(&block, e).unwrap().index(u64::MAX), 63);
        block[32] = 7;
        assert!(FatHeader::decode(&block, e).is_err());
        block[24] = 1;
        assert_eq!(FatHeader::decode(&block, e).unwrap().index(1 << 63), 64);
    }
}
