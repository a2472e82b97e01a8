//! `zuse nbd`: volumes, for programs that speak NBD.
//!
//! Where a volume can be written its pool is opened for writing, as for any command that changes it, and stays open until the end: other commands that would change the pool wait. With `-r`, or if only snapshots
//! and volumes with `readonly=on` are named, pools are opened for reading, beside whoever writes them; a volume is then as its last synced txg left it.
//!
//! Where a server runs it carries the command out, in the pools that it has open: then nobody waits, and a volume that is only read is the one that others write.

use std::collections::BTreeSet;
use std::sync::Arc;

use nbd::{Named, Server};
use pool::Kind;
use volumes::Device;
use zuse::{Target, TargetObject};

use super::session::{Session, targets};
use super::signals::stop_by_signals;
use super::sockets::{listeners, options, warn_of_strangers};
use crate::args::Parsed;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, cause, failed, usage};
use crate::pools;

pub(super) fn run(parsed: &Parsed) -> Outcome {
    let targets = targets(parsed)?;
    let options = options(parsed)?;
    // a signal that comes from now on ends it in order
    let stop = stop_by_signals().map_err(|e| failed(cause(&e)))?;
    let listeners = listeners(parsed)?;
    if listeners.is_empty() {
        return Err(usage("no socket is named: --unix PATH or --listen ADDR[:PORT] is expected"));
    }
    Session::run(parsed, |session| {
        let exports = exports(session, &targets, parsed.has('r'))?;
        warn_of_strangers(&listeners, &options);
        let needs_tls = options.tls.as_ref().is_some_and(nbd::Tls::is_required);
        for listener in &listeners {
            println!("{}", listener.uri(needs_tls).map_err(|e| failed(cause(&e)))?);
        }
        match Server::new(exports, listeners, options).run(&stop) {
            true => Ok(0),
            false => Err(failed("requests of a client could not be ended: they wait for devices")),
        }
    })
}

/// Opens the volumes and snapshots that are named.
fn exports(session: &mut Session, targets: &[Target], read_only: bool) -> Result<Vec<Named>, Failure> {
    let (mut names, mut written) = (BTreeSet::new(), BTreeSet::new());
    for target in targets {
        let cannot = |why: &dyn std::fmt::Display| failed(format!("{target}: {why}"));
        // a key is looked for, and perhaps asked for, when the pool is open as it will be
        let dataset = session.sealed_dataset(target)?;
        if dataset.head_kind().map_err(|e| cannot(&e))? != Kind::Volume {
            return Err(cannot(&"not a volume"));
        }
        if !target.path().is_empty() {
            return Err(cannot(&"a volume has no files"));
        }
        if !names.insert(dataset.name().to_owned()) {
            return Err(usage(format!("'{target}' is named twice")));
        }
        let changes = !dataset.is_snapshot() && !read_only && !is_read_only(target, &dataset)?;
        if changes || is_shared(session, target)? {
            written.insert(target.pool().to_owned());
        }
    }
    if !written.is_empty() {
        // what was opened for these questions keeps nothing from being reused
        here().look_again();
    }
    for pool in &written {
        session.writable(pool)?;
    }
    targets.iter().map(|target| open(session, target, written.contains(target.pool()), read_only)).collect()
}

/// Returns whether a pool is one that a server has open for a change, and that others change meanwhile: what is only read there is read as it is by then.
fn is_shared(session: &Session, target: &Target) -> Result<bool, Failure> {
    Ok(console::is_of_client() && session.reads_as_it_is() && !pools::find(target.pool())?.readonly)
}

/// Opens one of them, in a pool that is open for writing or for reading.
fn open(session: &mut Session, target: &Target, is_written: bool, read_only: bool) -> Result<Named, Failure> {
    let cannot = |why: &dyn std::fmt::Display| failed(format!("{target}: {why}"));
    let dataset = session.sealed_dataset(target)?;
    let name = dataset.name().to_owned();
    let (device, description) = if is_written && !dataset.is_snapshot() {
        let spa = session.spa_of_volume(target)?;
        let device = Device::live(&spa, &name, read_only).map_err(|e| cannot(&e))?;
        let description = if device.is_read_only() { "a volume, read-only" } else { "a volume" };
        (device, description)
    } else {
        let TargetObject::Volume(volume) = session.find(target)? else { return Err(cannot(&"not a volume")) };
        // where others change the pool meanwhile it stays
        let held = if dataset.is_snapshot() { Some(dataset.long_hold().map_err(|e| cannot(&e))?) } else { None };
        let description = if dataset.is_snapshot() { "a snapshot of a volume" } else { "a volume, read-only" };
        (Device::still(volume, held), description)
    };
    Ok(Named { name, description: description.to_owned(), export: Arc::new(device) })
}

/// Returns whether the property `readonly` keeps a volume from being written.
fn is_read_only(target: &Target, dataset: &pool::Dataset) -> Result<bool, Failure> {
    let prop = dataset.prop("readonly").map_err(|e| failed(format!("{target}: {e}")))?;
    Ok(prop.is_some_and(|prop| prop.value.number() == Some(1)))
}
