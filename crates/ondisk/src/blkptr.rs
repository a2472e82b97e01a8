//! The 128-byte block pointer (OpenZFS: `blkptr_t`, `dva_t`).

use std::fmt;

use base::bytes::{self, bits, with_bits};
use base::{Endian, Txg};

use crate::{Error, ObjectType, SECTOR_SHIFT};

/// Size of a block pointer on disk.
pub const BLKPTR_SIZE: usize = 128;

/// The address of one copy of a block (OpenZFS: `dva_t`): two words, as stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Dva {
    /// vdev 24@32, grid 8@24, asize 24@0 in sectors.
    pub word0: u64,
    /// gang 1@63, offset 63@0 in sectors.
    pub word1: u64,
}

impl Dva {
    /// A data address on top-level vdev `vdev`; `offset` and `asize` in bytes, multiples of 512.
    #[must_use]
    pub const fn new(vdev: u64, offset: u64, asize: u64, gang: bool) -> Self {
        let word0 = with_bits(with_bits(0, 32, 24, vdev), 0, 24, asize >> SECTOR_SHIFT);
        Dva { word0, word1: with_bits(offset >> SECTOR_SHIFT, 63, 1, gang as u64) }
    }

    /// The id of the top-level vdev.
    #[must_use]
    pub const fn vdev(&self) -> u64 {
        bits(self.word0, 32, 24)
    }

    /// The offset on that vdev in bytes, counted from the end of the front labels.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        bits(self.word1, 0, 63).wrapping_shl(SECTOR_SHIFT)
    }

    /// The bytes allocated, including parity and padding.
    #[must_use]
    pub const fn asize(&self) -> u64 {
        bits(self.word0, 0, 24) << SECTOR_SHIFT
    }

    /// True if the address is that of a gang header, not of the data.
    #[must_use]
    pub const fn is_gang(&self) -> bool {
        bits(self.word1, 63, 1) != 0
    }

    /// True if this slot is unused.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.word0 == 0 && self.word1 == 0
    }
}

impl fmt::Debug for Dva {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gang = if self.is_gang() { "G" } else { "" };
        write!(f, "<{}:{:x}:{:x}{gang}>", self.vdev(), self.offset(), self.asize())
    }
}

impl fmt::Display for Dva {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:x}:{:x}", self.vdev(), self.offset(), self.asize())
    }
}

/// The kind of payload in an embedded block pointer (OpenZFS: `bp_embedded_type_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EmbeddedType {
    /// The block's data, possibly compressed.
    Data,
    /// Reserved (formerly used by Delphix).
    Reserved,
    /// The data was omitted by a redacted send; it must not be read.
    Redacted,
    /// A number that no OpenZFS writes.
    Unknown(u8),
}

/// A block pointer: the sixteen words, in native order (OpenZFS: `blkptr_t`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BlkPtr {
    /// Words 0–5 DVAs, 6 properties, 7 properties 2, 8 pad, 9 physical birth, 10 logical birth, 11 fill, 12–15 checksum.
    pub words: [u64; 16],
}

const PROP: usize = 6;
const BIRTH_PHYSICAL: usize = 9;
const BIRTH_LOGICAL: usize = 10;
const FILL: usize = 11;

impl BlkPtr {
    /// The empty pointer: a hole without a birth.
    pub const HOLE: BlkPtr = BlkPtr { words: [0; 16] };

    /// Decodes the pointer at the front of `buf`.
    ///
    /// # Errors
    /// [`Error::Truncated`] if `buf` is shorter than 128 bytes. The contents are not checked: see [`BlkPtr::validate`].
    pub fn decode(buf: &[u8], endian: Endian) -> Result<Self, Error> {
        let raw: [u8; BLKPTR_SIZE] =
            bytes::array(buf, 0).ok_or(Error::short("block pointer", BLKPTR_SIZE, buf.len()))?;
        Ok(Self::from_bytes(&raw, endian))
    }

