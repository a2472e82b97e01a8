use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
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
    Txg, "{}"
);
number!(
    /// The random 64-bit identity of a pool, vdev, dataset or snapshot.
    Guid, "{}"
);
number!(
    /// The number of an object in its object set; 48 bits are used. 0 is the meta-dnode.
    ObjectId, "{}"
);
