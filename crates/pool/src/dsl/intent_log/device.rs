//! Intent logs of an open pool: where they write, and their part in a txg.
//!
//! The log of a dataset is made when it is first asked for, and lives in the dataset's head. It writes outside of txgs: blocks are
//! allocated under a hold on the open one, are written to the devices at once, and only devices that were written to are flushed. The sync
//! of each txg advances the header and frees the blocks before it ([`Spa::sync_logs`]). When the pool is closed the chains end, and none of
//! their blocks remains.
//!
//! A head that is evicted (rolled back, destroyed, its key unloaded) leaves its header behind, with the one block that waits for content.
//! That block is freed with the dataset, or when another chain begins.
//!
//! OpenZFS: `zil.c`, `zio_alloc_zil`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use base::{Env, ObjectId, Txg, tunable};
use dmu::{Objset, Tx};
use ondisk::{BlkPtr, ObjsetType, ZilHeader};
use space::Class;
use vdev::{Flushes, Written};
use zil::write::{LogDevice, LogPlaces, Placed, Zil};
use zio::Bookmark;

use crate::Error;
use crate::dsl::open_datasets::OpenDataset;
use crate::spa::{COPIES_MAX, Spa};

/// The feature of logs with records of extended attributes.
const ZILSAXATTR: &str = "zilsaxattr";

/// The pool, for the log of one dataset. (The pool leads to the log: so the reference is weak.)
struct DatasetLog {
    spa: Weak<Spa>,
    id: ObjectId,
}

fn refused(error: Error) -> zil::Error {
    zil::Error::Pool(Box::new(error))
}

impl DatasetLog {
    fn spa(&self) -> Result<Arc<Spa>, zil::Error> {
        self.spa.upgrade().ok_or_else(|| refused(Error::Closed))
    }

    fn head(&self, spa: &Spa) -> Result<Arc<OpenDataset>, zil::Error> {
        spa.dsl.open_datasets.get(self.id).ok_or_else(|| refused(Error::Closed))
    }

    fn bookmark(&self, seq: u64) -> Bookmark {
        Bookmark { objset: self.id, object: ObjectId::NONE, level: Bookmark::ZIL_LEVEL, blkid: seq }
    }
}

impl LogDevice for DatasetLog {
    fn objset(&self) -> ObjectId {
        self.id
    }

    fn env(&self) -> Env {
        self.spa.upgrade().map(|spa| spa.env().clone()).unwrap_or_default()
    }

    fn header(&self) -> Result<ZilHeader, zil::Error> {
        Ok(self.head(&*self.spa()?)?.objset.phys().zil_header.clone())
    }

    fn is_suspended(&self) -> bool {
        self.spa.upgrade().is_none_or(|spa| spa.dsl.logs.suspensions.load(Ordering::SeqCst) > 0)
    }

    fn left_behind(&self) -> Result<Vec<BlkPtr>, zil::Error> {
        let spa = self.spa()?;
        let head = self.head(&spa)?;
        spa.live_mos().and_then(|mos| spa.own_log_blocks(&mos, &head.objset)).map_err(refused)
    }

    fn open(&self) -> Result<Tx, zil::Error> {
        self.spa()?.txgs().assign_now().map_err(refused)
    }

    fn newest(&self) -> Txg {
        self.spa.upgrade().map_or(Txg(0), |spa| spa.txgs().open())
    }

    fn synced(&self) -> Txg {
        self.spa.upgrade().map_or(Txg(0), |spa| spa.txgs().synced())
    }

    fn dirty(&self) -> u64 {
        self.spa.upgrade().map_or(0, |spa| spa.txgs().dirty())
    }

    fn wait_synced(&self, txg: Txg) -> Result<(), zil::Error> {
        self.spa()?.txgs().wait_synced(txg).map_err(refused)
    }

    fn allocate(&self, tx: &Tx, size: u64, identity: [u64; 4]) -> Result<Placed, zil::Error> {
        let spa = self.spa()?;
        let encrypt = self.head(&spa)?.policy.read().encrypt;
        let seq = identity.last().copied().unwrap_or(0);
        let bp = spa.zio().allocate_log(tx.txg(), &self.bookmark(seq), size, identity, encrypt)?;
        spa.txgs().note_work();
        let slog = bp.dvas().any(|dva| spa.tree().top(dva.vdev()).is_some_and(|top| top.config().is_log));
        if !slog {
            // the space maps include it only when its txg is on disk
            spa.txgs().set_aside(tx.txg(), size.div_ceil(COPIES_MAX));
        }
        Ok(Placed { bp, slog })
    }

    fn created(&self, tx: &Tx) {
        let Ok(spa) = self.spa() else { return };
        let is_zpl = self.head(&spa).is_ok_and(|head| head.objset.phys().os_type == ObjsetType::Zfs);
        let enabled = spa.live_mos().and_then(|mos| spa.feature_enabled(&mos, ZILSAXATTR));
        if is_zpl && matches!(enabled, Ok(true)) {
            spa.use_dataset_feature(tx, self.id, ZILSAXATTR);
        }
    }

