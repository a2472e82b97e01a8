//! Operations of several steps, of which all are done or none.
//!
//! A transaction cannot be rolled back, and what it has changed reaches the disk with its txg, whatever its operation returns. So an operation on
//! names keeps a list of what it has done ([`Steps`]). If a step fails, as the leaf of a ZAP cannot be read or has no room, those before it are
//! undone, newest first (OpenZFS: `zfs_rename`, which takes the new link back when the old one cannot be removed). What cannot be undone comes
//! when nothing can fail any more: the records of the intent log, and the release of files without a name ([`Steps::at_end`]).
//!
//! # Why an undo does not fail
//! All that it changes is in memory, as blocks and bonus buffers of the txg, which stay there until it is on disk; an entry that was removed has
//! left its room, since the names of the directory are locked; the objects are claimed; attributes find the layouts that they had, or would have had
//! from us, as those are entered before a change (`dmu::sa`). So neither devices nor a lack of space nor anything that
//! a user may do gets in its way. If one fails nevertheless, that is a bug, and the txg does not reach the disk ([`Tx::break_txg`]).

use std::cell::RefCell;
use std::sync::Arc;

use base::ObjectId;
use dmu::sa::{Attr, SaValue};
use dmu::{Tx, Zap};

use super::new::Birth;
use super::{Zfs, Znode};
use crate::{Attrs, Error};

/// What an operation has done so far.
pub(crate) struct Steps<'a> {
    zfs: &'a Zfs,
    tx: &'a Tx,
    done: RefCell<Vec<Step>>,
    ends: RefCell<Vec<End>>,
}

type End = Box<dyn FnOnce(&Zfs, &Tx)>;

enum Step {
    /// A file was made.
    Made(Arc<Znode>),
    /// An entry was added.
    Added(Zap, Vec<u8>),
    /// An entry was removed, or got another value; this was its value.
    Lost(Zap, Vec<u8>, u64),
    /// A number was added to a set of numbers.
    Counted(Zap, ObjectId),
    /// A number was removed from one.
    Uncounted(Zap, ObjectId),
    /// Attributes changed.
    Edited(Box<Edit>),
    /// The contents of a value were replaced; these were the contents, the size of its blocks and the attributes.
    Rewritten(Arc<Znode>, Vec<u8>, u64, Box<Attrs>),
}

/// A change of attributes.
struct Edit {
    node: Arc<Znode>,
    before: Attrs,
    after: Attrs,
    /// The previous values of attributes that are not in [`Attrs`]; `None` for one that was not there.
    others: Vec<(Attr, Option<Vec<u8>>)>,
}

impl Zfs {
    /// Runs an operation of several steps. If it fails, all that it has done is undone. The locks under which it runs must be held by the caller.
    pub(crate) fn whole<R>(&self, tx: &Tx, work: impl FnOnce(&Steps<'_>) -> Result<R, Error>) -> Result<R, Error> {
        let steps = Steps { zfs: self, tx, done: RefCell::default(), ends: RefCell::default() };
        match work(&steps) {
            Ok(done) => {
                steps.ends.into_inner().into_iter().for_each(|end| end(self, tx));
                Ok(done)
            }
            Err(error) => {
                steps.undo();
                Err(error)
            }
        }
    }
}

impl Steps<'_> {
    /// Returns the transaction.
    pub(crate) fn tx(&self) -> &Tx {
        self.tx
    }

    /// Runs `end` after the last step.
    pub(crate) fn at_end(&self, end: impl FnOnce(&Zfs, &Tx) + 'static) {
        self.ends.borrow_mut().push(Box::new(end));
    }

    /// Runs `end` after the last step, if changes of a file are logged. Those of a file that has no name yet are logged with its name.
    pub(crate) fn log(&self, node: &Znode, end: impl FnOnce(&Zfs, &Tx) + 'static) {
        if !self.zfs.is_unlogged(node) {
            self.at_end(end);
        }
    }

