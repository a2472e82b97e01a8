//! Operands of a copy into a file system: the directory and the name that each gets, and what is refused.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base::ObjectId;
use zpl::live::Zfs;
use zpl::{Kind, Node};

use super::base_name;
use crate::copy_in::split;
use crate::{CopyIn, Error, Files, Target, TargetObject};

/// An operand of a copy into a file system.
pub enum InOperand {
    /// A path of the host.
    Host(PathBuf),
    /// A file of a pool, of this one or another.
    Pool {
        /// The target that leads to it.
        target: Target,
        /// The file.
        node: Box<Node>,
        /// Its file system, open for writing, if the copy shares blocks with it.
        live: Option<Zfs>,
    },
}

/// The reason why an operand is not copied into a file system.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InError {
    /// The destination is no directory, and must be one: it ends in a slash, or there are several operands.
    #[error("not a directory")]
    NotDirectory,
    /// The directory of the destination cannot be used.
    #[error(transparent)]
    Destination(Error),
    /// The link that the destination is leads nowhere.
    #[error(transparent)]
    Link(Error),
    /// The operand is the file that the copy would replace.
    #[error("the operand and the destination are the same file")]
    SameFile,
    /// The operand is a volume, which is no file.
    #[error("is a volume")]
    Volume,
    /// The operand is a control directory (`.zfs`, `.zfs/snapshot`), which is no object on disk.
    #[error("is a control directory")]
    Control,
    /// The operand is not there, or the pool is full.
    #[error(transparent)]
    Copy(Error),
}

impl InError {
    /// Returns whether the other operands meet it too.
    #[must_use]
    pub fn is_of_all(&self) -> bool {
        matches!(self, InError::NotDirectory | InError::Destination(_))
    }
}

impl InOperand {
    /// The file of a pool that `target` leads to; `live` is its file system if [`InDest::shares_blocks`] with it.
    ///
    /// # Errors
    /// [`InError::Volume`], [`InError::Control`].
    pub fn found(target: Target, found: TargetObject, live: Option<Zfs>) -> Result<InOperand, InError> {
        match found {
            TargetObject::File(node) => Ok(InOperand::Pool { target, node, live }),
            TargetObject::Volume(_) => Err(InError::Volume),
            TargetObject::Control(_) => Err(InError::Control),
        }
    }

    /// Returns whether only a recursive copy takes it.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        match self {
            InOperand::Host(path) => {
                std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir()) || self.name().is_none()
            }
            InOperand::Pool { node, .. } => node.kind() == Kind::Directory,
        }
    }

    /// The last name, which the copy has in a directory; `None` for an operand that stands for its contents: `DIR/.`, or the root of a file system.
    fn name(&self) -> Option<Vec<u8>> {
        match self {
            InOperand::Pool { target, .. } => (!target.path().is_empty()).then(|| base_name(target)),
            InOperand::Host(path) => host_name(path),
        }
    }

    /// The dataset that it is in, if it is in one.
    fn dataset(&self) -> Option<&str> {
        match self {
            InOperand::Host(_) => None,
            InOperand::Pool { target, .. } => Some(&target.dataset),
        }
    }

    /// Returns whether it is a file with contents.
    fn is_data(&self) -> bool {
        match self {
            InOperand::Host(path) => std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file()),
            InOperand::Pool { node, .. } => node.kind() == Kind::File,
        }
    }
}

/// As a caller named it.
impl fmt::Display for InOperand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InOperand::Host(path) => path.display().fmt(f),
            InOperand::Pool { target, .. } => target.fmt(f),
        }
    }
}

/// The name of the copy of a host's path; `None` if it stands for the contents of a directory.
fn host_name(path: &Path) -> Option<Vec<u8>> {
    let bytes = path.as_os_str().as_bytes();
    let is_contents = bytes == b"." || bytes.ends_with(b"/.") || bytes.ends_with(b"/..") || bytes == b"..";
    path.file_name().filter(|_| !is_contents).map(|name| name.as_bytes().to_vec())
}

/// The destination of a copy into a file system.
pub struct InDest<'a> {
    files: &'a Files,
    target: &'a Target,
    is_directory: bool,
}

impl<'a> InDest<'a> {
    /// The destination `target`, in a file system that is open as `files`, of a copy of so many operands: several go into a directory.
    ///
    /// # Errors
    /// [`InError::NotDirectory`].
    pub fn new(files: &'a Files, target: &'a Target, operands: usize) -> Result<InDest<'a>, InError> {
        let is_directory = files.directory(target.path()).is_ok();
        match operands > 1 && !is_directory {
            true => Err(InError::NotDirectory),
            false => Ok(InDest { files, target, is_directory }),
        }
    }

    /// Returns whether a copy of `source` to `dest` shares blocks: within a pool, and with a file system that is open for writing as well.
    #[must_use]
    pub fn shares_blocks(source: &Target, dest: &Target) -> bool {
        source.pool() == dest.pool() && !source.dataset.contains('@')
    }

    /// Copies an operand with `copy_in`, which writes to the same file system, and ends the copy of it. Operands of one dataset keep the hard links
    /// among them.
    ///
    /// # Errors
    /// If the operand is refused, or something ends the work; what was copied before stays. Trouble with single files of a tree goes to the report.
    pub fn copy(&self, operand: InOperand, copy_in: &mut CopyIn<'_>) -> Result<(), InError> {
        let (dir, name) = self.place(&operand)?;
        if self.holds(&operand, dir, &name) {
            return Err(InError::SameFile);
        }
        let ready = copy_in.go_to(dir).and_then(|()| copy_in.come_from(operand.dataset()));
        let copied = ready.and_then(|()| match operand {
            InOperand::Host(path) => copy_in.host(&path, &name),
            InOperand::Pool { node, live: Some(live), .. } => copy_in.share(&live, *node, &name),
            InOperand::Pool { node, live: None, .. } => copy_in.node(*node, &name),
        });
        let finished = copy_in.finish();
        copied.and(finished.map(drop)).map_err(InError::Copy)
    }

    /// The directory and the name of an operand's copy. A file replaces the file that a link leads to, and the link stays.
    fn place(&self, operand: &InOperand) -> Result<(ObjectId, Vec<u8>), InError> {
        let path = self.target.path();
        let name = operand.name().filter(|_| self.is_directory);
        let (dir, name) = place_in(self.files, path, name).map_err(InError::Destination)?;
        if !self.is_directory && !operand.is_directory() && path.ends_with(b"/") {
            return Err(InError::NotDirectory);
        }
        match operand.is_data() {
            true => self.files.end_of_links(dir, &name).map_err(InError::Link),
            false => Ok((dir, name)),
        }
    }

    /// Returns whether the name is that of the operand itself; the empty name is the directory's.
    fn holds(&self, operand: &InOperand, dir: ObjectId, name: &[u8]) -> bool {
        let InOperand::Pool { target, node, .. } = operand else { return false };
        let there = match name {
            b"" => Some(dir),
            name => self.files.fs().lookup(dir, name).ok().flatten().map(|entry| entry.object),
        };
        target.dataset == self.target.dataset && there == Some(node.id())
    }
}

