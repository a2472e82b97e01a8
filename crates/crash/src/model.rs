//! The expected contents of a pool's root file system, in the simplest possible form.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::ObjectId;

/// The objects of one object set by number, with its snapshots and descendants. A clone shares what does not change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Model {
    /// The objects.
    pub objects: BTreeMap<ObjectId, Arc<Thing>>,
    /// The snapshots.
    pub snapshots: BTreeMap<&'static str, Arc<Model>>,
    /// The file systems below it: the snapshot that each was cloned from, and its contents.
    pub datasets: BTreeMap<&'static str, (Option<&'static str>, Arc<Model>)>,
}

/// An object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Thing {
    /// An object of bytes.
    Data(Data),
    /// A ZAP.
    Zap(Entries),
}

/// An object of bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Data {
    /// Block size in bytes.
    pub block_size: u64,
    /// Number of slots of the dnode.
    pub slots: usize,
    /// Written blocks by number; the others are zeros.
    pub blocks: BTreeMap<u64, Arc<Vec<u8>>>,
    /// The bonus buffer.
    pub bonus: Vec<u8>,
    /// The spill block.
    pub spill: Option<Arc<Vec<u8>>>,
}

/// Width of an entry's integers in bytes, and the integers.
pub type Value = (u8, Vec<u64>);

/// A ZAP.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Entries {
    /// Number of slots of the dnode.
    pub slots: usize,
    /// The entries by name.
    pub entries: BTreeMap<String, Value>,
}

impl Data {
    /// The parts of blocks that make up a range of bytes: block number, offset in it, length.
    fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> + use<> {
        let (size, end) = (self.block_size, offset.saturating_add(len));
        (offset / size..end.div_ceil(size)).map(move |block| {
            let (from, to) = ((block * size).max(offset), ((block + 1) * size).min(end));
            (block, (from % size) as usize, (to - from) as usize)
        })
    }

    /// Replaces bytes.
    pub fn write(&mut self, offset: u64, mut bytes: &[u8]) {
        for (block, from, len) in self.parts(offset, bytes.len() as u64) {
            let (now, rest) = bytes.split_at(len);
            let size = self.block_size as usize;
            let block = self.blocks.entry(block).or_insert_with(|| Arc::new(vec![0; size]));
            Arc::make_mut(block)[from..from + len].copy_from_slice(now);
            bytes = rest;
        }
    }

    /// Zeroes bytes; a `len` of `u64::MAX` means to the end.
    pub fn free(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let touched: Vec<u64> = self.blocks.range(offset / self.block_size..).map(|(block, _)| *block).collect();
        for number in touched {
            let start = number * self.block_size;
            if start >= end {
                break;
            }
            let from = offset.max(start) - start;
            let to = end.min(start + self.block_size) - start;
            if from == 0 && to == self.block_size {
                self.blocks.remove(&number);
            } else if let Some(block) = self.blocks.get_mut(&number) {
                Arc::make_mut(block)[from as usize..to as usize].fill(0);
            }
        }
    }

    /// Reads bytes.
    #[must_use]
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        for (block, from, len) in self.parts(offset, len as u64) {
            match self.blocks.get(&block) {
                Some(block) => bytes.extend_from_slice(&block[from..from + len]),
                None => bytes.resize(bytes.len() + len, 0),
            }
        }
        bytes
    }

    /// Bytes of all existing blocks.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.blocks.len() as u64 * self.block_size
    }

    /// Makes the only block larger.
    pub fn grow_block(&mut self, block_size: u64) {
        self.block_size = block_size;
        self.blocks.values_mut().for_each(|block| Arc::make_mut(block).resize(block_size as usize, 0));
    }
}

impl Model {
    /// Bytes of all blocks of all objects.
    #[must_use]
    pub fn size(&self) -> u64 {
        let size = |thing: &Arc<Thing>| match &**thing {
            Thing::Data(data) => data.size(),
            Thing::Zap(zap) => zap.entries.len() as u64 * 128,
        };
        self.objects.values().map(size).sum()
    }

    /// True if a dnode takes more than one slot.
    #[must_use]
    pub fn has_large_dnodes(&self) -> bool {
        let slots = |thing: &Arc<Thing>| match &**thing {
            Thing::Data(data) => data.slots,
            Thing::Zap(zap) => zap.slots,
        };
        self.objects.values().any(|thing| slots(thing) > 1)
    }

    /// True if there is a block of more than 128 KiB.
    #[must_use]
    pub fn has_large_blocks(&self) -> bool {
        let large =
            |data: &Data| data.block_size > 128 << 10 && data.blocks.values().any(|b| b.iter().any(|b| *b != 0));
        self.objects.values().any(|thing| matches!(&**thing, Thing::Data(data) if large(data)))
    }

    /// An object of bytes, mutable.
    pub fn data(&mut self, id: ObjectId) -> Option<&mut Data> {
        match self.objects.get_mut(&id).map(Arc::make_mut) {
            Some(Thing::Data(data)) => Some(data),
            _ => None,
        }
    }

    /// A ZAP, mutable.
    pub fn zap(&mut self, id: ObjectId) -> Option<&mut Entries> {
        match self.objects.get_mut(&id).map(Arc::make_mut) {
            Some(Thing::Zap(zap)) => Some(zap),
            _ => None,
        }
    }
}

/// The model at the end of each txg that changed it.
#[derive(Clone, Debug, Default)]
pub struct History {
    by_txg: BTreeMap<u64, Model>,
}

impl History {
    /// Stores the model as of the end of `txg`.
    pub fn keep(&mut self, txg: u64, model: &Model) {
        self.by_txg.insert(txg, model.clone());
    }

    /// The contents of a pool whose last txg is `txg`; empty before the first stored txg.
    #[must_use]
    pub fn at(&self, txg: u64) -> Model {
        self.by_txg.range(..=txg).next_back().map_or_else(Model::default, |(_, model)| model.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_where_they_were_put() {
        let mut data = Data { block_size: 512, ..Data::default() };
        data.write(500, &[7; 1000]);
        assert_eq!(data.blocks.len(), 3);
        data.free(600, 100);
        assert_eq!(data.read(598, 104), [vec![7; 2], vec![0; 100], vec![7; 2]].concat());
        data.free(512, 512);
        assert_eq!(data.blocks.keys().copied().collect::<Vec<_>>(), [0, 2]);
        data.free(511, u64::MAX);
        assert_eq!(data.read(0, 2048), [vec![0; 500], vec![7; 11], vec![0; 1537]].concat());
        data.grow_block(1024);
        assert_eq!(data.read(500, 1000), [vec![7; 11], vec![0; 989]].concat());
    }

    #[test]
    fn history_is_asked_by_any_txg() {
        let mut history = History::default();
        let mut model = Model::default();
        model.objects.insert(ObjectId(1), Arc::new(Thing::Zap(Entries::default())));
        history.keep(10, &model);
        assert_eq!(history.at(9), Model::default());
        assert_eq!(history.at(10), model);
        assert_eq!(history.at(99), model);
    }
}
