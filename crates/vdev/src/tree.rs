//! The vdevs of an open pool.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use base::{Guid, Txg};
use nvlist::NvList;
use ondisk::indirect::IndirectMapping;
use ondisk::label::{LABEL_SIZE, key};
use ondisk::{Dva, VDEV_LABEL_START_SIZE};

use crate::config::{VdevConfig, VdevType};
use crate::device::Device;
use crate::draid::{self, Draid};
use crate::errors::ErrorCounters;
use crate::node::Node;
use crate::raidz::Raidz;
use crate::read::Request;
use crate::report::ReadReport;
use crate::source::ReadCx;
use crate::{Error, Leaf, queue};

/// The block size for which space is deflated, whatever blocks are really written (128 KiB).
const DEFLATE_BLOCK: u64 = 1 << 17;
/// The smallest and largest sector that OpenZFS uses, as base-2 logarithms.
const ASHIFT: std::ops::RangeInclusive<u64> = 9..=16;

/// The vdevs of a pool at one moment: its top-level vdevs with all below (OpenZFS: `spa_root_vdev`).
///
/// Which vdevs there are never changes within a tree. A pool whose vdevs change gets another tree, which shares the top-level vdevs that
/// stay ([`VdevTree::changed`]), and publishes it ([`LiveTree`](crate::LiveTree)). What becomes known only after the first reads (mappings,
/// missed txgs, the progress of an expansion) is set through `&self`.
#[derive(Debug)]
pub struct VdevTree {
    config: VdevConfig,
    tops: Vec<TopVdev>,
    leaves: Vec<Arc<Leaf>>,
    by_guid: HashMap<Guid, usize>,
    /// The index of the next leaf that is opened.
    next_leaf: usize,
}

/// Opens the leaves of a tree.
pub(crate) struct Leaves<'a> {
    found: &'a dyn Fn(Guid) -> Option<Arc<dyn Device>>,
    /// The leaves that stay, by the guids that they get.
    known: &'a dyn Fn(Guid) -> Option<Arc<Leaf>>,
    opened: Vec<(Guid, Arc<Leaf>)>,
    next: usize,
}

/// What a pool's next tree has that its configuration does not tell.
#[derive(Debug, Default)]
pub struct Newcomers<'a> {
    /// The devices of leaves that are new.
    pub devices: Option<&'a HashMap<Guid, Arc<dyn Device>>>,
    /// A leaf that gets another guid: the one that it had, and the one that it gets.
    pub renamed: Option<(Guid, Guid)>,
}

impl Leaves<'_> {
    /// Opens a leaf that has a device.
    pub(crate) fn open(&mut self, config: &VdevConfig) -> Arc<Leaf> {
        let device = (self.found)(config.guid);
        self.add(config, device, false)
    }

    /// Opens a leaf that never has a device of its own.
    pub(crate) fn open_without_device(&mut self, config: &VdevConfig) -> Arc<Leaf> {
        self.add(config, None, true)
    }

    fn add(&mut self, config: &VdevConfig, device: Option<Arc<dyn Device>>, present: bool) -> Arc<Leaf> {
        let leaf = (self.known)(config.guid).unwrap_or_else(|| {
            self.next += 1;
            Arc::new(Leaf::new(self.next - 1, config, device, present))
        });
        self.opened.push((config.guid, Arc::clone(&leaf)));
        leaf
    }
}

/// One top-level vdev. Clones are the same vdev.
#[derive(Clone, Debug)]
pub struct TopVdev {
    config: Arc<VdevConfig>,
    ashift: u32,
    deflate_ratio: u64,
    pub(crate) errors: Arc<ErrorCounters>,
    pub(crate) shape: Arc<Shape>,
}

/// How a top-level vdev keeps blocks.
#[derive(Debug)]
pub(crate) enum Shape {
    /// A leaf, or a mirror of some kind: each copy holds everything.
    Copies(Node),
    /// Columns of data and parity over the children.
    Striped(Striped),
    /// A mirror of such (no command makes one, but the format can, and OpenZFS's own tests do).
    Sides(Vec<Shape>),
    /// Removed; its blocks are elsewhere.
    Indirect(RwLock<Option<Arc<IndirectMapping>>>),
    /// Not there (missing, or a hole).
    Gone,
}

/// A raidz or dRAID with its children.
#[derive(Debug)]
pub(crate) struct Striped {
    pub(crate) geometry: Geometry,
    pub(crate) children: Vec<Node>,
}

