//! What a writable object set keeps in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base::{Endian, Txg};
use ondisk::{BlkPtr, ObjsetPhys, ZilHeader};
use parking_lot::{Mutex, RwLock};
use zio::CryptParams;

use super::alloc::Alloc;
use super::dnode::{LiveDnode, TXG_SLOTS, slot_of};
use super::{RawObjset, TxHold};
use crate::objset::Root;

const SHARDS: usize = 32;
/// Clean dnodes that a shard keeps.
const KEEP_CLEAN: usize = 512;

type Shard = RwLock<HashMap<u64, Arc<LiveDnode>>>;

/// The live half of an [`Objset`](crate::Objset).
pub(crate) struct Live {
    /// What is on disk.
    pub(crate) root: RwLock<Arc<Root>>,
    /// The root block as it is now.
    pub(crate) newest: RwLock<Arc<ObjsetPhys>>,
    shards: [Shard; SHARDS],
    pub(crate) txgs: [Mutex<TxgState>; TXG_SLOTS],
    pub(crate) alloc: Mutex<Alloc>,
    /// Held by a sync.
    pub(crate) syncing: Mutex<()>,
    /// What it is as a whole, while it is received raw.
    pub(crate) raw: RwLock<Option<RawObjset>>,
    /// By slot: held shared while a block of the txg is written before its sync, which waits for that.
    placing: [RwLock<()>; TXG_SLOTS],
}

/// What a txg has changed.
#[derive(Default)]
pub(crate) struct TxgState {
    /// Dnodes with changes.
    pub(crate) dnodes: BTreeMap<u64, Arc<LiveDnode>>,
    /// Fields of the root block.
    pub(crate) zil: Option<ZilHeader>,
    pub(crate) flags: Option<u64>,
    /// Whether the root block is to be written whatever else is.
    pub(crate) root: bool,
    /// How blocks of dnodes are stored, where a raw stream says so.
    pub(crate) dnode_crypt: BTreeMap<u64, (CryptParams, Endian)>,
    /// Who is told when dirty data is written.
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
            shards: Default::default(),
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

    fn shard(&self, id: u64) -> &Shard {
        &self.shards[(id % SHARDS as u64) as usize]
    }

    /// The dnode in memory, if it is there.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<LiveDnode>> {
        self.shard(id).read().get(&id).cloned()
    }

    /// Puts in a dnode that was read below `root`. `None` if the root has changed since: it must be read again.
    pub(crate) fn admit(&self, root: &Arc<Root>, dnode: LiveDnode) -> Option<Arc<LiveDnode>> {
        let mut shard = self.shard(dnode.id).write();
        if let Some(there) = shard.get(&dnode.id) {
            return Some(there.clone());
        }
        if !Arc::ptr_eq(&self.root.read(), root) {
            return None;
        }
        if shard.len() >= KEEP_CLEAN {
            shard.retain(|_, dnode| Arc::strong_count(dnode) > 1);
        }
        let dnode = Arc::new(dnode);
        shard.insert(dnode.id, dnode.clone());
        Some(dnode)
    }

    /// Puts in a new object.
    pub(crate) fn insert(&self, dnode: Arc<LiveDnode>) {
        self.shard(dnode.id).write().insert(dnode.id, dnode);
    }

    /// Takes out an object that is gone from disk.
    pub(crate) fn remove(&self, dnode: &Arc<LiveDnode>) {
        let mut shard = self.shard(dnode.id).write();
        if shard.get(&dnode.id).is_some_and(|there| Arc::ptr_eq(there, dnode)) {
            shard.remove(&dnode.id);
        }
    }

    /// Forgets what nobody uses. Dirty dnodes are in the lists of their txgs, and so in use.
    pub(crate) fn evict(&self) {
        for shard in &self.shards {
            shard.write().retain(|_, dnode| Arc::strong_count(dnode) > 1);
        }
    }
}
