//! Collects the datasets, snapshots and properties of a package (OpenZFS: `gather_nvlist`, `send_iterate_fs`,
//! `send_iterate_snap`).

use std::fmt;

use base::{Guid, Txg};
use nvlist::NvList;

use super::{Facts, Head, Snap};

/// Properties that limit space, which snapshots do not have.
const LIMITS: [&str; 4] = ["quota", "reservation", "refquota", "refreservation"];

/// The requested contents of a package (OpenZFS: `sendflags_t`).
#[derive(Clone, Debug, Default)]
pub struct What {
    /// The snapshot to start from, without its dataset.
    pub from: Option<String>,
    /// The snapshot that is sent, without its dataset.
    pub to: String,
    /// `-R`: also all descendant datasets.
    pub replicate: bool,
    /// `-I`, or `-R` of everything: also the snapshots in between.
    pub all: bool,
    /// `-w`.
    pub raw: bool,
    /// `-b`: properties as they were received.
    pub backup: bool,
    /// `-h`.
    pub holds: bool,
    /// `-p`.
    pub props: bool,
    /// `-s`: datasets without the snapshot are skipped.
    pub skip_missing: bool,
    /// `-U`: encrypted datasets may be sent in the clear.
    pub unencrypted: bool,
    /// `-X`: datasets that are skipped with all their descendants.
    pub exclude: Vec<String>,
    /// The first snapshot is sent from the origin of its clone.
    pub from_origin: bool,
}

/// A dataset of a package.
#[derive(Clone, Debug)]
pub struct Member {
    /// The dataset itself.
    pub head: Head,
    /// The snapshot that it was cloned from.
    pub origin: Option<Snap>,
    /// Its snapshot that is sent.
    pub to: Snap,
    /// Its snapshot to start from.
    pub from: Option<Snap>,
    /// Its snapshots that the header lists, oldest first.
    pub snaps: Vec<Snap>,
    /// Its entry in the header.
    pub(super) list: NvList,
}

/// A note for the user about a dataset or snapshot that is skipped or sent differently.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// A snapshot younger than the one that is sent.
    YoungerSnapshot {
        /// Its full name.
        name: String,
        /// The snapshot that is sent.
        to: String,
    },
    /// A dataset younger than the snapshot that is sent.
    YoungerDataset {
        /// Its name.
        name: String,
        /// The snapshot that is sent.
        to: String,
    },
    /// A dataset that is skipped because it has no such snapshot.
    Missing {
        /// Its name.
        name: String,
        /// The snapshot that is sent.
        to: String,
    },
    /// An encrypted dataset that is sent in the clear.
    Unencrypted {
        /// Its name.
        name: String,
    },
}

impl Note {
    /// True if it is printed only with `-v`.
    #[must_use]
    pub fn is_verbose(&self) -> bool {
        matches!(self, Note::YoungerSnapshot { .. } | Note::YoungerDataset { .. })
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::YoungerSnapshot { name, to } => {
                write!(f, "skipping snapshot {name} because it was created after the destination snapshot ({to})")
            }
            Note::YoungerDataset { name, to } => write!(f, "skipping dataset {name}: snapshot {to} does not exist"),
            Note::Missing { name, to } => {
                write!(f, "WARNING: skipping dataset {name} and its children: snapshot {to} does not exist")
            }
            Note::Unencrypted { name } => {
                write!(f, "WARNING: no-preserve-encryption flag set, sending dataset {name} without encryption")
            }
        }
    }
}

/// Reasons why a package cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something about a dataset cannot be told.
    #[error("{0}")]
    Facts(Box<dyn std::error::Error + Send + Sync>),
    /// The header's list cannot be packed.
    #[error(transparent)]
    NvList(#[from] nvlist::Error),
    /// A dataset that is older than the snapshot does not have it.
    #[error("cannot send {top}@{to}{}: snapshot {name}@{to} does not exist", if *.recursive { " recursively" } else { "" })]
    NoSnapshot {
        /// The dataset at the top.
        top: String,
        /// The snapshot that is sent.
        to: String,
        /// The dataset without it.
        name: String,
        /// True if all descendants of the top are sent.
        recursive: bool,
    },
    /// An encrypted dataset would be sent in the clear, since a package does not say how to encrypt it.
    #[error(
        "cannot send {top}@{to}: encrypted dataset {name} may not be sent with properties without the raw flag or \
         no-preserve-encryption flag"
    )]
    Encrypted {
        /// The dataset at the top.
        top: String,
        /// The snapshot that is sent.
        to: String,
        /// The encrypted dataset.
        name: String,
    },
    /// The header would be longer than receivers accept.
    #[error(
        "warning: cannot send '{top}@{to}': the size of the list of snapshots and properties is too large to be received \
         successfully.\nSelect a smaller number of snapshots to send.\n"
    )]
    TooLong {
        /// The dataset at the top.
        top: String,
        /// The snapshot that is sent.
        to: String,
    },
}

/// The datasets of a package, parents first.
#[derive(Clone, Debug)]
pub struct Gathered {
    /// The requested contents.
    pub what: What,
    /// The datasets.
    pub members: Vec<Member>,
    /// Notes for the user.
    pub notes: Vec<Note>,
}

/// The state that a dataset inherits from its parent.
#[derive(Clone, Copy, Default)]
struct Above {
    /// The parent's base snapshot, or the one to be sent.
    from: Guid,
    /// The creation txg of the snapshot to be sent, in the nearest dataset that has it.
    to_txg: Option<Txg>,
}

