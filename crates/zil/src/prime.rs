//! Priming: what a replay will read is read before, much of it at a time.
//!
//! A replay takes one record after the other, and each would wait for its dnode, the block that it changes in part, the leaf of its
//! directory, one after another: with slow devices that is nearly all of its time. All of that can be told from the records. It is read in
//! the order of its places in three steps, as each needs the one before: dnodes; blocks of files that are changed in part, and entries of
//! directories; dnodes of what these entries name. Errors are dropped here, for the replay will meet them. What is read stays
//! within half of the cache.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

use base::{pump, tunable};
use dmu::{Objset, Zap};
use ondisk::BlkPtr;
use ondisk::zil::Record;
use zio::Bookmark;

use crate::plan;
use crate::replay::{self, Due, object_of};

/// Entries hold the number of an object in so many low bits.
const OBJECT_MASK: u64 = (1 << 48) - 1;

/// What some records will read.
#[derive(Default)]
struct Plan<'a> {
    /// Objects that are changed.
    objects: BTreeSet<u64>,
    /// Stretches that are written, by object.
    writes: BTreeMap<u64, Vec<(u64, u64)>>,
    /// Entries that are looked up, by directory.
    names: BTreeMap<u64, BTreeSet<&'a [u8]>>,
    /// Blocks that indirect writes point at, and of which object.
    data: Vec<(u64, BlkPtr)>,
}

impl<'a> Plan<'a> {
    /// What records other than those `superseded` read.
    fn of(due: &[Due<'a>], superseded: &HashSet<usize>) -> Plan<'a> {
        let mut plan = Plan::default();
        for (n, record) in due.iter().enumerate().filter_map(|(n, due)| Some((n, due.record.as_ref()?))) {
            match record {
                Record::Write(_) if superseded.contains(&n) => {}
                Record::Write(write) => {
                    plan.writes.entry(write.foid).or_default().push((write.offset, write.length));
                    if write.data.is_none() && !write.blkptr.is_hole() && !write.blkptr.is_embedded() {
                        plan.data.push((write.foid, write.blkptr));
                    }
                }
                Record::Create(new) => plan.name(new.doid, new.name),
                Record::Remove { doid, name } => plan.name(*doid, name),
                Record::Link { doid, link_obj, name } => {
                    plan.objects.insert(*link_obj);
                    plan.name(*doid, name);
                }
                Record::Rename(rename) => {
                    plan.name(rename.sdoid, rename.src);
                    plan.name(rename.tdoid, rename.dst);
                }
                Record::Truncate { foid, offset, length } => {
                    plan.writes.entry(*foid).or_default().push((*offset, *length));
                }
                _ => {}
            }
        }
        plan
    }

    fn name(&mut self, dir: u64, name: &'a [u8]) {
        self.objects.insert(dir);
        self.names.entry(dir).or_default().insert(name);
    }

    /// The entries, first one of each directory: these are what waits.
    fn entries(&self) -> Vec<(u64, &'a [u8])> {
        let ranked = |(dir, names): (&u64, &BTreeSet<&'a [u8]>)| {
            let dir = *dir;
            names.iter().enumerate().map(move |(rank, name)| (rank, dir, *name)).collect::<Vec<_>>()
        };
        let mut all: Vec<(usize, u64, &[u8])> = self.names.iter().flat_map(ranked).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, dir, name)| (dir, name)).collect()
    }
}

