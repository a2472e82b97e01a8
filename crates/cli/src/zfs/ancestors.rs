//! Ancestors of a new dataset: they must exist, or be created first (OpenZFS: `check_parents`,
//! `zfs_create_ancestors_props`).

use control::Ioc;
use nvlist::NvList;
use pool::Kind;

use super::listed::{Listed, Wanted, is_missing};
use super::mounting;
use super::new_dataset;
use super::select::told;
use super::session::Session;
use crate::error::{Failure, failed};
use crate::pools;

/// Limit on the levels of a name (OpenZFS: `zfs_max_dataset_nesting`).
const NESTING_MAX: usize = 50;

/// The treatment of missing ancestors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ancestors {
    /// They must exist (no `-p`).
    Wanted,
    /// They are created (`-p`), not to be mounted (`-pp`).
    Made { unmountable: bool },
}

impl Ancestors {
    /// The treatment for `count` times `-p`.
    pub(super) fn of(count: usize) -> Ancestors {
        match count {
            0 => Ancestors::Wanted,
            n => Ancestors::Made { unmountable: n > 1 },
        }
    }
}

/// Checks that a name does not have too many levels.
pub(super) fn check_nesting(name: &str) -> Result<(), String> {
    match name.matches('/').count() < NESTING_MAX {
        true => Ok(()),
        false => Err("maximum name nesting depth exceeded".to_owned()),
    }
}

/// The nearest existing ancestor of `name`, which must be a file system. Without `deeper` it is the parent.
pub(super) fn existing(session: &Session, name: &str, deeper: bool) -> Result<String, Failure> {
    let cannot = |why: String| failed(format!("cannot create '{name}': {why}"));
    let (mut parent, _) = name.rsplit_once('/').ok_or_else(|| cannot("missing dataset name".to_owned()))?;
    let pool = name.split('/').next().unwrap_or("");
    let no_pool = || cannot(format!("no such pool '{pool}'"));
    session.reach(name)?.ok_or_else(no_pool)?;
    let source = pools::of_dataset(name)?.ok_or_else(no_pool)?;
    loop {
        match Listed::ask(&source, parent, &Wanted::default()) {
            Ok(found) => {
                return match found.kind().map_err(|e| failed(told(&e, parent)))? {
                    Kind::Filesystem => Ok(parent.to_owned()),
                    _ => Err(cannot("parent is not a filesystem".to_owned())),
                };
            }
            Err(e) if is_missing(&e) && deeper => {
                (parent, _) = parent.rsplit_once('/').ok_or_else(no_pool)?;
            }
            Err(e) if is_missing(&e) => return Err(cannot("parent does not exist".to_owned())),
            Err(e) => return Err(cannot(e.to_string())),
        }
    }
}

/// Returns whether a dataset of this name exists, in an imported pool.
pub(super) fn exists(name: &str) -> Result<bool, Failure> {
    let Some(source) = pools::of_dataset(name)? else { return Ok(false) };
    match Listed::named(&source, name.to_owned()).guid() {
        Ok(_) => Ok(true),
        Err(e) if is_missing(&e) => Ok(false),
        Err(e) => Err(failed(told(&e, name))),
    }
}

/// Creates the missing ancestors of `name`.
pub(super) fn make(session: &Session, name: &str, unmountable: bool) -> Result<(), Failure> {
    check_nesting(name).map_err(|why| failed(format!("cannot create '{name}': {why}")))?;
    let from = existing(session, name, true)?;
    let below = name.get(from.len() + 1..).unwrap_or("");
    for (end, _) in below.match_indices('/') {
        let ancestor = name.get(..from.len() + 1 + end).unwrap_or(name);
        let mut props = NvList::new();
        if unmountable {
            props.insert("canmount", 2u64);
        }
        let input = new_dataset::request(new_dataset::OST_ZFS, props, None);
        session
            .control(ancestor)?
            .call(Ioc::Create, ancestor, &input)
            .map_err(|e| new_dataset::refused(ancestor, Kind::Filesystem, &e))?;
        mounting::mount_new(session, ancestor)?;
    }
    Ok(())
}

/// Checks that `name` can be that of a new dataset whose parent exists (OpenZFS: the beginning of `zfs_create`).
pub(super) fn check_new(session: &Session, name: &str) -> Result<(), Failure> {
    let cannot = |why: String| failed(format!("cannot create '{name}': {why}"));
    crate::names::check_new(name, crate::names::Types::HEADS).map_err(cannot)?;
    check_nesting(name).map_err(cannot)?;
    existing(session, name, false)?;
    match exists(name)? {
        true => Err(cannot("dataset already exists".to_owned())),
        false => Ok(()),
    }
}
