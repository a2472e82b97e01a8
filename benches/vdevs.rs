//! `cargo bench -p zuse-benches --bench vdevs [-- mb=512 writes=40]`: what vdevs cost by themselves: small blocks read in order, and blocks written.
//!
//! Reads: blocks of 2.5 to 8 KiB of a file in the page cache, by way of windows of several sizes, a thousand a CPU second. Writes: batches of 8 MiB to
//! devices in memory, MB a second and a CPU second.

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use base::{Guid, Txg};
use benches::{number, spent_cpu_seconds};
use nvlist::NvList;
use ondisk::Dva;
use ondisk::label::key;
use vdev::{
    BlockWrite, Device, DirectSource, FileDevice, LeafSource, MemoryDevice, ReadCx, ReadMode, VdevConfig, VdevTree,
    WindowSource,
};

/// Guid of the first leaf.
const LEAF: u64 = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = benches::streams::kept();
    std::fs::create_dir_all(&dir)?;
    let path = dir.join("vdevs");
    let read = reads(&path, number("mb", 512) << 20);
    drop(std::fs::remove_file(&path));
    read?;
    writes(number("writes", 40))
}

/// Measures reads of a file of `size` zeros, which agree with their parity.
fn reads(path: &Path, size: u64) -> Result<(), Box<dyn Error>> {
    File::create(path)?.set_len(size)?;
    base::tunable::set("vdev_io", "buffered")?;
    let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_only(path)?);
    println!("{:<18}{:<14}{:>10}{:>10}", "reads", "", "normal", "scrub");
    for (name, kind, leaves, gone) in [
        ("file", "file", 1, None),
        ("mirror", "mirror", 2, None),
        ("raidz", "raidz", 3, None),
        ("raidz, one gone", "raidz", 3, Some(Guid(LEAF + 1))),
    ] {
        let tree = tree(kind, leaves, 1, 9, &|guid| (Some(guid) != gone).then(|| device.clone()))?;
        let sources: [(&str, Box<dyn LeafSource>); 4] = [
            ("direct", Box::new(DirectSource)),
            ("window 256K", Box::new(WindowSource::new(256 << 10))),
            ("window 1M", Box::new(WindowSource::new(1 << 20))),
            ("window 4M", Box::new(WindowSource::new(4 << 20))),
        ];
        for (window, source) in &sources {
            let rate = |mode| read_in_order(&tree, &ReadCx { mode, source: &**source, ..ReadCx::NORMAL }, size);
            println!("{name:<18}{window:<14}{:>10.0}{:>10.0}", rate(ReadMode::Normal)?, rate(ReadMode::Scrub)?);
        }
    }
    Ok(())
}

/// Returns thousands of reads a CPU second.
fn read_in_order(tree: &VdevTree, cx: &ReadCx<'_>, size: u64) -> Result<f64, vdev::Error> {
    let mut buf = vec![0; 8192];
    let (mut offset, mut count) = (0, 0u64);
    let start = spent_cpu_seconds();
    // the labels take the front of each leaf
    while offset + 16384 < size - (5 << 20) {
        let len = 2560 + (count + 1) * 512 % 5632;
        let (block, _) = buf.split_at_mut(len as usize);
        tree.read(Dva::new(0, offset, len, false), len, Txg(1), cx, block, &mut |_| true)?;
        offset += len;
        count += 1;
    }
    Ok(count as f64 / (spent_cpu_seconds() - start) / 1e3)
}

fn writes(rounds: u64) -> Result<(), Box<dyn Error>> {
    const BATCH: u64 = 8 << 20;
    println!("{:<18}{:<14}{:>10}{:>10}", "writes", "", "MB/s", "per CPU s");
    for (kind, leaves, parity) in [("file", 1, 1), ("mirror", 2, 1), ("raidz", 6, 1), ("raidz", 6, 2), ("raidz", 7, 3)]
    {
        let disks: Vec<MemoryDevice> = (0..leaves).map(|_| MemoryDevice::writable(256 << 20)).collect();
        let find =
            |guid: Guid| disks.get((guid.0 - LEAF) as usize).cloned().map(|disk| Arc::new(disk) as Arc<dyn Device>);
        let tree = tree(kind, leaves, parity, 12, &find)?;
        for size in [4096, 128 << 10] {
            let data = vec![0x5a; size];
            let asize = tree.top(0).map_or(0, |top| top.psize_to_asize(size as u64));
            let batch = BATCH / size as u64;
            let (start, cpu) = (Instant::now(), spent_cpu_seconds());
            for round in 0..rounds {
                let first = round % 8 * batch;
                let place = |n| BlockWrite { dva: Dva::new(0, n * asize, asize, false), data: &data };
                let blocks: Vec<BlockWrite<'_>> = (first..first + batch).map(place).collect();
                tree.write(Txg(1), &blocks)?;
            }
            let mb = (rounds * BATCH) as f64 / 1e6;
            let (wall, cpu) = (start.elapsed().as_secs_f64(), spent_cpu_seconds() - cpu);
            let name = format!("{kind} of {leaves}, {parity}");
            println!("{name:<18}{size:<14}{:>10.0}{:>10.0}", mb / wall, mb / cpu);
        }
    }
    Ok(())
}

/// A tree of one top-level vdev: a file, or a mirror or raidz of files.
fn tree(
    kind: &str,
    leaves: u64,
    parity: u64,
    ashift: u64,
    find: &dyn Fn(Guid) -> Option<Arc<dyn Device>>,
) -> Result<VdevTree, vdev::Error> {
    let leaf = |n: u64| list(&[(key::ID, n), (key::GUID, LEAF + n)], "file");
    let mut top = if kind == "file" { leaf(0) } else { list(&[(key::ID, 0), (key::GUID, 2)], kind) };
    if kind != "file" {
        top.insert(key::NPARITY, parity);
        top.insert(key::CHILDREN, (0..leaves).map(leaf).collect::<Vec<_>>());
    }
    top.insert(key::ASHIFT, ashift);
    let mut root = list(&[(key::ID, 0), (key::GUID, 1)], "root");
    root.insert(key::CHILDREN, vec![top]);
    VdevTree::open(&VdevConfig::parse(&root)?, find)
}

fn list(numbers: &[(&str, u64)], kind: &str) -> NvList {
    let mut list = NvList::new();
    list.insert(key::TYPE, kind);
    numbers.iter().for_each(|(name, number)| list.insert(*name, *number));
    list
}