    fn did(&self, step: Step) {
        self.done.borrow_mut().push(step);
    }

    /// Creates a file, which has no name yet.
    pub(crate) fn make(&self, birth: &Birth<'_>) -> Result<Arc<Znode>, Error> {
        let node = self.zfs.make_node(self.tx, birth)?;
        self.did(Step::Made(node.clone()));
        Ok(node)
    }

    /// Adds an entry to a directory.
    pub(crate) fn add(&self, dir: &Znode, name: &[u8], word: u64) -> Result<(), Error> {
        let zap = dir.dir()?;
        zap.add_u64(self.tx, name, word)?;
        self.did(Step::Added(zap.clone(), name.to_vec()));
        Ok(())
    }

    /// Removes an entry, which was found to have the value `word`, from a directory.
    pub(crate) fn remove(&self, dir: &Znode, name: &[u8], word: u64) -> Result<(), Error> {
        let zap = dir.dir()?;
        if !zap.remove(self.tx, name)? {
            return Err(Error::corrupt(dir.id(), "number of entries with a name that was found", 0));
        }
        self.did(Step::Lost(zap.clone(), name.to_vec(), word));
        Ok(())
    }

    /// Gives an entry that was found to have the value `old` another one.
    pub(crate) fn replace(&self, dir: &Znode, name: &[u8], old: u64, new: u64) -> Result<(), Error> {
        let zap = dir.dir()?;
        zap.update_u64(self.tx, name, new)?;
        self.did(Step::Lost(zap.clone(), name.to_vec(), old));
        Ok(())
    }

    /// Adds a number to a set of numbers.
    pub(crate) fn add_number(&self, set: &Zap, number: ObjectId) -> Result<(), Error> {
        set.add_int(self.tx, number.0, number.0)?;
        self.did(Step::Counted(set.clone(), number));
        Ok(())
    }

    /// Removes a number from a set of numbers, if it is there.
    pub(crate) fn remove_number(&self, set: &Zap, number: ObjectId) -> Result<(), Error> {
        if set.remove_int(self.tx, number.0)? {
            self.did(Step::Uncounted(set.clone(), number));
        }
        Ok(())
    }

    /// As [`Znode::edit`].
    pub(crate) fn edit<R>(
        &self,
        node: &Arc<Znode>,
        change: impl FnOnce(&mut Attrs) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.edit_with(node, &[], change)
    }

