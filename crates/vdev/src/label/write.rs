//! Writing labels and uberblocks.
//!
//! An update of the four labels must leave a pair of them whole, whatever happens in between. So [`commit`] goes in rounds with a
//! flush behind each: the even labels, then the uberblocks, then the odd labels. Until the uberblocks are there, the odd labels
//! and the old uberblock are the pool; from then on, the even labels and the new one.
//!
//! OpenZFS: `vdev_config_sync`, `vdev_label_sync_list`, `vdev_uberblock_sync_list`, `vdev_label_init`, `spa_config_generate`.

use std::collections::BTreeSet;

use base::{Endian, Guid, Txg, pump};
use codec::embedded::seal_label;
use nvlist::{Encoding, NvList};
use ondisk::Uberblock;
use ondisk::label::{self as layout, key};

use super::{decode_config, place};
use crate::device::Device;
use crate::stripe::physical;
use crate::tree::{TopVdev, VdevTree};
use crate::{Error, Leaf};

/// Vdevs that get the uberblock when the configuration did not change (OpenZFS: `SPA_SYNC_MIN_VDEVS`).
const SYNC_VDEVS: usize = 3;
/// Slots at the end of a ring that belong to the multihost thread (OpenZFS: `MMP_BLOCKS_PER_LABEL`).
const MMP_SLOTS: usize = 1;
/// The scratch state of a RAID-Z expansion in which the uberblock is one more of its txg (OpenZFS: `RRSS_SCRATCH_VALID`).
const SCRATCH_VALID: u64 = 1;
/// The states in the labels of devices that are in no pool's tree (OpenZFS: `POOL_STATE_SPARE`, `POOL_STATE_L2CACHE`).
const STATE_SPARE: u64 = 3;
const STATE_L2CACHE: u64 = 4;

/// Bytes of the header of a cache, behind the front labels.
const L2ARC_HEADER_SIZE: usize = 512;

/// The keys of the pool in a label, in its order; those that the pool's configuration has not are left out.
const POOL_KEYS: [&str; 12] = [
    key::VERSION,
    key::POOL_NAME,
    key::POOL_STATE,
    key::POOL_TXG,
    key::POOL_GUID,
    key::ERRATA,
    key::MIN_ALLOC,
    key::MAX_ALLOC,
    key::COMMENT,
    key::COMPATIBILITY,
    key::HOSTID,
    key::HOSTNAME,
];

/// The keys that the MOS has for a vdev and labels have not, and those that are never on disk.
const NOT_IN_LABELS: [&str; 12] = [
    key::VDEV_TOP_ZAP,
    key::VDEV_LEAF_ZAP,
    key::VDEV_ROOT_ZAP,
    key::ALLOCATION_BIAS,
    "com.datto:resilver_defer",
    "vdev_stats",
    "vdev_stats_ex",
    "scan_stats",
    "removal_stats",
    "checkpoint_stats",
    "raidz_expand_stats",
    "indirect_size",
];

/// The part of labels that is about a pool.
#[derive(Debug, Clone, Copy)]
pub struct PoolLabel<'a> {
    /// The pool's own part: `version`, `name`, `state`, `txg`, `pool_guid`, `errata`, `min_alloc`, `max_alloc`, `comment`, `compatibility`,
    /// `hostid`, `hostname`, `hole_array`, `vdev_children`, `features_for_read`. Other names are passed over, so that the configuration of
    /// the MOS will do.
    pub pool: &'a NvList,
    /// The pool's `vdev_tree` with all top-level vdevs, as the MOS holds it.
    pub vdev_tree: &'a NvList,
    /// The top-level vdevs whose labels are to be written, by number; all if empty.
    pub tops: &'a [u64],
}

impl PoolLabel<'_> {
    fn top(&self, id: u64) -> Option<&NvList> {
        let tops = self.vdev_tree.get_nvlist_array(key::CHILDREN)?;
        tops.iter().find(|top| top.get_u64(key::ID) == Some(id))
    }

    fn is_dirty(&self, id: u64) -> bool {
        self.tops.is_empty() || self.tops.contains(&id)
    }
}

