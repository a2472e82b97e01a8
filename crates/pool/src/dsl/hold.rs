//! User holds, which keep snapshots from being destroyed (OpenZFS: `dsl_userhold.c`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::ObjectId;
use ondisk::ObjectType;
use ondisk::dsl::DslDatasetPhys;

use crate::Error;
use crate::dsl::Refusal;
use crate::dsl::destroy::snapshot::Doomed;
use crate::dsl::lookup::Live;
use crate::dsl::refused;
use crate::spa::mos::Mos;
use crate::spa::mos::edit::remove_present;
use crate::spa::{Spa, TaskCx};

/// The longest tag in bytes (OpenZFS: `MAXNAMELEN`, which as the size of a ZAP entry's name includes the NUL).
const TAG_MAX: usize = 255;
/// The first pool version with holds (OpenZFS: `SPA_VERSION_USERREFS`).
const VERSION_USERREFS: u64 = 18;

impl Spa {
    /// Holds snapshots, each with a tag of its own: all that exist, or none. Returns those that do not exist, which do not prevent the others from
    /// being held (OpenZFS: `dsl_dataset_user_hold_check`).
    ///
    /// # Errors
    /// [`Error::Many`], with an error for each snapshot that cannot be held: [`Refusal::NotSnapshot`], [`Refusal::TagTooLong`],
    /// [`Refusal::TagExists`], and behind these [`Error::NoSuchDataset`]. [`Refusal::Unsupported`] for a pool before version 18.
    pub fn hold(self: &Arc<Self>, holds: &[(String, String)]) -> Result<Vec<String>, Error> {
        let holds = holds.to_vec();
        self.growing_task(holds.len(), move |cx| cx.spa.hold_all(cx, &holds))
    }

