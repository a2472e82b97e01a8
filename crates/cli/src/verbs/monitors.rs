//! What programs read of a server beside the commands: kstats and metrics.

use std::io::Write;
use std::path::{Path, PathBuf};

use monitor::{Address, Endpoint, KstatMount, Tree};
use serve::Watched;

use super::flags::{KSTAT, METRICS};
use crate::args::Parsed;
use crate::console;
use crate::error::{Failure, cause, failed, usage};
use crate::pools::stdout;

/// What programs read beside the commands, as it was asked for.
pub(super) struct Monitors {
    kstat: Option<PathBuf>,
    metrics: Option<Address>,
}

/// What they read, until it is dropped.
pub(super) struct Monitored {
    _endpoint: Option<Endpoint>,
    _kstat: Option<KstatMount>,
}

impl Monitors {
    pub(super) fn of(parsed: &Parsed) -> Result<Monitors, Failure> {
        let metrics = parsed.text(METRICS).map(|text| text.parse::<Address>()).transpose();
        let metrics = metrics.map_err(|why| usage(format!("--metrics {why}")))?;
        Ok(Monitors { kstat: parsed.value(KSTAT).map(PathBuf::from), metrics })
    }

    /// Mounts the kstats and begins to answer; prints where the metrics are, as the port may be any that is free.
    pub(super) fn begin(self, server: &Watched) -> Result<Monitored, Failure> {
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