    /// Decodes a pointer from an array of the right size.
    #[inline]
    #[must_use]
    pub fn from_bytes(raw: &[u8; BLKPTR_SIZE], endian: Endian) -> Self {
        let mut words = [0; 16];
        for (word, chunk) in words.iter_mut().zip(raw.as_chunks::<8>().0) {
            *word = endian.u64(*chunk);
        }
        BlkPtr { words }
    }

    /// Encodes the pointer.
    #[inline]
    #[must_use]
    pub fn encode(&self, endian: Endian) -> [u8; BLKPTR_SIZE] {
        let mut raw = [0; BLKPTR_SIZE];
        for (chunk, word) in raw.as_chunks_mut::<8>().0.iter_mut().zip(self.words) {
            *chunk = endian.put_u64(word);
        }
        raw
    }

    /// Decodes the pointers of an indirect block; an incomplete pointer at the end is ignored.
    ///
    /// In the machine's own byte order this is a copy, so checking for holes first would save nothing.
    #[must_use]
    pub fn decode_all(raw: &[u8], endian: Endian) -> Vec<BlkPtr> {
        raw.as_chunks::<BLKPTR_SIZE>().0.iter().map(|raw| BlkPtr::from_bytes(raw, endian)).collect()
    }

    /// Encodes the pointers of an indirect block.
    #[must_use]
    pub fn encode_all(pointers: &[BlkPtr], endian: Endian) -> Vec<u8> {
        let mut raw = Vec::with_capacity(pointers.len() * BLKPTR_SIZE);
        pointers.iter().for_each(|bp| raw.extend_from_slice(&bp.encode(endian)));
        raw
    }

    const fn prop(&self, low: u32, width: u32) -> u64 {
        bits(self.words[PROP], low, width)
    }

    /// DVA `n`; one beyond the third is empty.
    #[must_use]
    pub fn dva(&self, n: usize) -> Dva {
        match n {
            0..=2 => Dva { word0: self.words[2 * n], word1: self.words[2 * n + 1] },
            _ => Dva::default(),
        }
    }

