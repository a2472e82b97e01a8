//! Properties: the tables of native properties, their values, and how these are printed.
//!
//! [`DATASET`], [`POOL`] and [`VDEV`] are tables of the native properties. A value is a number or text ([`Value`]) with its source ([`Source`]).
//! `crate::dsl::props::stored` finds the value of a dataset's stored property, by inheritance where it is not set; `crate::dsl::props` computes the others.
//! [`check_value`] says which values are valid; [`format()`] turns a value into what the commands print.

mod check;
mod dataset_table;
mod def;
mod format;
mod pool_table;
pub(crate) mod stored;
mod vdev_table;

use std::fmt;

pub use check::{BLOCK_MAX, BLOCK_MIN, BadValue, check_kind, check_pool_value, check_value};
pub use dataset_table::DATASET;
pub use def::{Attr, BOOK, DS, FS, POOL as POOL_TYPE, PropDef, PropKind, SNAP, TypeMask, VDEV as VDEV_TYPE, VOL};
pub use format::{date, format, format_pool, format_vdev, nicebytes, nicenum, ratio};
pub use pool_table::POOL;
pub(crate) use vdev_table::THIRD;
pub use vdev_table::VDEV;

/// The value of a property.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A number; for an index property the number of its word.
    Number(u64),
    /// Text.
    String(String),
}

impl Value {
    /// The number, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        match self {
            Value::Number(n) => Some(*n),
            Value::String(_) => None,
        }
    }

    /// The text, if it is text.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Value::String(s) => Some(s),
            Value::Number(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(n) => n.fmt(f),
            Value::String(s) => s.fmt(f),
        }
    }
}

/// The source of a value (OpenZFS: `zprop_source_t`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// Computed: no source.
    None,
    /// Nothing is set.
    Default,
    /// Set here.
    Local,
    /// Set on this ancestor (or on the dataset, for a snapshot).
    Inherited(String),
    /// Came with a send stream.
    Received,
    /// Set for as long as the pool is open, or the file system mounted.
    Temporary,
}

impl Source {
    /// Its number in properties of pools and vdevs (OpenZFS: `zprop_source_t`).
    #[must_use]
    pub fn number(&self) -> u64 {
        match self {
            Source::None => 0x1,
            Source::Default => 0x2,
            Source::Temporary => 0x4,
            Source::Local => 0x8,
            Source::Inherited(_) => 0x10,
            Source::Received => 0x20,
        }
    }

    /// The source with this [number](Source::number); none for what has no number, and for inherited values, as pools and vdevs have no ancestors.
    #[must_use]
    pub fn of_number(number: u64) -> Source {
        let all = [Source::Default, Source::Temporary, Source::Local, Source::Received];
        all.into_iter().find(|source| source.number() == number).unwrap_or(Source::None)
    }
}

impl fmt::Display for Source {
    /// Prints the source as the column SOURCE of `zfs get` shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::None => f.write_str("-"),
            Source::Default => f.write_str("default"),
            Source::Local => f.write_str("local"),
            Source::Inherited(from) => write!(f, "inherited from {from}"),
            Source::Received => f.write_str("received"),
            Source::Temporary => f.write_str("temporary"),
        }
    }
}

/// A property: value, source, and the received value, whether or not it is in force.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PropValue {
    /// The value in force.
    pub value: Value,
    /// The source of the value in force.
    pub source: Source,
    /// The value that came with a send stream.
    pub received: Option<Value>,
}

impl PropValue {
    /// A computed number.
    #[must_use]
    pub fn computed(n: u64) -> Self {
        PropValue { value: Value::Number(n), source: Source::None, received: None }
    }

    /// A computed text.
    #[must_use]
    pub fn text(s: impl Into<String>) -> Self {
        PropValue { value: Value::String(s.into()), source: Source::None, received: None }
    }
}

/// The native dataset property of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static PropDef> {
    DATASET.iter().find(|p| p.name == name).or_else(|| by_column(name))
}

/// The native pool property of this name.
#[must_use]
pub fn find_pool(name: &str) -> Option<&'static PropDef> {
    POOL.iter().find(|p| p.name == name).or_else(|| POOL.iter().find(|p| p.column.to_ascii_lowercase() == name))
}

/// The native vdev property of this name.
#[must_use]
pub fn find_vdev(name: &str) -> Option<&'static PropDef> {
    VDEV.iter().find(|p| p.name == name).or_else(|| VDEV.iter().find(|p| p.column.to_ascii_lowercase() == name))
}

/// Finds a property by its column heading, which commands accept in small letters as its name.
fn by_column(name: &str) -> Option<&'static PropDef> {
    DATASET.iter().find(|p| p.column.to_ascii_lowercase() == name)
}

/// Returns whether `name` can be a user property: it has a colon, and only allowed characters.
#[must_use]
pub fn is_user_property(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._:".contains(&b);
    name.contains(':') && name.len() <= 256 && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_whole() {
        assert_eq!(DATASET.len(), 106);
        assert_eq!(POOL.len(), 40);
        assert_eq!(VDEV.len(), 60);
        for table in [DATASET, POOL, VDEV] {
            for (n, p) in table.iter().enumerate() {
                assert!(!p.name.is_empty() && table.iter().skip(n + 1).all(|q| q.name != p.name), "{}", p.name);
                if let PropKind::Index { default, .. } = p.kind {
                    // `version` has no word for its default, which means "unknown"
                    assert!(p.index_name(default).is_some() || p.name == "version", "{}", p.name);
                }
            }
        }
        assert_eq!(find("refer").map(|p| p.name), Some("referenced"));
        assert_eq!(find("compression").and_then(|p| p.index_value("zstd-fast-1000")), Some(16 | 123 << 7));
    }

    #[test]
    fn user_properties_have_a_colon() {
        assert!(is_user_property("com.example:a-b_c.d"));
        assert!(!is_user_property("example") && !is_user_property("A:b") && !is_user_property("a:+b"));
    }
}
