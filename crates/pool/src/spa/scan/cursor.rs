//! The progress of a scrub: a block of a dataset, and the datasets after it.

use std::collections::{BTreeMap, BTreeSet};

use base::{ObjectId, Txg};
use dmu::Tx;
use ondisk::dsl::DslDatasetPhys;
use ondisk::scan::ScanPhys;
use ondisk::{BlkPtr, ObjectType, Position};
use zio::Bookmark;

use crate::spa::mos::{self, Mos};
use crate::{Error, Pool};

/// The value of the bookmark's dataset while none is in progress (OpenZFS: `ZB_DESTROYED_OBJSET`).
const NO_DATASET: ObjectId = ObjectId(u64::MAX);
/// The directory whose snapshot all datasets descend from.
const ORIGIN_DIR: &str = "$ORIGIN";

/// The progress of a scrub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubCursor {
    /// The record.
    pub phys: ScanPhys,
    /// Datasets to come, and the txg up to which their blocks were read as others'; txg 0 means that the dataset itself tells it.
    queue: BTreeMap<ObjectId, Txg>,
    /// The synced txg whose datasets it names; `None` for those that there are now.
    pub(super) of: Option<Txg>,
}

/// The next tree to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The dataset object, 0 for the MOS.
    pub dataset: ObjectId,
    /// The root of its tree.
    pub root: BlkPtr,
    /// The first block to read: a block of data or of dnodes.
    pub from: Bookmark,
    /// Blocks born in this txg or before are left out.
    pub after: Txg,
    /// Blocks born after this txg are left out.
    pub upto: Txg,
}

impl ScrubCursor {
    /// Returns the beginning of a scrub.
    pub(super) fn new(phys: ScanPhys) -> ScrubCursor {
        ScrubCursor { phys, queue: BTreeMap::new(), of: None }
    }

    /// Returns the beginning of the same scan, over another state of the pool.
    #[must_use]
    pub fn again(of: &ScrubCursor) -> ScrubCursor {
        let (min, max) = (of.phys.min_txg, of.phys.max_txg);
        ScrubCursor::new(ScanPhys {
            min_txg: min,
            max_txg: max,
            cur_min_txg: min,
            cur_max_txg: max,
            ..ScanPhys::default()
        })
    }

    /// Loads the datasets that belong to the record.
    pub(crate) fn load(mos: &Mos, phys: ScanPhys) -> Result<ScrubCursor, Error> {
        let mut queue = BTreeMap::new();
        if let Some(zap) = mos.zap_if(phys.queue_obj)? {
            for (name, txg) in mos::named_entries(&zap)? {
                let id = u64::from_str_radix(&name, 16)
                    .map_err(|_| Error::corrupt(phys.queue_obj, format!("scan queue entry '{name}'")))?;
                queue.insert(ObjectId(id), Txg(txg.first()));
            }
        }
        Ok(ScrubCursor { phys, queue, of: None })
    }

    /// Writes the record and the datasets that belong to it.
    pub(crate) fn put(&mut self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        if self.phys.queue_obj.is_none() {
            self.phys.queue_obj = mos.new_zap(tx, ObjectType::SCAN_QUEUE)?;
        }
        let zap = mos.zap(self.phys.queue_obj)?;
        for (name, txg) in mos::named_entries(&zap)? {
            let id = u64::from_str_radix(&name, 16).ok().map(ObjectId);
            if id.and_then(|id| self.queue.get(&id)) != Some(&Txg(txg.first())) {
                zap.remove(tx, &name)?;
            }
        }
        for (id, txg) in &self.queue {
            zap.update_int(tx, id.0, txg.0)?;
        }
        super::put(mos, tx, &self.phys)
    }

    /// Returns the next tree to read; `None` at the end.
    ///
    /// # Errors
    /// When a dataset cannot be read.
    pub fn target(&mut self, pool: &Pool) -> Result<Option<Target>, Error> {
        if self.phys.bookmark.objset == NO_DATASET {
            let Some((dataset, txg)) = self.queue.pop_first() else { return Ok(None) };
            let phys = pool.mos.dataset_phys(dataset)?;
            let before = if txg == Txg(0) { phys.prev_snap_txg } else { txg };
            self.enter(dataset, before, phys.is_snapshot().then_some(phys.creation_txg));
        }
        let Position { objset: dataset, object, blkid, .. } = self.phys.bookmark;
        let root = if dataset == ObjectId::MOS { pool.mos.objset.rootbp() } else { pool.mos.dataset_phys(dataset)?.bp };
        let from = Bookmark::new(dataset, object, 0, blkid);
        Ok(Some(Target { dataset, root, from, after: self.phys.cur_min_txg, upto: self.phys.cur_max_txg }))
    }

