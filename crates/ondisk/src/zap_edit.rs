//! Modification of ZAP blocks in place (OpenZFS: `zap_leaf.c`, and the encoders of `zap_fat.c` and `zap_micro.c`).
//!
//! Modified blocks are little-endian. A big-endian block is converted first ([`to_little`]): the first word of headers, leaves and micro
//! ZAPs identifies their byte order. A block of the pointer table has no such word; [`byteswap`](crate::byteswap) converts it, as it does
//! any block before it is modified.

use base::{Endian, bytes};

use crate::Error;
use crate::zap::{
    CHAIN_END, CHUNK_ARRAY, CHUNK_ENTRY, FatHeader, LEAF_ARRAY_BYTES, LEAF_CHUNK_SIZE, LEAF_HEADER, Leaf, LeafEntry,
    MZAP_ENT_LEN, MZAP_NAME_LEN, ZAP_LEAF_MAGIC, ZAP_MAGIC, ZBT_HEADER, ZBT_LEAF, ZBT_MICRO,
};

const E: Endian = Endian::Little;
const CHUNK_FREE: u8 = 253;
const FLAG_CD_SORTED: u8 = 1;
const NFREE: usize = 28;
const NENTRIES: usize = 30;
const PREFIX: usize = 16;
const PREFIX_LEN: usize = 32;
const FREELIST: usize = 34;
const FLAGS: usize = 36;
/// Offset of the link in a free or an array chunk.
const LINK: usize = LEAF_ARRAY_BYTES + 1;

fn put(buf: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = at.checked_add(bytes.len()).and_then(|end| buf.get_mut(at..end)) {
        place.copy_from_slice(bytes);
    }
}

fn swap(buf: &mut [u8], at: usize, width: usize) {
    if let Some(place) = at.checked_add(width).and_then(|end| buf.get_mut(at..end)) {
        place.reverse();
    }
}

/// Swaps every word of a header with its table.
fn swap_words(block: &mut [u8]) {
    block.as_chunks_mut::<8>().0.iter_mut().for_each(|word| word.reverse());
}

/// Converts a block that identifies its own byte order (micro ZAP, header, leaf) to little-endian, in place. Any other block stays
/// unchanged.
pub fn to_little(block: &mut [u8]) {
    match bytes::u64(block, 0, Endian::Big) {
        Some(ZBT_HEADER) => swap_words(block),
        Some(ZBT_MICRO) => {
            for at in [0, 8, 16] {
                swap(block, at, 8);
            }
            for entry in block.chunks_exact_mut(MZAP_ENT_LEN).skip(1) {
                swap(entry, 0, 8);
                swap(entry, 8, 4);
            }
        }
        Some(ZBT_LEAF) => leaf_to_little(block),
        _ => {}
    }
}

fn leaf_to_little(block: &mut [u8]) {
    for (at, width) in [(0, 8), (PREFIX, 8), (24, 4), (NFREE, 2), (NENTRIES, 2), (PREFIX_LEN, 2), (FREELIST, 2)] {
        swap(block, at, width);
    }
    let (hash, chunks) = block.split_at_mut((LEAF_HEADER + block.len() / 16).min(block.len()));
    for link in hash.get_mut(LEAF_HEADER..).unwrap_or_default().as_chunks_mut::<2>().0 {
        link.reverse();
    }
    for chunk in chunks.as_chunks_mut::<LEAF_CHUNK_SIZE>().0 {
        if chunk[0] == CHUNK_ENTRY {
            for (at, width) in [(2, 2), (4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 8)] {
                swap(chunk, at, width);
            }
        } else {
            swap(chunk, LINK, 2);
        }
    }
}

impl FatHeader {
    /// Writes the fields into block 0, little-endian; the rest of the block stays unchanged.
    pub fn encode_into(&self, block: &mut [u8]) {
        let t = &self.ptrtbl;
        let words = [
            ZBT_HEADER,
            ZAP_MAGIC,
            t.blk,
            t.numblks,
            t.shift,
            t.nextblk,
            t.blks_copied,
            self.freeblk,
            self.num_leafs,
            self.num_entries,
            self.salt,
            self.normflags,
            self.flags,
        ];
        for (place, word) in block.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = E.put_u64(word);
        }
    }
}

