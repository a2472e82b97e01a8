//! Messages for whoever looks for a fault: on standard error with `ZUSE_LOG`, or after `zdb -G`.
//!
//! `ZUSE_LOG` is a level (`error`, `warn`, `info`, `debug`, `trace`), or targets with levels: `zuse::txg=debug,zuse::open=info`. Without it and without
//! `-G` nothing is formatted. OpenZFS: `zfs_dbgmsg`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt};

/// Messages that are kept for `zdb -G`.
const KEPT_MAX: usize = 10_000;

static KEPT: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Begins to show messages, if `ZUSE_LOG` asks for it.
pub(crate) fn begin() -> Result<(), String> {
    let Some(wanted) = std::env::var_os("ZUSE_LOG").filter(|wanted| !wanted.is_empty()) else { return Ok(()) };
    let wanted = wanted.to_string_lossy();
    let targets: Targets = wanted.parse().map_err(|e| format!("'{wanted}': {e}"))?;
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).with_filter(targets);
    // it is the first thing that this process does
    let _first = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(lines));
    Ok(())
}

/// Begins to keep messages, unless they are shown already.
pub(crate) fn keep() {
    let kept = tracing_subscriber::registry().with(Keep.with_filter(LevelFilter::DEBUG));
    let _shown = tracing::subscriber::set_global_default(kept);
}

/// Returns the messages that were kept, oldest first.
pub(crate) fn kept() -> Vec<String> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

struct Keep;

impl<S: Subscriber> Layer<S> for Keep {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line(event.metadata().target().to_owned());
        event.record(&mut line);
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(line.0);
        if kept.len() > KEPT_MAX {
            kept.pop_front();
        }
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // a `String` takes everything
        let _written = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
