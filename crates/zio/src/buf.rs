use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The bytes of a block, shared: the cache and any number of readers hold the same memory. Cloning is a counter.
#[derive(Clone, PartialEq, Eq)]
pub struct Buf(Arc<Vec<u8>>);

impl Buf {
    /// `n` zeros.
    #[must_use]
    pub fn zeros(n: usize) -> Buf {
        Buf::from(vec![0; n])
    }

    /// The bytes, to be changed in place; a copy is made first if somebody else holds them.
    #[must_use]
    pub fn make_mut(&mut self) -> &mut Vec<u8> {
        Arc::make_mut(&mut self.0)
    }

    /// Whether both are the same memory: one was cloned from the other, and neither has been changed since.
    #[must_use]
    pub fn is(&self, other: &Buf) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The bytes as a vector of the caller's own: without a copy if nobody else holds them.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        Arc::try_unwrap(self.0).unwrap_or_else(|shared| shared.to_vec())
    }
}

impl From<Vec<u8>> for Buf {
    fn from(v: Vec<u8>) -> Buf {
        Buf(Arc::new(v))
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

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
