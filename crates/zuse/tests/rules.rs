//! The library refuses before anything of it is in a pool: values of properties, names, encryption without a key.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};

use base::Errno;
use zuse::pool::{KeyStatus, Value};
use zuse::{Error, Key, Pool};

const SIZE: u64 = 128 << 20;

/// No error.
const DONE: Errno = Errno::from_raw(0);

fn errno<T>(result: Result<T, Error>) -> Errno {
    result.map_or_else(|e| e.errno(), |_| DONE)
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

#[test]
fn a_property_has_one_of_its_values() {
    let pool = Pool::in_memory("t", SIZE).unwrap();
    pool.create("t/d", &[]).unwrap();
    let bad = [
        ("compression", Value::Number(9999)),
        ("compression", text("lz5")),
        ("recordsize", Value::Number(3000)),
        ("recordsize", Value::Number(32 << 20)),
        ("recordsize", text("1M")),
        ("checksum", Value::Number(777)),
        ("quota", text("1G")),
        ("copies", Value::Number(9)),
        ("sync", Value::Number(3)),
        ("readonly", Value::Number(7)),
        ("dnodesize", Value::Number(12345)),
        ("special_small_blocks", Value::Number(u64::MAX)),
        ("mountpoint", Value::Number(5)),
        ("mountpoint", text("a/b")),
        ("dedup", Value::Number(4242)),
        ("used", Value::Number(1)),
        ("nonsense", Value::Number(1)),
        ("org.example:number", Value::Number(1)),
        ("org.example:nul", text("a\0b")),
        ("volsize", Value::Number(1 << 20)),
    ];
    pool.snapshot("t/d@s").unwrap();
    for (name, value) in &bad {
        let why = format!("{name}={value:?}");
        let before = pool.get("t/d", name).unwrap();
        let refused = [Errno::ERANGE, Errno::EINVAL];
        assert!(refused.contains(&errno(pool.set("t/d", &[("atime", text("off")), (name, value.clone())]))), "{why}");
        assert_eq!(pool.get("t/d", name).unwrap(), before, "{why}");
        assert!(refused.contains(&errno(pool.create("t/new", &[(name, value.clone())]))), "create with {why}");
        assert!(pool.dataset("t/new").is_err(), "{why}");
        // below the requests as well
        let spa = pool.spa().unwrap();
        let one = vec![((*name).to_owned(), value.clone())];
        assert!(spa.set_props("t/d", &one, zuse::pool::PropSource::Received).is_err(), "received {why}");
        assert!(spa.clone_dataset("t/d@s", "t/new", one).is_err(), "clone with {why}");
    }
    assert_eq!(pool.get("t/d", "atime").unwrap(), Some(Value::Number(1)), "all or none");
    // the word and its number are the same
    pool.set("t/d", &[("compression", text("zstd-3")), ("copies", Value::Number(2))]).unwrap();
    assert_eq!(pool.get("t/d", "compression").unwrap(), Some(Value::Number(400)));
    pool.export().unwrap();
}

/// A list of properties that no software could have written does not stop a pool from being written.
#[test]
fn what_is_fixed_is_fixed_when_it_is_made() {
    let pool = Pool::in_memory("t", SIZE).unwrap();
    pool.create("t/n", &[("normalization", text("formD")), ("casesensitivity", text("insensitive"))]).unwrap();
    pool.create("t/n/below", &[]).unwrap();
    for name in ["t/n", "t/n/below"] {
        let files = pool.files(name).unwrap();
        files.write(b"Name", b"1").unwrap();
        assert_eq!(files.read(b"nAME").unwrap(), b"1", "{name}");
        assert_eq!(pool.get(name, "utf8only").unwrap(), Some(Value::Number(1)), "{name}");
    }
    assert_eq!(errno(pool.set("t/n", &[("normalization", text("none"))])), Errno::EINVAL);
    pool.create_volume("t/v", 1 << 20, &[("volblocksize", Value::Number(8 << 10))]).unwrap();
    assert_eq!(pool.get("t/v", "volsize").unwrap(), Some(Value::Number(1 << 20)));
    assert_eq!(errno(pool.create_volume("t/w", (1 << 20) + 1, &[])), Errno::EINVAL);
    assert_eq!(errno(pool.create_volume("t/w", 1 << 20, &[("volblocksize", Value::Number(3000))])), Errno::EINVAL);
    assert_eq!(errno(pool.create_volume("t/w", 0, &[])), Errno::EINVAL);
    pool.export().unwrap();
}

#[test]
fn encryption_that_is_asked_for_is_there_or_nothing_is() {
    let pool = Pool::in_memory("t", SIZE).unwrap();
    for cipher in [Value::Number(8), Value::Number(1), Value::Number(99), text("aes-256-gcm"), text("on"), text("yes")]
    {
        assert_eq!(errno(pool.create("t/plain", &[("encryption", cipher.clone())])), Errno::EINVAL, "{cipher:?}");
        assert!(pool.dataset("t/plain").is_err(), "{cipher:?}");
        let volume = pool.create_volume("t/plain", 1 << 20, &[("encryption", cipher.clone())]);
        assert_eq!(errno(volume), Errno::EINVAL, "{cipher:?}");
        let fs_props = vec![("encryption".to_owned(), cipher.clone())];
        let spa = pool.spa().unwrap();
        let plain = zuse::pool::NewDataset::inheriting("t/plain", zuse::ondisk::ObjsetType::Zfs);
        let new = zuse::pool::NewDataset { props: fs_props, ..plain };
        assert!(spa.create_dataset(new, Box::new(|_, _| Ok(()))).is_err(), "{cipher:?}");
    }
    for of_key in [("keyformat", text("raw")), ("pbkdf2iters", Value::Number(400_000)), ("keylocation", text("prompt"))]
    {
        assert_ne!(errno(pool.create("t/plain", std::slice::from_ref(&of_key))), DONE, "{of_key:?}");
    }
    let key = Key::passphrase("correct horse").unwrap();
    assert_eq!(errno(pool.create_encrypted("t/e", &[("encryption", text("off"))], &key)), Errno::EINVAL);
    let props = [("encryption", text("aes-128-ccm")), ("pbkdf2iters", Value::Number(100_000))];
    pool.create_encrypted("t/e", &props, &key).unwrap();
    // it is inherited, with another cipher if that is said
    pool.create("t/e/below", &[("encryption", text("aes-256-gcm"))]).unwrap();
    pool.create("t/e/off", &[("encryption", text("off"))]).unwrap();
    let cipher = |name: &str| pool.get(name, "encryption").unwrap().and_then(|n| n.number());
    assert_eq!([cipher("t/e"), cipher("t/e/below"), cipher("t/e/off")], [Some(3), Some(8), Some(2)]);
    pool.export().unwrap();
}

#[test]
fn keys_are_loaded_changed_and_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a").display().to_string();
    let (old, new) = (Key::raw(&[7; 32]), Key::hex(&"0f".repeat(32)).unwrap());
    let pool = Pool::create_new("t", &[&path], SIZE).unwrap();
    assert_eq!(errno(Pool::open_writable(&[&path], None)), Errno::EBUSY, "it is open already");
    pool.create_encrypted("t/e", &[], &old).unwrap();
    pool.create_encrypted_volume("t/e/v", 1 << 20, &[], &new).unwrap();
    pool.files("t/e").unwrap().write(b"f", b"secret").unwrap();
    pool.change_key("t/e", &new).unwrap();
    pool.inherit_key("t/e/v").unwrap();
    pool.export().unwrap();
    drop(pool);

    let pool = Pool::open_writable(&[&path], None).unwrap();
    assert_eq!(pool.key_status("t/e").unwrap(), KeyStatus::Unavailable);
    assert_eq!(errno(pool.files("t/e").map(drop)), Errno::EACCES);
    assert_eq!(errno(pool.load_key("t/e", &old)), Errno::EINVAL, "of another format");
    assert_eq!(errno(pool.load_key("t/e", &Key::hex(&"0e".repeat(32)).unwrap())), Errno::EACCES);
    assert_ne!(errno(pool.load_key("t/e/v", &new)), DONE, "no root any more");
    pool.load_key("t/e", &new).unwrap();
    assert_eq!(pool.key_status("t/e/v").unwrap(), KeyStatus::Available);
    let files = pool.files("t/e").unwrap();
    assert_eq!(files.read(b"f").unwrap(), b"secret");
    assert_eq!(errno(pool.unload_key("t/e")), Errno::EBUSY, "in use");
    drop(files);
    pool.unload_key("t/e").unwrap();
    assert_eq!(pool.key_status("t/e").unwrap(), KeyStatus::Unavailable);
    pool.export().unwrap();
    drop(pool);

    let pool = Pool::open(&[&path], None).unwrap();
    pool.load_key("t/e", &new).unwrap();
    assert_eq!(pool.file_system("t/e").unwrap().resolve(b"f").unwrap().size(), 6);
    assert_eq!(format!("{new:?}"), "Key { format: Hex, .. }");
    for bad in ["short", &"x".repeat(513)] {
        assert_eq!(errno(Key::passphrase(bad)), Errno::EINVAL);
    }
    assert_eq!(errno(Key::hex("xyz")), Errno::EINVAL);
}

