//! Ends a receive (OpenZFS: `dmu_recv_end`, `dmu_recv_cleanup_ds`).
//!
//! In one txg: the contents of `%recv` are swapped into the head that it received for, the snapshot is created with the stream's guid and time, and
//! the marks of the receive are removed. With `force` the head's later snapshots are destroyed first.

use std::sync::Arc;

use dmu::{Objset, Tx};
use ondisk::dsl::{DslDatasetPhys, dataset_keys as keys};

use crate::Error;
use crate::dsl::Refusal;
use crate::dsl::destroy::snapshot::Doomed;
use crate::dsl::lookup::{Live, NAME_MAX};
use crate::dsl::recv::raw::RawHead;
use crate::dsl::recv::{Begun, CLONE, RecvBegin, ResumePoint};
use crate::dsl::refused;
use crate::spa::mos::Mos;
use crate::spa::{Spa, TaskCx};

/// Keys in the ZAP of a dataset that is being received.
const RESUME_KEYS: [&str; 7] = [
    keys::RESUME_FROMGUID,
    keys::RESUME_OBJECT,
    keys::RESUME_OFFSET,
    keys::RESUME_BYTES,
    keys::RESUME_TOGUID,
    keys::RESUME_TONAME,
    keys::RESUME_REDACT_BOOKMARK_SNAPS,
];

/// A dataset that is being received (OpenZFS: `dmu_recv_cookie_t`). What is received does not stay in the cache: nobody is about to read it, and it would
/// put out what others read. Ends with [`Receiving::finish`] or [`Receiving::abandon`]; if it is dropped, the
/// dataset stays as one that is half received.
#[derive(Debug)]
pub struct Receiving {
    spa: Arc<Spa>,
    req: RecvBegin,
    begun: Begun,
    objset: Arc<Objset>,
}

impl Spa {
    /// Begins to receive: checks what can be checked before the first record, and makes the dataset that the stream goes into.
    ///
    /// # Errors
    /// [`Error::Refused`], with OpenZFS's errno for what does not fit; [`Error::FeatureDisabled`]; [`Error::NoSuchDataset`] for an incremental
    /// stream without its target.
    pub fn receive_begin(self: &Arc<Self>, req: RecvBegin) -> Result<Receiving, Error> {
        let begun = self.sync_task({
            let req = req.clone();
            move |cx| cx.spa.begin_receive(cx, &req)
        })?;
        let objset = match req.raw_head()? {
            Some(raw) => self.open_raw(begun.id, &raw),
            None => self.open_head(&self.live_mos()?, begun.id, &req.fs),
        };
        match objset {
            Ok(objset) => {
                self.set_uncached(begun.id, true);
                Ok(Receiving { spa: self.clone(), req, begun, objset })
            }
            Err(error) => {
                // what was interrupted before stays what it was
                if begun.resumed.is_none() {
                    self.destroy_received(&begun)?;
                }
                Err(error)
            }
        }
    }

