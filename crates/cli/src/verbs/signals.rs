//! Signals that end a verb which runs until it is told to.

use std::sync::Arc;

use base::Stop;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::console;

/// What the first signal tells to stop. The second one ends the process: that leaves pools as a power cut does. A command of a client is told to stop when it is interrupted.
///
/// # Errors
/// What the system says.
#[allow(clippy::disallowed_methods)] // the process is the verb's
pub(super) fn stop_by_signals() -> std::io::Result<Arc<Stop>> {
    let stop = Arc::new(Stop::new()?);
    let told = stop.clone();
    if console::is_of_client() {
        console::signals().when_interrupted(move || told.stop())?;
        return Ok(stop);
    }
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let wait = move || {
        let mut came = signals.forever();
        if came.next().is_some() {
            told.stop();
        }
        if came.next().is_some() {
            std::process::exit(1);
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    Ok(stop)
}
