//! Sync tasks: changes of the MOS, made by the sync thread (OpenZFS: `dsl_synctask.c`).
//!
//! A task checks first. Once it has changed anything it must complete: half of it on disk would be damage that no older uberblock undoes.
//! So each task has its own hold on the txg, which knows whether anything was changed with it ([`Tx::is_used`]). An error before the first
//! change is returned to the caller. One after it suspends the pool before the uberblock is written: the state on disk stays the txg
//! before, and every waiting caller gets the error.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use base::Txg;
use dmu::{Tx, TxObjects};
use parking_lot::Mutex;

use crate::Error;
use crate::spa::mos::Mos;
use crate::spa::{Reservation, Spa};

/// The context of a sync task.
pub struct TaskCx<'a> {
    /// The pool.
    pub spa: &'a Arc<Spa>,
    /// The MOS.
    pub(crate) mos: &'a Mos,
    /// The txg that is being synced.
    pub tx: &'a Tx,
}

impl std::fmt::Debug for TaskCx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "task in {:?}", self.tx)
    }
}

/// Average bytes of a block that a task writes (OpenZFS: `DST_AVG_BLKSHIFT`).
const TASK_BLOCK: u64 = 16 << 10;

/// The work of a task. Returns its error if it failed.
type Job = Box<dyn FnOnce(&TaskCx<'_>) -> Result<(), Arc<Error>> + Send>;

/// The result of a task for the waiting caller: the error may be needed twice.
type Told<R> = Result<R, Arc<Error>>;

/// Waiting tasks, by the txg that they run in.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<Vec<Waiting>>);

struct Waiting {
    txg: Txg,
    early: bool,
    job: Job,
}

impl Tasks {
    /// Takes the tasks of `txg`, early or not, in the order of their arrival.
    pub(crate) fn take(&self, txg: Txg, early: bool) -> Vec<Job> {
        let mut all = self.0.lock();
        let due = |task: &Waiting| task.txg <= txg && task.early == early;
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut *all).into_iter().partition(due);
        *all = later;
        now.into_iter().map(|task| task.job).collect()
    }
}

impl Spa {
    /// Runs `work` in the next sync and waits until its txg is on disk. `work` must check everything that can be checked before it changes
    /// anything: an error that it returns after a change suspends the pool, and nothing of the txg reaches the disk.
    ///
    /// # Errors
    /// The error that `work` returned before it changed anything; [`Error::Suspended`].
    pub fn sync_task<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&TaskCx<'_>) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        self.task(false, work)
    }

    /// As [`Spa::sync_task`], for work that writes `blocks` more blocks of metadata: space for them is reserved first, as for data
    /// (OpenZFS: `ZFS_SPACE_CHECK_NORMAL`).
    ///
    /// # Errors
    /// [`Error::NoSpace`]; as [`Spa::sync_task`].
    pub(crate) fn growing_task<R: Send + 'static>(
        self: &Arc<Self>,
        blocks: usize,
        work: impl FnOnce(&TaskCx<'_>) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        // the reservation lasts until the txg is on disk
        drop(self.reserve(
            Reservation { bytes: blocks as u64 * TASK_BLOCK, keeps: true, ..Reservation::default() },
            false,
        )?);
        self.sync_task(work)
    }

    /// As [`Spa::sync_task`], before anything else of the txg is written (OpenZFS: `dsl_early_sync_task`).
    pub(crate) fn early_task<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&TaskCx<'_>) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        self.task(true, work)
    }

    /// Makes the next task fail after this many changes, for tests.
    pub fn fail_next_task(&self, changes: u64) {
        self.task_fault.store(changes, Ordering::Relaxed);
    }

    fn task<R: Send + 'static>(
        self: &Arc<Self>,
        early: bool,
        work: impl FnOnce(&TaskCx<'_>) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        let (tell, told) = mpsc::channel::<Told<R>>();
        let txg = {
            // the hold keeps the txg open until the task is in its list
            let place = self.txgs.assign(TxObjects::none())?;
            let job: Job = Box::new(move |cx| {
                let done = work(cx).map_err(Arc::new);
                let failed = done.as_ref().err().cloned().map_or(Ok(()), Err);
                drop(tell.send(done));
                failed
            });
            self.tasks.0.lock().push(Waiting { txg: place.txg(), early, job });
            self.txgs.note_work();
            place.txg()
        };
        let synced = self.txgs.wait_synced(txg);
        self.tell_props_changed();
        match (told.try_recv(), synced) {
            (Ok(Ok(result)), synced) => synced.map(|()| result),
            // the only holder of the error: nothing was changed
            (Ok(Err(error)), Ok(())) => Err(Arc::try_unwrap(error).unwrap_or_else(Error::Suspended)),
            (_, Err(suspended)) => Err(suspended),
            (Err(_), Ok(())) => Err(Error::Closed),
        }
    }

    /// Returns how many tasks wait for their txg.
    #[cfg(test)]
    pub(crate) fn waiting_tasks(&self) -> usize {
        self.tasks.0.lock().len()
    }

    /// Runs `work` in the next sync, without waiting (OpenZFS: `dsl_sync_task_nowait`).
    pub(crate) fn sync_task_nowait(
        self: &Arc<Self>,
        work: impl FnOnce(&TaskCx<'_>) + Send + 'static,
    ) -> Result<(), Error> {
        let place = self.txgs.assign(TxObjects::none())?;
        let job: Job = Box::new(move |cx| {
            work(cx);
            Ok(())
        });
        self.tasks.0.lock().push(Waiting { txg: place.txg(), early: false, job });
        self.txgs.note_work();
        Ok(())
    }

    /// Runs `work` in the sync of the txg of `tx`, without waiting. Blocks of the txg count on it: its error suspends the pool.
    pub(crate) fn task_of(
        self: &Arc<Self>,
        tx: &Tx,
        work: impl FnOnce(&TaskCx<'_>) -> Result<(), Error> + Send + 'static,
    ) {
        let job: Job =
            Box::new(move |cx| work(cx).map_err(Arc::new).inspect_err(|error| cx.spa.txgs.fail(error.clone())));
        self.tasks.0.lock().push(Waiting { txg: tx.txg(), early: false, job });
        self.txgs.note_work();
    }
}
