//! The dirty time logs of leaves: the txgs that a device missed, so that it can be resilvered later (OpenZFS: `vdev_dtl_sync`).

use std::sync::Arc;

use base::{Guid, ObjectId, Txg};
use dmu::{Object, Tx};
use ondisk::ObjectType;
use ondisk::label::key;
use ondisk::spacemap::{Action, HISTOGRAM_BUCKETS, SPACE_MAP_HEADER_SIZE, SpaceMapHeader};
use space::{Encoder, MapGeometry};

use crate::Error;
use crate::spa::Spa;
use crate::spa::mos::Mos;
use crate::spa::mos::edit::OURS;

/// Blocks of a DTL's space map (OpenZFS: `zfs_vdev_dtl_sm_blksz`).
const DTL_BLOCK: u64 = 4 << 10;

/// The feature that counts space maps with histograms.
const HISTOGRAMS: &str = "spacemap_histogram";

/// The end of a txg may find that a leaf failed, and so may the end of the txg that records it: at most this many are synced for it.
const AFTERTHOUGHTS_MAX: usize = 4;

impl Spa {
    /// Writes the DTLs of leaves that changed since they were last written.
    pub(crate) fn sync_dtls(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        for (leaf, missed) in self.tree().dirty_dtls() {
            self.sync_dtl(mos, tx, leaf, &missed)?;
        }
        Ok(())
    }

    /// Writes the txgs that a leaf of the configuration has missed.
    pub(crate) fn sync_dtl(
        &self,
        mos: &Mos,
        tx: &Tx,
        leaf: Guid,
        missed: &[std::ops::Range<u64>],
    ) -> Result<(), Error> {
        let mut id = ObjectId::NONE;
        let known = self.edit_vdev(leaf.0, &mut |vdev| id = ObjectId(vdev.get_u64(key::DTL).unwrap_or(0)));
        if !known {
            // what it missed could not be found again
            return Err(Error::Bug(format!("device {leaf} is not in the configuration of the pool")));
        }
        let is_map = |object: &Object| object.phys().object_type == ObjectType::SPACE_MAP;
        // an unusable map is left alone
        let known = if id.is_none() { None } else { mos.object(id).ok().filter(is_map) };
        let object = match known {
            Some(object) => object,
            None => {
                let histograms = self.feature_enabled(mos, HISTOGRAMS)?;
                let histogram = histograms.then_some([0; HISTOGRAM_BUCKETS]);
                let blank = SpaceMapHeader { histogram, ..SpaceMapHeader::default() }.encode(OURS);
                let bonus = Some((ObjectType::SPACE_MAP_HEADER, blank.as_slice()));
                let object = mos.new_object(tx, ObjectType::SPACE_MAP, DTL_BLOCK, bonus)?;
                if histograms {
                    self.feature_increment(mos, tx, HISTOGRAMS)?;
                }
                object
            }
        };
        self.edit_vdev(leaf.0, &mut |vdev| vdev.insert(key::DTL, object.id().0));
        write_map(tx, &object, missed)
    }

    /// Syncs another txg for failures that the end of the last one found, too late to be recorded in it.
    pub(crate) fn sync_afterthoughts(self: &Arc<Self>) -> Result<(), Error> {
        for _ in 0..AFTERTHOUGHTS_MAX {
            if !self.has_afterthoughts() {
                break;
            }
            self.txgs.note_work();
            self.sync()?;
        }
        Ok(())
    }
}

fn write_map(tx: &Tx, object: &Object, missed: &[std::ops::Range<u64>]) -> Result<(), Error> {
    let mut encoder = Encoder::new(MapGeometry::DTL, 0, object.block_size(), false);
    encoder.intro(Action::Alloc, 0, Txg(0));
    missed.iter().for_each(|range| encoder.run(Action::Alloc, range, None));
    // an empty map has no entries at all
    let (bytes, alloc) = if missed.is_empty() { Default::default() } else { encoder.finish() };
    object.free_range(tx, 0, u64::MAX)?;
    if !bytes.is_empty() {
        object.write(tx, 0, &bytes)?;
    }
    // an old map has no room for a histogram
    let histogram = (object.bonus().len() >= SPACE_MAP_HEADER_SIZE).then_some([0; HISTOGRAM_BUCKETS]);
    let header = SpaceMapHeader { object: object.id(), length: bytes.len() as u64, alloc, histogram };
    Ok(object.set_bonus(tx, &header.encode(OURS))?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use base::Env;
    use vdev::create::{LayoutOptions, VdevSpec, layout};
    use vdev::import::scan_devices;
    use vdev::{Device, MemoryDevice};

    use super::*;
    use crate::{CreateOptions, Hooks, ImportOptions};

    /// An unreadable DTL means that the device missed everything; it is written anew.
    #[test]
    fn without_its_log_a_device_has_missed_everything() {
        let devices: Vec<Arc<dyn Device>> = ["d0", "d1"]
            .iter()
            .map(|name| Arc::new(MemoryDevice::writable(64 << 20).named((*name).to_string())) as _)
            .collect();
        let hooks = || Hooks { env: Env::seeded(1), ..Hooks::default() };
        let words = ["mirror", "d0", "d1"].map(str::to_string);
        let open = |path: &str| devices.iter().find(|device| device.name() == path).cloned();
        let new = layout(&VdevSpec::parse(&words).unwrap(), &open, LayoutOptions::default(), &hooks().env).unwrap();
        let spa = Spa::create(new, CreateOptions::new("t"), hooks()).unwrap();
        let leaf = spa.tree().leaves()[1].guid();
        let gone = ObjectId(1 << 20);
        spa.sync_task(move |cx| {
            cx.spa.edit_vdev(leaf.0, &mut |vdev| vdev.insert(key::DTL, gone.0));
            Ok(())
        })
        .unwrap();
        spa.close().unwrap();
        drop(spa);

        let all = || devices.iter().map(|device| (device.name().into(), device.clone())).collect();
        let spa = Spa::import(&scan_devices(all())[0], &ImportOptions::default(), hooks()).unwrap();
        let last = spa.uberblock().txg;
        assert!(spa.tree().missed().is_some_and(|missed| missed.start == 0 && missed.end >= last.0));
        spa.close().unwrap();
        let config = spa.view().unwrap();
        let id = config.tree().config().leaves().find(|config| config.guid == leaf).map(|config| config.dtl);
        assert_eq!(id, Some(gone), "the tree is as it was opened");
        drop((config, spa));
        let spa = Spa::import(&scan_devices(all())[0], &ImportOptions::default(), hooks()).unwrap();
        let id = spa.tree().config().leaves().find(|config| config.guid == leaf).map(|config| config.dtl);
        assert!(id.is_some_and(|id| id.is_some() && id != gone));
        assert!(spa.tree().missed().is_some_and(|missed| missed.start == 0 && missed.end >= last.0));
        spa.export().unwrap();
    }
}
