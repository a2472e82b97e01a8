//! Programs may use the library wrongly without losing anything.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::Path;

use base::Errno;
use zuse::dest::Meta;
use zuse::verify::Options;
use zuse::zpl::Kind;
use zuse::zpl::live::{Cred, NewFile, SetAttr};
use zuse::{Chunk, Copier, CopyIn, Item, Pool, Silent, pool::Value, read_past_damage};

const SIZE: u64 = 128 << 20;

#[test]
fn a_new_pool_does_not_take_the_devices_of_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a").display().to_string();
    let make = || Pool::create_new("t", &[&path], SIZE);
    let pool = make().unwrap();
    pool.files("t").unwrap().write(b"f", b"data").unwrap();
    assert_eq!(make().unwrap_err().errno(), Errno::EBUSY, "while it is open");
    pool.export().unwrap();
    drop(pool);
    let refused = make().unwrap_err();
    assert!(refused.errno() == Errno::EBUSY && refused.to_string().contains("part of exported pool 't'"), "{refused}");
    let again = Pool::open(&[&path], None).unwrap();
    assert_eq!(again.file_system("t").unwrap().resolve(b"f").unwrap().size(), 4);
}

#[test]
fn a_file_larger_than_memory_is_an_error() {
    let pool = Pool::in_memory("t", SIZE).unwrap();
    let files = pool.files("t").unwrap();
    files.write(b"f", b"x").unwrap();
    let (id, _) = files.stat(b"f").unwrap();
    let long = SetAttr { size: Some(1 << 60), ..SetAttr::default() };
    files.zfs().setattr(&Cred::ROOT, id, &long).unwrap();
    assert!(files.read(b"f").unwrap_err().to_string().contains("memory"));
    pool.export().unwrap();
}

/// Files of sysfs say that they have a page, and have a line.
#[test]
fn a_file_shorter_than_it_said_is_as_long_as_it_is() {
    let host = Path::new("/sys/kernel/uevent_seqnum");
    let pool = Pool::in_memory("t", SIZE).unwrap();
    let files = pool.files("t").unwrap();
    let mut report = Silent;
    let mut copy_in = CopyIn::new(files.zfs(), files.fs().root(), &mut report);
    copy_in.host(host, b"f").unwrap();
    assert_eq!(copy_in.finish().unwrap().failed, 0);
    let copied = files.read(b"f").unwrap();
    assert!(copied.ends_with(b"\n") && copied.len() < 100, "{} bytes", copied.len());
    pool.export().unwrap();
}

/// A new owner ends a program's capabilities: they are given to a copy after its owner.
#[test]
fn copies_of_programs_keep_their_capabilities() {
    const NAME: &[u8] = b"security.capability";
    let pool = Pool::in_memory("t", SIZE).unwrap();
    let files = pool.files("t").unwrap();
    let xattrs = vec![(NAME.to_vec(), b"cap".to_vec()), (b"user.a".to_vec(), b"a".to_vec())];
    let meta = Meta { uid: 1000, gid: 1000, mode: 0o755, mtime: (7, 8), xattrs, ..Meta::default() };
    let item = || Item { size: 5, ..Item::new(Kind::File, meta.clone()) };
    let mut report = Silent;
    let mut copy_in = CopyIn::new(files.zfs(), files.fs().root(), &mut report);
    copy_in.put(b"whole", item(), b"whole".to_vec()).unwrap();
    let mut begun = copy_in.begin(b"parts", item()).unwrap().unwrap();
    copy_in.write(&mut begun, 0, b"parts").unwrap();
    copy_in.end(begun).unwrap();
    assert_eq!(copy_in.finish().unwrap().failed, 0);
    for name in ["whole", "parts"] {
        let (id, attrs) = files.stat(name.as_bytes()).unwrap();
        assert_eq!((attrs.uid(), attrs.mode & 0o7777, attrs.mtime.sec), (1000, 0o755, 7), "{name}");
        let zfs = files.zfs();
        assert_eq!(zfs.get_xattr(&Cred::ROOT, id, NAME).unwrap(), b"cap", "{name}");
        assert_eq!(zfs.get_xattr(&Cred::ROOT, id, b"user.a").unwrap(), b"a", "{name}");
    }
    pool.export().unwrap();
}

