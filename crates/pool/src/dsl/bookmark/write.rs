//! Creates and destroys bookmarks, and keeps their account of freed space (OpenZFS: `dsl_bookmark.c`).
//!
//! A bookmark records the txg of a snapshot. With feature `bookmark_written` it also knows how much was written since: it has the sums of the
//! snapshot and how much of it was *freed before the next* snapshot (FBN). That figure is updated when blocks are freed: by the head, while it is
//! the next dataset (`count_killed`), and when a snapshot is destroyed (`bookmarks_without_snapshots`). The txg of the bookmark stays a key of
//! deadlists when the snapshot itself is gone, so that later snapshots can tell which blocks of the bookmarked state they lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Guid, ObjectId, Txg};
use dmu::{MatchMode, NewObject, NewZap, Tx, Zap};
use ondisk::ObjectType;
use ondisk::dsl::{BookmarkPhys, DslDatasetPhys, dataset_keys};

use crate::Error;
use crate::dsl::Refusal;
use crate::dsl::deadlist::Deadlist;
use crate::dsl::destroy::snapshot::Run;
use crate::dsl::lookup::{Live, NAME_MAX, check_component, check_old_component};
use crate::dsl::refused;
use crate::dsl::space::Delta;
use crate::spa::bpobj::Space;
use crate::spa::mos::edit::remove_present;
use crate::spa::mos::{self, Mos};
use crate::spa::{Spa, TaskCx};

/// Case-insensitive names, where the dataset asks for them (OpenZFS: `U8_TEXTPREP_TOUPPER`).
const TOUPPER: u64 = 2;
/// Words of a bookmark without, and with, what feature `bookmark_v2` brings.
const WORDS_V1: usize = 3;
const WORDS_V2: usize = 12;
/// Blocks of redaction lists (OpenZFS: `SPA_OLD_MAXBLOCKSIZE`).
const REDACTION_BLOCK: u64 = 128 << 10;
/// The most bytes of a bonus buffer in a dnode of one slot (OpenZFS: `DN_OLD_MAX_BONUSLEN`).
const BONUS_MAX: usize = 320;

/// A bookmark of a head, as it is now.
pub(in crate::dsl) struct Mark {
    pub(in crate::dsl) name: String,
    pub(in crate::dsl) phys: BookmarkPhys,
}

impl Mark {
    fn keeps_account(&self) -> bool {
        self.phys.flags & BookmarkPhys::FLAG_HAS_FBN != 0
    }

    fn words(&self) -> Vec<u64> {
        let p = &self.phys;
        let mut words = vec![
            p.guid.0,
            p.creation_txg.0,
            p.creation_time,
            p.redaction_obj.0,
            p.flags,
            p.referenced_bytes_refd,
            p.compressed_bytes_refd,
            p.uncompressed_bytes_refd,
            p.referenced_freed_before_next_snap,
            p.compressed_freed_before_next_snap,
            p.uncompressed_freed_before_next_snap,
            p.ivset_guid.0,
        ];
        words.truncate(p.words);
        words
    }

    fn add_freed(&mut self, space: Space) {
        let p = &mut self.phys;
        p.referenced_freed_before_next_snap = p.referenced_freed_before_next_snap.wrapping_add(space.used);
        p.compressed_freed_before_next_snap = p.compressed_freed_before_next_snap.wrapping_add(space.comp);
        p.uncompressed_freed_before_next_snap = p.uncompressed_freed_before_next_snap.wrapping_add(space.uncomp);
    }

    pub(in crate::dsl) fn store(&self, tx: &Tx, zap: &Zap) -> Result<(), Error> {
        Ok(zap.update(tx, &self.name, 8, &self.words())?)
    }
}

fn split_bookmark(name: &str) -> Result<(&str, &str), Error> {
    name.split_once('#').ok_or_else(|| refused(name, Refusal::Invalid("the name of a bookmark has a '#'")))
}

