//! Scrubs, resilvers and error scrubs of an open pool. They run in the background, while the pool is used.

use std::sync::Arc;

use pool::{ScanEnd, ScanFigures, ScrubRange, Spa};

use crate::{Error, Pool};

/// A scrub, resilver or error scrub that runs in the background of a pool. It goes on if the handle is dropped, pauses when the pool is closed,
/// and resumes when it is next opened.
#[derive(Clone, Debug)]
pub struct Scan(Arc<Spa>);

impl Scan {
    /// Waits until it ends. `progress` is called every now and then.
    ///
    /// # Errors
    /// The error that ended it; it can be begun again, and resumes where it was.
    pub fn wait(&self, mut progress: impl FnMut(ScanFigures)) -> Result<ScanEnd, Error> {
        Ok(self.0.scan_wait(&mut progress)?)
    }

    /// Returns the progress; `None` if it has ended.
    #[must_use]
    pub fn figures(&self) -> Option<ScanFigures> {
        self.0.scan_figures()
    }

    /// Pauses a scrub or error scrub until it is begun again. Returns false if none was running.
    ///
    /// # Errors
    /// When it is paused; when the pool is suspended.
    pub fn pause(&self) -> Result<bool, Error> {
        Ok(self.0.scrub_pause()?)
    }

    /// Cancels a scrub or error scrub. Returns false if none was running.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn cancel(&self) -> Result<bool, Error> {
        Ok(self.0.scrub_cancel()?)
    }
}

/// Scans of the whole pool.
impl Pool {
    /// Begins a scrub: every block of `range` is read, all its copies and parity, and repaired where it is wrong. An unfinished scrub resumes,
    /// over the range that it had.
    ///
    /// ```
    /// # fn main() -> Result<(), zuse::Error> {
    /// # let pool = zuse::Pool::in_memory("tank", 128 << 20)?;
    /// use zuse::pool::{ScanEnd, ScrubRange};
    /// let scrub = pool.scrub(ScrubRange::default())?;
    /// pool.files("tank")?.write(b"meanwhile.txt", b"as ever")?;
    /// let end = scrub.wait(|figures| println!("{} bytes", figures.bytes))?;
    /// assert!(matches!(end, ScanEnd::Finished(tally) if tally.lost_blocks == 0));
    /// # pool.export()
    /// # }
    /// ```
    ///
    /// # Errors
    /// While a resilver or an error scrub is not finished; [`Error::ReadOnly`]; when the pool is suspended.
    pub fn scrub(&self, range: ScrubRange) -> Result<Scan, Error> {
        let spa = self.spa()?;
        spa.scrub(range)?;
        Ok(Scan(spa.clone()))
    }

    /// Begins a scrub of the blocks in the pool's list of errors; `None` if the list is empty. An unfinished one begins anew.
    ///
    /// # Errors
    /// While a scrub or a resilver is not finished; [`Error::ReadOnly`]; when the pool is suspended.
    pub fn error_scrub(&self) -> Result<Option<Scan>, Error> {
        let spa = self.spa()?;
        Ok(spa.error_scrub()?.then(|| Scan(spa.clone())))
    }

    /// Begins a resilver: blocks that devices missed while they were away are read and written there. An unfinished one resumes. `None` if no
    /// device that can be written has missed anything.
    ///
    /// # Errors
    /// While an error scrub is not finished; [`Error::ReadOnly`]; when the pool is suspended.
    pub fn resilver(&self) -> Result<Option<Scan>, Error> {
        let spa = self.spa()?;
        Ok(spa.resilver(true)?.then(|| Scan(spa.clone())))
    }

    /// Returns the scan that runs, if one does.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn scan(&self) -> Result<Option<Scan>, Error> {
        let spa = self.spa()?;
        Ok(spa.scan_figures().map(|_| Scan(spa.clone())))
    }
}
