//! Renames file systems, volumes and snapshots (OpenZFS: `dsl_dir_rename_check`, `dsl_dir_rename_sync`, `dsl_dataset_rename_snapshot_check`).

use std::sync::Arc;

use base::ObjectId;
use ondisk::dsl::{DslDirPhys, dir_keys};

use crate::dsl::Refusal;
use crate::dsl::lookup::{NAME_MAX, NESTING_MAX, check_component, check_name, split_parent};
use crate::dsl::refused;
use crate::dsl::space::quota;
use crate::dsl::space::{Delta, Used, parent_delta};
use crate::spa::mos::edit::remove_present;
use crate::spa::mos::{self, Mos};
use crate::spa::{Spa, TaskCx};
use crate::{Error, Value};

impl Spa {
    /// Gives a file system or volume, with all below it, another name, which may be below another file system.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`], [`Error::InvalidName`]; [`Error::Refused`]: [`Refusal::Exists`], [`Refusal::NoParent`],
    /// [`Refusal::NotAFilesystem`], [`Refusal::CrossPool`], [`Refusal::NameTooLong`] and [`Refusal::TooDeep`] also for what is below,
    /// [`Refusal::EncryptionRoot`], [`Refusal::NoSpace`], [`Refusal::Invalid`] for a place below itself.
    pub fn rename(self: &Arc<Self>, from: &str, to: &str) -> Result<(), Error> {
        check_name(to)?;
        if from.split('/').next() != to.split('/').next() {
            return Err(refused(to, Refusal::CrossPool));
        }
        let (from, to) = (from.to_string(), to.to_string());
        self.sync_task(move |cx| {
            let (old_parent, old_name) = split_parent(&from)?;
            let old_parent = cx.spa.find_dir(cx.mos, old_parent)?;
            let dir = cx.spa.find_dir(cx.mos, &from)?;
            let (parent, name) = cx.spa.check_new(cx.mos, &to)?;
            let lengths = (to.len() as i64 - from.len() as i64, depth(&to) - depth(&from));
            if lengths.0 > 0 || lengths.1 > 0 {
                cx.spa.check_names_below(cx.mos, dir, &from, lengths)?;
            }
            if parent != old_parent {
                cx.spa.check_move(cx.mos, &to, dir, old_parent, parent)?;
            }
            let phys = cx.mos.dir_phys(dir)?;
            let what = format!("-> {to}");
            cx.spa.log_named(cx.mos, cx.tx, "rename", (&from, phys.head_dataset_obj), &what)?;
            if parent != old_parent {
                cx.move_space(dir, &phys, old_parent, parent)?;
            }
            remove_present(cx.tx, &cx.mos.zap(cx.mos.dir_phys(old_parent)?.child_dir_zapobj)?, old_name)?;
            cx.mos.edit_dir(cx.tx, dir, |dir| dir.parent_obj = parent)?;
            cx.mos.zap(cx.mos.dir_phys(parent)?.child_dir_zapobj)?.add_id(cx.tx, name, dir)?;
            cx.spa.refresh_open_datasets(cx.mos, dir)
        })
    }

    /// Gives snapshot `from` of `fs` the name `to`; with `recursive` in all file systems and volumes below too that have such a snapshot.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`], [`Error::InvalidName`]; [`Error::Refused`]: [`Refusal::Exists`], [`Refusal::NameTooLong`].
    pub fn rename_snapshot(self: &Arc<Self>, fs: &str, from: &str, to: &str, recursive: bool) -> Result<(), Error> {
        check_component(to, to)?;
        let (fs, from, to) = (fs.to_string(), from.to_string(), to.to_string());
        self.sync_task(move |cx| {
            let head = cx.spa.find_head(cx.mos, &fs)?;
            if !recursive && cx.mos.snapshot_id(&head.phys, &from)?.is_none() {
                return Err(Error::no_dataset(&format!("{fs}@{from}")));
            }
            let mut heads = vec![(fs.clone(), head.id)];
            if recursive {
                cx.mos.heads_below(head.phys.dir_obj, &fs, &mut heads, 0)?;
            }
            let mut found = Vec::new();
            for (name, id) in heads {
                let head = cx.mos.dataset_phys(id)?;
                let Some(snap) = cx.mos.snapshot_id(&head, &from)? else { continue };
                let new = format!("{name}@{to}");
                if cx.mos.snapshot_id(&head, &to)?.is_some() {
                    return Err(refused(&new, Refusal::Exists));
                }
                if new.len() > NAME_MAX {
                    return Err(refused(&new, Refusal::NameTooLong));
                }
                found.push((name, head, snap));
            }
            for (name, head, snap) in found {
                let what = format!("-> @{to}");
                cx.spa.log_named(cx.mos, cx.tx, "rename", (&format!("{name}@{from}"), snap), &what)?;
                let names = cx.mos.zap(head.snapnames_zapobj)?;
                // whatever its case
                let stored = cx.mos.snapshot_name(&cx.mos.live(snap)?)?;
                remove_present(cx.tx, &names, stored)?;
                names.add_id(cx.tx, &to, snap)?;
                cx.spa.snapshots_changed(cx.mos, cx.tx, head.dir_obj)?;
            }
            Ok(())
        })
    }