impl Mos {
    /// The list of bookmarks of a head.
    pub(in crate::dsl) fn bookmark_zap(&self, head: ObjectId) -> Result<Option<Zap>, Error> {
        self.extra_id(head, dataset_keys::BOOKMARK_NAMES)?.map(|id| self.zap(id)).transpose()
    }

    /// The bookmarks of a head, the oldest first.
    pub(in crate::dsl) fn marks(&self, head: ObjectId) -> Result<Vec<Mark>, Error> {
        let Some(zap) = self.bookmark_zap(head)? else { return Ok(Vec::new()) };
        let of = |(name, value): (String, dmu::ZapValue)| {
            let object = zap.object().id();
            let phys = BookmarkPhys::from_words(&value.u64s()).map_err(|source| Error::Format { object, source })?;
            Ok(Mark { name, phys })
        };
        let mut all = mos::named_entries(&zap)?.into_iter().map(of).collect::<Result<Vec<_>, Error>>()?;
        all.sort_by(|a, b| (a.phys.creation_txg, &a.name).cmp(&(b.phys.creation_txg, &b.name)));
        Ok(all)
    }

    fn mark(&self, head: &Live, short: &str) -> Result<Option<Mark>, Error> {
        let Some(zap) = self.bookmark_zap(head.id)? else { return Ok(None) };
        let found = match head.phys.flags & DslDatasetPhys::FLAG_CI_DATASET != 0 && zap.normflags() != 0 {
            true => match zap.lookup_norm(short, MatchMode::Normalize)? {
                Some(found) => Some((mos::text(&zap, &found.name)?, found.value)),
                None => None,
            },
            false => zap.lookup(short)?.map(|value| (short.to_string(), value)),
        };
        let object = zap.object().id();
        let phys = |value: dmu::ZapValue| {
            BookmarkPhys::from_words(&value.u64s()).map_err(|source| Error::Format { object, source })
        };
        found.map(|(name, value)| Ok(Mark { name, phys: phys(value)? })).transpose()
    }

    /// The txgs after `after` of bookmarks that account freed space: keys that the deadlist of a head needs once it has a newer snapshot (OpenZFS:
    /// `dsl_bookmark_snapshotted`).
    pub(in crate::dsl) fn bookmark_keys(&self, head: ObjectId, after: Txg) -> Result<Vec<Txg>, Error> {
        let marks = self.marks(head)?;
        let due = marks.iter().filter(|mark| mark.keeps_account() && mark.phys.creation_txg > after);
        Ok(due.map(|mark| mark.phys.creation_txg).collect())
    }

    /// The txgs of bookmarks that account freed space and whose next dataset is the head itself; `prev_snap` is that of its last snapshot.
    pub(in crate::dsl) fn counting_marks(&self, head: ObjectId, prev_snap: Txg) -> Result<Vec<Txg>, Error> {
        let marks = self.marks(head)?;
        let due = marks.iter().filter(|mark| mark.keeps_account() && mark.phys.creation_txg >= prev_snap);
        let mut txgs: Vec<Txg> = due.map(|mark| mark.phys.creation_txg).collect();
        txgs.dedup();
        Ok(txgs)
    }

    /// Adds to bookmarks, by txg, the space of their blocks that the head freed (OpenZFS: `dsl_bookmark_sync_done`).
    pub(in crate::dsl) fn count_killed(&self, tx: &Tx, head: ObjectId, killed: &[(Txg, Delta)]) -> Result<(), Error> {
        let killed: Vec<_> = killed.iter().filter(|(_, sum)| !sum.is_zero()).collect();
        let Some(zap) = (if killed.is_empty() { None } else { self.bookmark_zap(head)? }) else { return Ok(()) };
        for mut mark in self.marks(head)?.into_iter().filter(Mark::keeps_account) {
            let of_it = killed.iter().find(|(txg, _)| *txg == mark.phys.creation_txg);
            if let Some((_, sum)) = of_it {
                mark.add_freed(Space { used: sum.used as u64, comp: sum.comp as u64, uncomp: sum.uncomp as u64 });
                mark.store(tx, &zap)?;
            }
        }
        Ok(())
    }

