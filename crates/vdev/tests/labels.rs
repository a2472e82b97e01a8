//! Labels of real pools, written again.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::HashMap;
use std::sync::Arc;

use base::{Endian, Env, Guid, Txg};
use ondisk::label::{self as layout, key};
use oracle::fixtures;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::label::{
    AuxUse, PoolLabel, aux_config, commit, encode_config, encode_uberblock, init, initial_config, leaf_config,
    read_labels, read_uberblock_slots, uberblock_slot,
};
use vdev::{Device, FileDevice, VdevConfig, VdevTree};

#[test]
fn every_label_of_every_fixture_is_written_the_same() {
    let (mut labels, mut slots, mut aux) = (0, 0, 0);
    for fixture in fixtures::names() {
        for image in fixtures::unpack(&fixture).images() {
            let device = FileDevice::open_read_only(&image).unwrap();
            let name = format!("{fixture} {}", image.display());
            let mut ashift = 9;
            for label in read_labels(&device).into_iter().flatten() {
                labels += 1;
                let offset = layout::offset(device.size(), label.index).unwrap() + layout::CONFIG_OFFSET;
                let mut area = vec![0; layout::CONFIG_SIZE];
                device.read_at(offset, &mut area).unwrap();
                let again = encode_config(&label.config, offset, label.endian, &name).unwrap();
                assert_eq!(label.endian, Endian::Little);
                assert!(again == area, "{name}");
                let guid = label.guid().unwrap();
                let Some(top) = label.config.get_nvlist(key::VDEV_TREE) else {
                    let kind = match label.config.get_u64(key::ASHIFT) {
                        Some(ashift) => AuxUse::L2cache(ashift),
                        None => AuxUse::Spare,
                    };
                    let own = aux_config(5000, guid, label.config.get_str(key::PATH), kind);
                    assert_eq!(own, label.config, "{name}");
                    aux += 1;
                    continue;
                };
                ashift = top.get_u64(key::ASHIFT).unwrap();
                let parsed = VdevConfig::parse(top).unwrap();
                assert!(same(&parsed.to_nvlist(), top), "{name}: {:#?}\n{top:#?}", parsed.to_nvlist());
                let own = leaf_config(&label.config, top, guid);
                assert!(same(&own, &label.config), "{name}: {own:#?}\n{:#?}", label.config);
            }
            for found in read_uberblock_slots(&device, ashift) {
                slots += 1;
                let within = (found.slot as u64) << layout::uberblock_shift(ashift);
                let offset = layout::offset(device.size(), found.label).unwrap() + layout::RING_OFFSET + within;
                let mut slot = vec![0; 1 << layout::uberblock_shift(ashift)];
                device.read_at(offset, &mut slot).unwrap();
                assert!(encode_uberblock(&found.ub, ashift, offset) == slot, "{name} {}", found.slot);
                assert_eq!(uberblock_slot(&found.ub, ashift), found.slot, "{name} {:?}", found.ub.txg);
            }
        }
    }
    println!("{labels} labels, {aux} of them of spares and caches, {slots} uberblocks");
    assert!(labels > 300 && aux >= 8 && slots > 5000);
}

/// Whether two lists pack to the same bytes: equal in order too.
fn same(a: &nvlist::NvList, b: &nvlist::NvList) -> bool {
    let pack = |list: &nvlist::NvList| list.pack(nvlist::Encoding::Xdr, Endian::Little).unwrap();
    pack(a) == pack(b)
}

#[test]
fn a_leaf_is_found_in_its_tree() {
    let mut top = nvlist::NvList::new();
    let mut child = nvlist::NvList::new();
    child.insert(key::GUID, 7u64);
    child.insert(key::IS_SPARE, 1u64);
    child.insert(key::VDEV_LEAF_ZAP, 9u64);
    top.insert(key::GUID, 5u64);
    top.insert(key::IS_LOG, 1u64);
    top.insert(key::VDEV_TOP_ZAP, 9u64);
    top.insert(key::CHILDREN, vec![child]);
    let config = leaf_config(&nvlist::NvList::new(), &top, Guid(7));
    assert_eq!(config.get_u64(key::TOP_GUID), Some(5));
    assert_eq!((config.get_u64(key::IS_SPARE), config.get_u64(key::IS_LOG)), (Some(1), Some(1)));
    let tree = config.get_nvlist(key::VDEV_TREE).unwrap();
    assert!(!tree.contains(key::VDEV_TOP_ZAP));
    assert!(!tree.get_nvlist_array(key::CHILDREN).unwrap()[0].contains(key::VDEV_LEAF_ZAP));
}

#[test]
fn openzfs_reads_the_labels_of_new_vdevs() {
    let dir = tempfile::tempdir().unwrap();
    let mut devices: HashMap<String, Arc<dyn Device>> = HashMap::new();
    for n in 0..4 {
        let path = dir.path().join(format!("disk{n}"));
        let device = FileDevice::create(&path, 128 << 20).unwrap();
        devices.insert(path.to_str().unwrap().to_owned(), Arc::new(device));
    }
    let path = |n: usize| dir.path().join(format!("disk{n}")).to_str().unwrap().to_owned();
    let words: Vec<String> = ["raidz2".to_owned()].into_iter().chain((0..4).map(path)).collect();
    let spec = VdevSpec::parse(&words).unwrap();
    let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
    let new = layout(&spec, &|path| devices.get(path).cloned(), options, &Env::seeded(1)).unwrap();
    let mut pool = nvlist::NvList::new();
    for (name, value) in [(key::VERSION, 5000u64), (key::POOL_STATE, 0), (key::POOL_TXG, 4), (key::POOL_GUID, 77)] {
        pool.insert(name, value);
    }
    pool.insert(key::POOL_NAME, "tank");
    pool.insert(key::VDEV_CHILDREN, 1u64);
    pool.insert(key::FEATURES_FOR_READ, nvlist::NvList::new());
    let tree = VdevTree::open(&VdevConfig::parse(&new.vdev_tree).unwrap(), &|g| new.devices.get(&g).cloned()).unwrap();
    let top = &new.vdev_tree.get_nvlist_array(key::CHILDREN).unwrap()[0];
    for (guid, device) in &new.devices {
        init(&**device, &initial_config(&pool, top, *guid, Txg(4))).unwrap();
    }
    let ub = vdev::label::read_uberblocks(
        &FileDevice::open_read_only(&fixtures::unpack("basic-a").images()[0]).unwrap(),
        12,
    );
    let ub = ondisk::Uberblock { txg: Txg(4), ..ub[0].clone() };
    commit(&tree, Some(&PoolLabel { pool: &pool, vdev_tree: &new.vdev_tree, tops: &[] }), &ub).unwrap();
    drop((tree, new, devices));
    for n in 0..4 {
        let Some(output) = oracle::judge::run("zdb", &["-lu", &path(n)]) else { return };
        let text = String::from_utf8_lossy(&output.stdout);
        for line in
            ["name: 'tank'", "txg: 4", "type: 'raidz'", "nparity: 2", "ashift: 12", "labels = 0 1 2 3", "Uberblock[4]"]
        {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("invalid"), "{text}");
    }
    // and clearing them is clearing them
    let device = FileDevice::open_read_write(&dir.path().join("disk0")).unwrap();
    assert_eq!(vdev::label::clear(&device).unwrap(), 4);
    let output = oracle::judge::run("zdb", &["-l", &path(0)]).unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("failed to unpack label 0"));
}
