//! Whole pools with hostile contents. The corpus and seeded changes: `ZUSE_IMAGES` says how many (150 unless told; ten thousand take
//! some ten minutes), `ZUSE_IMAGES_FROM` where to begin, to come back to one.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fuzzing::image::fuzz_image;
use fuzzing::mutate::Rng;

/// What an input may take, on a machine that has other work.
const SLOW: Duration = Duration::from_secs(20);
/// After this it hangs.
const HANGS: Duration = Duration::from_secs(120);
/// Memory that an input may take at its peak, beyond what stays: a pool of this size needs some 150 MB, mostly batches of verification.
const MEMORY: u64 = 512 << 20;

/// The input that is running, for the watchdog.
static RUNNING: Mutex<Option<(Instant, Vec<u8>)>> = Mutex::new(None);

fn keep(data: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("zuse-fuzz-image-{}-{:x}", std::process::id(), data.len()));
    fs::write(&path, data).unwrap();
    path
}

fn watch() {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            if let Some((_, data)) = RUNNING.lock().unwrap().as_ref().filter(|(since, _)| since.elapsed() > HANGS) {
                eprintln!("image: hangs; the input is {}", keep(data).display());
                std::process::exit(1);
            }
        }
    });
}

/// A line of `/proc/self/status`, in bytes.
fn memory(line: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|l| l.strip_prefix(line)?.trim_start_matches(':').trim().strip_suffix(" kB"));
    kib.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Runs an input; what is wrong with it, if anything.
fn run(data: &[u8], what: &str) -> Option<String> {
    // the peak counts from here
    let _ = fs::write("/proc/self/clear_refs", "5");
    let before = memory("VmRSS");
    let start = Instant::now();
    *RUNNING.lock().unwrap() = Some((start, data.to_vec()));
    let done = catch_unwind(AssertUnwindSafe(|| fuzz_image(data)));
    RUNNING.lock().unwrap().take();
    let took = start.elapsed();
    let peak = memory("VmHWM").saturating_sub(before);
    let wrong = match () {
        () if done.is_err() => "panics".to_owned(),
        () if took > SLOW => format!("takes {} s", took.as_secs()),
        () if peak > MEMORY => format!("takes {} MiB", peak >> 20),
        () => return None,
    };
    Some(format!("{what} {wrong}; the input is {}: {data:02x?}", keep(data).display()))
}

fn input(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed.wrapping_mul(0x1_0001));
    let changes = 1 + rng.below(12);
    let mut data = vec![rng.next_u64() as u8];
    for _ in 0..changes {
        data.extend(rng.next_u64().to_le_bytes());
    }
    data
}

#[test]
fn hostile_pools_do_no_harm() {
    watch();
    let number = |name: &str, or: u64| std::env::var(name).map_or(or, |n| n.parse().unwrap());
    let (count, from) = (number("ZUSE_IMAGES", 150), number("ZUSE_IMAGES_FROM", 0));
    let mut wrong = Vec::new();
    // the pools themselves, unchanged; making them takes memory of its own
    (0..5).for_each(|which| fuzz_image(&[which]));
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/image");
    let mut seeds: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    seeds.sort();
    for path in seeds {
        wrong.extend(run(&fs::read(&path).unwrap(), &path.display().to_string()));
    }
    let start = Instant::now();
    for seed in from..from + count {
        wrong.extend(run(&input(seed), &format!("seed {seed}")));
        if seed % 1000 == 999 {
            eprintln!("{} images, {} s, {} wrong", seed + 1 - from, start.elapsed().as_secs(), wrong.len());
        }
    }
    assert!(wrong.is_empty(), "{} inputs do harm:\n{}", wrong.len(), wrong.join("\n"));
}
