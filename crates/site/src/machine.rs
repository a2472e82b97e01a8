//! The one door to the pools of this machine: every request of `control`, and those about all pools.
//!
//! # What it is
//! A [`Machine`] is what a server hands requests to: many threads use it at once. Each caller has a [`Session`], which answers by itself what is about the machine: the
//! pools that are imported ([`Ioc::PoolConfigs`]), and one that could be ([`Ioc::PoolTryImport`]); a pool that becomes one of this machine ([`Ioc::PoolImport`],
//! [`Ioc::PoolCreate`]) or ceases to be ([`Ioc::PoolExport`], [`Ioc::PoolDestroy`]); the events of all pools. A question about one pool goes to a [`Query`](crate::Query), and a
//! change to a [`Control`] on the pool.
//!
//! # Who may ask
//! [`Session::call`] checks the caller first of all ([`Ioc::check_caller`]): before a name is looked up, so that nothing is told to those who may not ask. The
//! user who owns the state folder may do all that root may, where the process is his ([`records::owner`](crate::records::owner)). A session of the process itself ([`Machine::own_session`]) is not checked.
//!
//! # Pools stay open
//! A pool that was opened for a change stays open, with the keys that were loaded, until it is [closed](Machine::close), exported or destroyed, or the machine is dropped
//! with all its sessions; and so does one that was imported to be read. A question alone opens no pool for a change: one that is not open yet is read as its devices have it, and
//! another process may write it. Requests to one pool run at the same time; only one that opens the pool lets others wait, but for those that only look. Exporting and destroying waits a moment for them, and then
//! fails with EBUSY as in OpenZFS; but those who wait for an activity of the pool do not keep it. Who is not the owner has no pool opened for a change.
//!
//! Before the first change the pool is brought to where its last user has left it: logs are replayed ([`Site::replay`]), and devices that were away brought up to date
//! ([`Site::catch_up`]). Requests to a suspended pool may have it locked for as long as its devices are away: it can be cleared and closed past them, also while it
//! is still being opened, imported or created.
//!
//! # What a session keeps
//! Its place among the events, and what its diffs have opened ([`control::Kept`]), for a minute. Waits end when the token of the request says so.
//!
//! OpenZFS: `zfsdev_ioctl_common`, `zfs_onexit_init`.

mod borrowed;
mod imports;
mod lent;
mod pools;
mod session;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::Guid;
use control::{Caller, Failed};
use pool::Spa;

pub use borrowed::Borrowed;
pub(crate) use lent::Lent;
pub(crate) use pools::Pools;
use pools::Use;
pub use pools::{LiveHeld, LivePool};

use crate::{Imported, Site};

pub use pools::Mounted;
pub use session::Session;

/// The pools of this machine, for those who make requests to them. A clone is the same.
#[derive(Clone)]
pub struct Machine(pub(crate) Arc<Pools>);

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("open", &self.open_pools()).finish_non_exhaustive()
    }
}

impl Machine {
    /// Takes requests to the pools of `site`. None is open yet.
    #[must_use]
    pub fn new(site: Site) -> Machine {
        Machine(Arc::new(Pools::new(site)))
    }

    /// The requests of a caller, who may make those that are open to him.
    #[must_use]
    pub fn session(&self, caller: Caller) -> Session {
        Session::new(self.0.clone(), caller, Some(crate::records::owner()))
    }

    /// The requests of this process itself, which may make all: the system decides what it can do with devices.
    #[must_use]
    pub fn own_session(&self, caller: Caller) -> Session {
        Session::new(self.0.clone(), caller, None)
    }

    /// Opens an imported pool, if it is not open, and keeps it so: for a change, unless it was imported to be read.
    ///
    /// # Errors
    /// ENOENT if there is none of this name; when it does not open.
    pub fn open(&self, pool: &str) -> Result<(), Failed> {
        self.0.with(pool, Use::OPEN, |_| Ok(()))
    }

    /// Notes that a file system of a pool that is only read is mounted, until what is returned is dropped: the pool is busy for
    /// [`control::Ioc::PoolExport`] meanwhile. Those of a pool that is open for a change make it busy by themselves.
    #[must_use]
    pub fn mounted(&self, guid: Guid) -> Mounted {
        self.0.mounted(guid)
    }

    /// The pools that are open, by name.
    #[must_use]
    pub fn open_pools(&self) -> Vec<Imported> {
        self.0.open_pools()
    }

    /// The pools that are open, by name, for those who only look at figures: neither requests nor devices are waited for.
    #[must_use]
    pub fn live_pools(&self) -> Vec<LivePool> {
        self.0.live()
    }

    /// Whether work goes on in the background of a pool, as a scrub that somebody has begun: it would end with this process, and resume in the next one that
    /// opens the pool.
    #[must_use]
    pub fn is_working(&self) -> bool {
        self.live_pools().iter().any(|pool| matches!(&pool.held, LiveHeld::Writing(spa) if spa.is_working()))
    }

    /// Closes a pool, once the requests to it have ended; it stays imported, and its keys are forgotten but for those that are kept for other processes. A pool that is not open is
    /// passed over. What a suspended pool has not written is given up.
    ///
    /// # Errors
    /// When something could not be written.
    pub fn close(&self, pool: &str) -> Result<(), Failed> {
        self.0.close(pool)
    }

    /// Closes all pools, as [`Machine::close`].
    ///
    /// # Errors
    /// The first failure; the others are closed nevertheless.
    pub fn close_all(&self) -> Result<(), Failed> {
        self.0.close_all()
    }

    /// Closes all pools, as [`Machine::close`], and opens none from now on. Those that requests use for longer than `limit` are left as they are: as a power cut would leave them.
    ///
    /// # Errors
    /// EBUSY if one was left; the first failure.
    pub fn end(&self, limit: Duration) -> Result<(), Failed> {
        self.0.end(limit)
    }

    /// Gives up what suspended pools have not written, as [`Machine::end`] does: what waits for their devices fails. They stay open.
    pub fn give_up_suspended(&self) {
        self.0.give_up_suspended();
    }

    /// Gives up a pool that is open for a change, and leaves it to the program, which closes it ([`Site::hide_changes`]). `None` if it is not, or requests to it wait for its devices.
    #[must_use]
    pub fn take(&self, pool: &str) -> Option<Arc<Spa>> {
        self.0.take(pool)
    }
}
