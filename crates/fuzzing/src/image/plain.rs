//! A real pool whose metadata is laid out anew, uncompressed, so that any byte of it can be changed and every checksum above be recomputed,
//! up the block trees to the uberblock. The result is hostile contents behind valid checksums.
//!
//! The new blocks are in the largest stretch that the space maps call free (so the space maps no longer agree; only verification notices,
//! and reports it). Data of files and volumes stays unchanged.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use ::codec::{embedded, fletcher};
use base::{Endian, ObjectId};
use ondisk::label::{self, LABELS};
use ondisk::{BlkPtr, DnodePhys, Dva, ObjectType, Uberblock};
use pool::{OpenOptions, Pool};
use vdev::Device;
use zio::{Bookmark, Zio};

use super::overlay::Overlay;

/// The device offset that block addresses count from.
const DATA_START: usize = 4 << 20;
const ROOTBP_OFFSET: usize = 40;
const CKSUM_OFFSET: usize = 96;
/// Numbers of the checksum and the compression algorithm in a pointer.
const FLETCHER4: u64 = 7;
const OFF: u64 = 2;

/// A block of the new layout.
#[derive(Debug)]
pub(crate) struct Block {
    /// Offset in the image.
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) endian: Endian,
    /// The pointer to it, as of the new layout.
    pub(crate) bp: BlkPtr,
    /// The blocks that point to it, with the offset of the pointer in them; `None` is the uberblock.
    pub(crate) parents: Vec<(Option<usize>, usize)>,
}

/// A pool laid out anew.
#[derive(Debug)]
pub(crate) struct Plain {
    pub(crate) image: Arc<Vec<u8>>,
    /// Children before their parents.
    pub(crate) blocks: Vec<Block>,
    /// Blocks by type and level.
    pub(crate) classes: Vec<Vec<usize>>,
    /// The slots of the uberblock in all labels: offset and length.
    pub(crate) uberblocks: Vec<(usize, usize)>,
    /// The configurations of all labels: offset and length.
    pub(crate) labels: Vec<(usize, usize)>,
}

impl Plain {
    /// Lays out the pool of a fixture that has one device.
    ///
    /// # Panics
    /// If the fixture is missing or unsuitable.
    pub(crate) fn of(fixture: &str) -> Plain {
        let packed = oracle::fixtures::dir(fixture).join("disk0.img.zst");
        let image = Arc::new(oracle::fixtures::read_zst(&packed));
        let device: Arc<dyn Device> = Arc::new(Overlay::new(Arc::clone(&image)));
        let found = vdev::import::scan_devices(vec![(PathBuf::from("disk0"), device)]);
        let [candidate] = found.as_slice() else { panic!("{fixture}: {} pools", found.len()) };
        let pool = Pool::open(candidate, &OpenOptions::default()).unwrap_or_else(|e| panic!("{fixture}: {e}"));
        let space = pool.load_space(0).unwrap_or_else(|e| panic!("{fixture}: {e}"));
        let (mut free, mut at) = (0..0, 0);
        for range in space.iter() {
            if range.start - at > free.end - free.start {
                free = at..range.start;
            }
            at = range.end;
        }
        // and the space after the last allocation, up to the labels at the end
        let end = (image.len() - DATA_START) as u64 - 2 * label::LABEL_SIZE;
        if end.saturating_sub(at) > free.end - free.start {
            free = at..end;
        }
        let free = (free.start as usize).next_multiple_of(8192)..free.end as usize;
        let mut maker = Maker { zio: pool.zio(), out: image.to_vec(), free, blocks: Vec::new(), done: HashMap::new() };
        let root = maker.copy(&pool.uberblock().rootbp, Bookmark::root(ObjectId::MOS), ObjectType::NONE);
        let root = root.unwrap_or_else(|| panic!("{fixture}: no MOS"));
        maker.blocks[root].parents.push((None, ROOTBP_OFFSET));
        let Maker { out, blocks, .. } = maker;
        Plain::sealed(out, blocks, root, pool.uberblock())
    }

