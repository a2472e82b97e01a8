//! Every block of every fixture, read through the vdevs alone: a walk over the block trees that knows just enough of what lies above.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use base::{Guid, bytes};
use codec::{ChecksumKind, Checksummer, Compress, embedded};
use ondisk::gang::GangHeader;
use ondisk::indirect::{IndirectMapping, MappingPhys};
use ondisk::label::key;
use ondisk::{BlkPtr, DnodePhys, ObjsetPhys, Uberblock};
use oracle::fixtures;
use vdev::import::{Candidate, scan};
use vdev::label::read_uberblocks;
use vdev::{BlockWrite, Device, Error, FaultKind, ReadCx, VdevConfig, VdevTree};

/// An object set, and what was met on the walk.
struct Walk<'a> {
    tree: &'a VdevTree,
    cx: ReadCx<'a>,
    sums: Checksummer,
    seen: HashSet<BlkPtr>,
    blocks: usize,
    unreadable: usize,
    faults: BTreeMap<(Guid, &'static str), usize>,
    /// Whether what was read is written again.
    rewrites: bool,
}

/// Takes a data block: its pointer, its number, its contents.
type Each<'a, 'f> = dyn FnMut(&mut Walk<'a>, &BlkPtr, usize, Vec<u8>) + 'f;

fn name(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Io => "io",
        FaultKind::Checksum => "checksum",
        FaultKind::Missing => "missing",
    }
}

