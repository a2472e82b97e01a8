//! `zfs load-key`, `zfs unload-key`.
//!
//! `load-key` checks the key, and keeps it for later commands ([`keys::keep`]): for a file (`keylocation` or
//! `-L file:///…`) it remembers the *location*, and later commands read the file again; a typed key is given to the agent.
//! With `-n` nothing is kept. After `unload-key` no command loads the key without being asked to.
//!
//! The history of a pool tells it, as in OpenZFS: the pool is opened for that as it is, and no log is replayed. What keeps that from being written is a warning, as the
//! key is there, or gone. A key that another process uses is not unloaded: its pool is waited for, and is busy then.

use std::sync::Arc;

use control::{Failed, Ioc};
use nvlist::NvList;
use pool::{Error as PoolError, Refusal, Spa};
use site::writing;
use vdev::import::Candidate;

use super::listed::{Listed, Wanted};
use super::select::{Selection, told};
use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, failed, usage};
use crate::keys;
use crate::names::{Types, pool_of};
use crate::{messages, writable};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let loading = call.command.name == "load-key";
    let misplaced = call.args.options.iter().map(|(option, _)| *option).find(|o| !loading && matches!(o, 'n' | 'L'));
    if let Some(option) = misplaced {
        return Err(usage(format!("invalid option '{option}'")));
    }
    let noop = call.args.has('n');
    let all = call.args.has('a');
    let recursive = all || call.args.has('r');
    let location = call.args.text('L');
    let names = call.args.names();
    if !all && names.is_empty() {
        return Err(usage("Missing dataset argument or -a option"));
    }
    if all && !names.is_empty() {
        return Err(usage("Cannot specify dataset with -a option"));
    }
    if recursive && location.as_deref().is_some_and(|l| l != "prompt") {
        return Err(usage("alternate keylocation may only be 'prompt' with -r or -a"));
    }
    let mut selection = Selection::new(Types::HEADS);
    selection.recurse = recursive;
    let (entries, whole) = selection.run(&names, &Wanted::default())?;

    let (mut tried, mut failures, mut done) = (0, 0, Vec::new());
    for dataset in entries.iter() {
        if recursive && !has_work(dataset, loading).map_err(|e| failed(told(&e, dataset.name())))? {
            continue;
        }
        tried += 1;
        let outcome = if loading { load(dataset, location.as_deref(), noop) } else { unload(dataset) };
        match outcome {
            Ok(()) => done.push(dataset.name()),
            Err(Failure::Failed(why)) => {
                eprintln!("{why}");
                failures += 1;
            }
            Err(other) => return Err(other),
        }
    }
    if noop || (recursive && tried != 0) {
        let what = match loading {
            true if noop => "verified",
            true => "loaded",
            false => "unloaded",
        };
        println!("{} / {tried} key(s) successfully {what}", tried - failures);
    }
    // OpenZFS's -1
    let status = if failures > 0 { 255 } else { u8::from(!whole) };
    record(&done, if loading { Ioc::LoadKey } else { Ioc::UnloadKey }, noop, status == 0);
    Ok(status)
}

/// Writes into the histories of their pools that keys were loaded, checked or unloaded; and if the command has succeeded, its line.
fn record(roots: &[&str], ioc: Ioc, noop: bool, good: bool) {
    let mut pools: Vec<&str> = roots.iter().map(|root| pool_of(root)).collect();
    pools.dedup();
    for pool in pools {
        let count = roots.iter().filter(|root| pool_of(root) == pool).count();
        match note(pool, count, ioc, noop, good) {
            Ok(()) => {}
            Err(Failure::Failed(why)) => eprintln!("warning: the history of '{pool}' does not tell of its keys: {why}"),
            Err(_) => eprintln!("warning: the history of '{pool}' does not tell of its keys"),
        }
    }
}

fn note(pool: &str, count: usize, ioc: Ioc, noop: bool, good: bool) -> Result<(), Failure> {
    // nothing is written to a pool that is only read
    let Some(record) = here().find(pool)?.filter(|record| !record.readonly) else { return Ok(()) };
    // one that is open here is no other's
    if here().changing(&record).is_none() && writing::is_used(&record) {
        return Err(failed("the pool is in use"));
    }
    let mut input = NvList::new();
    if noop {
        input.insert("noop", ());
    }
    let doing = format!("cannot open '{pool}'");
    let spa = writable::open_as_it_is(&record, &doing)?;
    let control = console::control(spa.clone());
    let noted = (0..count).try_for_each(|_| control.note_answered(ioc, &input));
    let closed = if good { writable::log_and_close(&spa) } else { here().close(&spa) };
    noted.map_err(|e| failed(told(&e, pool)))?;
    closed.map_err(|e| failed(format!("{doing}: {}", messages::why(&e))))
}

