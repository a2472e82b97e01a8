//! The files (by path), streams and blocks that `zuse zdb` extracts from a pool, and its consistency checks (`-y`),
//! against OpenZFS's zdb.
//!
//! Left out: `-B … e` of files whose spill block is embedded. zdb sends it as data, past the end of the file; here it
//! is a SPILL record. Raw streams: zdb packs the bytes of keys as libnvpair does, here they are as the kernel packs
//! them; and for a head without an IV set zdb produces no stream at all.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use oracle::fixtures::{self, Unpacked};
use oracle::said::Call;

fn ours(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zuse")).arg("zdb").args(args).env("TZ", "UTC").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn dir(images: &Unpacked) -> &str {
    images.dir.to_str().unwrap()
}

/// Compares the part of the output that `seen` extracts with zdb's, on a fixture's pool.
#[track_caller]
fn same(fixture: &str, part: &str, options: &[&str], operands: &[&str], seen: impl Fn(&Output) -> String) {
    let images = fixtures::unpack(fixture);
    let args = [options, &["-e", "-p", dir(&images)], operands].concat();
    let said = seen(&ours(&args));
    let call = Call { fixture, images: &images, args: &args };
    if let Some(theirs) = call.part_differs(part, &said, seen) {
        assert_eq!(said, theirs, "{fixture} {options:?} {operands:?}");
    }
}

fn all(output: &Output) -> String {
    format!("{}{}ended with {:?}\n", text(&output.stdout), text(&output.stderr), output.status.code())
}

#[test]
fn objects_are_found_by_path() {
    for path in ["bigid", "hl1", "mode0", "", "nowhere", "hl1/", "hl1/below", "/bigid", "blk"] {
        same("basic-a", "all", &["-O"], &["basica/plain", path], all);
    }
    for options in [&["-O", "-v"][..], &["-Ovv"], &["-Ovvv"]] {
        same("basic-a", "all", options, &["basica/plain", "hl1"], all);
    }
    same("basic-a", "all", &["-O"], &["basica/none", "hl1"], |out| format!("{:?}", out.status.code()));
}

#[test]
fn files_are_copied_out() {
    let images = fixtures::unpack("basic-a");
    let to = tempfile::tempdir().unwrap();
    let to = to.path().join("copy");
    let file = to.to_str().unwrap();
    let placed = |out: &Output| all(out).replace(file, "FILE");
    let truth = Command::new(env!("CARGO_BIN_EXE_zuse"));
    let contents = |path: &str| {
        let mut cat = Command::new(truth.get_program());
        cat.args(["cat", "-d", dir(&images), &format!("basica/plain:/{path}")]).output().unwrap().stdout
    };
    for path in ["hl1", "bigid"] {
        let out = ours(&["-r", "-e", "-p", dir(&images), "basica/plain", path, file]);
        let copied = std::fs::read(&to).unwrap();
        assert_eq!(copied, contents(path), "{path}");
        let args = ["-r", "-e", "-p", dir(&images), "basica/plain", path, file];
        if let Some(theirs) = oracle::judge::run("zdb", &args) {
            assert_eq!(placed(&out), placed(&theirs), "{path}");
            assert_eq!(std::fs::read(&to).unwrap(), copied, "{path}");
        }
    }
    // by number, and for a path that does not exist
    let by_path = all(&ours(&["-r", "-e", "-p", dir(&images), "basica/plain", "hl1", file]));
    let number = by_path.split_whitespace().nth(2).unwrap().to_owned();
    let by_number = all(&ours(&["-r", "-O", "-e", "-p", dir(&images), "basica/plain", &number, file]));
    assert_eq!(by_path, by_number);
    let none = ours(&["-r", "-e", "-p", dir(&images), "basica/plain", "nowhere", file]);
    assert_eq!(none.status.code(), Some(1), "{}", all(&none));
    assert_eq!(ours(&["-r", "-e", "-p", dir(&images), "basica/plain", "hl1"]).status.code(), Some(2));
}

/// The number of a dataset.
fn number(fixture: &str, dataset: &str) -> String {
    let images = fixtures::unpack(fixture);
    let said = text(&ours(&["-d", "-e", "-p", dir(&images), dataset]).stdout);
    said.split("ID ").nth(1).unwrap().split(',').next().unwrap().to_owned()
}