/// The header of a micro ZAP's block, little-endian.
#[must_use]
pub fn micro_header(salt: u64, normflags: u64) -> [u8; 24] {
    let mut out = [0; 24];
    for (place, word) in out.as_chunks_mut::<8>().0.iter_mut().zip([ZBT_MICRO, salt, normflags]) {
        *place = E.put_u64(word);
    }
    out
}

/// An entry of a micro ZAP, little-endian; `None` if the name does not fit.
#[must_use]
pub fn micro_entry(name: &[u8], value: u64, cd: u32) -> Option<[u8; MZAP_ENT_LEN]> {
    if name.len() >= MZAP_NAME_LEN {
        return None;
    }
    let mut out = [0; MZAP_ENT_LEN];
    put(&mut out, 0, &E.put_u64(value));
    put(&mut out, 8, &E.put_u32(cd));
    put(&mut out, MZAP_ENT_LEN - MZAP_NAME_LEN, name);
    Some(out)
}

/// Sets all entries of a micro ZAP's block, which must be little-endian, to `value`.
pub fn fill_micro(block: &mut [u8], value: u64) {
    let entries = block.as_chunks_mut::<MZAP_ENT_LEN>().0.iter_mut().skip(1);
    entries.filter(|entry| entry[MZAP_ENT_LEN - MZAP_NAME_LEN] != 0).for_each(|entry| put(entry, 0, &E.put_u64(value)));
}

/// A value to be stored: integers of one size, their bytes big-endian.
#[derive(Clone, Copy, Debug)]
pub struct LeafValue<'a> {
    /// Size of an integer: 1, 2, 4 or 8.
    pub int_size: u8,
    /// The integers, big-endian.
    pub bytes: &'a [u8],
}

/// A key to be stored.
#[derive(Clone, Copy, Debug)]
pub struct LeafKey<'a> {
    /// Its hash.
    pub hash: u64,
    /// A name with its NUL, or the words of a key big-endian.
    pub bytes: &'a [u8],
    /// The number of integers in `bytes`.
    pub numints: u16,
}

/// The outcome of storing an entry or a value in a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// It was stored.
    Done,
    /// The leaf is too full; another leaf may have space.
    Full,
    /// It would not fit into an empty leaf.
    TooLarge,
}

/// A leaf that is modified in place. Little-endian.
pub struct LeafMut<'a> {
    block: &'a mut [u8],
}

fn array_chunks(len: usize) -> usize {
    len.div_ceil(LEAF_ARRAY_BYTES)
}

fn bad(field: &'static str, value: u64) -> Error {
    Error::Invalid { what: "ZAP leaf", field, value }
}

impl<'a> LeafMut<'a> {
    /// A new, empty leaf. `sorted`: chains are flagged as ordered by collision differentiator.
    #[must_use]
    pub fn init(block_size: usize, prefix: u64, prefix_len: u16, sorted: bool) -> Vec<u8> {
        let mut block = vec![0; block_size];
        put(&mut block, 0, &E.put_u64(ZBT_LEAF));
        put(&mut block, PREFIX, &E.put_u64(prefix));
        put(&mut block, 24, &E.put_u32(ZAP_LEAF_MAGIC));
        put(&mut block, PREFIX_LEN, &E.put_u16(prefix_len));
        put(&mut block, FLAGS, &[if sorted { FLAG_CD_SORTED } else { 0 }]);
        let (head, chunks) = block.split_at_mut((LEAF_HEADER + block_size / 16).min(block_size));
        head.get_mut(LEAF_HEADER..).unwrap_or_default().fill(0xff);
        let chunks = chunks.as_chunks_mut::<LEAF_CHUNK_SIZE>().0;
        let count = chunks.len();
        for (n, chunk) in chunks.iter_mut().enumerate() {
            chunk[0] = CHUNK_FREE;
            let next = if n + 1 == count { CHAIN_END } else { n as u16 + 1 };
            put(chunk, LINK, &E.put_u16(next));
        }
        put(&mut block, NFREE, &E.put_u16(count as u16));
        block
    }

