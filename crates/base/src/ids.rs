use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }

        impl From<u64> for $name {
            fn from(v: u64) -> Self {
                $name(v)
            }
        }
    };
}

number!(
    /// The number of a transaction group, the unit in which a pool changes. 0 means "none".
    Txg
);
number!(
    /// The random 64-bit identity of a pool, vdev, dataset or snapshot.
    Guid
);
number!(
    /// The number of an object in its object set; 48 bits are used. A dataset is named by the number of its object in the MOS.
    ObjectId
);

impl ObjectId {
    /// The meta-dnode, whose data are the dnodes of all other objects (OpenZFS: `DMU_META_DNODE_OBJECT`).
    pub const META_DNODE: ObjectId = ObjectId(0);
    /// The directory of the pool's objects, in the MOS (OpenZFS: `DMU_POOL_DIRECTORY_OBJECT`).
    pub const POOL_DIRECTORY: ObjectId = ObjectId(1);
    /// The directory of a file system's objects (OpenZFS: `MASTER_NODE_OBJ`).
    pub const MASTER_NODE: ObjectId = ObjectId(1);
    /// The data of a volume (OpenZFS: `ZVOL_OBJ`).
    pub const ZVOL_DATA: ObjectId = ObjectId(1);
    /// The properties of a volume (OpenZFS: `ZVOL_ZAP_OBJ`).
    pub const ZVOL_PROPERTIES: ObjectId = ObjectId(2);
    /// The object set of the pool itself, as the keys of blocks name it: no dataset has this number (OpenZFS: `DMU_META_OBJSET`).
    pub const MOS: ObjectId = ObjectId(0);
    /// One past the greatest number of an object (OpenZFS: `DN_MAX_OBJECT`).
    pub const END: ObjectId = ObjectId(1 << 48);
    /// No object: a field that would name one holds 0, as nothing refers to the meta-dnode by its number.
    pub const NONE: ObjectId = ObjectId(0);

    /// The object that a directory entry with the value `word` names (OpenZFS: `ZFS_DIRENT_OBJ`).
    #[must_use]
    pub const fn of_entry(word: u64) -> ObjectId {
        ObjectId(word & (ObjectId::END.0 - 1))
    }

    /// True for [`ObjectId::NONE`].
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// True if this names an object.
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }

    /// The number `count` slots further on, or the last number of all.
    #[must_use]
    pub const fn saturating_add(self, count: u64) -> ObjectId {
        ObjectId(self.0.saturating_add(count))
    }

    /// The number `count` slots further on, if there is one.
    #[must_use]
    pub const fn checked_add(self, count: u64) -> Option<ObjectId> {
        match self.0.checked_add(count) {
            Some(number) => Some(ObjectId(number)),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ObjectId, Txg};

    #[test]
    fn a_number_is_shown_as_widths_and_flags_ask() {
        assert_eq!(format!("{:>4}|{:<3}|{:#x}", ObjectId(7), Txg(5), ObjectId(255)), "   7|5  |0xff");
    }

    #[test]
    fn an_entry_names_an_object_of_48_bits() {
        assert_eq!(ObjectId::of_entry(0x4000_0000_0000_1234), ObjectId(0x1234));
        assert_eq!(ObjectId(u64::MAX).checked_add(1), None);
        assert_eq!(ObjectId(u64::MAX).saturating_add(1), ObjectId(u64::MAX));
    }
}