    fn sealed(mut out: Vec<u8>, blocks: Vec<Block>, root: usize, uberblock: &Uberblock) -> Plain {
        let size = out.len() as u64;
        let device = Overlay::new(Arc::new(out.clone()));
        let place = |index| label::offset(size, index).unwrap_or(0);
        let mut uberblocks = Vec::new();
        // read with the smallest slot size, the ring shows every slot of larger ones as well
        for ashift in [9, 12] {
            let len = 1usize << label::uberblock_shift(ashift);
            for slot in vdev::label::read_uberblock_slots(&device, ashift) {
                let at = (place(slot.label) + label::RING_OFFSET) as usize + slot.slot * len;
                if slot.ub == *uberblock {
                    uberblocks.push((at, len));
                } else {
                    // remove older uberblocks: one would be opened in place of a broken one
                    out[at..at + len].fill(0);
                }
            }
        }
        for (at, _) in &uberblocks {
            let pointer = blocks[root].bp.encode(uberblock.endian);
            out[at + ROOTBP_OFFSET..][..pointer.len()].copy_from_slice(&pointer);
        }
        let mut classes: BTreeMap<(u8, u8), Vec<usize>> = BTreeMap::new();
        for (n, block) in blocks.iter().enumerate() {
            classes.entry((block.bp.object_type().0, block.bp.level())).or_default().push(n);
        }
        let labels = (0..LABELS).map(|n| ((place(n) + label::CONFIG_OFFSET) as usize, label::CONFIG_SIZE)).collect();
        let classes = classes.into_values().collect();
        let mut plain = Plain { image: Arc::new(out), blocks, classes, uberblocks, labels };
        let mut sealed = Overlay::new(Arc::clone(&plain.image));
        plain.seal(&mut sealed, (0..plain.blocks.len()).collect());
        plain.image = Arc::new(sealed.get(0, sealed.len()));
        plain
    }

    /// Recomputes the checksums above changed blocks, and the uberblock's.
    pub(crate) fn seal(&self, image: &mut Overlay, mut changed: BTreeSet<usize>) {
        let mut data = Vec::new();
        while let Some(block) = changed.pop_first().and_then(|n| self.blocks.get(n)) {
            data.resize(block.len, 0);
            image.read(block.at, &mut data);
            let sums = fletcher::fletcher4(&data, block.endian);
            for (parent, offset) in &block.parents {
                let places = match parent {
                    Some(n) => vec![(self.blocks[*n].at, self.blocks[*n].endian)],
                    None => self.uberblocks.iter().map(|(at, _)| (*at, Endian::NATIVE)).collect(),
                };
                for (at, endian) in places {
                    let words: Vec<u8> = sums.iter().flat_map(|w| endian.put_u64(*w)).collect();
                    image.put(at + offset + CKSUM_OFFSET, &words);
                }
                changed.extend(parent);
            }
        }
        for (at, len) in &self.uberblocks {
            seal_area(image, *at, *len);
        }
    }
}

/// Recomputes the checksum of an area of a label.
pub(crate) fn seal_area(image: &mut Overlay, at: usize, len: usize) {
    let mut area = image.get(at, len);
    embedded::seal_label(&mut area, at as u64, Endian::NATIVE);
    image.put(at, &area);
}

struct Maker<'a> {
    zio: &'a Zio,
    out: Vec<u8>,
    free: std::ops::Range<usize>,
    blocks: Vec<Block>,
    /// The copied blocks, by old address and birth.
    done: HashMap<(u64, u64), usize>,
}