/// The configuration that the label of leaf `guid` holds: the pool's part of `pool`, the leaf, and its top-level vdev `top` (OpenZFS:
/// `spa_config_generate` for a vdev). Names and order are those of OpenZFS 2.4.
#[must_use]
pub fn leaf_config(pool: &NvList, top: &NvList, guid: Guid) -> NvList {
    let mut config = NvList::new();
    let copy = |config: &mut NvList, name: &str| {
        if let Some(value) = pool.get(name) {
            config.insert(name, value.clone());
        }
    };
    for name in POOL_KEYS {
        copy(&mut config, name);
    }
    config.insert(key::TOP_GUID, top.get_u64(key::GUID).unwrap_or(0));
    config.insert(key::GUID, guid.0);
    if find(top, guid).is_some_and(|leaf| leaf.get_u64(key::IS_SPARE) == Some(1)) {
        config.insert(key::IS_SPARE, 1u64);
    }
    if top.get_u64(key::IS_LOG) == Some(1) {
        config.insert(key::IS_LOG, 1u64);
    }
    copy(&mut config, key::HOLE_ARRAY);
    copy(&mut config, key::VDEV_CHILDREN);
    copy(&mut config, "split_guid");
    config.insert(key::VDEV_TREE, without_mos_names(top));
    copy(&mut config, key::FEATURES_FOR_READ);
    config
}

/// The first label of a device that is new in a pool: [`leaf_config`] with txg 0, as the device is not in use before the pool's next
/// commit, and with the txg in which it is added (OpenZFS: `vdev_label_init`).
#[must_use]
pub fn initial_config(pool: &NvList, top: &NvList, guid: Guid, create_txg: Txg) -> NvList {
    let mut config = leaf_config(pool, top, guid);
    if let Some(txg) = config.get_mut(key::POOL_TXG) {
        *txg = 0u64.into();
    }
    config.insert(key::CREATE_TXG, create_txg.0);
    config
}

/// The use of a device that several pools may share, and that is in no pool's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuxUse {
    /// A hot spare.
    Spare,
    /// A cache (L2ARC), with the base-2 logarithm of its sector size.
    L2cache(u64),
}

/// The configuration in the label of a spare or a cache (OpenZFS: `vdev_aux_label_generate`).
#[must_use]
pub fn aux_config(version: u64, guid: Guid, path: Option<&str>, aux: AuxUse) -> NvList {
    let mut config = NvList::new();
    config.insert(key::VERSION, version);
    config.insert(key::POOL_STATE, if aux == AuxUse::Spare { STATE_SPARE } else { STATE_L2CACHE });
    config.insert(key::GUID, guid.0);
    if let AuxUse::L2cache(ashift) = aux {
        config.insert(key::ASHIFT, ashift);
    }
    if let Some(path) = path {
        config.insert(key::PATH, path);
    }
    config
}

/// The vdev of this guid in `list` or below.
fn find(list: &NvList, guid: Guid) -> Option<&NvList> {
    if list.get_u64(key::GUID) == Some(guid.0) {
        return Some(list);
    }
    list.get_nvlist_array(key::CHILDREN)?.iter().find_map(|child| find(child, guid))
}

fn without_mos_names(vdev: &NvList) -> NvList {
    let mut own = vdev.clone();
    for name in NOT_IN_LABELS {
        own.remove_all(name);
    }
    if let Some(children) = own.get_nvlist_array_mut(key::CHILDREN) {
        for child in children {
            *child = without_mos_names(child);
        }
    }
    own
}

/// The 112 KiB of a label that hold `config`, with the checksum for byte `offset` of the device called `device`.
///
/// # Errors
/// [`Error::LabelTooLarge`], or what the nvlist cannot be packed for.
pub fn encode_config(config: &NvList, offset: u64, endian: Endian, device: &str) -> Result<Vec<u8>, Error> {
    let mut area = pack(config, endian, device)?;
    seal_label(&mut area, offset, endian);
    Ok(area)
}

