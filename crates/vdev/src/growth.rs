//! Devices that have become larger, and the room that this gives a vdev.
//!
//! A leaf has two sizes: that of its device, and that which the pool uses of it ([`Leaf::asize`]). A device that grows changes the first at once: its
//! last two labels are at another place from then on, and are written there with the next txg, with copies of all uberblocks
//! ([`label::commit`](crate::label::commit)). The second follows when the administrator says so, or the property `autoexpand`
//! ([`VdevTree::use_whole_devices`]), and a vdev grows when all devices that it needs for that have. After the pool is opened the two are the same: nothing on
//! disk tells of the second, but the size of the top-level vdev.
//!
//! OpenZFS: `vdev_asize`, `vdev_max_asize`, `vdev_copy_uberblocks`, and the open function of each type.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::Guid;

use crate::config::{VdevConfig, VdevType};
use crate::device::Device;
use crate::draid;
use crate::status::VdevState;
use crate::tree::room_for_blocks;
use crate::{Leaf, TopVdev, VdevTree};

/// The size of a leaf as far as the pool uses it.
#[derive(Debug, Default)]
pub(crate) struct Size {
    /// Bytes between the labels; 0 before there was a device.
    asize: AtomicU64,
    /// Whether the last two labels are to be written where none were before.
    has_new_end: AtomicBool,
}

impl Size {
    pub(crate) fn of(device: Option<&dyn Device>) -> Size {
        let asize = device.map_or(0, |device| room_for_blocks(device.size()));
        Size { asize: AtomicU64::new(asize), has_new_end: AtomicBool::new(false) }
    }

    /// The device has become larger.
    pub(crate) fn grew(&self, before: u64, now: u64) {
        if room_for_blocks(now) > room_for_blocks(before) {
            self.has_new_end.store(true, Ordering::Release);
        }
    }

    /// The leaf has a device again, perhaps of another size.
    pub(crate) fn reopened(&self, size: u64) {
        let (used, room) = (self.asize.load(Ordering::Acquire), room_for_blocks(size));
        if room != used {
            self.has_new_end.store(true, Ordering::Release);
        }
        if used == 0 || used > room {
            self.asize.store(room, Ordering::Release);
        }
    }
}

impl Leaf {
    /// Bytes between its labels, as far as the pool uses them; 0 if no device was ever there.
    #[must_use]
    pub fn asize(&self) -> u64 {
        self.size.asize.load(Ordering::Acquire)
    }

    /// Bytes between its labels; `None` without a device.
    #[must_use]
    pub fn max_asize(&self) -> Option<u64> {
        Some(room_for_blocks(self.device()?.size()))
    }

    /// Uses all of its device from now on, and writes the labels at its end anew.
    fn use_whole_device(&self) {
        if let Some(most) = self.max_asize().filter(|most| *most > self.asize()) {
            self.size.asize.store(most, Ordering::Release);
            self.size.has_new_end.store(true, Ordering::Release);
        }
    }

    /// Whether its last two labels are to be written where none were before.
    pub(crate) fn has_new_end(&self) -> bool {
        self.size.has_new_end.load(Ordering::Acquire)
    }

    /// Notes that all its labels are written, at the places of a device of `size` bytes.
    pub(crate) fn has_labels_of(&self, size: u64) {
        if self.device().is_some_and(|device| device.size() == size) {
            self.size.has_new_end.store(false, Ordering::Release);
        }
    }
}

impl VdevTree {
    /// The bytes that a vdev could have, by the sizes of its devices; `None` if that cannot be told (OpenZFS: `vdev_max_asize`).
    #[must_use]
    pub fn max_asize(&self, vdev: &VdevConfig) -> Option<u64> {
        size_of(vdev, &|leaf| self.leaf(leaf)?.max_asize())
    }

    /// The bytes that a vdev could have, by what the pool uses of its devices.
    fn asize_in_use(&self, vdev: &VdevConfig) -> Option<u64> {
        size_of(vdev, &|leaf| self.leaf(leaf).filter(|leaf| leaf.has_device()).map(|leaf| leaf.asize()))
    }

    /// The bytes that `vdev`, at or below top-level vdev `top`, would gain, in whole metaslabs (OpenZFS: `vs_esize`).
    #[must_use]
    pub fn growth(&self, top: &TopVdev, vdev: &VdevConfig) -> u64 {
        let config = top.config();
        let gain = || {
            let unit = 1u64.checked_shl(u32::try_from(config.ms_shift).ok().filter(|shift| *shift > 0)?)?;
            let used = if vdev.guid == top.guid() { config.asize } else { self.asize_in_use(vdev)? };
            Some(self.max_asize(vdev)?.checked_sub(used)? / unit * unit)
        };
        gain().unwrap_or(0)
    }

    /// Uses all of the devices of a vdev from now on; of all, if none is named.
    pub fn use_whole_devices(&self, vdev: Option<Guid>) {
        let is_named = |one: &&VdevConfig| vdev.is_none_or(|guid| one.guid == guid);
        let named = self.config().walk().filter(is_named).flat_map(VdevConfig::leaves);
        named.filter_map(|leaf| self.leaf(leaf.guid)).for_each(|leaf| leaf.use_whole_device());
    }

