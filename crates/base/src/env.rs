//! The environment: clock and randomness. Everything non-deterministic comes from here.
//!
//! A seeded environment has a clock that advances by a fixed tick and random numbers that repeat, and [`tasks`](crate::tasks) run inline
//! under it: the same operations then give the same bytes on disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Clock and randomness. Cheap to clone; clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Env {
    seeded: Option<Arc<Seeded>>,
}

#[derive(Debug)]
struct Seeded {
    state: AtomicU64,
    clock_ns: AtomicU64,
}

/// Start of a seeded clock: a round number of seconds.
const SEEDED_EPOCH_S: u64 = 1_700_000_000;
/// The advance of a seeded clock at each reading.
const SEEDED_TICK: Duration = Duration::from_micros(1);
/// The step of the generator (the golden ratio in 64 bits), from Steele, Lea, Flood: "Fast splittable pseudorandom number generators".
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Env {
    /// The machine's clock and randomness.
    #[must_use]
    pub fn system() -> Env {
        Env::default()
    }

    /// An environment that repeats: the same seed gives the same times and random numbers.
    #[must_use]
    pub fn seeded(seed: u64) -> Env {
        let clock_ns = AtomicU64::new(SEEDED_EPOCH_S * 1_000_000_000);
        Env { seeded: Some(Arc::new(Seeded { state: AtomicU64::new(seed), clock_ns })) }
    }

    /// True if this environment is seeded.
    #[must_use]
    pub fn is_seeded(&self) -> bool {
        self.seeded.is_some()
    }

    /// Time since 1970.
    #[must_use]
    pub fn now(&self) -> Duration {
        match &self.seeded {
            Some(s) => {
                let tick = SEEDED_TICK.as_nanos() as u64;
                Duration::from_nanos(s.clock_ns.fetch_add(tick, Ordering::Relaxed))
            }
            None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        }
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn now_s(&self) -> u64 {
        self.now().as_secs()
    }

    /// An instant of the monotonic clock, for measuring durations: always the machine's.
    #[must_use]
    pub fn instant(&self) -> Instant {
        Instant::now()
    }

    /// 64 random bits.
    #[must_use]
    pub fn random_u64(&self) -> u64 {
        match &self.seeded {
            Some(s) => mix(s.state.fetch_add(GOLDEN, Ordering::Relaxed).wrapping_add(GOLDEN)),
            None => {
                let mut word = [0; 8];
                fill_from_system(&mut word);
                u64::from_ne_bytes(word)
            }
        }
    }

    /// Fills `buf` with random bytes; those of the system's generator are suitable for keys.
    pub fn fill_random(&self, buf: &mut [u8]) {
        if self.seeded.is_none() {
            return fill_from_system(buf);
        }
        for chunk in buf.chunks_mut(8) {
            let word = self.random_u64().to_le_bytes();
            chunk.copy_from_slice(word.get(..chunk.len()).unwrap_or_default());
        }
    }

    /// Returns bytes that do not compress, the same for the same seed: contents for tests.
    #[must_use]
    pub fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Env::seeded(seed).fill_random(&mut bytes);
        bytes
    }
}

/// Panics if the system has no randomness: nothing could be written safely without it.
#[allow(clippy::expect_used)]
fn fill_from_system(buf: &mut [u8]) {
    getrandom::fill(buf).expect("the system's random number generator failed");
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seeded_environment_repeats_itself() {
        let (a, b, c) = (Env::seeded(7), Env::seeded(7), Env::seeded(8));
        let take = |env: &Env| (env.random_u64(), env.now(), env.random_u64());
        assert_eq!(take(&a), take(&b));
        assert_ne!(take(&a).0, take(&c).0);
        let mut bytes = [0; 11];
        a.fill_random(&mut bytes);
        assert_ne!(bytes, [0; 11]);
        assert!(Env::system().now_s() > SEEDED_EPOCH_S);
    }
}
