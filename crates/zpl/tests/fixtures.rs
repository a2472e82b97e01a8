//! Every file of every file system and snapshot of every fixture, compared with the kernel module's view.
//!
//! `files.jsonl` of a fixture lists them: type, mode, ids, size, links, inode, times in nanoseconds, device, target, flags,
//! project, blocks, extended attributes with ACLs, and the digest of the content. Everything is compared, in both directions:
//! nothing may be missing and nothing may be extra.
//!
//! Exceptions:
//! * Where a file system is mounted inside another, the list of the outer one continues in the inner one; those lines belong to
//!   the inner one and are compared there.
//! * Pools that were cut off with a full intent log (`zil-a`, `zilslog-a`): their lists were made after the kernel replayed the
//!   log. Files that a record of the log refers to, and their directories, are left to the replay's own tests.
//! * The root of a snapshot: the list shows `.zfs/snapshot/NAME` before it is mounted. Its inode is the same.
//! * `lost-a`: contents that the kernel could not read may be unreadable here too; if they are not, they must be right.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Compared, Fixture};

/// Compares all fixtures, two at a time, the large ones first.
#[test]
fn all_files_of_all_fixtures() {
    let mut names = oracle::fixtures::names();
    if let Ok(only) = std::env::var("ZUSE_FIXTURE") {
        names.retain(|name| only.split(',').any(|wanted| wanted == name));
    }
    let weight =
        |name: &String| std::fs::metadata(oracle::fixtures::dir(name).join("files.jsonl.zst")).map_or(0, |m| m.len());
    names.sort_by_key(|name| std::cmp::Reverse(weight(name)));
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = std::time::Instant::now();
                    let compared = std::panic::catch_unwind(|| support::compare(&Fixture::open(name)));
                    let compared = compared.unwrap_or_else(|_| Compared::failed("panicked"));
                    println!("{name}: {compared} in {:.1?}", start.elapsed());
                    results.lock().unwrap().push((name.clone(), compared));
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    let bad: Vec<_> = results.iter().filter(|(_, compared)| !compared.differences.is_empty()).collect();
    for (name, compared) in &bad {
        println!("== {name}: {} differences", compared.differences.len());
        for line in compared.differences.iter().take(12) {
            println!("   {line}");
        }
    }
    assert!(bad.is_empty(), "{} fixtures differ", bad.len());
    assert_eq!(results.len(), names.len());
}

/// Compares the volumes of all fixtures with the digests in the manifests.
#[test]
fn all_volumes_of_all_fixtures() {
    let mut seen = 0;
    for name in oracle::fixtures::names() {
        let manifest = oracle::fixtures::manifest(&name);
        let volumes = manifest["zvols"].as_object().cloned().unwrap_or_default();
        // after the replay of the log that this pool has at its end
        if volumes.is_empty() || name.starts_with("zil") {
            continue;
        }
        let fixture = Fixture::open(&name);
        for (volume, truth) in volumes {
            seen += 1;
            assert_eq!(
                support::volume_digest(&fixture, &volume),
                (truth["size"].as_u64(), truth["sha256"].as_str().map(str::to_owned)),
                "{volume}"
            );
        }
    }
    assert!(seen > 10, "{seen}");
}
