//! The native properties of datasets, in the order in which `zfs get all` lists them (OpenZFS 2.4: `zfs_prop_t`).

use super::def::{Attr::*, BOOK, DS, FS, PropDef, SNAP, VOL, hidden, index, number, string, visible};

static BOOLEAN_VALUES: &[(&str, u64)] = &[("off", 0), ("on", 1)];
#[rustfmt::skip]
static CHECKSUM_VALUES: &[(&str, u64)] = &[("on", 1), ("off", 2), ("fletcher2", 6), ("fletcher4", 7), ("sha256", 8), ("noparity", 10), ("sha512", 11), ("skein", 12), ("edonr", 13), ("blake3", 14)];
#[rustfmt::skip]
static COMPRESS_VALUES: &[(&str, u64)] = &[("on", 1), ("off", 2), ("lzjb", 3), ("gzip", 10), ("gzip-1", 5), ("gzip-2", 6), ("gzip-3", 7), ("gzip-4", 8), ("gzip-5", 9), ("gzip-6", 10), ("gzip-7", 11), ("gzip-8", 12), ("gzip-9", 13), ("zle", 14), ("lz4", 15), ("zstd", 16), ("zstd-fast", 13200), ("zstd-1", 144), ("zstd-2", 272), ("zstd-3", 400), ("zstd-4", 528), ("zstd-5", 656), ("zstd-6", 784), ("zstd-7", 912), ("zstd-8", 1040), ("zstd-9", 1168), ("zstd-10", 1296), ("zstd-11", 1424), ("zstd-12", 1552), ("zstd-13", 1680), ("zstd-14", 1808), ("zstd-15", 1936), ("zstd-16", 2064), ("zstd-17", 2192), ("zstd-18", 2320), ("zstd-19", 2448), ("zstd-fast-1", 13200), ("zstd-fast-2", 13328), ("zstd-fast-3", 13456), ("zstd-fast-4", 13584), ("zstd-fast-5", 13712), ("zstd-fast-6", 13840), ("zstd-fast-7", 13968), ("zstd-fast-8", 14096), ("zstd-fast-9", 14224), ("zstd-fast-10", 14352), ("zstd-fast-20", 14480), ("zstd-fast-30", 14608), ("zstd-fast-40", 14736), ("zstd-fast-50", 14864), ("zstd-fast-60", 14992), ("zstd-fast-70", 15120), ("zstd-fast-80", 15248), ("zstd-fast-90", 15376), ("zstd-fast-100", 15504), ("zstd-fast-500", 15632), ("zstd-fast-1000", 15760)];
static SNAPDIR_VALUES: &[(&str, u64)] = &[("hidden", 0), ("visible", 1), ("disabled", 2)];
static ACL_MODE_VALUES: &[(&str, u64)] = &[("discard", 0), ("groupmask", 2), ("passthrough", 3), ("restricted", 4)];
#[rustfmt::skip]
static ACL_INHERIT_VALUES: &[(&str, u64)] = &[("discard", 0), ("noallow", 1), ("restricted", 4), ("passthrough", 3), ("secure", 4), ("passthrough-x", 5)];
static CANMOUNT_VALUES: &[(&str, u64)] = &[("off", 0), ("on", 1), ("noauto", 2)];
static XATTR_VALUES: &[(&str, u64)] = &[("off", 0), ("sa", 2), ("on", 2), ("dir", 1)];
static COPIES_VALUES: &[(&str, u64)] = &[("1", 1), ("2", 2), ("3", 3)];
static VERSION_VALUES: &[(&str, u64)] = &[("1", 1), ("2", 2), ("3", 3), ("4", 4), ("5", 5), ("current", 5)];
#[rustfmt::skip]
static NORMALIZE_VALUES: &[(&str, u64)] = &[("none", 0), ("formD", 16), ("formKC", 96), ("formC", 80), ("formKD", 32)];
static CASE_VALUES: &[(&str, u64)] = &[("sensitive", 0), ("insensitive", 1), ("mixed", 2)];
static CACHE_VALUES: &[(&str, u64)] = &[("none", 0), ("metadata", 1), ("all", 2)];
static LOGBIAS_VALUES: &[(&str, u64)] = &[("latency", 0), ("throughput", 1)];
#[rustfmt::skip]
static DEDUP_VALUES: &[(&str, u64)] = &[("on", 1), ("off", 2), ("verify", 257), ("sha256", 8), ("sha256,verify", 264), ("sha512", 11), ("sha512,verify", 267), ("skein", 12), ("skein,verify", 268), ("edonr,verify", 269), ("blake3", 14), ("blake3,verify", 270)];
static SYNC_VALUES: &[(&str, u64)] = &[("standard", 0), ("always", 1), ("disabled", 2)];
#[rustfmt::skip]
static DNSIZE_VALUES: &[(&str, u64)] = &[("legacy", 0), ("auto", 1), ("1k", 1024), ("2k", 2048), ("4k", 4096), ("8k", 8192), ("16k", 16384)];
static VOLMODE_VALUES: &[(&str, u64)] = &[("default", 0), ("full", 1), ("geom", 1), ("dev", 2), ("none", 3)];
static SNAPDEV_VALUES: &[(&str, u64)] = &[("hidden", 0), ("visible", 1)];
#[rustfmt::skip]
static ACLTYPE_VALUES: &[(&str, u64)] = &[("off", 0), ("posix", 1), ("nfsv4", 2), ("disabled", 0), ("noacl", 0), ("posixacl", 1)];
static REDUNDANT_METADATA_VALUES: &[(&str, u64)] = &[("all", 0), ("most", 1), ("some", 2), ("none", 3)];
#[rustfmt::skip]
static CRYPTO_VALUES: &[(&str, u64)] = &[("on", 1), ("off", 2), ("aes-128-ccm", 3), ("aes-192-ccm", 4), ("aes-256-ccm", 5), ("aes-128-gcm", 6), ("aes-192-gcm", 7), ("aes-256-gcm", 8)];
static KEYFORMAT_VALUES: &[(&str, u64)] = &[("none", 0), ("raw", 1), ("hex", 2), ("passphrase", 3)];
static KEYSTATUS_VALUES: &[(&str, u64)] = &[("none", 0), ("unavailable", 1), ("available", 2)];
static PREFETCH_VALUES: &[(&str, u64)] = &[("none", 0), ("metadata", 1), ("all", 2)];
static DIRECT_VALUES: &[(&str, u64)] = &[("disabled", 0), ("standard", 1), ("always", 2)];

