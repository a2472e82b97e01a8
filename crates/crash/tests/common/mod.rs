//! Shared code of the tests of this crate: pools under a model, and pools under power cuts.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crash::model::{History, Model};
use crash::pools::{Census, NAME, Run, Shape, check, check_read_only, found_txg, record, reopen};
use crash::{Cut, Cutter, Driver, Limits, Rng, Tape, number_from_env, report, try_cuts};
use vdev::{Device, FileDevice, MemoryDevice};

/// Number of transactions between two imports.
const REOPEN_EVERY: u64 = 100;
/// Maximum number of cuts of one tape; then another run is recorded.
const CUTS_OF_A_TAPE: u64 = 2000;
/// Number of states of a shape that OpenZFS's zdb checks.
const JUDGED: u64 = 3;
/// Number of transactions of a run that is cut.
const STEPS: u64 = 150;

/// The test binary in whose runs devices are exchanged.
pub(crate) const EXCHANGES: &str = "exchange";

/// The kind of work on a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Limits on its contents.
    pub(crate) limits: Limits,
    /// True if another thread syncs all the time.
    pub(crate) background: bool,
}

/// Counts of events in a run, so that a test can check that it tested something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Transactions refused for lack of space.
    pub(crate) no_space: u64,
    /// Ganged blocks.
    pub(crate) ganged: u64,
    /// Embedded blocks.
    pub(crate) embedded: u64,
    /// Blocks of the MOS compressed with LZ4.
    pub(crate) mos_lz4: u64,
    /// Metaslabs whose changes were flushed from logs to space maps.
    pub(crate) flushed: u64,
    /// Space maps that were rewritten.
    pub(crate) condensed: u64,
}

impl Seen {
    fn add(&mut self, driver: &Driver, census: Census) {
        self.no_space += driver.spa().txgs().stats.no_space.get();
        self.ganged += census.ganged;
        self.embedded += census.embedded;
        self.mos_lz4 += census.mos_lz4;
        self.flushed += driver.spa().space().log_stats().flushes_total;
        self.condensed += driver.spa().space().log_stats().condenses_total;
    }
}

/// Empty devices in memory.
pub(crate) fn devices(shape: &Shape) -> Vec<Arc<dyn Device>> {
    let device = |(name, size): (String, u64)| Arc::new(MemoryDevice::writable(size).named(name)) as Arc<dyn Device>;
    shape.disks().unwrap().into_iter().map(device).collect()
}

fn some_steps(driver: &mut Driver, steps: u64, work: &Work) -> Result<(), String> {
    let stop = AtomicBool::new(false);
    let spa = driver.spa().clone();
    std::thread::scope(|scope| {
        let sync = || {
            while spa.sync().is_ok() {
                if stop.load(Ordering::Acquire) {
                    break;
                }
            }
        };
        let background = work.background.then(|| scope.spawn(sync));
        let done = (0..steps).try_for_each(|_| {
            driver.step()?;
            match !work.background && driver.rng().percent(10) {
                true => driver.sync().map(drop),
                false => Ok(()),
            }
        });
        stop.store(true, Ordering::Release);
        background.into_iter().for_each(|thread| thread.join().unwrap());
        done
    })
}