/// The same without the checksum, for several labels.
fn pack(config: &NvList, endian: Endian, device: &str) -> Result<Vec<u8>, Error> {
    let mut area = config.pack(Encoding::Xdr, endian)?;
    if area.len() > layout::CONFIG_SIZE - layout::TRAILER_SIZE {
        return Err(Error::LabelTooLarge { device: device.to_owned(), size: area.len() });
    }
    area.resize(layout::CONFIG_SIZE, 0);
    Ok(area)
}

/// An uberblock's slot on a vdev of this ashift, with the checksum for byte `offset` of its device.
#[must_use]
pub fn encode_uberblock(ub: &Uberblock, ashift: u64, offset: u64) -> Vec<u8> {
    let mut slot = ub.encode().to_vec();
    slot.resize(1 << layout::uberblock_shift(ashift), 0);
    seal_label(&mut slot, offset, ub.endian);
    slot
}

/// The slot of `ub` in the ring of a vdev of this ashift. Where multihost is on, which the uberblock tells, the last slot is not the sync's.
#[must_use]
pub fn uberblock_slot(ub: &Uberblock, ashift: u64) -> usize {
    let multihost = ub.mmp.is_some_and(|mmp| mmp.config != 0);
    let slots = layout::uberblock_count(ashift) - if multihost { MMP_SLOTS } else { 0 };
    // an update of an uberblock in use, within its txg, must not overwrite it
    let back = u64::from(ub.reflow_scratch_state() == SCRATCH_VALID);
    (ub.txg.0.wrapping_sub(back) % slots as u64) as usize
}

fn write(device: &dyn Device, offset: u64, data: &[u8]) -> Result<(), Error> {
    device.write_at(offset, data).map_err(|source| Error::Write {
        device: device.name(),
        offset,
        len: data.len() as u64,
        source,
    })
}

/// The outcome of each copy of something that several labels of a device are to hold.
type Copies = Vec<Result<(), Error>>;

/// Writes `config` to the labels `which` of a device.
///
/// # Errors
/// [`Error::LabelTooLarge`]; [`Error::TooSmall`], [`Error::Write`] if a label could not be written; the others are.
pub fn write_config(device: &dyn Device, config: &NvList, which: &[usize]) -> Result<(), Error> {
    let area = pack(config, Endian::Little, &device.name())?;
    write_areas(device, area, which).into_iter().collect()
}

fn write_areas(device: &dyn Device, mut area: Vec<u8>, which: &[usize]) -> Copies {
    let each = |index: &usize| {
        let offset = place(device, *index)? + layout::CONFIG_OFFSET;
        seal_label(&mut area, offset, Endian::Little);
        write(device, offset, &area)
    };
    which.iter().map(each).collect()
}

/// Bytes at each end of a device in which other systems keep their marks (OpenZFS: `zero_label` of `zpool`).
const MARKS: u64 = 4096;

/// Makes a device part of a pool: writes `config` to all four labels, an empty boot environment, and a ring without uberblocks, and
/// flushes. What marks another file system or a partition table at the ends of the device goes, so that nobody takes it for that any more.
///
/// # Errors
/// [`Error::TooSmall`], [`Error::LabelTooLarge`], [`Error::Write`], [`Error::Flush`].
pub fn init(device: &dyn Device, config: &NvList) -> Result<(), Error> {
    write_config(device, config, &[0, 1, 2, 3])?;
    for end in [0, device.size().saturating_sub(MARKS)] {
        write(device, end, &[0; MARKS as usize])?;
    }
    for index in 0..layout::LABELS {
        let label = place(device, index)?;
        for (at, len) in [(layout::BOOTENV_OFFSET, layout::BOOTENV_SIZE), (layout::RING_OFFSET, layout::RING_SIZE)] {
            let mut empty = vec![0; len];
            seal_label(&mut empty, label + at, Endian::Little);
            write(device, label + at, &empty)?;
        }
    }
    device.flush().map_err(|source| Error::Flush { device: device.name(), source })
}

