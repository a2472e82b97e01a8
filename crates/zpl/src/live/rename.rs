//! Renames (OpenZFS: `zfs_rename`; Linux: `vfs_rename`).
//!
//! The new entry is inserted before the old one is removed: it is the step that may fail for lack of space. The changes of a directory's counts
//! are added up and written once. All is done or nothing ([`steps`](super::steps)).

use std::sync::Arc;

use base::ObjectId;
use dmu::Tx;

use super::names::{entry_word, is_dots};
use super::namespace::{Delta, in_order, to_add};
use super::new::Recorded;
use super::steps::Steps;
use super::znode::state_changed;
use super::{Cred, NewFile, Refusal, RenameMode, SMALL_CHANGE, Zfs, Znode};
use crate::acl::access::Perms;
use crate::{DirEntry, Error, FileFlags, Kind, Time};

/// Maximum number of parent directories that are climbed: deeper nesting is treated like a loop.
const MAX_DEPTH: usize = 1 << 16;

/// A name, its directory, and the file that it names.
struct NamedFile<'a> {
    dir: &'a Arc<Znode>,
    entry: DirEntry,
    node: Arc<Znode>,
    kind: Kind,
}

/// A rename with its names looked up.
struct Plan<'a> {
    cred: &'a Cred,
    source: NamedFile<'a>,
    to: &'a Arc<Znode>,
    to_name: &'a [u8],
    target: Option<NamedFile<'a>>,
    mode: RenameMode,
    /// The whiteout as recorded in a log, and its owner.
    whiteout: Option<&'a (Cred, Recorded)>,
}

impl Zfs {
    /// Renames a file, possibly into another directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EISDIR, ENOTEMPTY, EEXIST by `mode`, EINVAL for a directory into itself, EXDEV into another project, EACCES,
    /// EPERM, EILSEQ, ENAMETOOLONG, EMLINK, ENOSPC.
    pub fn rename(
        &self,
        cred: &Cred,
        dir: ObjectId,
        name: &[u8],
        to_dir: ObjectId,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), Error> {
        self.rename_as(cred, (dir, name), (to_dir, to_name), mode, None)
    }

    /// As [`Zfs::rename`], with an optional whiteout as recorded in a log.
    pub(super) fn rename_as(
        &self,
        cred: &Cred,
        (dir, name): (ObjectId, &[u8]),
        (to_dir, to_name): (ObjectId, &[u8]),
        mode: RenameMode,
        whiteout: Option<(Cred, Recorded)>,
    ) -> Result<(), Error> {
        self.change_some(2 * SMALL_CHANGE, &[dir, to_dir], |tx| {
            let from = self.directory(dir)?;
            let to = self.directory(to_dir)?;
            if is_dots(name) || is_dots(to_name) {
                return Err(Refusal::Invalid("'.' and '..' cannot be renamed").of(dir));
            }
            self.check_new_name(&to, to_name)?;
            let _moving = (from.id() != to.id()).then(|| self.0.moving.lock());
            loop {
                let source = self.look(&from, name)?.ok_or_else(|| self.is_not_there(name))?;
                let target = self.look(&to, to_name)?.filter(|target| !is_same_entry(&source, target, to_name));
                let plan = Plan { cred, source, to: &to, to_name, target, mode, whiteout: whiteout.as_ref() };
                let dirs = plan.directories();
                let _names: Vec<_> = dirs.iter().map(|dir| dir.names.write()).collect();
                // the names may have changed before the locks were taken
                if self.is_current(&plan, name)? {
                    return self.rename_locked(tx, &plan);
                }
            }
        })
    }