/// Overwrites all copies of the indirect block `blkid` of the first level of a file.
fn damage(image: &Path, file: &zuse::zpl::Node, blkid: u64) {
    let pointer = file.object().blkptr(1, blkid).unwrap().unwrap();
    let device = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    for dva in pointer.dvas() {
        device.write_all_at(&[0xa5; 512], dva.offset() + zuse::ondisk::VDEV_LABEL_START_SIZE).unwrap();
    }
}

/// The end of the data before a damaged indirect block cannot be told; it is read in large pieces nevertheless.
#[test]
fn what_stands_before_damage_is_not_read_byte_by_byte() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("a");
    let pool = Pool::create_new("t", &[image.to_str().unwrap()], SIZE).unwrap();
    pool.create("t/fs", &[("recordsize", Value::Number(512)), ("compression", Value::Number(2))]).unwrap();
    let data: Vec<u8> = (0..900_000u32).map(|n| (n / 7 + 1) as u8).collect();
    pool.files("t/fs").unwrap().write(b"f", &data).unwrap();
    pool.export().unwrap();
    let open = || Pool::open(&[&image], None).unwrap().file_system("t/fs").unwrap();
    let node = open().resolve(b"f").unwrap();
    let span = node.block_size() << node.object().phys().fanout_shift();
    assert!(span < 900_000 && node.object().phys().nlevels == 3, "{span}");
    damage(&image, &node, 1);
    let node = open().resolve(b"f").unwrap();
    let (mut pieces, mut lost, mut seen) = (0, Vec::new(), Vec::new());
    read_past_damage(&node, &mut |chunk| {
        match chunk {
            Chunk::Data { offset, bytes } => {
                assert_eq!(offset, seen.len() as u64);
                seen.extend_from_slice(bytes);
                pieces += 1;
            }
            Chunk::Lost { range, .. } => lost.push(range),
        }
        Ok(())
    })
    .unwrap();
    assert!(seen == data[..span as usize] && pieces <= 2 * span / node.block_size(), "{pieces} pieces");
    assert_eq!((lost.len(), lost.first()), (1, Some(&(span..900_000))));
    let out = dir.path().join("out");
    assert_eq!(Copier::new(&mut Silent).copy_file(&node, dir.path(), b"out").unwrap().damaged, 1);
    assert_eq!(std::fs::read(out).unwrap()[..span as usize], data[..span as usize]);
}

/// Holes before what cannot be read are holes, and all that one block of pointers leads to is one loss, whoever looks.
#[test]
fn what_one_block_leads_to_is_one_loss_and_holes_before_it_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("a");
    let pool = Pool::create_new("t", &[image.to_str().unwrap()], SIZE).unwrap();
    pool.create("t/fs", &[("recordsize", Value::Number(512)), ("compression", Value::Number(2))]).unwrap();
    let files = pool.files("t/fs").unwrap();
    let (id, span) = (files.make(b"f", &NewFile::new(Kind::File, 0o644)).unwrap(), 512 << 10);
    files.zfs().write(&Cred::ROOT, id, 3 * span, &vec![7; 2 * span as usize]).unwrap();
    drop(files);
    pool.export().unwrap();
    let open = || Pool::open(&[&image], None).unwrap();
    let node = open().file_system("t/fs").unwrap().resolve(b"f").unwrap();
    assert_eq!(node.block_size() << node.object().phys().fanout_shift(), span);
    damage(&image, &node, 3);
    let node = open().file_system("t/fs").unwrap().resolve(b"f").unwrap();
    let (mut lost, mut data) = (Vec::new(), 0);
    read_past_damage(&node, &mut |chunk| {
        match chunk {
            Chunk::Data { bytes, .. } => data += bytes.len() as u64,
            Chunk::Lost { range, .. } => lost.push(range),
        }
        Ok(())
    })
    .unwrap();
    assert_eq!((lost.len(), lost.first(), data), (1, Some(&(3 * span..4 * span)), span));
    let mut reader = node.reader().unwrap();
    let (mut errors, mut data) = (0, 0);
    loop {
        match reader.next_piece() {
            Ok(None) => break,
            Ok(Some(piece)) => data += piece.data().map_or(0, <[u8]>::len) as u64,
            Err(_) => errors += 1,
        }
    }
    assert_eq!((errors, data), (1, span));
    let pool = open();
    let options = Options { dataset: None, threads: 1, expand: true };
    let found = zuse::verify::verify(&pool.view().unwrap(), &options, &|_, _| {}).unwrap();
    let [damage] = &found.tally.damage[..] else { panic!("{:?}", found.tally) };
    assert_eq!((damage.bm.object, damage.bm.level, damage.bm.blkid), (id, 1, 3));
    assert_eq!(damage.below.map(|below| below.to_string()).unwrap(), "blocks 3072-4095 (bytes 1572864-2097151)");
}

