//! `zfs receive` and `zfs send` option by option, with streams of the OpenZFS kernel module.
#![allow(clippy::unwrap_used)]

#[path = "support/lab.rs"]
mod lab;
mod support;

use std::collections::BTreeSet;

use lab::{Lab, receive_all, records, streams};

/// The streams of `stbasic-a` by name, without ending.
fn basic(name: &str) -> Vec<u8> {
    streams("stbasic-a").remove(&format!("{name}.zstream")).unwrap()
}

/// Runs a command that must fail with a usage error.
fn misused(lab: &Lab, line: &str, says: &str) {
    let ran = lab.run(line, b"");
    assert!(ran.code == 2 && ran.err.contains(says), "{line}: {} {}", ran.code, ran.err);
}

#[test]
fn names_of_what_is_received() {
    let lab = Lab::new("tank");
    let full = basic("full");
    let dry = lab.ok("zfs receive -n -v tank/x", &full);
    assert_eq!(String::from_utf8(dry).unwrap(), "would receive full stream of srca/fs@1 into tank/x@1\n");
    lab.fails("zfs list tank/x", b"", "dataset does not exist");
    let told = String::from_utf8(lab.ok("zfs receive -v -d tank", &full)).unwrap();
    assert!(told.starts_with("receiving full stream of srca/fs@1 into tank/fs@1\nreceived 1.09M stream in "), "{told}");
    assert!(told.ends_with("/sec)\n"), "{told}");
    lab.ok("zfs create tank/e", b"");
    lab.ok("zfs receive -e tank/e", &full);
    lab.ok("zfs receive -M -u tank/named@other", &full);
    let names = lab.text("zfs list -H -r -t all -o name tank");
    let wanted =
        ["tank", "tank/e", "tank/e/fs", "tank/e/fs@1", "tank/fs", "tank/fs@1", "tank/named", "tank/named@other"];
    let mut found: Vec<&str> = names.lines().collect();
    found.sort_unstable();
    assert_eq!(found, wanted);
    assert_eq!(lab.text("zfs get -H -o value mounted tank/named"), "no\n");
    lab.fails("zfs receive -d tank/no", &full, "cannot receive: specified fs (tank/no) does not exist");
    lab.fails("zfs receive -e tank/e/fs@1", &full, "cannot receive: invalid argument - snapshot not allowed with -e");
    lab.fails("zfs receive nopool/a", &full, "cannot open 'nopool': no such pool");
    misused(&lab, "zfs receive -d -e tank", "invalid option combination: -d and -e are mutually exclusive");
    misused(&lab, "zfs receive", "missing snapshot argument");
    misused(&lab, "zfs receive tank/a tank/b", "too many arguments");
    misused(&lab, "zfs receive -A -n tank/a", "invalid option");
}

#[test]
fn what_changed_since_needs_force() {
    let lab = Lab::new("tank");
    lab.ok("zfs receive tank/a", &basic("full"));
    let (increment, package) = (basic("incr-1-2"), basic("incrI-2-4"));
    lab.ok("zfs snapshot tank/a@mine", b"");
    let file = lab.dir.path().join("file");
    std::fs::write(&file, b"new").unwrap();
    lab.ok(&format!("cp {} tank/a:/new", file.display()), b"");
    lab.fails(
        "zfs receive tank/a",
        &increment,
        "cannot receive incremental stream: destination tank/a has been modified\nsince most recent snapshot",
    );
    lab.ok("zfs receive -F tank/a", &increment);
    assert_eq!(lab.text("zfs list -H -r -t snapshot -o name tank/a"), "tank/a@1\ntank/a@2\n");
    // snapshots of a package that exist already are skipped
    lab.ok("zfs receive tank/a", &package);
    let again = lab.ok("zfs receive -v tank/a", &package);
    let again = String::from_utf8(again).unwrap();
    assert!(again.contains("snap tank/a@3 already exists; ignoring\n"), "{again}");
    lab.fails("zfs receive tank/b", &increment, "destination 'tank/b' does not exist");
    lab.ok("zfs receive tank/b", &basic("empty-full"));
    let says = "cannot receive incremental stream: most recent snapshot of tank/b does not\nmatch incremental source";
    lab.fails("zfs receive tank/b", &increment, says);
    lab.fails("zfs receive -F tank/a", &basic("full"), "destination has snapshots (eg. tank/a@1)");
    lab.ok("zfs create tank/c", b"");
    lab.fails("zfs receive tank/c", &basic("full"), "destination 'tank/c' exists\nmust specify -F to overwrite it");
    lab.ok("zfs receive -F tank/c", &basic("full"));
    lab.judge("tank");
}