/// Reads what `due` will read into the cache; `merges` if the replay leaves out what is written again.
pub(crate) fn prime(objset: &Arc<Objset>, due: &[Due<'_>], merges: bool) {
    dnodes(objset, due.iter().filter_map(|due| object_of(due.record.as_ref()?)).collect());
    let superseded = if merges { superseded(objset, due) } else { HashSet::new() };
    let plan = Plan::of(due, &superseded);
    let entries = plan.entries();
    let Plan { objects, writes, data, .. } = plan;
    dnodes(objset, objects);
    let mut left = tunable::ZFS_ARC_MAX.get() / 2;
    let mut blocks = Vec::new();
    for (id, stretches) in writes {
        let Ok(object) = objset.object(id) else { continue };
        let size = object.block_size();
        for blkid in edges(&stretches, size).into_iter().filter(|blkid| *blkid < object.nblocks()) {
            left = left.saturating_sub(size);
            if left == 0 {
                break;
            }
            blocks.push((object.clone(), blkid));
        }
    }
    pump::ahead(blocks, |(object, blkid)| drop(object.fetch(*blkid)));
    let found = pump::ahead(entries, |(dir, name)| {
        let zap = Zap::open(objset.object(*dir).ok()?).ok()?;
        Some(zap.lookup_u64(name).ok()?? & OBJECT_MASK)
    });
    dnodes(objset, found.into_iter().flatten().collect());
    let fits = |(_, bp): &(u64, BlkPtr)| {
        left = left.saturating_sub(bp.lsize());
        left > 0
    };
    let mut data: Vec<(u64, BlkPtr)> = data.into_iter().take_while(fits).collect();
    data.sort_unstable_by_key(|(_, bp)| (bp.dva(0).vdev(), bp.dva(0).offset()));
    pump::ahead(data, |(object, bp)| {
        let bm = Bookmark { objset: objset.id(), object: *object, level: Bookmark::ZIL_LEVEL, blkid: 0 };
        drop(objset.zio().read(bp, &bm));
    });
}

/// Reads the blocks of dnodes that hold `objects`.
fn dnodes(objset: &Arc<Objset>, objects: BTreeSet<u64>) {
    let per_block = objset.dnodes_per_block();
    let mut ids: Vec<u64> = objects.into_iter().collect();
    ids.dedup_by_key(|id| id.checked_div(per_block));
    pump::ahead(ids, |id| drop(objset.object(*id)));
}

/// Which records the windows of a replay will leave out, as long as no record fails.
fn superseded(objset: &Arc<Objset>, due: &[Due<'_>]) -> HashSet<usize> {
    let windows = plan::windows(&due.iter().map(|due| due.bytes).collect::<Vec<_>>());
    let within = |window: Range<usize>| {
        let found = replay::superseded(objset, due.get(window.clone()).unwrap_or_default());
        found.into_iter().map(move |n| window.start + n)
    };
    windows.into_iter().flat_map(within).collect()
}

/// The blocks of `size` bytes that are changed in part by `stretches`, and not written as a whole before.
fn edges(stretches: &[(u64, u64)], size: u64) -> BTreeSet<u64> {
    let (mut whole, mut edges) = (BTreeSet::new(), BTreeSet::new());
    for (offset, len) in stretches {
        let end = offset.saturating_add(*len);
        let (Some(first), Some(last)) = (offset.checked_div(size), end.checked_div(size)) else { continue };
        let partial = [(first, offset % size != 0 || end < (first + 1).saturating_mul(size)), (last, end % size != 0)];
        edges.extend(partial.iter().filter(|(blkid, is)| *is && !whole.contains(blkid)).map(|(blkid, _)| *blkid));
        let full = offset.div_ceil(size)..last;
        // what is longer than any record is no write
        whole.extend(full.take(1024));
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::edges;

    #[test]
    fn only_blocks_that_are_changed_in_part_are_read() {
        let of = |stretches: &[(u64, u64)]| edges(stretches, 100).into_iter().collect::<Vec<_>>();
        assert_eq!(of(&[(0, 100)]), []);
        assert_eq!(of(&[(0, 99), (350, 10)]), [0, 3]);
        assert_eq!(of(&[(50, 200)]), [0, 2]);
        assert_eq!(of(&[(50, 150)]), [0]);
        assert_eq!(of(&[(0, 100), (10, 20)]), [], "written as a whole before");
        assert_eq!(of(&[(10, 20), (0, 100)]), [0]);
        assert!(super::edges(&[(5, 5)], 0).is_empty());
    }
}
