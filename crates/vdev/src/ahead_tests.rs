use std::io;
use std::ops::Range as Bytes;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use nvlist::NvList;
use ondisk::label::key;

use super::*;
use crate::test_pool::{LEAF_GUID, TestPool, block, draid, leaf, mirror, raidz};
use crate::testing::{Call, Tapped};
use crate::{BlockWrite, Device, MemoryDevice, ReadCx, VdevConfig};

/// Memory that is waited for, counts its reads, and has bad places.
#[derive(Debug, Default)]
struct Disk {
    reads: AtomicUsize,
    under_way: AtomicUsize,
    most: AtomicUsize,
    bad: Mutex<Vec<Bytes<u64>>>,
}

impl Disk {
    fn pass(&self, call: &Call) -> io::Result<()> {
        let Call::Read(_) = call else { return Ok(()) };
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.most.fetch_max(self.under_way.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(1));
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        match self.bad.lock().unwrap().iter().any(|bad| call.meets(bad)) {
            true => Err(io::Error::other("bad sector")),
            false => Ok(()),
        }
    }

    fn device(self: &Arc<Disk>) -> Arc<dyn Device> {
        let (disk, memory) = (self.clone(), Arc::new(MemoryDevice::writable(64 << 20)));
        Arc::new(Tapped::new(memory, move |call| disk.pass(call)).in_threads())
    }
}

/// A block and its bytes.
type Written = (Planned, Vec<u8>);

/// A pool of that top-level vdev, its disks, and blocks of all sizes that were written to it.
fn pool(top: NvList, disks: usize) -> (VdevTree, Vec<Arc<Disk>>, Vec<Written>) {
    let config = VdevConfig::parse(&TestPool::with_tops(vec![top], 0).config).unwrap();
    let disks: Vec<Arc<Disk>> = (0..disks).map(|_| Arc::default()).collect();
    let found = |guid: base::Guid| disks.get((guid.0 - LEAF_GUID) as usize).map(Disk::device);
    let tree = VdevTree::open(&config, &found).unwrap();
    let (mut blocks, mut at) = (Vec::new(), 0);
    for n in 0..600u64 {
        let len = [4096, 8192, 20480, 512 * (n as usize % 30 + 1), 131_072][n as usize % 5];
        let asize = tree.top(0).unwrap().psize_to_asize(len as u64);
        blocks.push(((Dva::new(0, at, asize, false), len as u64, Txg(5)), block(len, n)));
        // some of what lies between is nobody's
        at += asize.next_multiple_of(4096) + if n % 7 == 0 { 12288 } else { 0 } + if n % 50 == 0 { 1 << 20 } else { 0 };
    }
    let writes: Vec<BlockWrite<'_>> = blocks.iter().map(|((dva, ..), data)| BlockWrite { dva: *dva, data }).collect();
    tree.write(Txg(5), &writes).unwrap();
    (tree, disks, blocks)
}

fn with_ashift(mut top: NvList, ashift: u64) -> NvList {
    top.insert(key::ASHIFT, ashift);
    top
}

fn pools() -> Vec<(&'static str, NvList, usize)> {
    let leaves = |n: usize| (0..n).map(leaf).collect::<Vec<_>>();
    vec![
        ("disk", with_ashift(leaf(0), 9), 1),
        ("mirror", mirror(0, 0..2), 2),
        ("raidz1", raidz(1, 9, leaves(4)), 4),
        ("raidz2", raidz(2, 12, leaves(5)), 5),
        ("draid", draid(1, 2, 0, 1, leaves(3)), 3),
    ]
}

#[test]
fn planned_blocks_are_read_by_few_reads_many_at_a_time() {
    for (name, top, count) in pools() {
        let (tree, disks, blocks) = pool(top, count);
        for mode in [ReadMode::Normal, ReadMode::Scrub] {
            disks.iter().for_each(|disk| disk.reads.store(0, Ordering::Relaxed));
            let source = AheadSource::default();
            source.plan(&tree, mode, IoClass::Scrub, blocks.iter().map(|(planned, _)| *planned));
            let cx = ReadCx { mode, source: &source, class: IoClass::Scrub, ..ReadCx::NORMAL };
            for ((dva, size, birth), right) in &blocks {
                let mut buf = vec![0; right.len()];
                let report = tree.read(*dva, *size, *birth, &cx, &mut buf, &mut |b| b == right).unwrap();
                assert!(buf == *right && report.is_clean(), "{name} {mode:?}");
            }
            source.finish();
            let reads: usize = disks.iter().map(|disk| disk.reads.load(Ordering::Relaxed)).sum();
            let most = disks.iter().map(|disk| disk.most.load(Ordering::Relaxed)).max().unwrap();
            // 23 MB in ranges of up to one
            assert!(reads < 60 * count, "{name} {mode:?}: {reads} reads");
            assert!(most > 1, "{name} {mode:?}: {most} at a time");
        }
        assert!(tree.leaves().iter().all(|leaf| leaf.queue().depths().is_empty()));
    }
}

#[test]
fn a_bad_sector_spoils_one_block_only_and_is_counted_once() {
    let (tree, disks, blocks) = pool(with_ashift(leaf(0), 9), 1);
    let bad = blocks[100].0.0.offset() + ondisk::VDEV_LABEL_START_SIZE;
    disks[0].bad.lock().unwrap().push(bad..bad + 512);
    let source = AheadSource::default();
    source.plan(&tree, ReadMode::Normal, IoClass::Scrub, blocks.iter().map(|(planned, _)| *planned));
    let cx = ReadCx { source: &source, ..ReadCx::NORMAL };
    for (n, ((dva, size, birth), right)) in blocks.iter().enumerate() {
        let mut buf = vec![0; right.len()];
        let read = tree.read(*dva, *size, *birth, &cx, &mut buf, &mut |b| b == right);
        assert_eq!(read.is_ok(), n != 100, "{n}");
    }
    assert_eq!(tree.leaves()[0].errors.read.get(), 1);
}

#[test]
fn what_was_not_planned_is_read_all_the_same() {
    let (tree, _, blocks) = pool(mirror(0, 0..2), 2);
    let source = AheadSource::default();
    // every third one, and backwards
    let planned = blocks.iter().step_by(3).map(|(planned, _)| *planned);
    source.plan(&tree, ReadMode::Scrub, IoClass::Scrub, planned);
    let cx = ReadCx { source: &source, ..ReadCx::SCRUB };
    for ((dva, size, birth), right) in blocks.iter().chain(blocks.iter().rev()) {
        let mut buf = vec![0; right.len()];
        tree.read(*dva, *size, *birth, &cx, &mut buf, &mut |b| b == right).unwrap();
        assert!(buf == *right);
    }
}
