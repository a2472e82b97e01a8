//! `zuse ls`, `cat`, `stat`, `cp`, `tar` and `verify` on real pools, as a user calls them: their output, and exit
//! status.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::process::{Command, Output};

use oracle::fixtures::{self, Unpacked};
use serde_json::Value;

fn zuse(images: &Unpacked, verb: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zuse"));
    command.arg(verb).arg("-d").arg(&images.dir).args(args).stdin(std::process::Stdio::null());
    command.env_remove("ZUSE_TUNABLES").env("TZ", "UTC").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn key(name: &str, file: &str) -> String {
    format!("-Lfile://{}/keys/{file}", fixtures::dir(name).canonicalize().unwrap().display())
}

/// The lines of a dataset's truth by path, without those of datasets mounted in it.
fn truth(name: &str, dataset: &str) -> BTreeMap<String, Value> {
    let manifest = fixtures::manifest(name);
    let names = manifest["list"].as_array().unwrap().iter().map(|l| l["name"].as_str().unwrap());
    let mounted: Vec<&str> = names.filter_map(|n| n.strip_prefix(dataset)?.strip_prefix('/')).collect();
    let inside = |p: &str| mounted.iter().any(|m| p == *m || p.strip_prefix(m).is_some_and(|r| r.starts_with('/')));
    let lines = fixtures::files(name).into_iter().filter(|l| l["dataset"] == dataset);
    let keyed = lines.map(|l| (l["path"].to_string(), l));
    keyed.filter(|(_, l)| !l["path"].as_str().is_some_and(inside)).collect()
}

fn listing_equals_the_truth(name: &str, dataset: &str, keys: &[String]) {
    let images = fixtures::unpack(name);
    let mut args = vec!["-lR", "--json", "--sha256", dataset];
    args.extend(keys.iter().map(String::as_str));
    let out = zuse(&images, "ls", &args);
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()), "{dataset}");
    let ours: BTreeMap<String, Value> = text(&out.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|line| (line["path"].to_string(), line))
        .collect();
    let theirs = truth(name, dataset);
    assert!(theirs.len() > 3, "{dataset}: nothing to compare");
    for (path, line) in &theirs {
        // the truth about the root of a snapshot is that of its control directory
        if path != "\".\"" || !dataset.contains('@') {
            assert_eq!(ours.get(path), Some(line), "{dataset}: {path}");
        }
    }
    // the paths that only our output has are the mount points of datasets below, which the truth shows as mounted
    let manifest = fixtures::manifest(name).to_string();
    for path in ours.keys().filter(|p| !theirs.contains_key(*p)) {
        assert!(manifest.contains(&format!("\"{dataset}/{}\"", path.trim_matches('"'))), "{dataset}: {path}");
    }
}

#[test]
fn a_listing_in_json_equals_the_kernels() {
    let enc = |file: &str| vec![key("enc-a", "raw.key"), key("enc-a", file)];
    listing_equals_the_truth("basic-a", "basica/plain", &[]);
    listing_equals_the_truth("names-a", "namesa/c-insensitive", &[]);
    listing_equals_the_truth("sparse-a", "sparsea/r512", &[]);
    listing_equals_the_truth("posix-a", "posixa/sa", &[]);
    listing_equals_the_truth("snaps-a", "snapsa/clone2@three", &[]);
    listing_equals_the_truth("enc-a", "enca/hex", &enc("pass2.txt"));
    listing_equals_the_truth("enc-a", "enca/pass@s1", &enc("pass.txt"));
}

#[test]
fn without_the_key_files_say_why_not() {
    let images = fixtures::unpack("enc-a");
    let out = zuse(&images, "ls", &["enca/pass"]);
    assert_eq!(out.status.code(), Some(1));
    let said = text(&out.stderr);
    assert!(said.contains("key not loaded") && said.contains("'enca/pass'"), "{said}");
    let wrong = zuse(&images, "cat", &[&key("enc-a", "raw.key"), "enca/pass:/x"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stderr).contains("none of the keys given fits 'enca/pass'"), "{}", text(&wrong.stderr));
}