    fn look<'a>(&self, dir: &'a Arc<Znode>, name: &[u8]) -> Result<Option<NamedFile<'a>>, Error> {
        let Some(entry) = self.find(dir, name)? else { return Ok(None) };
        let node = self.znode(entry.object)?;
        let kind = node.kind();
        Ok(Some(NamedFile { dir, entry, node, kind }))
    }

    fn is_current(&self, plan: &Plan<'_>, name: &[u8]) -> Result<bool, Error> {
        let source = self.find(plan.source.dir, name)?;
        let target = self.look(plan.to, plan.to_name)?;
        let target = target.filter(|target| !is_same_entry(&plan.source, target, plan.to_name));
        let planned = plan.target.as_ref().map(|target| &target.entry);
        Ok(source.as_ref() == Some(&plan.source.entry) && target.as_ref().map(|target| &target.entry) == planned)
    }

    fn rename_locked(&self, tx: &Tx, plan: &Plan<'_>) -> Result<(), Error> {
        let source = &plan.source;
        match (&plan.target, plan.mode) {
            (Some(target), RenameMode::NoReplace | RenameMode::NoReplaceWhiteout) => {
                return Err(Refusal::Exists.of(target.node.id()));
            }
            (None, RenameMode::Exchange) => return Err(Error::not_found(plan.to_name)),
            _ => {}
        }
        self.check_loops(plan)?;
        match (&plan.target, plan.mode) {
            (Some(target), _) if target.node.id() == source.node.id() => Ok(()),
            (Some(target), RenameMode::Exchange) => {
                self.check_rename(plan)?;
                self.check_exchange(plan, target)?;
                self.claim_moved(tx, plan)?;
                self.whole(tx, |steps| self.exchange(steps, plan, target))
            }
            _ => {
                self.check_rename(plan)?;
                self.check_replaced(plan)?;
                self.claim_moved(tx, plan)?;
                self.whole(tx, |steps| self.move_entry(steps, plan))
            }
        }
    }

    /// Claims the files that change, besides the two directories. Moves from one directory to another claim the master node: whether a directory
    /// may move depends on the moves before.
    fn claim_moved(&self, tx: &Tx, plan: &Plan<'_>) -> Result<(), Error> {
        let objset = self.fs().objset();
        objset.claim(tx, plan.source.node.id())?;
        if let Some(target) = &plan.target {
            self.claim_removed(tx, &target.node)?;
        }
        if plan.moves() {
            objset.claim(tx, ObjectId::MASTER_NODE)?;
        }
        Ok(())
    }

    /// Refuses to move a directory below itself, and to replace one that contains the file.
    fn check_loops(&self, plan: &Plan<'_>) -> Result<(), Error> {
        const INTO_ITSELF: Refusal = Refusal::Invalid("a directory cannot be moved into itself");
        if !plan.moves() {
            return Ok(());
        }
        if plan.source.kind == Kind::Directory {
            self.check_not_below(plan.to, plan.source.node.id(), INTO_ITSELF)?;
        }
        match &plan.target {
            Some(target) if target.kind == Kind::Directory => {
                let why = if plan.mode == RenameMode::Exchange { INTO_ITSELF } else { Refusal::NotEmpty };
                self.check_not_below(plan.source.dir, target.node.id(), why)
            }
            _ => Ok(()),
        }
    }

    fn check_rename(&self, plan: &Plan<'_>) -> Result<(), Error> {
        let Plan { cred, source, to, .. } = plan;
        self.check_same_space(to, source.dir.with_attrs(|attrs| attrs.flags))?;
        if source.node.with_attrs(|attrs| attrs.flags.has(FileFlags::AV_QUARANTINED)) {
            return Err(Refusal::Denied.of(source.node.id()));
        }
        self.check_delete(cred, source.dir, &source.node)?;
        self.check(cred, to, to_add(source.kind))?;
        if !plan.moves() {
            return self.check_has_room(to, Kind::File);
        }
        self.check_has_room(to, source.kind)?;
        self.check_same_project(&to.attrs(), &source.node.attrs(), source.node.id())?;
        if source.kind == Kind::Directory {
            // its entry `..` changes
            self.check(cred, &source.node, Perms::WRITE_DATA)?;
        }
        Ok(())
    }

    /// Checks the existing file that would be replaced.
    fn check_replaced(&self, plan: &Plan<'_>) -> Result<(), Error> {
        let Some(target) = &plan.target else { return Ok(()) };
        self.check_delete(plan.cred, plan.to, &target.node)?;
        match (plan.source.kind == Kind::Directory, target.kind == Kind::Directory) {
            (true, false) => Err(Error::NotDirectory { name: plan.to_name.to_vec() }),
            (false, true) => Err(Error::IsDirectory { object: target.node.id() }),
            (_, true) if target.node.dir()?.count() != 0 => Err(Refusal::NotEmpty.of(target.node.id())),
            _ => Ok(()),
        }
    }

    /// Checks that the reverse move of an exchange is allowed too, except for the project, which OpenZFS does not check in this
    /// case: its log may hold such an exchange.
    fn check_exchange(&self, plan: &Plan<'_>, target: &NamedFile<'_>) -> Result<(), Error> {
        let from = plan.source.dir;
        self.check_delete(plan.cred, plan.to, &target.node)?;
        self.check(plan.cred, from, to_add(target.kind))?;
        if plan.moves() && target.kind == Kind::Directory {
            self.check(plan.cred, &target.node, Perms::WRITE_DATA)?;
        }
        Ok(())
    }

    /// Refuses if `dir` is `top` or below it. `moving` is held, so no directory changes its parent meanwhile.
    fn check_not_below(&self, dir: &Arc<Znode>, top: ObjectId, why: Refusal) -> Result<(), Error> {
        let mut at = dir.clone();
        for _ in 0..MAX_DEPTH {
            if at.id() == top {
                return Err(why.of(top));
            }
            let parent = at.with_attrs(|attrs| attrs.parent);
            if parent == at.id() {
                return Ok(());
            }
            at = self.znode(parent)?;
        }
        Err(Error::corrupt(dir.id(), "depth of a directory", MAX_DEPTH as u64))
    }

    fn move_entry(&self, steps: &Steps<'_>, plan: &Plan<'_>) -> Result<(), Error> {
        let Plan { source, to, to_name, target, .. } = plan;
        let (from, now) = (source.dir, self.now());
        let whiteout = match plan.mode {
            RenameMode::Whiteout | RenameMode::NoReplaceWhiteout => Some(self.make_whiteout(steps, plan)?),
            _ => None,
        };
        let (mut at_from, mut at_to) = (Delta::minus(source.kind), Delta::plus(source.kind));
        if let Some(target) = target {
            at_to = at_to.and(Delta::minus(target.kind));
        }
        if whiteout.is_some() {
            at_from = at_from.and(Delta::plus(Kind::CharDevice));
        }
        self.renamed(steps, &source.node, to, now)?;
        self.directories_changed(steps, (from, at_from), (to, at_to), now)?;
        let word = entry_word(source.node.id(), source.kind);
        match target {
            Some(target) if target.entry.name == *to_name => steps.replace(to, to_name, target.word(), word)?,
            _ => steps.add(to, to_name, word)?,
        }
        if let Some(target) = target.as_ref().filter(|target| target.entry.name != *to_name) {
            steps.remove(to, &target.entry.name, target.word())?;
        }
        match &whiteout {
            Some(whiteout) => {
                let word = entry_word(whiteout.id(), Kind::CharDevice);
                steps.replace(from, &source.entry.name, source.word(), word)?;
            }
            None => steps.remove(from, &source.entry.name, source.word())?,
        }
        self.note_long_name(steps.tx(), to_name);
        if let Some(target) = target {
            // last: its other names may be removed meanwhile, and the file be freed, so that its link could not be given back
            self.drop_link(steps, &target.node)?;
            let gone = target.node.clone();
            steps.at_end(move |zfs, _| {
                if gone.is_unlinked() {
                    zfs.log().forget(gone.id());
                }
            });
        }
        self.log_renamed(steps, plan, to_name, whiteout);
        Ok(())
    }

    fn log_renamed(&self, steps: &Steps<'_>, plan: &Plan<'_>, to_name: &[u8], whiteout: Option<Arc<Znode>>) {
        let (from, to, node) = (plan.source.dir.clone(), plan.to.clone(), plan.source.node.clone());
        let (name, to_name, mode) = (plan.source.entry.name.clone(), to_name.to_vec(), plan.mode);
        steps.at_end(move |zfs, tx| {
            zfs.log_rename(tx, (&from, &name), (&to, &to_name), &node, (mode, whiteout.as_deref()));
        });
    }

    fn make_whiteout(&self, steps: &Steps<'_>, plan: &Plan<'_>) -> Result<Arc<Znode>, Error> {
        let from = plan.source.dir;
        self.check(plan.cred, from, to_add(Kind::CharDevice))?;
        let new = NewFile::device(Kind::CharDevice, 0, 0, 0);
        let birth = match plan.whiteout {
            Some((owner, recorded)) => self.plan_new(owner, from, &new)?.recorded_as(*recorded),
            None => self.plan_new(plan.cred, from, &new)?,
        };
        steps.make(&birth)
    }

    fn exchange(&self, steps: &Steps<'_>, plan: &Plan<'_>, target: &NamedFile<'_>) -> Result<(), Error> {
        let Plan { source, to, .. } = plan;
        let (from, now) = (source.dir, self.now());
        let of = |file: &NamedFile<'_>| entry_word(file.node.id(), file.kind);
        self.renamed(steps, &source.node, to, now)?;
        self.renamed(steps, &target.node, from, now)?;
        let gains = Delta::plus(target.kind).and(Delta::minus(source.kind));
        let loses = Delta::plus(source.kind).and(Delta::minus(target.kind));
        self.directories_changed(steps, (from, gains), (to, loses), now)?;
        steps.replace(to, &target.entry.name, target.word(), of(source))?;
        steps.replace(from, &source.entry.name, source.word(), of(target))?;
        self.log_renamed(steps, plan, &target.entry.name, None);
        Ok(())
    }

    /// Updates a file that was renamed into `dir`.
    fn renamed(&self, steps: &Steps<'_>, node: &Arc<Znode>, dir: &Znode, now: Time) -> Result<(), Error> {
        let heir = dir.with_attrs(|attrs| attrs.flags.has(FileFlags::PROJINHERIT));
        steps.edit(node, |attrs| {
            attrs.parent = dir.id();
            attrs.flags.0 |= FileFlags::AV_MODIFIED.0 | if heir { FileFlags::PROJINHERIT.0 } else { 0 };
            state_changed(attrs, now);
            Ok(())
        })
    }

    fn directories_changed(
        &self,
        steps: &Steps<'_>,
        (from, at_from): (&Arc<Znode>, Delta),
        (to, at_to): (&Arc<Znode>, Delta),
        now: Time,
    ) -> Result<(), Error> {
        if from.id() == to.id() {
            return self.entries_changed(steps, from, at_from.and(at_to), now);
        }
        self.entries_changed(steps, from, at_from, now)?;
        self.entries_changed(steps, to, at_to, now)
    }
}

impl NamedFile<'_> {
    /// Returns the value of its entry.
    fn word(&self) -> u64 {
        entry_word(self.entry.object, self.entry.kind)
    }
}

impl Plan<'_> {
    /// True if the file moves to another directory.
    fn moves(&self) -> bool {
        self.source.dir.id() != self.to.id()
    }

    /// Returns the directories whose names change or must not change: a directory that is replaced stays empty.
    fn directories(&self) -> Vec<&Arc<Znode>> {
        let target = self.target.as_ref().filter(|target| target.kind == Kind::Directory).map(|target| &target.node);
        in_order([self.source.dir, self.to].into_iter().chain(target))
    }
}

/// True if the new name matches the same entry under a different spelling: then the rename replaces nothing.
fn is_same_entry(source: &NamedFile<'_>, target: &NamedFile<'_>, to_name: &[u8]) -> bool {
    let same = source.dir.id() == target.dir.id() && source.entry.name == target.entry.name;
    same && target.entry.name != to_name
}
