//! How fast small blocks are read in order, and blocks are written. Run with `cargo test --release -p zuse-vdev --test speed -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, missing_docs)]

use std::io::Write;
use std::sync::Arc;

use base::{Guid, Txg};
use nvlist::NvList;
use ondisk::Dva;
use ondisk::label::key;
use vdev::{
    BlockWrite, DirectSource, FileDevice, LeafSource, MemoryDevice, ReadCx, ReadMode, VdevConfig, VdevTree,
    WindowSource,
};

const FILE_BYTES: u64 = 512 << 20;

/// CPU time of this process, in seconds.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn vdev(kind: &str, leaves: u64) -> NvList {
    let leaf = |n: u64| {
        let mut list = NvList::new();
        list.insert(key::TYPE, "file");
        list.insert(key::ID, n);
        list.insert(key::GUID, 10 + n);
        list
    };
    let mut top = if kind == "file" { leaf(0) } else { NvList::new() };
    if kind != "file" {
        top.insert(key::TYPE, kind);
        top.insert(key::ID, 0u64);
        top.insert(key::GUID, 2u64);
        top.insert(key::NPARITY, 1u64);
        top.insert(key::CHILDREN, (0..leaves).map(leaf).collect::<Vec<_>>());
    }
    top.insert(key::ASHIFT, 9u64);
    let mut root = NvList::new();
    root.insert(key::TYPE, "root");
    root.insert(key::ID, 0u64);
    root.insert(key::GUID, 1u64);
    root.insert(key::CHILDREN, vec![top]);
    root
}

#[test]
#[ignore = "a measurement"]
fn small_blocks_in_order() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    // zeros agree with their parity
    let chunk = vec![0u8; 1 << 20];
    for _ in 0..FILE_BYTES >> 20 {
        file.write_all(&chunk).unwrap();
    }
    let device = Arc::new(FileDevice::open_read_only(file.path()).unwrap());
    for (kind, leaves) in [("file", 1), ("mirror", 2), ("raidz", 3), ("raidz, one gone", 3)] {
        let gone = kind.contains("gone").then_some(Guid(11));
        let config = VdevConfig::parse(&vdev(kind.split(',').next().unwrap(), leaves)).unwrap();
        let tree = VdevTree::open(&config, &|guid| (Some(guid) != gone).then(|| device.clone() as _)).unwrap();
        let sources: [(&str, Box<dyn LeafSource>); 4] = [
            ("direct", Box::new(DirectSource)),
            ("window 256K", Box::new(WindowSource::new(256 << 10))),
            ("window 1M", Box::new(WindowSource::new(1 << 20))),
            ("window 4M", Box::new(WindowSource::new(4 << 20))),
        ];
        for (name, source) in &sources {
            for mode in [ReadMode::Normal, ReadMode::Scrub] {
                let cx = ReadCx { mode, source: &**source, ..ReadCx::NORMAL };
                let mut buf = vec![0; 8192];
                let (mut offset, mut reads, mut n) = (0, 0u64, 0u64);
                let start = cpu();
                while offset + 16384 < FILE_BYTES - (5 << 20) {
                    let len = 2560 + (n * 512) % 5632;
                    n += 1;
                    let buf = &mut buf[..len as usize];
                    tree.read(Dva::new(0, offset, len, false), len, Txg(1), &cx, buf, &mut |_| true).unwrap();
                    offset += len;
                    reads += 1;
                }
                let spent = cpu() - start;
                println!("{kind:15} {name:12} {mode:?}: {:.0} reads per CPU second", reads as f64 / spent.max(0.001));
            }
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn blocks_written_to_memory() {
    for (kind, leaves, parity) in [("file", 1, 1), ("mirror", 2, 1), ("raidz", 6, 1), ("raidz", 6, 2), ("raidz", 7, 3)]
    {
        let mut root = vdev(kind, leaves);
        let top = &mut root.get_nvlist_array_mut(key::CHILDREN).unwrap()[0];
        top.insert(key::ASHIFT, 12u64);
        if kind == "raidz" {
            top.insert(key::NPARITY, parity as u64);
        }
        let config = VdevConfig::parse(&root).unwrap();
        let disks: Vec<MemoryDevice> = (0..leaves).map(|_| MemoryDevice::writable(256 << 20)).collect();
        let find = |guid: Guid| disks.get(guid.0 as usize - 10).cloned().map(|d| Arc::new(d) as _);
        let tree = VdevTree::open(&config, &find).unwrap();
        for size in [4096usize, 128 << 10] {
            let data = vec![0x5au8; size];
            let asize = tree.top(0).unwrap().psize_to_asize(size as u64);
            let batch = (8 << 20) / size as u64;
            let (start, cpu_start) = (std::time::Instant::now(), cpu());
            let mut written = 0u64;
            for round in 0..40u64 {
                let first = round % 8 * batch;
                let blocks: Vec<BlockWrite<'_>> = (first..first + batch)
                    .map(|n| BlockWrite { dva: Dva::new(0, n * asize, asize, false), data: &data })
                    .collect();
                tree.write(Txg(1), &blocks).unwrap();
                written += batch * size as u64;
            }
            let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu() - cpu_start);
            let mib = written as f64 / 1048576.0;
            println!(
                "{kind} {leaves}/{parity} {size:6}: {:.0} MiB/s, {:.0} MiB per CPU second",
                mib / wall,
                mib / cpu.max(0.01)
            );
        }
    }
}