impl<'a> Walk<'a> {
    fn new(tree: &'a VdevTree, cx: ReadCx<'a>) -> Walk<'a> {
        let sums = Checksummer::new(None);
        Walk {
            tree,
            cx,
            sums,
            seen: HashSet::new(),
            blocks: 0,
            unreadable: 0,
            faults: BTreeMap::new(),
            rewrites: false,
        }
    }

    fn is_right(&self, bp: &BlkPtr, data: &[u8]) -> bool {
        let Some(kind) = ChecksumKind::from_u8(bp.checksum()) else { return false };
        if kind.is_embedded() {
            return true;
        }
        // a salt would have to be read from the MOS directory: other tests do
        let Ok(sum) = self.sums.compute(kind, data, bp.endian()) else { return kind.is_salted() };
        if bp.uses_crypt() && bp.object_type().0 != 11 {
            let short = kind.truncate(sum);
            return short[..2] == bp.cksum()[..2];
        }
        sum == bp.cksum()
    }

    /// Reads every copy; gives the stored bytes of one.
    fn stored(&mut self, bp: &BlkPtr) -> Option<Vec<u8>> {
        let mut data = None;
        for dva in bp.dvas() {
            let birth = bp.birth_physical();
            let mut buf = vec![0; if dva.is_gang() { 512 } else { bp.psize() as usize }];
            let len = buf.len() as u64;
            let read = if dva.is_gang() {
                let ids = (bp.dva(0).vdev(), bp.dva(0).offset());
                let check = &mut |b: &[u8]| embedded::verify_gang(b, ids.0, ids.1, birth.0).is_ok();
                self.tree.read(dva, len, birth, &self.cx, &mut buf, check)
            } else {
                let this = &*self;
                this.tree.read(dva, len, birth, &this.cx, &mut buf, &mut |b| this.is_right(bp, b))
            };
            match read {
                Ok(report) => {
                    for fault in &report.repaired {
                        *self.faults.entry((fault.leaf, name(fault.kind))).or_default() += 1;
                    }
                    if self.rewrites && self.tree.top(dva.vdev()).unwrap().is_concrete() {
                        self.tree.write(birth, &[BlockWrite { dva, data: &buf }]).unwrap();
                    }
                    if dva.is_gang() {
                        let mut whole = Vec::new();
                        for child in GangHeader::decode(&buf, bp.endian()).unwrap().blkptrs {
                            if !child.is_hole() {
                                whole.extend(self.stored(&child)?);
                            }
                        }
                        buf = whole;
                    }
                    data = Some(buf);
                }
                Err(e) => assert!(matches!(e, Error::Checksum { .. } | Error::TooFewDevices { .. }), "{bp:?}: {e}"),
            }
        }
        self.blocks += 1;
        self.unreadable += usize::from(data.is_none());
        data
    }

    fn data(&mut self, bp: &BlkPtr) -> Option<Vec<u8>> {
        let stored =
            if bp.is_embedded() { bp.embedded_payload()[..bp.psize() as usize].to_vec() } else { self.stored(bp)? };
        let kind = Compress::from_u8(bp.compression())?;
        let mut out = vec![0; bp.lsize() as usize];
        codec::decompress(kind, &stored, &mut out).ok()?;
        Some(out)
    }

    /// Walks below the pointer number `n` of its level; gives the data blocks of the object, in order and with their numbers, to `each`.
    fn below(&mut self, bp: &BlkPtr, n: usize, each: &mut Each<'a, '_>) {
        if bp.is_hole() || (!bp.is_embedded() && !self.seen.insert(*bp)) {
            return;
        }
        let is_dnodes = matches!(bp.object_type().0, 10 | 11);
        if bp.level() == 0 && bp.is_encrypted() {
            self.stored(bp);
            return;
        }
        if bp.level() == 0 && !is_dnodes && bp.object_type().0 >= 19 && bp.object_type().0 != 193 {
            if !bp.is_embedded() {
                let stored = self.stored(bp);
                each(self, bp, n, stored.unwrap_or_default());
            }
            return;
        }
        let Some(data) = self.data(bp) else { return };
        if bp.level() == 0 {
            each(self, bp, n, data);
            return;
        }
        for (slot, raw) in data.chunks_exact(128).enumerate() {
            let child = BlkPtr::decode(raw, bp.endian()).unwrap();
            self.below(&child, n * (data.len() / 128) + slot, each);
        }
    }

    fn objset(&mut self, root: &BlkPtr, found: &mut Vec<(u64, DnodePhys)>) {
        let Some(data) = (if root.is_hole() { None } else { self.data(root) }) else { return };
        let Ok(objset) = ObjsetPhys::decode(&data, root.endian()) else { return };
        let mut dnodes = Vec::new();
        let special = [objset.userused, objset.groupused, objset.projectused];
        dnodes.extend(special.into_iter().flatten().map(|d| (0, d)));
        for (n, bp) in objset.meta_dnode.blkptr.iter().enumerate() {
            self.below(bp, n, &mut |_, bp, n, data| {
                let mut at = 0;
                while at < data.len() {
                    let dnode = DnodePhys::decode(&data[at..], bp.endian()).unwrap();
                    let id = (n * data.len() + at) / 512;
                    at += dnode.slots() * 512;
                    if dnode.object_type.0 != 0 {
                        dnodes.push((id as u64, dnode));
                    }
                }
            });
        }
        for (_, dnode) in &dnodes {
            for bp in dnode.blkptr.iter().chain(&dnode.spill) {
                self.below(bp, 0, &mut |_, _, _, _| {});
            }
        }
        found.extend(dnodes);
    }

    /// The contents of an object of the MOS.
    fn object(&mut self, dnode: &DnodePhys) -> Vec<u8> {
        let mut all = Vec::new();
        let mut fresh = Walk::new(self.tree, self.cx);
        for bp in &dnode.blkptr {
            fresh.below(bp, 0, &mut |this, bp, _, _| all.extend(this.data(bp).unwrap()));
        }
        all
    }

    /// The MOS and all datasets.
    fn pool(&mut self, ub: &Uberblock) {
        let mut mos = Vec::new();
        self.objset(&ub.rootbp, &mut mos);
        for (_, dnode) in mos {
            // a dataset keeps the pointer to its object set at byte 128 of its bonus
            if dnode.bonus_type.0 == 16 && dnode.bonus.len() >= 256 {
                let bp = BlkPtr::decode(&dnode.bonus[128..], dnode.endian).unwrap();
                self.objset(&bp, &mut Vec::new());
            }
        }
    }
}

fn newest(pool: &Candidate) -> Uberblock {
    let ashift = pool.vdev_config().unwrap().children.iter().find(|c| c.ashift != 0).unwrap().ashift;
    let mut all: Vec<Uberblock> = pool.devices.iter().flat_map(|d| read_uberblocks(&*d.device, ashift)).collect();
    vdev::label::sort_uberblocks(&mut all);
    all.remove(0)
}

fn open(pool: &Candidate, config: &VdevConfig) -> VdevTree {
    let found = |guid| pool.device(guid).map(|d| Arc::clone(&d.device) as Arc<dyn Device>);
    VdevTree::open(config, &found).unwrap()
}

