/// The byte order in which a structure was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Endian {
    /// Least significant byte first (x86, arm64).
    Little,
    /// Most significant byte first (SPARC, s390x).
    Big,
}

impl Endian {
    /// The order of this machine.
    pub const NATIVE: Endian = if cfg!(target_endian = "little") { Endian::Little } else { Endian::Big };

    /// True if this is the order of this machine.
    #[must_use]
    pub const fn is_native(self) -> bool {
        matches!((self, Endian::NATIVE), (Endian::Little, Endian::Little) | (Endian::Big, Endian::Big))
    }

    /// The other order.
    #[must_use]
    pub const fn swapped(self) -> Endian {
        match self {
            Endian::Little => Endian::Big,
            Endian::Big => Endian::Little,
        }
    }

    /// Decodes a `u16` of this order.
    #[must_use]
    pub const fn u16(self, b: [u8; 2]) -> u16 {
        match self {
            Endian::Little => u16::from_le_bytes(b),
            Endian::Big => u16::from_be_bytes(b),
        }
    }

    /// Decodes a `u32` of this order.
    #[must_use]
    pub const fn u32(self, b: [u8; 4]) -> u32 {
        match self {
            Endian::Little => u32::from_le_bytes(b),
            Endian::Big => u32::from_be_bytes(b),
        }
    }

    /// Decodes a `u64` of this order.
    #[must_use]
    pub const fn u64(self, b: [u8; 8]) -> u64 {
        match self {
            Endian::Little => u64::from_le_bytes(b),
            Endian::Big => u64::from_be_bytes(b),
        }
    }

    /// Encodes a `u16` in this order.
    #[must_use]
    pub const fn put_u16(self, v: u16) -> [u8; 2] {
        match self {
            Endian::Little => v.to_le_bytes(),
            Endian::Big => v.to_be_bytes(),
        }
    }

    /// Encodes a `u32` in this order.
    #[must_use]
    pub const fn put_u32(self, v: u32) -> [u8; 4] {
        match self {
            Endian::Little => v.to_le_bytes(),
            Endian::Big => v.to_be_bytes(),
        }
    }

    /// Encodes a `u64` in this order.
    #[must_use]
    pub const fn put_u64(self, v: u64) -> [u8; 8] {
        match self {
            Endian::Little => v.to_le_bytes(),
            Endian::Big => v.to_be_bytes(),
        }
    }
}
