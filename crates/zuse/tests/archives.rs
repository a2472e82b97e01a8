//! Archives that come in: lists of permissions by name, and trees that are deeper than memory.
#![allow(clippy::unwrap_used)]

use zuse::base::Endian;
use zuse::dmu::sa::Attr;
use zuse::nvlist::{Encoding, NvList, Value as Nv};
use zuse::pax::{Archive, Entry};
use zuse::pool::Value;
use zuse::zpl::{Kind, PosixAcl};
use zuse::{Archiver, CopyIn, Files, Imported, Pool, Report};

const SIZE: u64 = 128 << 20;

/// The reports about files.
#[derive(Default)]
struct Told(Vec<String>);

impl Report for Told {
    fn file(&mut self, _: &[u8]) {}

    fn bytes(&mut self, _: u64) {}

    fn lost(&mut self, path: &[u8], what: &str) {
        self.0.push(format!("lost {}: {what}", String::from_utf8_lossy(path)));
    }

    fn failed(&mut self, path: &[u8], why: &str) {
        self.0.push(format!("failed {}: {why}", String::from_utf8_lossy(path)));
    }

    fn not_kept(&mut self, path: &[u8], what: &str) {
        self.0.push(format!("not kept {}: {what}", String::from_utf8_lossy(path)));
    }
}

fn extract(files: &Files, archive: &[u8]) -> (Imported, Vec<String>) {
    let mut told = Told::default();
    let mut copy_in = CopyIn::new(files.zfs(), files.fs().root(), &mut told);
    copy_in.tar(archive, b"").unwrap();
    let done = copy_in.finish().unwrap();
    (done, told.0)
}

/// A file whose group bits are the mask of its list, as archivers record them.
fn with_list(name: &str, list: &str) -> Vec<u8> {
    let mut archive = Archive::new(Vec::new());
    let entry = Entry { path: name.into(), mode: 0o664, acls: (Some(list.into()), None), ..Entry::default() };
    archive.add(tar::EntryType::Regular, &entry).unwrap();
    archive.finish().unwrap()
}

#[test]
fn a_list_by_name_is_kept_or_nobody_gets_more() {
    let pool = Pool::in_memory("t", SIZE).unwrap();
    pool.create("t/posix", &[("acltype", Value::String("posix".into()))]).unwrap();
    let known = "user::rw-,user:root:---,group::---,group:root:r--,mask::rw-,other::r--";
    let unknown = "user::rw-,user:no-such-user:---,group::---,mask::rw-,other::r--";

    let files = pool.files("t/posix").unwrap();
    assert_eq!(extract(&files, &with_list("f", known)).1, [""; 0]);
    let node = files.fs().resolve(b"f").unwrap();
    let numbers = "user::rw-\nuser:0:---\ngroup::---\ngroup:0:r--\nmask::rw-\nother::r--\n";
    assert_eq!(node.posix_acl().unwrap().map(|acl: PosixAcl| acl.to_string()).as_deref(), Some(numbers));
    assert_eq!(node.attrs().mode & 0o777, 0o664);
    let (done, told) = extract(&files, &with_list("g", unknown));
    assert_eq!((done.files, done.failed), (0, 1));
    assert_eq!(told, ["failed g: its access list names no-such-user, whom this system does not know"]);
    assert_eq!(files.stat(b"g").unwrap().1.mode & 0o777, 0o600);
    let (done, told) = extract(&files, &with_list("h", "user::rw-,nonsense"));
    assert_eq!((done.failed, told.len()), (1, 1), "{told:?}");
    assert_eq!(files.stat(b"h").unwrap().1.mode & 0o777, 0o600);
    drop((node, files));

    // where there are no lists, the mask is no right of the group
    let files = pool.files("t").unwrap();
    let (done, told) = extract(&files, &with_list("f", known));
    assert_eq!((done.failed, told.len()), (0, 1), "{told:?}");
    assert!(told[0].starts_with("not kept f: attribute system.posix_acl_access"), "{told:?}");
    assert_eq!(files.stat(b"f").unwrap().1.mode & 0o777, 0o600);
    let (done, _) = extract(&files, &with_list("g", "user::rw-,group::r--,mask::r--,other::r--"));
    assert_eq!((done.failed, files.stat(b"g").unwrap().1.mode & 0o777), (0, 0o644));
    drop(files);
    pool.export().unwrap();
}