#[test]
fn a_file_is_written_out_through_its_snapshot_directory_too() {
    let images = fixtures::unpack("raidz2-a");
    let readme = zuse(&images, "cat", &["praidz2a/fs@snap:/readme"]);
    assert_eq!((readme.status.code(), readme.stdout.len()), (Some(0), 500));
    let again = zuse(&images, "cat", &["praidz2a/fs:/.zfs/snapshot/snap/readme"]);
    assert_eq!(readme.stdout, again.stdout);
    let names = zuse(&images, "ls", &["praidz2a/fs:/.zfs/snapshot"]);
    assert_eq!(text(&names.stdout), "snap\n");
    let stat = text(&zuse(&images, "stat", &["praidz2a/fs:/readme"]).stdout);
    assert!(stat.contains("Size: 500\t") && stat.contains("regular file"), "{stat}");
}

#[test]
fn damage_is_passed_told_and_makes_exit_status_1() {
    let images = fixtures::unpack("lost-a");
    let verify = zuse(&images, "verify", &["-j", "losta"]);
    assert_eq!(verify.status.code(), Some(1));
    let summary: Value = serde_json::from_slice(&verify.stdout).unwrap();
    assert_eq!((&summary["sound"], &summary["lost"]), (&Value::Bool(false), &Value::from(2)));
    assert_eq!(summary["damaged"].as_object().unwrap().keys().collect::<Vec<_>>(), ["losta/fs:/victim"]);

    let temp = tempfile::tempdir().unwrap();
    let to = temp.path().join("out");
    let cp = zuse(&images, "cp", &["-a", "losta/fs:/", to.to_str().unwrap()]);
    assert_eq!(cp.status.code(), Some(1));
    assert!(text(&cp.stderr).contains("lost: victim: bytes 0-131071: "), "{}", text(&cp.stderr));
    assert_eq!(std::fs::metadata(to.join("victim")).unwrap().len(), 500_000);

    let tar = zuse(&images, "tar", &["losta/fs"]);
    assert_eq!(tar.status.code(), Some(1));
    assert!(tar::Archive::new(tar.stdout.as_slice()).entries().unwrap().count() > 20);

    let cat = zuse(&images, "cat", &["losta/fs:/victim"]);
    assert_eq!((cat.status.code(), cat.stdout.len()), (Some(1), 0));
}

#[test]
fn a_degraded_pool_verifies_with_status_0_and_says_what_redundancy_gave() {
    let images = fixtures::unpack("degraidz2-a");
    let out = zuse(&images, "verify", &["badzba"]);
    let said = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{said}{}", text(&out.stderr));
    assert!(said.contains("made good by redundancy") && said.contains("missing"), "{said}");
}

#[test]
fn bad_usage_is_status_2_and_what_is_not_there_is_1() {
    let images = fixtures::unpack("lmz-a");
    for (args, status, words) in [
        (&["ls"][..], 2, "missing target"),
        (&["ls", "--frob", "x"], 2, "invalid option"),
        (&["ls", "/x"], 2, "is no dataset"),
        (&["cp", "lmza"], 2, "missing source or destination"),
        (&["verify", "a", "b"], 2, "too many arguments"),
        (&["ls", "nopool"], 1, "no such pool"),
        (&["ls", "lmza/nofs"], 1, "dataset does not exist"),
        (&["cat", "lmza:/nofile"], 1, "No such file or directory"),
    ] {
        let out = zuse(&images, args[0], &args[1..]);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(status), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
}

#[test]
fn kstat_shows_the_cache_and_the_logs_of_space_changes() {
    let images = fixtures::unpack("basic-a");
    let pool = fixtures::manifest("basic-a")["pool"].as_str().unwrap().to_owned();
    let out = zuse(&images, "kstat", &[&pool]);
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
    let said = text(&out.stdout);
    let figure = |name: &str| -> u64 {
        let line = said.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[1], "4", "{line}");
        words[2].parse().unwrap()
    };
    assert!(figure("misses") > 0 && figure("size") > 0 && figure("c_max") > figure("size"), "{said}");
    let json: Value = serde_json::from_slice(&zuse(&images, "kstat", &["-j", &pool]).stdout).unwrap();
    let logs = &json[&pool]["log_spacemaps"];
    for name in ["logs", "sus_nblocks", "oldest_txg", "sus_nmetaslabs", "unflushed_allocs", "unflushed_frees"] {
        assert_eq!(logs[name], figure(name), "{name}");
    }
    let messages = json[&pool]["dbgmsg"].as_array().unwrap();
    let opened = |message: &Value| message["message"].as_str().unwrap().starts_with("zuse::open opened pool=");
    assert!(messages.iter().any(opened), "{messages:?}");
    // the figures of zdb for this pool
    assert!(figure("logs") > 0 && figure("sus_nblocks") >= figure("logs") && figure("unflushed_allocs") > 0, "{said}");
}
