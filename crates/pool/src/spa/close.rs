//! Closing, exporting and destroying a pool (OpenZFS: `spa_export_common`, `spa_unload`).

use std::sync::Arc;

use base::tunable;
use nvlist::NvList;
use ondisk::label::key;

use crate::Error;
use crate::spa::Spa;
use crate::spa::config::PoolState;
use crate::spa::datasets::Datasets;

impl Spa {
    /// Writes everything that is dirty and stops, background tasks at the end of their slices. The pool stays marked as in use by this machine.
    ///
    /// # Errors
    /// [`Error::Suspended`].
    pub fn close(self: &Arc<Self>) -> Result<(), Error> {
        if self.thread.lock().is_none() {
            return Ok(());
        }
        self.stop_background();
        self.end_logs();
        let synced = self.sync().and_then(|()| self.sync_afterthoughts());
        if synced.is_err() {
            // a txg that waits for its devices is not committed any more
            self.abandon();
        }
        self.txgs.stop();
        if let Some(thread) = self.thread.lock().take() {
            // the thread has no other result: an error of the sync is in `synced`
            let _ended = thread.join();
        }
        self.multihost.stop();
        // nothing is repaired or freed any more, even if readers remain
        self.zio.close_write();
        tracing::info!(target: "zuse::open", pool = self.name(), synced = synced.is_ok(), "closed");
        synced
    }

    /// Returns whether it was stopped: by [`Spa::close`], [`Spa::export`] or [`Spa::destroy`], whatever came of that.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.thread.lock().is_none()
    }

    /// Writes everything, marks the pool as exported, and stops.
    ///
    /// # Errors
    /// [`Error::Suspended`].
    pub fn export(self: &Arc<Self>) -> Result<(), Error> {
        self.leave(PoolState::Exported)
    }

    /// Marks the pool as destroyed, and stops. Its blocks are left intact: `zpool import -D` can bring it back.
    ///
    /// # Errors
    /// [`Error::Suspended`].
    pub fn destroy(self: &Arc<Self>) -> Result<(), Error> {
        self.leave(PoolState::Destroyed)
    }

    fn leave(self: &Arc<Self>, state: PoolState) -> Result<(), Error> {
        self.stop_background();
        let _alone = self.vdev_change.lock();
        let class = if state == PoolState::Destroyed { "pool_destroy" } else { "pool_export" };
        self.notify(class, &NvList::new());
        if tunable::ZFS_KEEP_LOG_SPACEMAPS_AT_EXPORT.get() == 0 {
            // two txgs: blocks that the first one frees by flushing are recorded by the second
            let flushed = self.early_task(|cx| {
                cx.spa.space.flush_all();
                Ok(())
            });
            if let Err(e) = flushed {
                // its tasks have ended: it cannot go on as it is, and is opened again as any other
                let _closed = self.close();
                return Err(e);
            }
        }
        self.edit_config(|nv| nv.insert(key::POOL_STATE, state as u64));
        self.close()
    }
}

impl Drop for Spa {
    fn drop(&mut self) {
        self.background.stop_soon();
        self.txgs.stop();
        self.suspension.give_up();
        self.multihost.stop();
        // breaks the cycle: the writer leads to the tables and the allocator, which hold object sets that lead to the writer
        self.zio.close_write();
    }
}
