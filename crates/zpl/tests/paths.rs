//! Names that compare in various ways, paths resolved in both directions, links, `.zfs`, and streams of data.
#![allow(clippy::unwrap_used, missing_docs, dead_code)]

mod support;

use std::collections::HashSet;
use std::io::Read;

use base::ObjectId;
use support::Fixture;
use zpl::{Control, Error, FileSystem, Follow, Kind, Node, Resolved, Resolver};

fn found(fs: &FileSystem, name: &str) -> Option<String> {
    fs.lookup(fs.root(), name.as_bytes()).unwrap().map(|entry| String::from_utf8(entry.name).unwrap())
}

#[test]
fn names_compare_as_the_file_system_says() {
    let fixture = Fixture::open("names-a");
    let cases = [
        ("namesa", "CAMELCASE", None),
        ("namesa/c-insensitive", "camelcase", Some("CamelCase")),
        ("namesa/c-insensitive", "ωMEGA", Some("Ωmega")),
        ("namesa/c-insensitive", "camelcas", None),
        ("namesa/c-mixed", "camelcase", Some("camelcase")),
        ("namesa/c-mixed", "CAMELCASE", None),
        ("namesa/n-formD", "naïve café", Some("naïve café")),
        ("namesa/n-formD", "nai\u{308}ve cafe\u{301}", Some("naïve café")),
        ("namesa/n-formC", "nai\u{308}ve cafe\u{301}", Some("naïve café")),
        ("namesa/n-formC", "NAÏVE CAFÉ", None),
        ("namesa/utf8", "nai\u{308}ve cafe\u{301}", None),
    ];
    for (dataset, name, stored) in cases {
        assert_eq!(found(&fixture.file_system(dataset), name).as_deref(), stored, "{dataset} {name}");
    }
    let fs = fixture.file_system("namesa/c-insensitive");
    assert_eq!(fs.resolve(b"/DIRUPPER/X").unwrap().id(), fs.resolve(b"DirUpper/x").unwrap().id());
    assert!(matches!(fs.lookup(fs.root(), &[b'n'; 1024]), Err(Error::NameTooLong { len: 1024 })));
    assert_eq!(fs.case_sensitivity().name(), "insensitive");
}

/// Returns every object of a file system, with the first path that a traversal finds.
fn walk(fs: &FileSystem, dir: ObjectId, path: &[u8], visit: &mut dyn FnMut(&[u8], &Node)) {
    for entry in fs.read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let node = fs.node(entry.object).unwrap();
        let path = [path, b"/", &entry.name].concat();
        visit(&path, &node);
        if node.kind() == Kind::Directory {
            walk(fs, node.id(), &path, visit);
        }
    }
}

#[test]
fn paths_lead_there_and_back() {
    for (fixture, datasets) in [
        ("names-a", &["namesa", "namesa/longname"][..]),
        ("posix-a", &["posixa/dir", "posixa/sa"]),
        ("legacy-a", &["legacya/zold"]),
    ] {
        let fixture = Fixture::open(fixture);
        for dataset in datasets {
            let fs = fixture.file_system(dataset);
            let mut count = 0;
            walk(&fs, fs.root(), b"", &mut |path, node| {
                count += 1;
                assert_eq!(fs.resolve(path).unwrap().id(), node.id());
                if node.attrs().links == 1 || node.kind() == Kind::Directory {
                    assert_eq!(fs.path_of(node.id()).unwrap(), path, "{}", String::from_utf8_lossy(path));
                }
                if node.attrs().xattr_dir.is_some() {
                    let hidden = fs.path_of(node.attrs().xattr_dir).unwrap();
                    assert!(hidden.ends_with(b"/<xattrdir>"), "{}", String::from_utf8_lossy(&hidden));
                }
            });
            assert!(count > 2, "{dataset}: {count}");
            assert_eq!(fs.path_of(fs.root()).unwrap(), b"/");
            assert!(fs.path_of(ObjectId(1)).is_err());
        }
    }
}

#[test]
fn a_listing_goes_on_from_any_cookie() {
    let fixture = Fixture::open("names-a");
    for dataset in ["namesa/bigdir", "namesa/c-mixed", "namesa/lmz"] {
        let fs = fixture.file_system(dataset);
        let all: Vec<_> = fs.read_dir(fs.root()).unwrap().map(|e| e.unwrap()).collect();
        let names: HashSet<_> = all.iter().map(|e| &e.name).collect();
        assert_eq!(names.len(), all.len());
        let step = all.len() / 50 + 1;
        for at in (0..all.len()).step_by(step) {
            let rest: Vec<_> =
                fs.read_dir_from(fs.root(), all[at].next_cookie).unwrap().take(3).map(|e| e.unwrap()).collect();
            assert_eq!(rest, all[at + 1..].iter().take(3).cloned().collect::<Vec<_>>(), "{dataset} {at}");
        }
    }
}