#[test]
fn properties_and_holds_that_come_along() {
    let lab = Lab::new("tank");
    lab.ok("zfs receive tank/a", &basic("full-ph"));
    lab.ok("zfs receive -h tank/b", &basic("full-ph"));
    let holds = lab.text("zfs holds -H tank/a@2");
    assert!(holds.starts_with("tank/a@2\t"), "{holds}");
    assert_eq!(lab.text("zfs holds -H tank/b@2"), "");
    let sources = "zfs get -H -s received -o property,value all";
    let came = lab.text(&format!("{sources} tank/a"));
    let (name, value) = came.lines().next().unwrap().split_once('\t').unwrap();
    let get = |dataset: &str, what: &str| lab.text(&format!("zfs get -H -o {what} {name} {dataset}"));
    // -x: it was received, and is not in force; a value on the command line overrides the received one
    lab.ok(&format!("zfs receive -x {name} tank/x"), &basic("full-p"));
    assert_ne!(get("tank/x", "source"), "received\n");
    assert_eq!(get("tank/x", "received"), format!("{value}\n"));
    lab.ok("zfs receive -o test:a=b -o atime=on tank/o", &basic("full-p"));
    let said = lab.text("zfs get -H -s local -o property,value all tank/o");
    assert!(said.contains("test:a\tb\n") && said.contains("atime\ton\n"), "{said}");
    misused(&lab, "zfs receive -o test:a=b -x test:a tank/p", "property 'test:a' specified multiple times");
    misused(&lab, "zfs receive -x a=b tank/p", "invalid property name: '='");
    lab.fails("zfs receive -o used=1 tank/p", &basic("full"), "cannot receive: invalid property 'used'");
    // -b sends the received values, not those set here since
    lab.ok("zfs set test:mine=1 tank/a", b"");
    lab.ok("zfs receive tank/sent-p", &lab.ok("zfs send -p tank/a@2", b""));
    lab.ok("zfs receive tank/sent-b", &lab.ok("zfs send -b tank/a@2", b""));
    assert_eq!(lab.text("zfs get -H -o value test:mine tank/sent-p"), "1\n");
    assert_eq!(lab.text("zfs get -H -o value test:mine tank/sent-b"), "-\n");
    let sorted = |text: String| text.lines().map(str::to_owned).collect::<BTreeSet<String>>();
    assert_eq!(sorted(lab.text(&format!("{sources} tank/sent-b"))), sorted(came));
    // -h sends holds; each has the time at which it was received, which may be a minute later
    lab.ok("zfs receive tank/sent-h", &lab.ok("zfs send -h tank/a@2", b""));
    let tags = |text: &str| text.lines().map(|line| line.split('\t').nth(1).unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(tags(&lab.text("zfs holds -H tank/sent-h@2")), tags(&holds));
}

#[test]
fn interrupted_receives() {
    let lab = Lab::new("recva");
    let all = streams("stresume-a");
    let cut = &all["full-truncated.zstream"];
    // without -s nothing is kept
    lab.fails("zfs receive recva/gone", cut, "cannot receive new filesystem stream: incomplete stream");
    lab.fails("zfs list recva/gone", b"", "dataset does not exist");
    let ran = lab.run("zfs receive -s recva/r", cut);
    let told = std::fs::read_to_string(oracle::fixtures::dir("stresume-a").join("interrupted-1.txt")).unwrap();
    let (says, _) = told.split_once("send -t 1-").unwrap();
    assert!(ran.code == 1 && ran.err.starts_with(says), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), told.lines().count(), "{}", ran.err);
    let token = lab.text("zfs get -H -o value receive_resume_token recva/r").trim_end().to_owned();
    let json = lab.text(&format!("zstream token -j {token}"));
    assert!(json.contains("\"toname\":\"srca/r@1\""), "{json}");
    lab.fails(
        &format!("zfs send -t {token}"),
        b"",
        "cannot resume send: 'srca/r@1' used in the initial send no longer exists",
    );
    lab.fails("zfs send -t 1-2-3", b"", "cannot resume send: ");
    lab.fails(
        "zfs receive -s recva/r",
        &all["incr.zstream"],
        "destination recva/r contains partially-complete state from \"zfs receive -s\".",
    );
    // the received part can be sent as it is, to be resumed elsewhere
    let saved = lab.ok("zfs send -S recva/r", b"");
    lab.fails("zfs receive -s recva/copy", &saved, "Partially received snapshot is saved.");
    misused(&lab, "zfs send -S recva/r@1", "saved send must specify the dataset with partially-received state");
    lab.ok("zfs receive -A recva/r", b"");
    lab.ok("zfs receive -A recva/copy", b"");
    assert_eq!(lab.text("zfs list -H -r -o name recva"), "recva\n");
    lab.fails("zfs receive -A recva", b"", "'recva' does not have any resumable receive state to abort");
}

