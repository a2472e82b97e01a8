//! `zpool` on every fixture: the output of the kernel module for the same images.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;

use oracle::fixtures;
use serde_json::Value;
use support::{Session, cells, squeeze};

/// Pools whose truth was recorded after their intent log had been replayed, or while they were at work.
const CHANGED: [&str; 4] = ["logsm-a", "zil-a", "zilslog-a", "raidzexp-b"];
/// Fixtures whose truth contains errors that the import itself met.
const DAMAGED: [&str; 3] = ["degmirror-a", "degraidz1-b", "lost-a"];
/// Properties that differ from the truth: its import counted no space, and the module did not know the last one.
const DIFFERENT: [&str; 8] = [
    "allocated",
    "free",
    "capacity",
    "fragmentation",
    "load_guid",
    "cachefile",
    "altroot",
    "feature@draid_failure_domains",
];

#[test]
fn history_is_the_text_of_openzfs() {
    let mut seen = 0;
    for fixture in fixtures::names() {
        let session = Session::imported(&fixture);
        if !session.file("history.txt").exists() || CHANGED.contains(&fixture.as_str()) {
            continue;
        }
        let text = session.ok(&["zpool", "history", "-il", &session.pool()]);
        let ours: Vec<&str> = text.trim_end().lines().collect();
        let truth = fixtures::text(&fixture, "history.txt");
        let truth: Vec<&str> = truth.trim_end().lines().collect();
        // the truth was written just before the export
        let (rest, last) = ours.split_at(truth.len());
        assert_eq!(rest, truth, "{fixture}");
        assert!(last.iter().all(|line| line.contains(" zpool export ")), "{fixture}: {last:?}");
        seen += 1;
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn properties_are_those_of_openzfs() {
    for fixture in fixtures::names().iter().filter(|f| !CHANGED.contains(&f.as_str())) {
        let session = Session::imported(fixture);
        let text = session.ok(&["zpool", "get", "-Hp", "-o", "property,value", "all", &session.pool()]);
        let ours: BTreeMap<&str, &str> = cells(&text).iter().map(|row| (row[0], row[1])).collect();
        let truth = session.truth();
        for (name, value) in truth["zpool_get"].as_object().unwrap() {
            let artefact = DIFFERENT.contains(&name.as_str()) || (name == "readonly" && value == "off");
            assert!(artefact || ours.get(name.as_str()) == value.as_str().as_ref(), "{fixture}: {name}: {value}");
        }
        for name in ours.keys().filter(|name| !DIFFERENT.contains(name)) {
            assert!(truth["zpool_get"].get(name).is_some(), "{fixture}: {name}");
        }
    }
}

#[test]
fn status_and_list_are_those_of_openzfs() {
    let skipped = |f: &&String| !CHANGED.contains(&f.as_str()) && !DAMAGED.contains(&f.as_str());
    for fixture in fixtures::names().iter().filter(skipped) {
        let session = Session::imported(fixture);
        let truth = session.truth();
        let status = session.ok(&["zpool", "status", "-s", "-D", "-p", "-P", &session.pool()]);
        assert_eq!(squeeze(&status), squeeze(truth["zpool_status"].as_str().unwrap()), "{fixture}");

        let list = session.ok(&["zpool", "list", "-v", "-p", "-P", &session.pool()]);
        let without_space = |text: &str| -> Vec<String> {
            let blank = |line: &String| {
                let mut words: Vec<&str> = line.split(' ').collect();
                for n in [2, 3, 6, 7, 10] {
                    words.get_mut(n).into_iter().for_each(|w| *w = "");
                }
                words.join(" ")
            };
            let line = |l: &String| {
                if l.starts_with([' ', '\t']) { format!("  {}", blank(&l.trim().into())) } else { blank(l) }
            };
            squeeze(text).iter().map(line).collect()
        };
        assert_eq!(without_space(&list), without_space(truth["zpool_list_v"].as_str().unwrap()), "{fixture}");
    }
}

#[test]
fn pools_with_missing_devices_are_shown_as_openzfs_shows_them() {
    let mut seen = 0;
    for fixture in fixtures::names() {
        let session = Session::on(&fixture);
        if !session.file("kernel-says/import.txt").exists() {
            continue;
        }
        let truth = fixtures::text(&fixture, "kernel-says/import.txt");
        let truth = truth.split("## import").next().unwrap();
        let listing = session.ok(&["zpool", "import", "-d", &session.images()]);
        assert_eq!(squeeze(&listing), squeeze(truth), "{fixture}");
        seen += 1;
    }
    assert!(seen > 5, "{seen}");
}

#[test]
fn an_import_is_remembered_until_the_export() {
    let session = Session::on("basic-a");
    let images = session.images();
    assert_eq!(session.ok(&["zpool", "list"]), "no pools available\n");
    session.fails(&["zpool", "import", "-d", &images, "-o", "readonly=on", "other"], 1, "no such pool available");
    session.ok(&["zpool", "import", "-d", &images, "-o", "readonly=on", "basica"]);
    session.fails(&["zpool", "import", "-d", &images, "-o", "readonly=on", "basica"], 1, "already");
    assert_eq!(session.ok(&["zpool", "list", "-Ho", "name,health"]), "basica\tONLINE\n");
    session.ok(&["zpool", "export", "basica"]);
    session.fails(&["zpool", "export", "basica"], 1, "cannot open 'basica': no such pool");
}

#[test]
fn a_pool_can_be_given_another_name() {
    let session = Session::on("basic-a");
    let (images, guid) = (session.images(), fixtures::manifest("basic-a")["zpool_get"]["guid"].clone());
    session.ok(&["zpool", "import", "-d", &images, "-o", "readonly=on", "-R", "/alt", guid.as_str().unwrap(), "new"]);
    assert_eq!(session.ok(&["zpool", "list", "-Ho", "name,altroot"]), "new\t/alt\n");
    let listed = session.ok(&["zfs", "list", "-Hr", "-o", "name,mountpoint", "new"]);
    for row in cells(&listed) {
        assert!(row[0].starts_with("new") && row[1].starts_with("/alt/"), "{row:?}");
    }
}

#[test]
fn a_pool_goes_back_to_its_checkpoint() {
    let session = Session::on("checkpoint-a");
    let images = session.images();
    let rewind = ["zpool", "import", "-d", &images, "-o", "readonly=on", "--rewind-to-checkpoint", "ckpa"];
    session.ok(&rewind);
    let truth = fixtures::json("checkpoint-a", "rewound/manifest.json");
    let names: Vec<&str> = truth["list"].as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap()).collect();
    assert_eq!(session.ok(&["zfs", "list", "-Hr", "-t", "all", "-o", "name"]).lines().collect::<Vec<_>>(), names);
    session.ok(&["zpool", "export", "-a"]);
    session.ok(&["zpool", "import", "-d", &images, "-o", "readonly=on", "ckpa"]);
    assert!(session.ok(&["zfs", "list", "-H"]).contains("ckpa/newer"));
}

#[test]
fn missing_logs_need_m() {
    let session = Session::on("zilslog-a");
    let disk = format!("{}/disk0.img", session.images());
    let run = session.run(&["zpool", "import", "-d", &disk, "-o", "readonly=on", "-f", "zilsloga"]);
    assert!(run.code == 1 && run.out.contains("use '-m' to import the pool anyway:\n\t    1"), "{run:?}");
    session.ok(&["zpool", "import", "-d", &disk, "-o", "readonly=on", "-fm", "zilsloga"]);
    assert!(session.ok(&["zpool", "status", "-x"]).contains("UNAVAIL"));
}

#[test]
fn misuse_ends_with_2_and_failure_with_1() {
    let session = Session::imported("basic-a");
    session.fails(&["zpool"], 2, "missing command\nusage: zpool command args ...");
    session.fails(&["zpool", "frobnicate"], 2, "unrecognized command 'frobnicate'");
    session.fails(&["zpool", "list", "-y"], 2, "invalid option 'y'");
    session.fails(&["zpool", "list", "-o"], 2, "missing argument for 'o' option");
    session.fails(&["zpool", "list", "-o", "nosuch"], 2, "bad property list: invalid property 'nosuch'");
    session.fails(&["zpool", "get"], 2, "missing property");
    session.fails(&["zpool", "status", "nosuch"], 1, "cannot open 'nosuch': no such pool");
    session.fails(&["zpool", "history", "nosuch"], 1, "cannot open 'nosuch': no such pool");
    session.fails(&["zpool", "split", "basica", "b"], 1, "is not in this version of Zuse");
    session.fails(&["zpool", "scrub", "-y", "basica"], 2, "invalid option 'y'");
}

#[test]
fn json_has_the_shape_of_openzfs() {
    let session = Session::imported("aux-a");
    let pool = session.pool();
    let list = session.json(&["zpool", "list", "-j", "-v"]);
    assert_eq!(list["output_version"]["command"], "zpool list");
    assert_eq!(list["pools"][&pool]["properties"]["health"]["value"], "ONLINE");
    assert_eq!(list["pools"][&pool]["state"], "ONLINE");
    let status = session.json(&["zpool", "status", "-j", "--json-int"]);
    assert!(status["pools"][&pool]["vdevs"][&pool]["vdevs"].is_object(), "{status:#}");
    assert!(status["pools"][&pool]["pool_guid"].is_u64(), "{status:#}");
    let flat = session.json(&["zpool", "status", "-j", "--json-flat-vdevs", "--json-pool-key-guid"]);
    let guid = status["pools"][&pool]["pool_guid"].to_string();
    let disk = format!("{}/disk0.img", session.images());
    assert_eq!(flat["pools"][&guid]["vdevs"][&disk]["vdev_type"], "file", "{flat:#}");
    let get = session.json(&["zpool", "get", "-j", "size,feature@async_destroy", &pool]);
    assert_eq!(get["pools"][&pool]["properties"]["feature@async_destroy"]["value"], "enabled");
    assert_eq!(get["pools"][&pool]["properties"]["size"]["source"]["type"], "NONE");
    assert!(matches!(get["pools"][&pool]["pool_guid"], Value::String(_)));
}

#[test]
fn all_properties_stand_in_columns() {
    let session = Session::imported("basic-a");
    let text = session.ok(&["zpool", "get", "all", &session.pool()]);
    let mut lines = text.lines();
    let header = lines.next().unwrap();
    // as wide as the longest feature name
    assert_eq!(
        header.find("VALUE").unwrap() - header.find("PROPERTY").unwrap(),
        "feature@multi_vdev_crash_dump".len() + 2
    );
    let value = header.find("VALUE").unwrap();
    for line in lines {
        assert!(line.get(value - 2..value) == Some("  ") && !line[value..].starts_with(' '), "{line}");
    }
}