/// How columns are laid out.
#[derive(Debug)]
pub(crate) enum Geometry {
    /// RAID-Z.
    Raidz(Raidz),
    /// dRAID.
    Draid(Draid),
}

impl Geometry {
    pub(crate) fn parity(&self) -> usize {
        match self {
            Geometry::Raidz(g) => g.parity as usize,
            Geometry::Draid(g) => g.parity as usize,
        }
    }
}

impl Shape {
    fn open(config: &VdevConfig, leaves: &mut Leaves<'_>) -> Result<Shape, Error> {
        let mut striped = |geometry| {
            let children = config.children.iter().map(|child| Node::open(child, leaves));
            Ok(Shape::Striped(Striped { geometry, children: children.collect::<Result<_, Error>>()? }))
        };
        let is_striped = |v: &VdevConfig| matches!(v.kind, VdevType::Raidz | VdevType::Draid);
        match config.kind {
            VdevType::Raidz => striped(Geometry::Raidz(Raidz::new(config)?)),
            VdevType::Draid => striped(Geometry::Draid(Draid::new(config)?)),
            VdevType::Indirect => Ok(Shape::Indirect(RwLock::new(None))),
            VdevType::Hole | VdevType::Missing => Ok(Shape::Gone),
            VdevType::Root => Err(Error::config(config.guid, "a root within a pool")),
            kind if kind.is_mirror_like() && config.walk().any(is_striped) => {
                let sides = config.children.iter().map(|side| Shape::open(side, leaves));
                Ok(Shape::Sides(sides.collect::<Result<_, _>>()?))
            }
            _ => Ok(Shape::Copies(Node::open(config, leaves)?)),
        }
    }

    /// Takes over what the vdev has come to know since it was opened with another set of devices.
    fn go_on_from(&self, before: &Shape) {
        if let (Shape::Striped(Striped { geometry: Geometry::Raidz(now), .. }), Shape::Striped(old)) = (self, before)
            && let Geometry::Raidz(old) = &old.geometry
        {
            now.go_on_from(old);
        }
    }

    fn psize_to_asize(&self, psize: u64, birth: Txg, ashift: u32) -> u64 {
        let whole = psize.next_multiple_of(1 << ashift);
        match self {
            Shape::Striped(Striped { geometry: Geometry::Raidz(raidz), .. }) => {
                raidz.psize_to_asize(psize, birth, ashift)
            }
            Shape::Striped(Striped { geometry: Geometry::Draid(draid), .. }) => draid.psize_to_asize(psize, ashift),
            Shape::Sides(sides) => {
                sides.iter().map(|side| side.psize_to_asize(psize, birth, ashift)).fold(whole, u64::max)
            }
            _ => whole,
        }
    }
}

/// Bytes of the metaslabs of a top-level vdev.
pub(crate) fn metaslab_bytes(top: &VdevConfig) -> u64 {
    let shift = u32::try_from(top.ms_shift).unwrap_or(u32::MAX);
    let count = if shift == 0 { None } else { top.asize.checked_shr(shift) };
    count.map_or(0, |count| count << shift)
}

/// Notes how much of the `bytes` of a vdev each leaf below has, at least (OpenZFS: `vdev_get_min_asize`). The depth is that of a configuration.
pub(crate) fn leaf_shares(vdev: &VdevConfig, bytes: u64, shares: &mut HashMap<Guid, u64>) {
    if vdev.kind.is_leaf() {
        shares.insert(vdev.guid, bytes);
    }
    let width = vdev.children.len() as u64;
    let each = match vdev.kind {
        VdevType::Raidz => bytes.div_ceil(width.max(1)),
        VdevType::Draid => draid::Sizes::of(vdev).least_room(bytes),
        _ => bytes,
    };
    vdev.children.iter().for_each(|child| leaf_shares(child, each, shares));
}

/// Bytes between the labels of a device of `size` bytes.
pub(crate) const fn room_for_blocks(size: u64) -> u64 {
    (size - size % LABEL_SIZE).saturating_sub(VDEV_LABEL_START_SIZE + 2 * LABEL_SIZE)
}

