//! The volumes that `zuse serve` serves besides: over NBD, and as files of a directory.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use base::Stop;
use fuse::{DeviceDirectory, Unmount};
use mounts::{has_entries, make_point};
use nbd::{Listener, Options, Server};
use site::Machine;
use volumes::Volumes;

use super::flags::ZVOL;
use super::sockets::{listeners, options, warn_of_strangers};
use crate::args::Parsed;
use crate::console;
use crate::error::{Failure, cause, failed};

/// Connections to the exports of a server, if nothing else is said: there are as many as it has volumes.
const CONNECTIONS: usize = 256;

/// What of the volumes is to be served, and where.
pub(super) struct Wanted {
    listeners: Vec<Listener>,
    options: Options,
    directory: Option<PathBuf>,
}

/// Volumes that are served, until this is ended.
pub(super) struct Serving {
    volumes: Volumes,
    exports: Option<(Arc<Stop>, JoinHandle<bool>)>,
    directory: Option<DeviceDirectory>,
}

impl Wanted {
    /// What the options say. Who connects to a socket waits from now on.
    pub(super) fn of(parsed: &Parsed) -> Result<Wanted, Failure> {
        let mut options = options(parsed)?;
        if !parsed.has('c') {
            options.connections = CONNECTIONS;
        }
        let listeners = listeners(parsed)?;
        Ok(Wanted { listeners, options, directory: parsed.value(ZVOL).map(console::path) })
    }

    /// Serves the volumes of a machine.
    pub(super) fn begin(self, machine: &Machine) -> Result<Serving, Failure> {
        let Wanted { listeners, options, directory } = self;
        let mut serving = Serving { volumes: Volumes::of(machine), exports: None, directory: None };
        // it ends with the error, too
        let begun = serving.show(directory).and_then(|()| serving.export(listeners, options));
        match begun {
            Ok(()) => Ok(serving),
            Err(why) => {
                serving.end();
                Err(why)
            }
        }
    }
}

impl Serving {
    /// Mounts the directory, if there is to be one.
    fn show(&mut self, directory: Option<PathBuf>) -> Result<(), Failure> {
        let Some(point) = directory else { return Ok(()) };
        let cannot = |why: &dyn std::fmt::Display| failed(format!("--zvol {}: {why}", point.display()));
        make_point(&point).map_err(|e| cannot(&cause(&std::io::Error::from(e.errno()))))?;
        if has_entries(&point) {
            return Err(cannot(&"directory is not empty"));
        }
        let source = console::devices_source().ok_or_else(|| cannot(&"there is no state folder"))?;
        let mounted = DeviceDirectory::mount(Arc::new(self.volumes.clone()), &point, &source);
        self.directory = Some(mounted.map_err(|e| cannot(&e))?);
        Ok(())
    }

    /// Serves over NBD, if there is a socket for it.
    fn export(&mut self, listeners: Vec<Listener>, options: Options) -> Result<(), Failure> {
        if listeners.is_empty() {
            return Ok(());
        }
        warn_of_strangers(&listeners, &options);
        let needs_tls = options.tls.as_ref().is_some_and(nbd::Tls::is_required);
        for listener in &listeners {
            println!("{}", listener.uri(needs_tls).map_err(|e| failed(cause(&e)))?);
        }
        let stop = Arc::new(Stop::new().map_err(|e| failed(cause(&e)))?);
        let (server, told) = (Server::new(self.volumes.clone(), listeners, options), stop.clone());
        let serve = move || server.run(&told);
        let thread = std::thread::Builder::new().name("nbd".to_owned()).spawn(serve);
        self.exports = Some((stop, thread.map_err(|e| failed(cause(&e)))?));
        Ok(())
    }

    /// Returns whether somebody uses a volume.
    pub(super) fn is_used(&self) -> bool {
        self.volumes.are_used()
    }

    /// Ends connections once their requests are answered, and unmounts the directory; who uses files of it gets errors.
    pub(super) fn end(&mut self) {
        if let Some((stop, thread)) = self.exports.take() {
            stop.stop();
            if !thread.join().unwrap_or(false) {
                tracing::warn!(target: "zuse::nbd", "requests of a client could not be ended");
            }
        }
        if let Some(directory) = self.directory.take() {
            let gone = directory.unmount(Unmount::Idle).or_else(|_| directory.unmount(Unmount::Forced));
            if let Err(error) = gone {
                tracing::warn!(target: "zuse::fuse", %error, "the directory of volumes stays mounted");
            }
        }
    }
}
