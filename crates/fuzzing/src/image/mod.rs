//! Whole pools with a few changed bytes: opened, listed, verified, read.
//!
//! The input is a byte that chooses a real pool, and changes of eight bytes each: what to do, where, with what. Most change the *contents*
//! of metadata, and all checksums above are recomputed ([`plain`]), as the maker of a hostile pool would. Others change labels and
//! uberblocks, also with valid checksums, or any byte of the device without.

mod overlay;
mod plain;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use overlay::Overlay;
#[cfg(test)]
use plain::Block;
use plain::{Plain, seal_area};

use crate::exercise;
use crate::mutate::Rng;

/// The pools: each has one device.
const FIXTURES: [&str; 5] = ["lmz-a", "dedup-a", "posix-a", "snaps-a", "bclone-a"];

/// Bytes of a change.
const CHANGE: usize = 8;
/// Changes beyond this number are ignored.
const CHANGES_MAX: usize = 32;

/// Edge values for sizes, counts and offsets.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    0x10,
    0x7f,
    0xff,
    0x100,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    1 << 47,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// Exercises a pool that is changed as `data` says.
///
/// # Panics
/// On a bug in the library.
pub fn fuzz_image(data: &[u8]) {
    static PLAIN: [OnceLock<Plain>; FIXTURES.len()] = [const { OnceLock::new() }; FIXTURES.len()];
    let Some((which, changes)) = data.split_first() else { return };
    let which = usize::from(*which) % FIXTURES.len();
    let plain = PLAIN[which].get_or_init(|| Plain::of(FIXTURES[which]));
    let mut image = Overlay::new(Arc::clone(&plain.image));
    let mut changed = BTreeSet::new();
    for change in changes.as_chunks::<CHANGE>().0.iter().take(CHANGES_MAX) {
        apply(plain, &mut image, *change, &mut changed);
    }
    plain.seal(&mut image, changed);
    let found = exercise::exercise(Arc::new(image));
    assert!(found.files > 0 || !changes.is_empty(), "the unchanged pool of {} is empty: {found:?}", FIXTURES[which]);
    assert!(found.lost == 0 || !changes.is_empty(), "the unchanged pool of {} is damaged: {found:?}", FIXTURES[which]);
}

fn apply(plain: &Plain, image: &mut Overlay, change: [u8; CHANGE], changed: &mut BTreeSet<usize>) {
    let [kind, s0, s1, p0, p1, a, b, c] = change;
    let (select, position) = (u16::from_le_bytes([s0, s1]), u16::from_le_bytes([p0, p1]));
    match kind % 16 {
        // any byte of the device
        0 => {
            let at = u64::from(select) << 16 | u64::from(position);
            let at = (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (image.len() - 4096) as u64) as usize;
            let mut bytes = image.get(at, 1 << (a % 12));
            alter(&mut bytes, 0, b, c);
            image.put(at, &bytes);
        }
        // the configuration of some of the labels
        1 => {
            for (n, (at, len)) in plain.labels.iter().enumerate() {
                if a >> n & 1 == 0 {
                    edit(image, *at, *len, position, b, c);
                    seal_area(image, *at, *len);
                }
            }
        }
        // the uberblock
        2 => {
            for (at, _) in &plain.uberblocks {
                let mut bytes = image.get(*at, 216);
                alter(&mut bytes, usize::from(position) % 27 * 8, b, c);
                image.put(*at, &bytes);
            }
        }
        // a block of metadata
        kind => {
            let class = &plain.classes[usize::from(s0) % plain.classes.len()];
            let n = class[usize::from(s1) % class.len()];
            let block = &plain.blocks[n];
            if kind == 3 {
                // a pointer to another block, without a checksum: this also makes loops
                let other = &plain.blocks[usize::from(position) % plain.blocks.len()];
                let mut bp = if a & 1 == 0 { other.bp } else { block.bp };
                (bp.words[0], bp.words[1]) = (other.bp.words[0], other.bp.words[1]);
                bp.words[6] = bp.words[6] & !(0xff << 40) | 2 << 40;
                let at = usize::from(b) * 128 % block.len.max(128);
                if at + 128 <= block.len {
                    // in a dnode, pointers begin at 64
                    let at = if a & 2 == 0 || at + 192 > block.len { at } else { at + 64 };
                    image.put(block.at + at, &bp.encode(block.endian));
                }
            } else {
                edit(image, block.at, block.len, position, b.wrapping_add(a & 0xf0), c);
            }
            changed.insert(n);
        }
    }
}

