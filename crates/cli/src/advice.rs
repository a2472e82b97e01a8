//! Checks that commands which messages advise to run exist: each `zpool`, `zfs`, `zstream` and `zuse` that a text of
//! the program names in quotes is a verb of this version, with these options.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use crate::args::Long;
use crate::{verbs, zfs, zpool};

/// OpenZFS's own messages, compared with its kernel module and tools (`tests/zpool.rs`), that name verbs of a later
/// version: messages about pools with missing devices, with errors, and with devices that are offline.
const OPENZFS_SAYS: [&str; 5] = [
    "Online the device using zpool online' or replace the device with\n\t'zpool replace'.\n",
    "use 'zpool replace' to replace devices that are no longer present",
    "Attach the missing device and online it using 'zpool online'.\n",
    "Determine if the device needs to be replaced, and clear the errors\n\tusing 'zpool clear' or replace the device with 'zpool replace'.\n",
    "Online the device using 'zpool online' or replace the device with\n\t'zpool replace'.\n",
];
/// Verbs that exist only to say what to do instead.
const REFUSED: [&str; 2] = ["share", "unshare"];
/// `zstream`, which has no table.
const ZSTREAM: [(&str, &str); 6] =
    [("dump", "vCdj"), ("token", "j"), ("decompress", "v"), ("drop_record", "v"), ("recompress", "l"), ("redup", "v")];

/// The options of a verb, short and long; `None` if there is no such verb.
fn options(tool: &str, verb: &str) -> Option<(String, &'static [Long])> {
    let of = |tool: &crate::command::Tool| {
        let name = tool.aliases.iter().find(|(alias, _)| *alias == verb).map_or(verb, |(_, name)| *name);
        let all = tool.groups.iter().flat_map(|group| group.iter());
        let found = all.filter(|c| c.run.is_some() && !REFUSED.contains(&c.name)).find(|c| c.name == name)?;
        Some((found.options.to_owned(), found.longs))
    };
    match tool {
        _ if verb == "help" => Some((String::new(), &[])),
        "zpool" => of(&zpool::TOOL),
        "zfs" => of(&zfs::TOOL),
        "zuse" => verbs::options(verb),
        _ => ZSTREAM.iter().find(|(name, _)| *name == verb).map(|(_, options)| ((*options).to_owned(), &[][..])),
    }
}

/// The errors in the commands that a text names.
fn wrong(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for tool in ["zpool", "zfs", "zuse", "zstream"] {
        for (at, _) in text.match_indices(&format!("{tool} ")) {
            let before = text.get(..at).unwrap_or("");
            if !before.ends_with(['\'', '"', '`']) && !before.ends_with("run: ") {
                continue;
            }
            let rest = text.get(at + tool.len()..).unwrap_or("");
            let end = rest.find(['\'', '"', '`', '\n', '|', '[', '.', ',']).unwrap_or(rest.len());
            let mut words = rest.get(..end).unwrap_or("").split_whitespace();
            let Some(verb) = words.next().filter(|verb| !verb.contains(['{', '<'])) else { continue };
            for verb in verb.split('|') {
                let Some((short, long)) = options(tool, verb) else {
                    found.push(format!("{tool} {verb}: no such verb"));
                    continue;
                };
                for option in words.clone().filter(|word| word.len() > 1 && word.starts_with('-')) {
                    let known = match option.strip_prefix("--") {
                        Some(name) => long.iter().any(|(known, _)| *known == name),
                        None => option.chars().skip(1).all(|c| c.is_alphanumeric() && short.contains(c)),
                    };
                    if !known {
                        found.push(format!("{tool} {verb} {option}: no such option"));
                    }
                }
            }
        }
    }
    found
}

/// The texts in quotes of a source file, up to its tests.
fn texts(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or("");
    let mut all = Vec::new();
    let mut text: Option<String> = None;
    let mut chars = source.chars().peekable();
    let mut last = ' ';
    while let Some(c) = chars.next() {
        match (&mut text, c) {
            (None, '/') if chars.peek() == Some(&'/') => drop(chars.by_ref().find(|c| *c == '\n')),
            // not the quote of a character literal
            (None, '"') if last != '\'' => text = Some(String::new()),
            (None, _) => {}
            (Some(_), '"') => all.extend(text.take()),
            (Some(text), '\\') => match chars.next() {
                Some('\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some(other) => text.push(other),
                None => {}
            },
            (Some(text), c) => text.push(c),
        }
        last = c;
    }
    all
}

/// All source files of the program.
fn sources(dir: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            sources(&path, all);
        } else if name.ends_with(".rs") && !matches!(&*name, "tests.rs" | "advice.rs") {
            all.push(path);
        }
    }
}

#[test]
fn advice_names_what_is_there() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(crates).unwrap() {
        sources(&entry.unwrap().path().join("src"), &mut files);
    }
    let (mut commands, mut bad) = (0, Vec::new());
    for file in &files {
        for text in texts(&std::fs::read_to_string(file).unwrap()) {
            commands += ["'zpool ", "'zfs ", "'zuse "].iter().map(|tool| text.matches(tool).count()).sum::<usize>();
            if !OPENZFS_SAYS.contains(&text.as_str()) {
                bad.extend(wrong(&text).into_iter().map(|what| format!("{}: {what}: {text:?}", file.display())));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(files.len() > 300 && commands > 30, "{} files, {commands} commands", files.len());
}

#[test]
fn what_is_not_there_is_seen() {
    for (text, what) in [
        ("use 'zpool split'", "zpool split: no such verb"),
        ("use 'zfs share -a'.", "zfs share: no such verb"),
        ("run: zfs send -y {name}", "zfs send -y: no such option"),
        ("use 'zuse cp --all'", "zuse cp --all: no such option"),
        ("try 'zstream raw [FILE]'", "zstream raw: no such verb"),
    ] {
        assert_eq!(wrong(text), [what], "{text}");
    }
    for fine in ["'zpool {verb} -c'", "\"zfs recv -s\"", "zpool create fails", "'zuse cp --datasets -a X'"] {
        assert!(wrong(fine).is_empty(), "{fine}");
    }
}
