//! Builders for tests: pools in memory, objects with contents, keys, and seeded choices. Whatever goes wrong panics.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use base::Env;
use codec::crypt::{Suite, WrappingKey};
use dmu::{NewObject, Object};
use ondisk::ObjectType;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, MemoryDevice};

use crate::{CreateOptions, Error, Hooks, KeyFormat, NewKey, Spa};

/// Bytes of the blocks of an [`object`].
pub const BLOCK: usize = 128 << 10;
/// Bytes of a disk of a pool [`in_memory`].
const DISK: u64 = 64 << 20;

/// The hooks of pools that live in memory.
#[must_use]
pub fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() }
}

/// The pool `t` of these words, and its disks `d0` to `d{count - 1}`.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn in_memory(words: &str, count: usize) -> (Arc<Spa>, Vec<Arc<MemoryDevice>>) {
    in_memory_of(words, count, DISK)
}

/// As [`in_memory`], with disks of `size` bytes.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn in_memory_of(words: &str, count: usize, size: u64) -> (Arc<Spa>, Vec<Arc<MemoryDevice>>) {
    let disks: Vec<_> = (0..count).map(|n| Arc::new(MemoryDevice::writable(size).named(format!("d{n}")))).collect();
    let words: Vec<String> = words.split(' ').map(str::to_string).collect();
    let open = |path: &str| -> Option<Arc<dyn Device>> {
        disks.iter().find(|disk| disk.name() == path).map(|disk| disk.clone() as Arc<dyn Device>)
    };
    let (hooks, options) = (hooks(), LayoutOptions { ashift: Some(12), ..LayoutOptions::default() });
    let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &hooks.env).unwrap();
    (Spa::create(new, CreateOptions::new("t"), hooks).unwrap(), disks)
}

/// A new object in the root dataset of pool `t`.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn object(spa: &Arc<Spa>) -> Object {
    let dataset = spa.view().unwrap().dataset("t").unwrap();
    let tx = spa.tx(1 << 20).unwrap();
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: BLOCK as u64, ..NewObject::default() };
    spa.objset(&dataset).unwrap().alloc_object(&tx, &new).unwrap()
}

/// Bytes that fill so many blocks of an [`object`] and do not compress.
#[must_use]
pub fn noise(blocks: usize, seed: u64) -> Vec<u8> {
    Env::noise(seed, blocks * BLOCK)
}

/// Writes so many blocks of an object from its beginning on, and waits for the txg.
///
/// # Errors
/// When the pool is suspended.
pub fn write(spa: &Arc<Spa>, file: &Object, blocks: usize, seed: u64) -> Result<(), Error> {
    file.write(&spa.tx((blocks * BLOCK) as u64)?, 0, &noise(blocks, seed))?;
    spa.sync()
}

/// The raw key of an encryption root, 32 times this byte.
///
/// # Panics
/// Never: the key is as long as a key must be.
#[must_use]
pub fn key(seed: u8) -> NewKey {
    NewKey {
        cipher: Suite::Aes256Gcm,
        keyformat: KeyFormat::Raw,
        keylocation: "prompt".to_string(),
        wrapping: WrappingKey::from_raw(&[seed; 32]).unwrap(),
        pbkdf2_iters: 0,
        salt: 0,
    }
}

/// Random choices that a seed repeats.
#[derive(Debug)]
pub struct Dice(Env);

impl Dice {
    /// The choices of this seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Dice {
        Dice(Env::seeded(seed))
    }

    /// A number below `n`; 0 if there is none.
    #[must_use]
    pub fn below(&self, n: usize) -> usize {
        (self.0.random_u64() % n.max(1) as u64) as usize
    }

    /// One of `all`.
    #[must_use]
    pub fn one<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }
}
