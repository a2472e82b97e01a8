//! `cargo bench -p zuse-benches --bench recv [-- blocks=1000000 files=100000 rounds=5]`: the streams of the benchmark `send` received into new pools,
//! with batches of several sizes (`zfs_recv_write_batch_size`), or of `batch=N` bytes alone, beside OpenZFS's own engine, in turn. `tun=vdev_io=buffered`
//! goes through the page cache.
//!
//! Prints blocks per CPU second and per second of wall time, and the peak of the process's memory; medians. The pools that are sent, and the
//! streams, are kept in `$ZUSE_BENCH_DIR` (`target/bench`) for the next time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::pool::Spa;
use benches::pool::{self as bench, Shape};
use benches::streams::{Cost, PERCENT, SENT, Sent, Source, cost, figure, kept, touched, warm};
use benches::{median, number, run_peer, set_tunables, zpeer};
use stream::recv::{Progress, RecvArgs, receive};
use stream::{Reader, Record};

/// Sizes of a batch: none, a block, the default's eighth, the default, the most that pays.
const BATCHES: [u64; 5] = [0, 8 << 10, 128 << 10, 1 << 20, 8 << 20];
const SHAPE: Shape = Shape { vdevs: 1, size: 16 << 30, lz4: true, log_spacemap: true, ms_shift: 0, counts: false };

/// GiB of memory that are at hand when either begins: the pool's file and the process take less, with a million blocks.
const WARM: u64 = 8;

/// Blocks per CPU second, per second, peak MB.
type Figures = [f64; 3];

fn main() {
    if touched() {
        return;
    }
    set_tunables();
    let (blocks, files, rounds) = (number("blocks", 50_000), number("files", 5000), number("rounds", 3));
    let Some(peer) = zpeer() else {
        println!("recv: skipped; it needs the peer, that makes its pools (peer/build-peer target/peer)");
        return;
    };
    let Some(source) = Source::new(&peer, &kept(), blocks, files) else { return };
    make_streams(&source);
    println!("median of {rounds} rounds in turn; thousand blocks a second, MB");
    println!("{:<18}{:>9}{:>12}  {:<9}{:>10}{:>9}{:>10}", "", "blocks", "batch", "", "CPU s", "wall s", "peak MB");
    let only = number("batch", u64::MAX);
    for batch in BATCHES.into_iter().filter(|batch| only == u64::MAX || only == *batch) {
        let (mut of_zuse, mut of_peer) = (vec![Vec::new(); SENT.len()], vec![Vec::new(); SENT.len()]);
        for _ in 0..rounds {
            warm(WARM);
            add(&mut of_zuse, ours(&source, batch));
            warm(WARM);
            add(&mut of_peer, theirs(&peer, &source, batch));
        }
        for ((sent, zuse), libzpool) in SENT.iter().zip(&of_zuse).zip(&of_peer) {
            print(&source, sent, batch, "zuse", zuse);
            print(&source, sent, batch, "libzpool", libzpool);
        }
    }
}

fn add(to: &mut [Vec<Figures>], round: Vec<Figures>) {
    to.iter_mut().zip(round).for_each(|(to, figures)| to.push(figures));
}

fn print(source: &Source, sent: &Sent, batch: u64, who: &str, rounds: &[Figures]) {
    let of = |n: usize| median(rounds.iter().filter_map(|figures| figures.get(n).copied()).collect());
    let (name, blocks) = (sent.name, source.blocks_of(sent));
    println!("{name:<18}{blocks:>9}{batch:>12}  {who:<9}{:>10.1}{:>9.1}{:>10.0}", of(0) / 1e3, of(1) / 1e3, of(2));
}

/// The file of a stream: what builds on another has its name with `.i1`, `.i2`, as the peer looks for it.
fn file_of(source: &Source, sent: &Sent) -> PathBuf {
    let increments = SENT.iter().filter(|other| other.pool == sent.pool);
    let nth = increments.take_while(|other| other.to != sent.to).count();
    let ending = if nth == 0 { String::new() } else { format!(".i{nth}") };
    source.dir.join(format!("{}.stream{ending}", sent.pool))
}

#[allow(clippy::expect_used)]
fn make_streams(source: &Source) {
    for sent in &SENT {
        let path = file_of(source, sent);
        if path.exists() {
            continue;
        }
        let unfinished = path.with_extension("part");
        let mut out = File::create(&unfinished).expect("a file for the stream");
        source.send(&source.open(sent.pool), sent, &mut out);
        std::fs::rename(&unfinished, &path).expect("a stream");
    }
}

#[allow(clippy::expect_used)]
fn receive_file(spa: &Arc<Spa>, path: &Path, target: String) {
    let mut reader = Reader::new(File::open(path).expect("a stream"));
    let first = reader.next_record().expect("a stream").expect("a record");
    let payload = first.payload.to_vec();
    let Record::Begin(begin) = first.header.record else { return };
    let args = RecvArgs { target, ..RecvArgs::default() };
    receive(spa, &mut reader, &begin, &payload, &args, &Progress::default()).expect("a snapshot");
    spa.sync().expect("sync");
}

#[allow(clippy::expect_used)]
fn ours(source: &Source, batch: u64) -> Vec<Figures> {
    base::tunable::set("zfs_recv_write_batch_size", &batch.to_string()).expect("a tunable");
    let dir = source.dir.join("received");
    std::fs::create_dir_all(&dir).expect("a directory");
    let mut all = Vec::new();
    for pool in ["pb", "pf"] {
        let (spa, _traffic) = bench::make(&dir, &SHAPE);
        for sent in SENT.iter().filter(|sent| sent.pool == pool) {
            let path = file_of(source, sent);
            let Cost { wall, cpu, peak_mb } = cost(|| receive_file(&spa, &path, format!("z/fs@{}", sent.to)));
            let blocks = source.blocks_of(sent) as f64;
            all.push([blocks / cpu, blocks / wall, peak_mb]);
        }
        spa.export().expect("export");
    }
    drop(std::fs::remove_dir_all(&dir));
    all
}

fn theirs(peer: &PathBuf, source: &Source, batch: u64) -> Vec<Figures> {
    let dir = source.dir.join("received");
    let mut all = Vec::new();
    for (pool, blocks) in [("pb", source.blocks), ("pf", source.files)] {
        let args = [
            "recv".to_string(),
            format!("dir={}", dir.display()),
            "pool=r".to_string(),
            format!("blocks={blocks}"),
            format!("pct={PERCENT}"),
            format!("stream={}", source.dir.join(format!("{pool}.stream")).display()),
            format!("tun=zfs_recv_write_batch_size={batch}"),
        ];
        let results = run_peer(peer, &args.iter().map(String::as_str).collect::<Vec<_>>());
        all.extend(results.iter().map(|result| ["per_cpu", "rate", "rss_MB"].map(|key| figure(result, key))));
    }
    drop(std::fs::remove_dir_all(&dir));
    all
}
