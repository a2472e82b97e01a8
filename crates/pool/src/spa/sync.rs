//! The sync of a txg (OpenZFS: `spa_sync`, `dsl_pool_sync`).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use base::{ObjectId, Txg, tunable};
use codec::Compress;
use dmu::{BlockOwner, SyncCx, Tx, WritePolicy};
use ondisk::{BlkPtr, Uberblock};
use parking_lot::Mutex;
use zio::WriteCx;

use crate::Error;
use crate::spa::bpobj::Delta;
use crate::spa::create::VERSION;
use crate::spa::datasets::Datasets;
use crate::spa::ddt::TableSync;
use crate::spa::feature::write::Uses;
use crate::spa::mos::Mos;
use crate::spa::mos::edit;
use crate::spa::task::TaskCx;
use crate::spa::txg::Quiesced;
use crate::spa::{Spa, Txgs, suspend};

/// A sync that has not converged after this many passes never will: a bug.
const PASSES_MAX: u64 = 64;
/// Marks the end of the sync thread when it is dropped.
struct End(Arc<Txgs>);

impl Drop for End {
    fn drop(&mut self) {
        let cause =
            if std::thread::panicking() { Error::Bug("the sync thread panicked".to_string()) } else { Error::Closed };
        self.0.fail(Arc::new(cause));
    }
}

/// The blocks that the sync of the MOS writes and replaces: their growth, and those to free.
struct MosBlocks<'a> {
    mos: &'a Mos,
    changes: RefCell<(Delta, Vec<BlkPtr>)>,
    objects: &'a Mutex<BTreeSet<ObjectId>>,
}

impl BlockOwner for MosBlocks<'_> {
    fn born(&self, bp: &BlkPtr) {
        self.changes.borrow_mut().0.add(Delta::of(self.mos, bp));
    }

    fn killed(&self, bp: &BlkPtr) {
        let mut changes = self.changes.borrow_mut();
        changes.0 = changes.0.minus(Delta::of(self.mos, bp));
        if bp.birth() > Txg(0) && !bp.is_embedded() {
            changes.1.push(*bp);
        }
    }

    fn changed(&self, object: ObjectId) {
        self.objects.lock().insert(object);
    }

    fn dsize(&self, bp: &BlkPtr) -> u64 {
        self.mos.dsize(bp, true)
    }
}