    fn write(&self, blocks: Vec<(BlkPtr, Vec<u8>)>) -> Result<(), zil::Error> {
        let spa = self.spa()?;
        let tops = blocks.iter().flat_map(|(bp, _)| bp.dvas()).map(|dva| dva.vdev()).collect();
        let births = blocks.iter().map(|(bp, _)| bp.birth_physical()).collect();
        let written = spa.zio().write_log(&self.bookmark(0), blocks);
        if let Err(zio::Error::Write { .. }) = &written {
            spa.retire_logs(&Written { tops, births, all: false });
        }
        Ok(written?)
    }

    fn flushes(&self) -> Flushes {
        self.spa.upgrade().map(|spa| spa.tree().flushes()).unwrap_or_default()
    }

    fn flush(&self, written: &Written, before: &Flushes) -> Result<(), zil::Error> {
        if tunable::ZIL_NOCACHEFLUSH.get() != 0 {
            return Ok(());
        }
        let spa = self.spa()?;
        let flushed = spa.tree().flush_written(written, before);
        if flushed.is_err() {
            spa.retire_logs(written);
        }
        flushed.map_err(|error| refused(error.into()))
    }

    fn places(&self) -> LogPlaces {
        let Ok(spa) = self.spa() else { return LogPlaces::default() };
        let has = |class| spa.space().manager().has_class(class);
        let special = || self.head(&spa).map_or(0, |head| head.policy.read().special_small);
        LogPlaces { slog: has(Class::Log), special_small: has(Class::Special).then(special) }
    }
}

impl Spa {
    /// Returns the log of an open dataset ([`Spa::objset`]), made on the first call.
    #[must_use]
    pub fn zil(self: &Arc<Self>, objset: &Arc<Objset>) -> Arc<Zil> {
        let id = objset.id();
        let make = || Zil::new(Arc::new(DatasetLog { spa: Arc::downgrade(self), id }), self.dsl.logs.stats.clone());
        // without an open head nothing can be logged: commits wait for txgs
        self.dsl.open_datasets.get(id).map_or_else(make, |head| head.zil.get_or_init(make).clone())
    }

    /// Applies the logs' part in this txg, before the datasets are written: advanced headers and freed blocks.
    pub(in crate::dsl) fn sync_logs(&self, tx: &Tx) -> Result<(), Error> {
        for head in self.dsl.open_datasets.all() {
            let Some(synced) = head.zil.get().and_then(|zil| zil.sync(tx.txg())) else { continue };
            if let Some(header) = synced.header {
                head.objset.set_zil_header(tx, header)?;
                self.dsl.logs.unread.lock().remove(&head.id);
            }
            self.frees.add(synced.free);
        }
        Ok(())
    }

    /// Drops log records of changes that are on disk with `synced`.
    pub(in crate::dsl) fn clean_logs(&self, synced: Txg) {
        self.dsl.open_datasets.all().iter().filter_map(|head| head.zil.get()).for_each(|zil| zil.clean(synced));
    }

    /// Retires log devices that did not keep everything `written`: logs are placed elsewhere until the pool is opened anew.
    fn retire_logs(&self, written: &Written) {
        let tree = self.tree();
        let tops = written.tops.iter().filter_map(|id| tree.top(*id));
        let lost = tops.filter(|top| top.config().is_log && !self.tree().has_all(top, &written.births));
        for top in lost {
            self.space().retire(top.id());
        }
    }

    /// Brings the contents of intent logs to disk and ends the logs; none begins before the returned value is dropped, and commits wait for txgs (OpenZFS:
    /// `zil_suspend`).
    pub(in crate::dsl) fn suspend_logs(self: &Arc<Self>) -> Result<SuspendedLogs, Error> {
        // before the chains are locked: one that begins now is ended here
        let suspended = SuspendedLogs::new(self);
        self.dsl.open_datasets.all().iter().filter_map(|head| head.zil.get()).for_each(|zil| zil.rest());
        self.txgs().note_work();
        self.sync()?;
        self.end_empty_logs()?;
        Ok(suspended)
    }

    /// Ends all logs; the next txg frees their blocks.
    pub(in crate::dsl) fn close_logs(&self) {
        self.dsl.open_datasets.all().iter().filter_map(|head| head.zil.get()).for_each(|zil| zil.close());
        self.txgs().note_work();
    }
}

/// Keeps intent logs from beginning until it is dropped (OpenZFS: `zil_resume`).
pub(in crate::dsl) struct SuspendedLogs(Arc<Spa>);

impl SuspendedLogs {
    fn new(spa: &Arc<Spa>) -> SuspendedLogs {
        spa.dsl.logs.suspensions.fetch_add(1, Ordering::SeqCst);
        SuspendedLogs(spa.clone())
    }
}

impl Drop for SuspendedLogs {
    fn drop(&mut self) {
        self.0.dsl.logs.suspensions.fetch_sub(1, Ordering::SeqCst);
    }
}
