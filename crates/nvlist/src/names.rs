//! Names: short ones are stored beside their values, long ones in an arena of their list.
//!
//! A lookup that finds a slot has the name in the same or the next cache line; that covers all property names and most snapshot names. The
//! offset of a long name is counted in units of 8 bytes, so that 32 bits reach 32 GiB.

/// The longest name stored in its slot; with it, a slot has 96 bytes.
const INLINE: usize = 52;

/// The name field of a slot.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    len: u32,
    /// The bytes, or their offset in the arena.
    bytes: [u8; INLINE],
}

impl Name {
    /// The bytes.
    #[inline(always)]
    pub(crate) fn get<'a>(&'a self, names: &'a Names) -> &'a [u8] {
        match self.bytes.get(..self.len as usize) {
            Some(name) => name,
            None => names.get(self),
        }
    }

    /// Bytes.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// True if a name is short enough for its slot.
    #[inline(always)]
    pub(crate) fn is_short(name: &[u8]) -> bool {
        name.len() <= INLINE
    }

    /// True if this equals `name`; for short names only.
    #[inline(always)]
    pub(crate) fn is(&self, name: &[u8]) -> bool {
        match self.bytes.get(..self.len as usize) {
            Some(held) => held == name,
            None => false,
        }
    }

    /// Bytes taken from the arena.
    pub(crate) fn long_size(&self) -> usize {
        if self.len as usize > INLINE { long_size(self.len as usize) } else { 0 }
    }
}

/// Bytes that a name takes from the arena.
pub(crate) const fn long_size(len: usize) -> usize {
    if len > INLINE { len.next_multiple_of(8) } else { 0 }
}

/// The arena.
#[derive(Clone, Default)]
pub(crate) struct Names {
    bytes: Vec<u8>,
}

impl Names {
    /// A name for a slot.
    ///
    /// # Panics
    /// The arena would exceed 32 GiB.
    #[inline]
    pub(crate) fn add(&mut self, name: &[u8]) -> Name {
        let mut bytes = [0; INLINE];
        match bytes.get_mut(..name.len()) {
            Some(place) => place.copy_from_slice(name),
            None => bytes[..4].copy_from_slice(&self.add_long(name).to_le_bytes()),
        }
        Name { len: name.len() as u32, bytes }
    }

    fn add_long(&mut self, name: &[u8]) -> u32 {
        let at = self.bytes.len();
        assert!(at / 8 < u32::MAX as usize && name.len() < u32::MAX as usize, "nvlist: names pass 32 GiB");
        self.bytes.extend_from_slice(name);
        self.bytes.resize(at + long_size(name.len()), 0);
        (at / 8) as u32
    }

    #[cold]
    fn get(&self, name: &Name) -> &[u8] {
        let [a, b, c, d, ..] = name.bytes;
        let start = u32::from_le_bytes([a, b, c, d]) as usize * 8;
        self.bytes.get(start..start + name.len as usize).unwrap_or_default()
    }

    /// Bytes in use.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes allocated.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}
