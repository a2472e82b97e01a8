//! How many blocks a second one thread scrubs and reads: 8 KiB blocks that compress to 2.5 KiB, sorted, from memory.
//! `cargo run --release -p zuse-zio --example scrub_speed`
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use codec::Compress;
use common::{BM, Kind, PLAIN, Pool};
use vdev::{ReadCx, WindowSource};
use zio::Scratch;

fn main() {
    let mut pool = Pool::new(1, 1, 9);
    let data: Vec<u8> =
        (0..8192u64).map(|i| if i % 64 < 46 { 0 } else { ((i * i * 2_654_435_761) >> 13) as u8 }).collect();
    let blocks: Vec<_> =
        (0..1200).map(|_| pool.write(&data, Kind { compress: Compress::Lz4, ..PLAIN }, &[0])).collect();
    println!("{} blocks of {} stored bytes", blocks.len(), blocks[0].psize());
    let zio = pool.open_with(&[], 0);
    let (source, mut scratch) = (WindowSource::default(), Scratch::default());
    for (name, cx) in [("direct", ReadCx::SCRUB), ("window", ReadCx { source: &source, ..ReadCx::SCRUB })] {
        let start = Instant::now();
        let rounds = 500;
        for _ in 0..rounds {
            for bp in &blocks {
                assert!(zio.verify_block(bp, &BM, &cx, &mut scratch).unwrap().is_clean());
            }
        }
        report(&format!("scrub, {name}"), rounds * blocks.len(), start);
    }
    let start = Instant::now();
    let rounds = 100;
    for _ in 0..rounds {
        blocks.iter().for_each(|bp| drop(zio.read(bp, &BM).unwrap()));
    }
    report("read (verify, decompress)", rounds * blocks.len(), start);

    let zio = pool.open_with(&[], 1 << 30);
    blocks.iter().for_each(|bp| drop(zio.read(bp, &BM).unwrap()));
    let start = Instant::now();
    for _ in 0..rounds * 10 {
        blocks.iter().for_each(|bp| drop(zio.read(bp, &BM).unwrap()));
    }
    report("read, cached", rounds * 10 * blocks.len(), start);
}

fn report(what: &str, blocks: usize, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!("{what}: {:.0} blocks/s", blocks as f64 / seconds);
}
