//! Dedup tables of pools that are created and written here: new ones are fast ones, pruned entries leave ordinary
//! blocks, and a quota keeps a table from growing. OpenZFS's `zdb` is the judge.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/lab.rs"]
mod lab;
mod support;

use base::Env;
use lab::Lab;
use oracle::judge;

/// Bytes of a block of the files here.
const BLOCK: usize = 8192;

/// Blocks that differ from each other.
fn content(blocks: usize, seed: u64) -> Vec<u8> {
    Env::noise(seed, blocks * BLOCK)
}

/// A pool with these numbers of blocks: unique, and in two files.
fn filled(unique: usize, twice: usize) -> Lab {
    let lab = Lab::new("tank");
    lab.text("zfs set dedup=on tank");
    lab.text("zfs set recordsize=8K tank");
    for (name, blocks, seed) in [("unique", unique, 1), ("one", twice, 2), ("two", twice, 2)] {
        write(&lab, name, blocks, seed);
    }
    lab
}

fn write(lab: &Lab, name: &str, blocks: usize, seed: u64) {
    let host = tempfile::tempdir().unwrap();
    let file = host.path().join(name);
    std::fs::write(&file, content(blocks, seed)).unwrap();
    lab.text(&format!("cp -q {} tank:/{name}", file.display()));
}

/// The number of entries with one reference, and of those with more.
fn entries(lab: &Lab) -> (u64, u64) {
    let status = lab.text("zpool status -D tank");
    let rows = status.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse::<u64>().ok()?, words.next()?.parse::<u64>().ok()?))
    });
    rows.fold((0, 0), |(one, more), (refs, blocks)| if refs == 1 { (one + blocks, more) } else { (one, more + blocks) })
}

/// The output of zdb about the tables, and about the pool.
fn judged(lab: &Lab) -> Option<String> {
    lab.ok("zpool export tank", b"");
    judge::no_leaks(lab.dir.path(), "tank");
    let out = judge::run("zdb", &["-e", "-p", &lab.dir.path().display().to_string(), "-DD", "tank"]);
    out.map(|out| String::from_utf8_lossy(&out.stdout).into_owned())
}

#[test]
fn pruned_entries_leave_ordinary_blocks() {
    let lab = filled(60, 40);
    assert_eq!(lab.text("zpool get -Ho value feature@fast_dedup tank"), "active\n");
    assert_eq!(entries(&lab), (60, 40));
    // nothing is a day old
    lab.text("zpool ddtprune -d 1 tank");
    assert_eq!(entries(&lab), (60, 40));
    // an entry with a record in a log stays: logs are flushed gradually. And an entry as old as now is not older: the
    // clock of entries has seconds
    (0..8).for_each(|_| drop(lab.text("zpool sync tank")));
    std::thread::sleep(std::time::Duration::from_millis(1100));
    lab.text("zpool ddtprune -p 100 tank");
    assert_eq!(entries(&lab), (0, 40));
    let history = lab.text("zpool history -i tank");
    assert!(history.contains("ddt prune entries=60"), "{history}");
    // blocks without an entry are freed as ordinary ones, and written again they are new ones
    write(&lab, "again", 60, 1);
    assert_eq!(entries(&lab), (60, 40));
    lab.text("rm tank:/unique");
    lab.text("rm tank:/two");
    assert_eq!(entries(&lab), (100, 0));
    for (name, blocks, seed) in [("one", 40, 2), ("again", 60, 1)] {
        assert!(lab.ok(&format!("cat tank:/{name}"), b"") == content(blocks, seed), "{name}");
    }
    if let Some(said) = judged(&lab) {
        assert!(said.contains("DDT-sha256: version=1 [FDT]") && !said.contains("LEGACY"), "{said}");
    }
}

#[test]
fn a_table_over_its_quota_does_not_grow() {
    let lab = filled(60, 40);
    lab.text("zpool set dedup_table_quota=1 tank");
    assert_eq!(lab.text("zpool get -Hpo value dedup_table_quota tank"), "1\n");
    // new blocks stay out of the table, references to entries in it are counted
    write(&lab, "new", 30, 3);
    write(&lab, "new-too", 30, 3);
    write(&lab, "three", 40, 2);
    assert_eq!(entries(&lab), (60, 40));
    let ratio = lab.text("zpool get -Hpo value dedupratio tank");
    assert_eq!(ratio.trim(), "1.80", "60 and three times 40 for 100");
    lab.text("zpool set dedup_table_quota=none tank");
    write(&lab, "later", 30, 4);
    write(&lab, "later-too", 30, 4);
    assert_eq!(entries(&lab), (60, 70));
    for (name, blocks, seed) in [("new", 30, 3), ("new-too", 30, 3), ("three", 40, 2), ("later-too", 30, 4)] {
        assert!(lab.ok(&format!("cat tank:/{name}"), b"") == content(blocks, seed), "{name}");
    }
    lab.text("rm tank:/new");
    judged(&lab);
}

#[test]
fn a_pool_without_the_feature_keeps_tables_of_old() {
    let lab = Lab::new("other");
    let device = lab.dir.path().join("tank");
    std::fs::File::create(&device).unwrap().set_len(256 << 20).unwrap();
    lab.text(&format!("zpool create -m none -o feature@fast_dedup=disabled -O dedup=on tank {}", device.display()));
    write(&lab, "one", 10, 5);
    write(&lab, "two", 10, 5);
    lab.fails("zpool ddtprune -p 100 tank", b"", "fast_dedup");
    lab.text("zpool set feature@fast_dedup=enabled tank");
    write(&lab, "three", 10, 6);
    lab.text("zpool export other");
    if let Some(said) = judged(&lab) {
        assert!(said.contains("DDT-sha256: version=0 [LEGACY]"), "{said}");
    }
}
