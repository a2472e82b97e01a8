//! The txg in which each imported pool was written last, beside its record in the folder of the state: `GUID.left`.
//!
//! A pool can be opened from some of its devices. Those that were away when it was written last know an older state only, and are not told from
//! the others when these are away in turn: the pool would go back in time without a word, and what is written then would be at odds with what the others have.
//! In OpenZFS the kernel has the pool open all the while, and sees devices come and go; here each command opens it anew. So who writes a pool
//! notes each txg, and who opens it says what it must at least find ([`OpenOptions::least`](pool::OpenOptions::least)). A command that was killed between
//! a txg and its note leaves the txg before: the note is never ahead of the devices.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use base::{Guid, Txg};

use crate::state;

/// The files of the pools that this command writes.
static OPEN: Mutex<BTreeMap<u64, File>> = Mutex::new(BTreeMap::new());

fn path(guid: u64) -> Option<PathBuf> {
    Some(state::folder().ok()?.join(format!("{guid}.left")))
}

/// A txg is on disk. Of a pool that is not imported nothing is noted; nor where it cannot be.
pub(crate) fn note(pool: Guid, txg: Txg) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !open.contains_key(&pool.0) && state::is_remembered(pool.0) {
        let file = path(pool.0).and_then(|path| state::private().truncate(false).open(path).ok());
        open.extend(file.map(|file| (pool.0, file)));
    }
    if let Some(file) = open.get(&pool.0) {
        let _noted = file.write_all_at(format!("{:016x}\n", txg.0).as_bytes(), 0);
    }
}

/// The txg that was noted of an imported pool.
pub(crate) fn of(guid: u64) -> Option<Txg> {
    let text = fs::read_to_string(path(guid)?).ok()?;
    u64::from_str_radix(text.trim_end(), 16).ok().map(Txg)
}

/// The pool is imported no more, or anew.
pub(crate) fn forget(guid: u64) {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&guid);
    path(guid).into_iter().for_each(|path| drop(fs::remove_file(path)));
}
