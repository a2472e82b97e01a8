//! Vdev trees: bytes as a packed configuration (of a label or of the MOS), a vdev tree built from it, and blocks read through that.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use base::Txg;
use nvlist::{Limits, NvList};
use ondisk::Dva;
use ondisk::indirect::{IndirectMapping, MappingEntry};
use vdev::{Device, ReadCx, VdevConfig, VdevTree};

/// Limits of a packed configuration.
const LIMITS: Limits = Limits { depth: 20, pairs: 1 << 12, bytes: 4 << 20 };
/// Number of reconstruction attempts after which a block is accepted.
const CHECKS_MAX: u32 = 24;

/// A device of 1 TiB whose every byte depends on its offset.
#[derive(Debug)]
struct Noise(u64);

impl Device for Noise {
    fn size(&self) -> u64 {
        1 << 40
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        for (at, byte) in (offset..).zip(buf) {
            *byte = (at ^ self.0 ^ (at >> 9)) as u8;
        }
        Ok(())
    }

    fn name(&self) -> String {
        "noise".to_owned()
    }
}

/// Opens the tree that the bytes describe and reads from each top-level vdev.
///
/// # Panics
/// On a bug in the library: an allocation is smaller than what it holds.
pub fn fuzz_vdev_config(data: &[u8]) {
    let Ok((list, _)) = NvList::unpack_with(data, &LIMITS) else { return };
    let top = list.get_nvlist(ondisk::label::key::VDEV_TREE).unwrap_or(&list);
    let Ok(config) = VdevConfig::parse(top) else { return };
    let mut root = NvList::new();
    root.insert("type", "root");
    root.insert("children", vec![top.clone()]);
    // a label holds one top-level vdev, the MOS the root
    let config = if config.kind == vdev::VdevType::Root { Ok(config) } else { VdevConfig::parse(&root) };
    let Ok(config) = config else { return };
    let odd = |n: u64| (!n.is_multiple_of(5)).then(|| Arc::new(Noise(n)) as Arc<dyn Device>);
    let Ok(tree) = VdevTree::open(&config, &|guid| odd(guid.0)) else { return };
    assert_eq!(tree.status().walk().count(), config.walk().count());
    let seed = data.iter().fold(0u64, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte));
    for leaf in tree.leaves() {
        tree.set_dtl(leaf.guid(), std::iter::once(seed % 64..32 + seed % 96).collect());
    }
    let mapping = || {
        let entry =
            |src: u64, len| MappingEntry { src_word: src >> 9, dst: Dva::new(seed % 3, seed & !511, len, false) };
        IndirectMapping::new(vec![entry(0, 0x800), entry(0x800, 0x10000)])
    };
    for top in tree.tops().iter().take(4) {
        tree.set_reflow_offset(top.id(), seed % (1 << 24), seed % 3);
        if let Ok(mapping) = mapping() {
            tree.set_indirect(top.id(), mapping);
        }
        for (offset, psize) in
            [(0, 512u64), (0x400, 0x3000), ((seed % (1 << 36)) & !511, 0x6000), (seed & !511, 0x1000)]
        {
            assert!(!top.is_concrete() || top.psize_to_asize(psize) >= psize);
            for cx in [ReadCx::NORMAL, ReadCx::SCRUB] {
                let checks = Cell::new(0);
                let check = &mut |_: &[u8]| {
                    checks.set(checks.get() + 1);
                    checks.get() > CHECKS_MAX
                };
                let dva = Dva::new(top.id(), offset, psize, false);
                let mut buf = vec![0; psize as usize];
                let _ = tree.read(dva, psize, Txg(seed % 128), &cx, &mut buf, check);
            }
        }
    }
}
