//! The expected contents of a pool: datasets, their snapshots, and the contents of both.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// The contents of a dataset or snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Contents {
    /// The SHA-256 of each file, by its path.
    Files(BTreeMap<String, String>),
    /// The bytes of a volume.
    Volume(Arc<Vec<u8>>),
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    pub name: String,
    /// Its guid, which a received copy of it has as well.
    pub guid: u64,
    pub contents: Contents,
}

/// A file system or volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    pub contents: Contents,
    /// In the order in which they were taken.
    pub snapshots: Vec<Snapshot>,
    /// The dataset and guid of the snapshot it was cloned from.
    pub origin: Option<(String, u64)>,
    pub encrypted: bool,
}

/// All heads by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Model {
    pub heads: BTreeMap<String, Head>,
}

/// The visible contents of a pool: those of each dataset and snapshot by name.
pub type Seen = BTreeMap<String, Contents>;

impl Model {
    /// The contents that inspecting the pool must show.
    pub fn seen(&self) -> Seen {
        let mut seen = Seen::new();
        for (name, head) in &self.heads {
            seen.insert(name.clone(), head.contents.clone());
            for snapshot in &head.snapshots {
                seen.insert(format!("{name}@{}", snapshot.name), snapshot.contents.clone());
            }
        }
        seen
    }

    /// The files of a head, to be changed.
    pub fn files(&mut self, head: &str) -> &mut BTreeMap<String, String> {
        match self.heads.get_mut(head).map(|head| &mut head.contents) {
            Some(Contents::Files(files)) => files,
            _ => panic!("{head} is no file system"),
        }
    }

    /// Clones of the snapshots of a head.
    pub fn clones_of(&self, name: &str) -> Vec<(String, u64)> {
        let origin = |head: &Head| head.origin.clone().filter(|(origin, _)| origin == name);
        self.heads.iter().filter_map(|(clone, head)| Some((clone.clone(), origin(head)?.1))).collect()
    }

    /// Promotes a clone: it takes the snapshots up to its origin from the head that has them, and that head becomes
    /// its clone.
    pub fn promote(&mut self, clone: &str) {
        let Some((origin, guid)) = self.heads[clone].origin.clone() else { panic!("{clone} is no clone") };
        let old = self.heads.get_mut(&origin).unwrap();
        let end = 1 + old.snapshots.iter().position(|snapshot| snapshot.guid == guid).unwrap();
        let mut moved: Vec<Snapshot> = old.snapshots.drain(..end).collect();
        let before = old.origin.replace((clone.to_owned(), guid));
        let new = self.heads.get_mut(clone).unwrap();
        new.origin = before;
        let guids: Vec<u64> = moved.iter().map(|snapshot| snapshot.guid).collect();
        moved.append(&mut new.snapshots);
        new.snapshots = moved;
        for (name, head) in &mut self.heads {
            match &mut head.origin {
                Some((from, of)) if *from == origin && guids.contains(of) && name != clone => *from = clone.to_owned(),
                _ => {}
            }
        }
    }

    /// Renames a head.
    pub fn rename(&mut self, from: &str, to: &str) {
        let head = self.heads.remove(from).unwrap();
        self.heads.insert(to.to_owned(), head);
        for head in self.heads.values_mut() {
            match &mut head.origin {
                Some((name, _)) if name == from => to.clone_into(name),
                _ => {}
            }
        }
    }
}

/// The first few differences between the expected and the actual contents.
pub fn difference(expected: &Seen, found: &Seen) -> String {
    let mut text = String::new();
    let names: std::collections::BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    for name in names.into_iter().filter(|name| expected.get(*name) != found.get(*name)).take(4) {
        let _ = match (expected.get(name), found.get(name)) {
            (Some(Contents::Files(expected)), Some(Contents::Files(found))) => {
                let differs = |path: &&&String| expected.get(**path) != found.get(**path);
                let paths: Vec<_> = expected.keys().chain(found.keys()).collect();
                let paths: Vec<_> = paths.iter().filter(differs).take(4).collect();
                writeln!(text, "{name}: other files: {paths:?}")
            }
            (Some(_), None) => writeln!(text, "{name}: is missing"),
            (None, Some(_)) => writeln!(text, "{name}: should not be there"),
            _ => writeln!(text, "{name}: another volume"),
        };
    }
    text
}
