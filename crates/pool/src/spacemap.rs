//! Reading space map objects.

use base::{Endian, Txg};
use dmu::Object;
use ondisk::spacemap::SpaceMapHeader;
use space::log::{LogChange, decode_log};
use space::{Change, MapGeometry, RangeTree, SpaceMapReader};
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

    /// The blocks that hold entries, given to `decode` one after another. No map is as long as the pool: of one that claims to be, nothing is
    /// read.
    pub(crate) fn decode<T>(
        &self,
        decode: impl FnOnce(&mut dyn Iterator<Item = (Buf, Endian)>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (id, length) = (self.object.id(), self.header.length);
        let count = length.div_ceil(self.object.block_size().max(1));
        if count > self.object.most_blocks() || length > self.object.objset().zio().room() {
            return Err(Error::corrupt(id, format!("space map claims {length} bytes")));
        }
        let (mut cursor, mut failed) = (self.object.cursor(), None);
        let mut blocks = (0..count).map_while(|blkid| match cursor.block(blkid) {
            Ok(Some(block)) => Some(block),
            Ok(None) => {
                failed = Some(Error::corrupt(id, format!("block {blkid} of a space map is a hole")));
                None
            }
            Err(e) => {
                failed = Some(e.into());
                None
            }
        });
        let decoded = decode(&mut blocks);
        failed.map_or(decoded, Err)
    }

    /// The allocated bytes, by this map alone.
    pub(crate) fn load(&self, geometry: MapGeometry) -> Result<RangeTree, Error> {
        self.decode(|blocks| space::load_metaslab(&self.header, geometry, blocks).map_err(|e| self.error(e)))
    }

    /// The changes in the map, which is a log of the whole pool in `txg`.
    pub(crate) fn log_entries(&self, txg: Txg) -> Result<Vec<LogChange>, Error> {
        self.decode(|blocks| decode_log(txg, &self.header, blocks).map_err(|e| self.error(e)))
    }

    /// The changes in the map, in order.
    pub(crate) fn for_each(
        &self,
        geometry: MapGeometry,
        visit: &mut dyn FnMut(Change) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.decode(|blocks| {
            SpaceMapReader::new(&self.header, geometry, blocks)
                .try_for_each(|change| visit(change.map_err(|e| self.error(e))?))
        })
    }
}
