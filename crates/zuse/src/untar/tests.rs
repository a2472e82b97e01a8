//! Archives that the archiver makes, and pieces of others'.
#![allow(clippy::unwrap_used)]

use super::frame::*;
use super::*;
use crate::pax;
use std::io;
use tar::EntryType;
use zpl::{Kind, PosixAcl};

type Read = Vec<(String, Entered, Vec<(u64, Vec<u8>)>)>;

fn read(bytes: &[u8]) -> Read {
    let mut all = Vec::new();
    read_tar::<io::Error>(bytes, &mut |path, entered, data| {
        let mut pieces = Vec::new();
        let mut buf = [0; 1000];
        while let Some((at, len)) = data.read(&mut buf)? {
            pieces.push((at, buf[..len].to_vec()));
        }
        all.push((String::from_utf8(path.to_vec()).unwrap(), entered, pieces));
        Ok(())
    })
    .unwrap();
    all
}

#[test]
fn what_the_archiver_writes_is_read() {
    let acl = "user::rw-,user:1000:r--,group::r--,mask::r--,other::---";
    let entry = pax::Entry {
        path: vec![b'n'; 200],
        mode: 0o4755,
        uid: 3_000_000_000,
        gid: 7,
        mtime: (-2, 250_000_000),
        atime: Some((5, 6)),
        xattrs: vec![(b"user.a=b".to_vec(), vec![0, 255, b'\n'])],
        acls: (Some(acl.into()), None),
        ..pax::Entry::default()
    };
    let mut archive = pax::Archive::new(Vec::new());
    let total = archive.begin_file(&entry, 5, &[(0, 5)]).unwrap();
    archive.write(b"hello").unwrap();
    archive.finish_file(total).unwrap();
    let sparse = pax::Entry { path: b"./s".to_vec(), ..pax::Entry::default() };
    let total = archive.begin_file(&sparse, 1 << 30, &[(4096, 3), (1 << 20, 2)]).unwrap();
    archive.write(b"abcde").unwrap();
    archive.finish_file(total).unwrap();
    let link = pax::Entry { path: b"l".to_vec(), link: b"./s".to_vec(), ..pax::Entry::default() };
    archive.add(EntryType::Link, &link).unwrap();
    let device = pax::Entry { path: b"d".to_vec(), device: (8, 1), ..pax::Entry::default() };
    archive.add(EntryType::Block, &device).unwrap();
    let all = read(&archive.finish().unwrap());

    let (path, Entered::Item(item), data) = &all[0] else { panic!("{all:?}") };
    assert_eq!((path.len(), item.kind, item.size), (200, Kind::File, 5));
    let meta = &item.meta;
    assert_eq!(
        (meta.uid, meta.gid, meta.mode, meta.mtime, meta.atime),
        (3_000_000_000, 7, 0o4755, (-2, 250_000_000), (5, 6))
    );
    let decoded = PosixAcl::decode(&meta.xattrs[0].1).unwrap().to_string();
    assert_eq!(decoded.trim_end().replace('\n', ","), acl);
    assert_eq!(meta.xattrs[1], (b"user.a=b".to_vec(), vec![0, 255, b'\n']));
    assert_eq!(data, &[(0, b"hello".to_vec())]);

    let (path, Entered::Item(item), data) = &all[1] else { panic!("{all:?}") };
    assert_eq!((path.as_str(), item.size), ("s", 1 << 30));
    assert_eq!(data, &[(4096, b"abc".to_vec()), (1 << 20, b"de".to_vec())]);
    assert!(matches!(&all[2].1, Entered::Link(to) if to == b"s"));
    assert!(matches!(&all[3].1, Entered::Item(item) if item.kind == Kind::BlockDevice && item.device == (8, 1)));
}

#[test]
fn paths_that_lead_out_are_refused() {
    assert_eq!(clean(b"/a//./b/").unwrap(), b"a/b");
    assert_eq!(clean(b"./").unwrap(), b"");
    assert_eq!(clean(b"a/../../b"), None);
    let mut archive = pax::Archive::new(Vec::new());
    archive.add(EntryType::Fifo, &pax::Entry { path: b"../x".to_vec(), ..pax::Entry::default() }).unwrap();
    assert!(matches!(read(&archive.finish().unwrap())[0].1, Entered::Foreign(_)));
}

#[test]
fn times_and_records_of_others() {
    assert_eq!(time(b"-1.750000000"), Some((-2, 250_000_000)));
    assert_eq!((time(b"5"), time(b"5.5"), time(b"-2")), (Some((5, 0)), Some((5, 500_000_000)), Some((-2, 0))));
    assert_eq!((time(b"x"), time(b"1.-5")), (None, None));
    assert_eq!(percent_decoded(b"user.a%3Db%"), b"user.a=b%");
    let records = Records(vec![(b"LIBARCHIVE.xattr.user.x".to_vec(), b"YWI=".to_vec())]);
    assert_eq!(records.xattrs(), (vec![(b"user.x".to_vec(), b"ab".to_vec())], vec![]));
    let list = |text: &str| {
        let records = Records(vec![(b"SCHILY.acl.access".to_vec(), text.as_bytes().to_vec())]);
        records.lists().pop().unwrap().1.map(|list| (list.acl.to_string(), list.unknown))
    };
    assert_eq!(list("u:no-such-user:r--:1000"), Some(("user:1000:r--\n".into(), vec![])));
    assert_eq!(list("user:root:r--,g:root:-w-"), Some(("user:0:r--\ngroup:0:-w-\n".into(), vec![])));
    assert_eq!(list("user:no-such-user:---").unwrap().1, ["no-such-user"]);
    // the number of nobody is that of who has none
    assert_eq!(list("user:4294967295:rwx").unwrap().1, ["4294967295"]);
    assert_eq!(list("user:rwx"), None);
}

#[test]
fn an_archive_cut_short_is_an_error() {
    let mut archive = pax::Archive::new(Vec::new());
    let entry = pax::Entry { path: b"f".to_vec(), ..pax::Entry::default() };
    let total = archive.begin_file(&entry, 3000, &[(0, 3000)]).unwrap();
    archive.write(&[1; 3000]).unwrap();
    archive.finish_file(total).unwrap();
    let bytes = archive.finish().unwrap();
    let drain = |bytes: &[u8]| {
        read_tar::<io::Error>(bytes, &mut |_, _, data| {
            let mut buf = [0; 512];
            while data.read(&mut buf)?.is_some() {}
            Ok(())
        })
    };
    assert!(drain(&bytes).is_ok());
    for len in [100, 700, bytes.len() - 2048] {
        assert_eq!(drain(&bytes[..len]).unwrap_err().to_string(), "archive: unexpected end");
    }
    assert!(drain(&[b'x'; 2048]).is_err());
}
