use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// The bytes of a block, shared: the cache and any number of readers hold the same memory. Cloning increments a counter.
///
/// It may be a [part](Buf::part) of a larger one, all of which then stays in memory as long as it does.
#[derive(Clone)]
pub struct Buf {
    bytes: Arc<Vec<u8>>,
    /// The range of these bytes that this buffer covers.
    start: usize,
    end: usize,
}

impl Buf {
    /// `n` zeros.
    #[must_use]
    pub fn zeros(n: usize) -> Buf {
        Buf::from(vec![0; n])
    }

    /// A part of the buffer, which shares its memory; `None` if the range is not within it.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Option<Buf> {
        self.get(range.clone())?;
        let (start, end) = (self.start + range.start, self.start + range.end);
        Some(Buf { bytes: Arc::clone(&self.bytes), start, end })
    }

    /// The bytes, for changing in place; copied first if they are shared, or if this is a part of a larger buffer.
    #[must_use]
    pub fn make_mut(&mut self) -> &mut Vec<u8> {
        if !self.is_whole() {
            *self = Buf::from(self.to_vec());
        }
        // a change of length changes the end
        self.end = usize::MAX;
        Arc::make_mut(&mut self.bytes)
    }

    /// The bytes, for changing in place, if they are not shared.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        let range = self.range();
        Arc::get_mut(&mut self.bytes)?.get_mut(range)
    }

    /// Returns whether both are the same memory: one was cloned from the other, and neither has been changed since.
    #[must_use]
    pub fn is(&self, other: &Buf) -> bool {
        Arc::ptr_eq(&self.bytes, &other.bytes) && self.range() == other.range()
    }

    /// The bytes as a vector: without a copy if they are not shared and this is not a part of a larger buffer.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        if !self.is_whole() {
            return self.to_vec();
        }
        Arc::try_unwrap(self.bytes).unwrap_or_else(|shared| shared.to_vec())
    }

    fn is_whole(&self) -> bool {
        self.range() == (0..self.bytes.len())
    }

    fn range(&self) -> Range<usize> {
        self.start..self.end.min(self.bytes.len())
    }
}

impl From<Vec<u8>> for Buf {
    fn from(v: Vec<u8>) -> Buf {
        Buf { bytes: Arc::new(v), start: 0, end: usize::MAX }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(self.range()).unwrap_or(&[])
    }
}

impl PartialEq for Buf {
    fn eq(&self, other: &Buf) -> bool {
        **self == **other
    }
}

impl Eq for Buf {}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::Buf;

    #[test]
    fn a_part_is_as_a_buffer_of_its_own() {
        let mut whole = Buf::from((0..100).collect::<Vec<u8>>());
        let part = whole.part(10..20).unwrap();
        assert!(whole.part(90..101).is_none() && part.part(0..11).is_none());
        assert_eq!(part.part(2..4).unwrap()[..], [12, 13]);
        assert!(whole.get_mut().is_none() && !part.is(&whole) && part.is(&part.clone()));
        // a change leaves the others alone, and may change the length
        let mut changed = part.clone();
        changed.make_mut().push(7);
        assert_eq!((changed.len(), changed[0], changed[10], part.len()), (11, 10, 7, 10));
        assert_eq!(part.clone().into_vec(), (10..20).collect::<Vec<u8>>());
        whole.make_mut().truncate(5);
        assert_eq!((whole.len(), &part[..2]), (5, &[10, 11][..]));
        drop(part);
        whole.get_mut().unwrap().fill(3);
        assert_eq!(whole, Buf::from(vec![3; 5]));
    }
}
