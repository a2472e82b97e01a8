#![allow(clippy::unwrap_used)]

use oracle::fixtures;

use super::*;
use crate::config::VdevType;
use crate::label::{read_labels, read_uberblock_slots, read_uberblocks};
use crate::test_pool::{TestPool, draid, group, indirect, leaf, mirror, raidz};
use crate::{FileDevice, MemoryDevice};

/// Prints a list as `zdb -l` does.
fn zdb(list: &NvList, indent: usize, out: &mut Vec<String>) {
    use nvlist::Value;
    let pad = " ".repeat(indent);
    for (name, value) in list.iter() {
        match value {
            Value::Boolean => out.push(format!("{pad}{name}")),
            Value::Uint64(n) => out.push(format!("{pad}{name}: {n}")),
            Value::String(s) => out.push(format!("{pad}{name}: '{}'", s.to_string_lossy())),
            Value::NvList(inner) => {
                out.push(format!("{pad}{name}:"));
                zdb(inner, indent + 4, out);
            }
            Value::NvListArray(all) => {
                for (n, inner) in all.iter().enumerate() {
                    out.push(format!("{pad}{name}[{n}]:"));
                    zdb(inner, indent + 4, out);
                }
            }
            Value::Uint64Array(all) => {
                out.extend(all.iter().enumerate().map(|(n, v)| format!("{pad}{name}[{n}]: {v}")))
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// The parts of `zdb.txt` that tell of one device: its first label, and its uberblocks (slot, txg, guid sum, timestamp).
fn truth(text: &str, disk: &str) -> Option<(Vec<String>, Vec<[u64; 4]>)> {
    let mut lines =
        text.lines().skip_while(|l| *l != format!("### zdb -lu {disk}")).skip(1).take_while(|l| !l.starts_with("### "));
    let mut config = Vec::new();
    let mut uberblocks: Vec<[u64; 4]> = Vec::new();
    let mut in_config = false;
    for line in &mut lines {
        let number = |l: &str| l.split(" = ").nth(1).and_then(|n| n.split(' ').next()?.parse().ok()).unwrap();
        if line.starts_with("LABEL") {
            in_config = config.is_empty();
        } else if line.trim_start().starts_with("labels =") {
            in_config = false;
        } else if let Some(slot) = line.trim().strip_prefix("Uberblock[") {
            in_config = false;
            uberblocks.push([slot.trim_end_matches(']').parse().unwrap(), 0, 0, 0]);
        } else if in_config {
            config.push(line.to_owned());
        } else if let Some(last) = uberblocks.last_mut() {
            match line.trim_start() {
                l if l.starts_with("txg =") => last[1] = number(l),
                l if l.starts_with("guid_sum =") => last[2] = number(l),
                l if l.starts_with("timestamp =") => last[3] = number(l),
                _ => {}
            }
        }
    }
    (!config.is_empty()).then_some((config, uberblocks))
}

#[test]
fn labels_and_uberblocks_are_those_of_zdb() {
    let mut compared = 0;
    for name in fixtures::names() {
        let text = fixtures::text(&name, "zdb.txt.zst");
        let unpacked = fixtures::unpack(&name);
        for image in unpacked.images() {
            let file = image.file_name().unwrap().to_str().unwrap().to_owned();
            let device = FileDevice::open_read_only(&image).unwrap();
            let labels = read_labels(&device);
            assert!(labels.iter().all(Result::is_ok), "{name}/{file}: {labels:?}");
            let config = &labels[0].as_ref().unwrap().config;
            let Some((expected, uberblocks)) = truth(&text, &file) else { continue };
            let mut printed = Vec::new();
            zdb(config, 4, &mut printed);
            assert_eq!(printed, expected, "{name}/{file}");
            let ashift = config.get_nvlist(key::VDEV_TREE).and_then(|t| t.get_u64(key::ASHIFT)).unwrap_or(0);
            let slots = read_uberblock_slots(&device, ashift);
            let ours: Vec<[u64; 4]> =
                slots.iter().map(|s| [s.slot as u64, s.ub.txg.0, s.ub.guid_sum.0, s.ub.timestamp]).collect();
            // The text is cut after some lines: what it tells in full must be there. With txg 0 it shows the template of a new label, whose
            // checksum is that of the whole ring; such a slot is no uberblock.
            for expected in uberblocks.iter().filter(|u| u[1] != 0 && u[3] != 0) {
                assert!(ours.contains(expected), "{name}/{file}: {expected:?} not in {ours:?}");
            }
            compared += 1;
        }
    }
    assert!(compared > 50, "{compared}");
}

#[test]
fn every_fixture_is_found_and_put_together() {
    for name in fixtures::names() {
        let manifest = fixtures::manifest(&name);
        let unpacked = fixtures::unpack(&name);
        let found = scan(std::slice::from_ref(&unpacked.dir)).unwrap();
        assert_eq!(found.len(), 1, "{name}");
        let pool = &found[0];
        assert_eq!(pool.name, manifest["pool"].as_str().unwrap(), "{name}");
        let config = pool.vdev_config().unwrap();
        assert_eq!(config.children.len() as u64, pool.config.get_u64(key::VDEV_CHILDREN).unwrap());
        let aux = pool.spares.len() + pool.l2cache.len() + pool.stale.len();
        assert_eq!(pool.devices.len() + aux, unpacked.images().len(), "{name}");
        // the guid sum tells whether every vdev is known (labels do not know removed devices)
        let ashift = config.children.iter().find(|c| c.ashift != 0).unwrap().ashift;
        let best = read_uberblocks(&*pool.devices[0].device, ashift).remove(0);
        let sum = config.walk().fold(0u64, |sum, v| sum.wrapping_add(v.guid.0));
        if pool.missing_tops.is_empty() {
            assert_eq!(sum, best.guid_sum.0, "{name}");
        } else {
            assert_eq!(name, "removal-a");
        }
    }
}

#[test]
fn all_fixtures_at_once_are_kept_apart() {
    let all: Vec<_> = ["aux-a", "stripe-a", "raidz2-a", "degraidz3-a", "resilver-a"].map(fixtures::unpack).into();
    let paths: Vec<PathBuf> = all.iter().map(|u| u.dir.clone()).collect();
    let found = scan(&paths).unwrap();
    assert_eq!(found.len(), 5);
    let aux = found.iter().find(|c| c.name == fixtures::manifest("aux-a")["pool"].as_str().unwrap()).unwrap();
    assert_eq!((aux.spares.len(), aux.l2cache.len()), (1, 1));
    let spare = aux.spares[0].guid;
    assert!(aux.device(spare).is_some());
    let lost = found.iter().find(|c| c.name == fixtures::manifest("degraidz3-a")["pool"].as_str().unwrap()).unwrap();
    assert_eq!(lost.missing.len(), 3);
    assert!(lost.missing_tops.is_empty());
}

#[test]
fn copies_and_older_devices_give_way_and_garbage_is_passed_over() {
    let fixture = fixtures::unpack("mirror-a");
    let dir = oracle_dir();
    let at = |name: &str| dir.path().join(name);
    let images = fixture.images();
    std::os::unix::fs::symlink(&images[0], at("a")).unwrap();
    std::os::unix::fs::symlink(&images[0], at("b")).unwrap();
    std::fs::write(at("garbage"), vec![0xa5u8; 1 << 20]).unwrap();
    std::fs::write(at("small"), b"x").unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    std::process::Command::new("mkfifo").arg(at("fifo")).status().unwrap();
    let found = scan(&[dir.path().to_owned()]).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].devices.len(), 1);
    assert_eq!(found[0].devices[0].path, at("a"));
    assert_eq!(found[0].missing.len(), 1);
    assert!(scan(&[at("nothing")]).is_err());
    assert!(scan(&[at("garbage")]).unwrap().is_empty());
}

fn oracle_dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn one_good_label_of_four_is_enough() {
    let fixture = fixtures::unpack("basic-a");
    let mut bytes = std::fs::read(&fixture.images()[0]).unwrap();
    let size = bytes.len();
    bytes[..512 << 10].fill(0);
    bytes[size - (256 << 10)..].fill(0xff);
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes));
    let labels = read_labels(&*device);
    assert_eq!(labels.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, false, true, false]);
    let found = scan_devices(vec![(PathBuf::from("x"), device)]);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].devices[0].labels, 1);
}

