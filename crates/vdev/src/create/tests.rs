#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;

use base::{Env, Errno, Guid, Txg};
use nvlist::NvList;
use ondisk::label::key;
use oracle::fixtures;

use super::*;
use crate::label::{aux_config, init, initial_config, leaf_config, read_label, write_config};
use crate::{Device, DeviceKind, Error, FileDevice, MemoryDevice, VdevConfig, VdevTree, VdevType};

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn parse(line: &str) -> Result<VdevSpec, String> {
    VdevSpec::parse(&words(line)).map_err(|e| e.to_string())
}

fn error(line: &str) -> String {
    parse(line).unwrap_err()
}

#[test]
fn the_words_of_a_command_line_are_understood() {
    let spec =
        parse("mirror a b raidz2 c d e f log mirror g h i special j mirror k l dedup m spare n o cache p q").unwrap();
    let tops: Vec<(Group, Option<Bias>, usize)> = spec.tops.iter().map(|t| (t.group, t.bias, t.paths.len())).collect();
    assert_eq!(
        tops,
        [
            (Group::Mirror, None, 2),
            (Group::Raidz(2), None, 4),
            (Group::Mirror, Some(Bias::Log), 3),
            (Group::Single, Some(Bias::Special), 1),
            (Group::Mirror, Some(Bias::Special), 2),
            (Group::Single, Some(Bias::Dedup), 1),
        ]
    );
    assert_eq!((spec.spares, spec.l2cache), (words("n o"), words("p q")));
    assert_eq!(parse("a b").unwrap().tops.len(), 2);
    assert_eq!(parse("raidz a b").unwrap().tops[0].group, Group::Raidz(1));
    // what no keyword is, is a device
    assert_eq!(parse("raidz4 a draid1-0-0").unwrap().tops.len(), 3);
    // after spares, vdevs are for everything again
    assert_eq!(parse("log a spare b mirror c d").unwrap().tops[1].bias, None);
    assert!(parse("log a").unwrap().require_normal().is_err());
    assert_eq!(
        parse("a log b spare c").unwrap().paths().collect::<Vec<_>>(),
        [("a", false), ("b", false), ("c", true)]
    );
}

#[test]
fn what_is_no_specification_is_refused_in_openzfs_words() {
    for (line, says) in [
        ("", "at least one toplevel vdev must be specified"),
        ("mirror a", "mirror requires at least 2 devices"),
        ("raidz2 a b", "raidz2 requires at least 3 devices"),
        ("raidz", "raidz requires at least 2 devices"),
        ("a log", "log requires at least 1 device"),
        ("a log b log c", "'log' can be specified only once"),
        ("a spare b spare c", "'spare' can be specified only once"),
        ("a cache b cache c", "'cache' can be specified only once"),
        ("a spare", "spare requires at least 1 devices"),
        ("a log raidz b c", "unsupported 'log' device: raidz"),
        ("mirror fgroup a b fgroup c d", "mirror is not dRAID and cannot have failure domains"),
    ] {
        assert_eq!(error(line), format!("invalid vdev specification: {says}"), "{line}");
    }
    let many: Vec<String> = (0..256).map(|n| n.to_string()).collect();
    let many = format!("raidz {}", many.join(" "));
    assert_eq!(error(&many), "invalid vdev specification: raidz supports no more than 255 devices");
}