/// The configuration object of the MOS, which knows removed devices: the first packed nvlist with a tree.
fn trusted_config(pool: &Candidate, ub: &Uberblock) -> (VdevConfig, Vec<(u64, DnodePhys)>) {
    let tree = open(pool, &pool.vdev_config().unwrap());
    let mut walk = Walk::new(&tree, ReadCx::NORMAL);
    let mut mos = Vec::new();
    walk.objset(&ub.rootbp, &mut mos);
    for (_, dnode) in mos.iter().filter(|(_, d)| d.object_type.0 == 3) {
        let packed = walk.object(dnode);
        if let Ok(list) = vdev::label::decode_config(&packed)
            && let Some(tree) = list.get_nvlist(key::VDEV_TREE)
        {
            return (VdevConfig::parse(tree).unwrap(), mos);
        }
    }
    panic!("no configuration in the MOS");
}

fn prepare(dir: PathBuf) -> (Candidate, Uberblock, VdevTree) {
    prepare_with(dir, &|device| device)
}

fn prepare_with(dir: PathBuf, wrap: &dyn Fn(Arc<dyn Device>) -> Arc<dyn Device>) -> (Candidate, Uberblock, VdevTree) {
    let mut pool = scan(&[dir]).unwrap().remove(0);
    for found in &mut pool.devices {
        found.device = wrap(Arc::clone(&found.device));
    }
    let ub = newest(&pool);
    let (config, mos) = trusted_config(&pool, &ub);
    let tree = open(&pool, &config);
    for top in tree.tops() {
        tree.set_reflow_offset(top.id(), ub.reflow_offset(), ub.reflow_scratch_state());
        if top.is_indirect() {
            let object = top.config().indirect_object.0;
            let (_, dnode) = mos.iter().find(|(id, _)| *id == object).unwrap();
            let phys = MappingPhys::decode(&dnode.bonus, dnode.endian).unwrap();
            let raw = Walk::new(&tree, ReadCx::NORMAL).object(dnode);
            tree.set_indirect(top.id(), IndirectMapping::decode(&raw, phys.num_entries, dnode.endian).unwrap());
        }
    }
    // missed txgs: one word entries of a space map in txgs are enough for the fixtures
    for leaf in config.leaves().filter(|l| l.dtl.0 != 0) {
        let Some((_, dnode)) = mos.iter().find(|(id, d)| *id == leaf.dtl.0 && d.object_type.0 == 8) else { continue };
        let length = bytes::u64(&dnode.bonus, 8, dnode.endian).unwrap() as usize;
        if length > 0 {
            let raw = Walk::new(&tree, ReadCx::NORMAL).object(dnode);
            let words = bytes::u64s(&raw[..length], dnode.endian).filter(|w| w >> 62 != 2);
            let ranges = words.filter(|w| w >> 63 == 0).map(|w| {
                let (start, run) = (w >> 16 & 0x7fff_ffff_ffff, (w & 0x7fff) + 1);
                start..start + run
            });
            tree.set_dtl(leaf.guid, ranges.collect());
        }
    }
    (pool, ub, tree)
}

