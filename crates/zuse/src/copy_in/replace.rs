//! Files whose names are taken: each is made whole under another name, in the same directory, and then takes the place of what has its own.

use base::{Errno, ObjectId};
use zpl::Kind;
use zpl::live::{Cred, RenameMode, Zfs};

use super::{CopyIn, Streaming};

/// Begins the name that a file has until it is whole; a number follows.
const PREFIX: &str = ".zuse-new-";
/// Files of such names that commands which were killed may have left in one directory.
const LEFT_MAX: u32 = 1 << 16;

/// A file that has not its own name yet.
#[derive(Debug)]
pub(super) struct Replacement {
    dir: ObjectId,
    /// The name that it has.
    now: Vec<u8>,
    /// The name that it is to have.
    name: Vec<u8>,
}

impl CopyIn<'_> {
    /// Gives something the name `path`, or, if another file has that, one beside it for the time being. A directory does not give way.
    pub(super) fn name<R>(
        &mut self,
        path: &[u8],
        give: impl Fn(&Zfs, &Cred, ObjectId, &[u8]) -> Result<R, zpl::Error>,
    ) -> Result<(R, Option<Replacement>), zpl::Error> {
        let (dir, name) = self.place(path)?;
        match give(&self.zfs, &self.cred, dir, name) {
            Err(e) if e.errno() == Errno::EEXIST => {
                let (id, attrs) = self.zfs.lookup(&self.cred, dir, name)?;
                if attrs.kind() == Kind::Directory {
                    return Err(zpl::Error::IsDirectory { object: id });
                }
            }
            done => return Ok((done?, None)),
        }
        for n in 0..LEFT_MAX {
            let now = format!("{PREFIX}{n}").into_bytes();
            match give(&self.zfs, &self.cred, dir, &now) {
                Err(e) if e.errno() == Errno::EEXIST => {}
                done => return Ok((done?, Some(Replacement { dir, now, name: name.to_vec() }))),
            }
        }
        Err(zpl::Error::NotFound { name: PREFIX.into() })
    }

    /// Gives a file that is whole its own name; what has it goes.
    pub(super) fn settle(&mut self, id: ObjectId, aside: Option<Replacement>) -> Result<(), zpl::Error> {
        let Some(aside) = aside else { return Ok(()) };
        let done = self.take_place(&aside);
        if done.is_err() {
            self.drop_aside(id, &aside);
        }
        done
    }

    fn take_place(&mut self, Replacement { dir, now, name }: &Replacement) -> Result<(), zpl::Error> {
        let old = match self.zfs.lookup(&self.cred, *dir, name) {
            Ok((id, attrs)) => Some((id, attrs.links)),
            Err(e) if e.errno() == Errno::ENOENT => None,
            Err(e) => return Err(e),
        };
        self.zfs.rename(&self.cred, *dir, now, *dir, name, RenameMode::Replace)?;
        if let Some((id, links)) = old {
            self.lost_name(id, links);
        }
        Ok(())
    }

    /// Removes the name that a file has which will not be whole, as far as that can be done.
    pub(super) fn drop_aside(&mut self, id: ObjectId, aside: &Replacement) {
        let links = self.zfs.getattr(id).map_or(1, |attrs| attrs.links);
        if self.zfs.unlink(&self.cred, aside.dir, &aside.now).is_ok() {
            self.lost_name(id, links);
        }
    }

    /// Removes a file that was begun, if what was there before has its name still. Whether that is so.
    pub(super) fn give_up(&mut self, file: &mut Streaming) -> bool {
        let Some(aside) = file.aside.take() else { return false };
        self.drop_aside(file.id, &aside);
        true
    }

    /// Takes a name from what has it.
    pub(super) fn displace(&mut self, dir: ObjectId, name: &[u8], id: ObjectId, links: u64) -> Result<(), zpl::Error> {
        self.zfs.unlink(&self.cred, dir, name)?;
        self.lost_name(id, links);
        Ok(())
    }

    /// A file had `links` names and has lost one: what has no other one is nobody's link any more.
    fn lost_name(&mut self, id: ObjectId, links: u64) {
        if links <= 1
            && let Some(link) = self.linked.remove(&id)
        {
            self.links.remove(&link);
        }
    }
}
