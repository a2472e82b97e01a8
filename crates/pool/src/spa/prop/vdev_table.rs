//! The properties of vdevs, in the order in which `zpool get all` lists them (OpenZFS 2.4: `vdev_prop_t`). User properties follow them.

use super::def::{Attr, Attr::*, PropDef, PropKind, VDEV as V, hidden, index, number, string, visible};

const ON_OFF: &[(&str, u64)] = &[("off", 0), ("on", 1)];
/// The third value of a switch: inherited from the parent (OpenZFS: `ZPROP_BOOLEAN_INHERIT`), or not applicable to the vdev (`ZPROP_BOOLEAN_NA`).
pub(crate) const THIRD: u64 = 2;
const OR_INHERIT: &[(&str, u64)] = &[("off", 0), ("on", 1), ("inherit", THIRD)];
const OR_NONE: &[(&str, u64)] = &[("off", 0), ("on", 1), ("-", THIRD)];

/// A number that is computed.
const fn shown(name: &'static str, values: &'static str, column: &'static str) -> PropDef {
    visible(name, number(0), ReadOnly, V, values, column)
}

/// A threshold: no number until one is set.
const fn threshold(name: &'static str, values: &'static str, column: &'static str) -> PropDef {
    visible(name, number(u64::MAX), Default, V, values, column)
}

const fn switch(name: &'static str, attr: Attr, kind: PropKind, values: &'static str, column: &'static str) -> PropDef {
    visible(name, kind, attr, V, values, column)
}

/// All native vdev properties.
pub static VDEV: &[PropDef] = &[
    hidden("name", string(None), ReadOnly, V, "", "NAME"),
    shown("capacity", "<percent>", "CAP"),
    shown("state", "<state>", "STATE"),
    shown("guid", "<guid>", "GUID"),
    shown("asize", "<asize>", "ASIZE"),
    shown("psize", "<psize>", "PSIZE"),
    shown("ashift", "<ashift>", "ASHIFT"),
    shown("size", "<size>", "SIZE"),
    shown("free", "<size>", "FREE"),
    shown("allocated", "<size>", "ALLOC"),
    visible("comment", string(None), Default, V, "<comment-string>", "COMMENT"),
    shown("expandsize", "<size>", "EXPANDSZ"),
    shown("fragmentation", "<percent>", "FRAG"),
    shown("bootsize", "<size>", "BOOTSIZE"),
    shown("parity", "<parity>", "PARITY"),
    visible("path", string(None), Default, V, "<device-path>", "PATH"),
    visible("devid", string(None), ReadOnly, V, "<devid>", "DEVID"),
    visible("physpath", string(None), ReadOnly, V, "<physpath>", "PHYSPATH"),
    visible("encpath", string(None), ReadOnly, V, "<encpath>", "ENCPATH"),
    visible("fru", string(None), ReadOnly, V, "<fru>", "FRU"),
    visible("parent", string(None), ReadOnly, V, "<parent>", "PARENT"),
    visible("children", string(None), ReadOnly, V, "<child[,...]>", "CHILDREN"),
    shown("numchildren", "<number-of-children>", "NUMCHILD"),
    shown("read_errors", "<errors>", "RDERR"),
    shown("write_errors", "<errors>", "WRERR"),
    shown("checksum_errors", "<errors>", "CKERR"),
    shown("initialize_errors", "<errors>", "INITERR"),
    shown("null_ops", "<operations>", "NULLOP"),
    shown("read_ops", "<operations>", "READOP"),
    shown("write_ops", "<operations>", "WRITEOP"),
    shown("free_ops", "<operations>", "FREEOP"),
    shown("claim_ops", "<operations>", "CLAIMOP"),
    shown("trim_ops", "<operations>", "TRIMOP"),
    shown("null_bytes", "<bytes>", "NULLBYTE"),
    shown("read_bytes", "<bytes>", "READBYTE"),
    shown("write_bytes", "<bytes>", "WRITEBYTE"),
    shown("free_bytes", "<bytes>", "FREEBYTE"),
    shown("claim_bytes", "<bytes>", "CLAIMBYTE"),
    shown("trim_bytes", "<bytes>", "TRIMBYTE"),
    switch("removing", ReadOnly, index(0, ON_OFF), "on | off", "REMOVING"),
    switch("allocating", Default, index(1, OR_NONE), "on | off", "ALLOCATING"),
    switch("failfast", Default, index(1, OR_INHERIT), "on | off | inherit", "FAILFAST"),
    threshold("checksum_n", "<events>", "CKSUM_N"),
    threshold("checksum_t", "<seconds>", "CKSUM_T"),
    threshold("io_n", "<events>", "IO_N"),
    threshold("io_t", "<seconds>", "IO_T"),
    switch("raidz_expanding", ReadOnly, index(0, ON_OFF), "on | off", "RAIDZ_EXPANDING"),
    threshold("slow_io_n", "<events>", "SLOW_IO_N"),
    threshold("slow_io_t", "<seconds>", "SLOW_IO_T"),
    switch("trim_support", ReadOnly, index(0, ON_OFF), "on | off", "TRIMSUP"),
    shown("trim_errors", "<errors>", "TRIMERR"),
    shown("slow_ios", "<slowios>", "SLOW"),
    switch("sit_out", Default, index(0, ON_OFF), "on | off", "SIT_OUT"),
    switch("autosit", Default, index(0, ON_OFF), "on | off", "AUTOSIT"),
    switch("slow_io_events", Default, index(1, ON_OFF), "on | off", "SLOW_IO_EVENTS"),
    switch("scheduler", Default, index(0, &[("auto", 0), ("on", 1), ("off", 2)]), "auto | on | off", "IO_SCHEDULER"),
    visible("failure_domain", number(u64::MAX), ReadOnly, V, "<fdomain>", "FDOM"),
    visible("failure_group", number(u64::MAX), ReadOnly, V, "<fgroup>", "FGRP"),
    switch(
        "alloc_bias",
        Default,
        index(0, &[("none", 0), ("log", 1), ("special", 2), ("dedup", 3)]),
        "none | log | special | dedup",
        "ALLOC_BIAS",
    ),
    switch("rotational", ReadOnly, index(0, ON_OFF), "on | off", "ROTATIONAL"),
];
