//! The definition of a native property (OpenZFS: `zprop_desc_t`).

/// The kinds of objects that have a property: an or of the constants below.
pub type TypeMask = u8;
/// File systems.
pub const FS: TypeMask = 1;
/// Snapshots.
pub const SNAP: TypeMask = 2;
/// Volumes.
pub const VOL: TypeMask = 4;
/// Pools.
pub const POOL: TypeMask = 8;
/// Bookmarks.
pub const BOOK: TypeMask = 16;
/// Vdevs.
pub const VDEV: TypeMask = 32;
/// File systems, volumes and snapshots.
pub const DS: TypeMask = FS | VOL | SNAP;

/// The way a property gets its value (OpenZFS: `zprop_attr_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attr {
    /// Inherited from the parent unless set.
    Inherit,
    /// Has its default unless set here.
    Default,
    /// Computed.
    ReadOnly,
    /// Set when the dataset is created.
    OneTime,
    /// Set when the dataset is created, or with its key; else has its default.
    OneTimeDefault,
}

/// The type of a property's value, with its default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PropKind {
    /// A number.
    Number {
        /// Its default.
        default: u64,
    },
    /// One of some words; the first of several with one number is the one that is printed.
    Index {
        /// The number of its default.
        default: u64,
        /// The words and their numbers.
        values: &'static [(&'static str, u64)],
    },
    /// Text.
    String {
        /// Its default, if it has one.
        default: Option<&'static str>,
    },
}

/// One native property.
#[derive(Debug, PartialEq, Eq)]
pub struct PropDef {
    /// Its name.
    pub name: &'static str,
    /// Type and default.
    pub kind: PropKind,
    /// The way it gets its value.
    pub attr: Attr,
    /// The kinds of objects that have it.
    pub valid: TypeMask,
    /// Its values, as usage texts show them.
    pub values: &'static str,
    /// The heading of its column.
    pub column: &'static str,
    /// Shown by `get all`.
    pub visible: bool,
}

impl PropDef {
    /// Returns whether children inherit it.
    #[must_use]
    pub fn is_inheritable(&self) -> bool {
        matches!(self.attr, Attr::Inherit)
    }

    /// Returns whether users cannot change it after creation.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        matches!(self.attr, Attr::ReadOnly | Attr::OneTime | Attr::OneTimeDefault)
    }

    /// Returns whether it is set at creation, so that it has a default.
    #[must_use]
    pub fn is_set_once(&self) -> bool {
        matches!(self.attr, Attr::OneTime | Attr::OneTimeDefault)
    }

    /// Returns whether objects of kind `mask` have it.
    #[must_use]
    pub fn is_valid_for(&self, mask: TypeMask) -> bool {
        self.valid & mask != 0
    }

    /// Returns whether its column is right-aligned, as those of numbers are.
    #[must_use]
    pub fn right_aligned(&self) -> bool {
        // the two dates are numbers that print as text
        matches!(self.kind, PropKind::Number { .. })
            && self.name != "creation"
            && !self.name.starts_with("snapshots_changed")
    }

    /// The default as a number; 0 for text.
    #[must_use]
    pub fn default_number(&self) -> u64 {
        match self.kind {
            PropKind::Number { default } | PropKind::Index { default, .. } => default,
            PropKind::String { .. } => 0,
        }
    }

    /// The word for number `n`, of an index property.
    #[must_use]
    pub fn index_name(&self, n: u64) -> Option<&'static str> {
        match self.kind {
            PropKind::Index { values, .. } => values.iter().find(|(_, v)| *v == n).map(|(name, _)| *name),
            _ => None,
        }
    }

    /// The number of word `word`, of an index property.
    #[must_use]
    pub fn index_value(&self, word: &str) -> Option<u64> {
        match self.kind {
            PropKind::Index { values, .. } => values.iter().find(|(name, _)| *name == word).map(|(_, v)| *v),
            _ => None,
        }
    }
}

pub(super) const fn number(default: u64) -> PropKind {
    PropKind::Number { default }
}

pub(super) const fn index(default: u64, values: &'static [(&'static str, u64)]) -> PropKind {
    PropKind::Index { default, values }
}

pub(super) const fn string(default: Option<&'static str>) -> PropKind {
    PropKind::String { default }
}

pub(super) const fn visible(
    name: &'static str,
    kind: PropKind,
    attr: Attr,
    valid: TypeMask,
    values: &'static str,
    column: &'static str,
) -> PropDef {
    PropDef { name, kind, attr, valid, values, column, visible: true }
}

pub(super) const fn hidden(
    name: &'static str,
    kind: PropKind,
    attr: Attr,
    valid: TypeMask,
    values: &'static str,
    column: &'static str,
) -> PropDef {
    PropDef { name, kind, attr, valid, values, column, visible: false }
}
