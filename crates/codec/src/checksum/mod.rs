//! Checksums of blocks: the table of kinds, and the object that computes them, one per pool.

mod edonr;
pub mod embedded;
pub mod fletcher;
mod skein;

use base::Endian;
use sha2::{Digest, Sha256, Sha512_256};

use crate::Error;

/// A checksum: the four words of a block pointer, decoded into native integers. OpenZFS: `zio_cksum_t`.
pub type Cksum = [u64; 4];

/// A checksum function, with its number in a block pointer. OpenZFS: `enum zio_checksum`.
///
/// `inherit` (0) and `on` (1) are property values and never occur in a block pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ChecksumKind {
    /// None: blocks are not checked.
    Off = 2,
    /// SHA-256 in the block's trailer, seeded with the block's offset: labels.
    Label = 3,
    /// SHA-256 in the block's trailer, seeded with device, offset and birth: gang headers.
    GangHeader = 4,
    /// fletcher2 in the block's trailer: intent-log blocks of old pools.
    Zilog = 5,
    /// Two interleaved sums of 64-bit words.
    Fletcher2 = 6,
    /// Four nested sums of 32-bit words: the default.
    Fletcher4 = 7,
    /// SHA-256.
    Sha256 = 8,
    /// fletcher4 in the chain structure at the block's front, over the bytes in use: intent-log blocks.
    Zilog2 = 9,
    /// None (obsolete).
    Noparity = 10,
    /// SHA-512/256.
    Sha512 = 11,
    /// Skein-512-256, keyed with the pool's salt.
    Skein = 12,
    /// Edon-R-512 truncated to 256 bits, with a first block made of the pool's salt.
    Edonr = 13,
    /// BLAKE3, keyed with the pool's salt.
    Blake3 = 14,
}

impl ChecksumKind {
    /// Every kind, in the order of its number.
    pub const ALL: [ChecksumKind; 13] = [
        ChecksumKind::Off,
        ChecksumKind::Label,
        ChecksumKind::GangHeader,
        ChecksumKind::Zilog,
        ChecksumKind::Fletcher2,
        ChecksumKind::Fletcher4,
        ChecksumKind::Sha256,
        ChecksumKind::Zilog2,
        ChecksumKind::Noparity,
        ChecksumKind::Sha512,
        ChecksumKind::Skein,
        ChecksumKind::Edonr,
        ChecksumKind::Blake3,
    ];

    /// The kind with this number in a block pointer, or `None` if no block can have it.
    #[must_use]
    pub fn from_u8(n: u8) -> Option<ChecksumKind> {
        Self::ALL.get(usize::from(n).checked_sub(2)?).copied()
    }

    /// Its name as a property value and in `zdb`. OpenZFS: `ci_name`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ChecksumKind::Off => "off",
            ChecksumKind::Label => "label",
            ChecksumKind::GangHeader => "gang_header",
            ChecksumKind::Zilog => "zilog",
            ChecksumKind::Fletcher2 => "fletcher2",
            ChecksumKind::Fletcher4 => "fletcher4",
            ChecksumKind::Sha256 => "sha256",
            ChecksumKind::Zilog2 => "zilog2",
            ChecksumKind::Noparity => "noparity",
            ChecksumKind::Sha512 => "sha512",
            ChecksumKind::Skein => "skein",
            ChecksumKind::Edonr => "edonr",
            ChecksumKind::Blake3 => "blake3",
        }
    }

    /// True if it is keyed with the pool's salt. OpenZFS: `ZCHECKSUM_FLAG_SALTED`.
    #[must_use]
    pub fn is_salted(self) -> bool {
        matches!(self, ChecksumKind::Skein | ChecksumKind::Edonr | ChecksumKind::Blake3)
    }

    /// True if the checksum is embedded in its block (see [`embedded`]). OpenZFS: `ZCHECKSUM_FLAG_EMBEDDED`.
    #[must_use]
    pub fn is_embedded(self) -> bool {
        matches!(self, ChecksumKind::Label | ChecksumKind::GangHeader | ChecksumKind::Zilog | ChecksumKind::Zilog2)
    }

    /// True if dedup may trust it to identify blocks without comparing them. OpenZFS: `ZCHECKSUM_FLAG_DEDUP`.
    #[must_use]
    pub fn is_dedup(self) -> bool {
        matches!(self, ChecksumKind::Sha256 | ChecksumKind::Sha512 | ChecksumKind::Skein | ChecksumKind::Blake3)
    }

    /// The half of a checksum that is kept in the pointer of an encrypted or authenticated block, whose words 2 and 3 hold the MAC; those
    /// words are returned as zero. A weak checksum is folded, as its entropy is spread unevenly.
    ///
    /// To verify such a block: truncate the result of [`Checksummer::compute`], and compare words 0 and 1 with the pointer's. Objset blocks
    /// are not truncated. OpenZFS: `zio_checksum_handle_crypt`.
    #[must_use]
    pub fn truncate(self, c: Cksum) -> Cksum {
        let [a, b, c, d] = c;
        if self.is_dedup() { [a, b, 0, 0] } else { [a ^ c, b ^ d, 0, 0] }
    }
}

