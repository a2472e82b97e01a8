//! Sync tasks: changes of the MOS, made by the thread that syncs (OpenZFS: `dsl_synctask.c`).

use std::sync::Arc;
use std::sync::mpsc;

use base::Txg;
use dmu::Tx;
use parking_lot::Mutex;

use crate::Error;
use crate::mos::Mos;
use crate::spa::{Aside, Spa};

/// What a sync task works with.
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

/// Bytes of a block that a task writes, on the average (OpenZFS: `DST_AVG_BLKSHIFT`).
const TASK_BLOCK: u64 = 16 << 10;

type Job = Box<dyn FnOnce(&TaskCx<'_>) + Send>;

/// Tasks that wait, by the txg that they go into.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<Vec<Waiting>>);

struct Waiting {
    txg: Txg,
    early: bool,
    job: Job,
}

impl Tasks {
    /// The tasks of `txg`, early or not, in the order in which they came.
    pub(crate) fn take(&self, txg: Txg, early: bool) -> Vec<Job> {
        let mut all = self.0.lock();
        let due = |task: &Waiting| task.txg <= txg && task.early == early;
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut *all).into_iter().partition(due);
        *all = later;
        now.into_iter().map(|task| task.job).collect()
    }
}

impl Spa {
    /// Runs `work` in the next sync and waits until its txg is on disk. `work` must check all that can be checked before it changes
    /// anything: an error that it returns after a change does not undo the change.
    ///
    /// # Errors
    /// What `work` returned, or [`Error::Suspended`].
    pub fn sync_task<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&TaskCx<'_>) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        self.task(false, work)
    }

    /// As [`Spa::sync_task`], for work that writes `blocks` blocks of metadata more: the room for them is set aside first, as for
    /// data (OpenZFS: `ZFS_SPACE_CHECK_NORMAL`).
    ///
    /// # Errors
    /// [`Error::NoSpace`]; as [`Spa::sync_task`].
    pub(crate) fn growing_task<R: Send + 'static>(
        self: &Arc<Self>,
        blocks: usize,
        work: impl FnOnce(&TaskCx<'_>) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        // what is set aside stays so until the txg is on disk
        drop(self.reserve(Aside { bytes: blocks as u64 * TASK_BLOCK, keeps: true, room: None }, false)?);
        self.sync_task(work)
    }

    /// As [`Spa::sync_task`], before anything else of the txg is written (OpenZFS: `dsl_early_sync_task`).
    pub(crate) fn early_task<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&TaskCx<'_>) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        self.task(true, work)
    }

    fn task<R: Send + 'static>(
        self: &Arc<Self>,
        early: bool,
        work: impl FnOnce(&TaskCx<'_>) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        let (tell, told) = mpsc::channel();
        let txg = {
            // the place keeps the txg open until the task is in its list
            let place = self.txgs.assign()?;
            let job: Job = Box::new(move |cx| drop(tell.send(work(cx))));
            self.tasks.0.lock().push(Waiting { txg: place.txg(), early, job });
            self.txgs.note_work();
            place.txg()
        };
        let synced = self.txgs.wait_synced(txg);
        self.tell_props_changed();
        match told.try_recv() {
            Ok(Err(error)) => Err(error),
            Ok(Ok(result)) => synced.map(|()| result),
            Err(_) => Err(synced.err().unwrap_or(Error::Closed)),
        }
    }

    /// Runs `work` in the next sync; nobody waits for it (OpenZFS: `dsl_sync_task_nowait`).
    pub(crate) fn later(self: &Arc<Self>, work: impl FnOnce(&TaskCx<'_>) + Send + 'static) -> Result<(), Error> {
        let place = self.txgs.assign()?;
        self.tasks.0.lock().push(Waiting { txg: place.txg(), early: false, job: Box::new(work) });
        self.txgs.note_work();
        Ok(())
    }

    /// Marks, in the txg of `tx`, that dataset `id` uses feature `name` (OpenZFS: `ds_feature_activation`). Does not wait.
    pub fn use_dataset_feature(self: &Arc<Self>, tx: &Tx, id: u64, name: &'static str) {
        let job: Job = Box::new(move |cx| {
            if let Err(error) = cx.spa.activate_dataset_feature(cx.mos, cx.tx, id, name) {
                cx.spa.txgs.fail(Arc::new(error));
            }
        });
        self.tasks.0.lock().push(Waiting { txg: tx.txg(), early: false, job });
        self.txgs.note_work();
    }
}
