//! Counts of a directory's snapshots and file systems, and the time when its list of snapshots changed.

use base::ObjectId;
use dmu::Tx;
use ondisk::dsl::dir_keys;

use crate::Error;
use crate::dsl::space::quota::DEPTH_MAX;
use crate::spa::Spa;
use crate::spa::mos::Mos;

impl Mos {
    /// The number with which object `id` was extended under `key`; `None` if it was not.
    pub(in crate::dsl) fn extra(&self, id: ObjectId, key: &str) -> Result<Option<u64>, Error> {
        if !self.object(id)?.phys().object_type.is_zap() {
            return Ok(None);
        }
        Ok(self.zap(id)?.lookup_u64(key)?)
    }

    /// The object that object `id` names in its extension, under `key`.
    pub(in crate::dsl) fn extra_id(&self, id: ObjectId, key: &str) -> Result<Option<ObjectId>, Error> {
        Ok(self.extra(id, key)?.map(ObjectId))
    }

    /// Changes a count ([`dir_keys::SNAPSHOT_COUNT`], [`dir_keys::FILESYSTEM_COUNT`]) of directory `dir` and of all above it, up to
    /// the first that keeps none (OpenZFS: `dsl_fs_ss_count_adjust`).
    pub(in crate::dsl) fn adjust_count(&self, tx: &Tx, dir: ObjectId, key: &str, by: i64) -> Result<(), Error> {
        let mut dir = dir;
        for _ in 0..=DEPTH_MAX {
            let Some(mut count) = (if dir.is_none() || by == 0 { None } else { self.extra(dir, key)? }) else {
                return Ok(());
            };
            self.count(dir, "count of snapshots or file systems", &mut count, by);
            self.zap(dir)?.update_u64(tx, key, count)?;
            dir = self.dir_phys(dir)?.parent_obj;
        }
        Err(Error::corrupt(dir, "directories are nested too deeply"))
    }
}

impl Spa {
    /// Notes when the list of snapshots of directory `dir` changed (OpenZFS: `dsl_dir_snap_cmtime_update`).
    pub(in crate::dsl) fn snapshots_changed(&self, mos: &Mos, tx: &Tx, dir: ObjectId) -> Result<(), Error> {
        if !self.feature_enabled(mos, "extensible_dataset")? {
            return Ok(());
        }
        let now = self.env().now();
        let words = [now.as_secs(), u64::from(now.subsec_nanos())];
        Ok(self.zapify(mos, tx, dir)?.update(tx, dir_keys::SNAPSHOTS_CHANGED, 8, &words)?)
    }
}
