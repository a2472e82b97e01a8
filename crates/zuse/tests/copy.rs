//! Copies and archives of real pools hold what the kernel module said is there; not a byte of a device changes.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::{fs, io};

use oracle::fixtures;
use serde_json::Value;
use sha2::{Digest, Sha256};
use support::open;
use zpl::live::{Cred, NewFile, SetAttr, XattrMode};
use zpl::{FileSystem, Kind};
use zuse::{Archiver, Copier, Pool, Report, dest, zpl};

#[derive(Default)]
struct Losses(Vec<String>, Vec<String>);

impl Report for Losses {
    fn lost(&mut self, path: &[u8], what: &str) {
        self.0.push(format!("{}: {what}", String::from_utf8_lossy(path)));
    }

    fn not_kept(&mut self, path: &[u8], what: &str) {
        self.1.push(format!("{}: {what}", String::from_utf8_lossy(path)));
    }
}

/// The lines of a dataset, without those of the datasets that were mounted in it.
fn truth(name: &str, dataset: &str) -> BTreeMap<String, Value> {
    let manifest = fixtures::manifest(name);
    let all = manifest["list"].as_array().unwrap().iter().map(|l| l["name"].as_str().unwrap().to_owned());
    let mounted: Vec<String> =
        all.filter_map(|n| Some(n.strip_prefix(dataset)?.strip_prefix('/')?.to_owned())).collect();
    let below = move |path: &str| {
        mounted.iter().any(|m| path == m || path.strip_prefix(m.as_str()).is_some_and(|r| r.starts_with('/')))
    };
    let lines = fixtures::files(name).into_iter().filter(|l| l["dataset"] == dataset);
    lines.filter_map(|l| Some((l["path"].as_str()?.to_owned(), l.clone()))).filter(|(path, _)| !below(path)).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Compares one copied file with its line.
fn compare(place: &Path, line: &Value) -> Result<(), String> {
    let meta = fs::symlink_metadata(place).map_err(|e| e.to_string())?;
    let kind = meta.file_type();
    let letter = match () {
        () if kind.is_dir() => "d",
        () if kind.is_file() => "f",
        () if kind.is_symlink() => "l",
        () if kind.is_char_device() => "c",
        () if kind.is_block_device() => "b",
        () if kind.is_fifo() => "p",
        () => "s",
    };
    let check = |what: &str, ok: bool| if ok { Ok(()) } else { Err(format!("{what} differs: {meta:?}, {line}")) };
    check("type", line["type"] == letter)?;
    check("mtime", line["mtime"] == format!("{}.{:09}", meta.mtime(), meta.mtime_nsec()))?;
    if letter == "l" {
        return check("target", line["target"] == *fs::read_link(place).unwrap().to_string_lossy());
    }
    check("mode", line["mode"] == format!("{:04o}", meta.mode() & 0o7777))?;
    if rustix::process::geteuid().is_root() {
        check("ids", line["uid"] == meta.uid() && line["gid"] == meta.gid())?;
    }
    if letter == "f" {
        check("size", line["size"] == meta.len())?;
        if let Some(digest) = line["sha256"].as_str() {
            check("contents", sha256(&fs::read(place).unwrap()) == digest)?;
        }
        if meta.len() > 1 << 30 {
            check("holes", meta.blocks() * 512 < 1 << 30)?;
        }
    }
    Ok(())
}

/// The names that the truth has as text and whose attributes a copy can be held against. The root of a snapshot shows its
/// control directory there.
fn copy_and_compare(name: &str, dataset: &str, root: bool) {
    let (_images, pool) = open(name);
    let fs = FileSystem::open(&pool.dataset(dataset).unwrap()).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let to = temp.path().join("copy");
    let mut report = Losses::default();
    let done = Copier::new(&mut report).copy_tree(fs.root_node().unwrap(), &to).unwrap();
    // devices want root, and so do the owners of files; all else must be there
    if root {
        assert!(report.0.is_empty(), "{name} {dataset}: {:?}", report.0);
        assert_eq!(done.damaged, 0);
    }
    let mut wrong = Vec::new();
    let mut links: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (path, line) in truth(name, dataset) {
        if path == "." || (!root && matches!(line["type"].as_str(), Some("b" | "c"))) {
            continue;
        }
        let place = to.join(&path);
        if let Err(why) = compare(&place, &line) {
            wrong.push(format!("{path}: {why}"));
        }
        if line["nlink"].as_u64() > Some(1) && line["type"] == "f" {
            let ino = fs::symlink_metadata(&place).map_or(0, |m| m.ino());
            links.entry(line["ino"].as_u64().unwrap()).or_default().push(ino);
        }
    }
    assert!(
        wrong.is_empty(),
        "{name} {dataset}: {} wrong: {:#?}",
        wrong.len(),
        wrong.iter().take(5).collect::<Vec<_>>()
    );
    for (ino, copies) in links {
        assert!(copies.windows(2).all(|w| w[0] == w[1]), "{name} {dataset}: links of {ino} are files apart");
    }
}

#[test]
fn copies_are_what_the_kernel_listed() {
    let root = rustix::process::geteuid().is_root();
    for (name, datasets) in [
        ("basic-a", &["basica/plain", "basica/rs128K"][..]),
        ("sparse-a", &["sparsea/r128K", "sparsea/r1M"]),
        ("snaps-a", &["snapsa/clone2@one", "snapsa/fs"]),
        ("enc-a", &["enca/hex", "enca/pass@s2"]),
        ("degraidz2-a", &[]),
        ("raidzexp-b", &[]),
    ] {
        let all: Vec<String> = match datasets {
            [] => fixtures::files(name).iter().map(|l| l["dataset"].as_str().unwrap().to_owned()).collect(),
            some => some.iter().map(|d| (*d).to_owned()).collect(),
        };
        let mut unique = all;
        unique.sort();
        unique.dedup();
        for dataset in unique {
            if !truth(name, &dataset).is_empty() {
                copy_and_compare(name, &dataset, root);
            }
        }
    }
}

#[test]
fn xattrs_and_acls_are_copied() {
    let (_images, pool) = open("posix-a");
    let fs = FileSystem::open(&pool.dataset("posixa/sa").unwrap()).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let mut report = Losses::default();
    Copier::new(&mut report).copy_tree(fs.root_node().unwrap(), temp.path()).unwrap();
    let mut compared = 0;
    for (path, line) in truth("posix-a", "posixa/sa") {
        let Some(xattrs) = line["xattrs"].as_object() else { continue };
        let mut names = vec![0u8; 64 << 10];
        let Ok(n) = rustix::fs::llistxattr(temp.path().join(&path), &mut names) else { continue };
        names.truncate(n);
        let found: Vec<&[u8]> = names.split(|b| *b == 0).filter(|n| !n.is_empty()).collect();
        for name in xattrs.keys().filter(|n| n.starts_with("user.") && xattrs[*n].as_str().unwrap().len() < 1000) {
            // the file system of the test may have less room for attributes than ZFS has; then it is told
            let told = format!("{path}: attribute {name}: ");
            let told = report.1.iter().any(|l| l.starts_with(&told));
            assert!(found.contains(&name.as_bytes()) != told, "{path}: {name} is missing");
            compared += usize::from(!told);
        }
    }
    assert!(compared > 0 || !supports_xattrs(temp.path()), "no attribute was compared");
}

fn supports_xattrs(dir: &Path) -> bool {
    rustix::fs::setxattr(dir, "user.probe", b"x", rustix::fs::XattrFlags::empty()).is_ok()
}

#[test]
fn an_archive_holds_the_tree_with_its_holes() {
    let (_images, pool) = open("sparse-a");
    for dataset in ["sparsea/r128K", "sparsea/r512"] {
        let fs = FileSystem::open(&pool.dataset(dataset).unwrap()).unwrap();
        let mut report = Losses::default();
        let mut out = Vec::new();
        let mut archiver = Archiver::new(&mut out, &mut report);
        archiver.add_tree(fs.root_node().unwrap(), b"").unwrap();
        assert_eq!(archiver.finish().unwrap(), 0);
        assert!(report.0.is_empty() && out.len() < 64 << 20, "{:?}, {} bytes", report.0, out.len());
        let truth = truth("sparse-a", dataset);
        let mut seen = 0;
        for entry in tar::Archive::new(out.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let records: BTreeMap<String, Vec<u8>> = entry
                .pax_extensions()
                .unwrap()
                .map(|all| {
                    all.map(|r| r.unwrap()).map(|r| (r.key().unwrap().to_owned(), r.value_bytes().to_vec())).collect()
                })
                .unwrap_or_default();
            let path = String::from_utf8_lossy(&entry.path_bytes()).trim_end_matches('/').to_owned();
            let line = &truth[&path];
            assert_eq!(
                records["mtime"].as_slice(),
                line["mtime"].as_str().unwrap().trim_end_matches(".000000000").as_bytes(),
                "{path}"
            );
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            if line["type"] != "f" || !entry.header().entry_type().is_file() {
                continue;
            }
            let contents = match records.get("GNU.sparse.realsize") {
                None => bytes,
                Some(size) if line["sha256"].is_string() => {
                    expand(&bytes, std::str::from_utf8(size).unwrap().parse().unwrap())
                }
                Some(_) => continue,
            };
            assert_eq!(line["sha256"], sha256(&contents), "{path}");
            seen += 1;
        }
        assert!(seen > 5, "{dataset}: {seen} files");
    }
}

/// Undoes the GNU sparse format 1.0.
fn expand(stored: &[u8], size: usize) -> Vec<u8> {
    let mut at = 0;
    let mut number = || {
        let end = at + stored[at..].iter().position(|b| *b == b'\n').unwrap();
        let n: usize = std::str::from_utf8(&stored[at..end]).unwrap().parse().unwrap();
        at = end + 1;
        n
    };
    let map: Vec<(usize, usize)> = (0..number()).map(|_| (number(), number())).collect();
    let mut data = &stored[at.next_multiple_of(512)..];
    let mut out = vec![0; size];
    for (start, len) in map {
        out[start..start + len].copy_from_slice(&data[..len]);
        data = &data[len..];
    }
    out
}

#[test]
fn what_is_lost_is_reported_and_the_rest_is_there() {
    let (_images, pool) = open("lost-a");
    let fs = FileSystem::open(&pool.dataset("losta/fs").unwrap()).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let mut report = Losses::default();
    let done = Copier::new(&mut report).copy_tree(fs.root_node().unwrap(), temp.path()).unwrap();
    assert_eq!(done.damaged, 1, "{:?}", report.0);
    assert!(report.0.iter().all(|l| l.starts_with("victim: bytes ")), "{:?}", report.0);
    for (path, line) in truth("lost-a", "losta/fs") {
        if path != "." && path != "victim" {
            compare(&temp.path().join(&path), &line).unwrap_or_else(|e| panic!("{path}: {e}"));
        }
    }
}

#[test]
fn impossible_names_are_refused() {
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        assert_eq!(dest::check_name(name).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
    assert!(dest::check_name(b"...").is_ok() && dest::check_name("ä \n".as_bytes()).is_ok());
}

#[test]
fn not_a_byte_of_a_device_changes() {
    // one of each kind of device, and what a less careful reader would replay, claim or repair
    for name in [
        "aux-a",
        "degdraid-a",
        "degmirror-a",
        "raidzexp-b",
        "removal-a",
        "special-a",
        "zilslog-a",
        "logsm-a",
        "checkpoint-a",
    ] {
        let images = fixtures::unpack_private(name);
        let state = || -> Vec<(Vec<u8>, i64)> {
            let of = |path: &std::path::PathBuf| {
                (Sha256::digest(fs::read(path).unwrap()).to_vec(), fs::metadata(path).unwrap().mtime_nsec())
            };
            images.images().iter().map(of).collect()
        };
        let before = state();
        let pool = support::open_at(name, &images);
        for entry in pool.list(pool.name(), &zuse::pool::ListOptions::ALL).unwrap() {
            if let Some(fs) = entry.dataset().and_then(|ds| FileSystem::open(ds).ok()) {
                zuse::walk(fs.root_node().unwrap(), false, &mut |_| Ok::<_, ()>(zuse::Go::In)).unwrap();
            }
        }
        drop(pool);
        assert_eq!(before, state(), "{name}");
    }
}

/// Runs a function at each piece of data that a copy has written.
struct Meanwhile<'a>(&'a mut dyn FnMut(&str), String, Vec<String>);

impl Report for Meanwhile<'_> {
    fn file(&mut self, path: &[u8]) {
        self.1 = String::from_utf8_lossy(path).into_owned();
    }

    fn bytes(&mut self, _n: u64) {
        (self.0)(&self.1);
    }

    fn lost(&mut self, path: &[u8], what: &str) {
        self.2.push(format!("{}: {what}", String::from_utf8_lossy(path)));
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// The owner of the destination replaces files while their data is written: attributes go to the file that was made.
#[test]
fn attributes_do_not_follow_what_took_the_place_of_a_file() {
    let pool = Pool::in_memory("t", 128 << 20).unwrap();
    let files = pool.files("t").unwrap();
    for name in [b"by-link", b"by-file"] {
        let id = files.make(name, &NewFile::new(Kind::File, 0o755)).unwrap();
        files.write(name, b"data").unwrap();
        if name == b"by-file" {
            files.zfs().set_xattr(&Cred::ROOT, id, b"user.a", b"a", XattrMode::Set).unwrap();
        }
        files.zfs().setattr(&Cred::ROOT, id, &SetAttr { mode: Some(0o4755), ..SetAttr::default() }).unwrap();
    }
    let temp = tempfile::tempdir().unwrap();
    let (to, aside, shell) = (temp.path().join("to"), temp.path().join("aside"), temp.path().join("shell"));
    fs::create_dir(&aside).unwrap();
    fs::write(&shell, "shell").unwrap();
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o600)).unwrap();
    let before = fs::metadata(&shell).unwrap().mtime();
    let mut swap = |path: &str| {
        fs::rename(to.join(path), aside.join(path)).unwrap();
        match path {
            "by-link" => symlink(&shell, to.join(path)).unwrap(),
            _ => fs::hard_link(&shell, to.join(path)).unwrap(),
        }
    };
    let mut report = Meanwhile(&mut swap, String::new(), Vec::new());
    Copier::new(&mut report).copy_tree(files.fs().root_node().unwrap(), &to).unwrap();
    assert!(report.2.is_empty(), "{:?}", report.2);
    assert_eq!((mode(&shell), fs::metadata(&shell).unwrap().mtime()), (0o600, before));
    let mut names = [0; 64];
    assert_eq!(rustix::fs::listxattr(&shell, &mut names).unwrap(), 0, "no attribute was given to it");
    // who cannot keep the owner keeps no set-id bit
    let kept = if rustix::process::geteuid().is_root() { 0o4755 } else { 0o755 };
    assert_eq!((mode(&aside.join("by-link")), mode(&aside.join("by-file"))), (kept, kept));
    pool.export().unwrap();
}