    /// Begins to modify a block, of either byte order; it is little-endian afterwards.
    ///
    /// # Errors
    /// As [`Leaf::parse`].
    pub fn new(block: &'a mut [u8]) -> Result<LeafMut<'a>, Error> {
        to_little(block);
        Leaf::parse(block, E)?;
        Ok(LeafMut { block })
    }

    /// The leaf as it is now.
    ///
    /// # Errors
    /// None that [`LeafMut::new`] did not return.
    pub fn view(&self) -> Result<Leaf<'_>, Error> {
        Leaf::parse(self.block, E)
    }

    fn half(&self, at: usize) -> u16 {
        bytes::u16(self.block, at, E).unwrap_or(0)
    }

    fn set_half(&mut self, at: usize, value: u16) {
        put(self.block, at, &E.put_u16(value));
    }

    fn chunk_at(&self, n: u16) -> usize {
        LEAF_HEADER + self.block.len() / 16 + usize::from(n) * LEAF_CHUNK_SIZE
    }

    fn capacity(&self) -> usize {
        (self.block.len() - self.block.len() / 16) / LEAF_CHUNK_SIZE - 2
    }

    fn kind(&self, n: u16) -> Option<u8> {
        if usize::from(n) >= self.capacity() { None } else { bytes::u8(self.block, self.chunk_at(n)) }
    }

    fn alloc(&mut self) -> Result<u16, Error> {
        let n = self.half(FREELIST);
        let free = self.half(NFREE);
        if self.kind(n) != Some(CHUNK_FREE) || free == 0 {
            return Err(bad("free chunk", n.into()));
        }
        let next = self.half(self.chunk_at(n) + LINK);
        self.set_half(FREELIST, next);
        self.set_half(NFREE, free - 1);
        Ok(n)
    }

    fn release(&mut self, n: u16) -> Result<(), Error> {
        if self.kind(n).is_none_or(|kind| kind == CHUNK_FREE) {
            return Err(bad("chunk to be freed", n.into()));
        }
        let (at, next) = (self.chunk_at(n), self.half(FREELIST));
        if let Some(chunk) = self.block.get_mut(at..at + LEAF_CHUNK_SIZE) {
            chunk.fill(0); // zeros compress
            chunk[0] = CHUNK_FREE;
        }
        self.set_half(at + LINK, next);
        self.set_half(FREELIST, n);
        self.set_half(NFREE, self.half(NFREE).saturating_add(1));
        Ok(())
    }

    fn put_array(&mut self, bytes: &[u8]) -> Result<u16, Error> {
        let mut next = CHAIN_END;
        // from the last piece to the first, so that each link is known
        for piece in bytes.chunks(LEAF_ARRAY_BYTES).rev() {
            let n = self.alloc()?;
            let at = self.chunk_at(n);
            put(self.block, at, &[CHUNK_ARRAY]);
            put(self.block, at + 1, &[0; LEAF_ARRAY_BYTES]);
            put(self.block, at + 1, piece);
            self.set_half(at + LINK, next);
            next = n;
        }
        Ok(next)
    }

    fn release_array(&mut self, first: u16, len: usize) -> Result<(), Error> {
        let mut n = first;
        for _ in 0..array_chunks(len) {
            if self.kind(n) != Some(CHUNK_ARRAY) {
                return Err(bad("array chunk", n.into()));
            }
            let next = self.half(self.chunk_at(n) + LINK);
            self.release(n)?;
            n = next;
        }
        Ok(())
    }

