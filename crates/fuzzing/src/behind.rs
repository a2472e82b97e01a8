//! Whole pools whose blocks change between the check of their checksum and the reader, which simulates anything that the maker of a hostile
//! pool may write: on every kind of vdev, under every cipher, in every structure. While [`image`](crate::image) lays out a few pools anew
//! to change their bytes, this uses all fixtures unchanged, and changes the data that is read (`zio::tamper`).
//!
//! A block is changed in the same way whenever it is read, determined by its address, its birth and the seed of the input.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use codec::crypt::WrappingKey;
use dmu::{Visit, Walk};
use ondisk::{BLKPTR_SIZE, BlkPtr, DNODE_SIZE, ObjectType};
use oracle::fixtures;
use pool::{ListOptions, OpenOptions, Pool};
use zio::tamper;

use crate::exercise::exercise_pool;
use crate::mutate::Rng;

/// Offset of the pointers in a dnode.
const POINTERS: usize = 64;
/// Number of the pool's own pointers that are collected to replace others.
const STRANGERS: usize = 512;
/// Numbers of blocks in a thousand that are changed.
const RATES: [u64; 8] = [2, 5, 10, 30, 100, 200, 500, 1000];
/// The tamper hook is global to the process, so only one input runs at a time.
static RUNNING: Mutex<()> = Mutex::new(());

/// A decoded input.
#[derive(Clone, Copy)]
struct Input {
    pool: u8,
    rate: u64,
    /// Maximum number of changes per block.
    changes: usize,
    /// The kind of blocks that are changed.
    class: u8,
    seed: u64,
}

impl Input {
    fn decode(data: &[u8]) -> Option<Input> {
        let ([pool, rate, changes, class], seed) = data.split_first_chunk()?;
        let (seed, _) = seed.split_first_chunk()?;
        Some(Input {
            pool: *pool,
            rate: RATES[usize::from(*rate) % RATES.len()],
            changes: 1 + usize::from(*changes) % 6,
            class: *class,
            seed: u64::from_le_bytes(*seed),
        })
    }

    /// True if blocks of this kind are changed.
    fn concerns(&self, bp: &BlkPtr) -> bool {
        let t = bp.object_type();
        match self.class % 8 {
            0 => true,
            1 => bp.level() > 0,
            2 => t == ObjectType::DNODE || t == ObjectType::OBJSET,
            3 => bp.level() == 0 && t.is_metadata(),
            4 => !t.is_metadata(),
            // one object type, and the dnodes
            _ => t == ObjectType::DNODE || u64::from(t.0) == self.seed % 60,
        }
    }

    fn change(&self, bp: &BlkPtr, data: &mut [u8], strangers: &[BlkPtr]) {
        let place = bp.words[1].rotate_left(17) ^ bp.words[0].rotate_left(41) ^ bp.words[10];
        let mut rng = Rng::new(self.seed ^ place);
        if !self.concerns(bp) || rng.next_u64() % 1000 >= self.rate || data.len() < 16 {
            return;
        }
        for _ in 0..=rng.below(self.changes) {
            alter(&mut rng, data, bp, strangers);
        }
    }
}

/// The fixture that an input selects.
///
/// # Panics
/// If the fixtures are not there.
#[must_use]
pub fn fixture_of(data: &[u8]) -> Option<String> {
    let names = fixtures::names();
    let input = Input::decode(data)?;
    names.get(usize::from(input.pool) % names.len()).cloned()
}

/// Exercises a pool while its blocks change as `data` says: the pool, how many blocks in a thousand, how often each, which kinds, and a
/// seed of eight bytes.
///
/// # Panics
/// On a bug in the library.
pub fn fuzz_behind(data: &[u8]) {
    let (Some(input), Some(fixture)) = (Input::decode(data), fixture_of(data)) else { return };
    let images = fixtures::unpack(&fixture);
    let _alone = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let strangers = strangers(&fixture, &images);
    let _tampered = Tampered::with(Arc::new(move |bp, data| input.change(bp, data, &strangers)));
    if let Some(pool) = open(&fixture, &images) {
        exercise_pool(&pool);
    }
}

/// Removes the hook when dropped, also on a panic.
struct Tampered;

impl Tampered {
    fn with(hook: Arc<tamper::Hook>) -> Tampered {
        tamper::set(Some(hook));
        Tampered
    }
}

impl Drop for Tampered {
    fn drop(&mut self) {
        tamper::set(None);
    }
}

