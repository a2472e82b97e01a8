//! Requests to a pool.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::Endian;
use nvlist::{Encoding, NvList};
use pool::Spa;

use crate::decode::require_str;
use crate::devices::{Devices, Plain};
use crate::events::OfProcess;
use crate::{Caller, CancelToken, Error, Events, Failed, Ioc, Kept, ReadOnlyControl, names, traced};

/// Answers beyond this many bytes are not kept in the history (OpenZFS: `zfs_history_output_max`).
const OUTPUT_MAX: i64 = 1 << 20;

/// The requests of one caller to one pool. A clone has the same place among the events, and what the requests have opened.
#[derive(Clone)]
pub struct Control {
    pub(crate) spa: Arc<Spa>,
    pub(crate) caller: Caller,
    pub(crate) devices: Arc<dyn Devices>,
    events: Arc<Events>,
    kept: Kept,
    /// Ends waits.
    pub(crate) cancel: CancelToken,
    /// Whether a request has changed something.
    changed: Arc<AtomicBool>,
    /// Whether the caller is a stranger to the pool.
    pub(crate) is_stranger: bool,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("spa", &self.spa).field("caller", &self.caller).finish_non_exhaustive()
    }
}

impl Control {
    /// Takes requests to `spa`, from `caller`.
    #[must_use]
    pub fn new(spa: Arc<Spa>, caller: Caller) -> Control {
        Control {
            spa,
            caller,
            devices: Arc::new(Plain),
            events: Arc::default(),
            kept: Kept::default(),
            cancel: CancelToken::default(),
            changed: Arc::default(),
            is_stranger: false,
        }
    }

    /// The same with devices opened by `devices`, where requests name some.
    #[must_use]
    pub fn on(self, devices: Arc<dyn Devices>) -> Control {
        Control { devices, ..self }
    }

    /// The same with what other requests of the caller have opened.
    #[must_use]
    pub fn keeping(self, kept: &Kept) -> Control {
        Control { kept: kept.clone(), ..self }
    }

    /// The same with waits that `cancel` ends.
    #[must_use]
    pub fn until(self, cancel: &CancelToken) -> Control {
        Control { cancel: cancel.clone(), ..self }
    }

    /// The same for a caller who is not the owner of the pool: a request that is open to everybody opens no file system for him, as that may write.
    #[must_use]
    pub fn of_stranger(self) -> Control {
        Control { is_stranger: true, ..self }
    }

    /// The pool.
    #[must_use]
    pub fn spa(&self) -> &Arc<Spa> {
        &self.spa
    }

