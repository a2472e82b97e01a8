//! The calls of the pool's engine into the layer of datasets (OpenZFS: what `spa.c` calls of `dsl_pool.c` and `zil.c`).
//!
//! `dsl` stands above `spa`: it uses the engine as it likes, and the engine knows of it this trait and the state that hangs on a [`Spa`]
//! (OpenZFS: `spa_dsl_pool`).

use std::sync::Arc;

use base::{ObjectId, Txg};
use dmu::Tx;

use crate::spa::bpobj::Delta;
use crate::spa::create::NewRoot;
use crate::spa::mos::Mos;
use crate::spa::zthr::Next;
use crate::{Error, Pool, Value};

/// The logs that an opening may lose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostLogs {
    /// Those of datasets that cannot be read.
    pub(crate) unknown: bool,
    /// Claimed ones on a log device that is gone.
    pub(crate) gone: bool,
    /// Unclaimed ones that cannot be read to their end.
    pub(crate) unread: bool,
}

/// The datasets of a pool open for writing, as its engine sees them.
pub(crate) trait Datasets {
    /// Checks properties that the root file system of a new pool is to have.
    fn check_root_props(props: &[(String, Value)]) -> Result<(), Error>;

    /// Makes the directories of a new pool. Returns the root directory.
    fn create_dirs(&self, mos: &Mos, tx: &Tx) -> Result<ObjectId, Error>;

    /// Makes the root file system of a new pool, and the snapshot that it descends from.
    fn create_root(self: &Arc<Self>, mos: &Mos, tx: &Tx, dir: ObjectId, new: NewRoot) -> Result<(), Error>;

    /// Claims the intent logs in the first txg, before the sync thread runs. Returns the datasets whose headers change.
    fn claim(&self, pool: &Arc<Pool>, lost_ok: LostLogs) -> Result<Vec<ObjectId>, Error>;

    /// Goes on with the destruction of datasets that an earlier import left unfinished; the sync thread runs.
    fn resume_destroys(&self) -> Result<(), Error>;

    /// Ends the import: the txg with the headers of `claimed` is on disk.
    fn opened(self: &Arc<Self>, claimed: &[ObjectId]) -> Result<(), Error>;

    /// Keeps the use of datasets by the sync thread apart from that by others, for one pass.
    fn enter_pass(&self) -> impl Sized + '_;

    /// The logs' part in a txg, before anything else of it is written.
    fn sync_logs_of(&self, tx: &Tx) -> Result<(), Error>;

    /// Writes the datasets that are dirty in this txg.
    fn sync_dirty(&self, mos: &Mos, tx: &Tx) -> Result<(), Error>;

    /// Runs the task that frees what destroyed datasets leave, if there is any.
    fn sync_destroys(&self, mos: &Mos, tx: &Tx) -> Result<(), Error>;

    /// Frees a slice of what destroyed datasets leave.
    fn free_slice(&self, mos: &Mos, tx: &Tx) -> Result<Next, Error>;

    /// Books the growth of the MOS.
    fn mos_grew(&self, mos: &Mos, tx: &Tx, delta: Delta) -> Result<(), Error>;

    /// A sync task has ended.
    fn task_ended(&self);

    /// A txg is on disk.
    fn txg_synced(&self, txg: Txg);

    /// Brings intent logs to disk and ends them; none begins before the returned value is dropped.
    fn pause_logs(self: &Arc<Self>) -> Result<impl Sized, Error>;

    /// Ends all logs, as the pool is closed; the next txg frees their blocks.
    fn end_logs(&self);

    /// Statistics of all intent logs.
    fn log_figures(&self) -> Vec<(&'static str, u64)>;
}

/// The names of datasets, for properties of the pool that are one.
pub(crate) trait DatasetNames {
    /// Returns the name of the dataset in object `id`.
    fn dataset_name(self: &Arc<Self>, id: ObjectId) -> Result<String, Error>;
}
