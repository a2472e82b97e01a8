//! Limits for inputs that are whole pools: time, memory, and never a panic.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fuzzing::Body;

/// The time that an input may take, on a machine that has other work.
const SLOW: Duration = Duration::from_secs(20);
/// The time after which an input counts as hanging.
const HANGS: Duration = Duration::from_secs(120);
/// The peak memory that an input may take, beyond the memory in use before: a pool of this size needs some 150 MB, mostly for verification
/// batches.
const MEMORY: u64 = 512 << 20;

/// The input that is running, for the watchdog.
static RUNNING: Mutex<Option<(Instant, Vec<u8>)>> = Mutex::new(None);

fn keep(target: &str, data: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("zuse-fuzz-{target}-{}-{:x}", std::process::id(), data.len()));
    fs::write(&path, data).unwrap();
    path
}

/// Ends the test if an input hangs.
#[allow(clippy::disallowed_methods)]
pub(crate) fn watch(target: &'static str) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            if let Some((_, data)) = RUNNING.lock().unwrap().as_ref().filter(|(since, _)| since.elapsed() > HANGS) {
                eprintln!("{target}: hangs; the input is {}: {data:02x?}", keep(target, data).display());
                std::process::exit(1);
            }
        }
    });
}

/// The value of a line of `/proc/self/status`, in bytes.
fn memory(line: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|l| l.strip_prefix(line)?.trim_start_matches(':').trim().strip_suffix(" kB"));
    kib.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Runs an input; returns the problem found, if any.
pub(crate) fn run(target: &str, body: Body, data: &[u8], what: &str) -> Option<String> {
    // reset the peak
    let _ = fs::write("/proc/self/clear_refs", "5");
    let before = memory("VmRSS");
    let start = Instant::now();
    *RUNNING.lock().unwrap() = Some((start, data.to_vec()));
    let done = catch_unwind(AssertUnwindSafe(|| body(data)));
    RUNNING.lock().unwrap().take();
    let took = start.elapsed();
    let peak = memory("VmHWM").saturating_sub(before);
    let wrong = match () {
        () if done.is_err() => "panics".to_owned(),
        () if took > SLOW => format!("takes {} s", took.as_secs()),
        () if peak > MEMORY => format!("takes {} MiB", peak >> 20),
        () => return None,
    };
    Some(format!("{what} {wrong}; the input is {}: {data:02x?}", keep(target, data).display()))
}

/// The corpus of a target: file names and contents.
pub(crate) fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files.iter().map(|path| (path.display().to_string(), fs::read(path).unwrap())).collect()
}

/// A number from the environment, or `or`.
pub(crate) fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).map_or(or, |n| n.parse().unwrap())
}
