use base::ObjectId;

/// A place in the block trees of a pool, as records of progress store it (OpenZFS: `zbookmark_phys_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// The object set.
    pub objset: ObjectId,
    /// The object in it.
    pub object: ObjectId,
    /// The level of the block.
    pub level: u64,
    /// The number of the block at this level.
    pub blkid: u64,
}

impl Position {
    /// Where a walk of an object set begins.
    #[must_use]
    pub const fn start_of(objset: ObjectId) -> Self {
        Position { objset, object: ObjectId::META_DNODE, level: 0, blkid: 0 }
    }

    /// Builds it from its words.
    #[must_use]
    pub const fn from_words([objset, object, level, blkid]: [u64; 4]) -> Self {
        Position { objset: ObjectId(objset), object: ObjectId(object), level, blkid }
    }

    /// Its words.
    #[must_use]
    pub const fn to_words(&self) -> [u64; 4] {
        [self.objset.0, self.object.0, self.level, self.blkid]
    }
}
