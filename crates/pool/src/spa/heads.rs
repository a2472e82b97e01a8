//! The live object sets of datasets, and their part of a sync (OpenZFS: `dsl_dataset_sync`, `dmu_objset_sync`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::Txg;
use dmu::{Objset, SyncCx, Tx, UsedBy, WritePolicy, Zap};
use ondisk::dsl::{DslDatasetPhys, dir_keys};
use ondisk::{BlkPtr, ObjectType};
use parking_lot::{Mutex, RwLock};

use crate::deadlist::Deadlist;
use crate::feature;
use crate::mos::Mos;
use crate::spa::Spa;
use crate::spa::space::{Delta, Gather, Tally, Used, parent_delta};
use crate::{Dataset, Error};

/// Entries from which on a livelist begins a new part (OpenZFS: `zfs_livelist_max_entries`).
const LIVELIST_MAX_ENTRIES: u64 = 500_000;

/// A ZAP of metadata that says its own kind (OpenZFS: `DMU_OTN_ZAP_METADATA`).
pub(crate) const OTN_ZAP_METADATA: ObjectType = ObjectType(0xc4);

/// A dataset whose object set is open for writing.
pub(crate) struct Head {
    pub(crate) id: u64,
    pub(crate) objset: Arc<Objset>,
    /// How its blocks are written; changes with properties.
    pub(crate) policy: RwLock<WritePolicy>,
    /// Bytes that the dataset keeps for itself (`refreservation`).
    pub(crate) reserved: u64,
}

/// All heads that are open, by dataset.
#[derive(Default)]
pub(crate) struct Heads(Mutex<BTreeMap<u64, Arc<Head>>>);

impl Heads {
    pub(crate) fn get(&self, id: u64) -> Option<Arc<Head>> {
        self.0.lock().get(&id).cloned()
    }

    pub(crate) fn insert(&self, head: Arc<Head>) -> Arc<Head> {
        self.0.lock().entry(head.id).or_insert(head).clone()
    }

    fn dirty(&self, txg: Txg) -> Vec<Arc<Head>> {
        self.0.lock().values().filter(|head| head.objset.is_dirty(txg)).cloned().collect()
    }
}

/// A number with which a directory was extended.
fn dir_field(mos: &Mos, id: u64, key: &str) -> Result<Option<u64>, Error> {
    let object = mos.object(id)?;
    if !object.phys().object_type.is_zap() {
        return Ok(None);
    }
    Ok(mos.zap(id)?.lookup_u64(key)?)
}

impl Spa {
    /// The live object set of a file system or volume: it sees what is dirty, and can be changed with a [`Tx`] of [`Spa::tx`].
    ///
    /// # Errors
    /// If it is a snapshot, or cannot be opened.
    pub fn objset(&self, dataset: &Dataset) -> Result<Arc<Objset>, Error> {
        if dataset.is_snapshot() {
            return Err(Error::ReadOnlyDataset { name: dataset.name().to_string() });
        }
        if let Some(head) = self.heads.get(dataset.id()) {
            return Ok(head.objset.clone());
        }
        let mos = self.live_mos()?;
        let phys = mos.dataset_phys(dataset.id())?;
        let objset = Objset::open_writable(self.zio.clone(), dataset.id(), &phys.bp)?;
        if !zil::is_empty(&objset) {
            let why = format!("the intent log of '{}' is not replayed", dataset.name());
            return Err(Error::NotWritable(why));
        }
        let policy = RwLock::new(self.policy_of(dataset)?);
        let reserved = dataset.refreservation()?;
        let head = self.heads.insert(Arc::new(Head { id: dataset.id(), objset, policy, reserved }));
        Ok(head.objset.clone())
    }

    /// Writes all datasets that are dirty in this txg, and books what they grew by.
    pub(crate) fn sync_heads(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        self.heads.dirty(tx.txg()).iter().try_for_each(|head| self.sync_head(mos, tx, head))
    }

    fn sync_head(&self, mos: &Mos, tx: &Tx, head: &Head) -> Result<(), Error> {
        let phys = mos.dataset_phys(head.id)?;
        let dir = mos.dir_phys(phys.dir_obj)?;
        let creation = |id: u64| if id == 0 { Ok(Txg(0)) } else { mos.dataset_phys(id).map(|p| p.creation_txg) };
        let before_last = match phys.prev_snap_obj {
            0 => Txg(0),
            id => mos.dataset_phys(id)?.prev_snap_txg,
        };
        let livelist = dir_field(mos, phys.dir_obj, dir_keys::LIVELIST)?;
        let gather = Gather::new(mos, phys.prev_snap_txg, before_last, creation(dir.origin_obj)?)
            .with_livelist(livelist.is_some());
        let policy = head.policy.read().clone();
        let used = self.hooks.used_by.as_deref().map(|used| used as &dyn UsedBy);
        let bp = head.objset.sync(&SyncCx {
            txg: tx.txg(),
            pass: self.pass.load(Ordering::Relaxed) as u32,
            owner: &gather,
            policy: &policy,
            used,
        })?;
        let tally = gather.into_tally();
        mos.edit_dataset(tx, head.id, |phys| phys.bp = bp)?;
        self.book(mos, tx, head, &phys, tally)
    }