impl VdevTree {
    /// Opens the vdevs of the root `config`; `found` gives the device of a leaf. Leaves without a device count as missing, and so may whole top-level vdevs:
    /// what can be read is read, and [`VdevTree::status`] tells the rest. A device that has become too small for the vdev's metaslabs is only read:
    /// the labels at its end would be written over blocks. Opened for writing, it counts as missing.
    ///
    /// # Errors
    /// [`Error::Config`] for a configuration that cannot be.
    pub fn open(config: &VdevConfig, found: &dyn Fn(Guid) -> Option<Arc<dyn Device>>) -> Result<VdevTree, Error> {
        VdevTree::build(config, found, None, &|_| None)
    }

    /// The tree for another configuration of the same pool: a top-level vdev that `config` has in the same place and shape is shared with this tree. Every
    /// other one is opened, with the leaves that this tree has, wherever in it, and all that is known of them. A leaf keeps its [index](Leaf::index), and
    /// none gets that of a leaf that is gone.
    ///
    /// # Errors
    /// As [`VdevTree::open`].
    pub fn changed(&self, config: &VdevConfig, new: &Newcomers<'_>) -> Result<VdevTree, Error> {
        let found = |guid| new.devices?.get(&guid).cloned();
        let known = |guid| {
            let before = new.renamed.filter(|(_, now)| *now == guid).map_or(guid, |(before, _)| before);
            self.leaf(before).cloned()
        };
        VdevTree::build(config, &found, Some(self), &known)
    }

    fn build(
        config: &VdevConfig,
        found: &dyn Fn(Guid) -> Option<Arc<dyn Device>>,
        before: Option<&VdevTree>,
        known: &dyn Fn(Guid) -> Option<Arc<Leaf>>,
    ) -> Result<VdevTree, Error> {
        if config.kind != VdevType::Root {
            return Err(Error::config(config.guid, "not the root of a pool"));
        }
        let mut shares = HashMap::new();
        config.children.iter().for_each(|top| leaf_shares(top, metaslab_bytes(top), &mut shares));
        // a device is one leaf, whatever a configuration says
        let shares = RefCell::new(shares);
        let found = |guid| {
            let share = shares.borrow_mut().remove(&guid)?;
            found(guid).filter(|device| !device.is_writable() || room_for_blocks(device.size()) >= share)
        };
        let next = before.map_or(0, |tree| tree.next_leaf);
        let mut leaves = Leaves { found: &found, known, opened: Vec::new(), next };
        let mut tops = Vec::with_capacity(config.children.len());
        for (id, child) in config.children.iter().enumerate() {
            if child.id != id as u64 {
                return Err(Error::config(child.guid, format!("number {} in place {id}", child.id)));
            }
            let predecessor = before.and_then(|tree| Some((tree, tree.tops.get(id)?)));
            let stays = |top: &TopVdev| top.config().asize == child.asize && top.config().has_shape_of(child);
            tops.push(match predecessor.filter(|(_, top)| stays(top)) {
                Some((tree, top)) => {
                    let own = |vdev: &VdevConfig| Some((vdev.guid, tree.leaf(vdev.guid)?.clone()));
                    leaves.opened.extend(top.config().walk().filter_map(own));
                    top.clone()
                }
                None => TopVdev::open(child, &mut leaves, predecessor.map(|(_, top)| top))?,
            });
        }
        let Leaves { opened: mut leaves, next: next_leaf, .. } = leaves;
        leaves.sort_by_key(|(_, leaf)| leaf.index());
        let by_guid = leaves.iter().enumerate().map(|(at, (guid, _))| (*guid, at)).collect();
        let leaves = leaves.into_iter().map(|(_, leaf)| leaf).collect();
        Ok(VdevTree { config: config.clone(), tops, leaves, by_guid, next_leaf })
    }

    /// It is the pool's tree from now on: its leaves are those of its configuration.
    pub(crate) fn identify_leaves(&self) {
        for config in self.config.walk().filter(|vdev| vdev.children.is_empty()) {
            if let Some(leaf) = self.leaf(config.guid) {
                leaf.identify(config);
            }
        }
    }