#[test]
fn dots_links_and_errors() {
    let fixture = Fixture::open("posix-a");
    let fs = fixture.file_system("posixa/dir");
    let id = |path: &str| fs.resolve(path.as_bytes()).map(|n| n.id());
    assert_eq!(id("").unwrap(), fs.root());
    assert_eq!(id("/../..//.").unwrap(), fs.root());
    assert_eq!(id("dacl/sub/..").unwrap(), id("dacl").unwrap());
    assert_eq!(id("dacl/").unwrap(), id("dacl").unwrap());
    let sub = id("dacl/sub").unwrap();
    assert_eq!(fs.resolve_from(sub, b"../../acl0", Follow::Never).unwrap().id(), id("acl0").unwrap());
    assert!(matches!(id("acl0/"), Err(Error::NotDirectory { .. })));
    assert!(matches!(id("acl0/x"), Err(Error::NotDirectory { .. })));
    assert!(matches!(id("nothing"), Err(Error::NotFound { .. })));
    let mut links = 0;
    walk(&fs, fs.root(), b"", &mut |path, node| {
        if node.kind() == Kind::Symlink {
            links += 1;
            assert_eq!(node.target().unwrap().len() as u64, node.size());
            assert_eq!(fs.resolve_from(fs.root(), path, Follow::Parents).unwrap().id(), node.id());
            // the links of this fixture are dangling
            let followed = fs.resolve_from(fs.root(), path, Follow::Always);
            assert!(
                followed.is_ok()
                    || matches!(followed, Err(Error::NotFound { .. } | Error::NameTooLong { .. } | Error::Loop { .. }))
            );
        } else {
            assert!(node.target().is_err());
        }
    });
    assert!(links > 3);
    assert!(fs.node(ObjectId(1)).is_err() && fs.node(ObjectId(u64::MAX >> 20)).is_err());
}

#[test]
fn snapshots_as_directories() {
    let fixture = Fixture::open("snaps-a");
    let resolver = Resolver::new(fixture.pool.clone());
    let truth = oracle::fixtures::files("snaps-a");
    let line = truth.iter().find(|l| l["type"] == "f" && l["dataset"].as_str().unwrap().contains('@')).unwrap();
    let (fs, snapshot) = line["dataset"].as_str().unwrap().split_once('@').unwrap();
    let control = |path: &str| match resolver.resolve(fs, path.as_bytes(), Follow::Never) {
        Ok(Resolved::Control(control)) => control,
        other => panic!("{path}: {other:?}"),
    };
    assert_eq!(control(".zfs"), Control::Root);
    assert!(control("/./../.zfs/snapshot/").names().contains(&snapshot.to_owned()));
    let path = format!(".zfs/snapshot/{snapshot}/{}", line["path"].as_str().unwrap());
    match resolver.resolve(fs, path.as_bytes(), Follow::Never).unwrap() {
        Resolved::Node(node) => {
            assert_eq!(Some(node.id().0), line["ino"].as_u64());
            assert!(node.fs().is_snapshot());
        }
        Resolved::Control(c) => panic!("{c:?}"),
    }
    match resolver.resolve(fs, format!(".zfs/snapshot/{snapshot}").as_bytes(), Follow::Never).unwrap() {
        Resolved::Node(root) => assert_eq!(root.id(), root.fs().root()),
        Resolved::Control(c) => panic!("{c:?}"),
    }
    for missing in [".zfs/nothing", ".zfs/snapshot/nothing", ".zfs/snapshot/nothing/x"] {
        assert!(
            matches!(resolver.resolve(fs, missing.as_bytes(), Follow::Never), Err(Error::NotFound { .. })),
            "{missing}"
        );
    }
}

#[test]
fn streams_reads_and_holes_agree() {
    for (fixture, dataset) in [("sparse-a", "sparsea/r8K"), ("basic-a", "basica")] {
        let fixture = Fixture::open(fixture);
        let fs = fixture.file_system(dataset);
        walk(&fs, fs.root(), b"", &mut |path, node| {
            if node.kind() != Kind::File || node.size() > 8 << 20 {
                return;
            }
            let mut whole = vec![1; node.size() as usize];
            assert_eq!(node.read(0, &mut whole).unwrap(), whole.len());
            let mut streamed = Vec::new();
            node.reader().unwrap().read_to_end(&mut streamed).unwrap();
            assert!(whole == streamed, "{}", String::from_utf8_lossy(path));
            let (start, end) = (whole.len() / 3, whole.len() - whole.len() / 4);
            let mut part = Vec::new();
            node.reader_range(start as u64..end as u64).unwrap().read_to_end(&mut part).unwrap();
            assert!(whole[start..end] == part);
            let mut at = 0;
            for segment in node.data_segments() {
                let segment = segment.unwrap();
                assert!(whole[at..segment.start as usize].iter().all(|b| *b == 0));
                at = segment.end as usize;
            }
            assert!(whole[at..].iter().all(|b| *b == 0));
            assert_eq!(node.read(node.size(), &mut [0; 4]).unwrap(), 0);
        });
    }
}