/// The directory and the name of a copy to `path`: in a directory that exists, `name`; without a name, the path itself. An empty name is the
/// directory.
///
/// # Errors
/// ENOENT, ENOTDIR: the directory.
pub fn place_in(files: &Files, path: &[u8], name: Option<Vec<u8>>) -> Result<(ObjectId, Vec<u8>), Error> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    if name.is_some() || files.directory(path).is_ok() {
        return Ok((files.directory(path)?, name.unwrap_or_default()));
    }
    let (parent, last) = split(path);
    Ok((files.directory(parent)?, last.to_vec()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Pool, Silent};

    fn target(text: &str) -> Target {
        Target::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn paths_of_the_host_that_end_in_dots_stand_for_contents() {
        for (path, name) in [
            ("a/b", Some("b")),
            ("a/b/", Some("b")),
            (".", None),
            ("..", None),
            ("a/.", None),
            ("a/..", None),
            ("/", None),
        ] {
            assert_eq!(host_name(Path::new(path)).as_deref(), name.map(str::as_bytes), "{path}");
        }
    }

    #[test]
    fn blocks_are_shared_within_a_pool_and_not_with_snapshots() {
        for (source, shares) in [("a/x:/f", true), ("a:/f", true), ("b/x:/f", false), ("a/x@s:/f", false)] {
            assert_eq!(InDest::shares_blocks(&target(source), &target("a/y:/f")), shares, "{source}");
        }
    }

    /// A pool with a directory `d`, a file `f` and a link `l` to it.
    fn pool() -> (Pool, Files) {
        let pool = Pool::in_memory("tank", 128 << 20).unwrap();
        let files = pool.files("tank").unwrap();
        files.create_dir(b"d", 0o755).unwrap();
        files.write(b"f", b"old").unwrap();
        files.symlink(b"f", b"l").unwrap();
        (pool, files)
    }

    #[test]
    fn a_copy_goes_into_a_directory_or_has_the_name_of_the_destination() {
        let (_pool, files) = pool();
        let host = tempfile::tempdir().unwrap();
        let file = host.path().join("g");
        std::fs::write(&file, "new").unwrap();
        let mut report = Silent;
        let mut copy_in = CopyIn::new(files.zfs(), files.fs().root(), &mut report);
        let mut copy = |to: &str| {
            let to = target(&format!("tank:/{to}"));
            InDest::new(&files, &to, 1).unwrap().copy(InOperand::Host(file.clone()), &mut copy_in)
        };
        for (to, path) in [("d", "d/g"), ("d/", "d/g"), ("new", "new"), ("d/new", "d/new"), ("l", "f"), ("", "g")] {
            copy(to).unwrap();
            assert_eq!(files.read(path.as_bytes()).unwrap(), b"new", "{to}");
        }
        assert_eq!(files.stat(b"l").unwrap().1.kind(), Kind::Symlink);
        assert!(matches!(copy("x/"), Err(InError::NotDirectory)));
        assert!(matches!(copy("x/y"), Err(InError::Destination(_))));
        files.symlink(b"loop", b"loop").unwrap();
        assert!(matches!(copy("loop"), Err(InError::Link(_))));
        assert!(InDest::new(&files, &target("tank:/f"), 2).is_err_and(|e| e.is_of_all()));
    }

    #[test]
    fn a_file_is_not_copied_onto_itself() {
        let (pool, files) = pool();
        pool.sync().unwrap();
        let mut report = Silent;
        let mut copy_in = CopyIn::new(files.zfs(), files.fs().root(), &mut report);
        let mut copy = |from: &str, to: &str| {
            let from = target(&format!("tank:/{from}"));
            let found = TargetObject::open(&pool.dataset("tank").unwrap(), from.path(), zpl::Follow::Parents).unwrap();
            let operand = InOperand::found(from, found, None).unwrap();
            InDest::new(&files, &target(&format!("tank:/{to}")), 1).unwrap().copy(operand, &mut copy_in)
        };
        for (from, to) in [("f", "f"), ("f", "l"), ("f", ""), ("", "")] {
            assert!(matches!(copy(from, to), Err(InError::SameFile)), "{from} {to}");
        }
        copy("f", "d").unwrap();
        assert_eq!(files.read(b"d/f").unwrap(), b"old");
    }
}
