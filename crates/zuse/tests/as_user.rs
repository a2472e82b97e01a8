//! The permissions of a user who is not root, with [`Files`].
#![allow(clippy::unwrap_used)]

use base::Errno;
use zuse::pool::Value;
use zuse::zpl::live::{Cred, SetAttr, XattrMode};
use zuse::zpl::{Ace, AceType, Who};
use zuse::{Error, Files, Pool};

const SIZE: u64 = 128 << 20;

fn user(uid: u32) -> Cred {
    Cred::user(uid, uid, [])
}

/// No error.
const DONE: Errno = Errno::from_raw(0);

fn errno<T>(result: Result<T, Error>) -> Errno {
    result.map_or_else(|e| e.errno(), |_| DONE)
}

fn chmod(files: &Files, path: &str, mode: u32) {
    let (id, _) = files.stat(path.as_bytes()).unwrap();
    files.zfs().setattr(&Cred::ROOT, id, &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
}

/// A directory that only its owner may enter, with what everybody might change if he could come there.
fn locked_up(pool: &Pool, dataset: &str) -> Files {
    let files = pool.files(dataset).unwrap();
    files.write(b"secret", b"root's").unwrap();
    chmod(&files, "secret", 0o600);
    files.create_dir(b"private", 0o700).unwrap();
    files.write(b"private/open", b"in a closed directory").unwrap();
    chmod(&files, "private/open", 0o666);
    files.create_dir(b"private/sub", 0o777).unwrap();
    chmod(&files, "private/sub", 0o777);
    files.symlink(b"private/open", b"link").unwrap();
    files.create_dir(b"blind", 0o711).unwrap();
    files.write(b"blind/known", b"by name").unwrap();
    chmod(&files, "", 0o1777);
    files
}

#[test]
fn what_is_read_and_found_is_asked_for() {
    let pool = Pool::in_memory("t", SIZE).unwrap();
    let files = locked_up(&pool, "t");
    let other = files.as_user(user(1001));
    for path in ["secret", "private/open", "private/sub/../open", "private/../private/open", "link", "/link"] {
        assert_eq!(errno(other.read(path.as_bytes())), Errno::EACCES, "read {path}");
        assert!(files.read(path.as_bytes()).is_ok(), "root reads {path}");
    }
    assert_eq!(errno(other.stat(b"private/open")), Errno::EACCES);
    assert_eq!(errno(other.stat(b"private/none")), Errno::EACCES, "nor is he told what is not there");
    assert_eq!(errno(other.stat(b"private/sub/..")), Errno::EACCES);
    assert_eq!((errno(other.stat(b"private")), errno(other.stat(b"link"))), (DONE, DONE));
    assert!(!other.exists(b"private/open"));
    assert_eq!(errno(other.fsync(b"private/open")), Errno::EACCES);
    assert_eq!(errno(other.read_dir(b"private")), Errno::EACCES);
    assert_eq!(errno(other.read_dir(b"private/sub")), Errno::EACCES);
    // what may be searched and not listed
    assert_eq!(
        (errno(other.read_dir(b"blind")), other.read(b"blind/known").unwrap()),
        (Errno::EACCES, b"by name".to_vec())
    );
    let root = files.fs().root();
    assert_eq!(errno(other.end_of_links(root, b"link")), Errno::EACCES);
    assert_eq!(files.end_of_links(root, b"link").unwrap().1, b"open");
    drop((files, other));
    pool.export().unwrap();
}

#[test]
fn nothing_is_changed_behind_a_closed_directory() {
    let pool = Pool::in_memory("t", SIZE).unwrap();
    let files = locked_up(&pool, "t");
    let other = files.as_user(user(1001));
    other.write(b"mine", b"1").unwrap();
    for (what, done) in [
        ("write", errno(other.write(b"private/open", b"changed"))),
        ("write by a link", errno(other.write(b"link", b"changed"))),
        ("write of what is closed", errno(other.write(b"secret", b"changed"))),
        ("create", errno(other.write(b"private/sub/new", b"x"))),
        ("mkdir", errno(other.create_dir(b"private/sub/new", 0o777))),
        ("mkdir -p", errno(other.create_dir_all(b"private/sub/a/b", 0o777))),
        ("symlink", errno(other.symlink(b"x", b"private/sub/new"))),
        ("link", errno(other.hard_link(b"mine", b"private/sub/new"))),
        ("link from", errno(other.hard_link(b"private/open", b"new"))),
        ("rename into", errno(other.rename(b"mine", b"private/sub/new"))),
        ("rename out", errno(other.rename(b"private/sub", b"new"))),
        ("remove", errno(other.remove_file(b"private/open"))),
        ("rmdir", errno(other.remove_dir(b"private/sub"))),
        ("remove all", errno(other.remove_all(b"private/sub"))),
    ] {
        assert_eq!(done, Errno::EACCES, "{what}");
    }
    assert_eq!(files.read(b"private/open").unwrap(), b"in a closed directory");
    assert_eq!(files.read(b"secret").unwrap(), b"root's");
    assert!(files.read_dir(b"private/sub").unwrap().is_empty());
    drop((files, other));
    pool.export().unwrap();
}

/// Lists give what the mode does not, and take what it does.
#[test]
fn lists_count_on_the_way() {
    let pool = Pool::in_memory("t", SIZE).unwrap();
    pool.create("t/posix", &[("acltype", Value::String("posix".into()))]).unwrap();
    pool.create("t/nfs4", &[("acltype", Value::String("nfsv4".into()))]).unwrap();
    let files = locked_up(&pool, "t/posix");
    let (private, _) = files.stat(b"private").unwrap();
    let ace = |tag: u16, perm: u16, id: u32| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
    let none = u32::MAX;
    // user:1001:--x, with a mask that lets it through
    let list = [
        2u32.to_le_bytes().to_vec(),
        ace(1, 7, none),
        ace(2, 1, 1001),
        ace(4, 0, none),
        ace(16, 1, none),
        ace(32, 0, none),
    ];
    let name = b"system.posix_acl_access";
    files.zfs().set_xattr(&Cred::ROOT, private, name, &list.concat(), XattrMode::Set).unwrap();
    assert_eq!(files.as_user(user(1001)).read(b"private/open").unwrap(), b"in a closed directory");
    assert_eq!(errno(files.as_user(user(1002)).read(b"private/open")), Errno::EACCES);
    drop(files);

    let files = locked_up(&pool, "t/nfs4");
    let (private, attrs) = files.stat(b"private").unwrap();
    chmod(&files, "private", 0o777);
    let mut aces = files.fs().node(private).unwrap().acl().unwrap().aces;
    let search = 0x20;
    aces.insert(
        0,
        Ace { kind: AceType::Deny, flags: 0, mask: search, who: Who::User(zuse::zpl::Fuid(1001)), object_types: None },
    );
    files.zfs().set_acl(&Cred::ROOT, private, aces).unwrap();
    assert_eq!(attrs.uid(), 0);
    assert_eq!(errno(files.as_user(user(1001)).stat(b"private/open")), Errno::EACCES);
    assert_eq!(errno(files.as_user(user(1002)).stat(b"private/open")), DONE);
    drop(files);
    pool.export().unwrap();
}