    fn book(&self, mos: &Mos, tx: &Tx, head: &Head, before: &DslDatasetPhys, tally: Tally) -> Result<(), Error> {
        let net = tally.born.minus(tally.killed);
        let unique = tally.born.used - tally.freed.used;
        let noticed = parent_delta(head.reserved, before.unique_bytes, unique);
        mos.edit_dataset(tx, head.id, |phys| {
            phys.referenced_bytes = phys.referenced_bytes.saturating_add_signed(net.used);
            phys.compressed_bytes = phys.compressed_bytes.saturating_add_signed(net.comp);
            phys.uncompressed_bytes = phys.uncompressed_bytes.saturating_add_signed(net.uncomp);
            phys.unique_bytes = phys.unique_bytes.saturating_add_signed(unique);
        })?;
        let grown = tally.born.minus(tally.freed);
        let delta = Delta { used: noticed, ..grown };
        mos.did_use_as(tx, before.dir_obj, delta, grown.used, Used::Refrsrv, Used::Head)?;
        if !tally.dead.is_empty() {
            let mut deadlist = Deadlist::open(mos, before.deadlist_obj)?;
            self.with_empty_bpobj(mos, tx, |feature| deadlist.insert_many(tx, &tally.dead, feature))?;
            mos.transfer(tx, before.dir_obj, tally.to_snap, Used::Head, Used::Snap)?;
            self.last_snapshot_alone(mos, tx, head.id, before.prev_snap_obj, tally.only_last)?;
        }
        if let Some(id) = dir_field(mos, before.dir_obj, dir_keys::LIVELIST)?.filter(|_| !tally.live.is_empty()) {
            self.append_livelist(mos, tx, id, tally.live.clone())?;
        }
        self.frees.add(tally.free.iter().copied());
        self.activate_dataset_features(mos, tx, head, &tally)
    }

    /// Adds to the list of what a clone has of its own (OpenZFS: `dsl_flush_pending_livelist`).
    fn append_livelist(&self, mos: &Mos, tx: &Tx, id: u64, mut live: Vec<(BlkPtr, bool)>) -> Result<(), Error> {
        // what was made in this txg stands before what was freed in it
        live.sort_by_key(|(_, freed)| *freed);
        let mut livelist = Deadlist::open(mos, id)?;
        let full = match livelist.lists().last() {
            Some((_, last)) => livelist.list(*last)?.phys().num_blkptrs > LIVELIST_MAX_ENTRIES,
            None => true,
        };
        self.with_empty_bpobj(mos, tx, |count| {
            if full {
                livelist.add_key(tx, Txg(tx.txg().0 - 1), count)?;
            }
            livelist.insert_marked(tx, &live, count)
        })
    }

    /// Blocks that the head dropped and only its last snapshot has: they are unique to it now.
    fn last_snapshot_alone(&self, mos: &Mos, tx: &Tx, head: u64, snap: u64, bytes: u64) -> Result<(), Error> {
        if snap == 0 || bytes == 0 || mos.dataset_phys(snap)?.next_snap_obj != head {
            return Ok(());
        }
        mos.edit_dataset(tx, snap, |phys| phys.unique_bytes = phys.unique_bytes.saturating_add(bytes))
    }

    /// Records what features the dataset's new blocks need (OpenZFS: `dsl_dataset_block_born`).
    fn activate_dataset_features(&self, mos: &Mos, tx: &Tx, head: &Head, tally: &Tally) -> Result<(), Error> {
        let sums = [(11u32, "sha512"), (12, "skein"), (13, "edonr"), (14, "blake3")];
        let sums = sums.into_iter().filter(|(n, _)| tally.checksums & (1 << n) != 0).map(|(_, name)| name);
        let zstd = (tally.compressions & (1 << 16) != 0).then_some("zstd_compress");
        let large = tally.large.then_some("large_blocks");
        let dnodes = tally.large_dnode.then_some("large_dnode");
        for name in sums.chain(zstd).chain(large).chain(dnodes) {
            self.activate_dataset_feature(mos, tx, head.id, name)?;
        }
        Ok(())
    }

    /// Marks that dataset `id` uses feature `name`, if it does not yet (OpenZFS: `dsl_dataset_activate_feature`).
    pub(crate) fn activate_dataset_feature(&self, mos: &Mos, tx: &Tx, id: u64, name: &str) -> Result<(), Error> {
        let def = feature::by_name(name).ok_or_else(|| Error::Features(vec![name.to_string()]))?;
        let zap = self.zapify(mos, tx, id)?;
        if zap.lookup(def.guid)?.is_some() {
            return Ok(());
        }
        zap.add_u64(tx, def.guid, 0)?;
        self.feature_increment(mos, tx, name)
    }

    /// The ZAP that extends a directory or dataset; made if there is none (OpenZFS: `dmu_object_zapify`).
    pub(crate) fn zapify(&self, mos: &Mos, tx: &Tx, id: u64) -> Result<Zap, Error> {
        let object = mos.object(id)?;
        if !object.phys().object_type.is_zap() {
            object.set_type(tx, OTN_ZAP_METADATA)?;
            Zap::create_in(tx, &object.reload()?, 0)?;
            self.feature_increment(mos, tx, "extensible_dataset")?;
        }
        mos.zap(id)
    }
}