    fn enter(&mut self, dataset: ObjectId, before: Txg, made: Option<Txg>) {
        self.phys.bookmark = Position::start_of(dataset);
        self.phys.cur_min_txg = self.phys.min_txg.max(before);
        self.phys.cur_max_txg = made.map_or(self.phys.max_txg, |made| made.min(self.phys.max_txg));
    }

    /// Records that all blocks before `next` of the dataset in progress were read. `next` must be a block of data or of dnodes.
    pub fn reached(&mut self, next: &Bookmark) {
        self.phys.bookmark = Position { objset: next.objset, object: next.object, level: 0, blkid: next.blkid };
    }

    /// Records that the dataset in progress was read to its end, and queues the datasets that descend from it.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn done(&mut self, pool: &Pool) -> Result<(), Error> {
        let dataset = std::mem::replace(&mut self.phys.bookmark, Position::start_of(NO_DATASET)).objset;
        if dataset != ObjectId::MOS {
            return self.hand_on(&pool.mos, dataset);
        }
        match origin(&pool.mos)? {
            Some(origin) => self.enter(origin, Txg(0), None),
            // such an old pool has no snapshot that everything descends from
            None => self.queue_all(pool)?,
        }
        Ok(())
    }

    fn hand_on(&mut self, mos: &Mos, dataset: ObjectId) -> Result<(), Error> {
        // all descendants have older blocks, which were read, or younger ones than are asked for
        if self.phys.cur_min_txg >= self.phys.max_txg {
            return Ok(());
        }
        let phys = mos.dataset_phys(dataset)?;
        let mut next = vec![phys.next_snap_obj];
        if let Some(clones) = mos.zap_if(phys.next_clones_obj)? {
            next.extend(mos::named_entries(&clones)?.iter().map(|(_, clone)| clone.id()));
        }
        for id in next.into_iter().filter(|id| id.is_some()) {
            let after = mos.dataset_phys(id)?;
            if after.is_snapshot() && after.creation_txg <= phys.creation_txg {
                return Err(Error::corrupt(id, "the chain of snapshots does not go on in time"));
            }
            self.queue.insert(id, phys.creation_txg);
        }
        Ok(())
    }

    /// Queues every file system with the oldest snapshot of its own.
    fn queue_all(&mut self, pool: &Pool) -> Result<(), Error> {
        let mos = &pool.mos;
        let Some(root) = mos.id_of("root_dataset")? else { return Ok(()) };
        let (mut dirs, mut seen) = (vec![root], BTreeSet::new());
        while let Some(dir) = dirs.pop() {
            if !seen.insert(dir) {
                return Err(Error::corrupt(dir, "a directory that has two names"));
            }
            let phys = mos.dir_phys(dir)?;
            if let Some(children) = mos.zap_if(phys.child_dir_zapobj)? {
                dirs.extend(mos::named_entries(&children)?.iter().map(|(_, id)| id.id()));
            }
            if phys.head_dataset_obj.is_none() {
                continue;
            }
            let mut first = mos.live(phys.head_dataset_obj)?;
            while let Some(before) = mos.before(&first)?.filter(|before| before.phys.dir_obj == dir) {
                first = before;
            }
            self.queue.insert(first.id, Txg(0));
        }
        Ok(())
    }

    /// Records that two heads were swapped: the blocks read of one belong to the other now.
    pub(super) fn swap(&mut self, one: ObjectId, other: ObjectId) {
        match &mut self.phys.bookmark.objset {
            id if *id == one => *id = other,
            id if *id == other => *id = one,
            _ => {}
        }
        let txgs = (self.queue.remove(&one), self.queue.remove(&other));
        self.queue.extend(txgs.0.map(|txg| (other, txg)));
        self.queue.extend(txgs.1.map(|txg| (one, txg)));
    }

    /// Returns whether all datasets that it names exist.
    pub(super) fn is_whole(&self, mos: &Mos) -> bool {
        let now = self.phys.bookmark.objset;
        let now = (now != ObjectId::MOS && now != NO_DATASET).then_some(now);
        self.queue.keys().copied().chain(now).all(|id| dataset(mos, id).is_some())
    }

    /// Adapts the record to `mos`, in which datasets may have been created and destroyed. `before` is the state that had all of them.
    /// Returns whether anything was changed.
    pub(crate) fn settle(&mut self, mos: &Mos, before: Option<&Pool>) -> Result<bool, Error> {
        let was = (self.phys.bookmark, self.queue.clone());
        let now = self.phys.bookmark.objset;
        let mut whole = true;
        if now != ObjectId::MOS && now != NO_DATASET {
            match stands(mos, now, self.phys.cur_min_txg) {
                Some(id) => self.phys.bookmark.objset = id,
                None => {
                    self.phys.bookmark = Position::start_of(NO_DATASET);
                    whole &= self.replace(mos, before, now, self.phys.cur_min_txg);
                }
            }
        }
        for (id, txg) in std::mem::take(&mut self.queue) {
            match stands(mos, id, txg) {
                Some(id) => {
                    self.queue.insert(id, txg);
                }
                None => whole &= self.replace(mos, before, id, txg),
            }
        }
        if !whole {
            // the successors of something that is gone are unknown: everything is read again
            self.queue.clear();
            self.phys.bookmark = Position::default();
            (self.phys.cur_min_txg, self.phys.cur_max_txg) = (self.phys.min_txg, self.phys.max_txg);
            self.phys.examined = 0;
        }
        Ok(was != (self.phys.bookmark, self.queue.clone()))
    }

    /// Queues the successors of `gone`. Returns false if they are not known.
    fn replace(&mut self, mos: &Mos, before: Option<&Pool>, gone: ObjectId, txg: Txg) -> bool {
        let mut at = gone;
        while at.is_some() {
            if let Some(id) = stands(mos, at, txg) {
                self.queue.insert(id, txg);
                return true;
            }
            let Some(phys) = before.and_then(|pool| pool.mos.dataset_phys(at).ok()) else { return false };
            at = phys.next_snap_obj;
        }
        // a head: nothing descends from it
        true
    }
}

