//! Whole trees: copied in, kept, changed, cloned, taken back, destroyed; compared file by file with the host, and judged by zdb.
#![allow(clippy::unwrap_used)]

#[path = "support/writing.rs"]
mod writing;

use std::path::{Path, PathBuf};

use writing::{Strict, copy_in, judged, listed, listed_host, make_tree, same, set_mtime};
use zuse::{Copier, CopyIn, Pool};

/// As many files as the source of a kernel has, with ZUSE_BIG=1.
fn files() -> usize {
    if std::env::var_os("ZUSE_BIG").is_some() { 70_000 } else { 2000 }
}

struct Rig {
    dir: tempfile::TempDir,
    tree: PathBuf,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        make_tree(&tree, files(), seed);
        std::fs::create_dir(dir.path().join("pool")).unwrap();
        Rig { dir, tree }
    }

    fn devices(&self) -> PathBuf {
        self.dir.path().join("pool")
    }

    fn make(&self) -> Pool {
        self.make_named("t")
    }

    fn make_named(&self, name: &str) -> Pool {
        let image = self.devices().join(name);
        let size = if files() > 10_000 { 8 << 30 } else { 1 << 30 };
        Pool::create_new(name, &[image.to_str().unwrap()], size).unwrap()
    }

    /// Lets the pool go, has it judged, and opens it again.
    fn again(&self, pool: Pool) -> Pool {
        pool.export().unwrap();
        drop(pool);
        judged(&self.devices(), "t");
        Pool::open_writable(&[self.devices()], Some("t")).unwrap()
    }
}

fn used(pool: &Pool, dataset: &str) -> u64 {
    pool.sync().unwrap();
    pool.get(dataset, "used").unwrap().unwrap().number().unwrap()
}

/// Changes a tree: some files go, some come, some get other contents, names, modes.
fn change(tree: &Path) {
    let mut all: Vec<PathBuf> = std::fs::read_dir(tree).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    for (n, path) in all.iter().enumerate() {
        let meta = std::fs::symlink_metadata(path).unwrap();
        match n % 5 {
            0 if meta.is_file() => std::fs::remove_file(path).unwrap(),
            1 if meta.is_dir() => std::fs::remove_dir_all(path).unwrap(),
            2 if meta.is_file() => std::fs::write(path, format!("other contents {n}")).unwrap(),
            3 => std::fs::rename(path, path.with_extension("renamed")).unwrap(),
            _ => {}
        }
    }
    std::fs::create_dir_all(tree.join("new/er")).unwrap();
    std::fs::write(tree.join("new/er/file"), vec![7; 300_000]).unwrap();
    set_mtime(&tree.join("new"), 1_600_000_000);
}

/// Makes a file system what the tree is: what is gone there goes, and all is copied anew.
fn copy_over(pool: &Pool, tree: &Path, dataset: &str) {
    let files = pool.files(dataset).unwrap();
    for entry in files.read_dir(b"").unwrap() {
        files.remove_all(&entry.name).unwrap();
    }
    drop(files);
    copy_in(pool, tree, dataset);
}

#[test]
fn a_tree_through_all_that_datasets_do() {
    let place = Rig::new(1);
    let pool = place.make();
    // what the pool itself grows by counts in its root
    pool.create("t/p", &[]).unwrap();
    let before = used(&pool, "t/p");
    pool.create("t/p/a", &[]).unwrap();
    let done = copy_in(&pool, &place.tree, "t/p/a");
    let first = listed_host(&place.tree);
    // the root was there
    assert_eq!((done.files + 1, done.failed), (first.len() as u64, 0));
    same(&listed(pool.files("t/p/a").unwrap().fs()), &first, "not yet on disk");
    pool.snapshot("t/p/a@first").unwrap();

    let pool = place.again(pool);
    same(&listed(&pool.file_system("t/p/a").unwrap()), &first, "after an import");

    change(&place.tree);
    let second = listed_host(&place.tree);
    copy_over(&pool, &place.tree, "t/p/a");
    pool.snapshot("t/p/a@second").unwrap();
    same(&listed(&pool.file_system("t/p/a@first").unwrap()), &first, "first snapshot");
    same(&listed(&pool.file_system("t/p/a@second").unwrap()), &second, "second snapshot");

    pool.clone_snapshot("t/p/a@first", "t/p/b").unwrap();
    pool.files("t/p/b").unwrap().write(b"more", b"in the clone").unwrap();
    pool.promote("t/p/b").unwrap();
    let pool = place.again(pool);
    assert_eq!(pool.snapshots("t/p/b").unwrap(), ["first"]);
    same(&listed(&pool.file_system("t/p/a").unwrap()), &second, "origin of a promoted clone");
    pool.rollback("t/p/b").unwrap();
    same(&listed(&pool.file_system("t/p/b").unwrap()), &first, "rolled back");
    pool.files("t/p/a").unwrap().remove_all(b"new").unwrap();
    pool.rollback("t/p/a").unwrap();
    same(&listed(pool.files("t/p/a").unwrap().fs()), &second, "rolled back, live");

    let pool = place.again(pool);
    for name in ["t/p/a@second", "t/p/a", "t/p/b@first", "t/p/b"] {
        pool.destroy(name).unwrap();
    }
    let pool = place.again(pool);
    assert_eq!((used(&pool, "t/p"), pool.datasets("t/p").unwrap().len()), (before, 1));
    pool.export().unwrap();
}