    /// Returns whether the point `txg` of the datasets in directory `dir` is in the past of `later` (OpenZFS: `dsl_dataset_is_before`).
    fn is_before(&self, later: &Live, dir: ObjectId, txg: Txg) -> Result<bool, Error> {
        let mut at = later.clone();
        loop {
            if at.phys.is_snapshot() && txg >= at.phys.creation_txg {
                return Ok(at.phys.dir_obj == dir && txg == at.phys.creation_txg);
            }
            if at.phys.dir_obj == dir {
                return Ok(true);
            }
            match self.dir_phys(at.phys.dir_obj)?.origin_obj {
                ObjectId::NONE => return Ok(false),
                id => {
                    let origin = self.live(id)?;
                    if at.phys.is_snapshot() && origin.phys.creation_txg >= at.phys.creation_txg {
                        return Err(Error::corrupt(id, "origins do not grow older"));
                    }
                    at = origin;
                }
            }
        }
    }
}

impl Spa {
    /// Creates bookmarks, all of them or none: each is `fs#new` of a snapshot `fs@snap` or of a bookmark `fs#old`, of the same file system or of
    /// one that it is a clone of.
    ///
    /// # Errors
    /// [`Error::Many`], with an error for each that cannot be made: [`Refusal::Exists`], [`Refusal::NotAncestor`],
    /// [`Refusal::NameTooLong`], [`Error::NoSuchDataset`], [`Error::InvalidName`]. [`Error::FeatureDisabled`].
    pub fn bookmark(self: &Arc<Self>, new: &[(String, String)]) -> Result<(), Error> {
        let new = new.to_vec();
        self.growing_task(new.len(), move |cx| cx.spa.bookmark_all(cx, &new))
    }

