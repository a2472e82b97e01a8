//! Concurrency: threads that write one file system, file systems that share blocks; and rare cases: records of 16 MiB, inherited
//! NFSv4 ACLs.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod scratch;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use base::{Env, Errno, ObjectId};
use ondisk::ObjsetType;
use pool::{NewDataset, Value};
use scratch::Scratch;
use zpl::create::{FsProps, create_fs};
use zpl::live::{Cred, NewFile, RenameMode, SetAttr, Zfs};
use zpl::{Ace, AceType, FileFlags, Fuid, Kind, Who};

const ROOT: Cred = Cred::ROOT;
const THREADS: usize = 4;
const BLOCK: u64 = 4 << 10;

fn file(zfs: &Zfs, name: &str) -> ObjectId {
    zfs.create(&ROOT, zfs.fs().root(), name.as_bytes(), &NewFile::new(Kind::File, 0o644)).unwrap().0
}

fn noise(env: &Env, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    env.fill_random(&mut data);
    data
}

fn all(zfs: &Zfs, id: ObjectId) -> Vec<u8> {
    let mut buf = vec![0; zfs.getattr(id).unwrap().size as usize];
    zfs.read(id, 0, &mut buf).unwrap();
    buf
}

fn create(scratch: &Scratch, name: &str, props: &[(&str, u64)]) -> Zfs {
    let new = NewDataset {
        props: props.iter().map(|(name, value)| ((*name).to_string(), Value::Number(*value))).collect(),
        ..NewDataset::inheriting(name, ObjsetType::Zfs)
    };
    scratch.spa().create_dataset(new, Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default()))).unwrap();
    Zfs::open(scratch.spa(), name).unwrap()
}

/// The files of one thread in the shared directories: names, each with its contents.
type Own = BTreeMap<(usize, String), Vec<u8>>;

/// One of several threads that work in the same directories, each on files of its own.
struct Worker<'a> {
    zfs: &'a Zfs,
    env: Env,
    number: usize,
    dirs: &'a [ObjectId],
    own: Own,
}

impl Worker<'_> {
    fn below(&self, n: usize) -> usize {
        (self.env.random_u64() % n as u64) as usize
    }

    fn id(&self, (dir, name): &(usize, String)) -> ObjectId {
        self.zfs.lookup(&ROOT, self.dirs[*dir], name.as_bytes()).unwrap().0
    }

    fn step(&mut self) {
        let name = (self.below(self.dirs.len()), format!("{} of {}", self.below(12), self.number));
        let Some(mut data) = self.own.remove(&name) else {
            let made = self.zfs.create(&ROOT, self.dirs[name.0], name.1.as_bytes(), &NewFile::new(Kind::File, 0o600));
            made.unwrap();
            self.own.insert(name, Vec::new());
            return;
        };
        let id = self.id(&name);
        match self.below(6) {
            0..3 => {
                let (at, more) = (self.below(30_000), noise(&self.env, 1 + self.below(9000)));
                self.zfs.write(&ROOT, id, at as u64, &more).unwrap();
                data.resize(data.len().max(at + more.len()), 0);
                data[at..at + more.len()].copy_from_slice(&more);
            }
            3 => {
                let size = self.below(40_000);
                let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                self.zfs.setattr(&ROOT, id, &set).unwrap();
                data.resize(size, 0);
            }
            4 => {
                let to = (self.below(self.dirs.len()), format!("{} of {}", self.below(12), self.number));
                let (from, into) = (self.dirs[name.0], self.dirs[to.0]);
                let mode = RenameMode::Replace;
                self.zfs.rename(&ROOT, from, name.1.as_bytes(), into, to.1.as_bytes(), mode).unwrap();
                self.own.insert(to, data);
                return;
            }
            _ => {
                self.zfs.unlink(&ROOT, self.dirs[name.0], name.1.as_bytes()).unwrap();
                return;
            }
        }
        self.own.insert(name, data);
    }
}

/// Each thread writes every fourth range of a file, none of which is a whole block.
const STRETCH: usize = 1500;
const STRETCHES: usize = 160;

