//! `cargo bench -p zuse-benches --bench metaslabs [-- millions=1]`: blocks that a loaded metaslab gives out a second.
//!
//! One by one, and in runs of 64 as a sync asks for them; in metaslabs that are empty, and in some in which every other 8 KiB of the first GiB is taken.

use std::sync::Arc;
use std::time::Instant;

use base::Txg;
use benches::number;
use space::log::MetaslabChanges;
use space::{
    AllocError, Class, Held, Layout, MapGeometry, MapInfo, Metaslab, MetaslabLoader, RangeTree, Recent, SpaceManager,
    SpaceRequest, TopSpace,
};

const METASLABS: u64 = 4;
const MS_SHIFT: u32 = 34;
const REQUEST: SpaceRequest<'static> =
    SpaceRequest { class: Class::Normal, txg: Txg(5), hint: 0, avoid: &[], gang: false };

/// Metaslabs without a map.
struct Empty;

impl MetaslabLoader for Empty {
    fn load(&self, _: u32, _: u32, _: &MapInfo, _: &MapGeometry, _: Recent) -> Result<(RangeTree, Held), String> {
        Ok(Default::default())
    }
}

/// A disk of sectors of 512 bytes.
struct Sectors;

impl Layout for Sectors {
    fn asize(&self, psize: u64, _: Txg) -> u64 {
        psize.next_multiple_of(512)
    }

    fn deflated(&self, asize: u64) -> u64 {
        asize
    }
}

fn main() -> Result<(), AllocError> {
    let blocks = number("millions", 1) << 20;
    println!("{blocks} blocks, millions a second");
    println!("{:<12}{:>12}{:>16}", "metaslabs", "one by one", "in runs of 64");
    for fragmented in [false, true] {
        let space = manager(fragmented)?;
        let began = Instant::now();
        for n in 0..blocks {
            std::hint::black_box(space.allocate(&SpaceRequest { hint: n >> 8, ..REQUEST }, 4096)?);
        }
        let single = began.elapsed().as_secs_f64();
        let mut got = Vec::with_capacity(blocks as usize);
        let began = Instant::now();
        for _ in 0..blocks / 64 {
            space.allocate_many(&REQUEST, &[8192; 64], &mut got)?;
        }
        let (many, name) = (began.elapsed().as_secs_f64(), if fragmented { "fragmented" } else { "empty" });
        println!("{name:<12}{:>12.1}{:>16.1}", blocks as f64 / single / 1e6, got.len() as f64 / many / 1e6);
    }
    Ok(())
}

fn manager(fragmented: bool) -> Result<SpaceManager, AllocError> {
    let metaslab = |n: u64| {
        let geometry = MapGeometry { start: n << MS_SHIFT, size: 1 << MS_SHIFT, shift: 9 };
        Metaslab::new(n as u32, geometry, None, MetaslabChanges::default(), true)
    };
    let space = SpaceManager::new(Arc::new(Empty));
    let top = TopSpace {
        id: 0,
        class: Class::Normal,
        ms_shift: MS_SHIFT,
        metaslabs: (0..METASLABS).map(metaslab).collect(),
        data_children: 1,
        allocatable: true,
        layout: std::sync::Arc::new(Sectors),
    };
    space.add_top(top, Txg(0));
    if fragmented {
        for at in (0..METASLABS).flat_map(|m| (0..1u64 << 16).map(move |n| (m << MS_SHIFT) + n * 16384)) {
            space.claim(0, at, 8192, Txg(4))?;
        }
    }
    Ok(space)
}
