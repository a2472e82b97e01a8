//! `cargo bench -p zuse-benches --bench lsm [-- ops=1000,10000 txgs=60 ms=500,5000 ibs=14,17 delay=200]`: random overwrites of 8 KiB on an
//! aged, half-full pool, with and without log space maps, beside OpenZFS's own engine in the same run. Each pool is measured with every number of
//! overwrites a txg, first without and then with the delay that a write takes (microseconds). `peersecs=300` ends a run of the peer that takes longer.
//!
//! Prints one table: overwrites per CPU second, the share of pass 1 in the sync, passes, writes and metadata bytes a txg, and how long
//! the import of the pool takes, its log as it was. Of the writes, those of the MOS (space maps, logs, and all else that belongs to the pool) and
//! of other metadata (dnodes, and the indirect blocks of data) stand apart: the former should not grow with the number of metaslabs.
//!
//! `msize=1048576 ms=1000,4000,12000` lets the pool grow with the number of metaslabs, whose size stays the same: `ms` times `msize` bytes. Such a
//! pool is filled to four fifths, and then blocks here and there are freed until it is half full: its free space is in pieces of a few
//! blocks. The peer has no such mode.
//!
//! `log=131072` makes a log of that many blocks (the most that the tunables allow by default) by letting nothing be flushed, and imports that pool.
//! Its entries are real, of space that is allocated and freed, but nothing is written there. `logblk=4096`: the size of its blocks; with that their
//! number is that of entries, not of bytes that nobody has. `logops=40000`: blocks freed, and others allocated, in a txg. `logsecs=600` ends the making;
//! `logsize=4294967296`: bytes of each of the four files, nearly all of them holes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ::pool::Spa;
use base::Txg;
use benches::pool::{self as bench, Shape, Traffic};
use benches::{PeerResult, mix, number, run_peer, spent_cpu_seconds, text, zpeer};
use dmu::Object;
use ondisk::Dva;
use space::{Class, SpaceRequest};

const BLOCK: usize = 8192;
const VDEVS: usize = 4;
/// Bytes that a block takes on disk.
const PER_BLOCK: u64 = 2560;

struct Row {
    who: String,
    /// Metaslabs.
    ms: u64,
    /// log2 of the indirect blocks; overwrites a txg.
    ibs: u8,
    ops: u64,
    per_cpu: f64,
    pass1: f64,
    passes: u64,
    writes: f64,
    /// Writes of the MOS among these; those of other metadata.
    mos_writes: f64,
    meta_writes: f64,
    mos_mb: f64,
    meta_mb: f64,
    sync_ms: f64,
    import_ms: f64,
    /// Blocks of the logs that the import reads, and how long Zuse thinks beforehand that this takes.
    log_blocks: u64,
    estimate_ms: f64,
    /// Metaslabs whose changes were written to their own maps, a txg.
    flushed: f64,
}

