//! `zuse zil ls` and `--with-log` on a pool that was stopped with full intent logs: they show the result of a replay,
//! and nothing is written.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::process::{Command, Output};

use oracle::fixtures::{self, Unpacked};
use serde_json::Value;

const FIXTURE: &str = "zil-a";
const POOL: &str = "zila";

fn zuse(images: &Unpacked, verb: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zuse"));
    // the machine that the pool was stopped on
    command.args(["-o", "spl_hostid=0x12345678"]);
    command.arg(verb).arg("-d").arg(&images.dir).args(args).stdin(std::process::Stdio::null());
    command.env_remove("ZUSE_TUNABLES").env("TZ", "UTC").output().unwrap()
}

fn good(images: &Unpacked, verb: &str, args: &[&str]) -> Vec<u8> {
    let out = zuse(images, verb, args);
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()), "{verb} {args:?}");
    out.stdout
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn key() -> String {
    format!("-Lfile://{}/keys/pass.txt", fixtures::dir(FIXTURE).canonicalize().unwrap().display())
}

fn images_of(images: &Unpacked) -> Vec<Vec<u8>> {
    images.images().iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Kind, size, links, mode, and contents of each file by path: everything that does not depend on the time of the
/// replay.
fn listing(images: &Unpacked, dataset: &str, with_log: &[&str]) -> BTreeMap<String, Vec<Value>> {
    let target = format!("{dataset}:/");
    let key = key();
    let mut args = vec!["-R", "--json", "--sha256", &target, &key];
    args.extend(with_log);
    let lines = text(&good(images, "ls", &args));
    let line = |line: &str| -> (String, Vec<Value>) {
        let value: Value = serde_json::from_str(line).unwrap();
        let told = ["type", "size", "mode", "nlink", "uid", "gid", "sha256", "target"];
        (value["path"].to_string(), told.iter().map(|key| value[*key].clone()).collect())
    };
    lines.lines().map(line).collect()
}

#[test]
fn with_log_shows_what_a_replay_makes_and_writes_nothing() {
    let images = fixtures::unpack_private(FIXTURE);
    let before = images_of(&images);
    let datasets = ["zila/a", "zila/b", "zila/enc"];
    let shown = datasets.map(|dataset| listing(&images, dataset, &["--with-log"]));
    let plain = datasets.map(|dataset| listing(&images, dataset, &[]));
    let volume = good(&images, "cat", &["--with-log", "zila/vol"]);
    let target = tempfile::tempdir().unwrap();
    let copy = target.path().join("copy");
    // attributes that the host does not accept are reported on standard error
    let copied = zuse(&images, "cp", &["-rq", "--with-log", "zila/b:/", copy.to_str().unwrap()]);
    assert_eq!(copied.status.code(), Some(0), "{}", text(&copied.stderr));
    assert!(std::fs::read_dir(&copy).unwrap().count() > 0);
    assert!(before == images_of(&images), "the disks are as they were");
    let refused = zuse(&images, "cp", &["--with-log", "/etc/hostname", "zila/b:/"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));

    // a verb that writes really replays, dataset by dataset
    for ((dataset, shown), plain) in datasets.iter().zip(&shown).zip(&plain) {
        assert!(shown != plain, "{dataset}: its log holds something");
        let dir = format!("{dataset}:/made-afterwards");
        good(&images, "mkdir", &[&dir, &key()]);
        good(&images, "rm", &["-r", &dir, &key()]);
        assert_eq!(&listing(&images, dataset, &[]), shown, "{dataset}");
    }
    assert_eq!(volume.len() % 4096, 0);
    let truth = fixtures::manifest(FIXTURE)["zvols"]["zila/vol"]["size"].as_u64();
    assert_eq!(Some(volume.len() as u64), truth);
    let nothing = text(&good(&images, "zil", &["ls", "zila/b"]));
    assert_eq!(nothing, "", "it is replayed");
}

#[test]
fn what_is_moved_or_copied_in_a_pool_has_what_its_log_held() {
    let images = fixtures::unpack_private(FIXTURE);
    let (plain, shown) = (listing(&images, "zila/a", &[]), listing(&images, "zila/a", &["--with-log"]));
    // files that the log has changed since they were synced
    let told = |lines: &BTreeMap<String, Vec<Value>>, path: &String| lines.get(path).map(|line| line[6].clone());
    let is_file = |path: &&String| shown[*path][0] == "f" && !path.contains(['\\', '{']);
    let changed = |path: &&String| plain.contains_key(*path) && told(&plain, path) != told(&shown, path);
    let changed: Vec<String> = shown.keys().filter(is_file).filter(changed).cloned().collect();
    let path = changed.first().expect("the log changes a file").trim_matches('"').to_owned();
    let want = good(&images, "cat", &["--with-log", &format!("zila/a:/{path}")]);
    for dest in ["zila/a:/copied", "zila/b:/copied"] {
        let again = fixtures::unpack_private(FIXTURE);
        good(&again, "cp", &["-q", &format!("zila/a:/{path}"), dest]);
        assert!(good(&again, "cat", &[dest]) == want, "{path} to {dest}");
    }
    good(&images, "mv", &[&format!("zila/a:/{path}"), "zila/b:/moved"]);
    assert!(good(&images, "cat", &["zila/b:/moved"]) == want, "{path}");
}

#[test]
fn zil_ls_lists_what_zdb_lists() {
    let images = fixtures::unpack(FIXTURE);
    // for each dataset the numbers and types of its records, as OpenZFS's zdb saw them
    let mut theirs: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
    let mut dataset = String::new();
    for line in String::from_utf8_lossy(&fixtures::read_zst(&fixtures::dir(FIXTURE).join("zdb-zil.txt.zst"))).lines() {
        if let Some(rest) = line.strip_prefix("Dataset ") {
            dataset = rest.split(' ').next().unwrap().to_owned();
        } else if let Some((kind, rest)) = line.trim_start().split_once(' ').filter(|(kind, _)| kind.starts_with("TX_"))
            && let Some((_, seq)) = rest.split_once(", seq ")
        {
            theirs.entry(dataset.clone()).or_default().push((kind.to_owned(), seq.trim().parse().unwrap()));
        }
    }
    let lines = text(&good(&images, "zil", &["ls", "--json", POOL, &key()]));
    let mut ours: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
    let mut totals = 0;
    let mut paths = 0;
    for line in lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let dataset = line["dataset"].as_str().unwrap().to_owned();
        if let Some(records) = line["records"].as_u64() {
            assert_eq!(records, ours[&dataset].len() as u64);
            totals += 1;
            continue;
        }
        paths += u64::from(line["path"].is_string());
        let told = (line["type"].as_str().unwrap().to_owned(), line["seq"].as_u64().unwrap());
        ours.entry(dataset).or_default().push(told);
    }
    assert_eq!(totals, 4);
    assert!(paths > 100, "{paths} records with a path");
    for (dataset, records) in &ours {
        // zdb also lists records that the last synced txg holds; after the value of an attribute it prints no newline
        let plain = |(kind, _): &&(String, u64)| kind != "TX_SETSAXATTR";
        let (ours, all): (Vec<_>, Vec<_>) =
            (records.iter().filter(plain).collect(), theirs[dataset].iter().filter(plain).collect());
        assert!(ours.len() > 5 && all.ends_with(&ours), "{dataset}: {ours:?}\n{all:?}");
    }
    let human = text(&good(&images, "zil", &["ls", "zila/b"]));
    assert!(human.starts_with("zila/b:\n") && human.contains(" create "), "{human}");
    assert!(human.contains("path /") && human.lines().last().unwrap().contains(" records, "), "{human}");
    // without its key, there are records whose contents are unknown
    let sealed = text(&good(&images, "zil", &["ls", "--json", "zila/enc"]));
    assert!(sealed.lines().next().unwrap().contains("\"sealed\":true"), "{sealed}");
    assert_eq!(zuse(&images, "zil", &["rm", POOL]).status.code(), Some(2));
}
