//! Keys that outlive a process: those in files, by their location in the pool's record; others with the agent.

use std::collections::HashMap;
use std::sync::Arc;

use base::ObjectId;
use codec::crypt::WrappingKey;
use pool::Pool;

use super::{Root, cause, load, waits};
use crate::{Error, Front, Imported, Query, agent, records};

/// Loads the keys of a pool that were loaded by earlier commands. The front is warned of a key that can no longer be
/// loaded.
pub fn load_kept(pool: &Arc<Pool>, record: &Imported, front: &dyn Front) {
    let query = Query::of_found(pool.clone(), HashMap::new());
    for (dir, location) in &record.keys {
        // a root that no longer exists needs no key
        let Some(root) = root_of(pool, *dir).and_then(|root| pool.dir_by_id(root).ok()) else { continue };
        if waits(location) {
            front.warn(&format!("the key of '{}' is not read again: {location} is no file", root.name()));
            continue;
        }
        if let Err(why) = Root::find(&query, root.name()).and_then(|root| root.load_file(location)) {
            front.warn(&format!("Key load error: {why}"));
        }
    }
    let kept = agent::get(record.guid);
    if !kept.is_empty() {
        super::no_core_dumps();
    }
    for (dir, key) in kept {
        // a root that no longer exists, or has another key now, needs none
        let root = root_of(pool, dir).and_then(|root| pool.dir_by_id(root).ok());
        let _ = root.map(|root| load(&query, root.name(), &key, false));
    }
}

/// The current record of an open pool.
fn record_of(pool: &Pool) -> Option<Imported> {
    records::all(&|_| {}).ok()?.into_iter().find(|record| record.guid == pool.guid())
}

/// The current encryption root of the directory that was the root when its key was kept: after a promote, the clone is
/// the root. While devices do not answer, what was kept counts as it was.
fn root_of(pool: &Arc<Pool>, dir: ObjectId) -> Option<ObjectId> {
    match pool.dir_by_id(dir).and_then(|found| found.crypto()) {
        Ok(info) => info.map(|info| info.root_dir),
        Err(error) => error.is_unanswered().then_some(dir),
    }
}

/// What the roots in a record are now. It is looked up before the record is changed: that waits for no device.
struct Roots(HashMap<ObjectId, Option<ObjectId>>);

impl Roots {
    fn of(pool: &Arc<Pool>, record: &Imported) -> Roots {
        Roots(record.keys.iter().map(|(dir, _)| (*dir, root_of(pool, *dir))).collect())
    }

    /// The current root of an earlier one; one that came meanwhile is one still.
    fn now(&self, dir: ObjectId) -> Option<ObjectId> {
        self.0.get(&dir).copied().unwrap_or(Some(dir))
    }

    /// Forgets the location of an encryption root's key, and of roots that no longer exist.
    fn forget_place(&self, record: &mut Imported, root: ObjectId) {
        record.keys.retain(|(dir, _)| self.now(*dir).is_some_and(|now| now != root));
    }
}

/// Updates the remembered key locations to the current encryption roots, as earlier roots may be destroyed; the
/// locations of those that no longer exist are forgotten.
///
/// # Errors
/// When the record cannot be written.
pub fn settle(pool: &Arc<Pool>) -> Result<(), Error> {
    let Some(record) = record_of(pool).filter(|record| !record.keys.is_empty()) else { return Ok(()) };
    let roots = Roots::of(pool, &record);
    records::update(record.guid, |record| {
        for (dir, location) in std::mem::take(&mut record.keys) {
            let root = roots.now(dir).filter(|root| record.keys.iter().all(|(other, _)| other != root));
            record.keys.extend(root.map(|root| (root, location)));
        }
    })
}

/// Forgets the key of an encryption root: no command loads it from now on without being asked to. Returns whether it was kept; a file that no
/// longer exists is forgotten too.
///
/// # Errors
/// When the record cannot be written.
pub fn unload(query: &Query, root: &str) -> Result<bool, Error> {
    give_up(query, root, false)
}

