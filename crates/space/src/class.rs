//! Classes of space: the kinds of blocks that are kept apart.

/// The kind of blocks that a metaslab holds (OpenZFS: `metaslab_class_t`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Everything else.
    Normal,
    /// Intent logs, on a device of their own.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
    /// Intent logs, in a metaslab of a normal vdev.
    EmbeddedLog,
    /// Intent logs, in a metaslab of a special vdev.
    SpecialEmbeddedLog,
}

impl Class {
    /// All classes.
    pub const ALL: [Class; 6] =
        [Class::Normal, Class::Log, Class::Special, Class::Dedup, Class::EmbeddedLog, Class::SpecialEmbeddedLog];

    /// Returns the classes that are tried when this one has no space.
    #[must_use]
    pub const fn fallbacks(self) -> &'static [Class] {
        match self {
            Class::Normal => &[],
            Class::Special => &[Class::Normal],
            Class::Dedup => &[Class::Special, Class::Normal],
            Class::Log => &[Class::SpecialEmbeddedLog, Class::Special, Class::EmbeddedLog, Class::Normal],
            Class::SpecialEmbeddedLog => &[Class::Special, Class::EmbeddedLog, Class::Normal],
            Class::EmbeddedLog => &[Class::Normal],
        }
    }

    /// Returns whether it holds intent logs.
    pub(crate) const fn is_log(self) -> bool {
        matches!(self, Class::Log | Class::EmbeddedLog | Class::SpecialEmbeddedLog)
    }
}
