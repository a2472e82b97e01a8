//! Trees of the host and of pools, made and compared; the judge.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use base::Env;
use oracle::judge;
use sha2::{Digest, Sha256};
use zpl::{FileSystem, Kind};
use zuse::host::{Contents, HostStep, HostTree};
use zuse::{CopyIn, Go, Imported, Item, Pool, Report, Step, base, walk, zpl};

/// Complains at once.
pub(crate) struct Strict;

impl Report for Strict {
    fn lost(&mut self, path: &[u8], what: &str) {
        panic!("{}: {what}", String::from_utf8_lossy(path));
    }

    fn not_kept(&mut self, path: &[u8], what: &str) {
        self.lost(path, what);
    }
}

/// Copies a tree of the host into the root of a file system.
pub(crate) fn copy_in(pool: &Pool, from: &Path, dataset: &str) -> Imported {
    let files = pool.files(dataset).unwrap();
    let mut report = Strict;
    let mut copy_in = CopyIn::new(files.zfs(), files.fs().root(), &mut report);
    copy_in.host(from, b"").unwrap();
    copy_in.finish().unwrap()
}

/// A file, apart from what a copy cannot keep. Files with several names have the first one here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    kind: u8,
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, u32),
    device: (u32, u32),
    target: Vec<u8>,
    size: u64,
    digest: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    first_name: Option<Vec<u8>>,
}

type Listing = BTreeMap<Vec<u8>, Seen>;

fn seen(path: &[u8], item: &Item, data: &[u8], firsts: &mut BTreeMap<(u64, u64), Vec<u8>>) -> Seen {
    let mut xattrs = item.meta.xattrs.clone();
    xattrs.sort();
    let device = matches!(item.kind, Kind::CharDevice | Kind::BlockDevice);
    Seen {
        kind: item.kind.number(),
        mode: if item.kind == Kind::Symlink { 0 } else { item.meta.mode },
        owner: (item.meta.uid, item.meta.gid),
        mtime: item.meta.mtime,
        device: if device { item.device } else { (0, 0) },
        target: item.target.clone(),
        size: item.size,
        digest: Sha256::digest(data).to_vec(),
        xattrs,
        first_name: item.link.map(|link| firsts.entry(link).or_insert_with(|| path.to_vec()).clone()),
    }
}

/// All files of a tree of the host.
pub(crate) fn listed_host(root: &Path) -> Listing {
    let (mut all, mut firsts) = (Listing::new(), BTreeMap::new());
    for (path, step) in HostTree::open(root).unwrap() {
        let HostStep::Enter(item, contents) = step else { continue };
        let data = match contents {
            Contents::None => Vec::new(),
            Contents::Whole(data) => data,
            Contents::Open(_) => std::fs::read(root.join(std::ffi::OsStr::from_bytes(&path))).unwrap(),
        };
        let file = seen(&path, &item, &data, &mut firsts);
        all.insert(path, file);
    }
    all
}

/// All files of a file system.
pub(crate) fn listed(fs: &FileSystem) -> Listing {
    let (mut all, mut firsts) = (Listing::new(), BTreeMap::new());
    walk::<()>(fs.root_node().unwrap(), true, &mut |step| {
        let Step::Enter { path, node } = step else { return Ok(Go::In) };
        let (item, trouble) = Item::of_node(node);
        assert!(trouble.is_none(), "{trouble:?}");
        let mut data = vec![0; item.size as usize];
        assert_eq!(node.read(0, &mut data).unwrap_or(0), data.len());
        all.insert(path.to_vec(), seen(path, &item, &data, &mut firsts));
        Ok(Go::In)
    })
    .unwrap();
    all
}

/// Asserts that two trees are one, and says where they differ.
pub(crate) fn same(found: &Listing, expected: &Listing, what: &str) {
    for (path, file) in expected {
        let path_shown = String::from_utf8_lossy(path);
        assert_eq!(found.get(path), Some(file), "{what}: {path_shown}");
    }
    let more: Vec<_> = found.keys().filter(|path| !expected.contains_key(*path)).collect();
    assert!(more.is_empty(), "{what}: {more:?}");
}

/// zdb finds every block, and no space without one.
pub(crate) fn judged(dir: &Path, pool: &str) {
    judge::no_leaks(dir, pool);
}

/// Makes a tree of about `files` files of all kinds, the same for the same seed.
pub(crate) fn make_tree(root: &Path, files: usize, seed: u64) {
    let env = Env::seeded(seed);
    let below = |n: usize| (env.random_u64() % n.max(1) as u64) as usize;
    std::fs::create_dir_all(root).unwrap();
    let mut dirs = vec![root.to_owned()];
    let mut made = Vec::new();
    for n in 0..files {
        let dir = dirs[below(dirs.len())].clone();
        let name = if n % 97 == 0 { format!("{n} with blanks and ümläut") } else { format!("f{n}") };
        let path = dir.join(name);
        match n % 40 {
            0 | 1 => {
                std::fs::create_dir(&path).unwrap();
                dirs.push(path.clone());
            }
            2 => symlink(format!("../f{}", below(n + 1)), &path).unwrap(),
            3 if !made.is_empty() => std::fs::hard_link(&made[below(made.len())], &path).unwrap(),
            _ => {
                let size = match below(100) {
                    0..10 => 0,
                    10..90 => below(12 << 10),
                    90..99 => below(200 << 10),
                    _ => below(3 << 20),
                };
                let mut data = vec![0; size];
                env.fill_random(&mut data);
                // some of it compresses
                data.iter_mut().skip(size / 2).for_each(|b| *b &= 3);
                std::fs::write(&path, &data).unwrap();
                made.push(path.clone());
            }
        }
        finish(&path, &env);
    }
    special(root, &env);
    // what came into the directories has changed their times
    for dir in dirs.iter().rev() {
        set_mtime(dir, 1_500_000_000 + env.random_u64() % 100_000_000);
    }
}

fn finish(path: &Path, env: &Env) {
    let meta = std::fs::symlink_metadata(path).unwrap();
    if meta.is_symlink() {
        return;
    }
    let bits = if meta.is_dir() { 0o700 } else { 0o400 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(bits | (env.random_u64() as u32 & 0o6077))).unwrap();
    if meta.is_file() && env.random_u64().is_multiple_of(9) {
        // a temporary folder may be on a file system without attributes
        let value = vec![b'x'; (env.random_u64() % 300) as usize];
        let _ = rustix::fs::setxattr(path, "user.zuse", &value, rustix::fs::XattrFlags::empty());
    }
    if meta.is_file() {
        set_mtime(path, 1_400_000_000 + env.random_u64() % 100_000_000);
    }
}

/// A pipe, a sparse file, a name that is no UTF-8, a device if we may.
fn special(root: &Path, env: &Env) {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    let _ = mknodat(CWD, root.join("null"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 3));
    let sparse = File::create(root.join("sparse")).unwrap();
    let mut data = vec![0; 100_000];
    env.fill_random(&mut data);
    sparse.write_all_at(&data, 5 << 20).unwrap();
    sparse.set_len((9 << 20) + 5).unwrap();
    std::fs::write(root.join(std::ffi::OsStr::from_bytes(b"\xff\xfe")), "x").unwrap();
}

pub(crate) fn set_mtime(path: &Path, secs: u64) {
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(secs, 123_456_789);
    File::open(path).unwrap().set_modified(time).unwrap();
}