#[test]
fn part_of_this_machine_and_back() {
    let candidates = ["/usr/share/terminfo", "/usr/share/perl", "/usr/share/zoneinfo", "/usr/share/doc", "/etc"];
    let source = candidates.into_iter().map(Path::new).find(|path| path.is_dir()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("a");
    let pool = Pool::create_new("t", &[image.to_str().unwrap()], 1 << 30).unwrap();
    copy_in(&pool, source, "t");
    pool.export().unwrap();
    drop(pool);
    judged(dir.path(), "t");
    let pool = Pool::open(&[image], None).unwrap();
    let expected = listed_host(source);
    let fs = pool.file_system("t").unwrap();
    same(&listed(&fs), &expected, "in the pool");
    let back = dir.path().join("back");
    Copier::new(&mut Strict).copy_tree(fs.root_node().unwrap(), &back).unwrap();
    same(&listed_host(&back), &expected, "back on the host");
}

#[test]
fn a_tree_as_an_archive_and_from_pool_to_pool() {
    let place = Rig::new(2);
    let pool = place.make();
    copy_in(&pool, &place.tree, "t");
    pool.sync().unwrap();
    let root = || pool.file_system("t").unwrap().root_node().unwrap();

    let mut report = Strict;
    let mut tape = Vec::new();
    let mut archiver = zuse::Archiver::new(&mut tape, &mut report);
    archiver.add_tree(root(), b"").unwrap();
    archiver.finish().unwrap();
    let mut expected = listed_host(&place.tree);

    let other = place.make_named("other");
    for dataset in ["other/tar", "other/node", "other/deep"] {
        other.create(dataset, &[]).unwrap();
    }
    let files = other.files("other/tar").unwrap();
    let mut copy_in = CopyIn::new(files.zfs(), files.fs().root(), &mut report);
    copy_in.tar(tape.as_slice(), b"").unwrap();
    copy_in.finish().unwrap();
    same(&listed(files.fs()), &expected, "through an archive");

    let files = other.files("other/node").unwrap();
    let mut copy_in = CopyIn::new(files.zfs(), files.fs().root(), &mut report);
    copy_in.node(root(), b"").unwrap();
    copy_in.finish().unwrap();
    same(&listed(files.fs()), &expected, "from pool to pool");

    // below a directory that is not there yet
    let files = other.files("other/deep").unwrap();
    let mut copy_in = CopyIn::new(files.zfs(), files.fs().root(), &mut report);
    copy_in.host(&place.tree.join("sparse"), b"x/y/sparse").unwrap();
    assert_eq!(copy_in.finish().unwrap().files, 1);
    let sparse = files.fs().resolve(b"x/y/sparse").unwrap();
    let first = sparse.next_data(0).unwrap().unwrap();
    assert!(first > 1 << 20 && first <= 5 << 20, "{first}");
    let file = expected.remove(b"sparse".as_slice()).unwrap();
    assert_eq!(listed(files.fs()).get(b"x/y/sparse".as_slice()), Some(&file));
    other.export().unwrap();
    pool.export().unwrap();
}
