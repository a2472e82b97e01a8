//! Scrubs, resilvers and rebuilds, past and present.

use base::{ObjectId, Txg};
use ondisk::scan::{RebuildPhys, ScanPhys};

use crate::{Error, Pool};

impl Pool {
    /// The last or present scrub or resilver; `None` if there never was one.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn scan(&self) -> Result<Option<ScanPhys>, Error> {
        let Some(words) = self.mos_words("scan")? else { return Ok(None) };
        ScanPhys::from_words(&words)
            .map(Some)
            .map_err(|source| Error::Format { object: ObjectId::POOL_DIRECTORY, source })
    }

    /// The txg up to which the last complete scrub looked; 0 if there was none.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn last_scrubbed_txg(&self) -> Result<Txg, Error> {
        Ok(Txg(self.mos.number("last_scrubbed_txg")?.unwrap_or(0)))
    }

    /// The last or present sequential rebuild of a top-level vdev.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn rebuild(&self, top: u64) -> Result<Option<RebuildPhys>, Error> {
        let Some(vdev) = self.tree().top(top) else { return Ok(None) };
        let Some(zap) = self.mos.zap_if(vdev.config().top_zap)? else { return Ok(None) };
        let Some(value) = zap.lookup("org.openzfs:vdev_rebuild")? else { return Ok(None) };
        RebuildPhys::from_words(&value.u64s())
            .map(Some)
            .map_err(|source| Error::Format { object: zap.object().id(), source })
    }
}
