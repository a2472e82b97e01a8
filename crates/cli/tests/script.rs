//! Sessions at a terminal: the commands, their output, and the exit status.
//!
//! A file in `script/` is one session with two devices, `DIR/a` and `DIR/b`. A line `$ …` is a command; `<<< word` at
//! its end is standard input, `# mask` replaces all numbers of the output by `N`. The lines of standard output follow,
//! then those of standard error, and `[n]` if the exit status is not 0. A usage text is cut off. At the end all pools
//! are exported, and OpenZFS's `zdb` checks for leaks.
//!
//! `UPDATE_EXPECT=1` writes the output into the files: check the difference.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use oracle::judge;
use support::Session;

/// Bytes of a device: the minimum.
const DEVICE: u64 = 64 << 20;
/// Keys in files.
const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/script")
}

/// A command line of a session.
struct Line<'a> {
    words: &'a str,
    input: Option<&'a str>,
    mask: bool,
}

fn parse(line: &str) -> Line<'_> {
    let (line, mask) = line.strip_suffix(" # mask").map_or((line, false), |line| (line, true));
    match line.split_once(" <<< ") {
        Some((words, input)) => Line { words, input: Some(input), mask },
        None => Line { words: line, input: None, mask },
    }
}

/// Splits a line into words as a shell does: in quotes, blanks are part of a word.
fn words(line: &str, dir: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut any) = (Vec::new(), String::new(), false, false);
    for c in line.chars() {
        match c {
            '\'' => {
                quoted = !quoted;
                any = true;
            }
            ' ' if !quoted => {
                if any {
                    words.push(std::mem::take(&mut word));
                }
                any = false;
            }
            c => {
                word.push(c);
                any = true;
            }
        }
    }
    if any {
        words.push(word);
    }
    words.into_iter().map(|word| word.replace("DIR", dir)).collect()
}

/// Replaces numbers, with their units, by `N`.
fn mask(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if !c.is_ascii_digit() {
            out.push(c);
            continue;
        }
        while chars.next_if(|c| c.is_ascii_digit() || *c == '.').is_some() {}
        chars.next_if(|c| "BKMGT".contains(*c));
        out.push('N');
    }
    out
}

fn answer(session: &Session, dir: &str, line: &str) -> String {
    let line = parse(line);
    let typed = words(line.words, dir);
    let typed: Vec<&str> = typed.iter().map(String::as_str).collect();
    let input = line.input.map(|input| format!("{input}\n")).unwrap_or_default();
    let run = session.feed(&typed, input.as_bytes());
    let text = format!("{}{}", run.out, run.err).replace(dir, "DIR");
    let mut text = if line.mask { mask(&text) } else { text };
    if run.code == 2
        && let Some(at) = text.find("usage:\n")
    {
        text.truncate(at);
        text.push_str("usage: ...\n");
    }
    if run.code != 0 {
        writeln!(text, "[{}]", run.code).unwrap();
    }
    text
}

/// Plays a session again; returns the number of commands.
fn play(name: &str) -> usize {
    let path = folder().join(format!("{name}.txt"));
    let expected = std::fs::read_to_string(&path).unwrap();
    let lab = tempfile::tempdir().unwrap();
    let dir = lab.path().to_str().unwrap();
    for device in ["a", "b"] {
        std::fs::File::create(lab.path().join(device)).unwrap().set_len(DEVICE).unwrap();
    }
    std::fs::create_dir(lab.path().join("keys")).unwrap();
    std::fs::write(lab.path().join("keys/hex"), HEX).unwrap();
    std::fs::write(lab.path().join("keys/raw"), [7; 32]).unwrap();
    std::fs::write(lab.path().join("keys/pass"), "correct horse\n").unwrap();

    let session = Session::empty();
    let (mut actual, mut typed) = (String::new(), 0);
    for line in expected.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            typed += 1;
            writeln!(actual, "{line}").unwrap();
            actual.push_str(&answer(&session, dir, command));
        } else if line.starts_with("# ") || line == "#" {
            writeln!(actual, "{line}").unwrap();
        }
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &actual).unwrap();
    } else if actual != expected {
        let differ = actual.lines().zip(expected.lines()).position(|(a, b)| a != b).unwrap_or(0);
        let near = |text: &str| text.lines().skip(differ.saturating_sub(3)).take(12).collect::<Vec<_>>().join("\n");
        panic!("{name}.txt, line {}:\n--- expected\n{}\n--- answered\n{}", differ + 1, near(&expected), near(&actual));
    }
    for pool in session.ok(&["zpool", "list", "-Ho", "name"]).lines() {
        session.ok(&["zpool", "export", pool]);
        judge::no_leaks(lab.path(), pool);
    }
    typed
}

macro_rules! sessions {
    ($($name:ident $least:literal),* $(,)?) => {$(
        #[test]
        fn $name() {
            let typed = play(stringify!($name));
            assert!(typed >= $least, "{typed} lines");
        }
    )*};
}

sessions! {
    bookmarks 20,
    clones 20,
    create 30,
    destroy 20,
    holds 15,
    iostat 30,
    keys 20,
    names 20,
    props 30,
    readonly 25,
    rename 20,
    roots 25,
    snapshots 20,
    usage 30,
    vdevs 30,
    volumes 20,
}

#[test]
fn every_session_is_played() {
    let mut files: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    files.sort();
    let source = include_str!("script.rs");
    for file in files {
        assert!(source.contains(&format!("\n    {file} ")), "{file}");
    }
}

#[test]
fn words_are_those_of_a_shell() {
    assert_eq!(words("zfs set 'a:b=c d' DIR/x", "/tmp"), ["zfs", "set", "a:b=c d", "/tmp/x"]);
    assert_eq!(words("x '' y", ""), ["x", "", "y"]);
    assert_eq!(mask("would reclaim 12.5K of 7"), "would reclaim N of N");
}
