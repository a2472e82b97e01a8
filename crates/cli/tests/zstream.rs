//! `zstream dump` and `zstream token`, byte for byte as OpenZFS's.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Read;
use std::path::Path;

use oracle::{fixtures, judge};
use support::Session;

/// All streams of a fixture, unpacked to a folder: (name without ending, path).
fn streams(fixture: &str, into: &Path) -> Vec<(String, String)> {
    let bytes = fixtures::read_zst(&fixtures::dir(fixture).join("streams.tar.zst"));
    let mut found = Vec::new();
    for member in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
        let mut member = member.unwrap();
        let name = member.path().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        let Some(stem) = name.strip_suffix(".zstream") else { continue };
        let mut stream = Vec::new();
        member.read_to_end(&mut stream).unwrap();
        let path = into.join(&name);
        std::fs::write(&path, stream).unwrap();
        found.push((stem.to_owned(), path.to_str().unwrap().to_owned()));
    }
    found
}

fn with_streams() -> Vec<String> {
    let entries = std::fs::read_dir(fixtures::fixture_root()).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().to_str().unwrap().to_owned()).collect();
    names.retain(|name| fixtures::dir(name).join("streams.tar.zst").exists());
    names.sort();
    names
}

#[test]
fn dumps_are_those_of_openzfs() {
    let session = Session::empty();
    let mut seen = 0;
    for fixture in with_streams() {
        let dir = tempfile::tempdir().unwrap();
        for (name, path) in streams(&fixture, dir.path()) {
            let truth = format!("streams/{name}-dump.txt.zst");
            if !fixtures::dir(&fixture).join(&truth).exists() {
                continue;
            }
            let run = session.run(&["zstream", "dump", "-v", &path]);
            assert_eq!(run.code, 0, "{fixture}/{name}: {}", run.err);
            assert!(run.out == fixtures::text(&fixture, &truth), "{fixture}/{name} differs");
            seen += 1;
        }
    }
    assert!(seen > 80, "{seen} streams");
}

#[test]
fn a_stream_comes_from_standard_input_too() {
    let session = Session::empty();
    let dir = tempfile::tempdir().unwrap();
    let (_, path) = streams("stbasic-a", dir.path()).into_iter().find(|(name, _)| name == "full").unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let from_file = session.ok(&["zstream", "dump", "-vd", &path]);
    assert_eq!(session.feed(&["zstream", "dump", "-d", "-v"], &bytes).out, from_file);
    for flags in [["dump", ""], ["dump", "-v"], ["dump", "-C"], ["dump", "-vvd"]] {
        let args: Vec<&str> = flags.into_iter().filter(|a| !a.is_empty()).chain([path.as_str()]).collect();
        if let Some(truth) = judge::run("zstream", &args) {
            let all: Vec<&str> = std::iter::once("zstream").chain(args).collect();
            assert_eq!(session.ok(&all), String::from_utf8_lossy(&truth.stdout), "{all:?}");
        }
    }
}

#[test]
fn damage_is_told() {
    let session = Session::empty();
    let dir = tempfile::tempdir().unwrap();
    let (_, path) = streams("stbasic-a", dir.path()).into_iter().find(|(name, _)| name == "full").unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let run = session.feed(&["zstream", "dump"], &bytes);
    assert!(run.code == 1 && run.err.contains("invalid checksum"), "{run:?}");
    assert_eq!(session.feed(&["zstream", "dump", "-C"], &bytes).code, 0);
    let garbage = session.feed(&["zstream", "dump"], &[7; 4096]);
    assert!(garbage.code == 1 && garbage.err.contains("bad magic number"), "{garbage:?}");
    session.fails(&["zstream", "dump", "/no/such/stream"], 1, "No such file or directory");
    session.fails(&["zstream"], 1, "usage:");
    session.fails(&["zstream", "dump", "-q"], 1, "usage:");
}

#[test]
fn tokens_are_decoded() {
    let session = Session::empty();
    let streams = fixtures::json("stresume-a", "streams.json");
    let text = streams.to_string();
    let tokens: Vec<&str> = text.split('"').filter_map(|s| s.find("1-").map(|at| &s[at..])).collect();
    let token = tokens.iter().find_map(|t| {
        let end = t.find(|c: char| !c.is_ascii_hexdigit() && c != '-').unwrap_or(t.len());
        Some(&t[..end]).filter(|t| t.len() > 80 && t.matches('-').count() == 3)
    });
    let token = token.expect("a token in streams.json");
    let out = session.ok(&["zstream", "token", token]);
    let keys: Vec<&str> = out.lines().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(keys, ["     object", "     offset", "     bytes", "     toguid", "     toname"], "{out}");
    assert!(out.ends_with("     toname: 'srca/r@1'\n"), "{out}");
    session.fails(&["zstream", "token", "1-2-3-4"], 1, "");
}
