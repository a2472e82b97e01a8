//! The last txg in which each imported pool was written, beside its record in the state folder: `GUID.left`.
//!
//! A pool can be opened from some of its devices. Devices that were absent when it was last written hold an older
//! state, and cannot be told from the others when these in turn are absent: the pool would silently go back in time,
//! and what is then written would contradict what the other devices hold. In OpenZFS the kernel keeps the pool open
//! and sees devices come and go; here each command opens it anew. So a command that writes a pool notes each txg, and
//! a command that opens it states the least txg that it must find ([`OpenOptions::least`](pool::OpenOptions::least)).
//! A command that was killed between a txg and its note leaves the note of the txg before: the note is never ahead of
//! the devices.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Mutex, PoisonError};

use base::{Guid, Txg};

use crate::records;
use crate::state::Folder;

/// The files of the pools that this process has written.
static OPEN: Mutex<BTreeMap<Guid, File>> = Mutex::new(BTreeMap::new());

/// The file in the state folder.
fn name(guid: Guid) -> String {
    format!("{guid}.left")
}

/// Notes a txg that is on disk. Nothing is noted for a pool that is not imported, or if the note cannot be written.
pub fn note(pool: Guid, txg: Txg) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    // another process may have exported the pool, and imported it again, since this one wrote it
    let is_there = |file: &mut File| file.metadata().is_ok_and(|meta| meta.nlink() > 0);
    if !open.get_mut(&pool).is_some_and(is_there) && records::is_remembered(pool) {
        let file = Folder::open().and_then(|folder| folder.shared_file(&name(pool)));
        open.extend(file.ok().map(|file| (pool, file)));
    }
    if let Some(file) = open.get(&pool) {
        let _noted = file.write_all_at(format!("{:016x}\n", txg.0).as_bytes(), 0);
    }
}

/// The txg that was noted of an imported pool.
#[must_use]
pub fn of(guid: Guid) -> Option<Txg> {
    let text = Folder::open().and_then(|folder| folder.read(&name(guid))).ok()?;
    let text = String::from_utf8(text).ok()?;
    u64::from_str_radix(text.trim_end(), 16).ok().map(Txg)
}

/// Keeps the note of a pool that got another identity.
pub(crate) fn rename(from: Guid, to: Guid) {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&from);
    drop(Folder::open().and_then(|folder| folder.rename(&name(from), &name(to))));
}

/// Removes the note of a pool that is exported, or imported anew.
pub fn forget(guid: Guid) {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&guid);
    drop(Folder::open().and_then(|folder| folder.remove(&name(guid))));
}
