//! How far the work on the free space of a leaf is, for those who look at the pool.

use base::{Guid, ObjectId};

use super::{LeafWork, LeafWorkState, StoredWork};
use crate::{Error, Pool};

/// Bytes of a leaf that are done, and that are to be done in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafProgress {
    /// Done.
    pub done: u64,
    /// In all.
    pub total: u64,
}

impl Pool {
    /// Returns what the ZAP `zap` of a leaf has of the work on its free space.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn leaf_work(&self, zap: ObjectId, work: LeafWork) -> Result<StoredWork, Error> {
        self.mos.zap_if(zap)?.map_or(Ok(StoredWork::default()), |zap| StoredWork::read(&zap, work))
    }

    /// Returns how far the work on these leaves is, together.
    ///
    /// # Errors
    /// As [`Pool::leaf_progress`].
    pub fn leaves_progress(&self, work: LeafWork, leaves: &[Guid]) -> Result<LeafProgress, Error> {
        let mut all = LeafProgress::default();
        for top in &self.tree().config().children {
            for leaf in top.leaves().filter(|leaf| leaves.contains(&leaf.guid)) {
                let one = self.leaf_progress(top.id, leaf.guid, &self.leaf_work(leaf.leaf_zap, work)?)?;
                (all.done, all.total) = (all.done + one.done, all.total + one.total);
            }
        }
        Ok(all)
    }

    /// Returns how far the work on a leaf of the top-level vdev `top` is (OpenZFS: `vdev_initialize_calculate_progress`).
    ///
    /// # Errors
    /// When space maps cannot be read.
    pub fn leaf_progress(&self, top: u64, leaf: Guid, stored: &StoredWork) -> Result<LeafProgress, Error> {
        let mut progress = LeafProgress::default();
        let tree = self.tree();
        let map = tree.top(top).and_then(|top| top.leaf_map(leaf));
        let (Some(map), true) = (map, stored.state != LeafWorkState::None) else { return Ok(progress) };
        let done = if stored.state == LeafWorkState::Complete { u64::MAX } else { stored.offset };
        for metaslab in self.metaslabs(top)? {
            let (share, mut place) = (metaslab.free() / map.disks.max(1), None);
            map.ranges(metaslab.range(), &mut |part| {
                let (start, _) = place.unwrap_or((part.start, 0));
                place = Some((start, part.end));
            });
            let Some((start, end)) = place else { continue };
            if done <= start || done >= end {
                progress.total += share;
                progress.done += if done >= end { share } else { 0 };
                continue;
            }
            // in the middle of it
            let allocated = self.metaslab_space(top, metaslab.id)?;
            for free in allocated.complement(metaslab.range()).iter() {
                map.ranges(free, &mut |part| {
                    progress.total += part.end - part.start;
                    progress.done += part.end.min(done).saturating_sub(part.start);
                });
            }
        }
        Ok(progress)
    }
}