#[test]
fn packages_of_all_kinds() {
    let lab = receive_all("strepl-a");
    lab.add("other");
    let heads = |top: &str| lab.text(&format!("zfs list -H -r -o name {top}"));
    let all = heads("recva/R");
    let below = all.lines().nth(1).unwrap().to_owned();
    // -X leaves out a dataset, with everything below it
    let package = lab.ok(&format!("zfs send -R -X {below} recva/R@r4"), b"");
    lab.ok("zfs receive -u -d other", &package);
    let received = heads("other");
    let left_out = below.replacen("recva", "other", 1);
    assert!(received.contains("other/R\n") && !received.contains(&left_out), "{received}");
    lab.fails(
        &format!("zfs send -X {below} recva/R@r4"),
        b"",
        "Cannot specify dataset exclusion (-X) on a non-recursive send.",
    );
    misused(&lab, "zfs send -s recva/R@r4", "skip-missing flag can only be used in conjunction with replicate");
    misused(&lab, "zfs send", "missing snapshot argument");
    // -s skips datasets without such a snapshot
    lab.ok("zfs snapshot recva/R@single", b"");
    lab.fails("zfs send -R recva/R@single", b"", "does not exist");
    let single = lab.ok("zfs send -R -s recva/R@single", b"");
    lab.ok("zfs receive -u other/single", &single);
    // -I sends the snapshots between, -i skips them
    let snaps = lab.text("zfs list -H -t snapshot -o name recva/R");
    let names: Vec<&str> = snaps.lines().filter_map(|name| name.split('@').nth(1)).collect();
    let (first, last) = (names[0], names[names.len() - 1]);
    lab.ok("zfs receive -u other/i", &lab.ok(&format!("zfs send recva/R@{first}"), b""));
    lab.ok("zfs receive -u other/i", &lab.ok(&format!("zfs send -I @{first} recva/R@{last}"), b""));
    assert_eq!(lab.text("zfs list -H -t snapshot -o name other/i").lines().count(), names.len());
    lab.ok("zfs receive -u other/j", &lab.ok(&format!("zfs send recva/R@{first}"), b""));
    lab.ok("zfs receive -u other/j", &lab.ok(&format!("zfs send -i {first} recva/R@{last}"), b""));
    assert_eq!(lab.text("zfs list -H -t snapshot -o name other/j").lines().count(), 2);
    // raw, of unencrypted datasets: everything is sent as it is stored
    let raw = lab.ok(&format!("zfs send -w recva/R@{last}"), b"");
    assert!(raw == lab.ok(&format!("zfs send -Lec recva/R@{last}"), b""));
}