    /// The DVAs that address copies of the data: neither empty slots, nor the salt and IV of an encrypted block.
    pub fn dvas(&self) -> impl Iterator<Item = Dva> + '_ {
        let slots = match (self.is_embedded(), self.is_encrypted()) {
            (true, _) => 0,
            (_, true) => 2,
            _ => 3,
        };
        (0..slots).map(|n| self.dva(n)).filter(|d| !d.is_empty())
    }

    /// True if the data is in the pointer itself.
    #[must_use]
    pub const fn is_embedded(&self) -> bool {
        self.prop(39, 1) != 0
    }

    /// True if there is no data: the block reads as zeros.
    #[must_use]
    pub const fn is_hole(&self) -> bool {
        !self.is_embedded() && self.words[0] == 0 && self.words[1] == 0
    }

    /// True if the first copy is a gang block.
    #[must_use]
    pub fn is_gang(&self) -> bool {
        !self.is_embedded() && self.dva(0).is_gang()
    }

    /// The kind of embedded payload, if embedded.
    #[must_use]
    pub const fn embedded_type(&self) -> Option<EmbeddedType> {
        if !self.is_embedded() {
            return None;
        }
        Some(match self.prop(40, 8) {
            0 => EmbeddedType::Data,
            1 => EmbeddedType::Reserved,
            2 => EmbeddedType::Redacted,
            n => EmbeddedType::Unknown(n as u8),
        })
    }

    /// True if a redacted send omitted this block.
    #[must_use]
    pub fn is_redacted(&self) -> bool {
        self.embedded_type() == Some(EmbeddedType::Redacted)
    }

    /// The logical size of the block, as its object sees it.
    #[must_use]
    pub const fn lsize(&self) -> u64 {
        if self.is_embedded() {
            self.prop(0, 25) + 1
        } else if self.is_hole() && self.words[PROP] == 0 {
            0
        } else {
            (self.prop(0, 16) + 1) << SECTOR_SHIFT
        }
    }

    /// The stored size of the block: compressed, before parity. For an embedded block, the payload's length.
    #[must_use]
    pub const fn psize(&self) -> u64 {
        if self.is_embedded() {
            self.prop(25, 7) + 1
        } else if self.is_hole() {
            0
        } else {
            (self.prop(16, 16) + 1) << SECTOR_SHIFT
        }
    }

    /// Bytes allocated for all copies.
    #[must_use]
    pub fn asize(&self) -> u64 {
        self.dvas().map(|d| d.asize()).sum()
    }

    /// The number of the compression algorithm (docs/format.md §4).
    #[must_use]
    pub const fn compression(&self) -> u8 {
        self.prop(32, 7) as u8
    }

    /// The number of the checksum algorithm (docs/format.md §3); 2, off, for an embedded block.
    #[must_use]
    pub const fn checksum(&self) -> u8 {
        if self.is_embedded() { 2 } else { self.prop(40, 8) as u8 }
    }

    /// The type of the object that the block belongs to.
    #[must_use]
    pub const fn object_type(&self) -> ObjectType {
        ObjectType(self.prop(48, 8) as u8)
    }

    /// 0 for data, n for a block of pointers to blocks of level n−1.
    #[must_use]
    pub const fn level(&self) -> u8 {
        self.prop(56, 5) as u8
    }

    /// Bit 61: encrypted, authenticated, or (for an indirect block) carrying a MAC.
    #[must_use]
    pub const fn uses_crypt(&self) -> bool {
        self.prop(61, 1) != 0
    }

    /// True if the data is encrypted (salt and IV in place of the third DVA).
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && self.object_type().is_encrypted()
    }

    /// True if the data is clear, with a MAC (object types that are never encrypted).
    #[must_use]
    pub const fn is_authenticated(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && !self.object_type().is_encrypted()
    }

    /// True if this is an indirect block of an encrypted dataset, with a MAC over its children's MACs.
    #[must_use]
    pub const fn has_indirect_mac(&self) -> bool {
        self.uses_crypt() && self.level() > 0
    }

    /// True if the block is in the dedup table.
    #[must_use]
    pub const fn is_dedup(&self) -> bool {
        self.prop(62, 1) != 0
    }

    /// The byte order in which the block pointed to was written.
    #[must_use]
    pub const fn endian(&self) -> Endian {
        if self.prop(63, 1) != 0 { Endian::Little } else { Endian::Big }
    }

    /// True if the block was moved by `zfs rewrite -P` (feature `physical_rewrite`).
    #[must_use]
    pub const fn is_rewritten(&self) -> bool {
        // in an embedded block the word is payload
        !self.is_embedded() && bits(self.words[7], 63, 1) != 0
    }

    /// The txg in which the block became part of the dataset.
    #[must_use]
    pub const fn birth_logical(&self) -> Txg {
        Txg(self.words[BIRTH_LOGICAL])
    }

    /// The txg in which the block was written at its present address.
    #[must_use]
    pub const fn birth_physical(&self) -> Txg {
        if self.is_embedded() {
            return Txg(0);
        }
        match self.words[BIRTH_PHYSICAL] {
            0 => self.birth_logical(),
            txg => Txg(txg),
        }
    }

    /// The birth that decides whether a block was written after a given txg (OpenZFS: `BP_GET_BIRTH`).
    #[must_use]
    pub const fn birth(&self) -> Txg {
        if self.is_rewritten() { self.birth_physical() } else { self.birth_logical() }
    }

    /// The number of data blocks below (dnodes, for the meta-dnode's tree).
    #[must_use]
    pub const fn fill(&self) -> u64 {
        if self.is_embedded() {
            1
        } else if self.is_encrypted() {
            bits(self.words[FILL], 0, 32)
        } else {
            self.words[FILL]
        }
    }

    /// The four checksum words.
    #[must_use]
    pub const fn cksum(&self) -> [u64; 4] {
        [self.words[12], self.words[13], self.words[14], self.words[15]]
    }

    /// The salt of an encrypted block's key: its eight bytes in the writer's memory, read low byte first.
    #[must_use]
    pub const fn salt(&self) -> u64 {
        u64::from_le_bytes(self.endian().put_u64(self.words[4]))
    }

    /// The initialisation vector of an encrypted block: word 5, then the upper half of the fill, as in the writer's memory.
    #[must_use]
    pub fn iv(&self) -> [u8; 12] {
        let mut iv = [0; 12];
        iv[..8].copy_from_slice(&self.endian().put_u64(self.words[5]));
        iv[8..].copy_from_slice(&self.endian().put_u32((self.words[FILL] >> 32) as u32));
        iv
    }

    /// The MAC of a block that [uses crypt](BlkPtr::uses_crypt): checksum words 2 and 3, as in the writer's memory.
    #[must_use]
    pub fn mac(&self) -> [u8; 16] {
        let mut mac = [0; 16];
        mac[..8].copy_from_slice(&self.endian().put_u64(self.words[14]));
        mac[8..].copy_from_slice(&self.endian().put_u64(self.words[15]));
        mac
    }

    /// The payload of an embedded block: the first [`psize`](BlkPtr::psize) of these 112 bytes are valid.
    #[must_use]
    pub fn embedded_payload(&self) -> [u8; 112] {
        let mut out = [0; 112];
        let places = (0..16).filter(|n| *n != PROP && *n != BIRTH_LOGICAL);
        for (chunk, n) in out.as_chunks_mut::<8>().0.iter_mut().zip(places) {
            *chunk = self.words[n].to_le_bytes();
        }
        out
    }

    /// Checks the fields that a reader relies on, such as sizes up to 16 MiB. Whether algorithm numbers are known is for the caller to
    /// check.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the first invalid field.
    pub fn validate(&self) -> Result<(), Error> {
        let bad = |field, value| Err(Error::Invalid { what: "block pointer", field, value });
        if self.is_hole() {
            return Ok(());
        }
        if self.is_embedded() {
            return if self.psize() > 112 { bad("embedded size", self.psize()) } else { Ok(()) };
        }
        if self.lsize() > crate::SPA_MAXBLOCKSIZE {
            return bad("logical size", self.lsize());
        }
        if self.psize() > crate::SPA_MAXBLOCKSIZE {
            return bad("physical size", self.psize());
        }
        if self.compression() == 2 && self.psize() != self.lsize() && self.level() == 0 && !self.uses_crypt() {
            return bad("physical size of an uncompressed block", self.psize());
        }
        Ok(())
    }
}

impl fmt::Debug for BlkPtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_hole() {
            return write!(
                f,
                "HOLE [L{} {:?}] size={:x}L birth={}L",
                self.level(),
                self.object_type(),
                self.lsize(),
                self.birth_logical()
            );
        }
        if self.is_embedded() {
            return write!(
                f,
                "EMBEDDED [L{} {:?}] size={:x}L/{:x}P birth={}L",
                self.level(),
                self.object_type(),
                self.lsize(),
                self.psize(),
                self.birth_logical()
            );
        }
        for (n, dva) in self.dvas().enumerate() {
            write!(f, "DVA[{n}]={dva:?} ")?;
        }
        write!(
            f,
            "[L{} {:?}] size={:x}L/{:x}P birth={}L/{}P fill={}",
            self.level(),
            self.object_type(),
            self.lsize(),
            self.psize(),
            self.birth_logical(),
            self.birth_physical(),
            self.fill()
        )
    }
}

#[cfg(test)]
#[path = "blkptr_tests.rs"]
mod tests;
