//! `zuse serve`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use monitor::{Address, Endpoint, KstatMount, Tree};
use mounts::Mounts;
use serve::{Client, Options, Server, Watched};

use super::flags::{DELEGATION, KSTAT, METRICS, NO_MOUNTS, ON_DEMAND, STOP};
use super::signals::stop_by_signals;
use crate::args::Parsed;
use crate::console::{self, CommandLines, here};
use crate::error::{Failure, Outcome, cause, failed, usage};
use crate::pools::stdout;

/// The time after which a server that was started on demand ends, if nobody needs it.
const UNNEEDED: Duration = Duration::from_secs(2);

pub(super) fn run(parsed: &Parsed) -> Outcome {
    if let Some(name) = parsed.names().first() {
        return Err(usage(format!("'{name}': no operand is expected")));
    }
    if console::is_of_client() {
        return Err(failed("a server is not started or ended by the commands of one"));
    }
    if let Some(folder) = parsed.values('S').last() {
        let folder = console::absolute(folder).map_err(|e| failed(format!("{}: {}", folder.display(), cause(&e))))?;
        site::records::use_folder(folder);
    }
    if parsed.has(STOP) {
        return stop();
    }
    let monitors = Monitors::of(parsed)?;
    let mut idle = parsed.text('i').map(|text| seconds(&text)).transpose()?;
    if parsed.has(ON_DEMAND) {
        idle = idle.or(Some(UNNEEDED));
        // one that begins a process group has a session of its own, or gets none; the name is for messages about who has a device
        let _own_session = rustix::process::setsid();
        let _named = std::fs::write("/proc/self/comm", "zuse");
    }
    let mounts = (!parsed.has(NO_MOUNTS) && fuse::is_available()).then(Arc::<Mounts>::default);
    let runner = Some(Arc::new(CommandLines { mounts: mounts.clone() }) as _);
    let mut options = Options { delegation: parsed.has(DELEGATION), idle, runner, ..Options::default() };
    if let Some(mounts) = &mounts {
        let (used, left) = (mounts.clone(), mounts.clone());
        options.in_use = Some(Arc::new(move || !used.is_empty()));
        options.ending = Some(Arc::new(move || unmount_all(&left)));
    }
    // a signal that comes from now on ends it in order
    let stop = stop_by_signals().map_err(|e| failed(cause(&e)))?;
    let server = Server::new(here().clone(), options).map_err(|e| failed(cause(&e)))?;
    // those of a former server: nobody answers there
    console::unmount_dead();
    // until the server has ended
    let _monitored = monitors.begin(&server.watched())?;
    server.run(&stop).map_err(|e| failed(format!("a pool could not be closed: {e}")))?;
    Ok(0)
}

/// What programs read beside the commands, as it was asked for.
struct Monitors {
    kstat: Option<PathBuf>,
    metrics: Option<Address>,
}

/// What they read, until it is dropped.
struct Monitored {
    _endpoint: Option<Endpoint>,
    _kstat: Option<KstatMount>,
}

impl Monitors {
    fn of(parsed: &Parsed) -> Result<Monitors, Failure> {
        let metrics = parsed.text(METRICS).map(|text| text.parse::<Address>()).transpose();
        let metrics = metrics.map_err(|why| usage(format!("--metrics {why}")))?;
        Ok(Monitors { kstat: parsed.value(KSTAT).map(PathBuf::from), metrics })
    }

    /// Mounts the kstats and begins to answer; prints where the metrics are, as the port may be any that is free.
    fn begin(self, server: &Watched) -> Result<Monitored, Failure> {
        let absolute = |path: &Path| {
            console::absolute(path.as_os_str()).map_err(|e| failed(format!("{}: {}", path.display(), cause(&e))))
        };
        let mount = |point: PathBuf| {
            let tree = Tree::new(server.machine().clone());
            let mounted = absolute(&point).map(|at| KstatMount::new(tree, &at))?;
            mounted.map_err(|e| failed(format!("cannot mount kstats at '{}': {}", point.display(), cause(&e))))
        };
        let answer = |address: Address| {
            let address = match address {
                Address::Unix(path) => Address::Unix(absolute(&path)?),
                tcp => tcp,
            };
            let endpoint = Endpoint::new(&address, monitor::metrics_of(server.clone()));
            let endpoint =
                endpoint.map_err(|e| failed(format!("cannot answer at the address of metrics: {}", cause(&e))))?;
            let mut out = stdout();
            writeln!(out, "metrics: {}", endpoint.address())?;
            out.flush()?;
            Ok::<_, Failure>(endpoint)
        };
        let kstat = self.kstat.map(mount).transpose()?;
        Ok(Monitored { _endpoint: self.metrics.map(answer).transpose()?, _kstat: kstat })
    }
}

/// Unmounts everything at the end of the server: who uses it gets errors.
fn unmount_all(mounts: &Mounts) {
    if let Err(e) = mounts.unmount_all() {
        tracing::warn!(target: "zuse::fuse", error = %e, "a file system stays mounted");
    }
}

/// Ends the server that there is.
fn stop() -> Outcome {
    let client = Client::connect().map_err(|e| failed(e.to_string()))?;
    let client = client.ok_or_else(|| failed("there is no server"))?;
    client.end_server().map_err(|e| failed(e.to_string()))?;
    Ok(0)
}

fn seconds(text: &str) -> Result<Duration, Failure> {
    let number = text.parse().ok().filter(|seconds| *seconds > 0);
    number.map(Duration::from_secs).ok_or_else(|| usage(format!("--idle {text}: a number of seconds is expected")))
}
