//! Values, entries and statistics of a ZAP.

use base::{Endian, ObjectId, bytes};

/// A value: integers of one size (OpenZFS: integer length, number of integers).
#[derive(Clone, PartialEq, Eq)]
pub struct ZapValue {
    /// Size of an integer: 1, 2, 4 or 8 bytes.
    pub int_size: u8,
    /// The integers, big-endian whatever the byte order on disk.
    pub bytes: Vec<u8>,
}

impl ZapValue {
    /// A value of one 64-bit integer.
    #[must_use]
    pub fn from_u64(value: u64) -> Self {
        ZapValue { int_size: 8, bytes: value.to_be_bytes().to_vec() }
    }

    /// Number of integers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / usize::from(self.int_size.max(1))
    }

    /// True if there are no integers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All integers, each widened to 64 bits.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        let widen = |raw: &[u8]| raw.iter().fold(0, |word, byte| (word << 8) | u64::from(*byte));
        self.bytes.chunks_exact(usize::from(self.int_size.max(1))).map(widen)
    }

    /// The value, if it is exactly one integer, of any size.
    #[must_use]
    pub fn u64(&self) -> Option<u64> {
        let mut words = self.iter();
        words.next().filter(|_| words.len() == 0)
    }

    /// The first integer; 0 if there is none.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.iter().next().unwrap_or(0)
    }

    /// The number of the object that the value names: its first integer.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        ObjectId(self.first())
    }

    /// All integers, each widened to 64 bits.
    #[must_use]
    pub fn u64s(&self) -> Vec<u64> {
        self.iter().collect()
    }

    /// All integers of a value of 16-bit integers; `None` if it has others.
    #[must_use]
    pub fn u16s(&self) -> Option<Vec<u16>> {
        (self.int_size == 2).then(|| self.bytes.as_chunks().0.iter().map(|raw| Endian::Big.u16(*raw)).collect())
    }

    /// The bytes of a value of bytes; `None` if its integers are larger.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        (self.int_size == 1).then_some(self.bytes.as_slice())
    }

    /// A value of bytes as text, up to its NUL; `None` if its integers are larger or it is not UTF-8.
    #[must_use]
    pub fn str(&self) -> Option<&str> {
        std::str::from_utf8(bytes::until_nul(self.as_bytes()?)).ok()
    }
}

impl std::fmt::Debug for ZapValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.str() {
            Some(text) => write!(f, "{text:?}"),
            None => f.debug_list().entries(self.iter()).finish(),
        }
    }
}

/// An entry of a ZAP (OpenZFS: `zap_attribute_t`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZapEntry {
    /// The name, without NUL. In a ZAP with number keys: the key's 64-bit words, big-endian ([`ZapEntry::key`]).
    pub name: Vec<u8>,
    /// The value.
    pub value: ZapValue,
    /// The serialised cursor at this entry, as in OpenZFS.
    pub cookie: u64,
    /// The serialised cursor after this entry, from which to continue.
    pub next_cookie: u64,
    /// Its hash, which orders the entries.
    pub hash: u64,
    /// Its collision differentiator, which orders entries of the same hash.
    pub cd: u32,
}

impl ZapEntry {
    /// The name as text; bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn name_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }

    /// The words of the key, in a ZAP with number keys.
    #[must_use]
    pub fn key(&self) -> Vec<u64> {
        bytes::u64s(&self.name, Endian::Big).collect()
    }
}

/// The result of a lookup by normalised name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZapMatch {
    /// The name as it is stored.
    pub name: Vec<u8>,
    /// The value.
    pub value: ZapValue,
    /// True if another entry's name is the same after the ZAP's own normalisation (and case folding).
    pub conflict: bool,
}

/// The shape of a ZAP, as zdb shows it (OpenZFS: `zap_stats_t`). The last bucket of a histogram also counts all greater
/// values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ZapStats {
    /// Size of its blocks.
    pub blocksize: u64,
    /// Entries, by the header of a fat ZAP.
    pub num_entries: u64,
    /// Blocks in use: the next free block of a fat ZAP, 1 for a micro ZAP.
    pub num_blocks: u64,
    /// The rest; `None` for a micro ZAP.
    pub fat: Option<FatStats>,
}

/// The shape of a fat ZAP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FatStats {
    /// Its header.
    pub header: ondisk::zap::FatHeader,
    /// Leaves with 2^n pointers to them.
    pub leafs_with_2n_pointers: [u64; 10],
    /// Leaves with 5n to 5n+4 entries.
    pub blocks_with_n5_entries: [u64; 10],
    /// Leaves by tenths of fullness.
    pub blocks_n_tenths_full: [u64; 10],
    /// Entries that take n chunks.
    pub entries_using_n_chunks: [u64; 10],
    /// Chains of n entries.
    pub buckets_with_n_entries: [u64; 10],
}