/// Whether it is an encryption root whose key is not yet loaded, or unloaded.
fn has_work(dataset: &Listed, loading: bool) -> Result<bool, Failed> {
    Ok(dataset.is_encryption_root()? && !if loading { dataset.has_key()? } else { dataset.lacks_key()? })
}

/// Checks that a dataset is an encryption root; `what` is the operation on its key.
fn check_root(dataset: &Listed, what: &str, error: impl Fn(String) -> Failure) -> Result<(), Failure> {
    let name = dataset.name();
    match dataset.text("encryptionroot").map_err(|e| failed(told(&e, name)))? {
        None => Err(error(format!("'{name}' is not encrypted."))),
        Some(root) if root != name => {
            Err(error(format!("Keys must be {what} for encryption root of '{name}' ({root}).")))
        }
        Some(_) => Ok(()),
    }
}

fn load(dataset: &Listed, location: Option<&str>, noop: bool) -> Result<(), Failure> {
    let error = |why: String| failed(format!("Key load error: {why}"));
    let name = dataset.name();
    check_root(dataset, "loaded", error)?;
    if !noop && dataset.has_key().map_err(|e| failed(told(&e, name)))? {
        return Err(error(format!("Key already loaded for '{name}'.")));
    }
    if noop {
        return keys::check(dataset.source(), name, location).map(drop);
    }
    let key = keys::load(dataset.source(), name, location)?;
    let stored = dataset.text("keylocation").map_err(|e| failed(told(&e, name)))?;
    let location = location.map(str::to_owned).or(stored).unwrap_or_default();
    here().has_new_keys(dataset.source().guid());
    keys::keep(dataset.source(), name, &location, &key)
}

fn unload(dataset: &Listed) -> Result<(), Failure> {
    let error = |why: String| failed(format!("Key unload error: {why}"));
    let name = dataset.name();
    check_root(dataset, "unloaded", error)?;
    let already = || error(format!("Key already unloaded for '{name}'."));
    if let Some(spa) = open_here(name)? {
        // it has the key for all who use it
        return match spa.unload_key(name) {
            Ok(()) => {
                here().key_is_gone();
                Ok(site::keys::unloaded(dataset.source(), name)?)
            }
            Err(PoolError::Refused { why: Refusal::KeyUnavailable, .. }) => Err(already()),
            Err(PoolError::Refused { why: Refusal::Busy, .. }) => Err(error(format!("'{name}' is busy."))),
            Err(e) => Err(error(messages::why(&e))),
        };
    }
    if here().is_of_machine() {
        // one that is only read has it for all who use it as well; it may not be loaded there
        let _unloaded = dataset.source().call(Ioc::UnloadKey, name, &NvList::new());
    }
    let _alone = keep_out(name)?;
    if site::keys::unload(dataset.source(), name)? { Ok(()) } else { Err(already()) }
}

/// The pool of a dataset, if it is open in this process for longer than this command.
fn open_here(dataset: &str) -> Result<Option<Arc<Spa>>, Failure> {
    let record = here().find(pool_of(dataset))?.filter(|_| here().is_of_machine());
    Ok(record.and_then(|record| here().changing(&record)))
}

/// Unloads the keys that are loaded of a dataset and of those below it, after they were unmounted (`zfs unmount -u`).
pub(super) fn unload_below(dataset: &Listed) -> Result<(), Failure> {
    let mut selection = Selection::new(Types::HEADS);
    selection.recurse = true;
    let (entries, _) = selection.run(&[dataset.name().to_owned()], &Wanted::default())?;
    let mut done = Vec::new();
    // those below use the keys of those above
    for root in entries.iter().rev() {
        if has_work(root, false).map_err(|e| failed(told(&e, root.name())))? {
            unload(root)?;
            done.push(root.name());
        }
    }
    record(&done, Ioc::UnloadKey, false, false);
    Ok(())
}

/// Keeps other processes from having the pool of a dataset open for a change: they would go on with its keys. None of a pool that is only read, or has lost its devices.
fn keep_out(dataset: &str) -> Result<Option<Candidate>, Failure> {
    let Some(record) = here().find(pool_of(dataset))?.filter(|record| !record.readonly) else { return Ok(None) };
    match here().keep_out(&record) {
        Ok(locked) => Ok(Some(locked)),
        Err(site::Error::Devices { name, source }) if writing::is_used(&record) => Err(messages::busy(&name, &source)),
        // a key can be unloaded without the devices
        Err(_) => Ok(None),
    }
}
