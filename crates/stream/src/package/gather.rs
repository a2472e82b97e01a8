//! Collects the datasets, snapshots and properties of a package (OpenZFS: `gather_nvlist`, `send_iterate_fs`,
//! `send_iterate_snap`).

use std::fmt;

use base::{Guid, Txg};
use nvlist::NvList;
use pool::Dataset;
use pool::prop::{DATASET, Value};

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
    pub head: Dataset,
    /// The guid of the snapshot that it was cloned from.
    pub origin: Option<Guid>,
    /// Its snapshots, oldest first.
    pub snaps: Vec<Dataset>,
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
    /// The pool cannot be read.
    #[error(transparent)]
    Pool(#[from] pool::Error),
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
    pub fn new(top: &Dataset, what: What) -> Result<Gathered, Error> {
        let mut gathered = Gathered { what, members: Vec::new(), notes: Vec::new() };
        let above = Above { from: Guid(0), to_txg: None };
        gathered.visit(top, top.name(), above)?;
        Ok(gathered)
    }

    fn visit(&mut self, head: &Dataset, top: &str, above: Above) -> Result<(), Error> {
        if self.what.exclude.iter().any(|name| name == head.name()) {
            return Ok(());
        }
        let all = head.snapshots()?;
        let named = |name: &str| all.iter().find(|snap| snap.short_name() == name);
        let to = named(&self.what.to);
        let to_txg = to.map(|snap| snap.phys().creation_txg).or(above.to_txg);
        if to.is_none() {
            return self.without(head, top, to_txg);
        }
        let from = self.what.from.as_deref().and_then(named);
        let snaps = self.wanted(&all, from, to_txg);
        let listed = if self.what.replicate { None } else { self.window(&snaps) };
        let below = self.start_of(&snaps);
        let member = self.member(head, top, above.from, snaps, listed)?;
        self.members.push(member);
        if self.what.replicate {
            for child in head.children()? {
                self.visit(&child, top, Above { from: below, to_txg })?;
            }
        }
        Ok(())
    }

    /// Handles a dataset that does not have the snapshot.
    fn without(&mut self, head: &Dataset, top: &str, to_txg: Option<Txg>) -> Result<(), Error> {
        let (name, to) = (head.name().to_owned(), self.what.to.clone());
        if to_txg.is_some_and(|txg| head.phys().creation_txg > txg) {
            self.notes.push(Note::YoungerDataset { name, to });
        } else if self.what.skip_missing {
            self.notes.push(Note::Missing { name, to });
        } else {
            return Err(Error::NoSnapshot { top: top.to_owned(), to, name, recursive: self.what.replicate });
        }
        Ok(())
    }

    /// Returns the snapshots that the header lists.
    fn wanted(&mut self, all: &[Dataset], from: Option<&Dataset>, to_txg: Option<Txg>) -> Vec<Dataset> {
        let mut snaps = Vec::new();
        for snap in all {
            let txg = snap.phys().creation_txg;
            if to_txg.is_some_and(|to| txg > to) {
                if self.what.replicate {
                    let (name, to) = (snap.name().to_owned(), self.what.to.clone());
                    self.notes.push(Note::YoungerSnapshot { name, to });
                }
                continue;
            }
            let between = from.is_none_or(|from| txg >= from.phys().creation_txg);
            let one = snap.short_name() == self.what.to;
            if self.what.replicate || (self.what.all && between) || one {
                snaps.push(snap.clone());
            }
        }
        snaps
    }

    /// Returns the index of the first snapshot of a single dataset whose properties are included: the one after the base.
    fn window(&self, snaps: &[Dataset]) -> Option<usize> {
        let from = self.what.from.as_deref()?;
        snaps.iter().position(|snap| snap.short_name() == from).map(|at| at + 1)
    }

    /// Returns the snapshot that children name as their parent's: the base, else the one to be sent.
    fn start_of(&self, snaps: &[Dataset]) -> Guid {
        let named = |name: &str| snaps.iter().find(|snap| snap.short_name() == name).map(Dataset::guid);
        self.what.from.as_deref().and_then(named).or_else(|| named(&self.what.to)).unwrap_or(Guid(0))
    }

    fn member(
        &mut self,
        head: &Dataset,
        top: &str,
        parent_from: Guid,
        snaps: Vec<Dataset>,
        listed: Option<usize>,
    ) -> Result<Member, Error> {
        let mut list = NvList::new();
        list.insert("name", head.name());
        list.insert("parentfromsnap", parent_from.0);
        let origin = head.origin()?.map(|origin| origin.guid());
        if let Some(origin) = origin {
            list.insert("origin", origin.0);
        }
        if self.what.props || self.what.backup || self.what.replicate {
            list.insert("props", props(head, self.what.backup)?);
        }
        if head.is_encrypted()? {
            if head.encryption_root()?.as_deref() == Some(head.name()) {
                list.insert("is_encroot", ());
            }
            let name = head.name().to_owned();
            match (self.what.raw, self.what.unencrypted) {
                (true, _) => {}
                (false, true) => self.notes.push(Note::Unencrypted { name }),
                (false, false) => {
                    return Err(Error::Encrypted { top: top.to_owned(), to: self.what.to.clone(), name });
                }
            }
        }
        let (mut guids, mut snapprops, mut holds) = (NvList::new(), NvList::new(), NvList::new());
        for (n, snap) in snaps.iter().enumerate() {
            guids.insert(snap.short_name(), snap.guid().0);
            if listed.is_some_and(|first| n < first) {
                continue;
            }
            snapprops.insert(snap.short_name(), props(snap, self.what.backup)?);
            if self.what.holds {
                let mut held = NvList::new();
                snap.holds()?.iter().for_each(|hold| held.insert(&hold.tag, hold.time));
                holds.insert(snap.short_name(), held);
            }
        }
        list.insert("snaps", guids);
        list.insert("snapprops", snapprops);
        if self.what.holds {
            list.insert("snapholds", holds);
        }
        Ok(Member { head: head.clone(), origin, snaps, list })
    }
}

/// Returns the properties set on the dataset itself; with `received`, those that came with a stream.
fn props(dataset: &Dataset, received: bool) -> Result<NvList, pool::Error> {
    let mut list = NvList::new();
    let native = DATASET.iter().filter(|def| !def.is_read_only()).map(|def| def.name.to_owned());
    let limits = ["quota", "reservation", "refquota", "refreservation"];
    let native = native.filter(|name| !dataset.is_snapshot() || !limits.contains(&name.as_str()));
    let users = dataset.user_props()?.into_iter().map(|(name, _)| name);
    for name in native.chain(users) {
        let value = if received { dataset.received_prop(&name)? } else { dataset.own_setting(&name)? };
        match value {
            Some(Value::Number(n)) => list.insert(&name, n),
            Some(Value::String(text)) => list.insert(&name, text.as_str()),
            None => {}
        }
    }
    Ok(list)
}
