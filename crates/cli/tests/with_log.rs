//! `--with-log`: the effect of the next import on intent logs, for encrypted file systems and volumes too, or a
//! message that it is not shown.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};

use codec::crypt::WrappingKey;
use support::Session;
use zpl::live::{Cred, Volume};

const OLD: [u8; 16384] = [1; 16384];
const NEW: [u8; 16384] = [2; 16384];

/// A pool whose logs hold, under a key, a copy of blocks from file to file and a write of a volume; stopped with them.
struct Stopped {
    session: Session,
    dir: tempfile::TempDir,
    /// Keeps the folder of the key that `keylocation` names.
    _made: tempfile::TempDir,
    key: PathBuf,
}

impl Stopped {
    fn new() -> Stopped {
        let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
        let (device, key) = (dir.path().join("a"), dir.path().join("key"));
        std::fs::write(&key, [7; 32]).unwrap();
        let location = format!("keylocation=file://{}", key.display());
        session.ok(&["zpool", "create", "-m", "none", "--size", "128M", "tank", device.to_str().unwrap()]);
        let encrypted = ["-o", "encryption=on", "-o", "keyformat=raw", "-o", &location];
        session.ok(&[&["zfs", "create", "-o", "recordsize=16k"], &encrypted[..], &["tank/e"]].concat());
        session.ok(&[&["zfs", "create"], &encrypted[..], &["-V", "1M", "-b", "16k", "tank/v"]].concat());
        session.ok(&["zpool", "export", "tank"]);

        let pool = zuse::Pool::open_writable(&[&device], None).unwrap();
        let wrapping = WrappingKey::from_raw(&[7; 32]).unwrap();
        for name in ["tank/e", "tank/v"] {
            pool.view().unwrap().load_key(name, &wrapping).unwrap();
        }
        let files = pool.files("tank/e").unwrap();
        files.write(b"source", &NEW).unwrap();
        files.write(b"target", &OLD).unwrap();
        let volume = Volume::open(pool.spa().unwrap(), "tank/v").unwrap();
        // starting a log makes a txg sync
        files.fsync(b"target").unwrap();
        volume.write_sync(0, &OLD).unwrap();
        pool.sync().unwrap();
        let number = |name: &[u8]| files.stat(name).unwrap().0;
        let (from, to) = (number(b"source"), number(b"target"));
        files.zfs().copy_range(&Cred::ROOT, (from, 0), (to, 0), 16384).unwrap();
        files.fsync(b"target").unwrap();
        volume.write_sync(0, &NEW).unwrap();
        // power loss: only what is on the device now is left
        let stopped = tempfile::tempdir().unwrap();
        std::fs::copy(&device, stopped.path().join("a")).unwrap();
        Stopped { session, dir: stopped, _made: dir, key }
    }

    fn cat(&self, options: &[&str], target: &str) -> support::Run {
        let images = self.dir.path().to_str().unwrap();
        self.session.run(&[&["cat", "-d", images], options, &[target]].concat())
    }
}

fn is(text: &str, bytes: &[u8]) -> bool {
    text.as_bytes().get(..bytes.len()) == Some(bytes)
}

#[test]
fn the_logs_of_encrypted_datasets_are_shown_with_their_key_only() {
    let stopped = Stopped::new();
    let key = format!("file://{}", stopped.key.display());
    let before = std::fs::read(stopped.dir.path().join("a")).unwrap();
    for target in ["tank/e:/target", "tank/v"] {
        // without `--with-log` the old contents are read
        let plain = stopped.cat(&["-L", &key], target);
        assert!(plain.code == 0 && is(&plain.out, &OLD), "{target}: {}", plain.err);
        for given in [&key, "keylocation"] {
            let shown = stopped.cat(&["--with-log", "-L", given], target);
            assert!(shown.code == 0 && is(&shown.out, &NEW), "{target} {given}: {}", shown.err);
            assert_eq!(shown.err, "", "{target} {given}");
        }
        // the location that the dataset itself names is not opened unasked; nor are the old contents shown as if there
        // were no log
        for options in [&["--with-log"][..], &[]] {
            let refused = stopped.cat(options, target);
            assert_eq!((refused.code, refused.out.as_str()), (1, ""), "{target}");
            assert!(
                refused.err.contains("key not loaded") && refused.err.contains("-L keylocation"),
                "{}",
                refused.err
            );
            let name = target.split(':').next().unwrap();
            let warning = format!("warning: the intent log of '{name}' is not replayed: its key is not loaded");
            assert_eq!(refused.err.contains(&warning), !options.is_empty(), "{}", refused.err);
        }
    }
    assert!(before == std::fs::read(stopped.dir.path().join("a")).unwrap());
    // a real import gives the same
    stopped.session.ok(&["zpool", "import", "-l", "-d", stopped.dir.path().to_str().unwrap(), "tank"]);
    for target in ["tank/e:/target", "tank/v"] {
        let real = stopped.session.run(&["cat", target]);
        assert!(real.code == 0 && is(&real.out, &NEW), "{target}: {}", real.err);
    }
    stopped.session.ok(&["zpool", "export", "tank"]);
}

#[test]
fn a_pool_that_was_exported_is_shown_as_it_is() {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let device = dir.path().join("a");
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "tank", device.to_str().unwrap()]);
    session.feed(&["put", "tank:/f"], b"hi");
    let shown =
        |session: &Session, place: &Path| session.ok(&["ls", "--with-log", "-d", place.to_str().unwrap(), "tank:/"]);
    assert_eq!(shown(&session, dir.path()), "f\n");
    assert_eq!(session.ok(&["ls", "--with-log", "tank:/"]), "f\n");
    session.ok(&["zpool", "export", "tank"]);
    assert_eq!(shown(&session, dir.path()), "f\n");
}

/// A pool stays imported though a command was killed: the writes that it had logged are part of what the next command
/// snapshots.
#[test]
fn a_snapshot_has_what_a_log_holds() {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let (device, stopped) = (dir.path().join("a"), dir.path().join("b"));
    session.ok(&["zpool", "create", "-m", "none", "--size", "128M", "tank", device.to_str().unwrap()]);
    session.ok(&["zfs", "create", "tank/s"]);
    session.ok(&["zfs", "create", "-V", "1M", "-b", "16k", "tank/v"]);
    let pool = zuse::Pool::open_writable(&[&device], None).unwrap();
    let (files, volume) = (pool.files("tank/s").unwrap(), Volume::open(pool.spa().unwrap(), "tank/v").unwrap());
    files.write(b"f", &OLD).unwrap();
    files.fsync(b"f").unwrap();
    volume.write_sync(0, &OLD).unwrap();
    pool.sync().unwrap();
    files.write(b"f", &NEW).unwrap();
    files.fsync(b"f").unwrap();
    volume.write_sync(0, &NEW).unwrap();
    std::fs::copy(&device, &stopped).unwrap();
    drop((files, volume, pool));
    std::fs::rename(&stopped, &device).unwrap();
    session.ok(&["zfs", "snapshot", "tank/s@now", "tank/v@now"]);
    assert!(is(&session.ok(&["cat", "tank/s@now:/f"]), &NEW), "the file");
    assert!(is(&session.ok(&["cat", "tank/v@now"]), &NEW), "the volume");
    session.ok(&["zpool", "export", "tank"]);
    oracle::judge::no_leaks(dir.path(), "tank");
}