#[test]
fn streams_by_number_are_those_of_zdb() {
    // the END record has the checksum of everything before it
    let sum = |out: &Output| {
        let end = out.stdout.len().saturating_sub(312);
        format!("{:?} {} {}", out.status.code(), end, out.stdout[end..].escape_ascii())
    };
    for (fixture, pool, dataset, flags) in [
        ("basic-a", "basica", "basica/rs512", ""),
        ("basic-a", "basica", "basica/plain", "Lc"),
        ("basic-a", "basica", "basica/rs128K", "Lec"),
        ("snaps-a", "snapsa", "snapsa/clone2", "c"),
    ] {
        let target = format!("{pool}/{}", number(fixture, dataset));
        let images = fixtures::unpack(fixture);
        assert!(ours(&["-B", "-e", "-p", dir(&images), &target, flags]).stdout.len() > 1000, "{dataset}");
        same(fixture, "END", &["-B"], &[&target, flags], sum);
    }
    let words = |out: &Output| text(&out.stderr);
    same("basic-a", "errors", &["-B"], &["basica/7777"], words);
    same("basic-a", "errors", &["-B"], &["basica/54", "x"], words);
}

#[test]
fn livelists_and_space_maps_agree() {
    for (fixture, pool) in [("snaps-a", "snapsa"), ("logsm-a", "logsma"), ("removal-a", "rmva"), ("draid-a", "pdraida")]
    {
        let seen = |out: &Output| format!("{}ended with {:?}\n", text(&out.stdout), out.status.code());
        same(fixture, "stdout", &["-y"], &[pool], seen);
    }
}

#[test]
fn what_was_read_can_be_read_again() {
    let images = fixtures::unpack("mirror-a");
    let copy = tempfile::tempdir().unwrap();
    let place = copy.path().to_str().unwrap();
    let first = ours(&["-x", place, "-e", "-p", dir(&images), "-bcc", "pmirrora"]);
    assert_eq!(first.status.code(), Some(0), "{}", all(&first));
    let again = ours(&["-e", "-p", place, "-bcc", "pmirrora"]);
    assert_eq!(text(&first.stdout), text(&again.stdout), "{}", text(&again.stderr));
    let (mut whole, mut kept) = (0, 0);
    for image in images.images() {
        let (theirs, ours) =
            (std::fs::read(&image).unwrap(), std::fs::read(copy.path().join(image.file_name().unwrap())).unwrap());
        assert_eq!(theirs.len(), ours.len());
        let differs = theirs.iter().zip(&ours).filter(|(a, b)| a != b && **b != 0).count();
        assert_eq!(differs, 0, "{}", image.display());
        whole += theirs.iter().filter(|byte| **byte != 0).count();
        kept += ours.iter().filter(|byte| **byte != 0).count();
    }
    assert!(kept > 0 && kept < whole, "{kept} of {whole}");
    let none = ours(&["-x", "/nowhere/at/all", "-e", "-p", dir(&images), "-u", "pmirrora"]);
    assert_eq!(none.status.code(), Some(1));
}

#[test]
fn json_has_the_object_sets_that_the_text_has() {
    let images = fixtures::unpack("snaps-a");
    let place = ["-e", "-p", dir(&images)];
    let parse = |letter: &str, operands: &[&str]| -> serde_json::Value {
        serde_json::from_slice(&ours(&[&["-j", letter], &place[..], operands].concat()).stdout).unwrap()
    };
    let said = text(&ours(&[&["-d"], &place[..], &["snapsa"]].concat()).stdout);
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("Dataset ")).collect();
    let whole = parse("-d", &["snapsa"]);
    let sets = whole["datasets"].as_array().unwrap();
    assert_eq!(sets.len(), lines.len());
    let word = |value: &serde_json::Value| value.to_string().trim_matches('"').to_owned();
    for (set, line) in sets.iter().zip(lines) {
        let head = format!("Dataset {} [{}], ID {},", word(&set["name"]), word(&set["type"]), word(&set["id"]));
        assert!(line.starts_with(&head) && line.ends_with(&format!(" {} objects", word(&set["objects"]))), "{line}");
    }
    let read = parse("-R", &["snapsa", "0:0:200", "0:1:200"]);
    assert_eq!(read["read"][0]["data"].as_str().unwrap().len(), 2 * 0x200);
    assert!(read["read"][1]["error"].as_str().unwrap().contains("multiple of sector size"), "{read}");
}
