//! The hash of a key: a reflected CRC-64 that begins with the ZAP's salt. It decides where an entry is stored.

const POLY: u64 = 0xC96C_5795_D787_0F42;

const TABLE: [u64; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut word = n as u64;
        let mut bit = 0;
        while bit < 8 {
            word = (word >> 1) ^ (POLY & (word & 1).wrapping_neg());
            bit += 1;
        }
        table[n] = word;
        n += 1;
    }
    table
};

fn step(hash: u64, byte: u8) -> u64 {
    (hash >> 8) ^ TABLE[usize::from(hash as u8 ^ byte)]
}

/// The upper `bits` of a hash; the others are cleared.
pub(crate) fn keep(hash: u64, bits: u32) -> u64 {
    hash & !(u64::MAX >> bits)
}

/// The hash of a (normalised) name.
pub(crate) fn of_name(salt: u64, name: &[u8], bits: u32) -> u64 {
    keep(name.iter().fold(salt, |hash, byte| step(hash, *byte)), bits)
}

/// The hash of a key of words, each taken low byte first.
pub(crate) fn of_key(salt: u64, key: &[u64], bits: u32) -> u64 {
    keep(key.iter().flat_map(|word| word.to_le_bytes()).fold(salt, step), bits)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_is_that_of_the_polynomial() {
        assert_eq!(super::TABLE[128], super::POLY);
        assert_eq!(super::of_name(1, b"", 28), 0);
        assert_eq!(super::of_key(7, &[0x0102], 48), super::of_name(7, &[2, 1, 0, 0, 0, 0, 0, 0], 48));
    }
}
