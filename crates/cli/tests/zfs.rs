//! `zfs` on every fixture: the output of the kernel module for the same images.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;

use oracle::fixtures;
use serde_json::Value;
use support::{Session, cells};

/// Fixtures whose truth was recorded after their intent log had been replayed.
const REPLAYED: [&str; 3] = ["logsm-a", "zil-a", "zilslog-a"];
/// Encryption roots of `enc-a`, and the files with their keys.
const KEYS: [(&str, &str); 3] = [("enca/hex", "pass2.txt"), ("enca/pass", "pass.txt"), ("enca/raw", "raw.key")];

/// A fixture's pool, its keys loaded.
fn unlocked(fixture: &str) -> Session {
    let session = Session::imported(fixture);
    for (root, key) in KEYS.iter().filter(|_| fixture == "enc-a") {
        let location = format!("file://{}", session.file("keys").join(key).canonicalize().unwrap().display());
        session.ok(&["zfs", "load-key", "-L", &location, root]);
    }
    session
}

fn all() -> Vec<String> {
    fixtures::names().into_iter().filter(|f| !REPLAYED.contains(&f.as_str())).collect()
}

#[test]
fn list_is_that_of_openzfs() {
    for fixture in all() {
        let session = unlocked(&fixture);
        let truth = fixtures::manifest(&fixture);
        let truth = truth["list"].as_array().unwrap();
        let columns: Vec<&String> = truth[0].as_object().unwrap().keys().collect();
        let wanted: Vec<&str> = columns.iter().map(|c| c.as_str()).collect();
        let text = session.ok(&["zfs", "list", "-Hp", "-t", "all", "-r", "-o", &wanted.join(","), &session.pool()]);
        let ours = cells(&text);
        assert_eq!(ours.len(), truth.len(), "{fixture}");
        for (row, truth) in ours.iter().zip(truth) {
            for (value, name) in row.iter().zip(&wanted) {
                // nothing is mounted here, and the space of special devices counts
                let artefact = *name == "mounted" || (*name == "available" && fixture == "special-a");
                assert!(artefact || truth[*name] == **value, "{fixture}: {}: {name}: {value}", truth["name"]);
            }
        }
    }
}

#[test]
fn properties_are_those_of_openzfs() {
    for fixture in all() {
        let session = unlocked(&fixture);
        let fields = "name,property,value,source,received";
        let text = session.ok(&["zfs", "get", "-Hpr", "-t", "all", "-o", fields, "all", &session.pool()]);
        let rows = cells(&text);
        let ours: BTreeMap<(&str, &str), &[&str]> = rows.iter().map(|row| ((row[0], row[1]), &row[2..])).collect();
        let truth = fixtures::manifest(&fixture);
        for (name, properties) in truth["properties"].as_object().unwrap() {
            for (property, truth) in properties.as_object().unwrap().iter().filter(|(p, _)| *p != "readonly") {
                let ours = ours.get(&(name.as_str(), property.as_str()));
                let truth: Vec<&str> = truth.as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
                assert_eq!(ours, Some(&truth.as_slice()), "{fixture}: {name}: {property}");
            }
        }
    }
}

#[test]
fn space_and_holds_are_those_of_openzfs() {
    let mut seen = 0;
    for fixture in all() {
        let session = unlocked(&fixture);
        let truth = fixtures::manifest(&fixture);
        for (name, space) in truth["space"].as_object().unwrap() {
            for command in ["userspace", "groupspace", "projectspace"] {
                let flags = if command == "projectspace" { "-Hp" } else { "-Hnp" };
                let truth: Vec<Vec<&str>> = match space[command].as_array() {
                    Some(rows) => rows
                        .iter()
                        .map(|row| row.as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect())
                        .collect(),
                    None => continue,
                };
                if truth.first().is_some_and(|row: &Vec<&str>| row[0].starts_with("invalid option")) {
                    continue;
                }
                let text = session.ok(&["zfs", command, flags, name]);
                assert_eq!(cells(&text), truth, "{fixture}: {command} {name}");
                seen += truth.len();
            }
        }
        let snapshots: Vec<&str> =
            truth["list"].as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap()).collect();
        for hold in truth["holds"].as_array().unwrap() {
            let hold: Vec<&str> = hold.as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
            assert!(snapshots.contains(&hold[0]));
            let text = session.ok(&["zfs", "holds", "-H", hold[0]]);
            assert!(cells(&text).contains(&hold), "{fixture}: {hold:?}: {text}");
        }
    }
    assert!(seen > 500, "{seen}");
}

