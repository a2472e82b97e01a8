//! Priming: the blocks that a replay will need are read into the cache beforehand, many at a time.
//!
//! A replay applies one record after the other, and each would wait for its dnode, for the block that it changes in part and for
//! the leaf of its directory, one after another: with slow devices that is nearly all of its time. All of these can be derived
//! from the records. They are read in disk order in three steps, since each needs the one before: dnodes; blocks of files that
//! are changed in part, and directory entries; dnodes of the objects that these entries name. Errors are ignored here because the
//! replay will meet them. The data read stays within half of the cache.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

use base::{ObjectId, pump, tunable};
use dmu::{Objset, Zap};
use ondisk::BlkPtr;
use ondisk::zil::Record;
use zio::Bookmark;

use crate::plan;
use crate::replay::{self, Due, object_of};

/// The reads that a set of records will need.
#[derive(Default)]
struct Plan<'a> {
    /// Objects that will be changed.
    objects: BTreeSet<ObjectId>,
    /// Ranges that will be written, by object.
    writes: BTreeMap<ObjectId, Vec<(u64, u64)>>,
    /// Entries that will be looked up, by directory.
    names: BTreeMap<ObjectId, BTreeSet<&'a [u8]>>,
    /// Blocks that indirect writes point at, with their object.
    data: Vec<(ObjectId, BlkPtr)>,
}

impl<'a> Plan<'a> {
    /// Collects the reads of all records except those in `superseded`.
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

    fn name(&mut self, dir: ObjectId, name: &'a [u8]) {
        self.objects.insert(dir);
        self.names.entry(dir).or_default().insert(name);
    }

    /// Returns the entries, the first one of each directory first: those are the reads that wait for the device.
    fn entries(&self) -> Vec<(ObjectId, &'a [u8])> {
        let ranked = |(dir, names): (&ObjectId, &BTreeSet<&'a [u8]>)| {
            let dir = *dir;
            names.iter().enumerate().map(move |(rank, name)| (rank, dir, *name)).collect::<Vec<_>>()
        };
        let mut all: Vec<(usize, ObjectId, &[u8])> = self.names.iter().flat_map(ranked).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, dir, name)| (dir, name)).collect()
    }
}

/// Reads into the cache what the records `due` will need; `merges` says that the replay skips superseded writes.
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
        zap.lookup_u64(name).ok()?.map(ObjectId::of_entry)
    });
    dnodes(objset, found.into_iter().flatten().collect());
    let fits = |(_, bp): &(ObjectId, BlkPtr)| {
        left = left.saturating_sub(bp.lsize());
        left > 0
    };
    let mut data: Vec<(ObjectId, BlkPtr)> = data.into_iter().take_while(fits).collect();
    data.sort_unstable_by_key(|(_, bp)| (bp.dva(0).vdev(), bp.dva(0).offset()));
    pump::ahead(data, |(object, bp)| {
        let bm = Bookmark { objset: objset.id(), object: *object, level: Bookmark::ZIL_LEVEL, blkid: 0 };
        drop(objset.zio().read(bp, &bm));
    });
}

/// Reads the dnode blocks that hold `objects`.
fn dnodes(objset: &Arc<Objset>, objects: BTreeSet<ObjectId>) {
    let per_block = objset.dnodes_per_block();
    let mut ids: Vec<ObjectId> = objects.into_iter().collect();
    ids.dedup_by_key(|id| id.0.checked_div(per_block));
    pump::ahead(ids, |id| drop(objset.object(*id)));
}

/// Returns the superseded records that the windows of a replay will skip, as long as no record fails.
fn superseded(objset: &Arc<Objset>, due: &[Due<'_>]) -> HashSet<usize> {
    let windows = plan::windows(&due.iter().map(|due| due.bytes).collect::<Vec<_>>());
    let within = |window: Range<usize>| {
        let found = replay::superseded(objset, due.get(window.clone()).unwrap_or_default());
        found.into_iter().map(move |n| window.start + n)
    };
    windows.into_iter().flat_map(within).collect()
}

/// Returns the blocks of `size` bytes that `stretches` change in part without having written them as a whole before.
fn edges(stretches: &[(u64, u64)], size: u64) -> BTreeSet<u64> {
    let (mut whole, mut edges) = (BTreeSet::new(), BTreeSet::new());
    for (offset, len) in stretches {
        let end = offset.saturating_add(*len);
        let (Some(first), Some(last)) = (offset.checked_div(size), end.checked_div(size)) else { continue };
        let partial = [(first, offset % size != 0 || end < (first + 1).saturating_mul(size)), (last, end % size != 0)];
        edges.extend(partial.iter().filter(|(blkid, is)| *is && !whole.contains(blkid)).map(|(blkid, _)| *blkid));
        let full = offset.div_ceil(size)..last;
        // a range longer than any record is not a write
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
