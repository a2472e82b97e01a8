//! A bitmap of the claimed units of a device, which uses memory only where units are set.

/// Units that one chunk covers.
const CHUNK_UNITS: u64 = 64 * CHUNK_WORDS as u64;
const CHUNK_WORDS: usize = 512;

type Chunk = Box<[u64; CHUNK_WORDS]>;

/// A set of units `0..len`, in chunks of 4 KiB (32 Ki units).
#[derive(Debug, Default)]
pub(crate) struct Bitmap {
    len: u64,
    chunks: Vec<Option<Chunk>>,
}

impl Bitmap {
    /// An empty set of the units below `len`.
    pub(crate) fn new(len: u64) -> Self {
        Bitmap { len, chunks: Vec::new() }
    }

    /// Adds `count` units from `first`; gives how many of them were there before. `None` if they reach beyond the end.
    pub(crate) fn add(&mut self, first: u64, count: u64) -> Option<u64> {
        let end = first.checked_add(count).filter(|end| *end <= self.len)?;
        let mut before = 0;
        let mut at = first;
        while at < end {
            let word = self.word(at);
            let bit = at % 64;
            let n = (64 - bit).min(end - at);
            let mask = if n == 64 { u64::MAX } else { ((1 << n) - 1) << bit };
            before += u64::from((*word & mask).count_ones());
            *word |= mask;
            at += n;
        }
        Some(before)
    }

    fn word(&mut self, unit: u64) -> &mut u64 {
        let chunk = (unit / CHUNK_UNITS) as usize;
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let words = self.chunks[chunk].get_or_insert_with(|| Box::new([0; CHUNK_WORDS]));
        &mut words[(unit / 64) as usize % CHUNK_WORDS]
    }

    /// How many units are in this set and not in `other`, and the first stretches of them (at most `most`): start, count.
    pub(crate) fn minus(&self, other: &Bitmap, most: usize) -> (u64, Vec<(u64, u64)>) {
        let mut total = 0;
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (n, chunk) in self.chunks.iter().enumerate() {
            let Some(chunk) = chunk else { continue };
            let theirs = other.chunks.get(n).and_then(Option::as_ref);
            for (w, word) in chunk.iter().enumerate() {
                let mut rest = word & !theirs.map_or(0, |t| t[w]);
                total += u64::from(rest.count_ones());
                let base = n as u64 * CHUNK_UNITS + w as u64 * 64;
                while rest != 0 {
                    let start = u64::from(rest.trailing_zeros());
                    let count = u64::from((rest >> start).trailing_ones());
                    rest &= if start + count >= 64 { 0 } else { u64::MAX << (start + count) };
                    let room = runs.len() < most;
                    match runs.last_mut() {
                        Some(last) if last.0 + last.1 == base + start => last.1 += count,
                        _ if room => runs.push((base + start, count)),
                        _ => {}
                    }
                }
            }
        }
        (total, runs)
    }

    /// How many units are in the set.
    pub(crate) fn count(&self) -> u64 {
        self.chunks.iter().flatten().flat_map(|c| c.iter()).map(|w| u64::from(w.count_ones())).sum()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn agrees_with_a_set_of_numbers() {
        let (mut a, mut b) = (Bitmap::new(200_000), Bitmap::new(200_000));
        let (mut sa, mut sb) = (BTreeSet::new(), BTreeSet::new());
        let mut seed = 1u64;
        for n in 0..400 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (first, count) = ((seed >> 33) % 199_000, (seed >> 20) % 900 + 1);
            let (map, set) = if n % 2 == 0 { (&mut a, &mut sa) } else { (&mut b, &mut sb) };
            let before = (first..first + count).filter(|u| set.contains(u)).count() as u64;
            assert_eq!(map.add(first, count), Some(before));
            set.extend(first..first + count);
        }
        assert_eq!(a.count(), sa.len() as u64);
        let (total, runs) = a.minus(&b, usize::MAX);
        let expected: BTreeSet<u64> = sa.difference(&sb).copied().collect();
        assert_eq!(total, expected.len() as u64);
        assert_eq!(runs.iter().flat_map(|(s, n)| *s..s + n).collect::<BTreeSet<_>>(), expected);
        assert_eq!(a.add(199_999, 2), None);
        assert_eq!(a.add(u64::MAX, 2), None);
    }
}