/// OpenZFS 12661 and 14568: streams of a package that exist already, empty ones too, are skipped; those after them are
/// not.
#[test]
fn issues_12661_and_14568_what_follows_what_is_there_already() {
    let lab = Lab::new("tank");
    lab.ok("zfs create tank/s", b"");
    lab.ok("zfs create tank/s/child", b"");
    for snap in ["A", "B", "C"] {
        lab.ok(&format!("zfs snapshot -r tank/s@{snap}"), b"");
    }
    lab.ok("zfs receive -u tank/r", &lab.ok("zfs send -R -p tank/s@C", b""));
    for snap in ["D", "E"] {
        lab.ok(&format!("put tank/s/child:/{snap}"), snap.as_bytes());
        lab.ok(&format!("zfs snapshot -r tank/s@{snap}"), b"");
    }
    // the base at the receiver is later than that of the package; one snapshot between is missing there
    lab.ok("zfs destroy tank/s@B", b"");
    let package = lab.ok("zfs send -R -p -I @A tank/s@E", b"");
    lab.ok("zfs receive -u tank/r", &package);
    let names = |top: &str| lab.text(&format!("zfs list -H -r -t snapshot -o name {top}")).replace(top, "");
    assert_eq!(names("tank/r"), names("tank/s").replacen("@C", "@B\n@C", 1));
    assert_eq!(lab.text("cat tank/r/child@E:/D") + &lab.text("cat tank/r/child:/E"), "DE");
    lab.judge("tank");
}

/// Receives the streams of a fixture; sending the datasets `again` must give the streams that made them.
fn received_and_sent_again(fixture: &str, again: &[(&str, &str)]) {
    let lab = receive_all(fixture);
    let all = streams(fixture);
    for (name, options) in again {
        let (ours, theirs) = (lab.ok(&format!("zfs send {options}"), b""), &all[&format!("{name}.zstream")]);
        let (ours, theirs) = (records(&lab, &ours), records(&lab, theirs));
        assert!(ours == theirs, "{fixture} {name}: {} records, not {}", ours.len(), theirs.len());
    }
}

#[test]
fn compressed_embedded_and_large_blocks() {
    let again = [("r8-c", "-c recva/c8@1"), ("r8-c-incr", "-c -i @1 recva/c8@2"), ("r1m-Lc", "-Lc recva/lc1m@1")];
    received_and_sent_again("stcomp-a", &again);
}

#[test]
fn many_files_and_odd_ones() {
    received_and_sent_again("stmany-a", &[("full", "recva/a@1"), ("incr", "-i @1 recva/a@2")]);
    received_and_sent_again("stspecial-a", &[("full", "recva/a@1")]);
}

#[test]
fn volumes_and_redacted_streams() {
    received_and_sent_again("stzvol-a", &[("v8K-full", "recva/v8K@1"), ("v16K-c", "-c recva/vc16K@2")]);
    received_and_sent_again("stredact-a", &[]);
}

#[test]
fn a_stream_as_json() {
    let lab = Lab::new("tank");
    let full = basic("full");
    let lines = String::from_utf8(lab.ok("zstream dump -j", &full)).unwrap();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, records) = lines.split_last().unwrap();
    let count = |kind: &str| records.iter().filter(|line| line["type"] == kind).count();
    let text = String::from_utf8(lab.ok("zstream dump", &full)).unwrap();
    for kind in ["BEGIN", "END", "OBJECT", "FREEOBJECTS", "WRITE", "FREE", "SPILL"] {
        assert!(text.contains(&format!("Total DRR_{kind} records = {} (", count(kind))), "{kind}: {text}");
    }
    assert_eq!(records[0]["toname"], "srca/fs@1");
    assert_eq!((&summary["outcome"], &summary["length"]), (&"complete".into(), &full.len().into()));
    let cut = lab.ok("zstream dump -j", &full[..full.len() / 2]);
    let last = String::from_utf8(cut).unwrap().lines().last().unwrap().to_owned();
    assert!(last.contains("\"outcome\":\"cut off\""), "{last}");
}

/// The snapshot that a package starts from has another name here, and its own name is taken: the datasets below its
/// dataset stay where they are.
#[test]
fn what_is_in_its_place_is_not_moved_for_ever() {
    let lab = Lab::new("tank");
    for command in ["zfs create -u tank/a", "zfs create -u tank/a/c", "zfs snapshot -r tank/a@1"] {
        lab.ok(command, b"");
    }
    let first = lab.ok("zfs send -R tank/a@1", b"");
    lab.ok("zfs receive -u tank/r", &first);
    for command in ["zfs rename tank/r@1 tank/r@old", "zfs snapshot tank/r@1", "zfs snapshot -r tank/a@2"] {
        lab.ok(command, b"");
    }
    let next = lab.ok("zfs send -R -i @1 tank/a@2", b"");
    let ran = lab.run("zfs receive -v -u tank/r", &next);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(!String::from_utf8_lossy(&ran.out).contains("attempting rename tank/r/c"));
    assert_eq!(lab.text("zfs list -H -o name -r tank/r"), "tank/r\ntank/r/c\n");
    lab.judge("tank");
}