/// A read takes no lock if the file does not change meanwhile; a change is seen completely or not at all.
#[test]
fn a_read_sees_a_write_as_a_whole_and_no_end_that_never_was() {
    const LEN: usize = 5 * BLOCK as usize + 100;
    let mut scratch = Scratch::with(FsProps::default(), &[("recordsize", BLOCK)]);
    let zfs = scratch.zfs();
    let (id, done) = (file(&zfs, "both"), AtomicBool::new(false));
    zfs.write(&ROOT, id, 0, &[0; LEN]).unwrap();
    let reads = std::thread::scope(|scope| {
        let reader = || {
            let (open, mut buf, mut reads) = (zfs.hold(id).unwrap(), vec![0; 2 * LEN], 0);
            while !done.load(Ordering::Relaxed) {
                let n = zfs.read_node(open.node(), 0, &mut buf).unwrap();
                assert!(n == LEN || n == 2 * LEN || n == 10, "{n}");
                assert!(buf[..n].iter().all(|byte| *byte == buf[0]), "{n} bytes of several writes");
                reads += 1;
            }
            reads
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        for n in 1..120u8 {
            zfs.write(&ROOT, id, 0, &vec![n; if n % 3 == 0 { 2 * LEN } else { LEN }]).unwrap();
            let size = |size| zfs.setattr(&ROOT, id, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
            // the rest of an earlier, longer write is truncated before the next shorter one
            size(10);
            if n % 10 == 0 {
                scratch.spa().sync().unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
        readers.map(|reader| reader.join().unwrap()).iter().sum::<u64>()
    });
    assert!(reads > 0);
    drop(zfs);
    scratch.close();
}

#[test]
fn writers_in_one_file_system_do_not_disturb_each_other() {
    let mut scratch = Scratch::with(FsProps::default(), &[("recordsize", BLOCK)]);
    let zfs = scratch.zfs();
    let shared = file(&zfs, "shared");
    let dir = |name: &str| {
        zfs.create(&ROOT, zfs.fs().root(), name.as_bytes(), &NewFile::new(Kind::Directory, 0o755)).unwrap().0
    };
    let dirs = [dir("one"), dir("two"), dir("three")];
    let spa = scratch.spa();
    let owned: Vec<Own> = std::thread::scope(|scope| {
        let work = |number: usize| {
            let (zfs, dirs) = (&zfs, &dirs);
            move || {
                let env = Env::seeded(number as u64 + 1);
                let mut worker = Worker { zfs, env, number, dirs, own: Own::new() };
                for n in 0..STRETCHES * 2 {
                    worker.step();
                    if n % 2 == 0 {
                        let at = (n / 2 * THREADS + number) * STRETCH;
                        zfs.write(&ROOT, shared, at as u64, &[number as u8 + 1; STRETCH]).unwrap();
                    }
                }
                worker.own
            }
        };
        let workers: Vec<_> = (0..THREADS).map(|number| scope.spawn(work(number))).collect();
        for n in 0..6 {
            spa.snapshot(&[format!("t@{n}")], &[]).unwrap();
        }
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let compare = |zfs: &Zfs| {
        let mut expected = owned.iter().flatten().collect::<BTreeMap<_, _>>();
        for (n, dir) in dirs.iter().enumerate() {
            for entry in zfs.fs().read_dir(*dir).unwrap().map(Result::unwrap) {
                let name = (n, String::from_utf8(entry.name).unwrap());
                assert!(Some(&all(zfs, entry.object)) == expected.remove(&name), "{name:?}");
            }
            let attrs = zfs.getattr(*dir).unwrap();
            assert_eq!(attrs.size, 2 + owned.iter().flatten().filter(|((dir, _), _)| *dir == n).count() as u64);
        }
        assert!(expected.is_empty(), "{:?}", expected.keys());
        let stretches = (0..THREADS * STRETCHES).flat_map(|n| [(n % THREADS) as u8 + 1; STRETCH]);
        assert!(all(zfs, shared) == stretches.collect::<Vec<u8>>());
    };
    compare(&zfs);
    drop(zfs);
    scratch.again();
    compare(&scratch.zfs());
}

/// Returns the space saved by the block reference table.
fn saved(scratch: &Scratch) -> u64 {
    scratch.spa().sync().unwrap();
    scratch.spa().view().unwrap().brt_stats().unwrap().saved
}

fn file_systems_share_blocks(scratch: &Scratch) {
    const LEN: u64 = 20 * BLOCK;
    let env = Env::seeded(7);
    let (a, b) = (create(scratch, "t/a", &[("recordsize", BLOCK)]), create(scratch, "t/b", &[("recordsize", BLOCK)]));
    let (of_a, of_b) = (file(&a, "f"), file(&b, "f"));
    assert_eq!(of_a, of_b, "the locks of two files of one number are what this is about");
    let data = noise(&env, LEN as usize);
    a.write(&ROOT, of_a, 0, &data).unwrap();
    assert_eq!(b.copy_range_from(&ROOT, &a, (of_a, 0), (of_b, 0), LEN).unwrap(), LEN);
    assert!(all(&b, of_b) == data);
    assert_eq!(saved(scratch), LEN);

    // both directions at once
    let (tell, told) = mpsc::channel();
    for (to, from, at) in [(a.clone(), b.clone(), LEN), (b.clone(), a.clone(), 2 * LEN)] {
        let tell = tell.clone();
        std::thread::spawn(move || {
            let copied =
                (0..40).try_for_each(|_| to.copy_range_from(&ROOT, &from, (of_a, 0), (of_b, at), LEN).map(drop));
            tell.send(copied).unwrap();
        });
    }
    for _ in 0..2 {
        told.recv_timeout(Duration::from_secs(120)).expect("two copies wait for each other").unwrap();
    }
    assert!(all(&a, of_a)[LEN as usize..] == data && all(&b, of_b)[2 * LEN as usize..] == data);

    // blocks that would be stored differently there are copied
    let other = create(scratch, "t/other", &[("recordsize", BLOCK), ("checksum", 8)]);
    let of_other = file(&other, "f");
    let before = saved(scratch);
    assert_eq!(other.copy_range_from(&ROOT, &a, (of_a, 0), (of_other, 0), LEN).unwrap(), LEN);
    assert!(all(&other, of_other) == data);
    assert_eq!(saved(scratch), before);

    // flags of the target forbid sharing like writing
    for (flags, to) in [(FileFlags::IMMUTABLE, 0), (FileFlags::APPENDONLY, 0), (FileFlags::IMMUTABLE, 3 * LEN)] {
        b.setattr(&ROOT, of_b, &SetAttr { flags: Some(flags), ..SetAttr::default() }).unwrap();
        let refused = b.copy_range_from(&ROOT, &a, (of_a, 0), (of_b, to), LEN);
        assert_eq!(refused.unwrap_err().errno(), Errno::EPERM);
    }
}

fn records_may_be_of_sixteen_mebibytes(scratch: &Scratch) -> (u64, Vec<u8>) {
    const RECORD: usize = 16 << 20;
    let zfs = create(scratch, "t/big", &[("recordsize", RECORD as u64)]);
    let id = file(&zfs, "f");
    // most of it compresses
    let mut data = vec![1; RECORD + 70_000];
    data[..50_000].copy_from_slice(&noise(&Env::seeded(9), 50_000));
    zfs.write(&ROOT, id, 0, &data).unwrap();
    scratch.spa().sync().unwrap();
    assert_eq!(zfs.fs().node(id).unwrap().object().block_size(), RECORD as u64);
    zfs.write(&ROOT, id, RECORD as u64 - 3, b"across").unwrap();
    data[RECORD - 3..RECORD + 3].copy_from_slice(b"across");
    zfs.setattr(&ROOT, id, &SetAttr { size: Some(RECORD as u64 + 4), ..SetAttr::default() }).unwrap();
    data.truncate(RECORD + 4);
    let copy = file(&zfs, "copy");
    assert_eq!(zfs.copy_range(&ROOT, (id, 0), (copy, 0), u64::MAX).unwrap(), data.len() as u64);
    assert!(all(&zfs, copy) == data && all(&zfs, id) == data);
    (id.0, data)
}

const READ: u32 = 0x1;
const WRITE: u32 = 0x2;
const FILE_INHERIT: u16 = 0x1;
const DIRECTORY_INHERIT: u16 = 0x2;
const INHERITED: u16 = 0x80;

/// Named entries of ACLs: who, permissions, inheritance.
fn named(zfs: &Zfs, id: ObjectId) -> Vec<(u32, u32, u16)> {
    let acl = zfs.fs().node(id).unwrap().acl().unwrap();
    let entry = |ace: Ace| match ace.who {
        Who::User(id) => Some((id.rid(), ace.mask, ace.flags)),
        _ => None,
    };
    acl.aces.into_iter().filter_map(entry).collect()
}

fn lists_are_inherited(scratch: &Scratch) {
    // nfsv4, passthrough
    let zfs = create(scratch, "t/nfs4", &[("acltype", 2), ("aclinherit", 3)]);
    let root = zfs.fs().root();
    let ace = |who, mask, flags| Ace { kind: AceType::Allow, flags, mask, who, object_types: None };
    let list = vec![
        ace(Who::User(Fuid(5)), READ | WRITE, FILE_INHERIT | DIRECTORY_INHERIT),
        ace(Who::User(Fuid(6)), READ, FILE_INHERIT),
        ace(Who::Owner, 0x1f_01ff, 0x1000),
        ace(Who::Everyone, READ | 0x20, 0x4000),
    ];
    assert_eq!(zfs.set_acl(&ROOT, root, list).unwrap().mode & 0o777, 0o755);
    let make = |dir, name: &str, kind| zfs.create(&ROOT, dir, name.as_bytes(), &NewFile::new(kind, 0o640)).unwrap().0;
    let (plain, dir) = (make(root, "f", Kind::File), make(root, "d", Kind::Directory));
    let below = make(dir, "f", Kind::File);
    let both = FILE_INHERIT | DIRECTORY_INHERIT | INHERITED;
    assert_eq!(named(&zfs, plain), [(5, READ | WRITE, INHERITED), (6, READ, INHERITED)]);
    assert_eq!(named(&zfs, dir), [(5, READ | WRITE, both), (6, READ, FILE_INHERIT | 0x8 | INHERITED)]);
    assert_eq!(named(&zfs, below), [(5, READ | WRITE, INHERITED), (6, READ, INHERITED)]);
    let may = |uid, id, rwx| zfs.access(&Cred::user(uid, 9, []), id, rwx).map_err(|e| e.errno());
    assert_eq!([may(5, below, 6), may(6, below, 4)], [Ok(()); 2]);
    assert_eq!([may(6, below, 2), may(7, below, 4), may(6, dir, 4)], [Err(Errno::EACCES); 3]);
    // a symbolic link has no ACL, and a move keeps the existing one
    let link = zfs.create(&ROOT, root, b"l", &NewFile::symlink(b"f")).unwrap().0;
    assert!(named(&zfs, link).is_empty());
    zfs.rename(&ROOT, dir, b"f", root, b"moved", RenameMode::Replace).unwrap();
    assert_eq!(named(&zfs, below), [(5, READ | WRITE, INHERITED), (6, READ, INHERITED)]);
}

#[test]
fn what_is_rarely_asked_for_works_and_lasts() {
    // a write of a record of 16 MiB is admitted if there is space for several
    let mut scratch = Scratch::sized(512 << 20);
    file_systems_share_blocks(&scratch);
    lists_are_inherited(&scratch);
    let (big, data) = records_may_be_of_sixteen_mebibytes(&scratch);
    scratch.again();
    let zfs = Zfs::open(scratch.spa(), "t/big").unwrap();
    assert!(all(&zfs, ObjectId(big)) == data);
    let zfs = Zfs::open(scratch.spa(), "t/nfs4").unwrap();
    let (dir, _) = zfs.lookup(&ROOT, zfs.fs().root(), b"d").unwrap();
    assert_eq!(named(&zfs, dir).len(), 2);
}
