//! Seeded mutations: a simple fuzzer that runs everywhere and produces the same inputs each time.

/// A small generator of pseudo-random numbers (SplitMix64).
pub struct Rng(u64);

impl Rng {
    /// A generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() % bound as u64) as usize
    }
}

/// Edge values for lengths and counts.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    4,
    7,
    8,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// Changes `data` in one to four ways, some of them with pieces of `other`.
pub fn mutate(rng: &mut Rng, data: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=rng.below(4) {
        once(rng, data, other);
    }
}

fn once(rng: &mut Rng, data: &mut Vec<u8>, other: &[u8]) {
    if data.is_empty() {
        data.extend_from_slice(other);
        return;
    }
    let at = rng.below(data.len());
    // most fields are aligned to 4
    let at = if rng.below(3) == 0 { at } else { at & !3 };
    match rng.below(8) {
        0 => data[at] ^= 1 << rng.below(8),
        1 => data[at] = rng.next_u64() as u8,
        2 | 3 => {
            let edge = EDGES[rng.below(EDGES.len())];
            put(rng, data, at, edge);
        }
        4 => {
            let near = word(data, at).wrapping_add(rng.below(33) as u64).wrapping_sub(16);
            put(rng, data, at, near);
        }
        5 => data.truncate(at),
        6 => {
            let len = rng.below(64).min(data.len() - at) & !3;
            data.drain(at..at + len);
        }
        _ => {
            let from = rng.below(other.len().max(1)) & !3;
            let piece = &other[from.min(other.len())..];
            let piece = &piece[..piece.len().min(rng.below(256))];
            if rng.below(2) == 0 {
                data.splice(at..at, piece.iter().copied());
            } else {
                let len = piece.len().min(data.len() - at);
                data[at..at + len].copy_from_slice(&piece[..len]);
            }
        }
    }
    data.truncate(1 << 20);
}

fn word(data: &[u8], at: usize) -> u64 {
    data[at..].iter().take(4).fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Writes a number of 1 to 8 bytes in either byte order.
fn put(rng: &mut Rng, data: &mut [u8], at: usize, number: u64) {
    let width = 1 << rng.below(4);
    let bytes = if rng.below(2) == 0 { number.to_le_bytes() } else { (number << (64 - 8 * width)).to_be_bytes() };
    for (to, from) in data[at..].iter_mut().zip(&bytes[..width]) {
        *to = *from;
    }
}