    fn bookmark_all(&self, cx: &TaskCx<'_>, new: &[(String, String)]) -> Result<(), Error> {
        if !self.feature_enabled(cx.mos, "bookmarks")? {
            return Err(Error::FeatureDisabled("bookmarks".to_string()));
        }
        let (mut made, mut failed, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (name, source) in new {
            match self.check_bookmark(cx.mos, name, source) {
                Ok(_) if !seen.insert(name) => failed.push((name.clone(), refused(name, Refusal::Exists))),
                Ok((head, mark, snap)) => made.push((name, head, mark, snap)),
                Err(error) => failed.push((name.clone(), error)),
            }
        }
        if !failed.is_empty() {
            return Err(Error::Many(failed));
        }
        for (name, head, mut mark, snap) in made {
            if let Some(snap) = &snap {
                mark.phys.redaction_obj = self.redaction_of(cx.mos, cx.tx, snap)?;
            }
            self.add_mark(cx.mos, cx.tx, &head, &mut mark)?;
            let p = &mark.phys;
            let origin = match &snap {
                Some(snap) => format!("target_snap={} redact_obj={}", snap.id, p.redaction_obj),
                None => format!("source_guid={}", p.guid.0),
            };
            let what = format!("name={} creation_txg={} {origin}", mark.name, p.creation_txg.0);
            let (fs, _) = split_bookmark(name)?;
            self.log_named(cx.mos, cx.tx, "bookmark", (fs, head.id), &what)?;
        }
        Ok(())
    }

    /// The head that gets a bookmark, what it will be, and the snapshot that it is of, if not of another bookmark.
    fn check_bookmark(&self, mos: &Mos, name: &str, source: &str) -> Result<(Live, Mark, Option<Live>), Error> {
        let (fs, short) = split_bookmark(name)?;
        check_component(name, short)?;
        if name.len() > NAME_MAX {
            return Err(refused(name, Refusal::NameTooLong));
        }
        let head = self.find_head(mos, fs)?;
        if mos.mark(&head, short)?.is_some() {
            return Err(refused(name, Refusal::Exists));
        }
        let (dir, phys, snap) = if source.contains('#') {
            let (from, old) = split_bookmark(source)?;
            let from = self.find_head(mos, from)?;
            let mark = mos.mark(&from, old)?.ok_or_else(|| Error::no_dataset(source))?;
            (from.phys.dir_obj, BookmarkPhys { redaction_obj: ObjectId::NONE, ..mark.phys }, None)
        } else {
            let snap = self.find_snapshot(mos, source)?;
            (snap.phys.dir_obj, self.mark_of(mos, &snap)?, Some(snap))
        };
        if !mos.is_before(&head, dir, phys.creation_txg)? {
            return Err(refused(name, Refusal::NotAncestor));
        }
        Ok((head, Mark { name: short.to_string(), phys }, snap))
    }

    /// The bookmark of a snapshot (OpenZFS: `dsl_bookmark_set_phys`).
    pub(in crate::dsl) fn mark_of(&self, mos: &Mos, snap: &Live) -> Result<BookmarkPhys, Error> {
        let p = &snap.phys;
        let mut phys = BookmarkPhys {
            guid: p.guid,
            creation_txg: p.creation_txg,
            creation_time: p.creation_time,
            words: WORDS_V1,
            ..BookmarkPhys::default()
        };
        if self.feature_enabled(mos, "bookmark_v2")? {
            phys.ivset_guid = mos.extra(snap.id, dataset_keys::IVSET_GUID)?.map(Guid).unwrap_or_default();
        }
        if self.feature_enabled(mos, "bookmark_written")? {
            phys.flags = BookmarkPhys::FLAG_HAS_FBN | BookmarkPhys::FLAG_SNAPSHOT_EXISTS;
            phys.referenced_bytes_refd = p.referenced_bytes;
            phys.compressed_bytes_refd = p.compressed_bytes;
            phys.uncompressed_bytes_refd = p.uncompressed_bytes;
            let next = mos.dataset_phys(p.next_snap_obj)?;
            let freed = Deadlist::open(mos, next.deadlist_obj)?.space();
            phys.referenced_freed_before_next_snap = freed.used;
            phys.compressed_freed_before_next_snap = freed.comp;
            phys.uncompressed_freed_before_next_snap = freed.uncomp;
        }
        Ok(phys)
    }

    /// Recalculates the bookmarks of a snapshot in `head`, after a promotion or a swap changed the dataset that follows the snapshot (OpenZFS:
    /// `dsl_bookmark_next_changed`).
    pub(in crate::dsl) fn recount_marks(&self, mos: &Mos, tx: &Tx, head: ObjectId, snap: &Live) -> Result<(), Error> {
        let Some(zap) = mos.bookmark_zap(head)? else { return Ok(()) };
        let at = |mark: &Mark| mark.keeps_account() && mark.phys.creation_txg == snap.phys.creation_txg;
        for mut mark in mos.marks(head)?.into_iter().filter(at) {
            mark.phys = BookmarkPhys {
                redaction_obj: mark.phys.redaction_obj,
                words: mark.phys.words,
                ..self.mark_of(mos, snap)?
            };
            mark.store(tx, &zap)?;
        }
        Ok(())
    }

    /// The list of bookmarks of a head; created if there is none.
    pub(in crate::dsl) fn own_bookmark_zap(&self, mos: &Mos, tx: &Tx, head: ObjectId) -> Result<Zap, Error> {
        if let Some(zap) = mos.bookmark_zap(head)? {
            return Ok(zap);
        }
        let new = NewZap { object_type: ObjectType::OTN_ZAP_METADATA, normflags: TOUPPER, ..NewZap::default() };
        let zap = Zap::create_with(tx, &mos.objset, &new)?;
        self.feature_increment(mos, tx, "bookmarks")?;
        self.zapify(mos, tx, head)?.add_id(tx, dataset_keys::BOOKMARK_NAMES, zap.object().id())?;
        Ok(zap)
    }

    fn add_mark(&self, mos: &Mos, tx: &Tx, head: &Live, mark: &mut Mark) -> Result<(), Error> {
        let zap = self.own_bookmark_zap(mos, tx, head.id)?;
        let p = &mut mark.phys;
        let more = p.ivset_guid.0 != 0 || p.redaction_obj.is_some() || p.flags & BookmarkPhys::FLAG_HAS_FBN != 0;
        p.words = WORDS_V1;
        if more && self.feature_enabled(mos, "bookmark_v2")? {
            p.words = WORDS_V2;
            self.feature_increment(mos, tx, "bookmark_v2")?;
        }
        if p.flags & BookmarkPhys::FLAG_HAS_FBN != 0 {
            self.feature_increment(mos, tx, "bookmark_written")?;
        }
        Ok(zap.add(tx, &mark.name, 8, &mark.words())?)
    }

    /// The list of the snapshots with respect to which `snap` is redacted, for its bookmark.
    fn redaction_of(&self, mos: &Mos, tx: &Tx, snap: &Live) -> Result<ObjectId, Error> {
        if !mos.object(snap.id)?.phys().object_type.is_zap() {
            return Ok(ObjectId::NONE);
        }
        let Some(snaps) = mos.zap(snap.id)?.lookup(dataset_keys::REDACTED_DATASETS)? else { return Ok(ObjectId::NONE) };
        let snaps = snaps.u64s();
        // complete, without an entry: last object, last block, entries, snapshots
        let words = [u64::MAX, u64::MAX, 0, snaps.len() as u64].into_iter().chain(snaps);
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let spill = bytes.len() > BONUS_MAX;
        let object = mos.objset.alloc_object(
            tx,
            &NewObject {
                object_type: ObjectType::OTN_UINT64_METADATA,
                block_size: REDACTION_BLOCK,
                bonus_type: ObjectType::OTN_UINT64_METADATA,
                bonus_len: if spill { 0 } else { bytes.len() },
                ..NewObject::default()
            },
        )?;
        self.feature_increment(mos, tx, "redaction_bookmarks")?;
        if spill {
            self.feature_increment(mos, tx, "redaction_list_spill")?;
            let len = bytes.len().next_multiple_of(512);
            let mut bytes = bytes;
            bytes.resize(len, 0);
            object.set_spill(tx, bytes)?;
        } else {
            object.set_bonus(tx, &bytes)?;
        }
        Ok(object.id())
    }

    /// Destroys bookmarks, in one txg; those that do not exist are skipped.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for a name that is none of a bookmark; when the MOS cannot be changed.
    pub fn destroy_bookmarks(self: &Arc<Self>, names: &[String]) -> Result<(), Error> {
        let names = names.to_vec();
        self.sync_task(move |cx| cx.spa.destroy_all_marks(cx, &names))
    }

    fn destroy_all_marks(&self, cx: &TaskCx<'_>, names: &[String]) -> Result<(), Error> {
        let (mut due, mut seen) = (Vec::new(), BTreeSet::new());
        for name in names {
            let (fs, short) = split_bookmark(name)?;
            check_old_component(name, short)?;
            let head = match self.find_head(cx.mos, fs) {
                Ok(head) => head,
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error),
            };
            if let Some(mark) = cx.mos.mark(&head, short)?
                && seen.insert((head.id, mark.name.clone()))
            {
                due.push((fs, head.id, mark));
            }
        }
        for (fs, head, mark) in due {
            self.destroy_mark(cx.mos, cx.tx, &cx.mos.live(head)?, &mark)?;
            self.log_named(cx.mos, cx.tx, "remove bookmark", (fs, head), &format!("name={}", mark.name))?;
        }
        Ok(())
    }

