//! Messages for debugging: on standard error with `ZUSE_LOG`, kept for `zuse kstat` and `zdb -G` ([`pool::dbgmsg`]).
//!
//! `ZUSE_LOG` is a level (`error`, `warn`, `info`, `debug`, `trace`), or targets with levels: `zuse::txg=debug,zuse::open=info`.

use std::io;

use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

/// Begins to keep messages, and to show those that `ZUSE_LOG` asks for.
#[allow(clippy::disallowed_methods)] // they are the process's
pub(crate) fn begin() -> Result<(), String> {
    let shown = match std::env::var_os("ZUSE_LOG").filter(|wanted| !wanted.is_empty()) {
        Some(wanted) => {
            let wanted = wanted.to_string_lossy();
            let targets: Targets = wanted.parse().map_err(|e| format!("'{wanted}': {e}"))?;
            Some(tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).with_filter(targets))
        }
        None => None,
    };
    // it is the first thing that this process does
    let _first =
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(pool::dbgmsg::layer()).with(shown));
    Ok(())
}
