//! The pools of this machine, as this process uses them.

use std::io::{self, IsTerminal};
use std::sync::{Arc, OnceLock};

use pool::{FailMode, Pool, SuspendedPool};
use site::{Front, Site};

use crate::keys::given;

/// Standard error and the terminal, as the front end of a site.
struct Terminal;

impl Front for Terminal {
    fn warn(&self, warning: &str) {
        eprintln!("warning: {warning}");
    }

    fn waiting(&self, device: &str, holder: &str) {
        if io::stderr().is_terminal() {
            eprintln!("waiting: {device} is in use{holder}");
        }
    }

    fn suspended(&self, pool: &SuspendedPool) {
        let SuspendedPool { name, cause, .. } = pool;
        eprintln!(
            "WARNING: Pool '{name}' has encountered an uncorrectable I/O failure and has been suspended.\n{cause}"
        );
        if pool.failmode == FailMode::Wait {
            eprintln!("Make sure the affected devices are connected, then run 'zpool clear {name}'.");
        }
    }

    fn overdue(&self, line: &str) {
        eprintln!("zuse: {line}");
    }

    fn panic(&self, message: &str) {
        eprintln!("panic: {message}");
        std::process::abort();
    }

    fn opened(&self, pool: &Arc<Pool>) {
        given::load_given(pool);
    }
}

/// The pools of this machine, as this process uses them.
pub(crate) fn here() -> &'static Site {
    static HERE: OnceLock<Site> = OnceLock::new();
    HERE.get_or_init(|| Site::new(Arc::new(Terminal)))
}