/// Every native property of a dataset.
#[rustfmt::skip]
pub static DATASET: &[PropDef] = &[
    visible("type", string(None), ReadOnly, DS | BOOK, "filesystem | volume | snapshot | bookmark", "TYPE"),
    visible("creation", number(0), ReadOnly, DS | BOOK, "<date>", "CREATION"),
    visible("used", number(0), ReadOnly, DS, "<size>", "USED"),
    visible("available", number(0), ReadOnly, FS | VOL, "<size>", "AVAIL"),
    visible("referenced", number(0), ReadOnly, DS | BOOK, "<size>", "REFER"),
    visible("compressratio", number(0), ReadOnly, DS | BOOK, "<1.00x or higher if compressed>", "RATIO"),
    visible("mounted", index(0, BOOLEAN_VALUES), ReadOnly, FS, "yes | no", "MOUNTED"),
    visible("origin", string(None), ReadOnly, FS | VOL, "<snapshot>", "ORIGIN"),
    visible("quota", number(0), Default, FS, "<size> | none", "QUOTA"),
    visible("reservation", number(0), Default, FS | VOL, "<size> | none", "RESERV"),
    visible("volsize", number(0), Default, SNAP | VOL, "<size>", "VOLSIZE"),
    visible("volblocksize", number(16384), OneTime, VOL, "512 to 16M, power of 2", "VOLBLOCK"),
    visible("recordsize", number(131072), Inherit, FS, "512 to 16M, power of 2", "RECSIZE"),
    visible("mountpoint", string(Some("/")), Inherit, FS, "<path> | legacy | none", "MOUNTPOINT"),
    visible("sharenfs", string(Some("off")), Inherit, FS, "on | off | NFS share options", "SHARENFS"),
    visible("checksum", index(1, CHECKSUM_VALUES), Inherit, FS | VOL, "on | off | fletcher2 | fletcher4 | sha256 | sha512 | skein | edonr | blake3", "CHECKSUM"),
    visible("compression", index(1, COMPRESS_VALUES), Inherit, FS | VOL, "on | off | lzjb | gzip | gzip-[1-9] | zle | lz4 | zstd | zstd-[1-19] | zstd-fast | zstd-fast-[1-10,20,30,40,50,60,70,80,90,100,500,1000]", "COMPRESS"),
    visible("atime", index(1, BOOLEAN_VALUES), Inherit, FS, "on | off", "ATIME"),
    visible("devices", index(1, BOOLEAN_VALUES), Inherit, FS | SNAP, "on | off", "DEVICES"),
    visible("exec", index(1, BOOLEAN_VALUES), Inherit, FS | SNAP, "on | off", "EXEC"),
    visible("setuid", index(1, BOOLEAN_VALUES), Inherit, FS | SNAP, "on | off", "SETUID"),
    visible("readonly", index(0, BOOLEAN_VALUES), Inherit, FS | VOL, "on | off", "RDONLY"),
    visible("zoned", index(0, BOOLEAN_VALUES), Inherit, FS, "on | off", "ZONED"),
    visible("snapdir", index(0, SNAPDIR_VALUES), Inherit, FS, "disabled | hidden | visible", "SNAPDIR"),
    visible("aclmode", index(0, ACL_MODE_VALUES), Inherit, FS, "discard | groupmask | passthrough | restricted", "ACLMODE"),
    visible("aclinherit", index(4, ACL_INHERIT_VALUES), Inherit, FS, "discard | noallow | restricted | passthrough | passthrough-x", "ACLINHERIT"),
    visible("createtxg", number(0), ReadOnly, DS | BOOK, "<uint64>", "CREATETXG"),
    hidden("name", string(None), ReadOnly, DS | BOOK, "", "NAME"),
    visible("canmount", index(1, CANMOUNT_VALUES), Default, FS, "on | off | noauto", "CANMOUNT"),
    hidden("iscsioptions", string(None), Inherit, VOL, "", "ISCSIOPTIONS"),
    visible("xattr", index(2, XATTR_VALUES), Inherit, FS | SNAP, "on | off | dir | sa", "XATTR"),
    hidden("numclones", number(0), ReadOnly, SNAP, "", "NUMCLONES"),
    visible("copies", index(1, COPIES_VALUES), Inherit, FS | VOL, "1 | 2 | 3", "COPIES"),
    visible("version", index(0, VERSION_VALUES), Default, FS | SNAP, "1 | 2 | 3 | 4 | 5 | current", "VERSION"),
    visible("utf8only", index(0, BOOLEAN_VALUES), OneTime, FS | SNAP, "on | off", "UTF8ONLY"),
    visible("normalization", index(0, NORMALIZE_VALUES), OneTime, FS | SNAP, "none | formC | formD | formKC | formKD", "NORMALIZATION"),
    visible("casesensitivity", index(0, CASE_VALUES), OneTime, FS | SNAP, "sensitive | insensitive | mixed", "CASE"),
    visible("vscan", index(0, BOOLEAN_VALUES), Inherit, FS, "on | off", "VSCAN"),
    visible("nbmand", index(0, BOOLEAN_VALUES), Inherit, FS | SNAP, "on | off", "NBMAND"),
    visible("sharesmb", string(Some("off")), Inherit, FS, "on | off | SMB share options", "SHARESMB"),
    visible("refquota", number(0), Default, FS, "<size> | none", "REFQUOTA"),
    visible("refreservation", number(0), Default, FS | VOL, "<size> | none", "REFRESERV"),
    visible("guid", number(0), ReadOnly, DS | BOOK, "<uint64>", "GUID"),
    visible("primarycache", index(2, CACHE_VALUES), Inherit, FS | SNAP | VOL, "all | none | metadata", "PRIMARYCACHE"),
    visible("secondarycache", index(2, CACHE_VALUES), Inherit, FS | SNAP | VOL, "all | none | metadata", "SECONDARYCACHE"),
    visible("usedbysnapshots", number(0), ReadOnly, FS | VOL, "<size>", "USEDSNAP"),
    visible("usedbydataset", number(0), ReadOnly, FS | VOL, "<size>", "USEDDS"),
    visible("usedbychildren", number(0), ReadOnly, FS | VOL, "<size>", "USEDCHILD"),
    visible("usedbyrefreservation", number(0), ReadOnly, FS | VOL, "<size>", "USEDREFRESERV"),
    hidden("useraccounting", number(0), ReadOnly, DS, "", "USERACCOUNTING"),
    hidden("stmf_sbd_lu", string(None), Inherit, VOL, "", "STMF_SBD_LU"),
    visible("defer_destroy", index(0, BOOLEAN_VALUES), ReadOnly, SNAP, "yes | no", "DEFER_DESTROY"),
    visible("userrefs", number(0), ReadOnly, SNAP, "<count>", "USERREFS"),
    visible("logbias", index(0, LOGBIAS_VALUES), Inherit, FS | VOL, "latency | throughput", "LOGBIAS"),
    hidden("unique", number(0), ReadOnly, DS, "", "UNIQUE"),
    visible("objsetid", number(0), ReadOnly, DS, "<uint64>", "OBJSETID"),
    visible("dedup", index(2, DEDUP_VALUES), Inherit, FS | VOL, "on | off | verify | sha256[,verify] | sha512[,verify] | skein[,verify] | edonr,verify | blake3[,verify]", "DEDUP"),
    visible("mlslabel", string(Some("none")), Inherit, DS, "<sensitivity label>", "MLSLABEL"),
    visible("sync", index(0, SYNC_VALUES), Inherit, FS | VOL, "standard | always | disabled", "SYNC"),
    visible("dnodesize", index(0, DNSIZE_VALUES), Inherit, FS, "legacy | auto | 1k | 2k | 4k | 8k | 16k", "DNSIZE"),
    visible("refcompressratio", number(0), ReadOnly, DS, "<1.00x or higher if compressed>", "REFRATIO"),
    visible("written", number(0), ReadOnly, DS, "<size>", "WRITTEN"),
    visible("clones", string(None), ReadOnly, SNAP, "<dataset>[,...]", "CLONES"),
    visible("logicalused", number(0), ReadOnly, FS | VOL, "<size>", "LUSED"),
    visible("logicalreferenced", number(0), ReadOnly, DS | BOOK, "<size>", "LREFER"),
    hidden("inconsistent", number(0), ReadOnly, DS, "", "INCONSISTENT"),
    visible("volmode", index(0, VOLMODE_VALUES), Inherit, FS | VOL, "default | full | geom | dev | none", "VOLMODE"),
    visible("filesystem_limit", number(u64::MAX), Default, FS, "<count> | none", "FSLIMIT"),
    visible("snapshot_limit", number(u64::MAX), Default, FS | VOL, "<count> | none", "SSLIMIT"),
    visible("filesystem_count", number(u64::MAX), ReadOnly, FS, "<count>", "FSCOUNT"),
    visible("snapshot_count", number(u64::MAX), ReadOnly, FS | VOL, "<count>", "SSCOUNT"),
    visible("snapdev", index(0, SNAPDEV_VALUES), Inherit, FS | VOL, "hidden | visible", "SNAPDEV"),
    visible("acltype", index(0, ACLTYPE_VALUES), Inherit, FS | SNAP, "off | nfsv4 | posix", "ACLTYPE"),
    visible("context", string(Some("none")), Default, DS, "<selinux context>", "CONTEXT"),
    visible("fscontext", string(Some("none")), Default, DS, "<selinux fscontext>", "FSCONTEXT"),
    visible("defcontext", string(Some("none")), Default, DS, "<selinux defcontext>", "DEFCONTEXT"),
    visible("rootcontext", string(Some("none")), Default, DS, "<selinux rootcontext>", "ROOTCONTEXT"),
    visible("relatime", index(1, BOOLEAN_VALUES), Inherit, FS, "on | off", "RELATIME"),
    visible("redundant_metadata", index(0, REDUNDANT_METADATA_VALUES), Inherit, FS | VOL, "all | most | some | none", "REDUND_MD"),
    visible("overlay", index(1, BOOLEAN_VALUES), Inherit, FS, "on | off", "OVERLAY"),
    hidden("prevsnap", string(None), ReadOnly, FS | VOL, "", "PREVSNAP"),
    visible("receive_resume_token", string(None), ReadOnly, FS | VOL, "<string token>", "RESUMETOK"),
    visible("encryption", index(2, CRYPTO_VALUES), OneTime, DS, "on | off | aes-128-ccm | aes-192-ccm | aes-256-ccm | aes-128-gcm | aes-192-gcm | aes-256-gcm", "ENCRYPTION"),
    visible("keylocation", string(Some("none")), Default, FS | VOL, "prompt | <file URI> | <https URL> | <http URL>", "KEYLOCATION"),
    visible("keyformat", index(0, KEYFORMAT_VALUES), OneTimeDefault, FS | VOL, "none | raw | hex | passphrase", "KEYFORMAT"),
    hidden("pbkdf2salt", number(0), OneTimeDefault, FS | VOL, "", "PBKDF2SALT"),
    visible("pbkdf2iters", number(0), OneTimeDefault, FS | VOL, "<iters>", "PBKDF2ITERS"),
    visible("encryptionroot", string(None), ReadOnly, DS, "<filesystem | volume>", "ENCROOT"),
    hidden("keyguid", number(0), ReadOnly, DS, "", "KEYGUID"),
    visible("keystatus", index(0, KEYSTATUS_VALUES), ReadOnly, DS, "none | unavailable | available", "KEYSTATUS"),
    hidden("remaptxg", number(0), ReadOnly, DS, "", "REMAPTXG"),
    visible("special_small_blocks", number(0), Inherit, FS | VOL, "0 to 16M", "SPECIAL_SMALL_BLOCKS"),
    hidden("ivsetguid", number(0), ReadOnly, DS | BOOK, "", "IVSETGUID"),
    hidden("redacted", number(0), ReadOnly, DS, "", "REDACTED"),
    visible("redact_snaps", string(None), ReadOnly, DS | BOOK, "<snapshot>[,...]", "RSNAPS"),
    visible("snapshots_changed", number(0), ReadOnly, FS | VOL, "<date>", "SNAPSHOTS_CHANGED"),
    visible("prefetch", index(2, PREFETCH_VALUES), Inherit, FS | SNAP | VOL, "none | metadata | all", "PREFETCH"),
    visible("volthreading", index(1, BOOLEAN_VALUES), Default, VOL, "on | off", "zvol threading"),
    visible("direct", index(1, DIRECT_VALUES), Inherit, FS, "disabled | standard | always", "DIRECT"),
    visible("longname", index(0, BOOLEAN_VALUES), Inherit, FS, "on | off", "LONGNAME"),
    visible("defaultuserquota", number(0), Default, FS | SNAP, "<size> | none", "DEFAULTUSERQUOTA"),
    visible("defaultgroupquota", number(0), Default, FS | SNAP, "<size> | none", "DEFAULTGROUPQUOTA"),
    visible("defaultprojectquota", number(0), Default, FS | SNAP, "<size> | none", "DEFAULTPROJECTQUOTA"),
    visible("defaultuserobjquota", number(0), Default, FS | SNAP, "<size> | none", "DEFAULTUSEROBJQUOTA"),
    visible("defaultgroupobjquota", number(0), Default, FS | SNAP, "<size> | none", "DEFAULTGROUPOBJQUOTA"),
    visible("defaultprojectobjquota", number(0), Default, FS | SNAP, "<size> | none", "DEFAULTPROJECTOBJQUOTA"),
];