/// Computes the checksums of one pool's blocks; holds the states keyed with the pool's salt.
///
/// Cheap to create, shareable between threads without cost. OpenZFS: `spa_cksum_tmpls`.
#[derive(Clone)]
pub struct Checksummer {
    salted: Option<Salted>,
}

#[derive(Clone)]
struct Salted {
    skein: skein::Skein512,
    edonr: edonr::EdonR512,
    blake3_key: [u8; 32],
}

impl std::fmt::Debug for Checksummer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checksummer").field("salted", &self.salted.is_some()).finish()
    }
}

impl Checksummer {
    /// Creates one for a pool with this salt (32 bytes of the MOS directory entry `org.illumos:checksum_salt`), if it has one.
    #[must_use]
    pub fn new(salt: Option<[u8; 32]>) -> Checksummer {
        Checksummer {
            salted: salt.map(|salt| Salted {
                skein: skein::Skein512::keyed_256(&salt),
                edonr: edonr::EdonR512::salted(&salt),
                blake3_key: salt,
            }),
        }
    }

    /// The checksum of `data`, a block as stored on disk (compressed, encrypted), written by a machine of order `endian`. The result
    /// compares with the words of the decoded block pointer. `off` gives four zeros.
    ///
    /// # Errors
    /// [`Error::NoSalt`] without the salt that `kind` needs, [`Error::Embedded`] for the embedded kinds, [`Error::Length`] if a fletcher is
    /// requested for a length that is not a multiple of its word.
    pub fn compute(&self, kind: ChecksumKind, data: &[u8], endian: Endian) -> Result<Cksum, Error> {
        let salted = || self.salted.as_ref().ok_or(Error::NoSalt(kind));
        Ok(match kind {
            ChecksumKind::Off | ChecksumKind::Noparity => [0; 4],
            ChecksumKind::Fletcher2 => {
                whole_words(data, 16)?;
                fletcher::fletcher2(data, endian)
            }
            ChecksumKind::Fletcher4 => {
                whole_words(data, 4)?;
                fletcher::fletcher4(data, endian)
            }
            ChecksumKind::Sha256 => sha256(data),
            ChecksumKind::Sha512 => words(&Sha512_256::digest(data).into(), endian),
            ChecksumKind::Skein => words(&salted()?.skein.clone().finish(data), endian),
            ChecksumKind::Edonr => words(&salted()?.edonr.clone().finish_256(data), endian),
            ChecksumKind::Blake3 => words(blake3::keyed_hash(&salted()?.blake3_key, data).as_bytes(), endian),
            ChecksumKind::Label | ChecksumKind::GangHeader | ChecksumKind::Zilog | ChecksumKind::Zilog2 => {
                return Err(Error::Embedded(kind));
            }
        })
    }
}

/// A digest as stored in a block pointer of order `endian`, decoded.
fn words(digest: &[u8; 32], endian: Endian) -> Cksum {
    let (w, _) = digest.as_chunks::<8>();
    std::array::from_fn(|i| w.get(i).map_or(0, |b| endian.u64(*b)))
}

/// SHA-256 as four big-endian words on any machine: the first implementation stored it so.
fn sha256(data: &[u8]) -> Cksum {
    words(&Sha256::digest(data).into(), Endian::Big)
}

fn whole_words(data: &[u8], word: usize) -> Result<(), Error> {
    if data.len().is_multiple_of(word) {
        Ok(())
    } else {
        Err(Error::Length { what: "block to be summed", len: data.len() })
    }
}

#[cfg(test)]
mod tests;