/// Changes a non-zero word, or the one next to it.
fn edit(image: &mut Overlay, at: usize, len: usize, position: u16, how: u8, with: u8) {
    let mut bytes = image.get(at, len);
    let words = bytes.as_chunks::<8>().0.iter().enumerate().filter(|(_, w)| **w != [0; 8]);
    let words: Vec<usize> = words.map(|(n, _)| n * 8).collect();
    let at_word = words.get(usize::from(position) % words.len().max(1)).copied().unwrap_or(0);
    let at_word = if position & 0x8000 == 0 { at_word } else { (at_word + 8) % len.max(8) };
    if at_word + 8 <= len {
        alter(&mut bytes, at_word, how, with);
        image.put(at, &bytes);
    }
}

/// Changes the bytes from `at` on.
fn alter(bytes: &mut [u8], at: usize, how: u8, with: u8) {
    let rest = bytes.get_mut(at..).unwrap_or(&mut []);
    let width = 1usize << (how >> 3 & 3);
    let (put, shift) = (rest.len().min(width), usize::from(with >> 4) & 7 & !(width - 1));
    let shift = if shift + put > rest.len() { 0 } else { shift };
    let field = &mut rest[shift..shift + put];
    let number = field.iter().rev().fold(0, |n: u64, b| n << 8 | u64::from(*b));
    let number = match how & 7 {
        0 | 1 => EDGES[usize::from(with) & 15],
        2 => number.wrapping_add(u64::from(with) & 15).wrapping_sub(8),
        3 => number ^ 1 << (with & 63),
        4 => number.swap_bytes() >> (64 - 8 * width),
        5 => number << 1,
        6 => u64::from(with).wrapping_mul(0x0101_0101_0101_0101),
        _ => {
            let mut rng = Rng::new(with.into());
            rest.iter_mut().take(64).for_each(|b| *b = rng.next_u64() as u8);
            return;
        }
    };
    field.iter_mut().zip(number.to_le_bytes()).for_each(|(to, from)| *to = from);
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use pool::{OpenOptions, Pool};
    use zuse::verify::{Options, Summary, verify};

    use super::*;

    /// Offset of the fill count in a pointer.
    const FILL_OFFSET: usize = 88;

    fn verified(image: Overlay) -> Summary {
        let found = vdev::import::scan_devices(vec![(PathBuf::from("disk0"), Arc::new(image))]);
        let pool = Pool::open(&found[0], &OpenOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        let options = Options { dataset: None, threads: 1, expand: true };
        verify(&pool, &options, &|_, _| {}).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The levels of the blocks that verification reports as miscounted if the fill count in the pointer to block `n` is two too large.
    fn miscounted(plain: &Plain, n: usize) -> Vec<u8> {
        let mut image = Overlay::new(Arc::clone(&plain.image));
        let Some((Some(parent), offset)) = plain.blocks[n].parents.first() else { return Vec::new() };
        let Block { at, endian, .. } = plain.blocks[*parent];
        let fill = endian.put_u64(plain.blocks[n].bp.words[11].wrapping_add(2));
        image.put(at + offset + FILL_OFFSET, &fill);
        plain.seal(&mut image, BTreeSet::from([*parent]));
        let found = verified(image);
        assert_eq!(found.tally.lost_blocks, 0, "{:?}", found.tally);
        assert!(found.miscounted.is_empty() || !found.is_sound());
        found.miscounted.iter().map(|damage| damage.bm.level).collect()
    }

    #[test]
    fn a_changed_fill_count_behind_good_checksums_is_found() {
        let plain = Plain::of("snaps-a");
        let sound = verified(Overlay::new(Arc::clone(&plain.image)));
        assert!(sound.miscounted.is_empty(), "{:?}", sound.miscounted);
        let mut seen = BTreeSet::new();
        for class in &plain.classes {
            let bp = plain.blocks[class[0]].bp;
            let root = bp.object_type() == ondisk::ObjectType::OBJSET;
            let level = if root { zio::Bookmark::ROOT_LEVEL } else { bp.level() };
            // a tree shared with a snapshot is checked with the snapshot
            let found = class.iter().take(6).any(|n| miscounted(&plain, *n).contains(&level));
            assert!(found, "level {level} of {:?}", bp.object_type());
            seen.insert(level);
        }
        assert!(seen.len() > 3, "{seen:?}");
    }
}
