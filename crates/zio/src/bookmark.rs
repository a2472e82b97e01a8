use std::fmt;

use base::ObjectId;

/// The logical address of a block: which object set, object, level and block number (OpenZFS: `zbookmark_phys_t`).
///
/// Intent-log blocks have level −1 in OpenZFS; here that is [`Bookmark::ZIL_LEVEL`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Bookmark {
    /// Object number of the dataset; 0 is the meta object set.
    pub objset: ObjectId,
    /// Object in it; 0 is the meta-dnode.
    pub object: ObjectId,
    /// 0 is data, n points at blocks of level n−1.
    pub level: u8,
    /// Block number at this level; for an intent-log block its sequence number.
    pub blkid: u64,
}

impl Bookmark {
    /// The level of an object set's root block (OpenZFS: `ZB_ROOT_LEVEL`, −1).
    pub const ROOT_LEVEL: u8 = 0xff;
    /// The level of an intent-log block (OpenZFS: `ZB_ZIL_LEVEL`, −2).
    pub const ZIL_LEVEL: u8 = 0xfe;
    /// The block number of a spill block (OpenZFS: `DMU_SPILL_BLKID`).
    pub const SPILL_BLKID: u64 = u64::MAX - 1;

    /// The bookmark of an object's block.
    #[must_use]
    pub const fn new(objset: ObjectId, object: ObjectId, level: u8, blkid: u64) -> Self {
        Bookmark { objset, object, level, blkid }
    }

    /// The bookmark of an object set's root block.
    #[must_use]
    pub const fn root(objset: ObjectId) -> Self {
        Bookmark { objset, object: ObjectId::META_DNODE, level: Self::ROOT_LEVEL, blkid: 0 }
    }

    /// The level as it is shown: −1 for a root block, −2 for an intent log.
    #[must_use]
    pub fn shown_level(&self) -> i16 {
        if self.level >= Self::ZIL_LEVEL { i16::from(self.level) - 256 } else { i16::from(self.level) }
    }
}

impl fmt::Display for Bookmark {
    /// As zdb prints it: `<objset, object, level, blkid>`, numbers in decimal but the block number in hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}, {}, {}, {:x}>", self.objset, self.object, self.shown_level(), self.blkid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_zdb_does() {
        assert_eq!(Bookmark::new(ObjectId(54), ObjectId(3), 1, 17).to_string(), "<54, 3, 1, 11>");
        assert_eq!(Bookmark::root(ObjectId(54)).to_string(), "<54, 0, -1, 0>");
    }
}
