//! The in-memory state of a writable object set.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Endian, ObjectId, Txg, UseTable};
use ondisk::{BlkPtr, ObjsetPhys, ZilHeader};
use parking_lot::{Mutex, RwLock};
use zio::CryptParams;

use super::alloc::Alloc;
use super::dnode::{LiveDnode, TXG_SLOTS, slot_of};
use super::{RawObjset, TxHold};
use crate::objset::Root;

const SHARDS: usize = 32;
/// The number of clean dnodes that a shard keeps.
const KEEP_CLEAN: usize = 512;

type Shard = RwLock<UseTable<ObjectId, Arc<LiveDnode>>>;

/// Dirty dnodes are in the lists of their txgs, and so in use.
fn in_use(dnode: &Arc<LiveDnode>) -> bool {
    Arc::strong_count(dnode) > 1
}

/// The live half of an [`Objset`](crate::Objset).
pub(crate) struct Live {
    /// The root block on disk.
    pub(crate) root: RwLock<Arc<Root>>,
    /// The current root block.
    pub(crate) newest: RwLock<Arc<ObjsetPhys>>,
    shards: [Shard; SHARDS],
    pub(crate) txgs: [Mutex<TxgState>; TXG_SLOTS],
    pub(crate) alloc: Mutex<Alloc>,
    /// Held by a running sync.
    pub(crate) syncing: Mutex<()>,
    /// Set-wide parameters of a raw receive, while there is one.
    pub(crate) raw: RwLock<Option<RawObjset>>,
    /// By slot: held shared while a block of the txg is written before its sync; the sync waits for that.
    placing: [RwLock<()>; TXG_SLOTS],
}

/// The changes of one txg.
#[derive(Default)]
pub(crate) struct TxgState {
    /// Dnodes with changes.
    pub(crate) dnodes: BTreeMap<ObjectId, Arc<LiveDnode>>,
    /// Changed fields of the root block.
    pub(crate) zil: Option<ZilHeader>,
    pub(crate) flags: Option<u64>,
    /// True if the root block has to be written even if nothing else is.
    pub(crate) root: bool,
    /// The encryption parameters and byte order of blocks of dnodes, as given by a raw stream.
    pub(crate) dnode_crypt: BTreeMap<u64, (CryptParams, Endian)>,
    /// Notified when dirty data is written.
    pub(crate) hold: Option<Arc<dyn TxHold>>,
}

impl TxgState {
    pub(crate) fn is_clean(&self) -> bool {
        self.dnodes.is_empty() && self.zil.is_none() && self.flags.is_none() && !self.root
    }
}

impl Live {
    pub(crate) fn new(root: Root, alloc: Alloc) -> Live {
        Live {
            newest: RwLock::new(root.phys.clone()),
            root: RwLock::new(Arc::new(root)),
            shards: std::array::from_fn(|_| RwLock::new(UseTable::new(KEEP_CLEAN))),
            txgs: Default::default(),
            alloc: Mutex::new(alloc),
            syncing: Mutex::new(()),
            raw: RwLock::default(),
            placing: Default::default(),
        }
    }

    pub(crate) fn root(&self) -> Arc<Root> {
        self.root.read().clone()
    }

    pub(crate) fn is_raw(&self) -> bool {
        self.raw.read().is_some()
    }

    pub(crate) fn rootbp(&self) -> BlkPtr {
        self.root.read().bp
    }

    pub(crate) fn txg(&self, txg: Txg) -> &Mutex<TxgState> {
        // the slot is below the length
        &self.txgs[slot_of(txg)]
    }

    pub(crate) fn placing(&self, txg: Txg) -> &RwLock<()> {
        // the slot is below the length
        &self.placing[slot_of(txg)]
    }

    fn shard(&self, id: ObjectId) -> &Shard {
        &self.shards[(id.0 % SHARDS as u64) as usize]
    }

    /// The dnode in memory, if it is there.
    pub(crate) fn get(&self, id: ObjectId) -> Option<Arc<LiveDnode>> {
        self.shard(id).read().get(&id).cloned()
    }

    /// Adds a dnode that was read below `root`. `None` if the root has changed since: it must be read again.
    pub(crate) fn admit(&self, root: &Arc<Root>, dnode: LiveDnode) -> Option<Arc<LiveDnode>> {
        let mut shard = self.shard(dnode.id).write();
        if let Some(there) = shard.get(&dnode.id) {
            return Some(there.clone());
        }
        if !Arc::ptr_eq(&self.root.read(), root) {
            return None;
        }
        let dnode = Arc::new(dnode);
        let unused = shard.insert(dnode.id, dnode.clone(), in_use);
        drop(shard);
        drop(unused);
        Some(dnode)
    }

    /// Adds a new object.
    pub(crate) fn insert(&self, dnode: Arc<LiveDnode>) {
        let unused = self.shard(dnode.id).write().insert(dnode.id, dnode, in_use);
        drop(unused);
    }

    /// Removes an object that is no longer on disk.
    pub(crate) fn remove(&self, dnode: &Arc<LiveDnode>) {
        let mut shard = self.shard(dnode.id).write();
        if shard.get(&dnode.id).is_some_and(|there| Arc::ptr_eq(there, dnode)) {
            shard.remove(&dnode.id);
        }
    }

    /// Drops clean dnodes that are not in use.
    pub(crate) fn evict(&self) {
        for shard in &self.shards {
            let unused = shard.write().sweep(in_use);
            drop(unused);
        }
    }

    /// Notes that a user of a dnode has let go of it.
    pub(crate) fn release(&self, id: ObjectId) {
        let shard = self.shard(id);
        let is_due = shard.read().release();
        if is_due {
            let unused = shard.write().sweep(in_use);
            drop(unused);
        }
    }
}