/// Overwrites the labels of a device with zeros, so that it belongs to no pool (`zpool labelclear`): configuration and uberblocks of
/// every label that is one, whether or not its checksum is right; the pads in front stay. Gives the number of labels.
///
/// # Errors
/// [`Error::NoLabel`] if none is, [`Error::Write`], [`Error::Flush`].
pub fn clear(device: &dyn Device) -> Result<usize, Error> {
    let zeros = vec![0; (layout::LABEL_SIZE - layout::CONFIG_OFFSET) as usize];
    let (mut cleared, mut is_cache) = (0, false);
    for index in 0..layout::LABELS {
        let Ok(offset) = place(device, index).map(|label| label + layout::CONFIG_OFFSET) else { continue };
        let area = super::read(device, offset, layout::CONFIG_SIZE);
        let Some(config) = area.ok().and_then(|area| decode_config(&area).ok()) else { continue };
        let state = config.get_u64(key::POOL_STATE).filter(|state| *state <= STATE_L2CACHE);
        if let (Some(state), Some(1..)) = (state, config.get_u64(key::GUID)) {
            write(device, offset, &zeros)?;
            cleared += 1;
            is_cache |= state == STATE_L2CACHE;
        }
    }
    if cleared == 0 {
        return Err(Error::NoLabel { device: device.name() });
    }
    if is_cache {
        write(device, physical(0), &[0; L2ARC_HEADER_SIZE])?;
    }
    device.flush().map_err(|source| Error::Flush { device: device.name(), source })?;
    Ok(cleared)
}

/// Ends a txg: makes it the pool's state on its devices, in an order that a crash at any point leaves with one whole state.
///
/// What was written is flushed first. With `config`, the labels of its vdevs are written around the uberblock, which goes to all vdevs;
/// without, up to three vdevs get the uberblock. Can be called again after an error.
///
/// # Errors
/// [`Error::LabelNotWritten`] if no leaf of a top-level vdev (of logs, nobody minds) took its label, or no leaf at all the uberblock. A
/// leaf has four labels so that it can do without some: one copy of a pair of labels is enough, and one of the uberblock.
/// [`Error::Flush`] if data that was written may be lost; [`Error::LabelTooLarge`].
pub fn commit(tree: &VdevTree, config: Option<&PoolLabel<'_>>, ub: &Uberblock) -> Result<(), Error> {
    let flushed = flush_data(tree, ub.txg)?;
    let grown = if config.is_some() { copy_uberblocks(tree) } else { Vec::new() };
    if let Some(config) = config {
        write_round(tree, config, &[0, 2])?;
    }
    write_uberblocks(tree, config.is_some(), ub)?;
    if let Some(config) = config {
        write_round(tree, config, &[1, 3])?;
    }
    grown.into_iter().for_each(|(leaf, size)| leaf.has_labels_of(size));
    flushed.into_iter().for_each(|(leaf, failed)| leaf.settle_flushes(failed));
    Ok(())
}

/// Flushes what the txg wrote. A leaf that fails missed the txg, and so did one that failed for whoever else flushed it since the txg wrote
/// its first block. Gives each leaf with the flushes that have failed up to now.
fn flush_data(tree: &VdevTree, txg: Txg) -> Result<Vec<(&Leaf, u64)>, Error> {
    // also those that have been lost since the txg wrote to them
    let leaves: Vec<&Leaf> = tree.leaves().iter().map(|leaf| &**leaf).collect();
    let flushed = pump::together(leaves, |leaf| (leaf, leaf.flush(), leaf.failed_flushes()));
    let mut failed = None;
    for (leaf, _, failures) in &flushed {
        if leaf.is_suspect(*failures) {
            leaf.errors.write.add(u64::from(leaf.is_unsettled(*failures)));
            leaf.miss(txg);
            failed = failed.or(Some(*leaf));
        }
    }
    // what was only in an intent log is elsewhere now
    let needed = |top: &TopVdev| top.is_concrete() && !top.config().is_log;
    let births = BTreeSet::from([txg]);
    let survives = || tree.tops().iter().all(|top| !needed(top) || tree.has_all(top, &births));
    match failed {
        Some(failed) if !survives() => {
            let error = flushed.into_iter().find_map(|(_, flushed, _)| flushed.err());
            Err(error.unwrap_or_else(|| failed.failed_before()))
        }
        _ => Ok(flushed.into_iter().map(|(leaf, _, failures)| (leaf, failures)).collect()),
    }
}

