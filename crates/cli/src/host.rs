//! This machine, as pools know it.

/// Its number, as `/etc/hostid` has it; 0 without one (OpenZFS: `get_system_hostid`).
pub(crate) fn id() -> u64 {
    let bytes = std::fs::read("/etc/hostid").unwrap_or_default();
    bytes.first_chunk::<4>().map_or(0, |b| u32::from_ne_bytes(*b).into())
}
