//! Helpers that the benchmarks share: the peer (OpenZFS's engine in user space, `peer/`), medians, a table.

#![forbid(unsafe_code)]

pub mod mounted;
pub mod pool;
pub mod streams;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The allocator of the `zuse` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The peer's driver, `zpeer`: `$ZPEER`, or what `peer/build-peer target/peer` made.
#[must_use]
pub fn zpeer() -> Option<PathBuf> {
    let built = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/peer/zpeer");
    let path = std::env::var_os("ZPEER").map_or_else(built, PathBuf::from);
    path.exists().then_some(path)
}

/// One line `RESULT<TAB>NAME<TAB>key=value…` of the peer; its name is under `name`, words without a `=` are left out.
pub type PeerResult = HashMap<String, String>;

/// Runs the peer and gives the lines of its result; empty, with a word on stderr, if it fails.
#[must_use]
pub fn run_peer(zpeer: &PathBuf, args: &[&str]) -> Vec<PeerResult> {
    let out = match Command::new(zpeer).args(args).output() {
        Ok(out) if out.status.success() => out.stdout,
        Ok(out) => {
            eprintln!("{}: {}\n{}", zpeer.display(), out.status, String::from_utf8_lossy(&out.stderr));
            return Vec::new();
        }
        Err(error) => {
            eprintln!("{}: {error}", zpeer.display());
            return Vec::new();
        }
    };
    let text = String::from_utf8_lossy(&out);
    let results = text.lines().filter_map(|line| line.strip_prefix("RESULT\t"));
    let fields = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next().map(|name| ("name".to_owned(), name.to_owned()));
        let pairs =
            words.filter_map(|word| word.split_once('=')).map(|(key, value)| (key.to_owned(), value.to_owned()));
        name.into_iter().chain(pairs).collect()
    };
    results.map(fields).collect()
}

/// The value of `name=…` on the command line.
#[must_use]
pub fn text(name: &str, or: &str) -> String {
    let given = |arg: String| Some(arg.strip_prefix(name)?.strip_prefix('=')?.to_owned());
    std::env::args().find_map(given).unwrap_or_else(|| or.to_owned())
}

/// As [`text`], a number.
#[must_use]
pub fn number(name: &str, or: u64) -> u64 {
    text(name, "").parse().unwrap_or(or)
}

/// Sets the tunables that the command line names, as the peer does: `tun=NAME=VALUE`.
///
/// # Panics
/// When there is no such tunable: another thing would be measured.
pub fn set_tunables() {
    for arg in std::env::args() {
        let Some((name, value)) = arg.strip_prefix("tun=").and_then(|pair| pair.split_once('=')) else { continue };
        if let Err(why) = base::tunable::set(name, value) {
            panic!("{arg}: {why}");
        }
    }
}

/// Seconds of CPU time that this thread has used. Other work on the machine does not count (though it shares the caches).
#[must_use]
pub fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds of CPU time that all threads of this process have used. With `machine=1` on the command line they are those of the whole machine, with
/// everything on its disk: what goes through the page cache is written there later, by threads of the kernel. That means something on an idle
/// machine only.
#[must_use]
pub fn spent_cpu_seconds() -> f64 {
    if number("machine", 0) != 0 {
        rustix::fs::sync();
        return machine_cpu_seconds();
    }
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds in which the processors of this machine worked, for whichever process or for the kernel (`/proc/stat`, in hundredths).
#[must_use]
pub fn machine_cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<f64> = stat.split_whitespace().skip(1).take(7).filter_map(|ticks| ticks.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq
    match ticks[..] {
        [user, nice, system, _, _, irq, softirq] => (user + nice + system + irq + softirq) / 100.0,
        _ => f64::NAN,
    }
}

/// The peer's mixing function (`zpeer.c`), that both fill blocks alike.
#[must_use]
pub fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The release build of the `zuse` binary: `$ZUSE`, or `target/release/zuse`.
#[must_use]
pub fn zuse() -> Option<PathBuf> {
    let built = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/release/zuse");
    let path = std::env::var_os("ZUSE").map_or_else(built, PathBuf::from);
    path.exists().then_some(path)
}

/// The seconds that a program took.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    /// From start to end.
    pub wall: f64,
    /// User and system time of all its threads, in steps of 10 ms.
    pub cpu: f64,
}

/// Runs a program to its end, its output thrown away; `None` if it fails.
#[must_use]
pub fn timed(program: &Path, args: &[&str]) -> Option<Time> {
    let (cpu, start) = (cpu_of_children()?, Instant::now());
    let status = Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).status().ok()?;
    let wall = start.elapsed().as_secs_f64();
    status.success().then_some(Time { wall, cpu: cpu_of_children()? - cpu })
}

/// Seconds of CPU time of the children that have ended (`cutime` and `cstime`, in hundredths).
fn cpu_of_children() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // the second field, in parentheses, may hold anything; the sixteenth is the fourteenth behind it
    let ticks = stat.rsplit_once(')')?.1.split_whitespace().skip(13).take(2);
    Some(ticks.filter_map(|t| t.parse::<f64>().ok()).sum::<f64>() / 100.0)
}

/// The median of some measurements; not a number if there are none.
#[must_use]
pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    match samples.as_slice() {
        [] => f64::NAN,
        s if s.len() % 2 == 1 => s[s.len() / 2],
        s => (s[s.len() / 2 - 1] + s[s.len() / 2]) / 2.0,
    }
}