    /// The tree of a pool that is one device of 512-byte sectors and `asize` allocatable bytes, whatever its labels say: to read and write
    /// blocks that were made in memory.
    ///
    /// # Errors
    /// None that the device could be the cause of.
    pub fn of_one(device: Arc<dyn Device>, asize: u64) -> Result<VdevTree, Error> {
        let mut leaf = NvList::new();
        leaf.insert(key::TYPE, VdevType::File.name());
        leaf.insert(key::PATH, device.name());
        for (name, value) in [(key::ID, 0), (key::GUID, 2), (key::ASHIFT, 9), (key::ASIZE, asize)] {
            leaf.insert(name, value);
        }
        let mut root = NvList::new();
        root.insert(key::TYPE, VdevType::Root.name());
        root.insert(key::ID, 0u64);
        root.insert(key::GUID, 1u64);
        root.insert(key::CHILDREN, vec![leaf]);
        VdevTree::open(&VdevConfig::parse(&root)?, &|_| Some(device.clone()))
    }

    /// The configuration that it was opened with.
    #[must_use]
    pub fn config(&self) -> &VdevConfig {
        &self.config
    }

    /// The top-level vdevs; the index is the number in block addresses. Holes, missing and removed ones are included.
    #[must_use]
    pub fn tops(&self) -> &[TopVdev] {
        &self.tops
    }

    /// The top-level vdev with this number.
    #[must_use]
    pub fn top(&self, id: u64) -> Option<&TopVdev> {
        self.tops.get(usize::try_from(id).ok()?)
    }

    /// All leaves, in the order of [`Leaf::index`] (distributed spares, which have no device, are among them).
    #[must_use]
    pub fn leaves(&self) -> &[Arc<Leaf>] {
        &self.leaves
    }

    /// The leaf with this [index](Leaf::index).
    pub(crate) fn leaf_at(&self, index: usize) -> Option<&Arc<Leaf>> {
        let here = |leaf: &&Arc<Leaf>| leaf.index() == index;
        // as long as no leaf has gone, the index is the place
        self.leaves.get(index).filter(here).or_else(|| {
            let at = self.leaves.binary_search_by_key(&index, |leaf| leaf.index()).ok()?;
            self.leaves.get(at)
        })
    }

    /// The leaf with this guid.
    #[must_use]
    pub fn leaf(&self, guid: Guid) -> Option<&Arc<Leaf>> {
        self.leaves.get(*self.by_guid.get(&guid)?)
    }

    /// Tells where the blocks of removed vdev `id` are now; without it they cannot be read. Other vdevs are not touched.
    pub fn set_indirect(&self, id: u64, mapping: IndirectMapping) {
        if let Some(Shape::Indirect(slot)) = self.top(id).map(|t| &*t.shape) {
            *slot.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(mapping));
        }
    }

    /// Tells which txgs a leaf missed (its DTL); reads avoid it for blocks born in them. Replaces what was told before.
    pub fn set_dtl(&self, leaf: Guid, ranges: Vec<Range<u64>>) {
        if let Some(leaf) = self.leaf(leaf) {
            leaf.set_dtl(ranges, true);
        }
    }

    /// Tells that a leaf is new: it has missed `txgs`, which the pool knows already, and what is written to it of them is not safe there.
    pub fn begin_leaf(&self, leaf: Guid, txgs: Range<u64>) {
        if let Some(leaf) = self.leaf(leaf) {
            leaf.counts_from(Txg(txgs.end));
            leaf.set_dtl(vec![txgs], true);
        }
    }

    /// Tells that nobody knows which txgs a leaf missed: it counts as having missed all up to `last`, and that is to be written to the pool.
    pub fn lose_dtl(&self, leaf: Guid, last: Txg) {
        if let Some(leaf) = self.leaf(leaf) {
            leaf.set_dtl(std::iter::once(0..last.0.saturating_add(1)).collect(), false);
        }
    }

    /// Tells how far the expansion of raidz `top` has come: the uberblock's reflow offset in bytes and its scratch state. Until told, nothing is
    /// taken to have moved.
    pub fn set_reflow_offset(&self, top: u64, bytes: u64, scratch_state: u64) {
        if let Some(Shape::Striped(Striped { geometry: Geometry::Raidz(raidz), .. })) = self.top(top).map(|t| &*t.shape)
        {
            raidz.set_reflow(bytes, scratch_state);
        }
    }

    /// Reads one copy of a block, from the place `dva`, into `buf` (its `psize` bytes; for a gang block its header).
    ///
    /// Tries sides and reconstruction, with every set of bad columns that the parity covers, until `check` says that the bytes are
    /// right. `check` may be asked many times; it should compute the block's checksum and do nothing else.
    ///
    /// # Errors
    /// [`Error::Checksum`] if nothing satisfies `check`, [`Error::TooFewDevices`] if too little is there to try, else what makes the address
    /// unusable. `buf` is then of no use.
    pub fn read(
        &self,
        dva: Dva,
        psize: u64,
        birth: Txg,
        cx: &ReadCx<'_>,
        buf: &mut [u8],
        check: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<ReadReport, Error> {
        let (vdev, offset) = (dva.vdev(), dva.offset());
        let bad = || Error::BadAddress { vdev, offset, size: psize };
        if psize == 0 || psize != buf.len() as u64 || offset.checked_add(psize).is_none_or(|end| end > i64::MAX as u64)
        {
            return Err(bad());
        }
        let top = self.top(vdev).ok_or(Error::NoVdev { id: vdev })?;
        let mut request = Request { tree: self, cx, birth, report: ReadReport::default(), heals: cx.heal };
        // the caller may wait for the pool then
        request.read(top, offset, buf, check).inspect_err(|_| queue::land_all())?;
        Ok(request.report)
    }
}