/// How many blocks the kernel module's scrub of a damaged pool could not read.
fn kernel_errors(fixture: &str) -> usize {
    if !fixtures::dir(fixture).join("kernel-says/scrub.txt").exists() {
        return 0;
    }
    let lines = fixtures::all_lines(fixture, "kernel-says/scrub.txt");
    let words = |line: &String| line.split("with ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    lines.iter().filter(|l| l.contains("scrub repaired")).filter_map(words).next_back().unwrap()
}

#[test]
fn all_healthy_fixtures_are_clean_and_all_damaged_ones_are_read() {
    let mut total = 0;
    for fixture in fixtures::names() {
        let unpacked = fixtures::unpack(&fixture);
        let (pool, ub, tree) = prepare(unpacked.dir.clone());
        let mut walk = Walk::new(&tree, ReadCx::SCRUB);
        walk.pool(&ub);
        total += walk.blocks;
        let faults = &walk.faults;
        println!("{fixture}: {} blocks, {} unreadable, {faults:?}", walk.blocks, walk.unreadable);
        assert!(walk.blocks > 100, "{fixture}: {} blocks", walk.blocks);
        let absent: HashSet<Guid> = pool.missing.iter().copied().collect();
        let hurt = match fixture.as_str() {
            "degmirror-a" | "degraidz1-b" => {
                assert!(faults.keys().any(|(_, kind)| *kind == "checksum"), "{fixture}");
                true
            }
            "lost-a" => true,
            "resilver-a" => {
                assert!(faults.keys().all(|(_, kind)| *kind == "missing"), "{fixture}: {faults:?}");
                true
            }
            _ => false,
        };
        assert_eq!(walk.unreadable, kernel_errors(&fixture), "{fixture}");
        if !hurt {
            assert!(
                faults.keys().all(|(leaf, kind)| *kind == "missing" && absent.contains(leaf)),
                "{fixture}: {faults:?}"
            );
        }
        if !absent.is_empty() {
            assert!(absent.iter().all(|leaf| faults.contains_key(&(*leaf, "missing"))), "{fixture}");
        }
        // reading what is needed only must do as well
        let mut normal = Walk::new(&tree, ReadCx::NORMAL);
        normal.pool(&ub);
        assert_eq!((normal.unreadable, normal.blocks), (walk.unreadable, walk.blocks), "{fixture}");
    }
    assert!(total > 14_000, "{total}");
}

/// A device that takes writes and only looks whether they would change anything.
#[derive(Debug)]
struct Unchanging(Arc<dyn Device>, Arc<Mutex<(usize, Vec<String>)>>);

impl Device for Unchanging {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        let mut there = vec![0; data.len()];
        self.0.read_at(offset, &mut there)?;
        let mut log = self.1.lock().unwrap();
        log.0 += data.len();
        if there != data {
            let at = there.iter().zip(data).position(|(a, b)| a != b).unwrap();
            log.1.push(format!("{}: {} bytes at {offset:#x}, from byte {at}", self.name(), data.len()));
        }
        Ok(())
    }
    fn is_writable(&self) -> bool {
        true
    }
    fn name(&self) -> String {
        self.0.name()
    }
}

#[test]
fn what_openzfs_wrote_is_written_the_same() {
    let fixtures = [
        "basic-a",
        "mirror-a",
        "stripe-a",
        "raidz1-a",
        "raidz2-a",
        "raidz3-a",
        "raidzexp-a",
        "raidzexp-b",
        "draid-a",
        "degdraid-a",
        "degraidz2-a",
        "frag-a",
        "mixed-a",
        "special-a",
        "removal-a",
    ];
    for fixture in fixtures {
        let unpacked = fixtures::unpack(fixture);
        let log = Arc::new(Mutex::new((0, Vec::new())));
        let wrap = |device| Arc::new(Unchanging(device, Arc::clone(&log))) as Arc<dyn Device>;
        let (_, ub, tree) = prepare_with(unpacked.dir.clone(), &wrap);
        let mut walk = Walk::new(&tree, ReadCx::NORMAL);
        walk.rewrites = true;
        walk.pool(&ub);
        assert_eq!(walk.unreadable, 0, "{fixture}");
        let (bytes, wrong) = &*log.lock().unwrap();
        println!("{fixture}: {} blocks, {bytes} bytes", walk.blocks);
        assert!(*bytes > 500_000, "{fixture}: {bytes}");
        assert!(wrong.is_empty(), "{fixture}: {} {:#?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    }
}

/// For pools that are not committed: `ZUSE_POOL_DIR=/tmp/pool cargo test -p zuse-vdev --test scrub -- --ignored --nocapture`.
#[test]
#[ignore = "needs a pool"]
fn the_pool_in_a_folder_is_read() {
    let dir = std::env::var_os("ZUSE_POOL_DIR").expect("ZUSE_POOL_DIR");
    let (_, ub, tree) = prepare(PathBuf::from(dir));
    for status in tree.status().walk() {
        println!("{} {}", status.name, status.state.name());
    }
    for cx in [ReadCx::SCRUB, ReadCx::NORMAL] {
        let mut walk = Walk::new(&tree, cx);
        walk.pool(&ub);
        println!("reflow {:#x} state {}", ub.reflow_offset(), ub.reflow_scratch_state());
        println!("txg {}: {} blocks, {} unreadable, {:?}", ub.txg, walk.blocks, walk.unreadable, walk.faults);
    }
}