    /// The caller.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Whether a request has changed something: only then the command has a place in the pool's history (OpenZFS: `zfs_allow_log_key`).
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// Does what is asked. After it the change is on disk, and [`Spa::view`] shows it; but after [`Ioc::PoolExport`] and [`Ioc::PoolDestroy`] the
    /// pool is closed.
    ///
    /// # Errors
    /// [`Failed`], with OpenZFS's errno, and that of each thing of several. Nothing was changed then, but by [`Ioc::SetProp`] with quotas of
    /// users, which are files' matter and come last.
    pub fn call(&self, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Failed> {
        traced(ioc, self.spa.name(), Some(self.caller.uid), || self.do_call(ioc, name, input))
    }

    fn do_call(&self, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Failed> {
        ioc.check_name(name, self.spa.name())?;
        ioc.check_state(&self.spa)?;
        ioc.check(input)?;
        let began = self.spa.env().now();
        let out = self.answer(ioc, name, input)?;
        self.note_done(ioc, (input, &out), self.spa.env().now().saturating_sub(began))?;
        Ok(out)
    }

    /// Notes a request that was answered by a state of the pool that was opened for reading, as a key that was loaded there: if it is one of those, the history tells it.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn note_answered(&self, ioc: Ioc, input: &NvList) -> Result<(), Failed> {
        self.note_done(ioc, (input, &NvList::new()), Duration::ZERO)
    }

    fn note_done(&self, ioc: Ioc, (input, out): (&NvList, &NvList), elapsed: Duration) -> Result<(), Failed> {
        if ioc.changes() {
            self.changed.store(true, Ordering::Relaxed);
            self.kept.forget();
        }
        if ioc.is_recorded() {
            self.spa.log_request(self.caller.real_uid, record(ioc, input, out, elapsed))?;
        }
        Ok(())
    }

    /// Something was changed without a request.
    pub(crate) fn note_change(&self) {
        self.changed.store(true, Ordering::Relaxed);
    }

    fn answer(&self, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Failed> {
        match ioc {
            Ioc::LogHistory => self.log_history(require_str(input, "message")?),
            Ioc::PoolSync => self.done(self.spa.sync()),
            Ioc::PoolCheckpoint => self.done(self.spa.checkpoint()),
            Ioc::PoolDiscardCheckpoint => self.done(self.spa.discard_checkpoint()),
            Ioc::PoolSetProps => self.pool_set_props(input),
            Ioc::PoolUpgrade => self.pool_upgrade(input),
            Ioc::Clear => self.clear(input),
            Ioc::PoolReopen => self.done(self.spa.reopen(input.get_bool("scrub_restart").unwrap_or(true))),
            Ioc::VdevSetState => self.vdev_set_state(input),
            Ioc::PoolExport => self.leave(input, Spa::export),
            Ioc::PoolDestroy => self.leave(input, Spa::destroy),
            Ioc::PoolReguid => self.pool_reguid(input),
            Ioc::PoolCondense => self.pool_condense(input),
            Ioc::VdevSetProps => self.vdev_set_props(input),
            Ioc::Create => self.create(name, input),
            Ioc::Clone => self.clone_from(name, input),
            Ioc::Destroy => self.destroy(name),
            Ioc::Snapshot => self.snapshot(input),
            Ioc::DestroySnaps => self.destroy_snaps(input),
            Ioc::Bookmark => self.bookmark(input),
            Ioc::DestroyBookmarks => self.destroy_bookmarks(input),
            Ioc::Hold => self.hold(input),
            Ioc::Release => self.release(input),
            Ioc::Promote => self.promote(name),
            Ioc::Rename => self.rename(name, input),
            Ioc::Rollback => self.rollback(name, input),
            Ioc::SetProp => self.set_prop(name, input),
            Ioc::InheritProp => self.inherit_prop(name, input),
            Ioc::LoadKey => self.load_key(name, input),
            Ioc::UnloadKey => self.unload_key(name),
            Ioc::ChangeKey => self.change_key(name, input),
            Ioc::WaitFs => self.wait_fs(name, input),
            Ioc::PoolScrub => self.pool_scrub(input),
            Ioc::Wait => self.wait(input),
            Ioc::DdtPrune => self.ddt_prune(input),
            Ioc::PoolInitialize => self.pool_initialize(input),
            Ioc::PoolTrim => self.pool_trim(input),
            Ioc::PoolCreate | Ioc::PoolImport => Err(Error::Exists(name.to_owned()).into()),
            Ioc::PoolConfigs | Ioc::PoolTryImport => Err(Error::NotOfAPool(ioc.name()).into()),
            Ioc::VdevAdd => self.vdev_add(input),
            Ioc::VdevRemove => self.vdev_remove(input),
            Ioc::VdevAttach => self.vdev_attach(input),
            Ioc::VdevDetach => self.vdev_detach(input),
            Ioc::RecvNew => self.receive(input),
            Ioc::EventsNext | Ioc::EventsClear | Ioc::EventsSeek => {
                self.events.call(&OfProcess, ioc, input, &self.cancel)
            }
            Ioc::SpaceSnaps
            | Ioc::SendNew
            | Ioc::PoolGetHistory
            | Ioc::PoolStats
            | Ioc::ErrorLog
            | Ioc::DsobjToDsname
            | Ioc::ObjToPath
            | Ioc::NextObj
            | Ioc::ObjToStats
            | Ioc::Diff
            | Ioc::PoolGetProps
            | Ioc::VdevGetProps
            | Ioc::ObjsetStats
            | Ioc::DatasetListNext
            | Ioc::SnapshotListNext
            | Ioc::PoolPrefetch
            | Ioc::GetHolds
            | Ioc::GetBookmarks
            | Ioc::GetBookmarkProps
            | Ioc::UserspaceMany
            | Ioc::SendSpace => self.look(ioc, name, input),
        }
    }

    fn look(&self, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Failed> {
        ioc.look_at(&self.spa, || {
            let view = self.kept.view(ioc, name, || Ok(self.spa.view()?))?;
            let control = ReadOnlyControl::new(view).of(&self.caller).keeping(&self.kept).until(&self.cancel);
            control.answer(ioc, name, input)
        })
    }

    fn log_history(&self, message: &str) -> Result<NvList, Failed> {
        self.done(self.spa.log_history(self.caller.real_uid, message))
    }

    /// The answer to a request that has none.
    pub(crate) fn done(&self, result: Result<(), pool::Error>) -> Result<NvList, Failed> {
        result?;
        Ok(NvList::new())
    }

    /// Checks that a name within a request is in this pool.
    pub(crate) fn check_pool(&self, name: &str) -> Result<(), Error> {
        names::check_inside(name, self.spa.name())
    }
}

/// What the history tells of a request that was done (OpenZFS: `zfsdev_ioctl_common`). Keys are kept out of it.
fn record(ioc: Ioc, input: &NvList, out: &NvList, elapsed: Duration) -> NvList {
    let mut record = NvList::new();
    record.insert("ioctl", ioc.name());
    if !input.is_empty() {
        let mut shown = NvList::new();
        // no copy of a key is made either
        input
            .iter()
            .filter(|(name, _)| *name != "hidden_args")
            .for_each(|(name, value)| shown.insert(name, value.clone()));
        record.insert("in_nvl", shown);
    }
    if !out.is_empty() {
        let packed = out.pack(Encoding::Native, Endian::Little).map_or(0, |packed| packed.len());
        match i64::try_from(packed).ok().filter(|size| *size > OUTPUT_MAX) {
            Some(size) => record.insert("out_size", size),
            None => record.insert("out_nvl", out.clone()),
        }
    }
    record.insert("elapsed_ns", i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX));
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_history_holds_a_key() {
        let (mut hidden, mut input) = (NvList::new(), NvList::new());
        hidden.insert("wkeydata", nvlist::Value::Uint8Array(vec![7; 32]));
        input.insert("type", 2i32);
        input.insert("hidden_args", hidden);
        let record = record(Ioc::Create, &input, &NvList::new(), Duration::from_nanos(5));
        assert_eq!(record.get_str("ioctl"), Some("create"));
        let asked = |key: &str| record.get_nvlist("in_nvl").map(|input| input.contains(key));
        assert_eq!((asked("type"), asked("hidden_args")), (Some(true), Some(false)));
        assert!(!record.contains("out_nvl"));
        assert_eq!(record.get_i64("elapsed_ns"), Some(5));
    }
}
