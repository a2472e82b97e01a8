//! Requests that change nothing: they need no pool that is open for a change, and see one of its states.

use std::sync::{Arc, PoisonError};

use base::{Guid, ObjectId};
use nvlist::{NvList, Value as Nv};
use pool::prop::{PropValue, VDEV};
use pool::{Bookmark, Dataset, Error as PoolError, KeyStatus, Pool, Refusal, Spa, Space, Value};
use stream::send::{Base, ResumeAt, Saved, SendFlags, estimate, measure};
use vdev::LostBlock;

use crate::cancel::Sink;
use crate::decode::require_str;
use crate::{Caller, CancelToken, Error, Failed, Files, Ioc, Kept, names, stats, traced};

/// OpenZFS: `zpool_prefetch_type_t`.
const PREFETCH_DDT: i32 = 1;
const PREFETCH_BRT: i32 = 2;
/// The end of a redaction list that is whole.
const COMPLETE: (ObjectId, u64) = (ObjectId(u64::MAX), u64::MAX);

/// What answers requests about a state of a pool. Those that would change it are refused, as of a pool that was imported to be read; keys are loaded and unloaded
/// nevertheless, for what is read of this state.
#[derive(Clone, Debug)]
pub struct ReadOnlyControl {
    pub(crate) view: Arc<Pool>,
    pub(crate) files: Files,
    /// The caller, if he is known.
    uid: Option<u32>,
    pub(crate) kept: Kept,
    /// Ends a stream that is sent.
    cancel: CancelToken,
}

impl ReadOnlyControl {
    /// Takes requests about `view`.
    #[must_use]
    pub fn new(view: Arc<Pool>) -> ReadOnlyControl {
        let (files, kept, cancel) = (Files::default(), Kept::default(), CancelToken::default());
        ReadOnlyControl { view, files, uid: None, kept, cancel }
    }

    /// The same for a caller, to whose files streams can be sent.
    #[must_use]
    pub fn of(self, caller: &Caller) -> ReadOnlyControl {
        ReadOnlyControl { files: caller.files.clone(), uid: Some(caller.uid), ..self }
    }

    /// The same in another state of the pool, in which nothing of this one is kept.
    #[must_use]
    pub fn seen_in(self, view: &Arc<Pool>) -> ReadOnlyControl {
        ReadOnlyControl { view: view.clone(), kept: Kept::default(), ..self }
    }

    /// The same with what other requests of the caller have opened.
    #[must_use]
    pub fn keeping(self, kept: &Kept) -> ReadOnlyControl {
        ReadOnlyControl { kept: kept.clone(), ..self }
    }

    /// The same with streams that `cancel` ends.
    #[must_use]
    pub fn until(self, cancel: &CancelToken) -> ReadOnlyControl {
        ReadOnlyControl { cancel: cancel.clone(), ..self }
    }

