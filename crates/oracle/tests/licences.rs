//! The licences of dependencies: only those that `deny.toml` allows, and `NOTICE` names everything that the program is linked with.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Maximum depth of vendored sources of other languages below a crate.
const DEPTH: usize = 4;
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
/// The package that users build.
const PROGRAM: &str = "zuse-cli";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn metadata() -> Value {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform", PLATFORM]);
    let out = cargo.current_dir(root()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// Third-party packages.
fn foreign(metadata: &Value) -> Vec<&Value> {
    metadata["packages"].as_array().unwrap().iter().filter(|package| !package["source"].is_null()).collect()
}

/// The ids of the packages that the program is linked with: those reachable through normal dependencies.
fn linked(metadata: &Value) -> BTreeSet<&str> {
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let nodes: BTreeMap<&str, &Value> = nodes.iter().map(|node| (node["id"].as_str().unwrap(), node)).collect();
    let packages = metadata["packages"].as_array().unwrap();
    let program = packages.iter().find(|package| package["name"] == PROGRAM).unwrap();
    let (mut seen, mut left) = (BTreeSet::new(), vec![program["id"].as_str().unwrap()]);
    while let Some(id) = left.pop() {
        if seen.insert(id) {
            for dep in nodes[id]["deps"].as_array().unwrap() {
                let kinds = dep["dep_kinds"].as_array().unwrap();
                if kinds.iter().any(|kind| kind["kind"].is_null()) {
                    left.push(dep["pkg"].as_str().unwrap());
                }
            }
        }
    }
    seen
}

/// True if a licence expression can be satisfied by the allowed ones. (SPDX syntax, and the `/` of old crates.)
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (met, rest) = any_of(&words, allowed);
    met && rest.is_empty()
}

fn any_of<'a>(words: &'a [&'a str], allowed: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = all_of(words, allowed);
    while let ["OR", after @ ..] = rest {
        let (other, left) = all_of(after, allowed);
        (met, rest) = (met || other, left);
    }
    (met, rest)
}

fn all_of<'a>(words: &'a [&'a str], allowed: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = one_of(words, allowed);
    while let ["AND", after @ ..] = rest {
        let (other, left) = one_of(after, allowed);
        (met, rest) = (met && other, left);
    }
    (met, rest)
}

fn one_of<'a>(words: &'a [&'a str], allowed: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    match words {
        ["(", after @ ..] => match any_of(after, allowed) {
            (met, [")", rest @ ..]) => (met, rest),
            (_, rest) => (false, rest),
        },
        [name, "WITH", exception, rest @ ..] => (allowed.contains(&format!("{name} WITH {exception}")), rest),
        [name, rest @ ..] => (allowed.contains(*name), rest),
        [] => (false, &[]),
    }
}

fn allowed() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("allow = ")).unwrap();
    line.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let allowed = allowed();
    for (expression, met) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("(GPL-3.0 OR MIT) AND Zlib", true),
        ("GPL-3.0 OR MIT AND GPL-2.0", false),
        ("Apache-2.0 WITH LLVM-exception", false),
        ("(MIT", false),
        ("MIT MIT", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), met, "{expression}");
    }
    let metadata = metadata();
    let packages = foreign(&metadata);
    assert!(packages.len() > 50);
    for package in packages {
        let expression = package["license"].as_str().unwrap_or("");
        assert!(is_allowed(expression, &allowed), "{} {}: '{expression}'", package["name"], package["version"]);
        let source = package["source"].as_str().unwrap();
        assert!(source.starts_with("registry+https://github.com/rust-lang/crates.io-index"), "{source}");
    }
}

/// The licence files of a crate and of the sources vendored in it.
fn files(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_string_lossy().to_uppercase();
        if path.is_dir() {
            if depth > 0 {
                files(&path, depth - 1, found);
            }
        } else if ["LICEN", "COPYING", "NOTICE"].iter().any(|word| name.starts_with(word)) {
            found.push(path);
        }
    }
}

/// The licence texts under which a crate is used: where there is a choice, MIT, else Apache.
fn texts(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    files(folder, DEPTH, &mut found);
    let has = |path: &PathBuf, word: &str| path.file_name().unwrap().to_string_lossy().to_uppercase().contains(word);
    for choice in ["MIT", "APACHE", "_A2"] {
        if found.iter().any(|path| has(path, choice)) {
            found.retain(|path| {
                let further = ["UNICODE", "THIRD-PARTY"].iter().any(|word| has(path, word));
                has(path, choice) || further || path.parent() != Some(folder)
            });
            break;
        }
    }
    let text = |path: &PathBuf| String::from_utf8_lossy(&std::fs::read(path).unwrap()).replace("\r\n", "\n");
    let lines = |text: String| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim().to_owned();
    // of a choice between the GPL and another licence, the other one is taken
    found.iter().map(text).map(lines).filter(|text| !text.contains("GNU GENERAL PUBLIC LICENSE")).collect()
}

/// The expected contents of `NOTICE`.
fn notice(metadata: &Value) -> String {
    let linked = linked(metadata);
    let mut list = String::new();
    let mut by_text: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    let mut packages = foreign(metadata);
    packages.retain(|package| linked.contains(package["id"].as_str().unwrap()));
    packages.sort_by_key(|package| (package["name"].to_string(), package["version"].to_string()));
    for package in packages {
        let word = |key: &str| package[key].as_str().unwrap_or("").to_owned();
        let (name, licence, place) =
            (format!("{} {}", word("name"), word("version")), word("license"), word("repository"));
        list += &format!("* {name}: {licence}{}{place}\n", if place.is_empty() { "" } else { ", " });
        let texts = texts(Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap());
        assert!(!texts.is_empty(), "{name} comes without the text of its licence");
        for text in texts {
            // the same text, whatever its line breaks
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            by_text.entry(words).or_insert((text, Vec::new())).1.push(name.clone());
        }
    }
    let mut sections: Vec<(String, Vec<String>)> = by_text.into_values().collect();
    sections.iter_mut().for_each(|(_, names)| names.dedup());
    sections.sort_by(|a, b| a.1.cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    let bar = "-".repeat(80);
    let mut out =
        format!("Zuse contains the work of others, under the licences below. (Written by scripts/notice.)\n\n{list}");
    for (text, names) in sections {
        out += &format!("\n{bar}\n{}\n{bar}\n\n{text}\n", names.join(", "));
    }
    out
}

#[test]
fn notice_tells_the_licences_of_all_that_is_linked() {
    let (path, want) = (root().join("NOTICE"), notice(&metadata()));
    if std::env::var_os("UPDATE_NOTICE").is_some() {
        std::fs::write(&path, &want).unwrap();
    }
    let is = std::fs::read_to_string(&path).unwrap_or_default();
    let differ = is.lines().zip(want.lines()).find(|(is, want)| is != want);
    assert!(is == want, "NOTICE is not up to date (scripts/notice writes it): {differ:?}");
    // checks that the notices of compiled-in C code are there
    for word in ["Meta Platforms", "Daan Leijen", "* zlib-rs ", "* libmimalloc-sys ", "UNICODE LICENSE V3"] {
        assert!(want.contains(word), "{word}");
    }
}
