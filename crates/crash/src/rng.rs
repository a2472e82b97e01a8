//! Reproducible random choices.

use base::Env;

/// A generator of random choices, the same for the same seed.
#[derive(Debug)]
pub struct Rng(Env);

impl Rng {
    /// A generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        Rng(Env::seeded(seed))
    }

    /// 64 random bits.
    pub fn word(&self) -> u64 {
        self.0.random_u64()
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&self, end: u64) -> u64 {
        // the bias of the remainder does not matter to a test
        self.word().checked_rem(end).unwrap_or(0)
    }

    /// An index of a list of `len`; 0 if it is empty.
    pub fn index(&self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True with a probability of `percent` percent.
    pub fn percent(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `all`, which must not be empty.
    pub fn pick<'a, T>(&self, all: &'a [T]) -> &'a T {
        &all[self.index(all.len())]
    }

    /// Shuffles a list.
    pub fn shuffle<T>(&self, all: &mut [T]) {
        for n in (1..all.len()).rev() {
            all.swap(n, self.index(n + 1));
        }
    }

    /// Fills `buf` with noise.
    pub fn fill(&self, buf: &mut [u8]) {
        self.0.fill_random(buf);
    }
}