/// The identity of a file, independent of its path: inode and birth.
type Identity = (u64, String);

/// The files of a dataset: path to identity and time of change. Names that are not text are left out, and the root,
/// which is a mount point where the truth was recorded.
fn files(fixture: &str, dataset: &str) -> BTreeMap<String, (Identity, String)> {
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let of = |f: &Value| {
        let path = f["path"].as_str().filter(|path| *path != ".")?.to_owned();
        Some((path, ((f["ino"].as_u64().unwrap(), text(&f["btime"])), text(&f["ctime"]))))
    };
    fixtures::files(fixture).iter().filter(|f| f["dataset"] == dataset).filter_map(of).collect()
}

#[test]
fn diff_tells_what_became_of_every_file() {
    for (fixture, from, to) in [
        ("enc-a", "enca/pass@s1", "enca/pass@s2"),
        ("snaps-a", "snapsa/clone2@one", "snapsa/clone2@two"),
        ("snaps-a", "snapsa/clone2@two", "snapsa/clone2@three"),
    ] {
        let session = unlocked(fixture);
        let text = session.ok(&["zfs", "diff", "-Hh", from, to]);
        let (old, new) = (files(fixture, from), files(fixture, to));
        let prefix = format!("/m/truth/{}/", from.split('@').next().unwrap());
        let strip = |path: &str| path.strip_prefix(&prefix).unwrap_or_else(|| panic!("{path}")).to_owned();
        let mut told: BTreeMap<Identity, &str> = BTreeMap::new();
        for row in cells(&text) {
            let path = strip(row[1]);
            if path.is_empty() || row.concat().contains(char::REPLACEMENT_CHARACTER) {
                continue;
            }
            let side = if row[0] == "+" { &new } else { &old };
            let (identity, _) = side.get(&path).or(new.get(&path)).unwrap_or_else(|| panic!("{fixture}: {row:?}"));
            if row[0] == "R" {
                assert_eq!(new.get(&strip(row[2])).map(|f| &f.0), Some(identity), "{fixture}: {row:?}");
            }
            told.insert(identity.clone(), row[0]);
        }
        let by_identity = |files: &BTreeMap<String, (Identity, String)>| -> BTreeMap<Identity, String> {
            files.values().cloned().collect()
        };
        let (before, after) = (by_identity(&old), by_identity(&new));
        for (identity, changed) in &before {
            match after.get(identity) {
                None => assert_eq!(told.get(identity), Some(&"-"), "{fixture}: {identity:?}"),
                Some(later) if later == changed => assert_eq!(told.get(identity), None, "{fixture}: {identity:?}"),
                Some(_) => assert!(matches!(told.get(identity), Some(&"M" | &"R")), "{fixture}: {identity:?}"),
            }
        }
        for identity in after.keys().filter(|identity| !before.contains_key(identity)) {
            assert_eq!(told.get(identity), Some(&"+"), "{fixture}: {identity:?}");
        }
        assert!(told.len() > 3, "{fixture}: {text}");
    }
}

