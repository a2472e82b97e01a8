//! Pools for the harness: creation, runs and imports on any devices, and the checks after a cut.

use std::path::PathBuf;
use std::sync::Arc;

use base::{Env, ObjectId};
use pool::{CreateOptions, Hooks, ImportOptions, OpenOptions, Pool, Spa};
use vdev::Device;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::import::{Candidate, scan_devices};
use zuse::verify::{Options, inspect};

use crate::chores::{Until, check_datasets, scrub};
use crate::compare::{Context, Result, compare};
use crate::driver::{Driver, Limits};
use crate::exchange::exchange;
use crate::model::{History, Model};
use crate::{Recording, Rng, State, Tape};

/// The name of every pool here.
pub const NAME: &str = "crash";
/// Size of a pool's ARC: large enough for hot blocks, small enough that some are evicted.
const ARC_BYTES: u64 = 16 << 20;
/// Percentage of the steps of a run that are pool-wide operations.
const CHORES_PCT: u64 = 12;
/// Percentage of the steps after which devices are exchanged, where that is part of a run.
const EXCHANGES_PCT: u64 = 12;
/// Percentage of the states after a cut that are scrubbed after they continued.
const SCRUB_PCT: u64 = 20;
/// Percentage of the states after a cut whose resilvers and replacements are completed.
const MENDED_PCT: u64 = 70;
/// LZ4 as block pointers name it.
const LZ4: u8 = 15;

/// The layout of a pool.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The name of the layout.
    pub name: &'static str,
    /// Its vdevs in the syntax of `zpool create`; devices are `d0`, `d1` and so on.
    pub vdevs: &'static str,
    /// Bytes of each device.
    pub size: u64,
    /// log2 of the sector size.
    pub ashift: u64,
    /// Features that are not enabled.
    pub without: &'static [&'static str],
}

impl Shape {
    fn words(&self) -> Vec<String> {
        self.vdevs.split_whitespace().map(str::to_owned).collect()
    }

    /// Names and sizes of its devices.
    ///
    /// # Errors
    /// If the specification is invalid.
    pub fn disks(&self) -> Result<Vec<(String, u64)>> {
        let spec = VdevSpec::parse(&self.words()).context(|| self.name.to_string())?;
        Ok(spec.paths().map(|(path, _)| (path.to_owned(), self.size)).collect())
    }

    /// Creates the pool.
    ///
    /// # Errors
    /// Those of the pool.
    pub fn create(&self, devices: &[Arc<dyn Device>], seed: u64) -> Result<Arc<Spa>> {
        let env = Env::seeded(seed);
        let spec = VdevSpec::parse(&self.words()).context(|| self.name.to_string())?;
        let find = |path: &str| devices.iter().find(|device| device.name() == path).cloned();
        let options = LayoutOptions { ashift: Some(self.ashift), ..LayoutOptions::default() };
        let new = layout(&spec, &find, options, &env).context(|| "layout".to_string())?;
        let mut options = CreateOptions { arc_bytes: ARC_BYTES, ..CreateOptions::new(NAME) };
        options.features.retain(|feature| !self.without.contains(feature));
        Spa::create(new, options, Hooks { env, ..Hooks::default() }).context(|| "create".to_string())
    }
}

/// The pool on these devices, if there is one.
#[must_use]
pub fn find(devices: &[Arc<dyn Device>]) -> Option<Candidate> {
    let devices = devices.iter().map(|device| (PathBuf::from(device.name()), device.clone())).collect();
    scan_devices(devices).into_iter().next()
}

/// Imports the pool on these devices for writing.
///
/// # Errors
/// When there is none; those of the pool.
pub fn import(devices: &[Arc<dyn Device>], seed: u64) -> Result<Arc<Spa>> {
    let candidate = find(devices).ok_or("there is no pool to import")?;
    let open = OpenOptions { arc_bytes: ARC_BYTES, ..OpenOptions::default() };
    let options = ImportOptions { open, force: true, ..ImportOptions::default() };
    let hooks = Hooks { env: Env::seeded(seed), ..Hooks::default() };
    Spa::import(&candidate, &options, hooks).context(|| "import".to_string())
}

/// Opens the pool on these devices for reading. Its newest uberblock must be usable.
///
/// # Errors
/// When there is none; those of the pool.
pub fn open(devices: &[Arc<dyn Device>]) -> Result<Arc<Pool>> {
    open_as(devices, false)
}

/// Like [`open`], but the log device may be missing.
///
/// # Errors
/// When there is none; those of the pool.
pub fn open_without_log(devices: &[Arc<dyn Device>]) -> Result<Arc<Pool>> {
    open_as(devices, true)
}

