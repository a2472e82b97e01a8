//! A tree of files, depth first, past damage.

use std::collections::{HashSet, VecDeque};

use zpl::{DirEntry, Error, FileSystem, Kind, Node, ReadDir};

use crate::dest::check_name;

/// A step of a walk. Paths are relative to its start, which itself has the empty path.
#[derive(Debug)]
pub enum Step<'a> {
    /// A file of any kind; a directory before its entries.
    Enter {
        /// Its path.
        path: &'a [u8],
        /// It.
        node: &'a Node,
    },
    /// A directory, after its entries.
    Leave {
        /// Its path.
        path: &'a [u8],
        /// It.
        node: &'a Node,
    },
    /// A file or the rest of a directory that cannot be read.
    Lost {
        /// The path of the file or directory.
        path: &'a [u8],
        /// Why.
        why: &'a Error,
    },
    /// An entry that cannot be taken at its word: an impossible name, or a directory that was met before.
    Refused {
        /// The path of the directory or entry.
        path: &'a [u8],
        /// Why.
        why: &'a str,
    },
}

/// How a walk goes on behind [`Step::Enter`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Go {
    /// Into the directory, if it is one.
    In,
    /// Past it.
    Over,
}

/// Entries that are read from a directory at a time: on the way down no block of a directory above is kept.
const ENTRIES: usize = 256;

struct Level {
    node: Node,
    entries: VecDeque<Result<DirEntry, Error>>,
    /// Where the directory is read on; `None` at its end.
    cookie: Option<u64>,
    /// length of the path of this directory
    path_len: usize,
}

impl Level {
    fn next(&mut self, fs: &FileSystem) -> Option<Result<DirEntry, Error>> {
        if self.entries.is_empty()
            && let Some(cookie) = self.cookie.take()
        {
            match fs.read_dir_from(self.node.id(), cookie) {
                Ok(entries) => (self.entries, self.cookie) = some(entries),
                Err(why) => return Some(Err(why)),
            }
        }
        self.entries.pop_front()
    }
}

/// Returns the first entries, and the cookie to go on from. A directory with an entry that cannot be read is read to its end at once: a cookie before
/// that entry leads to it again.
fn some(mut from: ReadDir) -> (VecDeque<Result<DirEntry, Error>>, Option<u64>) {
    let mut entries: VecDeque<_> = from.by_ref().take(ENTRIES).collect();
    if entries.iter().any(Result::is_err) {
        entries.extend(from);
        return (entries, None);
    }
    let last = entries.back().and_then(|entry| entry.as_ref().ok()).filter(|_| entries.len() == ENTRIES);
    let cookie = last.map(|entry| entry.next_cookie);
    (entries, cookie)
}

/// Walks the tree at `start`. With `sorted`, the entries of a directory come in the order of their names (and are held in
/// memory); otherwise in that of the directory.
///
/// A directory is entered once, whatever the pool claims, so that a malformed tree cannot keep the walk going.
///
/// # Errors
/// What `visit` gives.
pub fn walk<E>(start: Node, sorted: bool, visit: &mut dyn FnMut(Step<'_>) -> Result<Go, E>) -> Result<(), E> {
    let fs = start.fs().clone();
    let mut path = Vec::new();
    let mut seen = HashSet::from([start.id()]);
    let mut stack = Vec::new();
    if visit(Step::Enter { path: &path, node: &start })? == Go::In && start.kind() == Kind::Directory {
        open(&fs, start, &path, sorted, &mut stack, visit)?;
    }
    while let Some(level) = stack.last_mut() {
        path.truncate(level.path_len);
        let Some(entry) = level.next(&fs) else {
            if let Some(done) = stack.pop() {
                visit(Step::Leave { path: &path, node: &done.node })?;
            }
            continue;
        };
        let entry = match entry {
            Ok(entry) => entry,
            Err(why) => {
                visit(Step::Lost { path: &path, why: &why })?;
                // the iterator says once where it stands; it ends by itself if it cannot go on
                continue;
            }
        };
        if let Err(why) = check_name(&entry.name) {
            visit(Step::Refused { path: &path, why: &why.to_string() })?;
            continue;
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&entry.name);
        let node = match fs.node(entry.object) {
            Ok(node) => node,
            Err(why) => {
                visit(Step::Lost { path: &path, why: &why })?;
                continue;
            }
        };
        if node.kind() == Kind::Directory && !seen.insert(node.id()) {
            visit(Step::Refused { path: &path, why: "the directory is in the tree more than once" })?;
            continue;
        }
        if visit(Step::Enter { path: &path, node: &node })? == Go::In && node.kind() == Kind::Directory {
            open(&fs, node, &path, sorted, &mut stack, visit)?;
        }
    }
    Ok(())
}

fn open<E>(
    fs: &FileSystem,
    node: Node,
    path: &[u8],
    sorted: bool,
    stack: &mut Vec<Level>,
    visit: &mut dyn FnMut(Step<'_>) -> Result<Go, E>,
) -> Result<(), E> {
    match fs.read_dir(node.id()) {
        Ok(entries) => {
            let (entries, cookie) = if sorted { (sort(entries).into(), None) } else { some(entries) };
            stack.push(Level { node, entries, cookie, path_len: path.len() });
        }
        Err(why) => {
            visit(Step::Lost { path, why: &why })?;
            visit(Step::Leave { path, node: &node })?;
        }
    }
    Ok(())
}

/// The entries by name, errors last.
#[must_use]
pub fn sort(entries: ReadDir) -> Vec<Result<DirEntry, Error>> {
    let mut all: Vec<_> = entries.collect();
    all.sort_by(|a, b| match (a, b) {
        (Ok(a), Ok(b)) => a.name.cmp(&b.name),
        (a, b) => a.is_err().cmp(&b.is_err()),
    });
    all
}