    /// As [`Znode::edit_with`].
    pub(crate) fn edit_with<R>(
        &self,
        node: &Arc<Znode>,
        others: &[SaValue<'_>],
        change: impl FnOnce(&mut Attrs) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let old = if others.is_empty() { None } else { Some(node.sa(self.zfs)?) };
        let was = |attr: Attr| old.as_ref().and_then(|old| old.get(attr)).map(<[u8]>::to_vec);
        let others_before = others.iter().map(|(attr, _)| (*attr, was(*attr))).collect();
        let (mut before, mut after) = (None, None);
        let done = node.edit_with(self.zfs, self.tx, others, |attrs| {
            before = Some(attrs.clone());
            let done = change(attrs)?;
            after = Some(attrs.clone());
            Ok(done)
        })?;
        if let Some((before, after)) = before.zip(after) {
            self.did(Step::Edited(Box::new(Edit { node: node.clone(), before, after, others: others_before })));
        }
        Ok(done)
    }

    /// Keeps the contents of a value of an extended attribute, which are about to be replaced.
    pub(crate) fn keep(&self, value: &Arc<Znode>, contents: Vec<u8>) {
        self.did(Step::Rewritten(value.clone(), contents, value.object().block_size(), Box::new(value.attrs())));
    }

    fn undo(&self) {
        while let Some(step) = { self.done.borrow_mut().pop() } {
            if let Err(error) = self.take_back(&step) {
                self.tx.break_txg(&error);
            }
        }
    }

    fn take_back(&self, step: &Step) -> Result<(), Error> {
        let Steps { zfs, tx, .. } = self;
        match step {
            Step::Made(node) => zfs.unmake_node(tx, node)?,
            Step::Added(zap, name) => drop(zap.remove(tx, name)?),
            Step::Lost(zap, name, word) => zap.update_u64(tx, name, *word)?,
            Step::Counted(set, number) => drop(set.remove_int(tx, number.0)?),
            Step::Uncounted(set, number) => set.add_int(tx, number.0, number.0)?,
            Step::Edited(edit) => edit.take_back(zfs, tx)?,
            Step::Rewritten(value, contents, block_size, before) => {
                value.object().free_range(tx, 0, u64::MAX)?;
                value.object().set_block_size(tx, *block_size, 0)?;
                value.object().write(tx, 0, contents)?;
                value.edit(zfs, tx, |attrs| {
                    *attrs = (**before).clone();
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}

impl Edit {
    fn take_back(&self, zfs: &Zfs, tx: &Tx) -> Result<(), Error> {
        let back: Vec<SaValue<'_>> =
            self.others.iter().filter_map(|(attr, value)| Some((*attr, value.as_deref()?.into()))).collect();
        let new: Vec<Attr> = self.others.iter().filter(|(_, value)| value.is_none()).map(|(attr, _)| *attr).collect();
        self.node.edit_without(zfs, tx, &back, &new, |attrs| {
            revert(attrs, &self.before, &self.after);
            Ok(())
        })
    }
}

/// Undoes the change from `before` to `after`. What other operations have changed since stays, and so does the number of changes: others may have
/// seen it, and the next change needs another one. The times of the change stay, as another one may have had the same.
fn revert(now: &mut Attrs, before: &Attrs, after: &Attrs) {
    fn back<T: PartialEq + Copy>(now: &mut T, before: T, after: T) {
        if *now == after {
            *now = before;
        }
    }
    now.links = now.links.wrapping_sub(after.links).wrapping_add(before.links);
    let flags = before.flags.0 ^ after.flags.0;
    now.flags.0 = now.flags.0 & !flags | before.flags.0 & flags;
    back(&mut now.mode, before.mode, after.mode);
    back(&mut now.owner, before.owner, after.owner);
    back(&mut now.group, before.group, after.group);
    back(&mut now.size, before.size, after.size);
    back(&mut now.parent, before.parent, after.parent);
    back(&mut now.atime, before.atime, after.atime);
    back(&mut now.crtime, before.crtime, after.crtime);
    back(&mut now.xattr_dir, before.xattr_dir, after.xattr_dir);
    if before.projid.is_some() {
        back(&mut now.projid, before.projid, after.projid);
    } else if after.projid.is_some() {
        // the attribute stays, with the project of files that have none
        now.projid = Some(0);
        now.flags.0 |= crate::FileFlags::PROJID.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileFlags, Fuid, Time};

    #[test]
    fn a_change_is_undone_beside_those_of_others() {
        let zero = Time::default();
        let before = Attrs {
            mode: 0o100_644,
            owner: Fuid(1),
            group: Fuid(1),
            size: 2,
            links: 1,
            generation: 5,
            parent: ObjectId(7),
            atime: zero,
            mtime: zero,
            ctime: zero,
            crtime: zero,
            flags: FileFlags(0x5),
            projid: None,
            rdev: None,
            xattr_dir: ObjectId(0),
            seq: None,
        };
        let after = Attrs {
            links: 2,
            parent: ObjectId(8),
            flags: FileFlags(0x6),
            ctime: Time { sec: 3, nsec: 0 },
            ..before.clone()
        };
        let mut now = Attrs { links: 3, size: 9, flags: FileFlags(0x16), parent: ObjectId(11), ..after.clone() };
        revert(&mut now, &before, &after);
        let left = Attrs {
            links: 2,
            size: 9,
            flags: FileFlags(0x15),
            parent: ObjectId(11),
            ctime: after.ctime,
            ..before.clone()
        };
        assert_eq!(now, left);
    }
}