fn open_as(devices: &[Arc<dyn Device>], missing_log_ok: bool) -> Result<Arc<Pool>> {
    let candidate = find(devices).ok_or("there is no pool to open")?;
    let options = OpenOptions { arc_bytes: ARC_BYTES, missing_log_ok, ..OpenOptions::default() };
    let pool = Pool::open(&candidate, &options).context(|| "open".to_string())?;
    match pool.load_info().skipped.as_slice() {
        [] => Ok(pool),
        skipped => Err(format!("the newest state cannot be used: {skipped:?}")),
    }
}

/// Counts of a pool's blocks, so that a test can check that it tested something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Number of block pointers.
    pub blocks: u64,
    /// Pointers to gang blocks.
    pub ganged: u64,
    /// Pointers with embedded data.
    pub embedded: u64,
    /// Pointers to MOS blocks compressed with LZ4.
    pub mos_lz4: u64,
}

/// Checks that everything in the pool is intact and that the space maps are right.
///
/// # Errors
/// The damage found.
pub fn verify_all(pool: &Arc<Pool>) -> Result<Census> {
    let options = Options { dataset: None, threads: 1, expand: true };
    let mut census = Census::default();
    let summary = inspect(pool, &options, &|_, _| {}, &mut |block| {
        census.blocks += 1;
        census.ganged += u64::from(block.bp.is_gang());
        census.embedded += u64::from(block.bp.is_embedded());
        let lz4 = !block.bp.is_embedded() && block.bp.compression() == LZ4;
        census.mos_lz4 += u64::from(lz4 && block.bm.objset == ObjectId::MOS);
        true
    });
    let summary = summary.context(|| "verify".to_string())?;
    if summary.is_clean() {
        return Ok(census);
    }
    // what a device that has joined does not have yet is no damage
    let is_behind = pool.tree().leaves().iter().any(|leaf| leaf.is_stale());
    if is_behind
        && summary.tally.lost_blocks == 0
        && summary.space.iter().all(|vdev| vdev.leaked == 0 && vdev.unallocated == 0)
    {
        return Ok(census);
    }
    let space: Vec<_> = summary.space.iter().filter(|vdev| vdev.leaked > 0 || vdev.unallocated > 0).collect();
    let (lost, repairable) = (summary.tally.lost_blocks, summary.tally.repairable);
    let damage: Vec<_> = summary.damage().take(5).collect();
    Err(format!("verify: {lost} blocks lost, {repairable} repairable, space {space:x?}, damage {damage:?}"))
}

/// Checks that the pool, opened for reading, has the contents of `model` and is intact.
///
/// # Errors
/// The difference or damage found.
pub fn check_read_only(devices: &[Arc<dyn Device>], model: &Model) -> Result<Census> {
    let pool = open(devices)?;
    check_pool(&pool, model)
}

/// The txg that the pool is found at.
///
/// # Errors
/// If it does not open.
pub fn found_txg(devices: &[Arc<dyn Device>]) -> Result<u64> {
    Ok(open(devices)?.uberblock().txg.0)
}

fn check_pool(pool: &Arc<Pool>, model: &Model) -> Result<Census> {
    let dataset = pool.dataset(NAME).context(|| "root file system".to_string())?;
    let objset = dataset.objset().context(|| "root object set".to_string())?;
    let txg = pool.uberblock().txg;
    compare(&objset, model).context(|| format!("opened at txg {txg}"))?;
    check_datasets(pool, model).context(|| format!("opened at txg {txg}"))?;
    for (feature, used) in [("large_dnode", model.has_large_dnodes()), ("large_blocks", model.has_large_blocks())] {
        let active = dataset.feature_active(feature).context(|| feature.to_string())?;
        if used && !(active && pool.feature_active(feature)) {
            return Err(format!("opened at txg {txg}: feature {feature} is used, but not marked as active"));
        }
    }
    verify_all(pool).context(|| format!("opened at txg {txg}"))
}

/// The parameters of a recorded run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The seed of all random choices.
    pub seed: u64,
    /// Number of transactions.
    pub steps: u64,
    /// Number of transactions between two exports or closes, each followed by an import.
    pub reopen_every: u64,
    /// Maximum number of bytes written.
    pub tape_bytes: u64,
    /// Limits on the pool's contents.
    pub limits: Limits,
    /// Disks that take turns with those of the pool: if there are any, devices are attached, detached and replaced as well.
    pub spare_disks: usize,
}