/// As [`unload`], for a key that was unloaded: no command loads it without being asked to, also if it was nowhere kept.
///
/// # Errors
/// As [`unload`].
pub fn unloaded(query: &Query, root: &str) -> Result<(), Error> {
    give_up(query, root, true).map(drop)
}

/// Removes the key of an encryption root from the agent, and its location from the record, and notes that it was unloaded if it was there, or if that `is_sure`. Returns whether
/// it was there.
fn give_up(query: &Query, root: &str, is_sure: bool) -> Result<bool, Error> {
    let pool = query.pool();
    let (Some(record), Ok(dir)) = (record_of(pool), pool.dir(root)) else { return Ok(false) };
    let (roots, root) = (Roots::of(pool, &record), dir.id());
    let has_place = record.keys.iter().any(|(dir, _)| roots.now(*dir) == Some(root));
    let was_kept = drop_keys(pool, |dir| root_of(pool, dir) == Some(root)) || has_place;
    if was_kept || is_sure {
        records::update(record.guid, |record| {
            roots.forget_place(record, root);
            record.unloaded.retain(|other| *other != root);
            record.unloaded.push(root);
        })?;
    }
    Ok(was_kept)
}

/// Notes that the key of an encryption root was loaded: commands may load it again.
///
/// # Errors
/// When the record cannot be written.
pub fn loaded(query: &Query, root: &str) -> Result<(), Error> {
    let pool = query.pool();
    let Ok(dir) = pool.dir(root) else { return Ok(()) };
    records::update(pool.guid(), |record| record.unloaded.retain(|other| *other != dir.id()))
}

/// Forgets the key that a dataset had of its own before that was changed: it is under its parent's now, or has another, which is not kept.
///
/// # Errors
/// When the record cannot be written.
pub fn forget(query: &Query, root: &str) -> Result<(), Error> {
    let pool = query.pool();
    let (Some(record), Ok(dir)) = (record_of(pool), pool.dir(root)) else { return Ok(()) };
    // it may be kept under a dataset that was the root before a promote
    drop_keys(pool, |other| other == dir.id() || root_of(pool, other) == Some(dir.id()));
    let roots = Roots::of(pool, &record);
    records::update(record.guid, |record| {
        record.keys.retain(|(other, _)| *other != dir.id() && roots.now(*other) != Some(dir.id()));
    })
}

fn drop_keys(pool: &Pool, mut which: impl FnMut(ObjectId) -> bool) -> bool {
    let guid = pool.guid();
    let kept = agent::get(guid).into_iter().map(|(dir, _)| dir).filter(|dir| which(*dir));
    kept.filter(|dir| agent::drop_key(guid, *dir)).count() > 0
}

/// Keeps a key that was loaded from `location` for later commands.
///
/// # Errors
/// When the record cannot be written.
pub fn keep(query: &Query, root: &str, location: &str, key: &WrappingKey, front: &dyn Front) -> Result<(), Error> {
    let pool = query.pool();
    let (Some(record), Ok(dir)) = (record_of(pool), pool.dir(root)) else { return Ok(()) };
    let of_file = location.starts_with("file://") && !waits(location);
    if !of_file && let Err(e) = agent::put(record.guid, dir.id(), key) {
        front.warn(&format!("the key of '{root}' cannot be kept for later commands: {}", cause(&e)));
    }
    // an older key of the same root
    drop_keys(pool, |other| (of_file || other != dir.id()) && root_of(pool, other) == Some(dir.id()));
    let roots = Roots::of(pool, &record);
    records::update(record.guid, |record| {
        roots.forget_place(record, dir.id());
        record.unloaded.retain(|other| *other != dir.id());
        if of_file {
            record.keys.push((dir.id(), location.to_owned()));
        }
    })
}