#[test]
fn a_key_is_checked_and_kept() {
    let session = Session::imported("enc-a");
    let key = session.file("keys/pass.txt").canonicalize().unwrap();
    let location = format!("file://{}", key.display());
    session.fails(&["zfs", "userspace", "enca/pass"], 1, "its encryption key is not loaded");
    session.fails(&["zfs", "load-key", "-L", &location, "enca/hex"], 255, "Incorrect key provided for 'enca/hex'.");
    session.fails(&["zfs", "load-key", "-L", &location, "enca/raw"], 255, "Raw key too short (expected 32).");
    session.fails(&["zfs", "load-key", "enca"], 255, "'enca' is not encrypted.");
    session.fails(&["zfs", "load-key", "enca/pass/child"], 255, "encryption root of 'enca/pass/child' (enca/pass)");
    let noop = session.ok(&["zfs", "load-key", "-n", "-L", &location, "enca/pass"]);
    assert_eq!(noop, "1 / 1 key(s) successfully verified\n");
    assert_eq!(session.ok(&["zfs", "get", "-Ho", "value", "keystatus", "enca/pass"]), "unavailable\n");

    let typed = session.feed(&["zfs", "load-key", "-L", "prompt", "enca/pass"], &std::fs::read(&key).unwrap());
    assert!(typed.code == 0 && typed.err.is_empty(), "{typed:?}");
    assert_eq!(session.ok(&["zfs", "get", "-Ho", "value", "keystatus", "enca/pass"]), "available\n");
    session.ok(&["zfs", "unload-key", "enca/pass"]);

    session.ok(&["zfs", "load-key", "-L", &location, "enca/pass"]);
    assert_eq!(session.ok(&["zfs", "get", "-Ho", "value", "keystatus", "enca/pass"]), "available\n");
    session.fails(&["zfs", "load-key", "-L", &location, "enca/pass"], 255, "Key already loaded");
    session.ok(&["zfs", "unload-key", "enca/pass"]);
    session.fails(&["zfs", "unload-key", "enca/pass"], 255, "Key already unloaded");
    assert_eq!(session.ok(&["zfs", "get", "-Ho", "value", "keystatus", "enca/pass"]), "unavailable\n");
}

#[test]
fn misuse_ends_with_2_and_failure_with_1() {
    let session = Session::imported("basic-a");
    session.fails(&["zfs"], 2, "missing command\nusage: zfs command args ...");
    session.fails(&["zfs", "nonsense"], 2, "unrecognized command 'nonsense'");
    session.fails(&["zfs", "list", "-x"], 2, "invalid option 'x'");
    session.fails(&["zfs", "list", "nosuch"], 1, "cannot open 'nosuch': dataset does not exist");
    session.fails(&["zfs", "list", "basica/no"], 1, "cannot open 'basica/no': dataset does not exist");
    session.fails(&["zfs", "get", "nosuch", "basica"], 2, "bad property list: invalid property 'nosuch'");
    session.fails(&["zfs", "get"], 2, "missing property argument");
    assert_eq!(session.ok(&["zfs", "get", "-Ho", "value,source", "written@nosuch", "basica"]), "-\t-\n");
    session.fails(&["zfs", "create", "basica/new"], 1, "pool is read-only");
    assert_eq!(session.run(&["zfs", "--help"]).code, 0);
}

#[test]
fn json_has_the_shape_of_openzfs() {
    let session = Session::imported("basic-a");
    let list = session.json(&["zfs", "list", "-j", "-r", "basica"]);
    assert_eq!(list["output_version"]["command"], "zfs list");
    assert_eq!(list["datasets"]["basica"]["type"], "FILESYSTEM");
    assert_eq!(list["datasets"]["basica"]["pool"], "basica");
    assert_eq!(list["datasets"]["basica"]["properties"]["used"]["source"]["type"], "NONE");
    let get = session.json(&["zfs", "get", "-j", "--json-int", "used,compression", "basica"]);
    assert!(get["datasets"]["basica"]["properties"]["used"]["value"].is_u64(), "{get:#}");
    assert_eq!(get["datasets"]["basica"]["createtxg"], 1);
}