/// Opens the pool of a fixture and loads all keys that match.
fn open(fixture: &str, images: &fixtures::Unpacked) -> Option<Arc<Pool>> {
    let found = vdev::import::scan(std::slice::from_ref(&images.dir)).ok()?;
    let options = OpenOptions { arc_bytes: 16 << 20, ..OpenOptions::default() };
    let pool = Pool::open(found.first()?, &options).ok()?;
    let Ok(files) = std::fs::read_dir(fixtures::dir(fixture).join("keys")) else { return Some(pool) };
    let files: Vec<Vec<u8>> = files.flatten().filter_map(|file| std::fs::read(file.path()).ok()).collect();
    for entry in pool.list(pool.name(), &ListOptions::DATASETS).unwrap_or_default() {
        let Some(dataset) = entry.dataset() else { continue };
        let Ok(Some(info)) = dataset.crypto() else { continue };
        // a hostile pool may ask for any number of iterations, and each takes time
        let iters = if info.pbkdf2_iters > 1 << 20 { 1 } else { info.pbkdf2_iters };
        for bytes in &files {
            let text = String::from_utf8_lossy(bytes);
            let text = text.trim_end_matches('\n');
            let keys = [
                WrappingKey::from_raw(bytes),
                WrappingKey::from_hex(text),
                WrappingKey::from_passphrase(text.as_bytes(), info.pbkdf2_salt, iters),
            ];
            let _ = keys.into_iter().flatten().any(|key| pool.load_key(dataset.name(), &key).is_ok());
        }
    }
    Some(pool)
}

/// Pointers of an unchanged pool, in walk order.
fn strangers(fixture: &str, images: &fixtures::Unpacked) -> Arc<Vec<BlkPtr>> {
    static KNOWN: Mutex<Option<HashMap<String, Arc<Vec<BlkPtr>>>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if let Some(all) = known.get(fixture) {
        return Arc::clone(all);
    }
    let pool = open(fixture, images).unwrap_or_else(|| panic!("{fixture} does not open"));
    let mut all = Vec::new();
    let sets = pool.list(pool.name(), &ListOptions::ALL).unwrap_or_default();
    let sets = sets.iter().filter_map(|entry| entry.dataset()?.objset().ok());
    for objset in std::iter::once(Arc::clone(pool.mos())).chain(sets) {
        objset.walk(&mut |visit: &Visit<'_>| {
            if !visit.bp.is_hole() && visit.damage.is_none() {
                all.push(*visit.bp);
            }
            if all.len() < STRANGERS { Walk::Into } else { Walk::Stop }
        });
    }
    assert!(!all.is_empty(), "{fixture} has no blocks");
    let all = Arc::new(all);
    known.insert(fixture.to_owned(), Arc::clone(&all));
    all
}

/// A random edge value for sizes, counts and offsets.
fn edge(rng: &mut Rng) -> u64 {
    match rng.below(10) {
        0 => 0,
        1 => 1,
        2 => u64::MAX - (rng.next_u64() & 0xff),
        3 => i64::MAX as u64,
        4 => 0xffff_ffff,
        5 => 1 << rng.below(64),
        6 => (1u64 << rng.below(64)).wrapping_sub(1),
        7 => rng.next_u64() & 0xff,
        8 => rng.next_u64() & 0xffff,
        _ => rng.next_u64(),
    }
}

/// Changes a block once, usually in a non-zero word.
fn alter(rng: &mut Rng, data: &mut [u8], bp: &BlkPtr, strangers: &[BlkPtr]) {
    let used: Vec<usize> =
        data.chunks_exact(8).enumerate().filter(|(_, word)| **word != [0; 8]).map(|(n, _)| n * 8).collect();
    let at = match used.len() {
        0 => rng.below(data.len() / 8) * 8,
        n if rng.below(10) < 8 => used[rng.below(n)],
        _ => rng.below(data.len() / 8) * 8,
    };
    let put = |data: &mut [u8], at: usize, bytes: &[u8]| {
        if let Some(to) = data.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    };
    match rng.below(8) {
        0 => data[at + rng.below(8)] = rng.next_u64() as u8,
        1 => data[at + rng.below(8)] ^= 1 << rng.below(8),
        2 => put(data, at, &edge(rng).to_le_bytes()),
        3 => put(data, at + 4 * rng.below(2), &(edge(rng) as u32).to_le_bytes()),
        4 => put(data, at + 2 * rng.below(4), &(edge(rng) as u16).to_le_bytes()),
        5 => {
            let word = data[at..at + 8].iter().rev().fold(0, |n: u64, b| n << 8 | u64::from(*b));
            let more = [1, u64::MAX, 8, 512, 1 << 32][rng.below(5)];
            put(data, at, &word.wrapping_add(more).to_le_bytes());
        }
        6 => {
            let (len, from) = (8 << rng.below(5), rng.below(data.len() / 8) * 8);
            if from.max(at) + len <= data.len() {
                data.copy_within(from..from + len, at);
            }
        }
        _ => {
            // a block of pointers, or of dnodes
            let place = if rng.below(2) == 0 {
                at / BLKPTR_SIZE * BLKPTR_SIZE
            } else {
                at / DNODE_SIZE * DNODE_SIZE + POINTERS
            };
            put(data, place, &strangers[rng.below(strangers.len())].encode(bp.endian()));
        }
    }
}