/// A stream brings names unchanged, and the file system compares them in its own way.
#[test]
fn names_that_nobody_can_find_are_told_of() {
    let lab = Lab::new("tank");
    lab.ok("zfs create -o normalization=formD -o casesensitivity=insensitive tank/n", b"");
    lab.ok("mkdir tank/n:/d tank/n:/other", b"");
    lab.ok("put tank/n:/d/file", b"1");
    let device = lab.dir.path().join("tank");
    // as a system that compares names in another way would have left them
    let add = |dir: &str, name: &str| {
        lab.ok("zpool export tank", b"");
        let pool = zuse::Pool::open_writable(&[&device], None).unwrap();
        let files = pool.files("tank/n").unwrap();
        let (zfs, id) = (files.zfs(), files.stat(dir.as_bytes()).unwrap().0);
        let zap = zuse::dmu::Zap::open(zfs.fs().objset().object(id).unwrap()).unwrap();
        let word = 8 << 60 | files.stat(b"d/file").unwrap().0.0;
        zfs.change(64 << 10, |tx| Ok(zap.add_u64(tx, name.as_bytes(), word)?)).unwrap();
        drop((zap, files));
        pool.export().unwrap();
        drop(pool);
        lab.ok(&format!("zpool import -d {} tank", lab.dir.path().display()), b"");
    };
    let send = |from: &str, to: &str| match from {
        "" => lab.ok(&format!("zfs send tank/n@{to}"), b""),
        from => lab.ok(&format!("zfs send -i @{from} tank/n@{to}"), b""),
    };
    let receive = |stream: &[u8]| {
        let ran = lab.run("zfs receive tank/m", stream);
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.err
    };
    lab.ok("zfs snapshot tank/n@1", b"");
    assert_eq!(receive(&send("", "1")), "");
    add("d", "FILE");
    lab.ok("zfs snapshot tank/n@2", b"");
    let told = receive(&send("1", "2"));
    assert!(told.starts_with("Warning: tank/m@2 has one name that is the same as another "), "{told}");
    assert!(told.contains(" first '/d/") && told.lines().count() == 3, "{told}");
    // unchanged names were warned of before
    lab.ok("put tank/n:/other/file", b"2");
    lab.ok("zfs snapshot tank/n@3", b"");
    assert_eq!(receive(&send("2", "3")), "");
    let long = "\u{fc}".repeat(110);
    add("other", &long);
    lab.ok("zfs snapshot tank/n@4", b"");
    let told = receive(&send("3", "4"));
    assert!(told.starts_with("Warning: tank/m@4 has one name that is too long when normalized\n"), "{told}");
    assert!(told.contains(&format!("first '/other/{long}'")) && told.lines().count() == 3, "{told}");
    // what the message advises
    lab.ok(&format!("mv tank/m:/other/{long} tank/m:/other/short"), b"");
    assert_eq!(lab.ok("cat tank/m:/other/short", b""), b"1");
    lab.ok("zfs destroy -r tank/m", b"");
    add("d", &"\u{e4}".repeat(90));
    lab.ok("zfs snapshot tank/n@5", b"");
    let told = receive(&send("", "5"));
    assert!(told.contains("has 2 names that are too long") && told.contains("has one name that is the same"), "{told}");
    assert_eq!(told.lines().count(), 6, "{told}");
    lab.ok("zfs destroy -r tank/m", b"");
    // encrypted here; and raw, where nobody can read it
    let key = [b"12345678\n12345678\n".as_slice()].concat();
    lab.ok("zfs create -o encryption=on -o keyformat=passphrase tank/e", &key);
    let ran = lab.run("zfs receive tank/e/m", &send("", "5"));
    assert!(ran.code == 0 && ran.err.contains("has 2 names that are too long"), "{}", ran.err);
    let raw = lab.ok("zfs send -w tank/e/m@5", b"");
    assert_eq!(receive(&raw), "");
}
