//! The files of a damaged pool that the kernel could not read.

use std::collections::HashSet;

use super::describe::path_of;

/// The files whose contents the kernel could not read.
pub(crate) struct Unreadable(HashSet<(String, Vec<u8>)>);

impl Unreadable {
    pub(crate) fn contains(&self, dataset: &str, path: &[u8]) -> bool {
        self.0.contains(&(dataset.to_owned(), path.to_vec()))
    }
}

/// Returns the files with a `read_error` in the kernel's list of the damaged pool; none if there is no such list.
pub(crate) fn unreadable(fixture: &str) -> Unreadable {
    let list = "kernel-says/files.jsonl.zst";
    if !oracle::fixtures::dir(fixture).join(list).exists() {
        return Unreadable(HashSet::new());
    }
    let lines = oracle::fixtures::json_lines(fixture, list);
    let bad = lines.iter().filter(|line| line.get("read_error").is_some());
    Unreadable(bad.map(|line| (line["dataset"].as_str().unwrap().to_owned(), path_of(&line["path"]))).collect())
}
