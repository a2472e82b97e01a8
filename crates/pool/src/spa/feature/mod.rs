//! The features that OpenZFS 2.4 knows, as a table (docs/format.md §19).
//!
//! What a pool uses is read in [`crate::spa::open`]; here stands only what each feature means. A pool is refused when a feature is
//! active that is not [`Feature::readonly_compatible`] and not in this table.

pub(crate) mod load;
pub(crate) mod write;

/// Can be ignored by whoever only reads.
const READONLY_COMPAT: u8 = 1;
/// Is needed to read the MOS: named in the labels too.
const MOS: u8 = 2;
/// Becomes active as soon as it is enabled.
const ACTIVATE_ON_ENABLE: u8 = 4;
/// Is counted and recorded per dataset.
const PER_DATASET: u8 = 8;
/// Is not enabled by `zpool upgrade`.
const NO_UPGRADE: u8 = 16;

/// One feature (OpenZFS: `zfeature_info_t`).
#[derive(Debug, PartialEq, Eq)]
pub struct Feature {
    /// As in `feature@NAME`.
    pub name: &'static str,
    /// As it stands on disk.
    pub guid: &'static str,
    flags: u8,
    /// Names of the features that must be enabled before it.
    pub depends: &'static [&'static str],
    /// Its purpose, in one sentence.
    pub description: &'static str,
}

impl Feature {
    /// Whether a pool with it can be read without knowing it.
    #[must_use]
    pub const fn readonly_compatible(&self) -> bool {
        self.flags & READONLY_COMPAT != 0
    }

    /// Whether it is needed to read the MOS.
    #[must_use]
    pub const fn is_mos(&self) -> bool {
        self.flags & MOS != 0
    }

    /// Whether it is active as soon as it is enabled.
    #[must_use]
    pub const fn activates_on_enable(&self) -> bool {
        self.flags & ACTIVATE_ON_ENABLE != 0
    }

    /// Whether datasets record their use of it.
    #[must_use]
    pub const fn is_per_dataset(&self) -> bool {
        self.flags & PER_DATASET != 0
    }

    /// Whether `zpool upgrade` leaves it out.
    #[must_use]
    pub const fn not_by_upgrade(&self) -> bool {
        self.flags & NO_UPGRADE != 0
    }
}

const fn feature(
    name: &'static str,
    guid: &'static str,
    flags: u8,
    depends: &'static [&'static str],
    description: &'static str,
) -> Feature {
    Feature { name, guid, flags, depends, description }
}

