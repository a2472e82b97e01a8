//! A pool must not go back in time because only devices are left that were absent when it was written last.
#![allow(clippy::unwrap_used)]

mod support;

use support::Session;

/// Another vdev has the newest txg, but nothing that was written in it.
#[test]
fn a_log_that_knows_the_newest_txg_does_not_make_the_older_half_new() {
    let (dir, away, s) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Session::empty());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let leave = |name: &str| std::fs::rename(path(name), away.path().join(name)).unwrap();
    let come_back = |name: &str| std::fs::rename(away.path().join(name), path(name)).unwrap();
    s.ok(&[
        "zpool",
        "create",
        "-m",
        "none",
        "--size",
        "128M",
        "t",
        "mirror",
        &path("a"),
        &path("b"),
        "log",
        &path("l"),
    ]);
    assert_eq!(s.feed(&["put", "t:/f"], b"old").code, 0);
    leave("b");
    assert_eq!(s.feed(&["put", "t:/f"], b"new").code, 0);
    leave("a");
    come_back("b");
    for line in [&["cat", "t:/f"][..], &["zfs", "snapshot", "t@s"], &["zpool", "export", "t"]] {
        let ran = s.run(line);
        assert!(
            ran.code != 0 && ran.err.contains("it was left in txg "),
            "{line:?}: {} {} {}",
            ran.code,
            ran.out,
            ran.err
        );
    }
    let status = s.ok(&["zpool", "status", "t"]);
    assert!(status.contains("an older state of the pool") && !status.contains("corrupted"), "{status}");
    s.ok(&["zpool", "export", "-f", "t"]);
    come_back("a");
    s.ok(&["zpool", "import", "-d", dir.path().to_str().unwrap(), "t"]);
    assert_eq!(s.ok(&["cat", "t:/f"]), "new");
}

#[test]
fn the_half_of_a_mirror_that_was_away_is_not_opened_alone() {
    let (dir, s) = (tempfile::tempdir().unwrap(), Session::empty());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let away = tempfile::tempdir().unwrap();
    let leave = |name: &str| std::fs::rename(path(name), away.path().join(name)).unwrap();
    let come_back = |name: &str| std::fs::rename(away.path().join(name), path(name)).unwrap();
    s.ok(&["zpool", "create", "-m", "none", "--size", "128M", "t", "mirror", &path("a"), &path("b")]);
    assert_eq!(s.feed(&["put", "t:/old"], b"old").code, 0);
    leave("b");
    assert_eq!(s.feed(&["put", "t:/new"], b"new").code, 0);
    leave("a");
    come_back("b");
    let before = std::fs::read(path("b")).unwrap();
    let says = "it was left in txg ";
    for line in [&["ls", "t:/"][..], &["zfs", "snapshot", "t@s"], &["zpool", "export", "t"], &["zfs", "list", "t"]] {
        let ran = s.run(line);
        let told = ran.err.contains(says) && ran.err.contains("'zpool export -f t' forgets that");
        assert!(ran.code != 0 && told, "{line:?}: {} {}", ran.code, ran.err);
    }
    let ran = s.feed(&["put", "t:/lost"], b"lost");
    assert!(ran.code != 0 && ran.err.contains(says), "{}", ran.err);
    let status = s.ok(&["zpool", "status", "t"]);
    for told in ["UNAVAIL", "an older state of the pool", "'zpool export -f'", says] {
        assert!(status.contains(told) && !status.contains("corrupted"), "{told}: {status}");
    }
    assert!(std::fs::read(path("b")).unwrap() == before, "the older half was written");
    // with the other device everything is there, and the older half is brought up to date
    come_back("a");
    s.ok(&["zfs", "snapshot", "t@s"]);
    leave("a");
    assert_eq!(s.ok(&["cat", "t@s:/new"]), "new");
    // a user who knows that it is lost for good continues with the rest
    come_back("a");
    leave("b");
    s.ok(&["rm", "t:/new"]);
    leave("a");
    come_back("b");
    s.ok(&["zpool", "export", "-f", "t"]);
    s.ok(&["zpool", "import", "-d", &path("b"), "t"]);
    assert_eq!(s.ok(&["cat", "t:/new"]), "new");
}