impl Gathered {
    /// Collects `top` and, for `-R`, all its descendants.
    ///
    /// # Errors
    /// [`Error`]: a snapshot that is missing, an encrypted dataset.
    pub fn new(facts: &dyn Facts, top: &Head, what: What) -> Result<Gathered, Error> {
        let mut gathered = Gathered { what, members: Vec::new(), notes: Vec::new() };
        let above = Above { from: Guid(0), to_txg: None };
        gathered.visit(facts, top, &top.name, above)?;
        Ok(gathered)
    }

    fn visit(&mut self, facts: &dyn Facts, head: &Head, top: &str, above: Above) -> Result<(), Error> {
        if self.what.exclude.contains(&head.name) {
            return Ok(());
        }
        let all = facts.snapshots(&head.name)?;
        let named = |name: &str| all.iter().find(|snap| snap.short_name() == name);
        let Some(to) = named(&self.what.to) else {
            return self.without(head, top, above.to_txg);
        };
        let from = self.what.from.as_deref().and_then(named);
        let snaps = self.wanted(&all, from, to.txg);
        let below = Above { from: self.start_of(&snaps), to_txg: Some(to.txg) };
        let start = match (&self.what.from, from) {
            // a file system that ignores case has it under another name
            (Some(name), None) => facts.snapshot(&head.name, name)?,
            _ => from.cloned(),
        };
        let Entry { list, origin } = self.entry(facts, (head, top), above.from, &snaps)?;
        self.members.push(Member { head: head.clone(), origin, to: to.clone(), from: start, snaps, list });
        if self.what.replicate {
            for child in facts.children(&head.name)? {
                self.visit(facts, &child, top, below)?;
            }
        }
        Ok(())
    }

    /// Handles a dataset that does not have the snapshot.
    fn without(&mut self, head: &Head, top: &str, to_txg: Option<Txg>) -> Result<(), Error> {
        let (name, to) = (head.name.clone(), self.what.to.clone());
        if to_txg.is_some_and(|txg| head.txg > txg) {
            self.notes.push(Note::YoungerDataset { name, to });
        } else if self.what.skip_missing {
            self.notes.push(Note::Missing { name, to });
        } else {
            return Err(Error::NoSnapshot { top: top.to_owned(), to, name, recursive: self.what.replicate });
        }
        Ok(())
    }

    /// Returns the snapshots that the header lists.
    fn wanted(&mut self, all: &[Snap], from: Option<&Snap>, to_txg: Txg) -> Vec<Snap> {
        let mut snaps = Vec::new();
        for snap in all {
            if snap.txg > to_txg {
                if self.what.replicate {
                    let (name, to) = (snap.name.clone(), self.what.to.clone());
                    self.notes.push(Note::YoungerSnapshot { name, to });
                }
                continue;
            }
            let between = from.is_none_or(|from| snap.txg >= from.txg);
            let one = snap.short_name() == self.what.to;
            if self.what.replicate || (self.what.all && between) || one {
                snaps.push(snap.clone());
            }
        }
        snaps
    }

    /// Returns the index of the first snapshot whose properties are included: of a single dataset the one after the base.
    fn window(&self, snaps: &[Snap]) -> usize {
        let Some(from) = self.what.from.as_deref().filter(|_| !self.what.replicate) else { return 0 };
        snaps.iter().position(|snap| snap.short_name() == from).map_or(0, |at| at + 1)
    }

    /// Returns the snapshot that children name as their parent's: the base, else the one to be sent.
    fn start_of(&self, snaps: &[Snap]) -> Guid {
        let named = |name: &str| snaps.iter().find(|snap| snap.short_name() == name).map(|snap| snap.guid);
        self.what.from.as_deref().and_then(named).or_else(|| named(&self.what.to)).unwrap_or(Guid(0))
    }

    fn entry(
        &mut self,
        facts: &dyn Facts,
        (head, top): (&Head, &str),
        parent_from: Guid,
        snaps: &[Snap],
    ) -> Result<Entry, Error> {
        let details = facts.details(&head.name)?;
        let mut list = NvList::new();
        list.insert("name", &head.name);
        list.insert("parentfromsnap", parent_from.0);
        if let Some(origin) = &details.origin {
            list.insert("origin", origin.guid.0);
        }
        if self.what.props || self.what.backup || self.what.replicate {
            list.insert("props", details.props);
        }
        if let Some(root) = details.encryption_root {
            if root == head.name {
                list.insert("is_encroot", ());
            }
            let name = head.name.clone();
            match (self.what.raw, self.what.unencrypted) {
                (true, _) => {}
                (false, true) => self.notes.push(Note::Unencrypted { name }),
                (false, false) => {
                    return Err(Error::Encrypted { top: top.to_owned(), to: self.what.to.clone(), name });
                }
            }
        }
        let window = snaps.get(self.window(snaps)..).unwrap_or_default();
        let (mut guids, mut snapprops, mut holds) = (NvList::new(), NvList::new(), NvList::new());
        snaps.iter().for_each(|snap| guids.insert(snap.short_name(), snap.guid.0));
        let all = if window.is_empty() { Vec::new() } else { facts.props(&head.name, window)? };
        for (snap, mut props) in window.iter().zip(all) {
            props.remove_many(LIMITS);
            snapprops.insert(snap.short_name(), props);
            if self.what.holds {
                holds.insert(snap.short_name(), facts.holds(&snap.name)?);
            }
        }
        list.insert("snaps", guids);
        list.insert("snapprops", snapprops);
        if self.what.holds {
            list.insert("snapholds", holds);
        }
        Ok(Entry { list, origin: details.origin })
    }
}

/// The entry of a dataset in the header, and its origin.
struct Entry {
    list: NvList,
    origin: Option<Snap>,
}