    /// Answers what is asked.
    ///
    /// # Errors
    /// [`Failed`], with OpenZFS's errno; EROFS for what changes something.
    pub fn call(&self, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Failed> {
        traced(ioc, self.view.name(), self.uid, || {
            ioc.check_name(name, self.view.name())?;
            if ioc.pool_check().readonly {
                return Err(Error::ReadOnly.into());
            }
            ioc.check(input)?;
            self.answer(ioc, name, input)
        })
    }

    pub(crate) fn answer(&self, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Failed> {
        match ioc {
            Ioc::SpaceSnaps => self.space_snaps(name, input),
            Ioc::SendSpace => self.send_space(name, input),
            Ioc::SendNew => self.send(name, input),
            Ioc::PoolGetHistory => self.history(),
            Ioc::PoolPrefetch => self.pool_prefetch(input),
            Ioc::GetHolds => self.get_holds(name),
            Ioc::GetBookmarks => self.get_bookmarks(name, input),
            Ioc::GetBookmarkProps => Ok(bookmark_props(&self.bookmark(name)?, &NvList::new())?),
            Ioc::PoolStats => self.stats_with(input, &[]),
            Ioc::ErrorLog => self.error_log_with(&[]),
            Ioc::DsobjToDsname => self.dsobj_to_dsname(input),
            Ioc::ObjToPath => self.obj_to_path(name, input),
            Ioc::NextObj => self.next_obj(name, input),
            Ioc::ObjToStats => self.obj_to_stats(name, input),
            Ioc::Diff => self.diff(name, input),
            Ioc::PoolGetProps => self.pool_get_props(input),
            Ioc::VdevGetProps => self.vdev_get_props(input),
            Ioc::ObjsetStats => self.objset_stats(name, input),
            Ioc::DatasetListNext => self.dataset_list(name, input),
            Ioc::SnapshotListNext => self.snapshot_list(name, input),
            Ioc::UserspaceMany => self.userspace_many(name, input),
            Ioc::LoadKey => self.load_key(name, input),
            Ioc::UnloadKey => self.unload_key(name),
            Ioc::PoolConfigs | Ioc::PoolTryImport => Err(Error::NotOfAPool(ioc.name()).into()),
            _ => Err(Error::ReadOnly.into()),
        }
    }

    /// The answer to [`Ioc::PoolStats`] with blocks that were met lost and are not in the error log yet.
    ///
    /// # Errors
    /// When the lists of devices cannot be read, or the dedup tables that are asked for.
    pub fn stats_with(&self, input: &NvList, met: &[LostBlock]) -> Result<NvList, Failed> {
        Ok(stats::config(&self.view, input, met)?)
    }

    /// Checks that a name within a request is in this pool.
    pub(crate) fn check_pool(&self, name: &str) -> Result<(), Error> {
        names::check_inside(name, self.view.name())
    }

    fn bookmark(&self, name: &str) -> Result<Bookmark, Error> {
        if !name.contains('#') {
            return Err(Error::Invalid(format!("'{name}' is not a bookmark")));
        }
        Ok(self.view.bookmark(name)?)
    }

    fn space_snaps(&self, last: &str, input: &NvList) -> Result<NvList, Failed> {
        let first = require_str(input, "firstsnap")?;
        for name in [first, last] {
            if !name.contains('@') {
                return Err(Error::Invalid(format!("'{name}' is not a snapshot")).into());
            }
            self.check_pool(name)?;
        }
        let space = self.view.reclaimed_by(first, last)?;
        let mut out = NvList::new();
        out.insert("used", space.used);
        out.insert("compressed", space.comp);
        out.insert("uncompressed", space.uncomp);
        Ok(out)
    }

    /// OpenZFS looks at `from`, and not at `fromsnap`.
    fn send_space(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let to = self.sent(name, input)?;
        let flags = flags_of(input, &to)?;
        let sent = input.get_u64("bytes").unwrap_or(0);
        let fast = |written: Option<Space>| estimate(&to, written, &flags).map(|size| size.saturating_sub(sent));
        let space = match input.get_str("from").map(|from| self.start(from, &to)).transpose()? {
            None => fast(None),
            Some(Start::Snapshot(from)) => fast(Some(to.written_since(&from)?)),
            Some(Start::Mark(mark)) => {
                let is_own = mark.dataset().dir().id() == to.dir().id();
                // the accounting does not cover what a redacted send left out
                if is_own && mark.phys().has_space() && mark.phys().redaction_obj.is_none() {
                    fast(Some(to.written_since_bookmark(&mark)?))
                } else {
                    Base::of_bookmark(&mark, &to).and_then(|base| measure(&to, Some(&base), &flags))
                }
            }
        };
        let mut out = NvList::new();
        out.insert("space", space.map_err(Error::Send)?);
        Ok(out)
    }

    fn send(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let number = input.get_i32("fd").unwrap_or(-1);
        let (output, progress) = self.files.out(number).ok_or(Error::BadFile(number))?;
        let to = self.sent(name, input)?;
        let flags = flags_of(input, &to)?;
        // else it would be found at the first block that is encrypted, with half a stream written
        if !flags.raw && to.key_status()? == KeyStatus::Unavailable {
            return Err(PoolError::Refused { name: name.to_owned(), why: Refusal::KeyUnavailable }.into());
        }
        let base = match input.get_str("fromsnap").map(|from| self.start(from, &to)).transpose()? {
            None => None,
            Some(Start::Snapshot(from)) => Some(Base::of_snapshot(&from, &to).map_err(Error::Send)?),
            Some(Start::Mark(from)) => Some(Base::of_bookmark(&from, &to).map_err(Error::Send)?),
        };
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        let mut output = Sink { output: &mut **output, cancel: &self.cancel };
        let sent = stream::send::send(&to, base.as_ref(), &flags, &mut output, &progress);
        sent.map_err(|e| if self.cancel.is_cancelled() { Error::Cancelled } else { Error::Send(e) })?;
        Ok(NvList::new())
    }

    /// The dataset that a request to send is about. With `savedok`, what receives for a head is sent in its place (OpenZFS: `dmu_send`).
    fn sent(&self, name: &str, input: &NvList) -> Result<Dataset, Failed> {
        let to = self.view.dataset(name)?;
        let receiving = if input.contains("savedok") { to.receiving()? } else { None };
        Ok(receiving.unwrap_or(to))
    }

    /// The start of a stream, which must be in the past of what is sent. A redaction bookmark of the snapshot itself is one as well: sent is then what
    /// the redacted send left out.
    fn start(&self, from: &str, to: &Dataset) -> Result<Start, Failed> {
        self.check_pool(from)?;
        let (start, is_good) = match (from.contains('#'), from.contains('@')) {
            (true, _) => {
                let mark = self.view.bookmark(from)?;
                let completes = mark.phys().redaction_obj.is_some() && mark.phys().guid == to.guid();
                let is_good = completes || to.is_later_than_mark(&mark)?;
                (Start::Mark(mark), is_good)
            }
            (false, true) => {
                let snapshot = self.view.dataset(from)?;
                let is_good = to.is_later_than(&snapshot)?;
                (Start::Snapshot(snapshot), is_good)
            }
            _ => return Err(Error::Invalid(format!("'{from}' is neither snapshot nor bookmark")).into()),
        };
        match is_good {
            true => Ok(start),
            false => Err(PoolError::NotEarlier { from: from.to_owned(), to: to.name().to_owned() }.into()),
        }
    }

    fn history(&self) -> Result<NvList, Failed> {
        let mut out = NvList::new();
        let records: Vec<NvList> = self.view.history()?.into_iter().map(|record| record.list).collect();
        out.insert("history record", records);
        Ok(out)
    }

    fn pool_prefetch(&self, input: &NvList) -> Result<NvList, Failed> {
        match input.get_i32("prefetch_type") {
            Some(PREFETCH_DDT) => self.view.ddts()?.iter().try_for_each(|table| table.for_each(&mut |_| Ok(())))?,
            Some(PREFETCH_BRT) => {
                self.view
                    .brts()?
                    .iter()
                    .try_for_each(|table| table.entries()?.try_for_each(|entry| entry.map(drop)))?;
            }
            _ => return Err(Error::Invalid("no such prefetch type".to_owned()).into()),
        }
        Ok(NvList::new())
    }

    fn get_holds(&self, name: &str) -> Result<NvList, Failed> {
        let mut out = NvList::new();
        self.view.dataset(name)?.holds()?.into_iter().for_each(|hold| out.insert(hold.tag, hold.time));
        Ok(out)
    }

    fn get_bookmarks(&self, name: &str, wanted: &NvList) -> Result<NvList, Failed> {
        let dataset = self.view.dataset(name)?;
        if dataset.is_snapshot() {
            return Err(Error::Invalid(format!("'{name}' is a snapshot")).into());
        }
        let mut out = NvList::new();
        for (short_name, mark) in dataset.readable_bookmarks()? {
            // one that cannot be read hides no other
            let props = mark.and_then(|mark| bookmark_props(&mark, wanted)).unwrap_or_else(|e| {
                let mut unread = NvList::new();
                unread.insert("errno", e.errno());
                unread
            });
            out.insert(short_name, props);
        }
        Ok(out)
    }

    fn pool_get_props(&self, input: &NvList) -> Result<NvList, Failed> {
        let mut out = NvList::new();
        let more = match input.get("get_props_names") {
            Some(Nv::StringArray(names)) => names.iter().filter_map(|name| name.to_str()).collect(),
            _ => Vec::new(),
        };
        match self.view.props() {
            Ok(all) => all.iter().for_each(|(name, value)| out.insert(name, numbered(value))),
            // those that are asked for may be readable
            Err(_) if !more.is_empty() => {}
            Err(e) => return Err(e.into()),
        }
        for name in more.into_iter().filter(|name| !out.contains(name)).collect::<Vec<_>>() {
            let value = self.view.prop(name).map_err(|e| {
                let mut failed = Failed::from(e);
                failed.out.insert(name, failed.errno);
                failed
            })?;
            if let Some(value) = value {
                out.insert(name, numbered(&value));
            }
        }
        Ok(out)
    }

    fn vdev_get_props(&self, input: &NvList) -> Result<NvList, Failed> {
        let props = self.view.vdev_props(Guid(input.get_u64("vdevprops_get_vdev").unwrap_or(0)))?;
        let wanted = input.get_nvlist("vdevprops_get_props");
        let is_wanted = |name: &str| wanted.is_none_or(|wanted| wanted.contains(name));
        let mut out = NvList::new();
        for def in VDEV.iter().filter(|def| is_wanted(def.name)) {
            if let Some(value) = props.get(def.name)? {
                out.insert(def.name, numbered(&value));
            }
        }
        for (name, value) in props.user().iter().filter(|(name, _)| is_wanted(name)) {
            out.insert(name, numbered(value));
        }
        Ok(out)
    }
}

/// The start of an incremental stream.
enum Start {
    Snapshot(Dataset),
    Mark(Bookmark),
}

/// The stream that `to` was received from in part (OpenZFS: `dmu_send` with `savedok`).
fn saved(to: &Dataset) -> Result<Saved, Error> {
    let state = to.resume_state()?;
    let saved = state.as_ref().and_then(|state| {
        Some(Saved { guid: Guid(state.get_u64("toguid")?), name: state.get_str("toname")?.to_owned() })
    });
    saved.ok_or_else(|| Error::Invalid(format!("'{}' is no part of a stream", to.name())))
}

/// The form of a stream of `to`, as a request allows it.
fn flags_of(input: &NvList, to: &Dataset) -> Result<SendFlags, Error> {
    if input.contains("redactbook") {
        return Err(Error::NotSupported("redactbook".to_owned()));
    }
    let offset = input.get_u64("resume_offset").unwrap_or(0);
    Ok(SendFlags {
        embed: input.contains("embedok"),
        large_block: input.contains("largeblockok"),
        compress: input.contains("compressok"),
        raw: input.contains("rawok"),
        // a stream that was interrupted at its very beginning is resumed as well
        resume: input.get_u64("resume_object").map(|object| ResumeAt { object: ObjectId(object), offset }),
        saved: if input.contains("savedok") { Some(saved(to)?) } else { None },
    })
}

/// What is wanted of a bookmark, all if nothing is said (OpenZFS: `dsl_bookmark_fetch_props`).
fn bookmark_props(mark: &Bookmark, wanted: &NvList) -> Result<NvList, PoolError> {
    let phys = mark.phys();
    let mut out = NvList::new();
    let mut add = |name: &str, value: Nv| {
        if wanted.is_empty() || wanted.contains(name) {
            let mut prop = NvList::new();
            prop.insert("value", value);
            out.insert(name, prop);
        }
    };
    add("guid", phys.guid.0.into());
    add("createtxg", phys.creation_txg.0.into());
    add("creation", phys.creation_time.into());
    add("ivsetguid", phys.ivset_guid.0.into());
    if phys.has_space() {
        let (logical, stored) = (phys.uncompressed_bytes_refd, phys.compressed_bytes_refd);
        add("referenced", phys.referenced_bytes_refd.into());
        add("logicalreferenced", logical.into());
        add("refcompressratio", logical.saturating_mul(100).checked_div(stored).unwrap_or(100).into());
    }
    let redaction = ["redact_complete", "redact_snaps"];
    // it is an object of its own, which can be damaged
    let header = match wanted.is_empty() || redaction.iter().any(|name| wanted.contains(name)) {
        true => mark.redaction_header()?,
        false => None,
    };
    if let Some(list) = header {
        add("redact_complete", ((list.last_object, list.last_blkid) == COMPLETE).into());
        add("redact_snaps", Nv::Uint64Array(list.snaps.into_iter().map(|guid| guid.0).collect()));
    }
    Ok(out)
}

/// The properties of a suspended pool that are known without its devices.
pub(crate) fn unreadable_props(spa: &Spa) -> NvList {
    let health = if spa.suspended().is_some() { "SUSPENDED" } else { spa.tree().status().state.name() };
    let known = [
        ("name", PropValue::text(spa.name())),
        ("health", PropValue::text(health)),
        ("guid", PropValue::computed(spa.guid().0)),
    ];
    let mut out = NvList::new();
    known.iter().for_each(|(name, value)| out.insert(*name, numbered(value)));
    out
}

/// A property of a pool or vdev: its source is a number (OpenZFS: `zprop_source_t`).
fn numbered(value: &PropValue) -> NvList {
    let mut prop = NvList::new();
    prop.insert("source", value.source.number());
    prop.insert("value", plain(&value.value));
    prop
}

/// A value in an answer.
pub(crate) fn plain(value: &Value) -> Nv {
    match value {
        Value::Number(number) => (*number).into(),
        Value::String(text) => text.as_str().into(),
    }
}