    fn destroy_mark(&self, mos: &Mos, tx: &Tx, head: &Live, mark: &Mark) -> Result<(), Error> {
        let Some(zap) = mos.bookmark_zap(head.id)? else { return Ok(()) };
        remove_present(tx, &zap, &mark.name)?;
        self.release_mark(mos, tx, mark)?;
        let txg = mark.phys.creation_txg;
        if mark.keeps_account() {
            let others = mos.marks(head.id)?.iter().any(|m| m.keeps_account() && m.phys.creation_txg == txg);
            let snapshot = mark.phys.flags & BookmarkPhys::FLAG_SNAPSHOT_EXISTS != 0;
            // the last for whose sake deadlists have its txg for a key
            if !snapshot && !others && txg < head.phys.prev_snap_txg {
                self.remove_clones_keys(mos, tx, head.phys.dir_obj, &[txg])?;
                self.remove_keys(mos, tx, head, &[txg])?;
            }
        }
        if zap.count() == 0 {
            mos.objset.free_object(tx, zap.object().id())?;
            mos.zap(head.id)?.remove(tx, dataset_keys::BOOKMARK_NAMES)?;
            self.feature_decrement(mos, tx, "bookmarks")?;
        }
        Ok(())
    }

    /// Releases what a bookmark uses, except its ZAP entry.
    fn release_mark(&self, mos: &Mos, tx: &Tx, mark: &Mark) -> Result<(), Error> {
        if mark.phys.words > WORDS_V1 {
            self.feature_decrement(mos, tx, "bookmark_v2")?;
        }
        if mark.keeps_account() {
            self.feature_decrement(mos, tx, "bookmark_written")?;
        }
        if mark.phys.redaction_obj.is_some() {
            if mos.object(mark.phys.redaction_obj)?.spill_with_endian()?.is_some() {
                self.feature_decrement(mos, tx, "redaction_list_spill")?;
            }
            mos.objset.free_object(tx, mark.phys.redaction_obj)?;
            self.feature_decrement(mos, tx, "redaction_bookmarks")?;
        }
        Ok(())
    }