    /// The top-level vdevs that can have more metaslabs, with the bytes that they would have then. A vdev grows when all that is below it is well
    /// (OpenZFS: `vdev_open`, `vdev_expand`).
    #[must_use]
    pub fn grown(&self) -> Vec<(u64, u64)> {
        let count = |top: &TopVdev, asize: u64| {
            u32::try_from(top.config().ms_shift)
                .ok()
                .filter(|shift| *shift > 0)
                .and_then(|shift| asize.checked_shr(shift))
        };
        let may_grow = |top: &&TopVdev| top.is_concrete() && !top.config().removing && !top.config().raidz_expanding;
        let grown = self.tops().iter().filter(may_grow).filter_map(|top| {
            let asize = self.asize_in_use(top.config())?;
            (count(top, asize)? > count(top, top.config().asize)?).then_some((top, asize))
        });
        let grown: Vec<_> = grown.collect();
        if grown.is_empty() {
            return Vec::new();
        }
        let status = self.status();
        let is_well = |guid| status.children.iter().any(|top| top.guid == guid && top.state == VdevState::Healthy);
        grown.into_iter().filter(|(top, _)| is_well(top.guid())).map(|(top, asize)| (top.id(), asize)).collect()
    }

    /// Whether a device has grown whose last labels have yet to be written at its new end.
    #[must_use]
    pub fn has_new_ends(&self) -> bool {
        self.leaves().iter().any(|leaf| leaf.has_new_end() && leaf.is_writable())
    }
}

/// The bytes of a vdev, from those of its leaves. The depth is that of a configuration.
fn size_of(vdev: &VdevConfig, of_leaf: &dyn Fn(Guid) -> Option<u64>) -> Option<u64> {
    let smallest = || vdev.children.iter().filter_map(|child| size_of(child, of_leaf)).min();
    let all = || vdev.children.iter().all(|child| size_of(child, of_leaf).is_some());
    let width = vdev.children.len() as u64;
    match vdev.kind {
        VdevType::Disk | VdevType::File => of_leaf(vdev.guid),
        kind if kind.is_mirror_like() => smallest(),
        // a child that is being added does not count until all is moved
        VdevType::Raidz if all() => smallest()?.checked_mul(width.saturating_sub(u64::from(vdev.raidz_expanding))),
        VdevType::Draid if all() => draid::Sizes::of(vdev).asize(smallest()?),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::create::{LayoutOptions, VdevSpec, layout};
    use crate::testing::Growing;

    const MIB: u64 = 1 << 20;

    /// A tree of these words over devices `0` to `9`, of 256 MiB.
    fn tree(words: &str) -> (VdevTree, Vec<Arc<Growing>>) {
        let devices: Vec<_> = (0..10).map(|n| Arc::new(Growing::new(&n.to_string(), 256 * MIB))).collect();
        let find = |path: &str| {
            let device = devices.iter().find(|device| device.name() == path)?;
            Some(Arc::clone(device) as Arc<dyn Device>)
        };
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
        let new = layout(&VdevSpec::parse(&words).unwrap(), &find, options, &base::Env::seeded(1)).unwrap();
        let config = VdevConfig::parse(&new.vdev_tree).unwrap();
        (VdevTree::open(&config, &|guid| new.devices.get(&guid).cloned()).unwrap(), devices)
    }

    #[test]
    fn the_size_of_a_vdev_is_that_which_a_new_one_has() {
        for words in ["0", "mirror 0 1", "raidz2 0 1 2 3", "draid1:2d:4c:1s 0 1 2 3"] {
            let (tree, _) = tree(words);
            let top = tree.config().children.first().unwrap();
            assert_eq!(tree.max_asize(top), Some(top.asize), "{words}");
            assert_eq!(tree.asize_in_use(top), Some(top.asize), "{words}");
            assert!(tree.grown().is_empty() && !tree.has_new_ends(), "{words}");
        }
    }

    #[test]
    fn a_vdev_grows_when_all_its_devices_have_and_may() {
        let (tree, devices) = tree("mirror 0 1");
        let top = tree.tops().first().unwrap();
        let leaves: Vec<Guid> = top.config().leaves().map(|leaf| leaf.guid).collect();
        let first = top.config().leaves().next().unwrap();
        let growth = |vdev: &VdevConfig| tree.growth(top, vdev);
        devices.first().unwrap().grow(512 * MIB);
        assert!(!tree.has_new_ends(), "nobody has looked");
        tree.look();
        assert!(tree.has_new_ends());
        assert_eq!(growth(first), 256 * MIB);
        tree.use_whole_devices(leaves.first().copied());
        assert_eq!((growth(top.config()), tree.grown()), (0, vec![]), "the other one is as small as before");
        devices.get(1).unwrap().grow(400 * MIB);
        tree.look();
        assert_eq!((growth(top.config()), tree.grown()), (144 * MIB, vec![]), "it is not used");
        tree.use_whole_devices(Some(top.guid()));
        assert_eq!(tree.grown(), [(0, room_for_blocks(400 * MIB))]);
        tree.leaf(*leaves.first().unwrap()).unwrap().take_offline(true);
        assert_eq!(tree.grown(), [], "it is not well");
    }
}