/// Writes copies of all uberblocks to the last two labels of the leaves whose devices have grown, where none were before (OpenZFS:
/// `vdev_copy_uberblocks`). Gives these leaves with the sizes of their devices; one whose copies could not be written is not among them.
fn copy_uberblocks(tree: &VdevTree) -> Vec<(&Leaf, u64)> {
    let tops = tree.tops().iter().filter(|top| top.is_concrete());
    let leaves = tops.flat_map(|top| labelled(tree, top).map(|leaf| (u64::from(top.ashift()), leaf)));
    let grown = leaves.filter(|(_, leaf)| leaf.has_new_end()).filter_map(|(ashift, leaf)| {
        let device = leaf.queued()?;
        copy_rings(&device, ashift).ok()?;
        Some((leaf, device.size()))
    });
    grown.collect()
}

/// Copies the ring of the first label of a device to the last two. A slot without an uberblock becomes empty.
fn copy_rings(device: &dyn Device, ashift: u64) -> Result<(), Error> {
    let from = place(device, 0)? + layout::RING_OFFSET;
    let ring = super::read(device, from, layout::RING_SIZE)?;
    let slot_size = 1 << layout::uberblock_shift(ashift);
    for index in layout::LABELS / 2..layout::LABELS {
        let to = place(device, index)? + layout::RING_OFFSET;
        let mut copy = Vec::with_capacity(ring.len());
        for (slot, at) in ring.chunks_exact(slot_size).zip((0u64..).step_by(slot_size)) {
            match super::decode_uberblock(slot, from + at) {
                Some(ub) => copy.extend(encode_uberblock(&ub, ashift, to + at)),
                None => copy.resize(copy.len() + slot_size, 0),
            }
        }
        write(device, to, &copy)?;
    }
    Ok(())
}

/// The leaves of a top-level vdev that have labels: distributed spares have none of their own.
fn labelled<'t>(tree: &'t VdevTree, top: &'t TopVdev) -> impl Iterator<Item = &'t Leaf> {
    top.config().leaves().filter_map(|leaf| tree.leaf(leaf.guid)).map(|leaf| &**leaf).filter(|leaf| leaf.is_writable())
}

/// Writes one pair of labels of every leaf in `config`, and flushes.
fn write_round(tree: &VdevTree, config: &PoolLabel<'_>, which: &[usize]) -> Result<(), Error> {
    let mut jobs = Vec::new();
    let tops = tree.tops().iter().filter(|top| top.is_concrete() && config.is_dirty(top.id()));
    let known = |top: &'_ TopVdev| {
        let list = config.top(top.id());
        if list.is_none() {
            let (vdev, guid) = (top.id(), top.guid().0);
            tracing::error!(target: "zuse::vdev", vdev, guid, "the pool's configuration has no such vdev; its labels stay as they are");
        }
        list
    };
    let tops: Vec<(&TopVdev, &NvList)> = tops.filter_map(|top| Some((top, known(top)?))).collect();
    for (n, (top, list)) in tops.iter().enumerate() {
        jobs.extend(labelled(tree, top).map(|leaf| (n, *list, leaf)));
    }
    let done = pump::together(jobs, |(n, list, leaf)| {
        let area = pack(&leaf_config(config.pool, list, leaf.guid()), Endian::Little, &leaf.name())?;
        Ok::<_, Error>((n, settled(leaf, |device| write_areas(device, area, which))))
    });
    let mut good = vec![0; tops.len()];
    for result in done {
        let (n, ok) = result?;
        if let Some(count) = good.get_mut(n) {
            *count += usize::from(ok);
        }
    }
    match tops.iter().zip(good).find(|((top, _), good)| *good == 0 && !top.config().is_log) {
        Some(((top, _), _)) => Err(Error::LabelNotWritten { vdev: top.guid(), what: "label" }),
        None => Ok(()),
    }
}