fn draid_of(word: &str, disks: usize) -> Result<DraidSpec, String> {
    let names: Vec<String> = (0..disks).map(|n| format!("d{n}")).collect();
    match parse(&format!("{word} {}", names.join(" ")))?.tops[0].group {
        Group::Draid(draid) => Ok(draid),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_draid_finds_its_shape() {
    let shape = |word, disks| {
        let d = draid_of(word, disks).unwrap();
        (d.nparity, d.ndata, d.nspares, d.ngroups, d.nchildren)
    };
    assert_eq!(shape("draid", 4), (1, 3, 0, 1, 4));
    assert_eq!(shape("draid1:2d", 4), (1, 2, 0, 4, 4));
    assert_eq!(shape("draid2:4d:11c:1s", 11), (2, 4, 1, 5, 11));
    assert_eq!(shape("draid2:8D:51c:2s", 51), (2, 8, 2, 49, 51));
    assert_eq!(shape("draid2:1s", 20), (2, 8, 1, 19, 20));
    // eight slices side by side
    assert_eq!(shape("draid2:8d:12c:96w:8s", 96), (2, 8, 8, 88, 12));
    let halves = "draid1:2d fgroup a b c d fgroup e f g h";
    assert!(matches!(parse(halves).unwrap().tops[0].group, Group::Draid(d) if d.nchildren == 4));
    let by_domain = parse("draid1:2d fdomain a1 a2 fdomain b1 b2 fdomain c1 c2").unwrap();
    assert_eq!(by_domain.tops[0].paths, words("a1 b1 c1 a2 b2 c2"));
    for (word, disks, says) in [
        (
            "draid1:9d",
            4,
            "requested number of dRAID data disks 9 per group is too high,\nat most 3 disks are available for data",
        ),
        ("draid1:5c", 4, "invalid number of dRAID disks; multiple of 5 required but 4 provided"),
        ("draid1:5w", 4, "invalid number of dRAID disks; 5 required but 4 provided"),
        ("draid1:x", 4, "invalid dRAID syntax; expected [:<number><c|d|s>] not 'draid1:x'"),
        ("draid1:4x", 4, "invalid dRAID syntax; expected [:<number><c|d|s|w>], not 'draid1:4x'"),
        (
            "draid1:3s",
            4,
            "requested number of distributed spares 3 and parity level 1 leaves no disks available for data",
        ),
        (
            "draid1:0d",
            4,
            "requested number of dRAID data disks 0 per group is too high,\nat most 3 disks are available for data",
        ),
    ] {
        assert_eq!(draid_of(word, disks).unwrap_err(), says, "{word}");
    }
    assert!(error("draid1:2d fgroup a b c d").contains("only one failure group"));
    assert!(error("draid1:2d fgroup a b c fgroup d e").contains("different number of devices in failure group 2"));
    // every shape that is accepted is one that can be opened
    for disks in 2..30 {
        for parity in 1..=3 {
            for spares in 0..3 {
                let word = format!("draid{parity}:{spares}s");
                let Ok(_) = draid_of(&word, disks) else { continue };
                let names: Vec<String> = (0..disks).map(|n| format!("d{n}")).collect();
                let spec = parse(&format!("{word} {}", names.join(" "))).unwrap();
                let new = layout(&spec, &|_| Some(Arc::new(Sized(1 << 30))), LayoutOptions::default(), &Env::seeded(1));
                let config = VdevConfig::parse(&new.unwrap().vdev_tree).unwrap();
                VdevTree::open(&config, &|_| None).unwrap();
            }
        }
    }
}

/// A device that is nothing but its size and its sectors.
#[derive(Debug)]
struct Sized(u64);

impl Device for Sized {
    fn size(&self) -> u64 {
        self.0
    }
    fn read_at(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
    fn name(&self) -> String {
        "sized".to_owned()
    }
}

#[derive(Debug)]
struct Disk(u64, u64, u64);

impl Device for Disk {
    fn size(&self) -> u64 {
        self.0
    }
    fn read_at(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
    fn kind(&self) -> DeviceKind {
        DeviceKind { is_block: true, logical_ashift: self.1, physical_ashift: self.2 }
    }
    fn name(&self) -> String {
        "disk".to_owned()
    }
}

#[test]
fn new_vdevs_are_laid_out_as_those_of_the_fixtures() {
    let mut tops_seen = 0;
    for fixture in
        ["basic-a", "mirror-a", "stripe-a", "raidz1-a", "raidz2-a", "raidz3-a", "draid-a", "special-a", "aux-a"]
    {
        let unpacked = fixtures::unpack(fixture);
        // the tree of each top-level vdev, and the device of each path
        let (mut tops, mut devices) = (Vec::<NvList>::new(), HashMap::<String, Arc<dyn Device>>::new());
        for image in unpacked.images() {
            let device = FileDevice::open_read_only(&image).unwrap();
            let Some(label) = (0..4).find_map(|n| read_label(&device, n).ok()) else { continue };
            let Some(top) = label.config.get_nvlist(key::VDEV_TREE) else { continue };
            let config = VdevConfig::parse(top).unwrap();
            let own = config.walk().find(|v| v.guid == label.guid().unwrap()).unwrap();
            devices.insert(own.path.clone().unwrap(), Arc::new(device));
            if !tops.iter().any(|t| t.get_u64(key::ID) == Some(config.id)) {
                tops.push(top.clone());
            }
        }
        tops.sort_by_key(|t| t.get_u64(key::ID));
        for top in tops {
            let config = VdevConfig::parse(&top).unwrap();
            let paths: Vec<String> = config.leaves().map(|l| l.path.clone().unwrap()).collect();
            let word = match config.kind {
                VdevType::File => String::new(),
                VdevType::Raidz => format!("raidz{}", config.nparity),
                VdevType::Draid => {
                    format!("draid{}:{}d:{}s", config.nparity, config.draid_ndata, config.draid_nspares)
                }
                kind => kind.name().to_owned(),
            };
            let spec =
                parse(&format!("{} {word} {}", if config.is_log { "log" } else { "" }, paths.join(" "))).unwrap();
            let options =
                LayoutOptions { ashift: Some(config.ashift), first_id: config.id, create_txg: config.create_txg };
            let new = layout(&spec, &|path| devices.get(path).cloned(), options, &Env::seeded(3)).unwrap();
            let mut new = VdevConfig::parse(&new.vdev_tree).unwrap().children.remove(0);
            let mut old = config;
            assert_eq!(new.alloc_bias.take().is_some(), old.is_log);
            // identities and objects are their own
            for vdev in [&mut new, &mut old] {
                vdev.guid = Guid(1);
                vdev.ms_array = base::ObjectId(1);
                for child in &mut vdev.children {
                    child.guid = Guid(1);
                    child.dtl = base::ObjectId(0);
                }
            }
            assert_eq!(new.to_nvlist(), old.to_nvlist(), "{fixture}");
            let pack = |v: &VdevConfig| v.to_nvlist().pack(nvlist::Encoding::Xdr, base::Endian::Little).unwrap();
            assert_eq!(pack(&new), pack(&old), "{fixture}");
            tops_seen += 1;
        }
    }
    assert!(tops_seen >= 13, "{tops_seen}");
}

#[test]
fn metaslabs_are_as_many_as_openzfs_makes() {
    for (asize, shift) in [
        (64 << 20, 24),
        (287_834_112, 25),
        (1 << 30, 27),
        (8 << 30, 29),
        (8u64 << 30, 29),
        (100 << 30, 29),
        (200 << 30, 31),
        (1 << 40, 33),
        (3 << 40, 34),
        (1 << 50, 34),
        (4 << 50, 36),
    ] {
        assert_eq!(metaslab_shift(asize), shift, "{asize}");
    }
}

#[test]
fn sectors_are_those_of_the_devices_or_larger_if_asked() {
    let ashift = |devices: &[(u64, u64)], asked: Option<u64>| {
        let paths: Vec<String> = (0..devices.len()).map(|n| n.to_string()).collect();
        let spec = parse(&format!("raidz {}", paths.join(" "))).unwrap();
        let find = |path: &str| {
            let (logical, physical) = devices[path.parse::<usize>().unwrap()];
            Some(Arc::new(Disk(1 << 30, logical, physical)) as Arc<dyn Device>)
        };
        let options = LayoutOptions { ashift: asked, ..LayoutOptions::default() };
        layout(&spec, &find, options, &Env::seeded(1)).map(|new| {
            let top = VdevConfig::parse(&new.vdev_tree).unwrap().children.remove(0);
            assert_eq!(top.raw.get_u64(key::MIN_ALLOC), Some(1 << top.ashift));
            top.ashift
        })
    };
    assert_eq!(ashift(&[(9, 9), (9, 9)], None).unwrap(), 9);
    assert_eq!(ashift(&[(9, 12), (9, 9)], None).unwrap(), 12);
    assert_eq!(ashift(&[(9, 12), (12, 12)], None).unwrap(), 12);
    // an absurd size that a device claims to like
    assert_eq!(ashift(&[(9, 18), (9, 12)], None).unwrap(), 12);
    assert_eq!(ashift(&[(9, 18), (9, 18)], None).unwrap(), 9);
    assert_eq!(ashift(&[(9, 12), (9, 12)], Some(9)).unwrap(), 9);
    assert_eq!(ashift(&[(12, 12), (9, 9)], Some(9)).unwrap(), 12);
    assert_eq!(ashift(&[(9, 9), (9, 9)], Some(16)).unwrap(), 16);
    assert!(ashift(&[(9, 9), (9, 9)], Some(17)).is_err());
    assert!(ashift(&[(17, 17), (9, 9)], None).is_err());
}

#[test]
fn new_pools_have_spares_and_caches_and_small_devices_are_refused() {
    let spec = parse("draid1:2d:2s a b c d e f log x spare y cache z").unwrap();
    let device = |_: &str| Some(Arc::new(Sized(256 << 20)) as Arc<dyn Device>);
    let new = layout(&spec, &device, LayoutOptions::default(), &Env::seeded(9)).unwrap();
    let root = VdevConfig::parse(&new.vdev_tree).unwrap();
    assert_eq!((root.children.len(), new.devices.len()), (2, 9));
    assert!(root.children[1].is_log && root.children[1].alloc_bias.as_deref() == Some("log"));
    let paths: Vec<&str> = new.spares.iter().filter_map(|s| s.get_str(key::PATH)).collect();
    assert_eq!(paths, ["y", "draid1-0-0", "draid1-0-1"]);
    assert_eq!(new.spares[1].get_u64(key::TOP_GUID), Some(root.children[0].guid.0));
    assert_eq!(new.l2cache[0].get_u64(key::ASHIFT), Some(9));
    assert!(new.spares.iter().chain(&new.l2cache).all(|list| VdevConfig::parse(list).is_ok()));
    // the same randomness, the same pool
    let again = layout(&spec, &device, LayoutOptions::default(), &Env::seeded(9)).unwrap();
    assert_eq!(again.vdev_tree, new.vdev_tree);
    let small = |_: &str| Some(Arc::new(Sized((64 << 20) - 1)) as Arc<dyn Device>);
    let error = layout(&spec, &small, LayoutOptions::default(), &Env::seeded(9)).unwrap_err();
    assert!(matches!(error, Error::BelowMinimum { .. }) && error.errno() == Errno::EOVERFLOW);
    assert!(matches!(layout(&spec, &|_| None, LayoutOptions::default(), &Env::seeded(9)), Err(Error::Open { .. })));
}

#[test]
fn uneven_vdevs_are_told_in_openzfs_words() {
    // sizes in MiB by the first letter: s(mall), otherwise large; D is a disk
    let device = |path: &str| {
        let size = if path.starts_with('s') { 64 << 20 } else { 1 << 30 };
        let found: Arc<dyn Device> =
            if path.starts_with('D') { Arc::new(Disk(size, 9, 9)) } else { Arc::new(Sized(size)) };
        Some(found)
    };
    let new = |line: &str| replication(None, &parse(line).unwrap(), &device);
    for even in
        ["a", "a b", "mirror a b mirror c d", "raidz a b c raidz d e", "mirror a b raidz c d e", "a log mirror s1 s2"]
    {
        assert!(new(even).is_empty(), "{even}");
    }
    for (line, says) in [
        ("mirror a b raidz2 c d e", "raidz and mirror vdevs with different redundancy, 2 vs. 1 (2-way) are present"),
        ("raidz a b raidz2 c d e", "raidz and raidz vdevs with different redundancy, 1 vs. 2 are present"),
        ("a mirror b c", "both file and mirror vdevs are present"),
        ("mirror a b mirror c d e", "both 2-way and 3-way mirror vdevs are present"),
        ("a D", "both file and disk vdevs are present"),
        ("mirror a D", "mirror contains both files and devices"),
    ] {
        assert_eq!(new(line), [format!("mismatched replication level: {says}")], "{line}");
    }
    assert_eq!(new("mirror a s"), ["mirror contains devices of different sizes"]);
    let pool = layout(&parse("mirror a b").unwrap(), &device, LayoutOptions::default(), &Env::seeded(1)).unwrap();
    let add = |line: &str| replication(Some(&pool.vdev_tree), &parse(line).unwrap(), &device);
    assert!(add("mirror c d").is_empty() && add("raidz c d e").is_empty() && add("spare x").is_empty());
    for (line, says) in [
        ("c", "pool uses mirror and new vdev is file"),
        ("mirror c d e", "pool uses 2-way mirror and new vdev uses 3-way mirror"),
        ("raidz2 c d e", "pool and new vdev with different redundancy, raidz and mirror vdevs, 2 vs. 1 (2-way)"),
    ] {
        assert_eq!(add(line), [format!("mismatched replication level: {says}")], "{line}");
    }
    let said = complaint(&add("c"), false);
    assert!(said.starts_with("invalid vdev specification\nuse '-f' to override the following errors:\nmismatched"));
}

#[test]
fn what_is_on_a_device_is_told() {
    let device = MemoryDevice::writable(64 << 20);
    assert_eq!(in_use(&device).unwrap(), None);
    let new = layout(
        &parse("memory").unwrap(),
        &|_| Some(Arc::new(device.clone())),
        LayoutOptions::default(),
        &Env::seeded(1),
    )
    .unwrap();
    let top = &new.vdev_tree.get_nvlist_array(key::CHILDREN).unwrap()[0];
    let leaf = Guid(top.get_u64(key::GUID).unwrap());
    let pool = |state: u64, txg: u64| {
        let mut pool = NvList::new();
        pool.insert(key::POOL_NAME, "tank");
        pool.insert(key::POOL_STATE, state);
        pool.insert(key::POOL_TXG, txg);
        pool.insert(key::POOL_GUID, 5u64);
        pool
    };
    init(&device, &initial_config(&pool(0, 8), top, leaf, Txg(8))).unwrap();
    // not yet in use
    assert_eq!(in_use(&device).unwrap(), None);
    for (state, name) in [(0, Some("potentially active")), (1, Some("exported")), (2, None)] {
        write_config(&device, &leaf_config(&pool(state, 9), top, leaf), &[0, 1, 2, 3]).unwrap();
        let found = in_use(&device).unwrap();
        let says = found.as_ref().and_then(|f| f.refusal("/d", false, false, false));
        assert_eq!(says, name.map(|n| format!("/d is part of {n} pool 'tank'")));
        assert_eq!(found.and_then(|f| f.refusal("/d", false, false, true)), None);
    }
    write_config(&device, &aux_config(5000, Guid(7), None, crate::label::AuxUse::Spare), &[0, 1, 2, 3]).unwrap();
    assert_eq!(in_use(&device).unwrap(), Some(InUse::Spare { leaf: Guid(7) }));
}

#[test]
fn file_systems_are_known_by_the_tools_that_make_them() {
    let dir = tempfile::tempdir().unwrap();
    for (tool, options, name) in [
        ("mke2fs", vec!["-q", "-F", "-t", "ext2"], "ext2"),
        ("mke2fs", vec!["-q", "-F", "-t", "ext3"], "ext3"),
        ("mke2fs", vec!["-q", "-F", "-t", "ext4"], "ext4"),
        ("mkswap", vec!["-q"], "swap"),
        ("mkfs.vfat", vec![], "vfat"),
        ("mkfs.xfs", vec!["-q"], "xfs"),
        ("mkfs.btrfs", vec!["-q"], "btrfs"),
    ] {
        let path = dir.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(320 << 20).unwrap();
        match Command::new(tool).args(&options).arg(&path).output() {
            Ok(done) if done.status.success() => {}
            _ => continue,
        }
        let found = in_use_path(&path).unwrap().unwrap();
        assert_eq!(found, InUse::Foreign(name));
        assert_eq!(found.refusal("/d", false, false, false), None);
        let says = found.refusal("/d", true, false, false).unwrap();
        assert_eq!(says, format!("/d contains a filesystem of type '{name}'"));
        assert_eq!(found.refusal("/d", true, false, true), None);
    }
    // marks, where the tools are not there
    let marked = |at: usize, mark: &[u8]| {
        let mut bytes = vec![0; 1 << 20];
        bytes[at..at + mark.len()].copy_from_slice(mark);
        in_use(&MemoryDevice::new(bytes)).unwrap()
    };
    assert_eq!(marked(0, b"XFSB"), Some(InUse::Foreign("xfs")));
    assert_eq!(marked(0x10040, b"_BHRfS_M"), Some(InUse::Foreign("btrfs")));
    assert_eq!(marked(0x218, b"LVM2 001"), Some(InUse::Foreign("LVM2_member")));
    assert_eq!(marked(0x1000, &[0xfc, 0x4e, 0x2b, 0xa9]), Some(InUse::Foreign("linux_raid_member")));
    assert_eq!(marked((1 << 20) - 0x10000, &[0xfc, 0x4e, 0x2b, 0xa9]), Some(InUse::Foreign("linux_raid_member")));
    assert_eq!(marked(512, b"EFI PART"), Some(InUse::Partitions("gpt")));
    assert_eq!(marked(0x1fe, &[0x55, 0xaa]), None);
    let mut table = vec![0; 0x42];
    (table[4], table[12], table[0x40], table[0x41]) = (0x83, 1, 0x55, 0xaa);
    assert_eq!(marked(0x1be, &table), Some(InUse::Partitions("dos")));
    assert_eq!(in_use(&MemoryDevice::new(vec![0; 100])).unwrap(), None);
}

#[test]
fn a_word_names_a_file_or_a_device() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk");
    std::fs::write(&file, b"").unwrap();
    let text = |word: &str| resolve(word).map_err(|e| e.to_string());
    assert_eq!(text(file.to_str().unwrap()), Ok(file.clone()));
    assert_eq!(text("/no/such"), Err("cannot resolve path '/no/such'".to_owned()));
    assert_eq!(text("/dev/null"), Err("cannot use '/dev/null': must be a block device or regular file".to_owned()));
    assert_eq!(text("null"), Err("cannot use '/dev/null': must be a block device or regular file".to_owned()));
    assert_eq!(
        text("raidz4"),
        Err("cannot open 'raidz4': no such device in /dev\nmust be a full path or shorthand device name".to_owned())
    );
}
