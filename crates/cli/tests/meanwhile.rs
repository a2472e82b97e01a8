//! Changes of a pool by another command, or another system, while a command runs.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::io::Read;
use std::process::{Command, Stdio};

use support::Session;

/// A pool `t` on a file of that many MiB in `dir`; the file.
fn pool(dir: &std::path::Path, mib: u64) -> (Session, String) {
    let (session, image) = (Session::empty(), dir.join("device"));
    std::fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
    let image = image.to_str().unwrap().to_owned();
    session.ok(&["zpool", "create", "-m", "none", "t", &image]);
    (session, image)
}

#[test]
fn a_pool_that_was_exported_elsewhere_is_forgotten_by_an_export() {
    let dir = tempfile::tempdir().unwrap();
    let (here, image) = pool(dir.path(), 96);
    let there = Session::empty();
    there.ok(&["zpool", "import", "-d", &image, "t"]);
    there.ok(&["zfs", "create", "t/there"]);
    there.ok(&["zpool", "export", "t"]);
    here.fails(
        &["zfs", "create", "t/x"],
        1,
        "it was exported or destroyed by another system or user ('zpool export t' forgets it)",
    );
    here.ok(&["zpool", "export", "t"]);
    assert_eq!(here.ok(&["zpool", "list", "-H"]), "");
    here.ok(&["zpool", "import", "-d", &image, "t"]);
    assert_eq!(here.ok(&["zfs", "list", "-Ho", "name"]), "t\nt/there\n");
}

#[test]
fn files_that_are_replaced_while_they_are_read_are_told_from_damage() {
    const SAYS: &str = "warning: 't' was modified while it was being read; use a snapshot for a consistent copy\n";
    let dir = tempfile::tempdir().unwrap();
    let (s, _) = pool(dir.path(), 96);
    let noise = |seed: u64| {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        (0..12 << 20).map(|_| next()).collect::<Vec<u8>>()
    };
    for name in ["t:/a", "t:/b"] {
        assert_eq!(s.feed(&["put", name], &noise(1)).code, 0);
    }
    let mut reader = Command::new(env!("CARGO_BIN_EXE_zuse"))
        .args(["tar", "-q", "t:/"])
        .env("ZUSE_STATE", s.state())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = reader.stdout.take().unwrap();
    let mut begun = [0; 512];
    out.read_exact(&mut begun).unwrap();
    // it blocks until its output is read
    s.ok(&["rm", "t:/b"]);
    for seed in 2..6 {
        assert_eq!(s.feed(&["put", "t:/other"], &noise(seed)).code, 0);
    }
    let rest = std::thread::spawn(move || out.read_to_end(&mut Vec::new()).unwrap());
    let done = reader.wait_with_output().unwrap();
    rest.join().unwrap();
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code() == Some(1) && told.contains("lost: b: ") && told.ends_with(SAYS), "{told}");
    // a snapshot is held, and there is no warning about a complete one
    assert_eq!(s.feed(&["cat", "t:/a"], b"").code, 0);
}
