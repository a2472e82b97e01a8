//! The words of documentation comments: they begin with a noun or a verb, as `CONTRIBUTING.md` asks.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

/// First words of comments that name no thing and no action.
const HEADLESS: [&str; 6] = ["What", "Who", "Of", "Where", "So many", "As that"];
/// Such comments in a hundred that are too many.
const PERCENT_MAX: usize = 2;

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.file_name().unwrap().to_str().unwrap() {
            "target" | "corpus" => {}
            _ if path.is_dir() => sources(&path, found),
            name if name.ends_with(".rs") => found.push(path),
            _ => {}
        }
    }
}

fn is_headless(text: &str) -> bool {
    let after = |word| text.strip_prefix(word).is_some_and(|rest: &str| !rest.starts_with(char::is_alphanumeric));
    HEADLESS.iter().any(after)
}

/// Returns the first lines of the documentation comments of a source.
fn openings(source: &str) -> Vec<&str> {
    let doc = |line: &str| line.trim_start().starts_with("///") || line.trim_start().starts_with("//!");
    let mut before = false;
    let mut found = Vec::new();
    for line in source.lines() {
        if doc(line) && !before {
            found.push(line.trim_start()[3..].trim_start());
        }
        before = doc(line);
    }
    found
}

#[test]
fn comments_begin_with_a_noun_or_a_verb() {
    assert!(is_headless("What is left.") && is_headless("Where, in bytes.") && !is_headless("Whether it is."));
    assert_eq!(openings("//! a\n//! b\n\n    /// What\nfn f() {}\n"), ["a", "What"]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for dir in ["crates", "benches", "fuzz"] {
        sources(&root.join(dir), &mut files);
    }
    let (mut all, mut bad) = (0, Vec::new());
    for path in &files {
        let source = std::fs::read_to_string(path).unwrap();
        for opening in openings(&source) {
            all += 1;
            if is_headless(opening) {
                bad.push(format!("{}: {opening}", path.strip_prefix(&root).unwrap().display()));
            }
        }
    }
    assert!(all > 10_000, "{all} comments in {} files", files.len());
    assert!(bad.len() * 100 < all * PERCENT_MAX, "{} of {all} begin without a head:\n{}", bad.len(), bad.join("\n"));
}