impl Maker<'_> {
    /// Copies a block of an object of type `object` with everything below it; `None` if it stays unchanged.
    fn copy(&mut self, bp: &BlkPtr, bm: Bookmark, object: ObjectType) -> Option<usize> {
        let data = bp.level() == 0
            && matches!(object, ObjectType::PLAIN_FILE_CONTENTS | ObjectType::ZVOL | ObjectType::INTENT_LOG);
        if bp.is_hole() || bp.is_embedded() || bp.uses_crypt() || data {
            return None;
        }
        let key = (bp.words[1], bp.words[10]);
        if let Some(n) = self.done.get(&key) {
            return Some(*n);
        }
        let mut bytes = self.zio.read_uncached(bp, &bm).ok()?.to_vec();
        let (at, end) = (self.free.start, self.free.start + bytes.len().next_multiple_of(4096));
        if end > self.free.end {
            return None;
        }
        self.free.start = end;
        let endian = bp.endian();
        let mut children = Vec::new();
        for (offset, child, bm, object) in pointers(&bytes, bp, bm, object) {
            if let Some(n) = self.copy(&child, bm, object) {
                let pointer = self.blocks[n].bp.encode(endian);
                bytes[offset..offset + pointer.len()].copy_from_slice(&pointer);
                children.push((n, offset));
            }
        }
        let n = self.blocks.len();
        for (child, offset) in children {
            self.blocks[child].parents.push((Some(n), offset));
        }
        let place = DATA_START + at;
        self.out[place..place + bytes.len()].copy_from_slice(&bytes);
        let new = plain_pointer(bp, Dva::new(0, at as u64, (end - at) as u64, false));
        self.blocks.push(Block { at: place, len: bytes.len(), endian, bp: new, parents: Vec::new() });
        self.done.insert(key, n);
        Some(n)
    }
}

/// The pointer `bp`, changed to an uncompressed block at `dva` under fletcher4.
fn plain_pointer(bp: &BlkPtr, dva: Dva) -> BlkPtr {
    let mut new = *bp;
    new.words[..6].copy_from_slice(&[dva.word0, dva.word1, 0, 0, 0, 0]);
    let logical = bp.words[6] & 0xffff;
    // the logical size stays; stored size, compression, checksum and the dedup bit change
    let replaced = 0xffff << 16 | 0x7f << 32 | 0xff << 40 | 1 << 62;
    new.words[6] = (bp.words[6] & !replaced) | logical << 16 | OFF << 32 | FLETCHER4 << 40;
    new
}

type Child = (usize, BlkPtr, Bookmark, ObjectType);

/// The pointers in a block: offset, pointer, position of the child.
fn pointers(bytes: &[u8], bp: &BlkPtr, bm: Bookmark, object: ObjectType) -> Vec<Child> {
    let endian = bp.endian();
    let mut found = Vec::new();
    let mut add = |offset: usize, bm, object| {
        if let Some(Ok(child)) = bytes.get(offset..).map(|b| BlkPtr::decode(b, endian)) {
            found.push((offset, child, bm, object));
        }
    };
    if bp.level() > 0 {
        for offset in (0..bytes.len()).step_by(128) {
            add(offset, Bookmark { level: bp.level() - 1, ..bm }, object);
        }
        return found;
    }
    let mut dnode = |at: usize| -> usize {
        let Some(Ok(dnode)) = bytes.get(at..).map(|b| DnodePhys::decode(b, endian)) else { return 1 };
        if dnode.object_type == ObjectType::NONE {
            return 1;
        }
        let bm = Bookmark { object: bm.object, level: dnode.nlevels.saturating_sub(1), ..bm };
        (0..dnode.blkptr.len()).for_each(|n| add(at + 64 + n * 128, bm, dnode.object_type));
        if dnode.spill.is_some() {
            add(at + dnode.size() - 128, bm, ObjectType::SA);
        }
        if dnode.bonus_type == ObjectType::DSL_DATASET {
            // the dataset's root pointer, after sixteen words
            add(at + 64 + dnode.blkptr.len() * 128 + 128, bm, ObjectType::OBJSET);
        }
        dnode.slots()
    };
    match bp.object_type() {
        ObjectType::OBJSET => [0, 1024, 1536, 2048].into_iter().for_each(|at| _ = dnode(at)),
        ObjectType::DNODE => {
            let mut at = 0;
            while at < bytes.len() {
                at += dnode(at) * 512;
            }
        }
        _ => {}
    }
    found
}
