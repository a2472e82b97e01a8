//! Reading space map objects.

use base::Endian;
use dmu::Object;
use ondisk::spacemap::SpaceMapHeader;
use space::{MapGeometry, RangeTree};
use zio::Buf;

use crate::Error;
use crate::mos::Mos;

/// A space map object, opened.
#[derive(Clone, Debug)]
pub(crate) struct SpaceMap {
    pub(crate) object: Object,
    pub(crate) header: SpaceMapHeader,
}

impl SpaceMap {
    pub(crate) fn open(mos: &Mos, id: u64) -> Result<SpaceMap, Error> {
        let object = mos.object(id)?;
        let header = Mos::bonus(&object, SpaceMapHeader::decode)?;
        Ok(SpaceMap { object, header })
    }

    pub(crate) fn error(&self, source: space::Error) -> Error {
        Error::Space { object: self.object.id(), source }
    }

    /// The blocks that hold entries.
    pub(crate) fn blocks(&self) -> Result<Vec<(Buf, Endian)>, Error> {
        let size = self.object.block_size().max(1);
        let count = self.header.length.div_ceil(size);
        if count > self.object.nblocks() {
            return Err(Error::corrupt(self.object.id(), format!("space map claims {} bytes", self.header.length)));
        }
        (0..count)
            .map(|blkid| {
                let block = self.object.block_with_endian(blkid)?;
                block.ok_or_else(|| Error::corrupt(self.object.id(), format!("block {blkid} of a space map is a hole")))
            })
            .collect()
    }

    /// The allocated bytes, by this map alone.
    pub(crate) fn load(&self, geometry: MapGeometry) -> Result<RangeTree, Error> {
        space::load_metaslab(&self.header, geometry, self.blocks()?).map_err(|e| self.error(e))
    }
}