#[test]
fn a_log_that_is_missing_is_told() {
    let fixture = fixtures::unpack("zilslog-a");
    let disk = fixture.images().into_iter().find(|p| p.ends_with("disk0.img")).unwrap();
    let found = scan(&[disk]).unwrap();
    assert_eq!(found[0].missing_tops.len(), 1);
    let config = found[0].vdev_config().unwrap();
    assert!(config.children.iter().any(|c| c.kind == VdevType::Missing));
}

/// Writes the seeds of the fuzz targets: `ZUSE_SEEDS=1 cargo test -p zuse-vdev seeds -- --ignored`.
#[test]
#[ignore = "writes fuzz/corpus"]
fn seeds() {
    let corpus = fixtures::fixture_root().join("../fuzz/corpus");
    for name in [
        "aux-a",
        "mirror-a",
        "raidz2-a",
        "draid-a",
        "raidzexp-a",
        "raidzexp-b",
        "removal-a",
        "legacy-a",
        "mixed-a",
        "resilver-a",
    ] {
        for (n, image) in
            fixtures::unpack(name).images().iter().enumerate().filter(|(n, _)| *n == 0 || (name == "aux-a" && *n > 2))
        {
            let device = FileDevice::open_read_only(image).unwrap();
            let label = crate::label::read_label(&device, 0).unwrap();
            let packed = label.config.pack(nvlist::Encoding::Xdr, label.endian).unwrap();
            for target in ["label", "vdev_config"] {
                std::fs::create_dir_all(corpus.join(target)).unwrap();
                std::fs::write(corpus.join(target).join(format!("{name}-{n}")), &packed).unwrap();
            }
        }
    }
    // the root of a pool, as the MOS has it
    let with_id = |mut top: NvList, id: u64| {
        top.insert(key::ID, id);
        top
    };
    let mut spare = group("spare", 1, vec![leaf(21), leaf(22)]);
    spare.get_nvlist_array_mut(key::CHILDREN).unwrap()[1].insert(key::TYPE, "dspare");
    let mut children: Vec<NvList> = (10..15).map(leaf).collect();
    children[1] = spare;
    let tops = vec![
        indirect(0),
        mirror(1, 0..2),
        with_id(raidz(2, 9, (3..8).map(leaf).collect()), 2),
        with_id(draid(1, 3, 1, 1, children), 3),
    ];
    let pool = TestPool::with_tops(tops, 0);
    assert_eq!(pool.open().tops().len(), 4);
    let root = pool.config;
    let packed = root.pack(nvlist::Encoding::Xdr, base::Endian::Little).unwrap();
    std::fs::write(corpus.join("vdev_config/root"), packed).unwrap();
}