    /// Checks that all names below `dir` can grow by this many bytes and levels.
    fn check_names_below(
        &self,
        mos: &Mos,
        dir: ObjectId,
        name: &str,
        (bytes, levels): (i64, i64),
    ) -> Result<(), Error> {
        let head = mos.dir_phys(dir)?.head_dataset_obj;
        let mut heads = vec![(name.to_string(), head)];
        mos.heads_below(dir, name, &mut heads, 0)?;
        for (name, id) in heads {
            let mut longest = name.len();
            if let Some(snaps) = mos.zap_if(mos.dataset_phys(id)?.snapnames_zapobj)? {
                for (snap, _) in mos::named_entries(&snaps)? {
                    longest = longest.max(name.len() + 1 + snap.len());
                }
            }
            if longest as i64 + bytes > NAME_MAX as i64 {
                return Err(refused(&name, Refusal::NameTooLong));
            }
            if levels > 0 && depth(&name) + levels >= NESTING_MAX as i64 {
                return Err(refused(&name, Refusal::TooDeep));
            }
        }
        Ok(())
    }

    /// Checks that directory `dir` can move from `old` to below `new`.
    fn check_move(&self, mos: &Mos, name: &str, dir: ObjectId, old: ObjectId, new: ObjectId) -> Result<(), Error> {
        if new == dir || mos.is_below(new, dir)? {
            return Err(refused(name, Refusal::Invalid("a dataset cannot be moved below itself")));
        }
        let root = mos.key_root(dir)?;
        if root.is_some_and(|root| root != dir) && mos.key_root(new)? != root {
            return Err(refused(name, Refusal::EncryptionRoot));
        }
        // stricter than OpenZFS, which lets the origin of a clone move below it: then nothing keeps their encryption root
        if root.is_some_and(|root| root != dir) && !self.is_clone(mos, dir)? && self.key_hangs_on(mos, new, dir)? {
            return Err(refused(name, Refusal::EncryptionRoot));
        }
        let phys = mos.dir_phys(dir)?;
        let space = quota::used_of(&phys).max(phys.reserved);
        if self.room_for_transfer(mos, old, new, space)? { Ok(()) } else { Err(refused(name, Refusal::NoSpace)) }
    }

    /// Checks that `space` bytes can move from directory `from` to directory `to` (OpenZFS: `dsl_dir_transfer_possible`).
    pub(in crate::dsl) fn room_for_transfer(
        &self,
        mos: &Mos,
        from: ObjectId,
        to: ObjectId,
        space: u64,
    ) -> Result<bool, Error> {
        let above: Vec<ObjectId> = mos.lineage(to)?.into_iter().map(|(id, _)| id).collect();
        // what leaves is room again where the two lines meet
        let mut delta = (space as i64).wrapping_neg();
        for (id, dir) in mos.lineage(from)? {
            if above.contains(&id) {
                return Ok(self.space_available(mos, to, Some((id, delta)))? >= space);
            }
            delta = parent_delta(dir.reserved, dir.used_bytes, delta);
        }
        Err(Error::corrupt(to, "two directories have no root in common"))
    }

    /// The setting of a property, as text.
    pub(in crate::dsl) fn prop_text(&self, mos: &Mos, dir: ObjectId, name: &str) -> Result<Option<String>, Error> {
        Ok(mos.prop(dir, name)?.and_then(|value| match value {
            Value::String(text) => Some(text),
            Value::Number(_) => None,
        }))
    }
}

fn depth(name: &str) -> i64 {
    name.matches('/').count() as i64
}

impl Mos {
    /// The heads below directory `dir`, called `name`, with their names; special directories are left out.
    pub(in crate::dsl) fn heads_below(
        &self,
        dir: ObjectId,
        name: &str,
        into: &mut Vec<(String, ObjectId)>,
        depth: usize,
    ) -> Result<(), Error> {
        if depth > quota::DEPTH_MAX {
            return Err(Error::corrupt(dir, "directories are nested too deeply"));
        }
        for (child, id) in mos::child_dirs(&self.zap(self.dir_phys(dir)?.child_dir_zapobj)?)? {
            let phys = self.dir_phys(id)?;
            if phys.parent_obj != dir {
                return Err(Error::corrupt(id, "a directory that is listed in another than its parent"));
            }
            let head = phys.head_dataset_obj;
            if head.is_none() || child.starts_with('$') {
                continue;
            }
            let full = format!("{name}/{child}");
            into.push((full.clone(), head));
            self.heads_below(id, &full, into, depth + 1)?;
        }
        Ok(())
    }
}

impl TaskCx<'_> {
    /// Moves the accounting of the space of directory `dir` from `old` to `new`.
    fn move_space(&self, dir: ObjectId, phys: &DslDirPhys, old: ObjectId, new: ObjectId) -> Result<(), Error> {
        let (spa, mos, tx) = (self.spa, self.mos, self.tx);
        if spa.feature_active(mos, "filesystem_limits")? {
            spa.activate_limits(mos, tx, dir)?;
            let count = |key: &str| mos.extra(dir, key).map(|n| n.unwrap_or(0) as i64);
            let moved = [
                (dir_keys::FILESYSTEM_COUNT, count(dir_keys::FILESYSTEM_COUNT)? + 1),
                (dir_keys::SNAPSHOT_COUNT, count(dir_keys::SNAPSHOT_COUNT)?),
            ];
            for (key, n) in moved {
                mos.adjust_count(tx, old, key, -n)?;
                mos.adjust_count(tx, new, key, n)?;
            }
        }
        let used = Delta {
            used: phys.used_bytes as i64,
            comp: phys.compressed_bytes as i64,
            uncomp: phys.uncompressed_bytes as i64,
        };
        mos.did_use(tx, old, Used::Child, Delta::default().minus(used))?;
        mos.did_use(tx, new, Used::Child, used)?;
        let unused = Delta { used: phys.reserved.saturating_sub(quota::used_of(phys)) as i64, ..Delta::default() };
        mos.did_use(tx, old, Used::ChildRsrv, Delta::default().minus(unused))?;
        mos.did_use(tx, new, Used::ChildRsrv, unused)
    }
}
