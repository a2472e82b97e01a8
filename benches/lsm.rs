//! `cargo bench -p zuse-benches --bench lsm [-- ops=1000 txgs=60 ms=500,5000 delay=200]`: random overwrites of 8 KiB on an aged,
//! half-full pool, with and without log space maps, beside OpenZFS's own engine in the same run.
//!
//! Prints one table: overwrites per CPU second, the share of pass 1 in the sync, passes, writes and metadata bytes a txg, and how long
//! the import of the pool takes, its log as it was. Of the writes, those of the MOS (space maps, logs, and all else that belongs to the pool) and
//! of other metadata (dnodes, and the indirect blocks of data) stand apart: the former should not grow with the number of metaslabs.
//!
//! `msize=1048576 ms=1000,4000,12000` lets the pool grow with the number of metaslabs, whose size stays the same: `ms` times `msize` bytes. Such a
//! pool is filled to four fifths, and then blocks here and there are freed until it is half full: its free space is in pieces of a few
//! blocks. The peer has no such mode.
//!
//! `log=1000` makes the log of the last row as long, in blocks, by letting nothing be flushed, and imports that pool; 131072 is the most that the
//! tunables allow by default. `logops=10000`: overwrites a txg meanwhile. `logblk=4096`: the size of these blocks; with that their number is
//! that of entries, not of bytes that nobody has. `logsecs=360` ends the making of the log. Each overwrite is two entries there, as the
//! pool is in pieces.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ::pool::Spa;
use benches::pool::{self as bench, Shape, Traffic};
use benches::{mix, number, process_cpu_seconds, run_peer, text, zpeer};
use dmu::Object;

const BLOCK: usize = 8192;
const VDEVS: usize = 4;
/// Bytes that a block takes on disk.
const PER_BLOCK: u64 = 2560;

