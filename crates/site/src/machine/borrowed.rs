//! Pools that the process of a machine uses for longer than a request, for itself: what serves its volumes.

use std::sync::Arc;

use control::Failed;
use pool::{Pool, Spa};

use super::Machine;
use super::lent::Lent;
use crate::error::opening;
use crate::{Error, Imported};

/// A pool of a machine that is in use: it is not closed or exported until this is dropped.
pub struct Borrowed(Lent);

impl std::fmt::Debug for Borrowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Borrowed").field(&self.record().name).finish()
    }
}

impl Borrowed {
    /// Returns the record of its import, from when it was opened.
    #[must_use]
    pub fn record(&self) -> &Imported {
        self.0.record()
    }

    /// Returns the pool, if it is open for a change.
    #[must_use]
    pub fn spa(&self) -> Option<&Arc<Spa>> {
        self.0.spa()
    }

    /// Returns the pool as it is now.
    ///
    /// # Errors
    /// When its MOS cannot be read.
    pub fn view(&self) -> Result<Arc<Pool>, Failed> {
        let Some(spa) = self.0.spa() else { return self.0.read_only().cloned().ok_or_else(|| self.gone()) };
        spa.view().map_err(|source| opening(Error::Open { name: self.record().name.clone(), source }))
    }

    fn gone(&self) -> Failed {
        super::pools::no_such_pool(&self.record().name)
    }
}

impl Machine {
    /// Borrows an imported pool, which is opened if it is not open. With `for_change` it is made ready for one, if it is open for that: logs are replayed, and devices that were away brought up to date.
    ///
    /// # Errors
    /// ENOENT if there is none of this name; when it does not open; with `for_change` when it is suspended.
    pub fn borrow(&self, pool: &str, for_change: bool) -> Result<Borrowed, Failed> {
        let lent = self.0.lend_named(pool)?;
        if for_change {
            lent.make_ready(&self.0)?;
        }
        Ok(Borrowed(lent))
    }
}
