//! Signals that end a verb which runs until it is told to.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Calls `stop` at the first signal, and ends the process at the second: that leaves pools as a power cut does.
///
/// # Errors
/// What the system says.
#[allow(clippy::disallowed_methods)] // the process is the verb's
pub(super) fn at_signal(stop: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let wait = move || {
        let mut came = signals.forever();
        if came.next().is_some() {
            stop();
        }
        if came.next().is_some() {
            std::process::exit(1);
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    Ok(())
}
