//! Freeing files without a name (OpenZFS: `zfs_unlinked_add`, `zfs_unlinked_drain`, `zfs_purgedir`, `zfs_rmnode`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{ObjectId, tunable};
use dmu::{Object, Tx};

use super::hold::Ask;
use super::names::entry_word;
use super::steps::Steps;
use super::{SMALL_CHANGE, Zfs, Znode};
use crate::{DirEntry, Error, FileFlags, Kind};

/// The most files that are freed in one transaction.
const TOGETHER: usize = 64;
/// The most blocks of a file that is freed together with others: a sync has each block that is freed in memory.
const SMALL_BLOCKS: u64 = 1024;

/// A batch that is counted.
pub(super) struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Zfs {
    /// Enters a file that has just lost its last name in the unlinked set.
    fn unlinked_add(&self, steps: &Steps<'_>, node: &Arc<Znode>) -> Result<(), Error> {
        steps.add_number(&self.0.unlinked, node.id())?;
        let node = node.clone();
        steps.at_end(move |zfs, _| {
            zfs.0.stats.unlinks(1);
            if node.set_unlinked() {
                zfs.free_later(node.id());
            }
        });
        Ok(())
    }

    /// Claims the objects that change when a name of a file is removed, which may be the last.
    pub(super) fn claim_removed(&self, tx: &Tx, node: &Znode) -> Result<(), Error> {
        let objset = self.fs().objset();
        objset.claim(tx, node.id())?;
        Ok(objset.claim(tx, self.0.unlinked.object().id())?)
    }

    /// Schedules a file to be freed after the current operation.
    pub(super) fn free_later(&self, id: ObjectId) {
        self.0.reap.lock().push(id);
    }

    /// Frees the unlinked files that are no longer held. A file that cannot be freed, or must not be for now, stays in the
    /// unlinked set until the file system is next opened.
    pub(super) fn reap(&self) {
        // after the replay of a window
        if self.1.as_ref().is_some_and(|batch| batch.is_fixed()) {
            return;
        }
        if tunable::ZFS_UNLINK_SUSPEND_PROGRESS.get() != 0 {
            for id in std::mem::take(&mut *self.0.reap.lock()) {
                self.0.nodes.remove(id);
            }
            return;
        }
        loop {
            let ids = {
                let mut reap = self.0.reap.lock();
                let left = reap.len().saturating_sub(TOGETHER);
                reap.split_off(left)
            };
            if ids.is_empty() {
                return;
            }
            let (small, others): (Vec<ObjectId>, Vec<ObjectId>) =
                if ids.len() > 1 { ids.into_iter().partition(|id| self.is_small(*id)) } else { (Vec::new(), ids) };
            let alone = self.free_small(&small).unwrap_or(small).into_iter().chain(others);
            for id in alone {
                if self.free_node(id).is_err() {
                    self.0.nodes.remove(id);
                }
            }
        }
    }

    /// Does `work`, and frees the files that have no name and are let go of in it together.
    pub(super) fn reap_together(&self, work: impl FnOnce()) {
        let counted = self.count_batch();
        work();
        drop(counted);
        self.reap();
    }

    /// Counts a batch, until the result is dropped: files that are let go of meanwhile are freed after it.
    pub(super) fn count_batch(&self) -> Counted<'_> {
        self.0.batches.fetch_add(1, Ordering::SeqCst);
        Counted(&self.0.batches)
    }

    /// True if a file can be freed in one step, together with others.
    fn is_small(&self, id: ObjectId) -> bool {
        self.znode(id).is_ok_and(|node| {
            let (kind, hidden) = node.with_attrs(|attrs| (attrs.kind(), attrs.xattr_dir));
            let is_small = kind != Kind::Directory && hidden.is_none() && node.object().nblocks() <= SMALL_BLOCKS;
            // what lies below a block that cannot be read would never be freed: such a file stays, for the next opening
            is_small && node.object().next_data(0).is_ok()
        })
    }

    /// Frees files in one transaction. Returns those that could not be freed.
    fn free_small(&self, ids: &[ObjectId]) -> Result<Vec<ObjectId>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let objects = [ids, &[self.0.unlinked.object().id()]].concat();
        let bytes = SMALL_CHANGE.saturating_mul(ids.len() as u64);
        let place = self.place(&Ask { netfree: true, ..self.ask(bytes, &objects) })?;
        let mut left = Vec::new();
        for id in ids {
            let freed = self.whole(&place, |steps| {
                steps.remove_number(&self.0.unlinked, *id)?;
                Ok(self.fs().objset().free_object(steps.tx(), *id)?)
            });
            match freed {
                Ok(()) => self.0.nodes.remove(*id),
                Err(_) => left.push(*id),
            }
        }
        self.0.stats.unlinked((ids.len() - left.len()) as u64);
        Ok(left)
    }

    /// Frees the files of the unlinked set, none of which can be open yet, but for those that somebody keeps who has let go of the file system. A set
    /// that cannot be read is left as it is.
    pub(super) fn drain(&self) {
        let mut queued = self.fs().delete_queue().unwrap_or_default();
        queued.retain(|id| !self.0.nodes.get(*id).is_some_and(|node| node.is_held()));
        self.0.reap.lock().extend(queued);
        self.reap();
    }

    fn free_node(&self, id: ObjectId) -> Result<(), Error> {
        let node = self.znode(id)?;
        let (kind, flags, xattr_dir) = node.with_attrs(|attrs| (attrs.kind(), attrs.flags, attrs.xattr_dir));
        match kind {
            Kind::Directory if flags.has(FileFlags::XATTR) => self.purge(&node)?,
            // a directory is freed as a whole together with its entry in the set: half a ZAP is invalid
            Kind::File => self.free_contents(node.object())?,
            _ => {}
        }
        let hidden = if xattr_dir.is_none() { None } else { Some(self.znode(xattr_dir)?) };
        let set = self.0.unlinked.object().id();
        let place = self.place_to_free(&[id, set, hidden.as_ref().map_or(id, |hidden| hidden.id())])?;
        self.whole(&place, |steps| {
            if let Some(hidden) = &hidden {
                steps.edit(hidden, |attrs| {
                    attrs.links = 0;
                    Ok(())
                })?;
                self.unlinked_add(steps, hidden)?;
            }
            steps.remove_number(&self.0.unlinked, id)?;
            Ok(self.fs().objset().free_object(steps.tx(), id)?)
        })?;
        self.0.nodes.remove(id);
        self.0.stats.unlinked(1);
        Ok(())
    }

    /// Frees the blocks of a file from its end, in pieces; the first one is freed with the file.
    fn free_contents(&self, object: &Object) -> Result<(), Error> {
        object.free_long(0..u64::MAX, || self.place_to_free(&[object.id()]))
    }

    /// Empties a hidden directory of extended attributes.
    fn purge(&self, dir: &Arc<Znode>) -> Result<(), Error> {
        let zap = dir.dir()?;
        for entry in zap.entries()? {
            let entry = entry?;
            let named = DirEntry::decode(dir.id(), entry.name, &entry.value, 0)?;
            let file = self.znode(named.object)?;
            let place = self.place_to_free(&[dir.id(), file.id(), self.0.unlinked.object().id()])?;
            self.whole(&place, |steps| {
                steps.edit(dir, |attrs| {
                    attrs.size = attrs.size.saturating_sub(1);
                    Ok(())
                })?;
                steps.remove(dir, &named.name, entry_word(named.object, named.kind))?;
                self.drop_link(steps, &file)
            })?;
        }
        Ok(())
    }

    /// Removes one link of a file; for a directory the last link but one is the last. A file without links is added to the
    /// unlinked set (OpenZFS: `zfs_drop_nlink_locked`).
    pub(crate) fn drop_link(&self, steps: &Steps<'_>, node: &Arc<Znode>) -> Result<(), Error> {
        let now = self.now();
        let left = steps.edit(node, |attrs| {
            let own = u64::from(attrs.kind() == Kind::Directory);
            attrs.links = attrs.links.saturating_sub(1);
            if attrs.links <= own {
                attrs.links = 0;
            } else {
                super::znode::state_changed(attrs, now);
            }
            Ok(attrs.links)
        })?;
        if left == 0 { self.unlinked_add(steps, node) } else { Ok(()) }
    }
}
