//! The numbers that a user may set, under OpenZFS's names, in one table.
//!
//! A tunable is an atomic: reading one is a load. `zuse -o NAME=VALUE` and the environment variable `ZUSE_TUNABLES`
//! (`NAME=VALUE,NAME=VALUE`) set them before work begins.

use std::sync::atomic::{AtomicU64, Ordering};

/// One tunable: its OpenZFS name, its meaning, its value.
#[derive(Debug)]
pub struct Tunable {
    /// OpenZFS's name of it, or ours where it has none.
    pub name: &'static str,
    /// What it limits or switches, with the unit.
    pub help: &'static str,
    value: AtomicU64,
}

impl Tunable {
    const fn new(name: &'static str, help: &'static str, value: u64) -> Self {
        Tunable { name, help, value: AtomicU64::new(value) }
    }

    /// The value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Sets the value for the rest of the process.
    pub fn set(&self, v: u64) {
        self.value.store(v, Ordering::Relaxed);
    }
}

macro_rules! tunables {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $default:expr, $help:literal;)*) => {
        $($(#[$doc])* #[doc = $help] pub static $id: Tunable = Tunable::new($name, $help, $default);)*

        /// All tunables, sorted as declared.
        pub static ALL: &[&Tunable] = &[$(&$id),*];
    };
}

tunables! {
    ZFS_ARC_MAX = "zfs_arc_max", 1 << 30, "upper limit of the ARC, in bytes";
    ZFS_RECONSTRUCT_INDIRECT_COMBINATIONS_MAX = "zfs_reconstruct_indirect_combinations_max", 4096,
        "how many combinations of segment copies to try for a split block of a removed device";
    ZFS_MAX_RECORDSIZE = "zfs_max_recordsize", 16 << 20, "largest block that is read, in bytes";
    ZFS_MAX_NVLIST_BYTES = "zuse_max_nvlist_bytes", 256 << 20, "largest packed nvlist that is decoded, in bytes";
}

/// Sets the tunable called `name`.
///
/// # Errors
/// Says what is wrong: no such tunable, or a value that is no number.
pub fn set(name: &str, value: &str) -> Result<(), String> {
    let tunable = ALL.iter().find(|t| t.name == name).ok_or_else(|| format!("no tunable '{name}'"))?;
    let parsed = value.strip_prefix("0x").map_or_else(|| value.parse(), |hex| u64::from_str_radix(hex, 16));
    tunable.set(parsed.map_err(|_| format!("tunable '{name}': '{value}' is not a number"))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_tunable_is_set_by_name_and_a_bad_one_is_refused() {
        super::set("zfs_max_recordsize", "0x1000000").expect("known name");
        assert!(super::set("zfs_no_such", "1").is_err());
        assert!(super::set("zfs_arc_max", "many").is_err());
    }
}