    fn hold_all(&self, cx: &TaskCx<'_>, holds: &[(String, String)]) -> Result<Vec<String>, Error> {
        let (mut found, mut failed, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut missing = Vec::new();
        for (name, tag) in holds {
            match self.check_hold(cx.mos, name, tag) {
                Ok(snap) if !seen.insert((snap.id, tag)) => {
                    failed.push((name.clone(), refused(name, Refusal::TagExists)));
                }
                Ok(snap) => found.push((name, snap, tag)),
                Err(error) if error.is_not_found() => missing.push((name.clone(), error)),
                Err(error) => failed.push((name.clone(), error)),
            }
        }
        if !failed.is_empty() {
            failed.extend(missing);
            return Err(Error::Many(failed));
        }
        let now = self.env().now_s();
        for (name, snap, tag) in found {
            // one before may have made the list
            let list = match cx.mos.dataset_phys(snap.id)?.userrefs_obj {
                ObjectId::NONE => {
                    let list = cx.mos.new_zap(cx.tx, ObjectType::USERREFS)?;
                    cx.mos.edit_dataset(cx.tx, snap.id, |phys| phys.userrefs_obj = list)?;
                    list
                }
                list => list,
            };
            let list = cx.mos.zap(list)?;
            list.add_u64(cx.tx, tag, now)?;
            let what = format!("tag={tag} temp=0 refs={}", list.count());
            self.log_named(cx.mos, cx.tx, "hold", (name, snap.id), &what)?;
        }
        Ok(missing.into_iter().map(|(name, _)| name).collect())
    }

    fn check_hold(&self, mos: &Mos, name: &str, tag: &str) -> Result<Live, Error> {
        let snap = self.check_tag(mos, name, tag)?;
        if held_by(mos, &snap, tag)? { Err(refused(name, Refusal::TagExists)) } else { Ok(snap) }
    }

    fn check_tag(&self, mos: &Mos, name: &str, tag: &str) -> Result<Live, Error> {
        if self.uberblock().version < VERSION_USERREFS {
            return Err(refused(name, Refusal::Unsupported));
        }
        if tag.len() > TAG_MAX {
            return Err(refused(name, Refusal::TagTooLong));
        }
        if tag.is_empty() || tag.contains('\0') {
            return Err(refused(name, Refusal::Invalid("a tag is empty or has a NUL")));
        }
        self.find_snapshot(mos, name)
    }

    /// Releases holds; returns the snapshots and holds (`snapshot#tag`) that do not exist, which do not prevent the others from being released
    /// (OpenZFS: `dsl_dataset_user_release_check`). A snapshot whose destruction was deferred is destroyed with its last hold, if it has no clones.
    ///
    /// # Errors
    /// [`Error::Many`], with an error for each that cannot be released, as [`Refusal::NotSnapshot`], or [`Refusal::Busy`] for a snapshot that would
    /// be destroyed and is being read, followed by those that do not exist: then none is released.
    pub fn release(self: &Arc<Self>, holds: &[(String, String)]) -> Result<Vec<String>, Error> {
        let (holds, _frozen) = (holds.to_vec(), self.freeze_holds());
        self.sync_task(move |cx| cx.spa.release_all(cx, &holds))
    }

    fn release_all(&self, cx: &TaskCx<'_>, holds: &[(String, String)]) -> Result<Vec<String>, Error> {
        let (mut found, mut failed, mut missing) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        for (name, tag) in holds {
            match self.find_held(cx.mos, name, tag) {
                Ok(Some(snap)) => {
                    let (_, tags) = found.entry(snap.id).or_insert_with(|| (name, BTreeSet::new()));
                    tags.insert(tag);
                }
                Ok(None) => _ = missing.insert(format!("{name}#{tag}")),
                Err(error) if error.is_not_found() => _ = missing.insert(name.clone()),
                Err(error) => failed.push((name.clone(), error)),
            }
        }
        for (id, (name, tags)) in &found {
            let snap = cx.mos.live(*id)?;
            let others = cx.mos.zap(snap.phys.userrefs_obj)?.count() > tags.len() as u64;
            if !others && is_deferred(&snap.phys) && !self.doom(&snap) {
                failed.push(((*name).clone(), refused(name, Refusal::Busy)));
            }
        }
        if !failed.is_empty() {
            failed.extend(missing.into_iter().map(|name| (name.clone(), Error::NoSuchDataset { name })));
            return Err(Error::Many(failed));
        }
        for (id, (name, tags)) in found {
            let list = cx.mos.zap(cx.mos.dataset_phys(id)?.userrefs_obj)?;
            for tag in tags {
                remove_present(cx.tx, &list, tag)?;
                let what = format!("tag={tag} refs={}", list.count());
                self.log_named(cx.mos, cx.tx, "release", (name, id), &what)?;
            }
            let snap = cx.mos.live(id)?;
            if is_due(cx.mos, &snap.phys)? {
                self.destroy_of_dir(cx.mos, cx.tx, vec![Doomed { name: name.clone(), snap }])?;
            }
        }
        Ok(missing.into_iter().collect())
    }

    /// The snapshot, if it has a hold of this tag.
    fn find_held(&self, mos: &Mos, name: &str, tag: &str) -> Result<Option<Live>, Error> {
        let snap = self.check_tag(mos, name, tag)?;
        Ok(held_by(mos, &snap, tag)?.then_some(snap))
    }
}

/// Returns whether a snapshot has a hold of this tag.
fn held_by(mos: &Mos, snap: &Live, tag: &str) -> Result<bool, Error> {
    let list = mos.zap_if(snap.phys.userrefs_obj)?;
    Ok(list.map(|list| list.lookup_u64(tag)).transpose()?.flatten().is_some())
}

/// Returns whether a snapshot's destruction was deferred and nothing keeps it any more.
pub(super) fn is_due(mos: &Mos, phys: &DslDatasetPhys) -> Result<bool, Error> {
    let held = mos.zap_if(phys.userrefs_obj)?.is_some_and(|list| list.count() > 0);
    Ok(is_deferred(phys) && !held)
}

/// Returns whether a snapshot's destruction was deferred and only holds can keep it.
fn is_deferred(phys: &DslDatasetPhys) -> bool {
    phys.flags & DslDatasetPhys::FLAG_DEFER_DESTROY != 0 && phys.num_children <= 1
}