#[allow(clippy::expect_used)]
fn main() {
    let dir = std::env::var_os("ZUSE_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into).join("zuse-lsm");
    drop(std::fs::create_dir_all(&dir));
    let (txgs, msize) = (number("txgs", 30), number("msize", 0));
    let list =
        |name: &str, or: &str| -> Vec<u64> { text(name, or).split(',').filter_map(|n| n.parse().ok()).collect() };
    let ops = list("ops", "1000");
    let delays: Vec<u64> = [0].into_iter().chain(Some(number("delay", 0)).filter(|delay| *delay > 0)).collect();
    println!(
        "{:<26}{:>8}{:>5}{:>7}{:>12}{:>9}{:>8}{:>11}{:>8}{:>8}{:>9}{:>12}{:>10}{:>11}{:>10}{:>12}{:>9}",
        "",
        "ms",
        "ibs",
        "ops",
        "ops/CPU s",
        "pass 1",
        "passes",
        "writes/txg",
        "of MOS",
        "of meta",
        "MOS MB",
        "meta MB/txg",
        "sync ms",
        "import ms",
        "log blks",
        "logs est ms",
        "flushed"
    );
    base::tunable::set("zfs_keep_log_spacemaps_at_export", "1").expect("a tunable");
    for ms in list("ms", "500,5000") {
        let size = if msize > 0 { ms * msize / VDEVS as u64 } else { number("vsize", 1 << 30) };
        for ibs in list("ibs", "14") {
            for lsm in list("lsm", "1,0").into_iter().map(|lsm| lsm > 0) {
                let shape = Shape {
                    vdevs: VDEVS,
                    size,
                    lz4: true,
                    log_spacemap: lsm,
                    ms_shift: u64::from((size * VDEVS as u64 / ms).ilog2()),
                    counts: true,
                };
                let works = |ops: &[u64]| -> Vec<Work> {
                    let of = |ops: u64| delays.iter().map(move |delay| (ops, *delay));
                    let work = |(ops, delay)| Work { ops, txgs, ibs: ibs as u8, delay, fill: 50, in_pieces: msize > 0 };
                    ops.iter().copied().flat_map(of).map(work).collect()
                };
                ours(&dir, &shape, &works(&ops)).iter().for_each(print);
                for ops in ops.iter().filter(|_| msize == 0) {
                    theirs(&dir, &shape, &works(&[*ops])).iter().for_each(print);
                }
            }
        }
    }
    let blocks = number("log", 100);
    if blocks > 0 {
        long_log(&dir, number("logsize", 4 << 30), blocks, number("logops", 40_000));
    }
    drop(std::fs::remove_dir_all(&dir));
}

/// How long the import of a pool takes with a log of about `blocks` blocks, where nothing was ever flushed.
#[allow(clippy::expect_used)]
fn long_log(dir: &std::path::Path, size: u64, blocks: u64, ops: u64) {
    let limits = ["log_block_min", "log_block_max", "log_txg_max", "max_mem_amt", "max_mem_ppm"];
    let limits = limits.map(|name| format!("zfs_unflushed_{name}"));
    limits.iter().for_each(|name| base::tunable::set(name, "1000000000000").expect("a tunable"));
    base::tunable::set("zfs_min_metaslabs_to_flush", "0").expect("a tunable");
    let all = size * VDEVS as u64;
    let shape = Shape {
        vdevs: VDEVS,
        size,
        lz4: true,
        log_spacemap: true,
        ms_shift: u64::from((all / 1000).ilog2()),
        counts: true,
    };
    let block = text("logblk", "131072");
    base::tunable::set("zfs_log_sm_blksz", &block).expect("a tunable");
    let (spa, traffic) = bench::make(dir, &shape);
    let start = Instant::now();
    let mut churn = Churn::fill(&spa, all);
    while spa.space().log_stats().log_blocks < blocks && start.elapsed().as_secs() < number("logsecs", 600) {
        churn.turn(&spa, ops);
    }
    let logs = spa.space().log_stats();
    let made = start.elapsed().as_secs_f64();
    spa.export().expect("export");
    drop((churn, spa));
    println!(
        "a log of {} blocks of {block} in {} logs, nothing flushed ({ops} blocks freed and allocated a txg, {:.1} GB written in {made:.0} s); \
         thought beforehand {:.2} s",
        logs.log_blocks,
        logs.logs,
        traffic.written().1 as f64 / 1e9,
        logs.import_seconds
    );
    let spa = timed_import(dir, &shape, "import");
    let again = spa.space().log_stats();
    println!("after it {} blocks in {} logs; thought now {:.2} s", again.log_blocks, again.logs, again.import_seconds);
    base::tunable::set("zfs_keep_log_spacemaps_at_export", "0").expect("a tunable");
    spa.export().expect("export");
    drop(spa);
    timed_import(dir, &shape, "import with nothing logged").export().expect("export");
}

/// Space that comes and goes with nothing in it, to have the entries of a log without the writes of what they stand for. It is half of the
/// pool, in pieces.
struct Churn {
    held: Vec<Dva>,
    state: u64,
}

impl Churn {
    const SIZE: u64 = 1024;

    /// Allocates four fifths of `size` bytes, and frees three eighths of them here and there.
    #[allow(clippy::expect_used)]
    fn fill(spa: &Arc<Spa>, size: u64) -> Churn {
        let mut churn = Churn { held: Vec::new(), state: 1 };
        for _ in 0..10 {
            let tx = spa.tx(1).expect("tx");
            churn.allocate(spa, tx.txg(), size / Self::SIZE * 8 / 100);
            drop(tx);
            spa.sync().expect("sync");
        }
        let (mut n, mut gone) = (0, Vec::new());
        churn.held.retain(|dva| {
            n += 1;
            let stays = mix(n) % 8 < 5;
            gone.extend((!stays).then_some(*dva));
            stays
        });
        Churn::free(spa, &gone);
        // what was freed can be used two txgs later
        (0..3).for_each(|_| spa.sync().expect("sync"));
        churn
    }

    /// A txg in which `ops` blocks are freed, at random, and as many allocated.
    #[allow(clippy::expect_used)]
    fn turn(&mut self, spa: &Arc<Spa>, ops: u64) {
        let tx = spa.tx(1).expect("tx");
        let pick = |churn: &mut Churn| {
            churn.state = mix(churn.state);
            churn.held.swap_remove(churn.state as usize % churn.held.len())
        };
        let gone: Vec<Dva> = (0..ops).map(|_| pick(self)).collect();
        self.allocate(spa, tx.txg(), ops);
        Churn::free(spa, &gone);
        drop(tx);
        spa.sync().expect("sync");
    }

    #[allow(clippy::expect_used)]
    fn allocate(&mut self, spa: &Arc<Spa>, txg: Txg, count: u64) {
        let request = SpaceRequest { class: Class::Normal, txg, hint: 1, avoid: &[], gang: false };
        let sizes = vec![Self::SIZE; count as usize];
        spa.space().manager().allocate_many(&request, &sizes, &mut self.held).expect("space");
    }

    /// In the txg that is synced next; none is under way.
    #[allow(clippy::expect_used)]
    fn free(spa: &Arc<Spa>, gone: &[Dva]) {
        for dva in gone {
            spa.space().manager().free(dva.vdev(), dva.offset(), dva.asize(), false).expect("allocated");
        }
    }
}

fn timed_import(dir: &std::path::Path, shape: &Shape, what: &str) -> Arc<Spa> {
    let (start, cpu, memory) = (Instant::now(), spent_cpu_seconds(), resident_mb());
    let spa = bench::import(dir, shape);
    let (wall, cpu) = (start.elapsed().as_secs_f64(), spent_cpu_seconds() - cpu);
    println!("{what}: {wall:.2} s, {cpu:.2} CPU s, resident {memory:.0} MB before, {:.0} MB after", resident_mb());
    spa
}

/// The memory of this process.
fn resident_mb() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

fn print(row: &Row) {
    println!(
        "{:<26}{:>8}{:>5}{:>7}{:>12.0}{:>8.0}%{:>8}{:>11.0}{:>8.1}{:>8.1}{:>9.3}{:>12.3}{:>10.1}{:>11.1}{:>10}{:>12.1}{:>9.1}",
        row.who,
        row.ms,
        row.ibs,
        row.ops,
        row.per_cpu,
        row.pass1,
        row.passes,
        row.writes,
        row.mos_writes,
        row.meta_writes,
        row.mos_mb,
        row.meta_mb,
        row.sync_ms,
        row.import_ms,
        row.log_blocks,
        row.estimate_ms,
        row.flushed
    );
}

struct Work {
    ops: u64,
    txgs: u64,
    ibs: u8,
    delay: u64,
    fill: u64,
    in_pieces: bool,
}

/// An object whose blocks are those with a number, or in a pool in pieces those of them that were not freed.
struct Blocks {
    object: Object,
    count: u64,
    in_pieces: bool,
}

impl Blocks {
    /// Fills so many percent of a pool of `size` bytes.
    #[allow(clippy::expect_used)]
    fn fill(spa: &Arc<Spa>, object: Object, size: u64, percent: u64, in_pieces: bool) -> Blocks {
        let percent = if in_pieces { percent * 8 / 5 } else { percent };
        let all = Blocks { object, count: size * percent / 100 / PER_BLOCK, in_pieces };
        for blkid in 0..all.count {
            let mut block = vec![0; BLOCK];
            bench::fill(&mut block, blkid * 1_000_003 + 1);
            let tx = spa.tx(BLOCK as u64).expect("tx");
            all.object.write_block(&tx, blkid, block).expect("write");
        }
        spa.sync().expect("sync");
        for blkid in (0..all.count).filter(|blkid| !all.is_there(*blkid)) {
            let tx = spa.tx_netfree(BLOCK as u64).expect("tx");
            all.object.free_range(&tx, blkid * BLOCK as u64, BLOCK as u64).expect("free");
        }
        // what was freed can be used two txgs later
        (0..3).for_each(|_| spa.sync().expect("sync"));
        all
    }

    fn is_there(&self, blkid: u64) -> bool {
        !self.in_pieces || mix(blkid) % 8 < 5
    }

    #[allow(clippy::expect_used)]
    fn overwrite(&self, spa: &Arc<Spa>, ops: u64, state: &mut u64) {
        for _ in 0..ops {
            *state = mix(*state);
            let mut block = vec![0; BLOCK];
            bench::fill(&mut block, *state);
            let tx = spa.tx(BLOCK as u64).expect("tx");
            let first = *state % self.count;
            let blkid = (first..self.count).find(|blkid| self.is_there(*blkid)).unwrap_or(0);
            self.object.write_block(&tx, blkid, block).expect("write");
        }
        spa.sync().expect("sync");
    }
}

/// One pool, measured with each of `works`, which differ in overwrites a txg and in the delay.
#[allow(clippy::expect_used)]
fn ours(dir: &std::path::Path, shape: &Shape, works: &[Work]) -> Vec<Row> {
    let Some(work) = works.first() else { return Vec::new() };
    let (spa, traffic) = bench::make(dir, shape);
    let (objset, object) = bench::object(&spa, BLOCK as u64, work.ibs);
    let blocks = Blocks::fill(&spa, object, shape.size * shape.vdevs as u64, work.fill, work.in_pieces);
    let mut state = 1;
    // many at a time where there are many
    let ops = if work.in_pieces { work.ops * 20 } else { work.ops };
    let aging = (blocks.count * 6 / 100).div_ceil(ops);
    (0..aging).for_each(|_| blocks.overwrite(&spa, ops, &mut state));
    if work.in_pieces {
        (0..work.txgs).for_each(|_| blocks.overwrite(&spa, work.ops, &mut state));
    }
    let mut rows: Vec<Row> =
        works.iter().map(|work| measure(&spa, &traffic, &blocks, work, shape, &mut state)).collect();
    traffic.write_delay_us.store(0, Ordering::Relaxed);
    spa.export().expect("export");
    drop((blocks, objset, spa));
    let start = Instant::now();
    let spa = bench::import(dir, shape);
    let import_ms = start.elapsed().as_secs_f64() * 1e3;
    spa.export().expect("export");
    if let Some(last) = rows.last_mut() {
        last.import_ms = import_ms;
    }
    rows
}

#[allow(clippy::expect_used)]
fn measure(spa: &Arc<Spa>, traffic: &Traffic, blocks: &Blocks, work: &Work, shape: &Shape, state: &mut u64) -> Row {
    traffic.write_delay_us.store(work.delay, Ordering::Relaxed);
    let stats = spa.zio().stats();
    let metadata = || {
        let counters =
            [&stats.written_mos, &stats.written_mos_bytes, &stats.written_metadata].map(base::counter::Counter::get);
        counters.map(|n| n as f64)
    };
    let (cpu, before, first) = (spent_cpu_seconds(), traffic.written(), spa.txgs().synced());
    let metadata_before = metadata();
    let flushed = spa.space().log_stats().flushes_total;
    (0..work.txgs).for_each(|_| blocks.overwrite(spa, work.ops, state));
    let cpu = spent_cpu_seconds() - cpu;
    let [mos_writes, mos_bytes, meta_writes] = metadata();
    let [mos_writes_before, mos_bytes_before, meta_writes_before] = metadata_before;
    let after = traffic.written();
    let records: Vec<_> = spa.txgs().history().into_iter().filter(|r| r.txg > first.0).collect();
    let sum = |f: &dyn Fn(&::pool::TxgRecord) -> u64| records.iter().map(f).sum::<u64>();
    let count = work.txgs as f64;
    let logs = spa.space().log_stats();
    Row {
        who: format!("zuse lsm={} delay={}", u8::from(shape.log_spacemap), work.delay),
        ms: shape.vdevs as u64 * (shape.size >> shape.ms_shift),
        ibs: work.ibs,
        ops: work.ops,
        per_cpu: (work.ops * work.txgs) as f64 / cpu,
        pass1: 100.0 * sum(&|r| r.first_pass_ns) as f64 / sum(&|r| r.sync_ns).max(1) as f64,
        passes: records.iter().map(|r| u64::from(r.passes)).max().unwrap_or(0),
        writes: (after.0 - before.0) as f64 / count,
        mos_writes: (mos_writes - mos_writes_before) / count,
        meta_writes: (meta_writes - meta_writes_before) / count,
        mos_mb: (mos_bytes - mos_bytes_before) / 1e6 / count,
        meta_mb: ((after.1 - before.1) as f64 - (work.ops * work.txgs * PER_BLOCK) as f64) / 1e6 / count,
        sync_ms: sum(&|r| r.sync_ns) as f64 / 1e6 / records.len().max(1) as f64,
        import_ms: f64::NAN,
        log_blocks: logs.log_blocks,
        estimate_ms: logs.import_seconds * 1e3,
        flushed: (logs.flushes_total - flushed) as f64 / count,
    }
}

/// A run of the peer: `works` differ in the delay alone.
fn theirs(dir: &std::path::Path, shape: &Shape, works: &[Work]) -> Vec<Row> {
    let (Some(peer), Some(work)) = (zpeer(), works.first()) else { return Vec::new() };
    let (pool_dir, pool, vdevs) = (format!("dir={}", dir.display()), "pool=l", format!("nvdev={}", shape.vdevs));
    let keep = "tun=zfs_keep_log_spacemaps_at_export=1";
    let args = [
        text("peersecs", "0"),
        peer.display().to_string(),
        "lsm".to_string(),
        pool_dir.clone(),
        pool.to_string(),
        vdevs.clone(),
        format!("vsize={}", shape.size),
        format!("lsm={}", u8::from(shape.log_spacemap)),
        format!("bs={BLOCK}"),
        format!("ibs={}", work.ibs),
        "rand=2400".to_string(),
        format!("fill={}", work.fill),
        "pct=6".to_string(),
        format!("ops={}", work.ops),
        format!("txgs={}", work.txgs),
        format!("msl={}", shape.ms_shift),
        format!("mwrdelay={}", works.last().map_or(0, |work| work.delay)),
        keep.to_string(),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let results = run_peer(&PathBuf::from("timeout"), &args);
    let mut rows: Vec<Row> = results.iter().zip(works).map(|(result, work)| their_row(result, shape, work)).collect();
    if rows.is_empty() {
        return rows;
    }
    let imported = run_peer(&peer, &["import", &pool_dir, pool, &vdevs, keep]);
    let import = imported.first().and_then(|r| r.get("wall")?.parse::<f64>().ok());
    if let Some((last, import)) = rows.last_mut().zip(import) {
        last.import_ms = import * 1e3;
    }
    rows
}

fn their_row(result: &PeerResult, shape: &Shape, work: &Work) -> Row {
    let field = |key: &str| -> f64 {
        let text = result.get(key).map_or("0", String::as_str);
        text.trim_end_matches('%').parse().unwrap_or(0.0)
    };
    let sync: f64 = result.get("sync_ms[min,med,max]").and_then(|t| t.split(',').nth(1)?.parse().ok()).unwrap_or(0.0);
    Row {
        who: format!("libzpool lsm={} delay={}", u8::from(shape.log_spacemap), work.delay),
        ms: field("ms") as u64,
        ibs: work.ibs,
        ops: work.ops,
        per_cpu: field("per_cpu"),
        pass1: field("pass1_share"),
        passes: field("maxpass") as u64,
        writes: field("wr_ops/txg"),
        mos_writes: f64::NAN,
        meta_writes: f64::NAN,
        mos_mb: f64::NAN,
        meta_mb: field("meta_MB/txg"),
        sync_ms: sync,
        import_ms: f64::NAN,
        log_blocks: 0,
        estimate_ms: f64::NAN,
        flushed: f64::NAN,
    }
}
