//! Reading space map objects.

use std::ops::Range;

use base::{Endian, ObjectId, Txg};
use dmu::{BlockCursor, Object};
use ondisk::spacemap::SpaceMapHeader;
use space::log::{LogChange, decode_log};
use space::{Change, Held, MapGeometry, RangeTree, Recent, SpaceMapReader};
use zio::Buf;

use crate::Error;
use crate::spa::mos::Mos;

/// A space map object, opened.
#[derive(Clone, Debug)]
pub(crate) struct SpaceMap {
    pub(crate) object: Object,
    pub(crate) header: SpaceMapHeader,
}

impl SpaceMap {
    pub(crate) fn open(mos: &Mos, id: ObjectId) -> Result<SpaceMap, Error> {
        let object = mos.object(id)?;
        let header = Mos::bonus(&object, SpaceMapHeader::decode)?;
        Ok(SpaceMap { object, header })
    }

    pub(crate) fn error(&self, source: space::Error) -> Error {
        Error::Space { object: self.object.id(), source }
    }

    /// How many blocks hold entries. No map is as long as the pool: one that claims to be is not read.
    pub(crate) fn blocks(&self) -> Result<u64, Error> {
        let length = self.header.length;
        let count = length.div_ceil(self.object.block_size().max(1));
        if count > self.object.most_blocks() || length > self.object.objset().zio().room() {
            return Err(Error::corrupt(self.object.id(), format!("space map claims {length} bytes")));
        }
        Ok(count)
    }

    /// All blocks that hold entries, given to `decode` one after another.
    pub(crate) fn decode<T>(
        &self,
        decode: impl FnOnce(&mut dyn Iterator<Item = (Buf, Endian)>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.decode_blocks(0..self.blocks()?, BlockCursor::block, decode)
    }

    /// Some blocks, read by `read` and given to `decode` one after another.
    fn decode_blocks<T>(
        &self,
        blocks: Range<u64>,
        read: impl Fn(&mut BlockCursor, u64) -> Result<Option<(Buf, Endian)>, dmu::Error>,
        decode: impl FnOnce(&mut dyn Iterator<Item = (Buf, Endian)>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let id = self.object.id();
        let (mut cursor, mut failed) = (self.object.cursor(), None);
        let mut blocks = blocks.map_while(|blkid| match read(&mut cursor, blkid) {
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
        self.load_recent(geometry, Recent::NONE).map(|(allocated, _)| allocated)
    }

    /// The same, and what was freed in `recent` txgs.
    pub(crate) fn load_recent(&self, geometry: MapGeometry, recent: Recent) -> Result<(RangeTree, Held), Error> {
        self.decode(|blocks| space::load_recent(&self.header, geometry, blocks, recent).map_err(|e| self.error(e)))
    }

    /// The changes in some blocks of the map, which is a log of the whole pool in `txg`: no entry is in two blocks. They are read this once.
    pub(crate) fn log_entries(&self, txg: Txg, blocks: Range<u64>) -> Result<Vec<LogChange>, Error> {
        let size = self.object.block_size();
        let upto = |block: u64| block.saturating_mul(size).min(self.header.length);
        let length = upto(blocks.end).saturating_sub(upto(blocks.start));
        let header = SpaceMapHeader { length, histogram: None, ..self.header.clone() };
        self.decode_blocks(blocks, BlockCursor::block_uncached, |blocks| {
            decode_log(txg, &header, blocks).map_err(|e| self.error(e))
        })
    }

    /// The changes in the blocks of the map from block `first` on, in order.
    pub(crate) fn for_each_from(
        &self,
        first: u64,
        geometry: MapGeometry,
        visit: &mut dyn FnMut(Change) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let before = first.saturating_mul(self.object.block_size());
        let length = self.header.length.saturating_sub(before);
        let header = SpaceMapHeader { length, histogram: None, ..self.header.clone() };
        self.decode_blocks(first..self.blocks()?, BlockCursor::block, |blocks| {
            SpaceMapReader::new(&header, geometry, blocks)
                .try_for_each(|change| visit(change.map_err(|e| self.error(e))?))
        })
    }
}
