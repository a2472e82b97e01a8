//! The native properties of pools, in the order in which `zpool get all` lists them (OpenZFS 2.4: `zpool_prop_t`). Features follow them.

use super::def::{Attr::*, POOL as P, PropDef, hidden, index, number, string, visible};

static BOOLEAN_VALUES: &[(&str, u64)] = &[("off", 0), ("on", 1)];
static FAILUREMODE_VALUES: &[(&str, u64)] = &[("wait", 0), ("continue", 1), ("panic", 2)];

/// Every native property of a pool.
#[rustfmt::skip]
pub static POOL: &[PropDef] = &[
    hidden("name", string(None), ReadOnly, P, "", "NAME"),
    visible("size", number(0), ReadOnly, P, "<size>", "SIZE"),
    visible("capacity", number(0), ReadOnly, P, "<percent>", "CAP"),
    visible("altroot", string(None), Default, P, "<path>", "ALTROOT"),
    visible("health", number(0), ReadOnly, P, "<state>", "HEALTH"),
    visible("guid", number(0), ReadOnly, P, "<guid>", "GUID"),
    visible("version", number(5000), Default, P, "<version>", "VERSION"),
    visible("bootfs", string(None), Default, P, "<filesystem>", "BOOTFS"),
    visible("delegation", index(1, BOOLEAN_VALUES), Default, P, "on | off", "DELEGATION"),
    visible("autoreplace", index(0, BOOLEAN_VALUES), Default, P, "on | off", "REPLACE"),
    visible("cachefile", string(None), Default, P, "<file> | none", "CACHEFILE"),
    visible("failmode", index(0, FAILUREMODE_VALUES), Default, P, "wait | continue | panic", "FAILMODE"),
    visible("listsnapshots", index(0, BOOLEAN_VALUES), Default, P, "on | off", "LISTSNAPS"),
    visible("autoexpand", index(0, BOOLEAN_VALUES), Default, P, "on | off", "EXPAND"),
    hidden("dedupditto", number(0), Default, P, "", "DEDUPDITTO"),
    visible("dedupratio", number(0), ReadOnly, P, "<1.00x or higher if deduped>", "DEDUP"),
    visible("free", number(0), ReadOnly, P, "<size>", "FREE"),
    visible("allocated", number(0), ReadOnly, P, "<size>", "ALLOC"),
    visible("readonly", index(0, BOOLEAN_VALUES), Default, P, "on | off", "RDONLY"),
    visible("ashift", number(0), Default, P, "<ashift, 9-16, or 0=default>", "ASHIFT"),
    visible("comment", string(None), Default, P, "<comment-string>", "COMMENT"),
    visible("expandsize", number(0), ReadOnly, P, "<size>", "EXPANDSZ"),
    visible("freeing", number(0), ReadOnly, P, "<size>", "FREEING"),
    visible("fragmentation", number(0), ReadOnly, P, "<percent>", "FRAG"),
    visible("leaked", number(0), ReadOnly, P, "<size>", "LEAKED"),
    hidden("maxblocksize", number(0), ReadOnly, P, "", "MAXBLOCKSIZE"),
    hidden("tname", string(None), OneTime, P, "", "TNAME"),
    hidden("maxdnodesize", number(0), ReadOnly, P, "", "MAXDNODESIZE"),
    visible("multihost", index(0, BOOLEAN_VALUES), Default, P, "on | off", "MULTIHOST"),
    visible("checkpoint", number(0), ReadOnly, P, "<size>", "CKPOINT"),
    visible("load_guid", number(0), ReadOnly, P, "<load_guid>", "LOAD_GUID"),
    visible("autotrim", index(0, BOOLEAN_VALUES), Default, P, "on | off", "AUTOTRIM"),
    visible("compatibility", string(Some("off")), Default, P, "<file[,file...]> | off | legacy", "COMPATIBILITY"),
    visible("bcloneused", number(0), ReadOnly, P, "<size>", "BCLONE_USED"),
    visible("bclonesaved", number(0), ReadOnly, P, "<size>", "BCLONE_SAVED"),
    visible("bcloneratio", number(0), ReadOnly, P, "<1.00x or higher if cloned>", "BCLONE_RATIO"),
    visible("dedup_table_size", number(0), ReadOnly, P, "<size>", "DDTSIZE"),
    visible("dedup_table_quota", number(u64::MAX), Default, P, "<size>", "DDTQUOTA"),
    hidden("dedupcached", number(0), ReadOnly, P, "", "DEDUPCACHED"),
    visible("last_scrubbed_txg", number(0), ReadOnly, P, "<txg>", "LAST_SCRUBBED_TXG"),
];
