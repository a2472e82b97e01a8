//! `power-cut run POOL DATASET PROMISES WRITES SEED PATH…`: imports the pool on these devices, runs six programs that call `fsync` after
//! every write, and cuts the power at write number WRITES: sectors of writes that no flush had made safe are lost as SEED decides. The
//! completed `fsync`s are written to PROMISES.
//!
//! `power-cut check POOL DATASET PROMISES PATH…`: opens the pool for reading, and compares its files with PROMISES. Exit status 1 if any
//! promise was broken.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crash::Plug;
use crash::promises::{Program, Promised, check};
use vdev::Device;
use vdev::import::{FoundDevice, scan, scan_devices};
use zpl::UsedByBonus;
use zuse::pool::{Hooks, ImportOptions, Spa};
use zuse::zpl;

/// Number of programs.
const PROGRAMS: u64 = 6;
/// The power is cut after this time at the latest.
const PATIENCE: Duration = Duration::from_secs(60);

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["run", pool, dataset, promises, writes, seed, paths @ ..] if !paths.is_empty() => {
            match (writes.parse(), seed.parse()) {
                (Ok(writes), Ok(seed)) => run(pool, dataset, promises, Plug::new(writes, seed), paths),
                _ => Err("WRITES and SEED are numbers".into()),
            }
        }
        ["check", pool, dataset, promises, paths @ ..] if !paths.is_empty() => verify(pool, dataset, promises, paths),
        _ => {
            eprintln!("usage: power-cut run POOL DATASET PROMISES WRITES SEED PATH…");
            eprintln!("       power-cut check POOL DATASET PROMISES PATH…");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("power-cut: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open(pool: &str, plug: &Arc<Plug>, paths: &[&str]) -> Result<Arc<Spa>> {
    let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
    let found = scan(&paths)?.into_iter().find(|candidate| candidate.name == pool);
    let found = found.ok_or_else(|| format!("no pool '{pool}' on these devices"))?;
    let behind = |device: &FoundDevice| -> Result<(PathBuf, Arc<dyn Device>)> {
        let file = vdev::device::open(&device.path, vdev::Access::Write)?;
        Ok((device.path.clone(), plug.device(file) as Arc<dyn Device>))
    };
    let devices = found.devices.iter().map(behind).collect::<Result<Vec<_>>>()?;
    let again = scan_devices(devices).into_iter().find(|candidate| candidate.guid == found.guid);
    // the power does not come back
    let hooks = Hooks { used_by: Some(Arc::new(UsedByBonus)), never_suspends: true, ..Hooks::default() };
    Ok(Spa::import(&again.ok_or("the pool is gone")?, &ImportOptions::default(), hooks)?)
}

fn run(pool: &str, dataset: &str, promises: &str, plug: Arc<Plug>, paths: &[&str]) -> Result<bool> {
    let spa = open(pool, &plug, paths)?;
    let files = zuse::Pool::of_spa(spa.clone()).files(dataset)?;
    let kept_count = AtomicU64::new(0);
    let told = || {
        kept_count.fetch_add(1, Ordering::Relaxed);
    };
    let begin = Instant::now();
    let kept: Vec<Promised> = std::thread::scope(|scope| {
        let (files, told) = (&files, &told);
        let programs: Vec<_> =
            (0..PROGRAMS).map(|number| scope.spawn(move || Program(number).run(files, told))).collect();
        while plug.loss().is_none() && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        if plug.loss().is_none() {
            plug.pull_now();
        }
        programs.into_iter().flat_map(|program| program.join().unwrap_or_default()).collect()
    });
    let (took, count) = (begin.elapsed().as_secs_f64(), kept_count.load(Ordering::Relaxed));
    let mut text = String::new();
    kept.iter().try_for_each(|promise| writeln!(text, "{}", promise.line()))?;
    std::fs::write(promises, text)?;
    let loss = plug.loss().unwrap_or_default();
    println!(
        "{PROGRAMS} programs completed {count} fsyncs in {took:.1} s ({:.0} a second); then the power was cut",
        count as f64 / took
    );
    println!("of {} unflushed writes, {} of {} sectors never reached a disk", loss.pending, loss.lost, loss.sectors);
    // as after a power cut, nothing is closed
    std::process::exit(0)
}

fn verify(pool: &str, dataset: &str, promises: &str, paths: &[&str]) -> Result<bool> {
    let pool = zuse::Pool::open(paths, Some(pool))?;
    let fs = pool.file_system(dataset)?;
    let read = |path: &str, offset: u64, len: usize| {
        let node = fs.resolve(path.as_bytes()).map_err(std::io::Error::other)?;
        let mut bytes = vec![0; len];
        let left = usize::try_from(node.size().saturating_sub(offset)).unwrap_or(usize::MAX);
        bytes.truncate(left);
        let got = node.read(offset, &mut bytes).map_err(std::io::Error::other)?;
        bytes.truncate(got);
        Ok(bytes)
    };
    let text = std::fs::read_to_string(promises)?;
    let promised: Vec<Promised> = text.lines().filter_map(Promised::parse).collect();
    let broken: Vec<String> = promised.iter().filter_map(|promise| check(promise, &read).err()).collect();
    broken.iter().for_each(|what| println!("  BROKEN {what}"));
    let records: u64 = promised.iter().map(|p| if let Promised::Journal(_, n) = p { *n } else { 1 }).sum();
    println!("  {records} records, messages and pages were fsynced; {} are missing or wrong", broken.len());
    Ok(broken.is_empty() && !promised.is_empty())
}
