//! The names of a list: the bytes of all of them in one arena.
//!
//! A name's place is counted in units of 8 bytes, so that 32 bits reach 32 GiB; its length is kept by who keeps its place.

/// The arena.
#[derive(Clone, Default)]
pub(crate) struct Names {
    bytes: Vec<u8>,
}

/// Bytes that a name of this length takes.
pub(crate) const fn name_size(len: usize) -> usize {
    len.next_multiple_of(8)
}

impl Names {
    /// An arena with room for this many bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Names {
        Names { bytes: Vec::with_capacity(bytes) }
    }

    /// Appends a name and gives its place.
    ///
    /// # Panics
    /// The arena would pass 32 GiB.
    #[inline]
    pub(crate) fn push(&mut self, name: &[u8]) -> u32 {
        let at = self.bytes.len();
        assert!(at / 8 < u32::MAX as usize && name.len() < u32::MAX as usize, "nvlist: names pass 32 GiB");
        self.bytes.extend_from_slice(name);
        self.bytes.resize(at + name_size(name.len()), 0);
        (at / 8) as u32
    }

    /// The bytes of a name.
    #[inline(always)]
    pub(crate) fn get(&self, place: u32, len: u32) -> &[u8] {
        let start = place as usize * 8;
        self.bytes.get(start..start + len as usize).unwrap_or_default()
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