fn model(shape: &Shape, seed: u64, steps: u64, work: &Work) -> Result<Seen, String> {
    let devices = devices(shape);
    let spa = shape.create(&devices, seed)?;
    // different shapes get different seeds
    let luck = shape.name.bytes().fold(seed, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let mut driver = Driver::new(spa, Model::default(), Rng::new(luck), work.limits)?;
    let mut seen = Seen::default();
    for round in 0..steps.div_ceil(REOPEN_EVERY) {
        let done = some_steps(&mut driver, REOPEN_EVERY, work).and_then(|()| {
            // everything is safe: a reader sees it, whether the pool is open or not
            driver.sync()?;
            seen.add(&driver, check_read_only(&devices, driver.model())?);
            reopen(&mut driver, &devices, seed + round)
        });
        done.map_err(|what| format!("after step {}: {what}\n{}", round * REOPEN_EVERY, driver.trace()))?;
    }
    driver.spa().export().map_err(|e| e.to_string())?;
    check_read_only(&devices, driver.model())?;
    Ok(seen)
}

/// Runs random operations on a pool of this shape. The test must have the name of the shape.
pub(crate) fn work_on(binary: &str, shape: &Shape, steps: u64, work: Work) -> Seen {
    base::tunable::ZFS_TXG_TIMEOUT.set(600);
    let (seed, steps) = (number_from_env("ZUSE_SEED", 1), number_from_env("ZUSE_MODEL_OPS", steps));
    model(shape, seed, steps, &work).unwrap_or_else(|what| {
        let name = shape.name;
        let again = format!("ZUSE_SEED={seed} ZUSE_MODEL_OPS={steps} cargo test -p zuse-crash --test {binary} {name}");
        panic!("{name}, seed {seed}: {what}\n    again: {again}");
    })
}

fn run(binary: &str, seed: u64) -> Run {
    let limits = Limits { bytes: 2 << 20, objects: 24, ..Limits::default() };
    let spare_disks = if binary == EXCHANGES { 3 } else { 0 };
    Run { seed, steps: STEPS, reopen_every: 60, tape_bytes: 1 << 30, limits, spare_disks }
}

/// Records a run.
pub(crate) fn tape(binary: &str, shape: &Shape, seed: u64) -> (Tape<u64>, History) {
    let again = || format!("ZUSE_SEED={seed} cargo test -p zuse-crash --test {binary} {}", shape.name);
    record(shape, &run(binary, seed))
        .unwrap_or_else(|what| panic!("the run itself failed: {what}\n    again: {}", again()))
}

/// Checks `cuts` cuts in total, of runs on a pool of this shape. The test must have the name of the shape.
pub(crate) fn cut(binary: &str, shape: &Shape, cuts: u64) {
    base::tunable::ZFS_TXG_TIMEOUT.set(600);
    let first = number_from_env("ZUSE_SEED", 1);
    if let Ok(one) = std::env::var("ZUSE_CUT") {
        let (tape, history) = tape(binary, shape, first);
        let failures =
            try_cuts(&tape, vec![Cut::draw(&tape, one.parse().unwrap())], 1, &|state| check(state, &history));
        assert!(failures.is_empty(), "{}", report(&failures, &|_| "the same command".to_string()));
        return;
    }
    let mut left = cuts;
    for seed in first.. {
        let (tape, history) = tape(binary, shape, seed);
        let count = left.min(CUTS_OF_A_TAPE);
        let cuts: Vec<Cut> = (0..count).map(|n| Cut::draw(&tape, seed << 32 | n)).collect();
        if seed == first {
            judge(shape, &tape, &history, &cuts);
        }
        let failures = try_cuts(&tape, cuts, 2, &|state| check(state, &history));
        let again =
            |cut| format!("ZUSE_SEED={seed} ZUSE_CUT={cut} cargo test -p zuse-crash --test {binary} {}", shape.name);
        assert!(failures.is_empty(), "{}, seed {seed}: {}", shape.name, report(&failures, &again));
        left -= count;
        if left == 0 {
            return;
        }
    }
}

/// Lets OpenZFS's zdb check some of the states as they are, and its engine import them; afterwards they must still have the contents.
fn judge(shape: &Shape, tape: &Tape<u64>, history: &History, cuts: &[Cut]) {
    if oracle::judge::tool("zdb").is_none() {
        return;
    }
    let mut cutter = Cutter::new(tape);
    let safe = cuts.iter().filter_map(|cut| Some((cut, tape.promised(cut.at)?)));
    for (cut, promised) in safe.take(JUDGED as usize) {
        let dir = tempfile::tempdir().unwrap();
        let overlays = cutter.build(cut);
        let path = |device: &dyn Device| dir.path().join(device.name());
        overlays.iter().for_each(|device| device.write_to(&path(&**device)).unwrap());
        if let Some(blocks) = oracle::judge::blocks(dir.path(), NAME) {
            assert!(blocks.are_good(), "{}: {cut}: {}", shape.name, blocks.said);
        }
        let devices: Vec<_> = overlays.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
        let model = history.at(found_txg(&devices).unwrap().max(promised.txg));
        oracle::judge::imports_in_place(dir.path(), NAME).unwrap_or_else(|e| panic!("{}: {cut}: {e}", shape.name));
        let left = devices
            .iter()
            .map(|device| Arc::new(FileDevice::open_read_only(&path(&**device)).unwrap()) as Arc<dyn Device>);
        let checked = check_read_only(&left.collect::<Vec<_>>(), &model);
        checked.unwrap_or_else(|e| panic!("{}: {cut}: after an import by zhack: {e}", shape.name));
    }
}

/// Checks that OpenZFS's zdb finds no leak in the state as it is, and that its engine imports it.
pub(crate) fn judge_state<P>(name: &str, cut: &Cut, cutter: &mut Cutter<'_, P>) {
    let dir = tempfile::tempdir().unwrap();
    for device in cutter.build(cut) {
        device.write_to(&dir.path().join(device.name())).unwrap();
    }
    if let Some(blocks) = oracle::judge::blocks(dir.path(), NAME) {
        assert!(blocks.are_good(), "{name}: {cut}: {}", blocks.said);
        oracle::judge::imports_in_place(dir.path(), NAME).unwrap_or_else(|e| panic!("{name}: {cut}: {e}"));
    }
}