    /// Drops all bookmarks of a head that is destroyed.
    pub(in crate::dsl) fn drop_marks(&self, mos: &Mos, tx: &Tx, head: ObjectId) -> Result<(), Error> {
        let Some(zap) = mos.bookmark_zap(head)? else { return Ok(()) };
        for mark in mos.marks(head)? {
            self.release_mark(mos, tx, &mark)?;
        }
        mos.objset.free_object(tx, zap.object().id())?;
        mos.zap(head)?.remove(tx, dataset_keys::BOOKMARK_NAMES)?;
        self.feature_decrement(mos, tx, "bookmarks")
    }

    /// Updates bookmarks when snapshots are destroyed: those in and before the run have another snapshot next, and those of the run have no
    /// snapshot any more. Returns the txgs of the latter (OpenZFS: `dsl_bookmark_ds_destroyed`).
    pub(in crate::dsl) fn bookmarks_without_snapshots(
        &self,
        mos: &Mos,
        tx: &Tx,
        run: &Run<'_>,
    ) -> Result<BTreeSet<Txg>, Error> {
        let head = mos.dir_phys(run.first.snap.phys.dir_obj)?.head_dataset_obj;
        let Some(zap) = mos.bookmark_zap(head)? else { return Ok(BTreeSet::new()) };
        let (since, until) = (run.first.snap.phys.prev_snap_txg, run.last.snap.phys.creation_txg);
        let mut without = BTreeSet::new();
        for mut mark in mos.marks(head)?.into_iter().filter(Mark::keeps_account) {
            let txg = mark.phys.creation_txg;
            if txg < since || txg > until {
                continue;
            }
            // what died behind the one that was next
            let was_next = run.all.partition_point(|one| one.snap.phys.creation_txg <= txg);
            let behind = run.all.iter().skip(was_next + 1).map(|one| one.snap.phys.deadlist_obj);
            let last = (txg < until).then_some(run.next_deadlist());
            for list in behind.chain(last) {
                mark.add_freed(Deadlist::open(mos, list)?.space_range(Txg(0), txg)?);
            }
            if run.all.iter().any(|one| one.snap.phys.creation_txg == txg) {
                mark.phys.flags &= !BookmarkPhys::FLAG_SNAPSHOT_EXISTS;
                without.insert(txg);
            }
            mark.store(tx, &zap)?;
        }
        Ok(without)
    }
}
