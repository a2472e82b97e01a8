//! The state that a [`Zio`](crate::Zio) needs besides devices for writing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Env, Guid};
use parking_lot::{Mutex, RwLock};

use super::late::Late;
use super::{CloneTable, DedupTable, SpaceSource};
use crate::Zio;

/// Blocks that are encrypted with one salt before another is drawn (OpenZFS: `zfs_key_max_salt_uses`).
const SALT_USES: u64 = 400_000_000;

/// The parts that writing needs, set one after another while a pool is opened.
pub(crate) struct WriteSide {
    space: RwLock<Option<Arc<dyn SpaceSource>>>,
    dedup: RwLock<Option<Arc<dyn DedupTable>>>,
    clones: RwLock<Option<Arc<dyn CloneTable>>>,
    env: RwLock<Env>,
    /// True if there is a source of space.
    writable: AtomicBool,
    no_hole_birth: AtomicBool,
    /// True if headers of gang blocks had too few pointers where larger ones would have sufficed.
    pub(crate) outgrown: AtomicBool,
    /// Salt in use and blocks left for it, by guid of the key.
    salts: Mutex<HashMap<Guid, (u64, u64)>>,
    /// Held from the dedup table lookup until missing content has been inserted.
    pub(crate) dedup_order: Mutex<()>,
    pub(crate) late: Late,
}

impl Default for WriteSide {
    fn default() -> Self {
        WriteSide {
            space: RwLock::new(None),
            dedup: RwLock::new(None),
            clones: RwLock::new(None),
            env: RwLock::new(Env::system()),
            writable: AtomicBool::new(false),
            no_hole_birth: AtomicBool::new(false),
            outgrown: AtomicBool::new(false),
            salts: Mutex::default(),
            dedup_order: Mutex::new(()),
            late: Late::default(),
        }
    }
}

impl WriteSide {
    pub(crate) fn space(&self) -> Option<Arc<dyn SpaceSource>> {
        self.space.read().clone()
    }

    pub(crate) fn dedup(&self) -> Option<Arc<dyn DedupTable>> {
        self.dedup.read().clone()
    }

    pub(crate) fn clones(&self) -> Option<Arc<dyn CloneTable>> {
        self.clones.read().clone()
    }

    pub(crate) fn env(&self) -> Env {
        self.env.read().clone()
    }

    pub(crate) fn hole_birth(&self) -> bool {
        !self.no_hole_birth.load(Ordering::Relaxed)
    }

    /// The salt for the next `blocks` blocks that are encrypted with the key of this guid.
    pub(crate) fn salt(&self, key: Guid, blocks: u64) -> u64 {
        let mut salts = self.salts.lock();
        let (salt, left) = salts.entry(key).or_default();
        if *left < blocks {
            *salt = self.env.read().random_u64();
            *left = SALT_USES.max(blocks);
        }
        *left -= blocks;
        *salt
    }
}

impl Zio {
    /// Sets the source of space, without which nothing can be written or freed.
    pub fn set_space(&self, space: Arc<dyn SpaceSource>) {
        *self.write.space.write() = Some(space);
        self.write.writable.store(true, Ordering::Relaxed);
    }

    /// Sets the dedup tables. Without them blocks are written as ordinary ones.
    pub fn set_dedup(&self, table: Arc<dyn DedupTable>) {
        *self.write.dedup.write() = Some(table);
    }

    /// Sets the table of cloned blocks, which is consulted first when a block is freed.
    pub fn set_clones(&self, table: Arc<dyn CloneTable>) {
        *self.write.clones.write() = Some(table);
    }

    /// Sets the source of salts and initialisation vectors.
    pub fn set_env(&self, env: Env) {
        *self.write.env.write() = env;
    }

    /// Sets whether feature `hole_birth` is active (the default): whether holes record their birth txg.
    pub fn set_hole_birth(&self, active: bool) {
        self.write.no_hole_birth.store(!active, Ordering::Relaxed);
    }

    /// Returns whether, since the last call, a gang block took more levels than with headers as large as the devices
    /// allow: feature `dynamic_gang_header` would be of use.
    pub fn take_outgrown_gangs(&self) -> bool {
        self.write.outgrown.swap(false, Ordering::Relaxed)
    }

    /// Drops space and tables (they usually hold this object in turn).
    pub fn close_write(&self) {
        self.write.writable.store(false, Ordering::Relaxed);
        *self.write.space.write() = None;
        *self.write.dedup.write() = None;
        *self.write.clones.write() = None;
        self.self_heal.forget();
    }
}