/// A damaged directory that stands in itself, or in one below it, is not gone through for ever, nor is what is in it taken away.
#[test]
fn a_directory_that_holds_itself_is_not_removed() {
    const DIRECTORY: u64 = 4 << 60;
    let pool = Pool::in_memory("t", SIZE).unwrap();
    let files = pool.files("t").unwrap();
    files.create_dir_all(b"a/b", 0o755).unwrap();
    files.write(b"a/b/keep", b"kept").unwrap();
    let (above, below) = (files.stat(b"a").unwrap().0, files.stat(b"a/b").unwrap().0);
    for id in [above, below, files.fs().root()] {
        let spa = files.zfs().spa();
        let entries = dmu::Zap::open(files.fs().objset().object(below).unwrap()).unwrap();
        entries.add_u64(&spa.tx(1 << 20).unwrap(), b"loop", DIRECTORY | id.0).unwrap();
        let refused = files.remove_all(b"a").unwrap_err();
        assert_eq!(refused.errno(), Errno::ELOOP, "{refused}");
        assert_eq!(files.read(b"a/b/keep").unwrap(), b"kept");
        entries.remove(&spa.tx(1 << 20).unwrap(), b"loop").unwrap();
    }
    assert_eq!(files.remove_all(b"a").unwrap(), 3);
    pool.export().unwrap();
}

/// A file system `t/fs` with a file `f` of small blocks that has lost one block of pointers in its middle, and one `t/to` with a good file `f`.
/// The pool, open for writing; what `f` was, and the stretch that is lost.
fn half_lost(dir: &Path, props: &[(&str, Value)]) -> (Pool, Vec<u8>, std::ops::Range<usize>) {
    let image = dir.join("a");
    let pool = Pool::create_new("t", &[image.to_str().unwrap()], SIZE).unwrap();
    pool.create("t/fs", &[("recordsize", Value::Number(512)), ("compression", Value::Number(2))]).unwrap();
    pool.create("t/to", props).unwrap();
    let data: Vec<u8> = (0..1_800_000u32).map(|n| (n / 7 + 1) as u8).collect();
    pool.files("t/fs").unwrap().write(b"f", &data).unwrap();
    pool.files("t/to").unwrap().write(b"f", b"good").unwrap();
    // what was written last is looked at when a pool is opened for writing
    for n in 0..6 {
        pool.files("t").unwrap().write(b"later", &[n]).unwrap();
        pool.sync().unwrap();
    }
    pool.export().unwrap();
    drop(pool);
    let node = Pool::open(&[&image], None).unwrap().file_system("t/fs").unwrap().resolve(b"f").unwrap();
    let span = (node.block_size() << node.object().phys().fanout_shift()) as usize;
    damage(&image, &node, 1);
    (Pool::open_writable(&[&image], None).unwrap(), data, span..2 * span)
}

