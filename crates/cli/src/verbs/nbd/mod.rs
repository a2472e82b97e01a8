//! `zuse nbd`: volumes, for programs that speak NBD.
//!
//! Where a volume can be written its pool is opened for writing, as for any command that changes it, and stays open until the end: other commands that would change the pool wait. With `-r`, or if only snapshots
//! and volumes with `readonly=on` are named, pools are opened for reading, beside whoever writes them; a volume is then as its last synced txg left it.

mod export;

use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;

use nbd::{Listener, Named, Options, PORT, Server};
use pool::Kind;
use zuse::{Target, TargetObject};

use super::session::{Session, targets};
use super::signals::stop_by_signals;
use crate::args::Parsed;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, cause, failed, usage};
use export::{Live, Still};

pub(super) fn run(parsed: &Parsed) -> Outcome {
    if console::is_of_client() {
        return Err(failed("volumes are not served by the commands of a server"));
    }
    let targets = targets(parsed)?;
    let options = options(parsed)?;
    // a signal that comes from now on ends it in order
    let stop = stop_by_signals().map_err(|e| failed(cause(&e)))?;
    let listeners = listeners(parsed)?;
    Session::run(parsed, |session| {
        let exports = exports(session, &targets, parsed.has('r'))?;
        for listener in &listeners {
            println!("{}", listener.uri().map_err(|e| failed(cause(&e)))?);
        }
        match Server::new(exports, listeners, options).run(&stop) {
            true => Ok(0),
            false => Err(failed("requests of a client could not be ended: they wait for devices")),
        }
    })
}

fn options(parsed: &Parsed) -> Result<Options, Failure> {
    let defaults = Options::default();
    let Some(text) = parsed.text('c') else { return Ok(defaults) };
    let connections = text.parse().ok().filter(|number| *number > 0);
    let connections = connections.ok_or_else(|| usage(format!("--connections {text}: a number is expected")))?;
    Ok(Options { connections, ..defaults })
}

/// Listens at all places that are named.
fn listeners(parsed: &Parsed) -> Result<Vec<Listener>, Failure> {
    let mut listeners = Vec::new();
    for (option, value) in &parsed.options {
        let listener = match option {
            'u' => Listener::unix(&console::path(Path::new(value))),
            'l' => Listener::tcp(address(&value.to_string_lossy())?),
            _ => continue,
        };
        let shown = value.to_string_lossy();
        listeners.push(listener.map_err(|e| failed(format!("cannot listen on '{shown}': {}", cause(&e))))?);
    }
    match listeners.is_empty() {
        true => Err(usage("no socket is named: --unix PATH or --listen ADDR[:PORT] is expected")),
        false => Ok(listeners),
    }
}

/// An address of TCP: a name or number, and a port if it is another one than NBD's.
fn address(text: &str) -> Result<SocketAddr, Failure> {
    let with_port = text.parse::<SocketAddr>().ok();
    let number = || text.parse().ok().map(|ip| SocketAddr::new(ip, PORT));
    let found = with_port.or_else(number).map(Ok).or_else(|| {
        let mut resolved = match text.rsplit_once(':') {
            Some(_) => text.to_socket_addrs(),
            None => (text, PORT).to_socket_addrs(),
        };
        resolved.as_mut().map(Iterator::next).map_err(|e| cause(e)).transpose()
    });
    match found {
        Some(Ok(address)) => Ok(address),
        Some(Err(why)) => Err(failed(format!("cannot listen on '{text}': {why}"))),
        None => Err(failed(format!("cannot listen on '{text}': no such address"))),
    }
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
        if !read_only && !dataset.is_snapshot() && !is_read_only(target, &dataset)? {
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
    targets.iter().map(|target| open(session, target, written.contains(target.pool()))).collect()
}

/// Opens one of them, in a pool that is open for writing or for reading.
fn open(session: &mut Session, target: &Target, is_written: bool) -> Result<Named, Failure> {
    let dataset = session.sealed_dataset(target)?;
    let name = dataset.name().to_owned();
    if is_written && !dataset.is_snapshot() {
        let read_only = is_read_only(target, &dataset)?;
        let volume = session.volume(target)?.ok_or_else(|| failed(format!("{target}: not a volume")))?;
        let description = if read_only { "a volume, read-only" } else { "a volume" };
        let export = Arc::new(Live { volume, read_only });
        return Ok(Named { name, description: description.to_owned(), export });
    }
    match session.find(target)? {
        TargetObject::Volume(volume) => {
            let description = if dataset.is_snapshot() { "a snapshot of a volume" } else { "a volume, read-only" };
            Ok(Named { name, description: description.to_owned(), export: Arc::new(Still(volume)) })
        }
        _ => Err(failed(format!("{target}: not a volume"))),
    }
}

/// Returns whether the property `readonly` keeps a volume from being written.
fn is_read_only(target: &Target, dataset: &pool::Dataset) -> Result<bool, Failure> {
    let prop = dataset.prop("readonly").map_err(|e| failed(format!("{target}: {e}")))?;
    Ok(prop.is_some_and(|prop| prop.value.number() == Some(1)))
}
