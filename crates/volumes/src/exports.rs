//! The volumes of a machine as exports of an NBD server.

use std::sync::Arc;

use nbd::{Exports, Failed, Listed, Named};
use pool::Dataset;

use crate::Volumes;

#[allow(clippy::needless_pass_by_value)] // it is passed to `map_err`
fn why(failed: control::Failed) -> Failed {
    Failed { errno: failed.errno, why: failed.to_string() }
}

fn listed(dataset: &Dataset) -> Listed {
    let description = if dataset.is_snapshot() { "a snapshot of a volume" } else { "a volume" };
    Listed { name: dataset.name().to_owned(), description: description.to_owned() }
}

/// There is no default export.
impl Exports for Volumes {
    fn list(&self) -> Result<Vec<Listed>, Failed> {
        let mut all = Vec::new();
        for pool in self.pools() {
            match self.in_pool(&pool) {
                Ok(found) => all.extend(found.iter().map(listed)),
                // those of the other pools can be had
                Err(error) => tracing::warn!(target: "zuse::nbd", pool, %error, "volumes cannot be listed"),
            }
        }
        Ok(all)
    }

    fn find(&self, name: &str) -> Result<Option<Named>, Failed> {
        let Some((_, device)) = self.open(name).map_err(why)? else { return Ok(None) };
        let description = match (name.contains('@'), device.is_read_only()) {
            (true, _) => "a snapshot of a volume",
            (false, true) => "a volume, read-only",
            (false, false) => "a volume",
        };
        Ok(Some(Named { name: name.to_owned(), description: description.to_owned(), export: Arc::new(device) }))
    }
}