/// Creates a pool, runs random operations on it with occasional reopens, and exports it in the end, while recording a tape. A promise has
/// the txg of the last safe change; its payload is the txg of the uberblock.
///
/// # Errors
/// The first failure, with the operations before it.
pub fn record(shape: &Shape, run: &Run) -> Result<(Tape<u64>, History)> {
    let mut disks = shape.disks()?;
    disks.extend((0..run.spare_disks).map(|n| (format!("x{n}"), shape.size)));
    let recording = Recording::new(&disks, run.tape_bytes);
    let devices = recording.devices();
    let spa = shape.create(&devices, run.seed)?;
    recording.promise(0, spa.uberblock().txg.0);
    // different shapes get different seeds
    let luck = shape.name.bytes().fold(run.seed, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let mut driver = Driver::new(spa, Model::default(), Rng::new(luck), run.limits)?;
    let told = |driver: &Driver, what: String| format!("{}: {what}\n{}", shape.name, driver.trace());
    for step in 1..=run.steps {
        driver.step().map_err(|what| told(&driver, what))?;
        if driver.rng().percent(CHORES_PCT) {
            let txg = driver.chore().map_err(|what| told(&driver, what))?;
            recording.promise(txg, driver.spa().uberblock().txg.0);
        }
        if run.spare_disks > 0 && driver.rng().percent(EXCHANGES_PCT) {
            let spa = driver.spa().clone();
            if let Some(what) = exchange(&spa, &devices, driver.rng()).map_err(|what| told(&driver, what))? {
                driver.note(|| what);
            }
        }
        let pause = driver.rng().percent(20);
        if pause || step == run.steps || step % run.reopen_every == 0 {
            let txg = driver.sync().map_err(|what| told(&driver, what))?;
            recording.promise(txg, driver.spa().uberblock().txg.0);
        }
        if step % run.reopen_every == 0 {
            reopen(&mut driver, &devices, run.seed + step).map_err(|what| told(&driver, what))?;
        }
    }
    driver.spa().export().context(|| "export".to_string())?;
    let history = driver.into_history();
    Ok((recording.finish(), history))
}

/// Exports or closes the pool, and imports it again.
///
/// # Errors
/// The first difference from before.
pub fn reopen(driver: &mut Driver, devices: &[Arc<dyn Device>], seed: u64) -> Result<()> {
    let spa = driver.spa().clone();
    if driver.rng().percent(50) {
        spa.export().context(|| "export".to_string())?;
    } else {
        spa.close().context(|| "close".to_string())?;
    }
    drop(spa);
    driver.reopened(import(devices, seed)?)
}

/// Checks the state after a cut.
///
/// # Errors
/// The loss or damage found.
pub fn check(state: &State<'_, u64>, history: &History) -> Result<()> {
    let devices = state.devices();
    if state.promised.is_none() && open(&devices).is_err() {
        // the pool was still being created and may not exist yet
        return Ok(());
    }
    let written = |state: &State<'_, u64>| state.devices.iter().map(|device| device.writes()).sum::<u64>();
    let before = written(state);
    let pool = open(&devices)?;
    let found = pool.uberblock().txg.0;
    let (promised, uberblock) = state.promised.map_or((0, 0), |promise| (promise.txg, promise.payload));
    if found < uberblock {
        return Err(format!("txg {found} is found, {uberblock} had been written"));
    }
    let model = history.at(found.max(promised));
    check_pool(&pool, &model)?;
    if written(state) != before {
        return Err("a pool that was opened for reading was written".to_string());
    }
    drop(pool);
    go_on(&devices, state.cut.seed, model).context(|| format!("imported at txg {found}"))
}

/// Lets the pool continue, and checks that it is intact afterwards.
fn go_on(devices: &[Arc<dyn Device>], seed: u64, model: Model) -> Result<()> {
    let spa = import(devices, seed)?;
    let mut driver = Driver::new(spa, model, Rng::new(seed), Limits::default())?;
    driver.compare().context(|| "live".to_string())?;
    let done = driver.step().and_then(|()| driver.step()).and_then(|()| driver.sync());
    done.map_err(|what| format!("{what}\n{}", driver.trace()))?;
    if driver.rng().percent(MENDED_PCT) && driver.spa().mend().context(|| "mend".to_string())? {
        driver.spa().scan_wait(&mut |_| {}).context(|| "resilver".to_string())?;
        if driver.spa().tree().leaves().iter().any(|leaf| leaf.is_stale()) {
            return Err("a device has not everything after its resilver".to_string());
        }
    }
    let resilvers = driver.spa().is_resilver_due(false).context(|| "due".to_string())?;
    if driver.rng().percent(SCRUB_PCT) && !resilvers && driver.spa().resume_scan().is_ok() {
        // a resilver that has begun comes first
        driver.spa().scan_wait(&mut |_| {}).context(|| "resilver".to_string())?;
        scrub(driver.spa(), Until::Whole)?;
    }
    driver.spa().export().context(|| "export".to_string())?;
    let checked = check_read_only(devices, driver.model());
    checked.map(drop).map_err(|what| format!("a txg later: {what}\n{}", driver.trace()))
}
