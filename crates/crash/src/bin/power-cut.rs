//! `power-cut run POOL DATASET PROMISES WRITES SEED PATH…`: opens the pool on these devices, lets six programs work that wait for the disk after
//! everything they write, and takes the power away at the write number WRITES: of what no flush had made safe, sectors are lost as
//! SEED has it. What the programs had been promised is written to PROMISES.
//!
//! `power-cut check POOL DATASET PROMISES PATH…`: opens the pool for reading, and compares. Exit status 1 if any promise was broken.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crash::Plug;
use crash::promises::{Program, Promised, check};
use vdev::import::{FoundDevice, scan, scan_devices};
use vdev::{Device, FileDevice};
use zpl::UsedByBonus;
use zuse::pool::{Hooks, ImportOptions, Spa};
use zuse::zpl;

/// Programs at work.
const PROGRAMS: u64 = 6;
/// The power goes at the latest after so long.
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
    let found = found.ok_or_else(|| format!("no pool '{pool}' there"))?;
    let behind = |device: &FoundDevice| -> Result<(PathBuf, Arc<dyn Device>)> {
        let file = Arc::new(FileDevice::open_read_write(&device.path)?);
        Ok((device.path.clone(), plug.device(file) as Arc<dyn Device>))
    };
    let devices = found.devices.iter().map(behind).collect::<Result<Vec<_>>>()?;
    let again = scan_devices(devices).into_iter().find(|candidate| candidate.guid == found.guid);
    let hooks = Hooks { used_by: Some(Arc::new(UsedByBonus)), ..Hooks::default() };
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
        "{PROGRAMS} programs were promised {count} times in {took:.1} s that all is safe ({:.0} a second); then the power went",
        count as f64 / took
    );
    println!(
        "of {} writes that were on their way, {} of {} sectors never reached a disk",
        loss.pending, loss.lost, loss.sectors
    );
    // as after a power cut: nobody closes anything
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
    println!("  {records} records, messages and pages were promised; {} are not there", broken.len());
    Ok(broken.is_empty() && !promised.is_empty())
}
