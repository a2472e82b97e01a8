//! The pool's history: commands and internal events (OpenZFS: `spa_history_log`, `spa_history_log_internal`).

use std::sync::Arc;

use base::ObjectId;
use dmu::Tx;
use nvlist::NvList;

use super::{HISTORY, append};
use crate::Error;
use crate::spa::mos::Mos;
use crate::spa::{Spa, config};

impl Spa {
    /// Records a command line, as user `who` typed it.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn log_history(self: &Arc<Self>, who: u32, command: &str) -> Result<(), Error> {
        let mut record = NvList::new();
        record.insert("history command", command);
        record.insert("history who", u64::from(who));
        record.insert("history zone", "linux");
        // a record that cannot be written is no reason to stop the pool
        self.sync_task(move |cx| Ok(cx.spa.put_history(cx.mos, cx.tx, record)))?
    }

    /// Records a request of user `who` with its arguments and its answer. Does not wait, and leaves out what does not fit the history (OpenZFS:
    /// `spa_history_log_nvl`).
    ///
    /// # Errors
    /// [`Error::Suspended`], [`Error::Closed`].
    pub fn log_request(self: &Arc<Self>, who: u32, mut record: NvList) -> Result<(), Error> {
        record.insert("history zone", "linux");
        record.insert("history who", u64::from(who));
        self.sync_task_nowait(move |cx| drop(cx.spa.put_history(cx.mos, cx.tx, record)))
    }

    /// Records an event of the pool itself.
    pub(crate) fn log_internal(&self, mos: &Mos, tx: &Tx, event: &str, what: &str) -> Result<(), Error> {
        let mut record = NvList::new();
        record.insert("history internal str", what);
        record.insert("internal_name", event);
        record.insert("history txg", tx.txg().0);
        tracing::info!(target: "zuse::history", pool = self.name(), txg = tx.txg().0, event, what);
        self.note_history(mos, tx, record)
    }

    /// Records a change of a dataset: its full name and its object (OpenZFS: `spa_history_log_internal_ds`).
    pub(crate) fn log_named(
        &self,
        mos: &Mos,
        tx: &Tx,
        event: &str,
        (name, id): (&str, ObjectId),
        what: &str,
    ) -> Result<(), Error> {
        let mut record = NvList::new();
        record.insert("dsname", name);
        record.insert("dsid", id.0);
        record.insert("history internal str", what);
        record.insert("internal_name", event);
        record.insert("history txg", tx.txg().0);
        tracing::info!(target: "zuse::history", pool = self.name(), txg = tx.txg().0, event, dataset = name, id = id.0, what);
        self.note_history(mos, tx, record)
    }

    /// Records a completed task. A failure to record it is ignored, because the change itself is made (OpenZFS ignores the errors of its
    /// history, too).
    fn note_history(&self, mos: &Mos, tx: &Tx, record: NvList) -> Result<(), Error> {
        match self.put_history(mos, tx, record) {
            Err(_) if mos.id_of(HISTORY)?.is_some() => Ok(()),
            done => done,
        }
    }

    fn put_history(&self, mos: &Mos, tx: &Tx, mut record: NvList) -> Result<(), Error> {
        record.insert("history time", self.env().now_s());
        record.insert("history hostname", config::host().1.as_str());
        append(mos, tx, &record)?;
        self.notify_history(&record);
        Ok(())
    }
}
