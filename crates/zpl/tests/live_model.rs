//! Random operations on names, compared with a model.
#![allow(clippy::unwrap_used)]

mod scratch;

use std::collections::BTreeMap;

use base::{Errno, ObjectId};
use proptest::prelude::*;
use scratch::Scratch;
use zpl::live::{Cred, NewFile, RenameMode, Zfs};
use zpl::{FileSystem, Kind};

const ROOT: Cred = Cred::ROOT;
const NAMES: u8 = 5;

/// A directory: the number of the file of each name.
type Names = BTreeMap<u8, usize>;

/// Files by number; 0 is the root. A removed file is `None`.
#[derive(Clone, Debug)]
struct Model {
    files: Vec<Option<File>>,
}

#[derive(Clone, Debug)]
struct File {
    names: Option<Names>,
    links: usize,
    parent: usize,
}

#[derive(Clone, Debug)]
enum Op {
    Make { dir: usize, name: u8, is_dir: bool },
    Link { file: usize, dir: usize, name: u8 },
    Unlink { dir: usize, name: u8 },
    Rmdir { dir: usize, name: u8 },
    Rename { from: (usize, u8), to: (usize, u8), mode: u8 },
    Sync,
}

fn op() -> impl Strategy<Value = Op> {
    let (at, name) = (|| 0..12usize, || 0..NAMES);
    prop_oneof![
        4 => (at(), name(), any::<bool>()).prop_map(|(dir, name, is_dir)| Op::Make { dir, name, is_dir }),
        2 => (at(), at(), name()).prop_map(|(file, dir, name)| Op::Link { file, dir, name }),
        2 => (at(), name()).prop_map(|(dir, name)| Op::Unlink { dir, name }),
        2 => (at(), name()).prop_map(|(dir, name)| Op::Rmdir { dir, name }),
        5 => ((at(), name()), (at(), name()), 0..3u8).prop_map(|(from, to, mode)| Op::Rename { from, to, mode }),
        1 => Just(Op::Sync),
    ]
}

impl Model {
    fn new() -> Model {
        Model { files: vec![Some(File { names: Some(Names::new()), links: 2, parent: 0 })] }
    }

    fn dir(&mut self, n: usize) -> Result<&mut Names, Errno> {
        let file = self.files.get_mut(n).and_then(Option::as_mut).ok_or(Errno::ENOENT)?;
        file.names.as_mut().ok_or(Errno::ENOTDIR)
    }

    fn is_dir(&self, n: usize) -> bool {
        self.files[n].as_ref().unwrap().names.is_some()
    }

    fn subdirs(&self, n: usize) -> usize {
        let names = self.files[n].as_ref().unwrap().names.as_ref().unwrap();
        names.values().filter(|n| self.is_dir(**n)).count()
    }

    fn is_below(&self, mut dir: usize, top: usize) -> bool {
        loop {
            if dir == top {
                return true;
            }
            if dir == 0 {
                return false;
            }
            dir = self.files[dir].as_ref().unwrap().parent;
        }
    }

    fn drop_link(&mut self, n: usize) {
        let file = self.files[n].as_mut().unwrap();
        file.links -= 1;
        if file.links == 0 || file.names.is_some() {
            self.files[n] = None;
        }
    }

    fn find(&mut self, dir: usize, name: u8) -> Result<usize, Errno> {
        self.dir(dir)?.get(&name).copied().ok_or(Errno::ENOENT)
    }

