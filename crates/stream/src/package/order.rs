//! The order of the streams of a package, and the base of each (OpenZFS: `dump_filesystems`, `dump_filesystem`, `dump_snapshot`).

use std::collections::HashSet;
use std::fmt;

use base::{Guid, Txg};

use super::{Gathered, Member, Snap};

/// One stream.
#[derive(Clone, Debug)]
pub struct Step {
    /// The snapshot that is sent.
    pub to: Snap,
    /// Its base: a snapshot of the same dataset, or its origin.
    pub from: Option<Snap>,
    /// True if the base is the origin of a clone.
    pub from_origin: bool,
}

/// Reasons why nothing, or not everything, of a dataset can be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unsent {
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
    #[must_use]
    pub fn steps(&self) -> Plan {
        let origins: HashSet<Guid> = self.members.iter().filter_map(|m| Some(m.origin.as_ref()?.guid)).collect();
        let inside: HashSet<Guid> = self.members.iter().flat_map(|m| m.snaps.iter().map(|snap| snap.guid)).collect();
        let mut plan = Plan::default();
        let mut done = HashSet::new();
        let mut waiting: Vec<&Member> = self.members.iter().collect();
        while !waiting.is_empty() {
            let before = waiting.len();
            let mut later = Vec::new();
            for member in waiting {
                // a clone waits for its origin, if that is in the package
                let is_waiting = |origin: &Snap| inside.contains(&origin.guid) && !done.contains(&origin.guid);
                if member.origin.as_ref().is_some_and(is_waiting) {
                    later.push(member);
                    continue;
                }
                self.dataset(member, &origins, &mut plan);
                done.extend(member.snaps.iter().map(|snap| snap.guid));
            }
            if later.len() == before {
                // a damaged pool: two clones are each other's origin
                plan.unsent.extend(later.iter().map(|member| Unsent::Circle { to: member.to.name.clone() }));
                break;
            }
            waiting = later;
        }
        plan
    }

    fn dataset(&self, member: &Member, origins: &HashSet<Guid>, plan: &mut Plan) {
        let (what, to) = (&self.what, &member.to);
        if let (Some(name), None, false) = (&what.from, &member.from, what.replicate) {
            let from = format!("{}@{name}", member.head.name);
            plan.unsent.push(Unsent::NoFrom { to: to.name.clone(), from });
            return;
        }
        if let Some(from) = member.from.as_ref().filter(|from| from.txg >= to.txg) {
            plan.unsent.push(Unsent::NotEarlier { to: to.name.clone(), from: from.name.clone() });
            return;
        }
        let first = member.from.as_ref().map_or(Txg(0), |from| from.txg);
        let mut before = member.from.clone();
        for snap in &member.snaps {
            let is_to = snap.guid == to.guid;
            let wanted = what.all || is_to || (what.replicate && origins.contains(&snap.guid));
            if snap.txg <= first || snap.txg > to.txg || !wanted {
                continue;
            }
            let from_origin = before.is_none() && (what.from_origin || what.replicate);
            let origin = member.origin.clone().filter(|_| from_origin);
            let from_origin = origin.is_some();
            plan.steps.push(Step { to: snap.clone(), from: before.take().or(origin), from_origin });
            before = Some(snap.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use nvlist::NvList;

    use super::super::{Head, What};
    use super::*;

    /// A file system with one snapshot.
    fn member(name: &str, n: u64) -> Member {
        let snap = Snap { name: format!("{name}@1"), guid: Guid(n), txg: Txg(n) };
        let head = Head { name: name.to_owned(), guid: Guid(100 + n), txg: Txg(n) };
        Member { head, origin: None, to: snap.clone(), from: None, snaps: vec![snap], list: NvList::new() }
    }

    /// Origins that form a circle, which only a damaged pool has: such datasets are not left out silently.
    #[test]
    fn clones_of_each_other_are_reported() {
        let what = What { to: "1".to_owned(), ..What::default() };
        let (mut a, mut b) = (member("t/a", 1), member("t/b", 2));
        let of = |members| Gathered { what: what.clone(), members, notes: Vec::new() };
        assert_eq!(of(vec![a.clone(), b.clone()]).steps().steps.len(), 2);
        (a.origin, b.origin) = (Some(b.to.clone()), Some(a.to.clone()));
        let plan = of(vec![a, b]).steps();
        assert!(plan.steps.is_empty());
        let told: Vec<String> = plan.unsent.iter().map(ToString::to_string).collect();
        assert!(told.len() == 2 && told[0].contains("could not send t/a@1"), "{told:?}");
    }
}
