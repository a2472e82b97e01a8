//! A pool that OpenZFS's own torture test made and (mostly) killed is opened, verified and listed as `zdb` lists it.
//!
//! `ztest` takes no seed: each run makes another pool. It adds and detaches devices, injects faults within what redundancy covers, makes, renames
//! and destroys datasets, encrypts, dedups, and at the end kills itself. So nothing may be lost, though redundancy may be needed.
//! Logs are left unreplayed, and datasets half destroyed; those are read as they stand, as `zdb` does.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use base::ObjectId;
use oracle::judge;
use pool::{ListOptions, OpenOptions, Pool};
use tempfile::TempDir;
use zuse::verify::{Names, Options, verify};
use zuse::{pool, vdev};

/// `ztest` runs itself again through `/proc/self/exe`, which under the judge's own loader is the loader, with no program to run. So it is
/// started through a copy of the loader that is gone by then: the link then reads "…/loader (deleted)", and under that name lies a script that
/// runs the judge as it should be.
const START: &str = r#"
set -e
dir=$1 wrapper=$2; shift 2
eval "set -- $(sed -n 's/^exec \(.*\) "\$@"$/\1/p' "$wrapper") \"\$@\""
cp "$1" "$dir/loader"; shift
printf '#!/bin/sh\nexec "%s" "$@"\n' "$wrapper" >"$dir/loader (deleted)"
chmod +x "$dir/loader (deleted)"
exec 9<"$dir/loader"
rm "$dir/loader"
exec /proc/self/fd/9 "$@"
"#;

/// How often `ztest` may fail of its own: one run in three that goes on after a kill finds its pool no more ("failed to find config for pool").
const TRIES: usize = 10;

/// Makes the pool `zt` in a directory of its own; none where there is no judge.
fn ztest() -> Option<TempDir> {
    let (ztest, zdb) = (judge::tool("ztest")?, judge::tool("zdb")?);
    for _ in 0..TRIES {
        let temp = tempfile::Builder::new().prefix("zuse-ztest-").tempdir().unwrap();
        let mut start = Command::new("sh");
        start.args(["-c", START, "sh"]).arg(temp.path()).arg(ztest.get_program()).arg("-f").arg(temp.path());
        start.args("-p zt -T 5 -P 5 -s 128m -r 3 -K raidz -t 8 -d 4 -k 80 -V".split(' '));
        let out = start.env("ZDB", zdb.get_program()).output().unwrap();
        let said = [out.stdout, out.stderr].map(|o| String::from_utf8_lossy(&o).into_owned()).concat();
        let told = |line: &&str| ["Pass", "ASSERT", "failed to"].iter().any(|start| line.starts_with(start));
        said.lines().filter(told).for_each(|line| eprintln!("ztest: {line}"));
        // its own zdb has looked at the pool after the last pass
        if out.status.success() {
            return Some(temp);
        }
        eprintln!("ztest: {}", out.status);
    }
    panic!("ztest made no pool in {TRIES} tries");
}

/// Objects by dataset, as the judge's `zdb -d` counts them.
fn objects_by_zdb(dir: &Path) -> BTreeMap<String, u64> {
    let out = judge::run("zdb", &["-e", "-p", dir.to_str().unwrap(), "-d", "zt"]).unwrap();
    assert!(out.status.success(), "zdb: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let dataset = |line: &str| {
        let (name, rest) = line.strip_prefix("Dataset ")?.split_once(" [")?;
        let count = rest.strip_suffix(" objects")?.rsplit(' ').next()?;
        Some((name.to_owned(), count.parse().unwrap()))
    };
    text.lines().filter_map(dataset).collect()
}

fn count(objset: &std::sync::Arc<dmu::Objset>) -> u64 {
    let (mut at, mut count) = (ObjectId::NONE, 0);
    while let Some(next) = objset.next_object(at).unwrap() {
        (at, count) = (next, count + 1);
    }
    count
}

fn objects(pool: &std::sync::Arc<Pool>) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::from([("mos".to_owned(), count(pool.mos()))]);
    let options = ListOptions { bookmarks: false, ..ListOptions::ALL };
    for entry in pool.list("zt", &options).unwrap() {
        all.insert(entry.name().to_owned(), count(&entry.dataset().unwrap().objset().unwrap()));
    }
    all
}

/// Bytes that zdb finds allocated and used by nothing.
fn leaked_by_zdb(dir: &Path) -> u64 {
    let out = judge::run("zdb", &["-e", "-p", dir.to_str().unwrap(), "-bc", "zt"]).unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    let sizes =
        text.lines().filter(|line| line.contains("leaked space:")).map(|line| line.rsplit_once("size ").unwrap().1);
    sizes.map(|size| size.trim().parse::<u64>().unwrap()).sum()
}

#[test]
fn a_pool_of_ztest_is_sound_and_listed_as_zdb_lists_it() {
    let Some(temp) = ztest() else { return };
    let found = vdev::import::scan(&[temp.path().to_owned()]).unwrap();
    let candidates: Vec<_> = found.iter().filter(|c| c.name == "zt").collect();
    // a pool that was split off lies beside it under another name
    let [candidate] = candidates.as_slice() else { panic!("{} pools", candidates.len()) };
    let pool = Pool::open(candidate, &OpenOptions::default()).unwrap();
    let summary = verify(&pool, &Options { dataset: None, threads: 2, expand: true }, &|_, _| {}).unwrap();
    // a ztest that was killed may have leaked a block of an intent log: zdb then sees the same
    let lost = summary.tally.lost_blocks > 0 || !summary.misplaced.is_empty();
    let wrong = summary.space.iter().any(|vdev| vdev.unallocated > 0);
    let leaked: u64 = summary.space.iter().map(|vdev| vdev.leaked).sum();
    if lost || wrong || leaked != leaked_by_zdb(temp.path()) {
        let mut names = Names::new(&pool);
        let damage = summary.damage();
        damage.for_each(|d| eprintln!("{}: {}", names.place(&d.bm), d.why));
        let kept = std::env::temp_dir().join(format!("zuse-ztest-failed-{}", std::process::id()));
        fs::rename(temp.keep(), &kept).unwrap();
        panic!("not sound, kept in {}: {summary:#?}", kept.display());
    }
    assert!(summary.blocks > 50, "{summary:#?}");
    assert_eq!(objects(&pool), objects_by_zdb(temp.path()));
}
