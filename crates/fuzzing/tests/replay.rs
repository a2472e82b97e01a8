//! Every corpus, and mutations of it: `ZUSE_MUTATIONS` sets their number for each target (100,000 by default; a million take a minute or
//! two). `ZUSE_FUZZ_TARGETS=nvlist,zap` selects targets.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use fuzzing::mutate::{Rng, mutate};
use fuzzing::{Body, TARGETS};

fn targets() -> impl Iterator<Item = &'static (&'static str, Body)> {
    let only = std::env::var("ZUSE_FUZZ_TARGETS").ok();
    TARGETS.iter().filter(move |(name, _)| only.as_ref().is_none_or(|only| only.split(',').any(|o| o == *name)))
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file()).collect();
    files.sort();
    files.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Runs a body; if it panics or takes too long, saves the input to a file.
fn run(target: &str, body: Body, data: &[u8], what: &str) {
    let start = Instant::now();
    let done = catch_unwind(AssertUnwindSafe(|| body(data)));
    let slow = start.elapsed() > Duration::from_secs(10);
    if done.is_err() || slow {
        let path = std::env::temp_dir().join(format!("zuse-fuzz-{target}-{}", std::process::id()));
        fs::write(&path, data).unwrap();
        panic!("{target}: {what} {}; the input is {}", if slow { "takes too long" } else { "panics" }, path.display());
    }
}

#[test]
fn corpora_replay() {
    for (target, body) in targets() {
        let corpus = corpus(target);
        assert!(!corpus.is_empty(), "{target} has no corpus");
        for (at, data) in corpus.iter().enumerate() {
            run(target, *body, data, &format!("seed {at}"));
        }
    }
}

#[test]
fn mutations_do_no_harm() {
    let count = std::env::var("ZUSE_MUTATIONS").map_or(100_000, |n| n.parse().unwrap());
    let left = Mutex::new(targets());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let Some((target, body)) = left.lock().unwrap().next() else { break };
                    run_mutations(target, *body, count);
                }
            });
        }
    });
}

/// Runs `count` mutations of a target's corpus.
fn run_mutations(target: &str, body: Body, count: u64) {
    let corpus = corpus(target);
    let mut rng = Rng::new(0x005E_ED0F_0021);
    for step in 0..count {
        let mut data = corpus[rng.below(corpus.len())].clone();
        let other = &corpus[rng.below(corpus.len())];
        mutate(&mut rng, &mut data, other);
        run(target, body, &data, &format!("mutation {step}"));
    }
}