impl TopVdev {
    /// `before`: the top-level vdev that was in its place. It stays the same one if it has the same guid.
    fn open(config: &VdevConfig, leaves: &mut Leaves<'_>, before: Option<&TopVdev>) -> Result<TopVdev, Error> {
        let shape = Shape::open(config, leaves)?;
        let absent = matches!(shape, Shape::Gone);
        if !absent && !ASHIFT.contains(&config.ashift) {
            return Err(Error::config(config.guid, format!("ashift {}", config.ashift)));
        }
        let (config, ashift, shape) = (Arc::new(config.clone()), config.ashift as u32, Arc::new(shape));
        let before = before.filter(|before| before.guid() == config.guid);
        if let Some(before) = before {
            shape.go_on_from(&before.shape);
        }
        let errors = before.map_or_else(Arc::default, |before| before.errors.clone());
        let mut top = TopVdev { config, ashift, deflate_ratio: 0, errors, shape };
        if !absent {
            // a fixed formula: blocks that exist were accounted by it
            top.deflate_ratio = DEFLATE_BLOCK / (top.psize_to_asize_at(DEFLATE_BLOCK, Txg(0)) >> 9).max(1);
        }
        Ok(top)
    }

    /// Its number in block addresses.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.config.id
    }

    /// Its identity.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.config.guid
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &VdevConfig {
        &self.config
    }

    /// Base-2 logarithm of its sector size.
    #[must_use]
    pub fn ashift(&self) -> u32 {
        self.ashift
    }

    /// Whether blocks can lie on it now: not removed, not missing, no hole (OpenZFS: `vdev_is_concrete`).
    #[must_use]
    pub fn is_concrete(&self) -> bool {
        matches!(*self.shape, Shape::Copies(_) | Shape::Striped(_) | Shape::Sides(_))
    }

    /// Whether it is a removed vdev with its blocks elsewhere.
    #[must_use]
    pub fn is_indirect(&self) -> bool {
        matches!(*self.shape, Shape::Indirect(_))
    }

    /// The mapping of a removed vdev, once it is known.
    #[must_use]
    pub fn mapping(&self) -> Option<Arc<IndirectMapping>> {
        match &*self.shape {
            Shape::Indirect(slot) => slot.read().unwrap_or_else(PoisonError::into_inner).clone(),
            _ => None,
        }
    }

    /// Bytes that are allocated for `psize` bytes, born now. See [`TopVdev::psize_to_asize_at`] for older blocks of an expanded raidz.
    #[must_use]
    pub fn psize_to_asize(&self, psize: u64) -> u64 {
        self.psize_to_asize_at(psize, Txg(u64::MAX))
    }

    /// Bytes that are allocated for `psize` bytes born in `birth` (OpenZFS: `vdev_psize_to_asize_txg`).
    #[must_use]
    pub fn psize_to_asize_at(&self, psize: u64, birth: Txg) -> u64 {
        self.shape.psize_to_asize(psize, birth, self.ashift)
    }

    /// The bytes that `asize` allocated ones count for in the accounts of datasets: without parity, for blocks of 128 KiB (OpenZFS:
    /// `vdev_deflated_space`, and `bp_get_dsize` for each address of a block).
    #[must_use]
    pub fn deflated(&self, asize: u64) -> u64 {
        (asize >> 9).saturating_mul(self.deflate_ratio)
    }
}
