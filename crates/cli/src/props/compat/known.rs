//! The feature sets that come with OpenZFS, by name: what a release, or a boot loader, can read. A set is described by
//! its differences from another one.

use pool::feature::by_name;

/// A set.
struct Set {
    /// Its names.
    names: &'static [&'static str],
    /// The set that it derives from; empty for none.
    like: &'static str,
    /// The features added.
    more: &'static [&'static str],
    /// The features removed.
    less: &'static [&'static str],
}

const fn set(
    names: &'static [&'static str],
    like: &'static str,
    more: &'static [&'static str],
    less: &'static [&'static str],
) -> Set {
    Set { names, like, more, less }
}

/// All sets, each after the one that it derives from.
static SETS: &[Set] = &[
    set(&["zol-0.6.1"], "", &["async_destroy", "empty_bpobj", "lz4_compress"], &[]),
    set(
        &["zol-0.6.4"],
        "zol-0.6.1",
        &["bookmarks", "embedded_data", "enabled_txg", "extensible_dataset", "hole_birth", "spacemap_histogram"],
        &[],
    ),
    set(&["zol-0.6.5", "compat-2018", "2018"], "zol-0.6.4", &["filesystem_limits", "large_blocks"], &[]),
    set(&["freenas-9.10.2"], "zol-0.6.5", &["multi_vdev_crash_dump"], &[]),
    set(
        &["freebsd-11.0", "freebsd-11.1", "freenas-11.0", "freenas-11.1", "compat-2019", "2019", "compat-2020", "2020"],
        "freenas-9.10.2",
        &["sha512", "skein"],
        &[],
    ),
    set(&["openzfsonosx-1.7.0"], "freebsd-11.0", &["edonr"], &[]),
    set(
        &["freebsd-11.2", "freenas-11.2"],
        "freebsd-11.0",
        &["device_removal", "obsolete_counts", "zpool_checkpoint"],
        &[],
    ),
    set(
        &[
            "freebsd-11.3",
            "freebsd-11.4",
            "freebsd-12.0",
            "freebsd-12.1",
            "freebsd-12.2",
            "freebsd-12.3",
            "freebsd-12.4",
            "freenas-11.3",
            "compat-2021",
            "2021",
        ],
        "freebsd-11.2",
        &["spacemap_v2"],
        &[],
    ),
    set(&["zol-0.7", "ubuntu-18.04"], "openzfsonosx-1.7.0", &["large_dnode", "userobj_accounting"], &[]),
    set(&["openzfsonosx-1.8.1"], "freebsd-11.3", &["edonr"], &[]),
    set(
        &["zol-0.8", "ubuntu-20.04", "openzfsonosx-1.9.3", "openzfsonosx-1.9.4"],
        "openzfsonosx-1.8.1",
        &[
            "allocation_classes",
            "bookmark_v2",
            "encryption",
            "large_dnode",
            "project_quota",
            "resilver_defer",
            "userobj_accounting",
        ],
        &[],
    ),
    set(
        &["openzfs-2.0-linux"],
        "zol-0.8",
        &[
            "bookmark_written",
            "device_rebuild",
            "livelist",
            "log_spacemap",
            "redacted_datasets",
            "redaction_bookmarks",
            "zstd_compress",
        ],
        &[],
    ),
    set(&["openzfs-2.0-freebsd", "truenas-12.0"], "openzfs-2.0-linux", &[], &["edonr"]),
    set(&["openzfs-2.1-linux", "ubuntu-22.04"], "openzfs-2.0-linux", &["draid"], &[]),
    set(&["openzfs-2.1-freebsd", "freebsd-13.0", "freebsd-13.1", "freebsd-13.2"], "openzfs-2.1-linux", &[], &["edonr"]),
    set(
        &["openzfs-2.2", "openzfs-2.2-linux", "openzfs-2.2-freebsd"],
        "openzfs-2.1-linux",
        &["blake3", "block_cloning", "head_errlog", "vdev_zaps_v2", "zilsaxattr"],
        &[],
    ),
    set(
        &["openzfs-2.3", "openzfs-2.3-linux", "openzfs-2.3-freebsd"],
        "openzfs-2.2",
        &["fast_dedup", "large_microzap", "longname", "raidz_expansion", "redaction_list_spill"],
        &[],
    ),
    set(
        &["openzfs-2.4", "openzfs-2.4-linux", "openzfs-2.4-freebsd"],
        "openzfs-2.3",
        &["block_cloning_endian", "dynamic_gang_header", "physical_rewrite"],
        &[],
    ),
    set(
        &["grub2-2.06"],
        "zol-0.6.4",
        &[
            "allocation_classes",
            "block_cloning",
            "device_rebuild",
            "log_spacemap",
            "resilver_defer",
            "spacemap_v2",
            "zpool_checkpoint",
        ],
        &["bookmarks", "extensible_dataset"],
    ),
    set(
        &["grub2-2.12", "grub2"],
        "grub2-2.06",
        &[
            "bookmarks",
            "extensible_dataset",
            "filesystem_limits",
            "large_blocks",
            "livelist",
            "project_quota",
            "userobj_accounting",
            "zilsaxattr",
        ],
        &[],
    ),
];

/// The features of a set; `None` if there is no set of this name.
pub(super) fn features(name: &str) -> Option<Vec<&'static str>> {
    // each derives from an earlier one: this ends
    let at = SETS.iter().position(|set| set.names.contains(&name))?;
    let mut found = Vec::new();
    let (mut left_out, mut next) = (Vec::new(), SETS.get(at));
    while let Some(set) = next {
        left_out.extend_from_slice(set.less);
        found.extend(set.more.iter().filter(|name| !left_out.contains(name)));
        next = SETS.iter().find(|other| other.names.contains(&set.like));
    }
    Some(found.into_iter().filter_map(by_name).map(|feature| feature.name).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_those_of_openzfs() {
        let mut seen = Vec::new();
        for (n, set) in SETS.iter().enumerate() {
            let like = SETS.iter().position(|other| other.names.contains(&set.like));
            assert!(set.like.is_empty() || like.is_some_and(|like| like < n), "{:?}", set.names);
            for name in set.names {
                assert!(!seen.contains(name), "{name} twice");
                seen.push(name);
                let found = features(name).unwrap();
                let words = set.more.iter().chain(set.less);
                assert!(words.into_iter().all(|word| by_name(word).is_some()), "{name}");
                assert!(set.less.iter().all(|less| !found.contains(less)), "{name}");
            }
        }
        // the same counts as in OpenZFS's files
        for (name, count) in [
            ("zol-0.6.1", 3),
            ("2018", 11),
            ("2020", 14),
            ("2021", 18),
            ("zol-0.7", 17),
            ("ubuntu-20.04", 26),
            ("truenas-12.0", 32),
            ("openzfs-2.0-linux", 33),
            ("freebsd-13.2", 33),
            ("ubuntu-22.04", 34),
            ("openzfs-2.2", 39),
            ("openzfs-2.3-linux", 44),
            ("openzfs-2.4", 47),
            ("grub2-2.06", 14),
            ("grub2", 22),
        ] {
            assert_eq!(features(name).unwrap().len(), count, "{name}");
        }
        assert_eq!(features("openzfs-9.9"), None);
        assert_eq!(features(""), None);
    }
}
