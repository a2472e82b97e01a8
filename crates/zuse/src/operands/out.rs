//! Operands of a copy out of a pool: the path on the host that each gets, and what is refused.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pool::{Dataset, Kind as DatasetKind, ListOptions};
use zpl::Kind;

use super::name_in_directory;
use crate::copy::Copier;
use crate::{Target, TargetObject};

/// An operand of a copy to the host, with the path that its copy gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutOperand {
    source: Target,
    to: PathBuf,
    /// The directory below which paths were made of the names of datasets: no link is followed there. A path that the caller named may be a link.
    below: Option<PathBuf>,
}

/// The reason why an operand is not copied to the host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutError {
    /// The destination ends in a slash, and the operand is no directory.
    #[error("{}: not a directory", to.display())]
    NotDirectory {
        /// The destination.
        to: PathBuf,
    },
    /// The directory of the destination does not exist.
    #[error("{}: no such directory", dir.display())]
    NoDirectory {
        /// The directory.
        dir: PathBuf,
    },
    /// The destination is a device, pipe or socket, which a copy does not replace.
    #[error("{}: neither a file nor a directory", to.display())]
    Special {
        /// The destination.
        to: PathBuf,
    },
    /// The operand is a directory, and the copy is not recursive.
    #[error("{operand} is a directory")]
    Directory {
        /// The operand.
        operand: Target,
    },
    /// The operand is a control directory (`.zfs`, `.zfs/snapshot`), which is no object on disk.
    #[error("{operand} is a control directory")]
    Control {
        /// The operand.
        operand: Target,
    },
    /// All datasets below an operand were asked for that is a snapshot or a path.
    #[error("{operand} is not a dataset")]
    NotDataset {
        /// The operand.
        operand: Target,
    },
    /// The datasets below the operand cannot be read.
    #[error("{operand}: {source}")]
    Pool {
        /// The operand.
        operand: Target,
        /// The error.
        source: Box<pool::Error>,
    },
    /// The host refuses the destination, or is full.
    #[error("{}: {source}", to.display())]
    Host {
        /// The destination.
        to: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl OutOperand {
    /// The copy of `source` to `dest`: in a directory that exists it has its own name; otherwise it is `dest` itself. The root of a file system
    /// (`pool/fs:/`) becomes `dest` in any case, as with `cp -a root/. dest`.
    #[must_use]
    pub fn new(source: Target, dest: &Path) -> OutOperand {
        let to = match name_in_directory(&source).filter(|_| is_directory(dest)) {
            Some(name) => dest.join(OsStr::from_bytes(&name)),
            None => dest.to_owned(),
        };
        OutOperand { source, to, below: None }
    }

    /// Copies of the dataset `top`, which `source` leads to, and of each dataset below it: directories below `dest`, and files `NAME.img` for
    /// volumes. Snapshots are left out.
    ///
    /// # Errors
    /// [`OutError::NotDataset`], [`OutError::Pool`].
    pub fn datasets(source: &Target, top: &Dataset, dest: &Path) -> Result<Vec<OutOperand>, OutError> {
        if top.is_snapshot() || source.path.as_ref().is_some_and(|path| !path.is_empty()) {
            return Err(OutError::NotDataset { operand: source.clone() });
        }
        let cannot = |e| OutError::Pool { operand: source.clone(), source: Box::new(e) };
        let pool = top.pool();
        let mut operands = Vec::new();
        for entry in pool.list(top.name(), &ListOptions::DATASETS).map_err(cannot)? {
            let Some(dataset) = entry.dataset() else { continue };
            let below = dataset.name().get(top.name().len()..).unwrap_or("").trim_start_matches('/');
            let mut to = if below.is_empty() { dest.to_owned() } else { dest.join(below) };
            if dataset.head_kind().map_err(cannot)? == DatasetKind::Volume {
                to.as_mut_os_string().push(".img");
            }
            // the caller may have named the pool by its guid
            let name = format!("{}{}", source.pool(), dataset.name().get(pool.name().len()..).unwrap_or(""));
            let source = Target { dataset: name, path: None };
            operands.push(OutOperand { source, to, below: Some(dest.to_owned()) });
        }
        Ok(operands)
    }

    /// The target that is copied.
    #[must_use]
    pub fn source(&self) -> &Target {
        &self.source
    }

    /// Copies `found`, the object that [`OutOperand::source`] leads to. An existing file is replaced, at the end of a link if the caller named
    /// one. Operands of one dataset keep the hard links among them.
    ///
    /// # Errors
    /// If the operand is refused or the host refuses the destination, or is full; damage and trouble with single files of a tree go to the report.
    pub fn copy(&self, found: TargetObject, recursive: bool, copier: &mut Copier<'_>) -> Result<(), OutError> {
        copier.come_from(&self.source.dataset);
        copier.stay_below(self.below.as_deref());
        let host = |source| OutError::Host { to: self.to.clone(), source };
        let kind = match &found {
            TargetObject::File(node) => node.kind(),
            TargetObject::Volume(_) | TargetObject::Control(_) => Kind::File,
        };
        if kind != Kind::Directory && self.to.as_os_str().as_bytes().ends_with(b"/") {
            return Err(OutError::NotDirectory { to: self.to.clone() });
        }
        let to = match kind {
            Kind::File => self.end_of_links()?,
            _ => self.to.clone(),
        };
        let (dir, name) = split(&to);
        if !is_directory(&dir) {
            return Err(OutError::NoDirectory { dir });
        }
        match found {
            TargetObject::Volume(volume) => copier.copy_volume(&volume, &dir, name),
            TargetObject::Control(_) => return Err(OutError::Control { operand: self.source.clone() }),
            TargetObject::File(node) if kind != Kind::Directory => copier.copy_file(&node, &dir, name),
            TargetObject::File(_) if !recursive => return Err(OutError::Directory { operand: self.source.clone() }),
            TargetObject::File(node) => copier.copy_tree(*node, &self.to),
        }
        .map(drop)
        .map_err(host)
    }

    /// The path that a file is written to. A device, pipe or socket is left alone.
    fn end_of_links(&self) -> Result<PathBuf, OutError> {
        // nothing is there, or a dangling link
        let Ok(there) = std::fs::metadata(&self.to) else { return Ok(self.to.clone()) };
        if !there.is_file() && !there.is_dir() {
            return Err(OutError::Special { to: self.to.clone() });
        }
        match self.below.is_none() && self.to.is_symlink() {
            true => self.to.canonicalize().map_err(|source| OutError::Host { to: self.to.clone(), source }),
            false => Ok(self.to.clone()),
        }
    }
}

/// The directory and the name of a path of the host.
fn split(path: &Path) -> (PathBuf, &[u8]) {
    match (path.parent(), path.file_name()) {
        // `.`, `..` or `/`: only a tree can be copied there
        (_, None) | (None, _) => (path.to_owned(), b"."),
        (Some(dir), Some(name)) if dir.as_os_str().is_empty() => (PathBuf::from("."), name.as_bytes()),
        (Some(dir), Some(name)) => (dir.to_owned(), name.as_bytes()),
    }
}

/// Returns whether a path of the host is a directory, or a link to one.
fn is_directory(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.is_dir())
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
    fn a_directory_that_exists_gets_copies_under_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let (there, new) = (dir.path(), dir.path().join("new"));
        for (source, to) in
            [("tank:/a/f", there.join("f")), ("tank/fs", there.join("fs")), ("tank:/", there.to_owned())]
        {
            assert_eq!(OutOperand::new(target(source), there).to, to, "{source}");
            assert_eq!(OutOperand::new(target(source), &new).to, new, "{source}");
        }
    }

    #[test]
    fn paths_split_where_a_name_begins() {
        for (path, dir, name) in
            [("/a/b", "/a", "b"), ("b", ".", "b"), ("/", "/", "."), ("a/..", "a/..", "."), ("a/", ".", "a")]
        {
            assert_eq!(split(Path::new(path)), (PathBuf::from(dir), name.as_bytes()), "{path}");
        }
    }

    #[test]
    fn datasets_are_directories_and_volumes_images() {
        let pool = Pool::in_memory("tank", 128 << 20).unwrap();
        pool.create("tank/a", &[]).unwrap();
        pool.create("tank/a/b", &[]).unwrap();
        pool.create_volume("tank/a/v", 1 << 20, &[]).unwrap();
        pool.snapshot("tank/a@s").unwrap();
        let top = pool.dataset("tank/a").unwrap();
        let all = OutOperand::datasets(&target("tank/a"), &top, Path::new("/out")).unwrap();
        let all: Vec<_> = all.iter().map(|one| (one.source.to_string(), one.to.to_str().unwrap())).collect();
        let want = [("tank/a", "/out"), ("tank/a/b", "/out/b"), ("tank/a/v", "/out/v.img")];
        assert_eq!(all, want.map(|(source, to)| (source.to_owned(), to)));
        let refused = |source: &str, top| OutOperand::datasets(&target(source), top, Path::new("/out")).unwrap_err();
        assert!(matches!(refused("tank/a:/f", &top), OutError::NotDataset { .. }));
        assert!(matches!(refused("tank/a@s", &pool.dataset("tank/a@s").unwrap()), OutError::NotDataset { .. }));
    }

    #[test]
    fn what_cannot_be_copied_is_refused_by_reason() {
        let host = tempfile::tempdir().unwrap();
        let pool = Pool::in_memory("tank", 128 << 20).unwrap();
        let files = pool.files("tank").unwrap();
        files.create_dir(b"d", 0o755).unwrap();
        files.write(b"f", b"data").unwrap();
        pool.sync().unwrap();
        let dataset = pool.dataset("tank").unwrap();
        let mut report = Silent;
        let mut copier = Copier::new(&mut report);
        let mut copy = |path: &str, to: &str, recursive| {
            let source = target(&format!("tank:/{path}"));
            let found = TargetObject::open(&dataset, source.path(), zpl::Follow::Parents).unwrap();
            OutOperand::new(source, &host.path().join(to)).copy(found, recursive, &mut copier)
        };
        assert!(matches!(copy("f", "x/", false), Err(OutError::NotDirectory { .. })));
        assert!(matches!(copy("f", "x/y", false), Err(OutError::NoDirectory { .. })));
        assert!(matches!(copy("d", "x", false), Err(OutError::Directory { .. })));
        assert!(matches!(copy(".zfs", "x", true), Err(OutError::Control { .. })));
        assert!(matches!(copy("f", "/dev/null", true), Err(OutError::Special { .. })));
        std::os::unix::fs::symlink("end", host.path().join("link")).unwrap();
        std::fs::write(host.path().join("end"), "old").unwrap();
        copy("f", "link", false).unwrap();
        assert_eq!(std::fs::read(host.path().join("end")).unwrap(), b"data");
        copy("d", "x", true).unwrap();
        assert!(host.path().join("x").is_dir());
    }
}