    /// The entry of this hash for which `is` holds.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a broken chain.
    pub fn find(
        &self,
        hash: u64,
        is: impl Fn(&Leaf<'_>, &LeafEntry) -> bool,
    ) -> Result<Option<(u16, LeafEntry)>, Error> {
        let leaf = self.view()?;
        for found in leaf.chain(leaf.chain_of(hash)) {
            let (chunk, entry) = found?;
            if entry.hash == hash && is(&leaf, &entry) {
                return Ok(Some((chunk, entry)));
            }
        }
        Ok(None)
    }

    /// The lowest collision differentiator that no entry of this hash has.
    fn free_cd(&self, hash: u64) -> Result<u32, Error> {
        let leaf = self.view()?;
        let mut taken = Vec::new();
        for found in leaf.chain(leaf.chain_of(hash)) {
            let (_, entry) = found?;
            if entry.hash == hash {
                taken.push(entry.cd);
            }
        }
        taken.sort_unstable();
        Ok(taken.iter().zip(0..).take_while(|(cd, n)| **cd == *n).count() as u32)
    }

    /// Inserts a new entry. The caller has checked that the key is absent. `cd`: its collision differentiator, if it already has one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the leaf is broken.
    pub fn insert(&mut self, key: &LeafKey<'_>, cd: Option<u32>, value: &LeafValue<'_>) -> Result<Put, Error> {
        let needed = 1 + array_chunks(key.bytes.len()) + array_chunks(value.bytes.len());
        if needed > self.capacity() {
            return Ok(Put::TooLarge);
        }
        if needed > usize::from(self.half(NFREE)) {
            return Ok(Put::Full);
        }
        let cd = match cd {
            Some(cd) => cd,
            None => self.free_cd(key.hash)?,
        };
        let n = self.alloc()?;
        let at = self.chunk_at(n);
        put(self.block, at, &[CHUNK_ENTRY, value.int_size]);
        let name = self.put_array(key.bytes)?;
        let chunk = self.put_array(value.bytes)?;
        let numints = (value.bytes.len() / usize::from(value.int_size.max(1))) as u16;
        for (field, half) in [(2, CHAIN_END), (4, name), (6, key.numints), (8, chunk), (10, numints)] {
            self.set_half(at + field, half);
        }
        put(self.block, at + 12, &E.put_u32(cd));
        put(self.block, at + 16, &E.put_u64(key.hash));
        self.link(n, key.hash, cd)?;
        self.set_half(NENTRIES, self.half(NENTRIES).saturating_add(1));
        Ok(Put::Done)
    }

    /// Inserts entry `n` in its chain: before the first one with a higher collision differentiator.
    fn link(&mut self, n: u16, hash: u64, cd: u32) -> Result<(), Error> {
        let leaf = self.view()?;
        let chain = leaf.chain_of(hash);
        let mut place = LEAF_HEADER + 2 * chain;
        for found in leaf.chain(chain) {
            let (chunk, entry) = found?;
            if entry.cd > cd {
                break;
            }
            place = self.chunk_at(chunk) + 2;
        }
        let next = self.half(place);
        self.set_half(place, n);
        self.set_half(self.chunk_at(n) + 2, next);
        Ok(())
    }

    /// Replaces the value of the entry in chunk `n`. `word_keys`: its name is made of words.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the leaf is broken.
    pub fn set_value(&mut self, n: u16, word_keys: bool, value: &LeafValue<'_>) -> Result<Put, Error> {
        let entry = self.view()?.entry(n)?;
        let (old, new) = (array_chunks(entry.value_len()), array_chunks(value.bytes.len()));
        let name = usize::from(entry.name_numints) * if word_keys { 8 } else { 1 };
        if 1 + array_chunks(name) + new > self.capacity() {
            return Ok(Put::TooLarge);
        }
        if new > old + usize::from(self.half(NFREE)) {
            return Ok(Put::Full);
        }
        self.release_array(entry.value_chunk, entry.value_len())?;
        let chunk = self.put_array(value.bytes)?;
        let at = self.chunk_at(n);
        put(self.block, at + 1, &[value.int_size]);
        self.set_half(at + 8, chunk);
        self.set_half(at + 10, (value.bytes.len() / usize::from(value.int_size.max(1))) as u16);
        Ok(Put::Done)
    }

    /// Removes the entry in chunk `n`. `word_keys`: its name is made of words.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the leaf is broken, or the entry is in no chain.
    pub fn remove(&mut self, n: u16, word_keys: bool) -> Result<(), Error> {
        let leaf = self.view()?;
        let entry = leaf.entry(n)?;
        let nentries = leaf.header.nentries.checked_sub(1).ok_or(bad("number of entries", 0))?;
        let chain = leaf.chain_of(entry.hash);
        let mut place = LEAF_HEADER + 2 * chain;
        let mut found = false;
        for link in leaf.chain(chain) {
            let (chunk, _) = link?;
            if chunk == n {
                found = true;
                break;
            }
            place = self.chunk_at(chunk) + 2;
        }
        if !found {
            return Err(bad("entry outside its chain", n.into()));
        }
        let name_len = usize::from(entry.name_numints) * if word_keys { 8 } else { 1 };
        self.release_array(entry.name_chunk, name_len)?;
        self.release_array(entry.value_chunk, entry.value_len())?;
        self.set_half(place, entry.next);
        self.release(n)?;
        self.set_half(NENTRIES, nentries);
        Ok(())
    }

    /// Splits the leaf: entries whose next hash bit is 1 move to a new leaf, which is returned; both prefixes become one bit longer.
    /// `word_keys` and `sorted` are properties of the ZAP.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the leaf is broken.
    pub fn split(&mut self, word_keys: bool, sorted: bool) -> Result<Vec<u8>, Error> {
        let header = self.view()?.header;
        let len = header.prefix_len + 1;
        if len > 63 {
            return Err(bad("prefix length", len.into()));
        }
        let size = self.block.len();
        let halves = [header.prefix << 1, (header.prefix << 1) | 1];
        let [mut low, mut high] = halves.map(|prefix| LeafMut::init(size, prefix, len, sorted));
        {
            let leaf = self.view()?;
            let (mut low, mut high) = (LeafMut { block: &mut low }, LeafMut { block: &mut high });
            for chain in 0..leaf.hash_entries() {
                for found in leaf.chain(chain) {
                    let (_, entry) = found?;
                    let name = leaf.name_bytes(&entry, word_keys)?;
                    let value = leaf.value(&entry)?;
                    let half = if entry.hash & (1 << (64 - len)) == 0 { &mut low } else { &mut high };
                    let key = LeafKey { hash: entry.hash, bytes: &name, numints: entry.name_numints };
                    let value = LeafValue { int_size: entry.value_intlen, bytes: &value };
                    if half.insert(&key, Some(entry.cd), &value)? != Put::Done {
                        return Err(bad("free chunks", header.nfree.into()));
                    }
                }
            }
        }
        self.block.copy_from_slice(&low);
        Ok(high)
    }

    /// Sets the values of all entries, which must be 64-bit numbers, to `value`. Returns the number of entries.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the leaf is broken, or contains another kind of value.
    pub fn fill(&mut self, value: u64) -> Result<u64, Error> {
        let leaf = self.view()?;
        let mut values = Vec::with_capacity(usize::from(leaf.header.nentries).min(self.capacity()));
        for chain in 0..leaf.hash_entries() {
            for found in leaf.chain(chain) {
                let (_, entry) = found?;
                if !leaf.holds(entry.hash) || leaf.chain_of(entry.hash) != chain {
                    return Err(bad("hash of an entry", entry.hash));
                }
                if (entry.value_intlen, entry.value_numints) != (8, 1) {
                    return Err(bad("length of a number", entry.value_len() as u64));
                }
                if self.kind(entry.value_chunk) != Some(CHUNK_ARRAY) {
                    return Err(bad("array chunk", entry.value_chunk.into()));
                }
                values.push(entry.value_chunk);
            }
        }
        for chunk in &values {
            let at = self.chunk_at(*chunk) + 1;
            put(self.block, at, &value.to_be_bytes());
        }
        Ok(values.len() as u64)
    }

    /// Sets the prefix, when two sibling leaves are merged.
    pub fn set_prefix(&mut self, prefix: u64, prefix_len: u16) {
        put(self.block, PREFIX, &E.put_u64(prefix));
        self.set_half(PREFIX_LEN, prefix_len);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn key(hash: u64, bytes: &[u8]) -> LeafKey<'_> {
        LeafKey { hash, bytes, numints: bytes.len() as u16 }
    }

    fn filled() -> (Vec<u8>, usize) {
        let mut block = LeafMut::init(1024, 0, 0, true);
        let mut leaf = LeafMut::new(&mut block).unwrap();
        let mut n = 0u64;
        loop {
            let name = format!("name number {n} of a leaf\0");
            let hash = (n % 8) << 60 | (n & 1) << 63;
            let value = (n * 3).to_be_bytes();
            match leaf.insert(&key(hash, name.as_bytes()), None, &LeafValue { int_size: 8, bytes: &value }).unwrap() {
                Put::Done => n += 1,
                Put::Full => return (block, n as usize),
                Put::TooLarge => panic!(),
            }
        }
    }

    #[test]
    fn a_leaf_fills_and_empties() {
        let (mut block, n) = filled();
        assert!(n > 8);
        let mut leaf = LeafMut::new(&mut block).unwrap();
        assert_eq!(usize::from(leaf.view().unwrap().header.nentries), n);
        let capacity = leaf.capacity();
        for chain in 0..32 {
            let all: Vec<u16> = leaf.view().unwrap().chain(chain).map(|found| found.unwrap().0).collect();
            for n in all.into_iter().rev() {
                leaf.remove(n, false).unwrap();
            }
        }
        let header = leaf.view().unwrap().header;
        assert_eq!((header.nentries, usize::from(header.nfree)), (0, capacity));
        assert_eq!(
            leaf.insert(&key(0, b"x\0"), None, &LeafValue { int_size: 1, bytes: &[1; 1024] }).unwrap(),
            Put::TooLarge
        );
    }

    #[test]
    fn an_entry_that_the_header_does_not_count_is_an_error() {
        let (mut block, _) = filled();
        let mut leaf = LeafMut::new(&mut block).unwrap();
        let (n, _) = leaf.view().unwrap().chain(0).next().unwrap().unwrap();
        leaf.set_half(NENTRIES, 0);
        assert!(leaf.remove(n, false).is_err());
        assert_eq!(leaf.view().unwrap().header.nentries, 0);
    }

    #[test]
    fn differentiators_fill_gaps_and_values_change_size() {
        let mut block = LeafMut::init(1024, 0, 0, true);
        let mut leaf = LeafMut::new(&mut block).unwrap();
        let one = LeafValue { int_size: 1, bytes: b"1" };
        for name in [&b"a\0"[..], b"b\0", b"c\0"] {
            assert_eq!(leaf.insert(&key(5 << 60, name), None, &one).unwrap(), Put::Done);
        }
        let cds = |leaf: &LeafMut<'_>| -> Vec<u32> {
            let view = leaf.view().unwrap();
            view.chain(view.chain_of(5 << 60)).map(|e| e.unwrap().1.cd).collect()
        };
        assert_eq!(cds(&leaf), [0, 1, 2]);
        let b = leaf.find(5 << 60, |l, e| l.array_is(e.name_chunk, b"b\0")).unwrap().unwrap();
        leaf.remove(b.0, false).unwrap();
        assert_eq!(leaf.insert(&key(5 << 60, b"d\0"), None, &one).unwrap(), Put::Done);
        assert_eq!(cds(&leaf), [0, 1, 2]);
        let (n, _) = leaf.find(5 << 60, |l, e| l.array_is(e.name_chunk, b"d\0")).unwrap().unwrap();
        for len in [0, 300, 8] {
            let bytes = vec![7; len];
            assert_eq!(leaf.set_value(n, false, &LeafValue { int_size: 2, bytes: &bytes }).unwrap(), Put::Done);
            let entry = leaf.view().unwrap().entry(n).unwrap();
            assert_eq!(leaf.view().unwrap().value(&entry).unwrap(), bytes);
        }
    }

    #[test]
    fn a_split_keeps_every_entry_and_the_other_order_is_turned() {
        let (mut block, n) = filled();
        let high = LeafMut::new(&mut block).unwrap().split(false, true).unwrap();
        let (low, high) = (Leaf::parse(&block, E).unwrap(), Leaf::parse(&high, E).unwrap());
        assert_eq!(usize::from(low.header.nentries + high.header.nentries), n);
        assert_eq!((low.header.prefix, high.header.prefix, high.header.prefix_len), (0, 1, 1));
        let before = block.clone();
        leaf_to_little(&mut block); // a swap is its own inverse on well-formed leaves but for reading kinds
        assert!(Leaf::parse(&block, Endian::Big).is_ok());
        to_little(&mut block);
        assert_eq!(block, before);
    }
}