/// A value that cannot be understood is not left out without a word.
#[test]
fn attributes_that_are_not_base64_are_reported() {
    let pool = Pool::in_memory("t", SIZE).unwrap();
    let files = pool.files("t").unwrap();
    let mut archive = tar::Builder::new(Vec::new());
    let records = [("LIBARCHIVE.xattr.user.good", &b"YWI="[..]), ("LIBARCHIVE.xattr.user.bad", b"*")];
    archive.append_pax_extensions(records).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_path("f").unwrap();
    header.set_mode(0o644);
    header.set_size(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    archive.append(&header, &[][..]).unwrap();
    let (done, told) = extract(&files, &archive.into_inner().unwrap());
    assert_eq!(done.failed, 1);
    assert_eq!(told, ["failed f: its extended attribute user.bad cannot be understood"]);
    assert_eq!(files.fs().resolve(b"f").unwrap().xattr(b"user.good").unwrap().as_deref(), Some(&b"ab"[..]));
    drop(files);
    pool.export().unwrap();
}

/// Nor is an access list, when it goes out.
#[test]
fn an_access_list_that_cannot_be_read_is_reported() {
    let pool = Pool::in_memory("t", SIZE).unwrap();
    pool.create("t/posix", &[("acltype", Value::String("posix".into()))]).unwrap();
    let files = pool.files("t/posix").unwrap();
    files.write(b"f", b"x").unwrap();
    let node = files.fs().resolve(b"f").unwrap();
    let mut list = NvList::new();
    list.insert(PosixAcl::ACCESS, Nv::ByteArray(vec![7; 12]));
    let packed = list.pack(Encoding::Xdr, Endian::Little).unwrap();
    files
        .zfs()
        .change(1 << 16, |tx| Ok(files.fs().sa().update(tx, node.object(), &[(Attr::Dxattr, packed.into())])?))
        .unwrap();
    pool.sync().unwrap();
    let mut told = Told::default();
    let mut archive = Archiver::new(Vec::new(), &mut told);
    archive.add_tree(pool.file_system("t/posix").unwrap().resolve(b"f").unwrap(), b"f").unwrap();
    assert_eq!(archive.finish().unwrap(), 1);
    assert!(told.0.len() == 1 && told.0[0].starts_with("lost f: "), "{:?}", told.0);
    drop((node, files));
    pool.export().unwrap();
}

/// A path of many levels makes directories, and takes no memory for each of the paths to them.
#[test]
fn a_deep_tree_comes_in_and_goes_out() {
    const LEVELS: usize = 2000;
    let pool = Pool::in_memory("t", SIZE).unwrap();
    let files = pool.files("t").unwrap();
    let deep = [b"a/".repeat(LEVELS), b"z".to_vec()].concat();
    let mut archive = Archive::new(Vec::new());
    for (kind, path, mode) in [
        (tar::EntryType::Regular, deep.clone(), 0o640),
        // what is told of a directory counts in the end, wherever it stands
        (tar::EntryType::Directory, b"a/".repeat(LEVELS), 0o750),
        (tar::EntryType::Directory, b"a/a".to_vec(), 0o710),
        (tar::EntryType::Regular, [b"a/".repeat(LEVELS / 2), b"y".to_vec()].concat(), 0o600),
    ] {
        archive.add(kind, &Entry { path, mode, mtime: (7, 0), ..Entry::default() }).unwrap();
    }
    let archive = archive.finish().unwrap();
    let (done, told) = extract(&files, &archive);
    assert_eq!((done.failed, told), (0, vec![]));
    assert_eq!(files.stat(&deep).unwrap().1.mode & 0o777, 0o640);
    let dir = files.stat(&b"a/".repeat(LEVELS)).unwrap().1;
    assert_eq!((dir.mode & 0o777, dir.mtime.sec, dir.kind()), (0o750, 7, Kind::Directory));
    assert_eq!(files.stat(b"a/a").unwrap().1.mode & 0o777, 0o710);
    // within the pool, with directories that are left one after another
    let mut told = Told::default();
    let mut copy_in = CopyIn::new(files.zfs(), files.create_dir(b"copy", 0o755).unwrap(), &mut told);
    pool.sync().unwrap();
    copy_in.node(pool.file_system("t").unwrap().resolve(b"a").unwrap(), b"").unwrap();
    assert_eq!(copy_in.finish().unwrap().failed, 0);
    let copied = [b"copy/".to_vec(), b"a/".repeat(LEVELS - 1)].concat();
    assert_eq!(files.stat(&copied).unwrap().1.mode & 0o777, 0o750);
    assert_eq!(files.stat(b"copy/a").unwrap().1.mode & 0o777, 0o710);
    drop(files);
    pool.export().unwrap();
}