/// Returns the dataset to visit for `id`, whose blocks up to `txg` were read: itself, or the oldest snapshot that was taken of it since.
/// `None` if it is gone.
fn stands(mos: &Mos, id: ObjectId, txg: Txg) -> Option<ObjectId> {
    let mut at = id;
    let mut phys = dataset(mos, at)?;
    while txg != Txg(0) && phys.prev_snap_txg > txg {
        let older = dataset(mos, phys.prev_snap_obj).filter(|older| older.prev_snap_txg < phys.prev_snap_txg);
        let Some(older) = older else { break };
        at = std::mem::replace(&mut phys, older).prev_snap_obj;
    }
    Some(at)
}

/// Returns the dataset in object `id`. One that cannot be read counts as gone: nothing below it could be read.
fn dataset(mos: &Mos, id: ObjectId) -> Option<DslDatasetPhys> {
    let read = mos.object(id).and_then(|object| match object.phys().bonus_type {
        ObjectType::DSL_DATASET => Mos::bonus(&object, DslDatasetPhys::decode).map(Some),
        _ => Ok(None),
    });
    read.unwrap_or_else(|error| {
        if !error.is_not_found() {
            tracing::warn!(target: "zuse::txg", id = id.0, %error, "a dataset is left out of the scan");
        }
        None
    })
}

/// Returns the snapshot that all datasets descend from.
fn origin(mos: &Mos) -> Result<Option<ObjectId>, Error> {
    let Some(root) = mos.id_of("root_dataset")? else { return Ok(None) };
    let Some(children) = mos.zap_if(mos.dir_phys(root)?.child_dir_zapobj)? else { return Ok(None) };
    let Some(dir) = children.lookup_id(ORIGIN_DIR)? else { return Ok(None) };
    let head = mos.dir_phys(dir)?.head_dataset_obj;
    Ok(Some(mos.dataset_phys(head)?.prev_snap_obj).filter(|id| id.is_some()))
}