/// Commits of log records, the sync thread's end of a txg and the check of use meet in every order.
#[test]
fn a_key_can_be_unloaded_as_soon_as_its_files_are_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a").display().to_string();
    let key = Key::raw(&[7; 32]);
    let pool = Pool::create_new("t", &[&path], SIZE).unwrap();
    pool.create_encrypted("t/e", &[], &key).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // other changes keep the sync thread awake
        scope.spawn(|| {
            let files = pool.files("t").unwrap();
            let mut n = 0u64;
            while !done.load(Ordering::Relaxed) {
                n += 1;
                files.write(b"n", &n.to_le_bytes()).unwrap();
                pool.sync().unwrap();
            }
        });
        let rounds = (0..100u64).try_for_each(|n| {
            pool.files("t/e")?.write(b"f", &n.to_le_bytes())?;
            pool.unload_key("t/e")?;
            pool.load_key("t/e", &key)
        });
        done.store(true, Ordering::Relaxed);
        rounds.unwrap();
    });
    assert_eq!(pool.files("t/e").unwrap().read(b"f").unwrap(), 99u64.to_le_bytes());
}

#[test]
fn names_are_those_that_openzfs_takes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let make = |name: &str| Pool::create_new(name, &[path.to_str().unwrap()], SIZE).map(drop);
    for name in ["mirror", "raidz2", "draid", "spare", "log", "9x", "", "a/b", "a%b", "ä", &"x".repeat(240)] {
        assert_eq!(errno(make(name)), Errno::EINVAL, "{name}");
        assert_eq!(errno(Pool::in_memory(name, SIZE)), Errno::EINVAL, "{name}");
        assert!(!path.exists(), "{name}");
    }
    let pool = Pool::in_memory("t", SIZE).unwrap();
    pool.create("t/d", &[]).unwrap();
    pool.snapshot("t/d@s").unwrap();
    for bad in ["t/a@b", "t/a%b", "t/", "t/a//b", "t/..", "t/ä", "t/a#b", "t/a\nb", "other/x"] {
        assert_ne!(errno(pool.create(bad, &[])), DONE, "create {bad}");
        assert_ne!(errno(pool.rename("t/d", bad)), DONE, "rename {bad}");
        assert_ne!(errno(pool.clone_snapshot("t/d@s", bad)), DONE, "clone {bad}");
    }
    for bad in ["", "a b\n", "a%b", "a/b", "a@b", "..", &"x".repeat(256)] {
        assert_ne!(errno(pool.snapshot(&format!("t/d@{bad}"))), DONE, "snapshot {bad}");
        let spa = pool.spa().unwrap();
        assert!(spa.rename_snapshot("t/d", "s", bad, false).is_err(), "rename snapshot {bad}");
        assert!(spa.bookmark(&[(format!("t/d#{bad}"), "t/d@s".to_owned())]).is_err(), "bookmark {bad}");
    }
    let long = "x".repeat(256);
    assert!(pool.spa().unwrap().hold(&[("t/d@s".to_owned(), long)]).is_err());
    assert_eq!(pool.datasets("t").unwrap(), ["t", "t/d"]);
    assert_eq!(pool.snapshots("t/d").unwrap(), ["s"]);
    pool.export().unwrap();
}

#[test]
fn a_pool_that_does_not_come_to_be_leaves_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    for (vdevs, size) in [(vec!["mirror".to_owned(), at("a"), at("none/b")], SIZE), (vec![at("small")], 1 << 20)] {
        let words: Vec<&str> = vdevs.iter().map(String::as_str).collect();
        assert!(Pool::create_new("t", &words, size).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{vdevs:?}");
    }
    // what was there stays
    std::fs::write(at("there"), b"x").unwrap();
    assert!(Pool::create_new("t", &[&at("there")], SIZE).is_err());
    assert_eq!(std::fs::read(at("there")).unwrap(), b"x");
}