/// The owner of the destination replaces a directory by a link: later names of files in it are not links to what is there.
#[test]
fn hard_links_are_not_looked_up_through_links() {
    let pool = Pool::in_memory("t", 128 << 20).unwrap();
    let files = pool.files("t").unwrap();
    files.create_dir_all(b"top/a", 0o755).unwrap();
    files.write(b"top/a/secret", b"public").unwrap();
    for name in [&b"b"[..], b"c"] {
        files.hard_link(b"top/a/secret", name).unwrap();
    }
    let temp = tempfile::tempdir().unwrap();
    let (to, etc, aside) = (temp.path().join("to"), temp.path().join("etc"), temp.path().join("aside"));
    fs::create_dir(&etc).unwrap();
    fs::write(etc.join("secret"), "secret").unwrap();
    let mut report = Losses::default();
    let mut copier = Copier::new(&mut report);
    copier.copy_tree(files.fs().resolve(b"top").unwrap(), &to).unwrap();
    fs::rename(to.join("a"), &aside).unwrap();
    symlink(&etc, to.join("a")).unwrap();
    for name in ["b", "c"] {
        copier.copy_file(&files.fs().resolve(name.as_bytes()).unwrap(), &to, name.as_bytes()).unwrap();
        assert_eq!(fs::read(to.join(name)).unwrap(), b"public");
    }
    assert!(report.0.is_empty(), "{:?}", report.0);
    assert_eq!(fs::metadata(etc.join("secret")).unwrap().nlink(), 1);
    // one file of its own, and its other name
    assert_eq!(fs::metadata(to.join("b")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(aside.join("secret")).unwrap().nlink(), 1);
    pool.export().unwrap();
}

/// The owner of a copied dataset replaces its directory by a link before the dataset below is copied into it.
#[test]
fn datasets_are_not_copied_through_links_below_the_destination() {
    let pool = Pool::in_memory("t", 128 << 20).unwrap();
    let files = pool.files("t").unwrap();
    files.write(b"f", b"data").unwrap();
    let temp = tempfile::tempdir().unwrap();
    let (to, etc) = (temp.path().join("to"), temp.path().join("etc"));
    fs::create_dir_all(&to).unwrap();
    fs::create_dir(&etc).unwrap();
    symlink(&etc, to.join("a")).unwrap();
    let mut report = Losses::default();
    let mut copier = Copier::new(&mut report);
    copier.stay_below(Some(&to));
    copier.copy_tree(files.fs().root_node().unwrap(), &to.join("a/b")).unwrap_err();
    copier.copy_file(&files.fs().resolve(b"f").unwrap(), &to.join("a/b"), b"f").unwrap_err();
    assert!(fs::read_dir(&etc).unwrap().next().is_none());
    copier.copy_tree(files.fs().root_node().unwrap(), &to.join("c/d")).unwrap();
    assert_eq!(fs::read(to.join("c/d/f")).unwrap(), b"data");
    pool.export().unwrap();
}