impl Spa {
    /// Starts the sync thread.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), Error> {
        self.forget_thresholds();
        self.record_health();
        if let Some(starts) = &self.hooks.starts {
            starts(self);
        }
        self.zio.set_suspend(Arc::new(suspend::OfPool(self.this.clone())));
        let spa = Arc::downgrade(self);
        let txgs = self.txgs.clone();
        let inline = self.env().is_seeded();
        let work = move || {
            // waiting callers are woken however the thread ends
            let _end = End(txgs.clone());
            let idle = || {
                if let Some(spa) = spa.upgrade() {
                    spa.look_while_idle();
                }
            };
            while let Some(next) = txgs.next(&idle) {
                let Some(spa) = spa.upgrade() else { return };
                // a suspended pool writes nothing more
                if txgs.failed().is_some() {
                    return;
                }
                let sync = || base::tasks::syncing(|| spa.sync_txg(next));
                let synced = if inline { base::tasks::inline(sync) } else { sync() };
                // a caller woken by the end may reopen the devices at once
                drop(spa);
                if let Err(error) = synced {
                    tracing::error!(target: "zuse::txg", %error, "the sync has failed; nothing more is written");
                    txgs.fail(Arc::new(error));
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("txg_sync".to_owned()).spawn(work);
        *self.thread.lock() = Some(thread.map_err(|source| Error::Thread { source })?);
        Ok(())
    }

    fn sync_txg(self: &Arc<Self>, next: Quiesced) -> Result<(), Error> {
        let started = Instant::now();
        let _span = tracing::debug_span!(target: "zuse::txg", "sync", pool = self.name(), txg = next.txg.0).entered();
        let mut record = next.record;
        let before = self.done_io();
        let tx = Tx::syncing(next.txg);
        self.heal_suspects();
        self.look_after_devices();
        if self.tree().has_new_ends() {
            // so that labels are written there
            self.edit_config(|_| {});
        }
        self.judge_devices();
        let (changed, first_pass_ns) = self.sync_passes(&tx)?;
        record.first_pass_ns = first_pass_ns;
        record.passes = self.pass.swap(0, Ordering::Relaxed) as u32;
        if changed {
            self.commit(&tx)?;
            *self.view.write() = None;
        }
        self.props_on_disk();
        self.space.sync_done(next.txg, self.kept_for_readers(next.txg));
        self.kick_autotrim(next.txg);
        record.sync_ns = started.elapsed().as_nanos() as u64;
        let ([read, written], [read_before, written_before]) = (self.done_io(), before);
        record.read = (read.0 - read_before.0, read.1 - read_before.1);
        record.written = (written.0 - written_before.0, written.1 - written_before.1);
        tracing::debug!(target: "zuse::txg", pool = self.name(), txg = next.txg.0, passes = record.passes, sync_ns = record.sync_ns, changed, "synced");
        // a waiter finds nothing of this txg left to do
        self.txg_synced(next.txg);
        self.txgs.done(record);
        Ok(())
    }

    /// Blocks read and written until now, each with their bytes.
    fn done_io(&self) -> [(u64, u64); 2] {
        let stats = self.zio.stats();
        [(stats.blocks.get(), stats.bytes.get()), (stats.written.get(), stats.written_bytes.get())]
    }

    /// Writes the first txg of a new pool, before the sync thread runs.
    pub(crate) fn sync_first(self: &Arc<Self>, tx: &Tx) -> Result<(), Error> {
        self.sync_passes(tx)?;
        self.commit(tx)
    }

    /// Writes everything that a txg changed, except the uberblock. Returns whether anything was changed, and the nanoseconds of the first
    /// pass.
    pub(crate) fn sync_passes(self: &Arc<Self>, tx: &Tx) -> Result<(bool, u64), Error> {
        let started = Instant::now();
        let mut first = 0;
        loop {
            let pass = self.pass.fetch_add(1, Ordering::Relaxed) + 1;
            let _working = self.enter_pass();
            let pressure = self.txgs.pressure();
            self.tree().leaves().iter().for_each(|leaf| leaf.queue().set_dirty(pressure));
            let mos = self.live_mos()?;
            if pass == 1 {
                self.sync_logs_of(tx)?;
                self.run_tasks(&mos, tx, true)?;
                self.share(&mos, tx)?;
            }
            self.record_health();
            self.sync_dtls(&mos, tx)?;
            self.sync_config(&mos, tx)?;
            self.sync_dirty(&mos, tx)?;
            if pass == 1 {
                self.run_tasks(&mos, tx, false)?;
                self.grow_by_itself(&mos, tx)?;
                self.sync_scan(&mos, tx)?;
                self.sync_errlog(&mos, tx)?;
                self.grow_gang_headers(&mos, tx)?;
                // changes that tasks made to datasets, and to the configuration
                self.sync_dirty(&mos, tx)?;
                self.sync_config(&mos, tx)?;
                self.share(&mos, tx)?;
                self.sync_destroys(&mos, tx)?;
                self.background.discard.sync(self, &mos, tx)?;
                self.background.condense.sync(self, &mos, tx)?;
                if !self.mos.is_dirty(tx.txg()) && !self.space.is_dirty() {
                    return Ok((false, 0));
                }
                self.sync_deferred_frees(&mos, tx)?;
                self.sync_times(&mos, tx)?;
            }
            self.book_mos(&mos, tx)?;
            self.sync_frees(&mos, tx)?;
            self.sync_tables(&mos, tx, pass as u32)?;
            self.space.sync(&mos, tx, pass as u32, self)?;
            self.record_miscounts(&mos, tx)?;
            self.sync_mos(&mos, tx, pass)?;
            if pass == 1 {
                first = started.elapsed().as_nanos() as u64;
            }
            let converged = !self.mos.is_dirty(tx.txg()) && !self.space.is_dirty() && self.frees.is_empty();
            if converged {
                self.write_late(tx, pass)?;
                // DTL entries for writes missed in this very txg are written in it
                if !self.tree().has_dirty_dtls() && !self.is_health_unrecorded() {
                    return Ok((true, first));
                }
            }
            if pass >= PASSES_MAX {
                let txg = tx.txg();
                return Err(Error::Bug(format!("the sync of txg {txg} has not come to its end after {pass} passes")));
            }
        }
    }

    /// Adds the references of this txg's clones, and heals the blocks that are shared thereby if a scan is running.
    fn share(self: &Arc<Self>, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        let shared = self.clones.apply(tx.txg(), Some(&self.dedup))?;
        self.heal_shared(mos, tx, shared)
    }

    fn sync_tables(&self, mos: &Mos, tx: &Tx, pass: u32) -> Result<(), Error> {
        let features = Uses { spa: self, mos, tx };
        let cx =
            TableSync { mos, tx, zio: &self.zio, features: &features, pass, now_s: self.env().now_s(), last: false };
        self.clones.sync(&cx)?;
        let own = [space::Class::Dedup, space::Class::Special].into_iter().find(|c| self.space.manager().has_class(*c));
        self.dedup.note_class(own.map(|class| self.space.figures(class)).map(|own| (own.alloc, own.space)));
        self.dedup.sync(&cx)
    }

    /// Runs the tasks of the txg. A task that failed after it had changed something ends the sync.
    fn run_tasks(self: &Arc<Self>, mos: &Mos, tx: &Tx, early: bool) -> Result<(), Error> {
        for task in self.tasks.take(tx.txg(), early) {
            let own = Tx::syncing(tx.txg());
            own.fail_after(self.task_fault.swap(u64::MAX, Ordering::Relaxed));
            let done = task(&TaskCx { spa: self, mos, tx: &own });
            self.task_ended();
            if let Some(error) = done.err().filter(|_| own.is_used()) {
                self.txgs.fail(error.clone());
                return Err(Error::Suspended(error));
            }
        }
        Ok(())
    }

    /// Returns `policy` with exactly what the pool's features allow: for the MOS, and for a dataset without properties.
    pub(crate) fn plain_policy(&self, mos: &Mos, policy: WritePolicy) -> Result<WritePolicy, Error> {
        let lz4 = self.feature_active(mos, "lz4_compress")?;
        let compress = if lz4 { Compress::Lz4 } else { Compress::Lzjb };
        Ok(WritePolicy {
            compress,
            metadata_compress: compress,
            embed: self.feature_active(mos, "embedded_data")?,
            hole_birth: self.feature_active(mos, "hole_birth")?,
            ..policy
        })
    }

    fn sync_mos(&self, mos: &Mos, tx: &Tx, pass: u64) -> Result<(), Error> {
        if !self.mos.is_dirty(tx.txg()) {
            return Ok(());
        }
        let owner = MosBlocks { mos, changes: RefCell::default(), objects: &self.changed };
        let policy = self.plain_policy(mos, WritePolicy::mos())?;
        let cx = SyncCx { txg: tx.txg(), pass: pass as u32, owner: &owner, policy: &policy, used: None, late: true };
        self.mos.sync(&cx)?;
        if self.zio.is_late_full() {
            self.write_late(tx, pass)?;
        }
        let (grown, free) = owner.changes.into_inner();
        self.mos_delta.lock().add(grown);
        self.frees.add(free);
        Ok(())
    }

    /// Writes the blocks of the MOS that waited for the last pass.
    fn write_late(&self, tx: &Tx, pass: u64) -> Result<(), Error> {
        // another machine may have taken the pool meanwhile
        if let Some(failed) = self.txgs.failed() {
            return Err(Error::Suspended(failed));
        }
        Ok(self.zio.write_late_blocks(&WriteCx { txg: tx.txg(), pass: pass as u32 })?)
    }

    /// Books the growth of the MOS. Growth after the last pass is booked with the next txg.
    fn book_mos(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        if self.pass.load(Ordering::Relaxed) >= tunable::ZFS_SYNC_PASS_DONT_COMPRESS.get() {
            return Ok(());
        }
        let delta = std::mem::take(&mut *self.mos_delta.lock());
        if delta.is_zero() {
            return Ok(());
        }
        self.mos_grew(mos, tx, delta)
    }

    /// Writes the uberblock of a txg whose blocks are all written.
    fn commit(&self, tx: &Tx) -> Result<(), Error> {
        let mut uberblock: Uberblock = self.uberblock();
        uberblock.txg = tx.txg();
        uberblock.rootbp = self.mos.rootbp();
        uberblock.timestamp = self.env().now_s();
        uberblock.guid_sum = base::Guid(self.tree().config().walk().fold(0, |sum, v| sum.wrapping_add(v.guid.0)));
        uberblock.endian = edit::OURS;
        uberblock.software_version = VERSION;
        uberblock.checkpoint_txg = Txg(0);
        uberblock.mmp = Some(self.multihost.stamp());
        // another machine may have taken the pool while this was written
        if let Some(failed) = self.txgs.failed() {
            return Err(Error::Suspended(failed));
        }
        self.commit_patiently(&uberblock)?;
        self.multihost.synced(&uberblock);
        if let Some(note) = &self.hooks.synced {
            note(self.guid, uberblock.txg);
        }
        self.carried.advance(tx.txg(), &std::mem::take(&mut self.changed.lock()));
        let mut synced = self.uberblock.lock();
        *self.synced_tree.lock() = Arc::clone(&self.tree());
        *synced = uberblock;
        drop(synced);
        self.zio.set_dynamic_gang(self.large_gang_headers.load(Ordering::Relaxed));
        Ok(())
    }
}
