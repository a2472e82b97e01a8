//! `zuse serve`.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use mounts::Mounts;
use serve::{Client, Options, Server};

use super::flags::{DELEGATION, NO_MOUNTS, ON_DEMAND, STOP};
use super::monitors::Monitors;
use super::signals::stop_by_signals;
use super::volumes::{Serving, Wanted};
use crate::args::Parsed;
use crate::console::{self, CommandLines, here};
use crate::error::{Failure, Outcome, cause, failed, usage};
use crate::zfs::snapshot_admin;

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
        // one that begins a process group has a session of its own, or gets none
        let _own_session = rustix::process::setsid();
    }
    // it is for messages about who has a device
    let _named = std::fs::write("/proc/self/comm", "zuse");
    // the threads of a mount have buffers of 16 MiB each, of which an idle one uses a page: a huge page would be 2 MiB
    let _small_pages = rustix::thread::disable_transparent_huge_pages(true);
    let wanted = Wanted::of(parsed)?;
    let serving = Arc::new(Mutex::new(None::<Serving>));
    let mounts = (!parsed.has(NO_MOUNTS) && fuse::is_available())
        .then(|| Arc::new(Mounts::with_admins(Box::new(snapshot_admin))));
    let is_clear = Arc::<OnceLock<()>>::default();
    let runner = Some(Arc::new(CommandLines { mounts: mounts.clone(), is_clear: is_clear.clone() }) as _);
    let mut options = Options { delegation: parsed.has(DELEGATION), idle, runner, ..Options::default() };
    let (used, volumes) = (mounts.clone(), serving.clone());
    let has_users = move || locked(&volumes).as_ref().is_some_and(Serving::is_used);
    options.in_use = Some(Arc::new(move || used.as_ref().is_some_and(|mounts| !mounts.is_empty()) || has_users()));
    let (left, volumes) = (mounts, serving.clone());
    options.ending = Some(Arc::new(move || {
        let served = locked(&volumes).take();
        served.into_iter().for_each(|mut served| served.end());
        left.iter().for_each(|mounts| unmount_all(mounts));
    }));
    // a signal that comes from now on ends it in order
    let stop = stop_by_signals().map_err(|e| failed(cause(&e)))?;
    let server = Server::new(here().clone(), options).map_err(|e| failed(cause(&e)))?;
    clear(is_clear);
    let begun =
        monitors.begin(&server.watched()).and_then(|monitored| Ok((monitored, wanted.begin(server.machine())?)));
    // until the server has ended
    let _monitored = match begun {
        Ok((monitored, begun)) => {
            *locked(&serving) = Some(begun);
            monitored
        }
        Err(why) => {
            server.give_up();
            return Err(why);
        }
    };
    server.run(&stop).map_err(|e| failed(format!("a pool could not be closed: {e}")))?;
    Ok(0)
}

/// Unmounts what a former server has left mounted, where nobody answers: directories of volumes at once, as there may be one of this server; file systems beside
/// what else begins, as it may take long where many are mounted, and who connects is to be answered soon.
fn clear(is_clear: Arc<OnceLock<()>>) {
    let is_ours = console::ours();
    fuse::unmount_dead(|seen| seen.is_devices && is_ours(seen));
    let done = Cleared(is_clear);
    let unmount = move || {
        let _done = done;
        fuse::unmount_dead(|seen| !seen.is_devices && is_ours(seen));
    };
    // without a thread they stay: nothing can be mounted where they are
    let _begun = std::thread::Builder::new().name("clear".to_owned()).spawn(unmount);
}

/// Lets commands begin, when it is dropped.
struct Cleared(Arc<OnceLock<()>>);

impl Drop for Cleared {
    fn drop(&mut self) {
        let _once = self.0.set(());
    }
}

/// The volumes that are served. A thread that has panicked with them has left them as they were.
fn locked(serving: &Mutex<Option<Serving>>) -> MutexGuard<'_, Option<Serving>> {
    serving.lock().unwrap_or_else(PoisonError::into_inner)
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
