//! The eight bytes in front of a zstd block, and OpenZFS's numbers for levels.
//!
//! First the length of the compressed bytes, a big-endian u32; then a level (8 bits) and the version number of the library that wrote the
//! block (24 bits), today as a big-endian u32 with the level on top. Early writers stored that word as a C bit field, so the order of its
//! bytes depends on their compiler; a reader finds the version's top byte, which is zero until library version 6.55.36, and derives the
//! order from its position. OpenZFS: `zfs_zstdhdr_t`, `zfs_get_hdrmeta`.

/// Length of the header in bytes.
pub const LEN: usize = 8;

/// A header, decoded. OpenZFS: `zfs_zstdhdr_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZstdHeader {
    /// Bytes of the zstd frame after the header; not yet validated.
    pub compressed_len: u32,
    /// Version number of the zstd library that wrote it (10405 is 1.4.5).
    pub version: u32,
    /// Level in OpenZFS's numbers: 1–19, or 103… (see [`zstd_level`]).
    pub level: u8,
}

/// Decodes the header in front of `block`; `None` if the block is shorter.
#[must_use]
pub fn parse(block: &[u8]) -> Option<ZstdHeader> {
    let (len, rest) = block.split_first_chunk::<4>()?;
    let raw = rest.first_chunk::<4>()?;
    let version = |a, b, c| u32::from_be_bytes([0, a, b, c]);
    // The last zero byte decides, as in OpenZFS, which searches from the low end of the word.
    let (level, version) = match *raw {
        [level, low, mid, 0] => (level, version(0, mid, low)),
        [low, mid, 0, level] => (level, version(0, mid, low)),
        [level, 0, mid, low] => (level, version(0, mid, low)),
        [0, mid, low, level] => (level, version(0, mid, low)),
        _ => (0, 0),
    };
    Some(ZstdHeader { compressed_len: u32::from_be_bytes(*len), version, level })
}

/// The header of a block that this program writes.
#[must_use]
pub fn encode(h: ZstdHeader) -> [u8; LEN] {
    let [a, b, c, d] = h.compressed_len.to_be_bytes();
    let [_, x, y, z] = h.version.to_be_bytes();
    [a, b, c, d, h.level, x, y, z]
}

/// OpenZFS's number of its first fast level. `ZIO_ZSTD_LEVEL_FAST_1`.
const FAST_1: u8 = 103;

/// The fast levels in the order of their numbers.
const FAST: [i32; 21] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 500, 1000];

/// The zstd library's level for OpenZFS's level number; `None` if the number is undefined. OpenZFS: `zstd_enum_to_level`.
#[must_use]
pub fn zstd_level(number: u8) -> Option<i32> {
    match number {
        1..=19 => Some(i32::from(number)),
        _ => FAST.get(usize::from(number.checked_sub(FAST_1)?)).map(|l| -l),
    }
}

/// OpenZFS's number for a level of the zstd library (negative: fast); `None` if OpenZFS has none.
#[must_use]
pub fn level_number(zstd: i32) -> Option<u8> {
    match zstd {
        1..=19 => u8::try_from(zstd).ok(),
        _ => {
            let place = FAST.iter().position(|l| -l == zstd)?;
            u8::try_from(place).ok().map(|p| p + FAST_1)
        }
    }
}