/// Writes the uberblock to all labels of all vdevs, or of a few, and flushes.
fn write_uberblocks(tree: &VdevTree, everywhere: bool, ub: &Uberblock) -> Result<(), Error> {
    let concrete = |top: &&TopVdev| top.is_concrete() && (everywhere || !top.config().is_log);
    let mut tops: Vec<&TopVdev> = tree.tops().iter().filter(concrete).collect();
    if !everywhere && !tops.is_empty() {
        // each txg with other vdevs
        let first = (ub.txg.0 % tops.len() as u64) as usize;
        tops.rotate_left(first);
        tops.truncate(SYNC_VDEVS);
    }
    let jobs: Vec<(u64, &Leaf)> =
        tops.iter().flat_map(|top| labelled(tree, top).map(|leaf| (u64::from(top.ashift()), leaf))).collect();
    let done = pump::together(jobs, |(ashift, leaf)| settled(leaf, |device| write_uberblock(device, ashift, ub)));
    if done.contains(&true) {
        Ok(())
    } else {
        Err(Error::LabelNotWritten { vdev: tree.config().guid, what: "uberblock" })
    }
}

/// Writes `ub` into its slot of the rings of all four labels of a device, whose top-level vdev has this ashift.
fn write_uberblock(device: &dyn Device, ashift: u64, ub: &Uberblock) -> Copies {
    let within = (uberblock_slot(ub, ashift) as u64) << layout::uberblock_shift(ashift);
    let each = |index| {
        let offset = place(device, index)? + layout::RING_OFFSET + within;
        write(device, offset, &encode_uberblock(ub, ashift, offset))
    };
    (0..layout::LABELS).map(each).collect()
}

/// Writes `ub` into the slot of label `index` of a leaf that the sync leaves alone, to where other hosts see that the pool is in use.
///
/// # Errors
/// [`Error::TooSmall`], [`Error::Write`], [`Error::NoDevice`].
pub fn write_heartbeat(leaf: &Leaf, ashift: u64, ub: &Uberblock, index: usize) -> Result<(), Error> {
    let device = leaf.device().ok_or(Error::NoDevice { leaf: leaf.guid() })?;
    let within = ((layout::uberblock_count(ashift) - MMP_SLOTS) as u64) << layout::uberblock_shift(ashift);
    let offset = place(&*device, index)? + layout::RING_OFFSET + within;
    leaf.write_through(offset, &encode_uberblock(ub, ashift, offset))
}

/// Whether a leaf can be read and written at all: a part of its labels is read, and written as it is (OpenZFS: `vdev_probe`).
#[must_use]
pub fn probe(leaf: &Leaf) -> bool {
    let Some(device) = leaf.queued() else { return false };
    let rewritten = |index| {
        let offset = place(&device, index)? + layout::BOOTENV_OFFSET;
        let area = super::read(&device, offset, layout::BOOTENV_SIZE)?;
        write(&device, offset, &area)
    };
    // the first label stays whole, whatever happens
    (1..layout::LABELS).any(|index| rewritten(index).is_ok())
}

/// Whether a leaf took a copy of what it was given, and has it on stable storage.
fn settled(leaf: &Leaf, write: impl FnOnce(&dyn Device) -> Copies) -> bool {
    let Some(device) = leaf.queued() else { return false };
    let before = leaf.failed_flushes();
    let copies = write(&device);
    let flushed = leaf.flush().is_ok() && leaf.failed_flushes() == before;
    let failed = copies.iter().filter(|copy| copy.is_err()).count();
    leaf.errors.write.add(failed as u64 + u64::from(!flushed));
    flushed && failed < copies.len()
}
