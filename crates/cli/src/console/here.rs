//! The pools of this machine, as the command uses them.

use std::sync::{Arc, Weak};

use control::Control;
use pool::{FailMode, Pool, Spa, SuspendedPool};
use site::{Front, Site};

use super::{Running, current, signals, stderr_is_terminal, user};
use crate::keys;

/// The console of a command as the front end of its site. A pool may outlive the command, which is told nothing more then.
struct Terminal(Weak<Running>);

impl Terminal {
    /// Does `work` for the command: pools call from threads of their own.
    fn tell(&self, work: impl FnOnce()) {
        if let Some(running) = self.0.upgrade() {
            running.enter(work);
        }
    }
}

impl Front for Terminal {
    fn warn(&self, warning: &str) {
        self.tell(|| eprintln!("warning: {warning}"));
    }

    fn waiting(&self, device: &str, holder: &str) {
        self.tell(|| {
            if stderr_is_terminal() {
                eprintln!("waiting: {device} is in use{holder}");
            }
        });
    }

    fn suspended(&self, pool: &SuspendedPool) {
        let SuspendedPool { name, cause, .. } = pool;
        self.tell(|| {
            eprintln!(
                "WARNING: Pool '{name}' has encountered an uncorrectable I/O failure and has been suspended.\n{cause}"
            );
            if pool.failmode == FailMode::Wait {
                eprintln!("Make sure the affected devices are connected, then run 'zpool clear {name}'.");
            }
        });
    }

    fn overdue(&self, line: &str) {
        self.tell(|| eprintln!("zuse: {line}"));
    }

    fn panic(&self, message: &str) {
        self.tell(|| eprintln!("panic: {message}"));
        std::process::abort();
    }

    fn opened(&self, pool: &Arc<Pool>) {
        self.tell(|| keys::load_given(pool));
    }
}

/// The pools of this machine, as the command uses them: the one place where a command gets its site.
pub(crate) fn here() -> Site {
    let running = current();
    let make = || {
        let terminal = Arc::new(Terminal(Arc::downgrade(&running)));
        match &running.machine {
            Some(machine) => Site::of_machine(terminal, machine),
            None => Site::new(terminal),
        }
    };
    running.site.get_or_init(make).clone()
}

/// Takes requests of the user who asks to an open pool; their waits end when the command is interrupted.
pub(crate) fn control(spa: Arc<Spa>) -> Control {
    Control::new(spa, user()).until(&signals().cancel())
}