struct Row {
    who: String,
    /// Metaslabs.
    ms: u64,
    per_cpu: f64,
    pass1: f64,
    passes: u64,
    writes: f64,
    /// Of these, of the MOS; of other metadata.
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
    let (ops, txgs, msize) = (number("ops", 1000), number("txgs", 30), number("msize", 0));
    println!(
        "{:<26}{:>8}{:>5}{:>12}{:>9}{:>8}{:>11}{:>8}{:>8}{:>9}{:>12}{:>10}{:>11}{:>10}{:>12}{:>9}",
        "",
        "ms",
        "ibs",
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
    for ms in text("ms", "500,5000").split(',').filter_map(|n| n.parse::<u64>().ok()) {
        let size = if msize > 0 { ms * msize / VDEVS as u64 } else { number("vsize", 1 << 30) };
        for ibs in text("ibs", "14").split(',').filter_map(|n| n.parse::<u8>().ok()) {
            for lsm in [true, false] {
                let shape = Shape {
                    vdevs: VDEVS,
                    size,
                    lz4: true,
                    log_spacemap: lsm,
                    ms_shift: u64::from((size * VDEVS as u64 / ms).ilog2()),
                };
                let work = Work { ops, txgs, ibs, delay: number("delay", 0), fill: 50, in_pieces: msize > 0 };
                let row = ours(&dir, &shape, &work);
                print(&row, ibs);
                if let Some(row) = theirs(&dir, &shape, &work).filter(|_| msize == 0) {
                    print(&row, ibs);
                }
            }
        }
    }
    let blocks = number("log", 100);
    if blocks > 0 {
        long_log(&dir, number("vsize", 1 << 30), blocks, number("logops", 10_000));
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
    let shape = Shape {
        vdevs: VDEVS,
        size,
        lz4: true,
        log_spacemap: true,
        ms_shift: u64::from((size * VDEVS as u64 / 1000).ilog2()),
    };
    let block = text("logblk", "131072");
    base::tunable::set("zfs_log_sm_blksz", &block).expect("a tunable");
    let (spa, traffic) = bench::make(dir, &shape);
    let (objset, object) = bench::object(&spa, BLOCK as u64, 14);
    let all = Blocks::fill(&spa, object, size * VDEVS as u64, 50, true);
    let (start, mut state, before) = (Instant::now(), 1, traffic.written().1);
    while spa.space().log_stats().log_blocks < blocks && start.elapsed().as_secs() < number("logsecs", 3600) {
        all.overwrite(&spa, ops, &mut state);
    }
    let logs = spa.space().log_stats();
    let made = start.elapsed().as_secs_f64();
    let written = (traffic.written().1 - before) as f64 / 1e9;
    spa.export().expect("export");
    drop((all, objset, spa));
    println!(
        "a log of {} blocks of {block} in {} logs, nothing flushed ({ops} overwrites a txg, {written:.1} GB written in {made:.0} s); \
         thought beforehand {:.2} s",
        logs.log_blocks, logs.logs, logs.import_seconds
    );
    let spa = timed_import(dir, &shape, "import");
    let again = spa.space().log_stats();
    println!("after it {} blocks in {} logs; thought now {:.2} s", again.log_blocks, again.logs, again.import_seconds);
    base::tunable::set("zfs_keep_log_spacemaps_at_export", "0").expect("a tunable");
    spa.export().expect("export");
    drop(spa);
    timed_import(dir, &shape, "import with nothing logged").export().expect("export");
}

fn timed_import(dir: &std::path::Path, shape: &Shape, what: &str) -> Arc<Spa> {
    let (start, cpu, memory) = (Instant::now(), process_cpu_seconds(), resident_mb());
    let spa = bench::import(dir, shape);
    let (wall, cpu) = (start.elapsed().as_secs_f64(), process_cpu_seconds() - cpu);
    println!("{what}: {wall:.2} s, {cpu:.2} CPU s, resident {memory:.0} MB before, {:.0} MB after", resident_mb());
    spa
}

/// What this process has in memory.
fn resident_mb() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

fn print(row: &Row, ibs: u8) {
    println!(
        "{:<26}{:>8}{ibs:>5}{:>12.0}{:>8.0}%{:>8}{:>11.0}{:>8.1}{:>8.1}{:>9.3}{:>12.3}{:>10.1}{:>11.1}{:>10}{:>12.1}{:>9.1}",
        row.who,
        row.ms,
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
    /// Of a pool of `size` bytes, filled in percent.
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

#[allow(clippy::expect_used)]
fn ours(dir: &std::path::Path, shape: &Shape, work: &Work) -> Row {
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
    traffic.write_delay_us.store(work.delay, Ordering::Relaxed);
    let row = measure(&spa, &traffic, &blocks, work, shape, &mut state);
    drop((blocks, objset, spa));
    let start = Instant::now();
    let spa = bench::import(dir, shape);
    let import_ms = start.elapsed().as_secs_f64() * 1e3;
    spa.export().expect("export");
    Row { import_ms, ..row }
}

#[allow(clippy::expect_used)]
fn measure(spa: &Arc<Spa>, traffic: &Traffic, blocks: &Blocks, work: &Work, shape: &Shape, state: &mut u64) -> Row {
    let stats = spa.zio().stats();
    let metadata = || {
        let counters =
            [&stats.written_mos, &stats.written_mos_bytes, &stats.written_metadata].map(base::counter::Counter::get);
        counters.map(|n| n as f64)
    };
    let (cpu, before, first) = (process_cpu_seconds(), traffic.written(), spa.txgs().synced());
    let metadata_before = metadata();
    let flushed = spa.space().log_stats().flushes_total;
    (0..work.txgs).for_each(|_| blocks.overwrite(spa, work.ops, state));
    let cpu = process_cpu_seconds() - cpu;
    let [mos_writes, mos_bytes, meta_writes] = metadata();
    let [mos_writes_before, mos_bytes_before, meta_writes_before] = metadata_before;
    let after = traffic.written();
    let records: Vec<_> = spa.txgs().history().into_iter().filter(|r| r.txg > first.0).collect();
    let sum = |f: &dyn Fn(&::pool::TxgRecord) -> u64| records.iter().map(f).sum::<u64>();
    let count = work.txgs as f64;
    let logs = spa.space().log_stats();
    let row = Row {
        who: format!("zuse lsm={} delay={}", u8::from(shape.log_spacemap), work.delay),
        ms: shape.vdevs as u64 * (shape.size >> shape.ms_shift),
        per_cpu: (work.ops * work.txgs) as f64 / cpu,
        pass1: 100.0 * sum(&|r| r.first_pass_ns) as f64 / sum(&|r| r.sync_ns).max(1) as f64,
        passes: records.iter().map(|r| u64::from(r.passes)).max().unwrap_or(0),
        writes: (after.0 - before.0) as f64 / count,
        mos_writes: (mos_writes - mos_writes_before) / count,
        meta_writes: (meta_writes - meta_writes_before) / count,
        mos_mb: (mos_bytes - mos_bytes_before) / 1e6 / count,
        meta_mb: ((after.1 - before.1) as f64 - (work.ops * work.txgs * PER_BLOCK) as f64) / 1e6 / count,
        sync_ms: sum(&|r| r.sync_ns) as f64 / 1e6 / records.len().max(1) as f64,
        import_ms: 0.0,
        log_blocks: logs.log_blocks,
        estimate_ms: logs.import_seconds * 1e3,
        flushed: (logs.flushes_total - flushed) as f64 / count,
    };
    spa.export().expect("export");
    row
}

fn theirs(dir: &std::path::Path, shape: &Shape, work: &Work) -> Option<Row> {
    let peer = zpeer()?;
    let args = [
        "lsm".to_string(),
        format!("dir={}", dir.display()),
        "pool=l".to_string(),
        format!("nvdev={}", shape.vdevs),
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
        format!("mwrdelay={}", work.delay),
        "tun=zfs_keep_log_spacemaps_at_export=1".to_string(),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = run_peer(&peer, &args).into_iter().next_back()?;
    let again = ["import", args.get(1)?, args.get(2)?, args.get(3)?, "tun=zfs_keep_log_spacemaps_at_export=1"];
    let imported = run_peer(&peer, &again);
    let import = imported.first().and_then(|r| r.get("wall")?.parse::<f64>().ok()).unwrap_or(f64::NAN);
    let field = |key: &str| -> f64 {
        let text = result.get(key).map_or("0", String::as_str);
        text.trim_end_matches('%').parse().unwrap_or(0.0)
    };
    let sync: f64 = result.get("sync_ms[min,med,max]").and_then(|t| t.split(',').nth(1)?.parse().ok()).unwrap_or(0.0);
    Some(Row {
        who: format!("libzpool lsm={} delay={}", u8::from(shape.log_spacemap), work.delay),
        ms: field("ms") as u64,
        per_cpu: field("per_cpu"),
        pass1: field("pass1_share"),
        passes: field("maxpass") as u64,
        writes: field("wr_ops/txg"),
        mos_writes: f64::NAN,
        meta_writes: f64::NAN,
        mos_mb: f64::NAN,
        meta_mb: field("meta_MB/txg"),
        sync_ms: sync,
        import_ms: import * 1e3,
        log_blocks: 0,
        estimate_ms: f64::NAN,
        flushed: f64::NAN,
    })
}
