//! The order of the streams of a package, and the base of each (OpenZFS: `dump_filesystems`, `dump_filesystem`, `dump_snapshot`).

use std::collections::HashSet;
use std::fmt;

use base::Guid;
use pool::Dataset;

use super::{Gathered, Member};

/// One stream.
#[derive(Clone, Debug)]
pub struct Step {
    /// The snapshot that is sent.
    pub to: Dataset,
    /// Its base: a snapshot of the same dataset, or its origin.
    pub from: Option<Dataset>,
    /// True if the base is the origin of a clone.
    pub from_origin: bool,
}

/// Reasons why nothing, or not everything, of a dataset can be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unsent {
    /// The snapshot does not exist.
    NoTo {
        /// Its full name.
        to: String,
    },
    /// The base snapshot does not exist.
    NoFrom {
        /// The snapshot to be sent.
        to: String,
        /// The base.
        from: String,
    },
    /// The dataset's origin is part of the package and cannot be sent before it: the origins form a circle.
    Circle {
        /// The snapshot to be sent.
        to: String,
    },
    /// The base snapshot is not an earlier one.
    NotEarlier {
        /// The snapshot to be sent.
        to: String,
        /// The base.
        from: String,
    },
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsent::NoTo { to } => write!(f, "WARNING: could not send {to}: does not exist"),
            Unsent::NoFrom { to, from } => {
                write!(f, "WARNING: could not send {to}:\nincremental source ({from}) does not exist")
            }
            Unsent::Circle { to } => write!(f, "WARNING: could not send {to}:\nits origin is a clone of it"),
            Unsent::NotEarlier { to, from } => {
                write!(f, "WARNING: could not send {to}:\nincremental source ({from}) is not earlier than it")
            }
        }
    }
}

/// All streams of a package.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The streams in order.
    pub steps: Vec<Step>,
    /// The datasets that are not sent, with the reasons.
    pub unsent: Vec<Unsent>,
}

impl Gathered {
    /// Returns the streams in order.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn steps(&self) -> Result<Plan, pool::Error> {
        let origins: HashSet<Guid> = self.members.iter().filter_map(|member| member.origin).collect();
        let inside: HashSet<Guid> = self.members.iter().flat_map(|m| m.snaps.iter().map(Dataset::guid)).collect();
        let mut plan = Plan::default();
        let mut done = HashSet::new();
        let mut waiting: Vec<&Member> = self.members.iter().collect();
        while !waiting.is_empty() {
            let before = waiting.len();
            let mut later = Vec::new();
            for member in waiting {
                // a clone waits for its origin, if that is in the package
                if member.origin.is_some_and(|origin| inside.contains(&origin) && !done.contains(&origin)) {
                    later.push(member);
                    continue;
                }
                self.dataset(member, &origins, &mut plan)?;
                done.extend(member.snaps.iter().map(Dataset::guid));
            }
            if later.len() == before {
                // a damaged pool: two clones are each other's origin
                let to = |member: &&Member| format!("{}@{}", member.head.name(), self.what.to);
                plan.unsent.extend(later.iter().map(|member| Unsent::Circle { to: to(member) }));
                break;
            }
            waiting = later;
        }
        Ok(plan)
    }

    fn dataset(&self, member: &Member, origins: &HashSet<Guid>, plan: &mut Plan) -> Result<(), pool::Error> {
        let what = &self.what;
        let full = |snap: &str| format!("{}@{snap}", member.head.name());
        let find = |name: &str| {
            member.head.snapshot(name).map(Some).or_else(|e| if e.is_not_found() { Ok(None) } else { Err(e) })
        };
        let Some(to) = find(&what.to)? else {
            plan.unsent.push(Unsent::NoTo { to: full(&what.to) });
            return Ok(());
        };
        let from = what.from.as_deref().map(find).transpose()?.flatten();
        if let (Some(name), None, false) = (&what.from, &from, what.replicate) {
            plan.unsent.push(Unsent::NoFrom { to: full(&what.to), from: full(name) });
            return Ok(());
        }
        if let Some(from) = from.as_ref().filter(|from| from.phys().creation_txg >= to.phys().creation_txg) {
            plan.unsent.push(Unsent::NotEarlier { to: full(&what.to), from: full(from.short_name()) });
            return Ok(());
        }
        let first = from.as_ref().map_or(base::Txg(0), |from| from.phys().creation_txg);
        let mut before = from;
        for snap in &member.snaps {
            let txg = snap.phys().creation_txg;
            let is_to = snap.guid() == to.guid();
            let wanted = what.all || is_to || (what.replicate && origins.contains(&snap.guid()));
            if txg <= first || txg > to.phys().creation_txg || !wanted {
                continue;
            }
            let from_origin = before.is_none() && (what.from_origin || what.replicate);
            let origin = if from_origin { member.head.origin()? } else { None };
            let from_origin = origin.is_some();
            plan.steps.push(Step { to: snap.clone(), from: before.take().or(origin), from_origin });
            before = Some(snap.clone());
        }
        Ok(())
    }
}