#[derive(Default)]
struct Told(Vec<String>);

impl zuse::Report for Told {
    fn failed(&mut self, path: &[u8], what: &str) {
        self.0.push(format!("{}: {what}", String::from_utf8_lossy(path)));
    }
}

/// Whether blocks can be shared or not, a copy within a pool has all that can be read.
#[test]
fn a_copy_within_a_pool_goes_past_damage() {
    for props in [vec![("recordsize", Value::Number(512)), ("compression", Value::Number(2))], vec![]] {
        let dir = tempfile::tempdir().unwrap();
        let (pool, data, lost) = half_lost(dir.path(), &props);
        let (from, to) = (pool.files("t/fs").unwrap(), pool.files("t/to").unwrap());
        let node = pool.file_system("t/fs").unwrap().resolve(b"f").unwrap();
        let mut report = Told::default();
        let mut copy_in = CopyIn::new(to.zfs(), to.fs().root(), &mut report);
        copy_in.share(from.zfs(), node, b"new").unwrap();
        let done = copy_in.finish().unwrap();
        assert_eq!((done.files, done.failed), (0, 1));
        let range = format!("new: bytes {}-{}: ", lost.start, lost.end - 1);
        assert!(report.0.len() == 1 && report.0[0].starts_with(&range), "{:?}", report.0);
        let copy = to.read(b"new").unwrap();
        assert_eq!(copy.len(), data.len());
        assert!(copy[..lost.start] == data[..lost.start] && copy[lost.end..] == data[lost.end..]);
        assert!(copy[lost].iter().all(|byte| *byte == 0));
        drop((from, to));
        pool.export().unwrap();
    }
}

/// A file keeps its name until the one that replaces it is whole, and for good if that cannot be.
#[test]
fn a_file_gives_way_only_to_one_that_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, data, _) = half_lost(dir.path(), &[]);
    let (from, to) = (pool.files("t/fs").unwrap(), pool.files("t/to").unwrap());
    let fs = pool.file_system("t/fs").unwrap();
    let names = || to.read_dir(b"").unwrap().into_iter().map(|entry| entry.name).collect::<Vec<_>>();
    for share in [true, false] {
        let mut report = Told::default();
        let mut copy_in = CopyIn::new(to.zfs(), to.fs().root(), &mut report);
        let node = fs.resolve(b"f").unwrap();
        match share {
            true => copy_in.share(from.zfs(), node, b"f").unwrap(),
            false => copy_in.node(node, b"f").unwrap(),
        }
        assert_eq!(copy_in.finish().unwrap().failed, 1);
        assert_eq!((to.read(b"f").unwrap(), names()), (b"good".to_vec(), vec![b"f".to_vec()]), "{share}");
        assert!(report.0.len() == 2 && report.0[1] == "f: what has this name stays", "{:?}", report.0);
    }
    let item = || Item { size: data.len() as u64, ..Item::new(Kind::File, Meta { mode: 0o640, ..Meta::default() }) };
    let mut report = Told::default();
    let mut copy_in = CopyIn::new(to.zfs(), to.fs().root(), &mut report);
    // one that ends in the middle, as if its program had ended
    let mut begun = copy_in.begin(b"f", item()).unwrap().unwrap();
    copy_in.write(&mut begun, 0, &data[..1 << 20]).unwrap();
    assert_eq!(to.read(b"f").unwrap(), b"good");
    drop(begun);
    // beside what that has left
    let mut begun = copy_in.begin(b"f", item()).unwrap().unwrap();
    copy_in.write(&mut begun, 0, &data).unwrap();
    assert_eq!(to.read(b"f").unwrap(), b"good");
    copy_in.end(begun).unwrap();
    assert_eq!((copy_in.finish().unwrap().failed, to.read(b"f").unwrap() == data), (0, true));
    assert_eq!((names().len(), to.stat(b"f").unwrap().1.mode & 0o7777), (2, 0o640));
    drop((from, to));
    pool.export().unwrap();
}