/// All features, in the order in which `zpool get` lists them.
pub static FEATURES: &[Feature] = &[
    feature(
        "async_destroy",
        "com.delphix:async_destroy",
        READONLY_COMPAT,
        &[],
        "Destroys file systems in the background.",
    ),
    feature(
        "empty_bpobj",
        "com.delphix:empty_bpobj",
        READONLY_COMPAT,
        &[],
        "Empty lists of block pointers share one object.",
    ),
    feature("lz4_compress", "org.illumos:lz4_compress", ACTIVATE_ON_ENABLE, &[], "LZ4 compression."),
    feature(
        "multi_vdev_crash_dump",
        "com.joyent:multi_vdev_crash_dump",
        0,
        &[],
        "Crash dumps to pools of several vdevs.",
    ),
    feature(
        "spacemap_histogram",
        "com.delphix:spacemap_histogram",
        READONLY_COMPAT,
        &[],
        "Space maps keep a histogram of free segments.",
    ),
    feature("enabled_txg", "com.delphix:enabled_txg", READONLY_COMPAT, &[], "Records when each feature was enabled."),
    feature(
        "hole_birth",
        "com.delphix:hole_birth",
        MOS | ACTIVATE_ON_ENABLE,
        &["enabled_txg"],
        "Holes remember when they were made, for smaller incremental streams.",
    ),
    feature(
        "extensible_dataset",
        "com.delphix:extensible_dataset",
        0,
        &[],
        "Datasets can carry further data; other features need it.",
    ),
    feature(
        "embedded_data",
        "com.delphix:embedded_data",
        MOS | ACTIVATE_ON_ENABLE,
        &[],
        "Tiny blocks live in the block pointer.",
    ),
    feature(
        "bookmarks",
        "com.delphix:bookmarks",
        READONLY_COMPAT,
        &["extensible_dataset"],
        "Bookmarks: sources of incremental streams that take no space.",
    ),
    feature(
        "filesystem_limits",
        "com.joyent:filesystem_limits",
        READONLY_COMPAT,
        &["extensible_dataset"],
        "Limits on the number of file systems and snapshots.",
    ),
    feature(
        "large_blocks",
        "org.open-zfs:large_blocks",
        PER_DATASET,
        &["extensible_dataset"],
        "Blocks larger than 128 KiB.",
    ),
    feature(
        "large_dnode",
        "org.zfsonlinux:large_dnode",
        PER_DATASET,
        &["extensible_dataset"],
        "Dnodes larger than 512 bytes.",
    ),
    feature("sha512", "org.illumos:sha512", PER_DATASET, &["extensible_dataset"], "Checksum SHA-512/256."),
    feature("skein", "org.illumos:skein", PER_DATASET, &["extensible_dataset"], "Checksum Skein."),
    feature("edonr", "org.illumos:edonr", PER_DATASET, &["extensible_dataset"], "Checksum Edon-R."),
    feature(
        "userobj_accounting",
        "org.zfsonlinux:userobj_accounting",
        READONLY_COMPAT | PER_DATASET,
        &["extensible_dataset"],
        "Counts objects by user and group.",
    ),
    feature(
        "encryption",
        "com.datto:encryption",
        PER_DATASET,
        &["extensible_dataset", "bookmark_v2"],
        "Encryption of datasets.",
    ),
    feature(
        "project_quota",
        "org.zfsonlinux:project_quota",
        READONLY_COMPAT | PER_DATASET,
        &["extensible_dataset"],
        "Space and objects by project.",
    ),
    feature("device_removal", "com.delphix:device_removal", MOS, &[], "Top-level vdevs can be removed."),
    feature(
        "obsolete_counts",
        "com.delphix:obsolete_counts",
        READONLY_COMPAT,
        &["extensible_dataset", "device_removal"],
        "Removed vdevs take less memory as their blocks go.",
    ),
    feature(
        "zpool_checkpoint",
        "com.delphix:zpool_checkpoint",
        READONLY_COMPAT,
        &[],
        "The whole pool can be wound back to a checkpoint.",
    ),
    feature(
        "spacemap_v2",
        "com.delphix:spacemap_v2",
        READONLY_COMPAT | ACTIVATE_ON_ENABLE,
        &[],
        "Space maps hold large segments in less space.",
    ),
    feature(
        "allocation_classes",
        "org.zfsonlinux:allocation_classes",
        READONLY_COMPAT,
        &[],
        "Vdevs for special classes of blocks.",
    ),
    feature(
        "resilver_defer",
        "com.datto:resilver_defer",
        READONLY_COMPAT,
        &[],
        "A new resilver can wait for the running one.",
    ),
    feature(
        "bookmark_v2",
        "com.datto:bookmark_v2",
        0,
        &["extensible_dataset", "bookmarks"],
        "Bookmarks with more fields.",
    ),
    feature(
        "redaction_bookmarks",
        "com.delphix:redaction_bookmarks",
        0,
        &["bookmark_v2", "extensible_dataset", "bookmarks"],
        "Bookmarks with redaction lists, for redacted sends.",
    ),
    feature(
        "redacted_datasets",
        "com.delphix:redacted_datasets",
        PER_DATASET,
        &["extensible_dataset"],
        "Datasets that were received redacted.",
    ),
    feature(
        "bookmark_written",
        "com.delphix:bookmark_written",
        0,
        &["bookmark_v2", "extensible_dataset", "bookmarks"],
        "Bookmarks know what was written since them.",
    ),
    feature(
        "log_spacemap",
        "com.delphix:log_spacemap",
        READONLY_COMPAT,
        &["spacemap_v2"],
        "One log of space changes a txg for the whole pool.",
    ),
    feature(
        "livelist",
        "com.delphix:livelist",
        READONLY_COMPAT,
        &["extensible_dataset"],
        "Clones are destroyed faster.",
    ),
    feature(
        "device_rebuild",
        "org.openzfs:device_rebuild",
        READONLY_COMPAT,
        &[],
        "Sequential rebuild of mirrors and dRAID.",
    ),
    feature(
        "zstd_compress",
        "org.freebsd:zstd_compress",
        PER_DATASET,
        &["extensible_dataset"],
        "Zstandard compression.",
    ),
    feature("draid", "org.openzfs:draid", MOS, &[], "RAID with distributed spares."),
    feature(
        "zilsaxattr",
        "org.openzfs:zilsaxattr",
        PER_DATASET | READONLY_COMPAT,
        &["extensible_dataset"],
        "Extended attributes in the intent log.",
    ),
    feature("head_errlog", "com.delphix:head_errlog", ACTIVATE_ON_ENABLE, &[], "Error logs by dataset."),
    feature("blake3", "org.openzfs:blake3", PER_DATASET, &["extensible_dataset"], "Checksum BLAKE3."),
    feature(
        "block_cloning",
        "com.fudosecurity:block_cloning",
        READONLY_COMPAT,
        &[],
        "Cloned blocks, counted in a block reference table.",
    ),
    feature("vdev_zaps_v2", "com.klarasystems:vdev_zaps_v2", MOS, &[], "A ZAP for the root vdev."),
    feature(
        "redaction_list_spill",
        "com.delphix:redaction_list_spill",
        0,
        &["redaction_bookmarks"],
        "Redaction lists with many snapshots.",
    ),
    feature("raidz_expansion", "org.openzfs:raidz_expansion", MOS, &[], "Disks can be added to a raidz."),
    feature("fast_dedup", "com.klarasystems:fast_dedup", READONLY_COMPAT, &[], "Dedup with a log and smaller entries."),
    feature(
        "longname",
        "org.zfsonlinux:longname",
        PER_DATASET,
        &["extensible_dataset"],
        "File names of up to 1023 bytes.",
    ),
    feature(
        "large_microzap",
        "com.klarasystems:large_microzap",
        PER_DATASET | READONLY_COMPAT,
        &["extensible_dataset", "large_blocks"],
        "Micro ZAPs larger than 128 KiB.",
    ),
    feature(
        "dynamic_gang_header",
        "com.klarasystems:dynamic_gang_header",
        MOS | NO_UPGRADE,
        &[],
        "Gang headers as large as the sectors of the devices.",
    ),
    feature(
        "block_cloning_endian",
        "com.truenas:block_cloning_endian",
        READONLY_COMPAT,
        &[],
        "The block reference table in one byte order on new pools.",
    ),
    feature(
        "physical_rewrite",
        "com.truenas:physical_rewrite",
        READONLY_COMPAT | PER_DATASET,
        &["extensible_dataset"],
        "Rewriting files keeps their logical birth.",
    ),
    feature("draid_failure_domains", "com.seagate:draid_failure_domains", MOS, &["draid"], "Failure domains in dRAID."),
];

/// The feature called `name`.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|f| f.name == name)
}

/// The feature with this guid.
#[must_use]
pub fn by_guid(guid: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|f| f.guid == guid)
}

/// How far a feature is used by a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The pool may not use it.
    Disabled,
    /// The pool may use it.
    Enabled,
    /// Something on disk needs it.
    Active,
}

impl State {
    /// As `zpool get feature@NAME` prints it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Disabled => "disabled",
            State::Enabled => "enabled",
            State::Active => "active",
        }
    }
}

/// A feature as a pool has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeatureState {
    /// Its definition; `None` if unknown here.
    pub def: Option<&'static Feature>,
    /// Its guid.
    pub guid: String,
    /// Disabled, enabled or active.
    pub state: State,
    /// How many things need it.
    pub refcount: u64,
    /// When it was enabled, if recorded.
    pub enabled_txg: Option<u64>,
    /// Whether it stands in `features_for_read`.
    pub for_read: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        assert_eq!(FEATURES.len(), 48);
        for f in FEATURES {
            assert!(f.depends.iter().all(|d| by_name(d).is_some()), "{}", f.name);
            assert_eq!(by_guid(f.guid), Some(f));
            assert!(f.guid.ends_with(f.name), "{}", f.guid);
        }
    }
}
