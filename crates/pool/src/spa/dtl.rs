//! What leaves missed: the txgs that a device did not get, so that it can be brought up to date later (OpenZFS: `vdev_dtl_sync`).

use base::{Guid, Txg};
use dmu::{Object, Tx};
use ondisk::ObjectType;
use ondisk::label::key;
use ondisk::spacemap::{Action, HISTOGRAM_BUCKETS, SPACE_MAP_HEADER_SIZE, SpaceMapHeader};
use space::{Encoder, MapGeometry};

use crate::Error;
use crate::mos::Mos;
use crate::spa::Spa;
use crate::spa::mosw::OURS;

/// Blocks of a DTL's space map (OpenZFS: `zfs_vdev_dtl_sm_blksz`).
const DTL_BLOCK: u64 = 4 << 10;

/// The feature that maps with histograms are counted by.
const HISTOGRAMS: &str = "spacemap_histogram";

impl Spa {
    /// Writes the DTLs of leaves that missed something since this was last done.
    pub(crate) fn sync_dtls(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        for (leaf, missed) in self.tree().dirty_dtls() {
            self.sync_dtl(mos, tx, leaf, &missed)?;
        }
        Ok(())
    }

    fn sync_dtl(&self, mos: &Mos, tx: &Tx, leaf: Guid, missed: &[std::ops::Range<u64>]) -> Result<(), Error> {
        let mut id = 0;
        self.edit_vdev(leaf.0, &mut |vdev| id = vdev.get_u64(key::DTL).unwrap_or(0));
        let object = match id {
            0 => {
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
            id => mos.object(id)?,
        };
        self.edit_vdev(leaf.0, &mut |vdev| vdev.insert(key::DTL, object.id()));
        write_map(tx, &object, missed)
    }
}

fn write_map(tx: &Tx, object: &Object, missed: &[std::ops::Range<u64>]) -> Result<(), Error> {
    let mut encoder = Encoder::new(MapGeometry::DTL, 0, object.block_size(), false);
    encoder.intro(Action::Alloc, 0, Txg(0));
    missed.iter().for_each(|range| encoder.run(Action::Alloc, range, None));
    let (bytes, alloc) = encoder.finish();
    object.free_range(tx, 0, u64::MAX)?;
    object.write(tx, 0, &bytes)?;
    // an old map has no room for a histogram
    let histogram = (object.bonus().len() >= SPACE_MAP_HEADER_SIZE).then_some([0; HISTOGRAM_BUCKETS]);
    let header = SpaceMapHeader { object: object.id(), length: bytes.len() as u64, alloc, histogram };
    Ok(object.set_bonus(tx, &header.encode(OURS))?)
}