    /// Applies the operation; returns an error number on failure.
    fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        match *op {
            Op::Make { dir, name, is_dir } => {
                let n = self.files.len();
                if self.dir(dir)?.contains_key(&name) {
                    return Err(Errno::EEXIST);
                }
                self.dir(dir)?.insert(name, n);
                let names = is_dir.then(Names::new);
                self.files.push(Some(File { names, links: if is_dir { 2 } else { 1 }, parent: dir }));
            }
            Op::Link { file, dir, name } => {
                self.dir(dir)?;
                self.files.get(file).and_then(Option::as_ref).ok_or(Errno::ENOENT)?;
                if self.dir(dir)?.contains_key(&name) {
                    return Err(Errno::EEXIST);
                }
                if self.is_dir(file) {
                    return Err(Errno::EPERM);
                }
                self.dir(dir)?.insert(name, file);
                let file = self.files[file].as_mut().unwrap();
                (file.links, file.parent) = (file.links + 1, dir);
            }
            Op::Unlink { dir, name } => {
                let n = self.find(dir, name)?;
                if self.is_dir(n) {
                    return Err(Errno::EISDIR);
                }
                self.dir(dir)?.remove(&name);
                self.drop_link(n);
            }
            Op::Rmdir { dir, name } => {
                let n = self.find(dir, name)?;
                if !self.dir(n)?.is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                self.dir(dir)?.remove(&name);
                self.drop_link(n);
            }
            Op::Rename { from, to, mode } => return self.rename(from, to, mode),
            Op::Sync => {}
        }
        Ok(())
    }

    fn rename(&mut self, from: (usize, u8), to: (usize, u8), mode: u8) -> Result<(), Errno> {
        self.dir(from.0)?;
        self.dir(to.0)?;
        let source = self.find(from.0, from.1)?;
        let target = self.find(to.0, to.1).ok();
        match (target, mode) {
            (Some(_), 1) => return Err(Errno::EEXIST),
            (None, 2) => return Err(Errno::ENOENT),
            _ => {}
        }
        if self.is_dir(source) && from.0 != to.0 && self.is_below(to.0, source) {
            return Err(Errno::EINVAL);
        }
        match (target, mode) {
            (Some(target), mode) if self.is_dir(target) && from.0 != to.0 && self.is_below(from.0, target) => {
                return Err(if mode == 2 { Errno::EINVAL } else { Errno::ENOTEMPTY });
            }
            (Some(target), _) if target == source => return Ok(()),
            (Some(target), 2) => {
                self.dir(from.0)?.insert(from.1, target);
                self.dir(to.0)?.insert(to.1, source);
                self.files[target].as_mut().unwrap().parent = from.0;
                self.files[source].as_mut().unwrap().parent = to.0;
                return Ok(());
            }
            (Some(target), _) => {
                match (self.is_dir(source), self.is_dir(target)) {
                    (true, false) => return Err(Errno::ENOTDIR),
                    (false, true) => return Err(Errno::EISDIR),
                    (_, true) if !self.dir(target)?.is_empty() => return Err(Errno::ENOTEMPTY),
                    _ => {}
                }
                self.drop_link(target);
            }
            (None, _) => {}
        }
        self.dir(from.0)?.remove(&from.1);
        self.dir(to.0)?.insert(to.1, source);
        self.files[source].as_mut().unwrap().parent = to.0;
        Ok(())
    }
}

/// The real file system: object numbers by number of the model.
struct Real {
    zfs: Zfs,
    ids: Vec<ObjectId>,
}

impl Real {
    fn id(&self, n: usize) -> ObjectId {
        // never created
        self.ids.get(n).copied().unwrap_or(ObjectId(1 << 40))
    }

    fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        let text = |name: u8| vec![b'a' + name; 1 + usize::from(name) * 40];
        let zfs = &self.zfs;
        let done = match *op {
            Op::Make { dir, name, is_dir } => {
                let kind = if is_dir { Kind::Directory } else { Kind::File };
                let made = zfs.create(&ROOT, self.id(dir), &text(name), &NewFile::new(kind, 0o755));
                made.map(|(id, _)| self.ids.push(id))
            }
            Op::Link { file, dir, name } => zfs.link(&ROOT, self.id(file), self.id(dir), &text(name)).map(drop),
            Op::Unlink { dir, name } => zfs.unlink(&ROOT, self.id(dir), &text(name)),
            Op::Rmdir { dir, name } => zfs.rmdir(&ROOT, self.id(dir), &text(name)),
            Op::Rename { from, to, mode } => {
                let mode = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange][usize::from(mode)];
                zfs.rename(&ROOT, self.id(from.0), &text(from.1), self.id(to.0), &text(to.1), mode)
            }
            Op::Sync => zfs.spa().sync().map_err(zpl::Error::from),
        };
        done.map_err(|e| e.errno())
    }
}

/// Checks that all files of the model exist as in the model, and nothing else.
fn compare(fs: &FileSystem, model: &Model, ids: &[ObjectId]) {
    for (n, file) in model.files.iter().enumerate() {
        let Some(file) = file else { continue };
        let node = fs.node(ids[n]).unwrap();
        let attrs = node.attrs();
        let Some(names) = &file.names else {
            assert_eq!((attrs.links as usize, attrs.kind()), (file.links, Kind::File));
            continue;
        };
        assert_eq!(attrs.size as usize, names.len() + 2, "entries of {n}");
        assert_eq!(attrs.links as usize, model.subdirs(n) + 2, "links of {n}");
        assert_eq!(attrs.parent, ids[file.parent], "parent of {n}");
        let mut found: Vec<(u8, ObjectId)> =
            fs.read_dir(ids[n]).unwrap().map(Result::unwrap).map(|e| (e.name[0] - b'a', e.object)).collect();
        found.sort_unstable();
        let wanted: Vec<(u8, ObjectId)> = names.iter().map(|(name, n)| (*name, ids[*n])).collect();
        assert_eq!(found, wanted, "names in {n}");
    }
    assert!(fs.delete_queue().unwrap().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn names_are_as_in_the_model(ops in prop::collection::vec(op(), 1..120)) {
        let mut scratch = Scratch::new();
        let zfs = scratch.zfs();
        let (mut model, mut real) = (Model::new(), Real { ids: vec![zfs.fs().root()], zfs });
        for op in &ops {
            let wanted = model.apply(op);
            prop_assert_eq!(real.apply(op), wanted, "{:?}", op);
        }
        compare(real.zfs.fs(), &model, &real.ids);
        let ids = std::mem::take(&mut real.ids);
        drop(real);
        scratch.again();
        compare(scratch.zfs().fs(), &model, &ids);
    }
}