    /// Destroys what an interrupted receive left in `fs`, or below it (`zfs receive -A`).
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`]; [`Refusal::Invalid`] if there is nothing of the kind; [`Refusal::Busy`] while it goes on.
    pub fn receive_discard(self: &Arc<Self>, fs: &str) -> Result<(), Error> {
        let mos = self.live_mos()?;
        let below = format!("{fs}/{CLONE}");
        if self.find_head(&mos, &below).is_ok() {
            return self.destroy_head(&below);
        }
        let head = self.find_head(&mos, fs)?;
        let left_over = head.phys.flags & DslDatasetPhys::FLAG_INCONSISTENT != 0;
        if !left_over || mos.extra(head.id, keys::RESUME_TOGUID)?.is_none() {
            return Err(refused(fs, Refusal::Invalid("does not have any resumable receive state to abort")));
        }
        self.destroy_head(fs)
    }

    /// Destroys what was received, whatever its name is by now.
    fn destroy_received(self: &Arc<Self>, begun: &Begun) -> Result<(), Error> {
        let mos = self.live_mos()?;
        self.destroy_head(&mos.full_name(self.name(), &mos.live(begun.id)?)?)
    }
}

impl Receiving {
    /// The object set that the stream goes into.
    #[must_use]
    pub fn objset(&self) -> &Arc<Objset> {
        &self.objset
    }

    /// The pool.
    #[must_use]
    pub fn spa(&self) -> &Arc<Spa> {
        &self.spa
    }

    /// Bytes of a block, and of a dnode, that the pool takes at most.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn limits(&self) -> Result<(u64, u64), Error> {
        let mos = self.spa.live_mos()?;
        let block = if self.spa.feature_enabled(&mos, "large_blocks")? { 16 << 20 } else { 128 << 10 };
        let dnode = if self.spa.feature_enabled(&mos, "large_dnode")? { 16 << 10 } else { 512 };
        Ok((block, dnode))
    }

    /// A full stream goes into a clone: objects that it does not mention are those of the origin, and must go.
    #[must_use]
    pub fn replaces_clone(&self) -> bool {
        self.begun.base.is_some() && self.req.begin.fromguid.0 == 0
    }

    /// The point at which an earlier receive ended, if this one resumes it.
    #[must_use]
    pub fn resumed(&self) -> Option<ResumePoint> {
        self.begun.resumed
    }

    /// The base was received raw, and this stream is not: later raw streams of the source will not fit any more.
    #[must_use]
    pub fn ivset_diverged(&self) -> bool {
        self.begun.ivset_diverged
    }

    /// Notes, in the txg of `tx`, the last record that was applied.
    pub fn note(&self, tx: &Tx, at: ResumePoint) {
        if self.req.resumable
            && let Some(head) = self.spa.dsl.open_datasets.get(self.begun.id)
        {
            head.resume.put(tx.txg(), at);
        }
    }

    /// Makes the snapshot: the stream is whole.
    ///
    /// # Errors
    /// [`Error::Refused`]: [`Refusal::Busy`] while the target is in use, [`Refusal::Exists`], [`Refusal::Modified`], [`Refusal::NoSpace`],
    /// [`Refusal::Quota`], [`Refusal::Held`] and [`Refusal::HasClones`] for a snapshot that had to go. What was received stays if it can be
    /// resumed.
    pub fn finish(self) -> Result<(), Error> {
        let Receiving { spa, req, begun, objset } = self;
        drop(objset);
        let target = spa.live_mos().and_then(|mos| spa.find_head(&mos, &req.fs)).ok();
        let mut suspended = target.map(|head| spa.suspend_head(head.id));
        let (resumable, id, frozen) = (req.resumable, begun.id, spa.freeze_holds());
        let ended = spa.sync_task(move |cx| cx.spa.end_receive(cx, &req, &begun));
        if let Some(suspended) = &mut suspended {
            suspended.ended(&ended);
        }
        drop((frozen, suspended));
        spa.set_uncached(id, false);
        if ended.is_err() && !resumable {
            // the first error counts, not what comes of cleaning up
            let _ = spa.destroy_received(&begun);
        }
        ended
    }

    /// Ends it without a snapshot. With `keep` what was received stays, if it can be resumed.
    ///
    /// # Errors
    /// When the dataset cannot be destroyed, [`Error::Suspended`].
    pub fn abandon(self, keep: bool) -> Result<(), Error> {
        let Receiving { spa, req, begun, objset } = self;
        drop(objset);
        // the state is on disk, and nothing is on its way any more
        spa.sync()?;
        spa.set_uncached(begun.id, false);
        let whole = !spa.live_mos()?.dataset_phys(begun.id)?.bp.is_hole();
        if keep && req.resumable && whole {
            return Ok(());
        }
        spa.destroy_received(&begun)
    }
}

impl Spa {
    fn end_receive(&self, cx: &TaskCx<'_>, req: &RecvBegin, begun: &Begun) -> Result<(), Error> {
        let (mos, tx) = (cx.mos, cx.tx);
        let received = mos.live(begun.id)?;
        let target = if begun.new_fs { received.clone() } else { self.find_head(mos, &req.fs)? };
        let full = format!("{}@{}", mos.full_name(self.name(), &target)?, req.snap);
        if full.len() > NAME_MAX {
            return Err(refused(&full, Refusal::NameTooLong));
        }
        if mos.snapshot_id(&target.phys, &req.snap)?.is_some() {
            return Err(refused(&full, Refusal::Exists));
        }
        self.check_room_of_snapshot(mos, &full, &target)?;
        let raw = req.raw_head()?;
        let doomed = match begun.new_fs {
            true => Vec::new(),
            false => self.check_take_over(mos, req, raw.as_ref(), (&received, &target))?,
        };
        if raw.is_some() || !begun.new_fs {
            // whoever opens the dataset finds it as it is then, and does so with its key
            self.dsl
                .open_datasets
                .evict_suspended(&[received.id, target.id], cx.tx.txg())
                .map_err(|why| refused(&req.fs, why))?;
        }
        self.log_live(mos, tx, &received, "finish receiving", &format!("snap={}", req.snap))?;
        if !begun.new_fs {
            if let Some(raw) = &raw {
                cx.put_raw_keys(received.phys.dir_obj, received.id, raw)?;
            }
            self.destroy_of_dir(mos, tx, doomed)?;
            cx.swap(&mos.live(received.id)?, &mos.live(target.id)?)?;
        }
        let id = self.snapshot_head(mos, tx, &mos.live(target.id)?, &req.snap, req.begin.creation_time)?;
        mos.edit_dataset(tx, id, |phys| {
            phys.guid = req.begin.toguid;
            phys.flags &= !DslDatasetPhys::FLAG_INCONSISTENT;
        })?;
        if let Some(raw) = &raw {
            cx.mark_raw(id, raw)?;
        }
        mos.edit_dataset(tx, target.id, |phys| phys.flags &= !DslDatasetPhys::FLAG_INCONSISTENT)?;
        if begun.new_fs && mos.extra(target.id, keys::RESUME_TOGUID)?.is_some() {
            let zap = mos.zap(target.id)?;
            for key in RESUME_KEYS {
                zap.remove(tx, key)?;
            }
        }
        if !begun.new_fs {
            let received = mos.live(begun.id)?;
            self.destroy_checked(cx, &mos.full_name(self.name(), &received)?, &received)?;
        }
        Ok(())
    }

    /// Checks that the target can take over the received contents. Returns its snapshots to be destroyed.
    fn check_take_over(
        &self,
        mos: &Mos,
        req: &RecvBegin,
        raw: Option<&RawHead>,
        (received, target): (&Live, &Live),
    ) -> Result<Vec<Doomed>, Error> {
        let doomed = if req.force { self.after_base(mos, req, received, target)? } else { Vec::new() };
        if let Some(raw) = raw {
            self.check_raw(mos, req, raw, received.phys.dir_obj, None)?;
        }
        self.check_swap(mos, received, target, req.force)
            .map_err(|why| why.unwrap_or_else(|why| refused(&req.fs, why)))?;
        if self.is_held_elsewhere(target.id) {
            return Err(refused(&req.fs, Refusal::Busy));
        }
        Ok(doomed)
    }

    /// The target's snapshots after the one that the stream goes on from: they can go.
    fn after_base(&self, mos: &Mos, req: &RecvBegin, received: &Live, target: &Live) -> Result<Vec<Doomed>, Error> {
        if target.phys.prev_snap_obj == received.phys.prev_snap_obj {
            return Ok(Vec::new());
        }
        let (mut doomed, mut at) = (Vec::new(), target.clone());
        let (fs, mut names) = (mos.full_name(self.name(), target)?, mos.snapshot_names(&target.phys)?);
        while at.phys.prev_snap_obj != received.phys.prev_snap_obj {
            let snap = mos.before(&at)?;
            let Some(snap) = snap.filter(|snap| snap.phys.dir_obj == target.phys.dir_obj) else {
                return req.refuse(Refusal::Invalid("what was received does not descend from the target"));
            };
            at = snap.clone();
            let short = names.remove(&snap.id).ok_or_else(|| Error::corrupt(snap.id, "a snapshot without a name"))?;
            let one = Doomed { name: format!("{fs}@{short}"), snap };
            self.check_doomed(mos, &one, false)?;
            doomed.push(one);
        }
        Ok(doomed)
    }
}
