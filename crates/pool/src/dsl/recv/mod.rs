//! Begins a receive (OpenZFS: `dmu_recv_begin_check`, `dmu_recv_begin_sync`, `dmu_recv_resume_begin_check`).
//!
//! A stream is received into a dataset that is not visible as whole until the stream has ended: a new one, or the clone `%recv` below the target.
//! Until then it is marked inconsistent. So a stream that ends early leaves its target unchanged; the received part is destroyed, or, if it can be
//! resumed, kept with the data needed to resume: `resume_*` in the dataset's ZAP, updated with the progress in each txg.

pub(in crate::dsl) mod end;
mod raw;
mod resume;

use base::{Guid, ObjectId, Txg};
use dmu::{Tx, ZapValue};
use nvlist::NvList;
use ondisk::ObjsetType;
use ondisk::dsl::{DslDatasetPhys, dataset_keys as keys, dir_keys};
use ondisk::send::{
    Begin, DRR_FLAG_CI_DATA, DRR_FLAG_CLONE, DRR_FLAG_FREERECORDS, DRR_FLAG_SPILL_BLOCK, feature as stream,
};

use crate::Error;
use crate::dsl::lookup::{Live, NAME_MAX, check_component, check_name};
use crate::dsl::refused;
use crate::dsl::{NewKey, Refusal, WithoutKey};
use crate::spa::feature;
use crate::spa::mos::Mos;
use crate::spa::{Spa, TaskCx};

/// The clone that receives for the dataset above it (OpenZFS: `recv_clone_name`).
pub(in crate::dsl) const CLONE: &str = "%recv";

/// A stream that is to be received, and where.
#[derive(Clone, Debug)]
pub struct RecvBegin {
    /// The file system or volume.
    pub fs: String,
    /// The snapshot to be made, without its file system.
    pub snap: String,
    /// The snapshot that a new dataset shall be a clone of.
    pub origin: Option<String>,
    /// Discards changes since the stream's base, later snapshots included.
    pub force: bool,
    /// Keeps the received part after an error, so that the receive can be resumed.
    pub resumable: bool,
    /// The head of the stream.
    pub begin: Begin,
    /// The list in its BEGIN record.
    pub list: NvList,
    /// The key of a new dataset that is to be an encryption root.
    pub key: Option<NewKey>,
    /// How a new dataset is encrypted without a key of its own.
    pub without_key: WithoutKey,
}

/// How far a receive has come: the last record that was applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResumePoint {
    /// Its object.
    pub object: ObjectId,
    /// Its offset.
    pub offset: u64,
    /// Bytes of the stream up to its end.
    pub bytes: u64,
}

/// The state set up at the beginning of a receive; see [`Receiving`](crate::Receiving).
#[derive(Clone, Copy, Debug)]
pub(in crate::dsl) struct Begun {
    pub(in crate::dsl) id: ObjectId,
    /// It is a dataset of its own, not a clone that receives for another.
    pub(in crate::dsl) new_fs: bool,
    /// The snapshot that it is a clone of, or 0.
    pub(in crate::dsl) base: ObjectId,
    /// The point at which the stream resumes.
    pub(in crate::dsl) resumed: Option<ResumePoint>,
    /// The base was received raw, and this stream is not.
    pub(in crate::dsl) ivset_diverged: bool,
}

impl RecvBegin {
    pub(in crate::dsl) fn has(&self, feature: u64) -> bool {
        self.begin.features() & feature != 0
    }

    pub(in crate::dsl) fn is_raw(&self) -> bool {
        self.has(stream::RAW)
    }

    fn flag(&self, flag: u32) -> bool {
        self.begin.flags & flag != 0
    }

    pub(in crate::dsl) fn os_type(&self) -> ObjsetType {
        ObjsetType::from(u64::from(self.begin.objset_type))
    }

    pub(in crate::dsl) fn refuse<T>(&self, why: Refusal) -> Result<T, Error> {
        Err(refused(&self.fs, why))
    }
}

/// Snapshots that a stream can be redacted with respect to: as many numbers as a ZAP keeps under a name.
const REDACT_SNAPS_MAX: usize = 1024;

impl Spa {
    pub(in crate::dsl) fn begin_receive(&self, cx: &TaskCx<'_>, req: &RecvBegin) -> Result<Begun, Error> {
        self.check_stream(cx.mos, req)?;
        if req.has(stream::RESUMING) {
            return self.resume_receive(cx.mos, req);
        }
        let begun = match self.find_head(cx.mos, &req.fs) {
            Ok(head) => self.begin_below(cx, req, &head)?,
            Err(error) if error.is_not_found() => self.begin_new(cx, req)?,
            Err(error) => return Err(error),
        };
        self.mark_receiving(cx, req, &begun)?;
        Ok(begun)
    }

    fn check_stream(&self, mos: &Mos, req: &RecvBegin) -> Result<(), Error> {
        check_component(&req.snap, &req.snap)?;
        if req.fs.len() + 1 + req.snap.len() > NAME_MAX {
            return req.refuse(Refusal::NameTooLong);
        }
        if req.begin.hdrtype() != 1 {
            return req.refuse(Refusal::Invalid("a package of streams is no stream"));
        }
        // what else there is holds objects of other programs: `zfs receive` does not take it, the engine does
        if !matches!(req.os_type(), ObjsetType::Zfs | ObjsetType::Zvol | ObjsetType::Other) {
            return req.refuse(Refusal::Invalid("the stream holds no set of objects that is known"));
        }
        if req.flag(DRR_FLAG_CLONE) && req.origin.is_none() && !req.has(stream::RESUMING) {
            return req.refuse(Refusal::Invalid("the stream of a clone needs its origin"));
        }
        let features = req.begin.features();
        if features & !stream::KNOWN != 0 {
            return req.refuse(Refusal::UnknownStream);
        }
        let needed = [
            (stream::LZ4, "lz4_compress"),
            (stream::ZSTD, "zstd_compress"),
            (stream::EMBED_DATA, "embedded_data"),
            (stream::LARGE_BLOCKS, "large_blocks"),
            (stream::LARGE_DNODE, "large_dnode"),
            (stream::LARGE_MICROZAP, "large_microzap"),
            (stream::REDACTED, "redacted_datasets"),
            (stream::LONGNAME, "longname"),
            (stream::RAW, "encryption"),
        ];
        let resumable = req.resumable.then_some("extensible_dataset");
        let wanted = needed.iter().filter(|(flag, _)| features & flag != 0).map(|(_, name)| *name);
        for name in wanted.chain(resumable) {
            if !self.feature_enabled(mos, name)? {
                return Err(Error::FeatureDisabled(name.to_string()));
            }
        }
        let too_many = |name: &str| req.list.get_u64_array(name).is_some_and(|guids| guids.len() > REDACT_SNAPS_MAX);
        if too_many("redact_snaps") || too_many("redact_from_snaps") {
            return req.refuse(Refusal::Invalid("the stream is redacted with respect to too many snapshots"));
        }
        if req.is_raw() && req.has(stream::EMBED_DATA) {
            return req.refuse(Refusal::Invalid("a raw stream with embedded blocks"));
        }
        if req.is_raw() && !req.flag(DRR_FLAG_SPILL_BLOCK) {
            return req.refuse(Refusal::SpillFlag);
        }
        Ok(())
    }

    /// Into a dataset that is there: by a clone below it.
    fn begin_below(&self, cx: &TaskCx<'_>, req: &RecvBegin, head: &Live) -> Result<Begun, Error> {
        let mos = cx.mos;
        if req.flag(DRR_FLAG_CLONE) || req.origin.is_some() {
            return req.refuse(Refusal::Invalid("a clone cannot be received into a dataset that exists"));
        }
        let children = mos.zap(mos.dir_phys(head.phys.dir_obj)?.child_dir_zapobj)?;
        let resumes = mos.extra(head.id, keys::RESUME_TOGUID)?.is_some();
        if children.lookup_u64(CLONE)?.is_some() || resumes {
            return req.refuse(Refusal::Busy);
        }
        if mos.snapshot_id(&head.phys, &req.snap)?.is_some() {
            return Err(refused(&format!("{}@{}", req.fs, req.snap), Refusal::Exists));
        }
        if req.os_type() != ObjsetType::Zfs && children.count() > 0 {
            return req.refuse(Refusal::NotAFilesystem);
        }
        let encrypted = mos.extra_id(head.phys.dir_obj, dir_keys::CRYPTO_KEY_OBJ)?.is_some();
        if encrypted && !req.is_raw() && !self.zio().keys().contains(head.id) {
            return req.refuse(Refusal::KeyUnavailable);
        }
        let dir = head.phys.dir_obj;
        if req.begin.fromguid == Guid(0) {
            return self.replace_all(cx, req, (head, encrypted));
        }
        let base = self.base_below(mos, req, head, encrypted)?;
        if let Some(raw) = req.raw_head()? {
            self.check_raw(mos, req, &raw, dir, Some(base.id))?;
        }
        let ivset_diverged =
            encrypted && !req.is_raw() && mos.extra(base.id, keys::RAW_RECEIVED)?.is_some_and(|n| n != 0);
        let clone = cx.clone_snapshot(&base, dir, CLONE)?;
        self.without_key(req, clone.id);
        cx.zero_zil(&clone)?;
        Ok(Begun { id: clone.id, new_fs: false, base: base.id, resumed: None, ivset_diverged })
    }

    /// A full stream takes the place of all that is there.
    fn replace_all(&self, cx: &TaskCx<'_>, req: &RecvBegin, head: (&Live, bool)) -> Result<Begun, Error> {
        let (head, encrypted) = head;
        if !req.force {
            return req.refuse(Refusal::Exists);
        }
        // the directory would have an old key and a new one at a time
        if encrypted || req.is_raw() || req.key.is_some() {
            return req.refuse(Refusal::Invalid("zfs receive -F cannot be used to destroy an encrypted filesystem"));
        }
        let dir = cx.new_dir(head.phys.dir_obj, CLONE)?;
        let base = self.origin_snapshot(cx.mos)?;
        let id = self.create_head(cx.mos, cx.tx, dir, base)?;
        cx.fill(&cx.mos.live(id)?, req.os_type(), Box::new(|_, _| Ok(())))?;
        Ok(Begun { id, new_fs: false, base: ObjectId::NONE, resumed: None, ivset_diverged: false })
    }

    /// The snapshot that an incremental stream goes on from.
    fn base_below(&self, mos: &Mos, req: &RecvBegin, head: &Live, encrypted: bool) -> Result<Live, Error> {
        if !encrypted && req.is_raw() {
            return req.refuse(Refusal::Invalid("a raw stream cannot be received on top of what is not encrypted"));
        }
        if encrypted && req.has(stream::EMBED_DATA) {
            return req.refuse(Refusal::Invalid("an encrypted dataset has no embedded blocks"));
        }
        let mut before = mos.before(head)?;
        let from = loop {
            let Some(snap) = before.filter(|snap| snap.phys.dir_obj == head.phys.dir_obj) else {
                return req.refuse(Refusal::NoBase);
            };
            if snap.phys.guid == req.begin.fromguid {
                break snap;
            }
            before = mos.before(&snap)?;
        };
        self.check_base(mos, req, &from)?;
        if req.force {
            return Ok(from);
        }
        // with a raw stream not even snapshots without changes may stand between: their IVs have another name
        let between = head.phys.prev_snap_obj != from.id;
        if self.modified_since(head, &from)? || (req.is_raw() && between) {
            return req.refuse(Refusal::Modified);
        }
        mos.live(head.phys.prev_snap_obj)
    }

    /// Checks that the base has the blocks that a stream leaves out.
    fn check_base(&self, mos: &Mos, req: &RecvBegin, base: &Live) -> Result<(), Error> {
        if let Some(redacted) = redacted_by(mos, base.id)?
            && !redaction_fits(req, &redacted)
        {
            return req.refuse(Refusal::Invalid("the stream does not fit a redacted base"));
        }
        check_large_blocks(mos, req, base.id)
    }

    fn begin_new(&self, cx: &TaskCx<'_>, req: &RecvBegin) -> Result<Begun, Error> {
        let mos = cx.mos;
        let full = req.begin.fromguid == Guid(0);
        if !full && req.origin.is_none() {
            return Err(Error::no_dataset(&req.fs));
        }
        if full && req.origin.is_some() && !req.flag(DRR_FLAG_FREERECORDS) {
            return req.refuse(Refusal::Invalid("a full stream without free records cannot become a clone"));
        }
        check_name(&req.fs)?;
        let (parent, tail) = self.check_new(mos, &req.fs)?;
        let Some(origin) = &req.origin else {
            let id = self.new_receiving(cx, req, (parent, tail))?;
            return Ok(Begun { id, new_fs: true, base: ObjectId::NONE, resumed: None, ivset_diverged: false });
        };
        let origin = self.find_snapshot(mos, origin)?;
        if !full && origin.phys.guid != req.begin.fromguid {
            return req.refuse(Refusal::NoBase);
        }
        let encrypted = mos.extra_id(origin.phys.dir_obj, dir_keys::CRYPTO_KEY_OBJ)?.is_some();
        if encrypted && req.has(stream::EMBED_DATA) {
            return req.refuse(Refusal::Invalid("an encrypted dataset has no embedded blocks"));
        }
        if encrypted && !req.is_raw() && !self.zio().keys().contains(origin.id) {
            return req.refuse(Refusal::KeyUnavailable);
        }
        self.check_base(mos, req, &origin)?;
        let raw = req.raw_head()?;
        if let Some(raw) = &raw {
            let base = (!full).then_some(origin.id);
            self.check_raw(mos, req, raw, origin.phys.dir_obj, base)?;
        }
        let clone = cx.clone_snapshot(&origin, parent, tail)?;
        if let Some(raw) = &raw {
            cx.put_raw_keys(clone.phys.dir_obj, clone.id, raw)?;
        }
        self.without_key(req, clone.id);
        cx.zero_zil(&clone)?;
        Ok(Begun { id: clone.id, new_fs: true, base: origin.id, resumed: None, ivset_diverged: false })
    }

    /// A new dataset, empty. A raw one gets key and object set with its key data.
    fn new_receiving(&self, cx: &TaskCx<'_>, req: &RecvBegin, place: (ObjectId, &str)) -> Result<ObjectId, Error> {
        let (parent, tail) = place;
        let raw = req.raw_head()?;
        let key = match raw {
            Some(_) => None,
            None => self.key_of_new(cx.mos, &req.fs, parent, req.key.clone(), req.without_key)?,
        };
        if key.is_some() && req.has(stream::EMBED_DATA) {
            return req.refuse(Refusal::Invalid("an encrypted dataset has no embedded blocks"));
        }
        let dir = cx.new_dir(parent, tail)?;
        let id = self.create_head(cx.mos, cx.tx, dir, self.origin_snapshot(cx.mos)?)?;
        if let Some(raw) = &raw {
            cx.put_raw_keys(dir, id, raw)?;
            cx.fill_raw(req, id, dir, raw)?;
            return Ok(id);
        }
        if let Some(key) = key {
            cx.put_key(dir, id, key)?;
        }
        cx.fill(&cx.mos.live(id)?, req.os_type(), Box::new(|_, _| Ok(())))?;
        Ok(id)
    }

    /// Forgets the key of a dataset that is received raw: raw data is not authenticated before it is whole, whether or not a key is loaded.
    fn without_key(&self, req: &RecvBegin, id: ObjectId) {
        if req.is_raw() {
            self.zio().keys().remove(id);
        }
    }

    /// Notes in the dataset what it is: half received, how to go on, and what features its stream has.
    fn mark_receiving(&self, cx: &TaskCx<'_>, req: &RecvBegin, begun: &Begun) -> Result<(), Error> {
        let (mos, tx, id) = (cx.mos, cx.tx, begun.id);
        self.drop_redaction(mos, tx, id)?;
        if req.resumable {
            self.put_resume_state(mos, tx, req, id)?;
        }
        if let Some(snaps) = req.list.get_u64_array("redact_snaps").filter(|_| req.has(stream::REDACTED)) {
            let zap = self.zapify(mos, tx, id)?;
            zap.add(tx, keys::REDACTED_DATASETS, 8, snaps)?;
            self.feature_increment(mos, tx, "redacted_datasets")?;
        }
        mos.edit_dataset(tx, id, |phys| {
            phys.flags |= DslDatasetPhys::FLAG_INCONSISTENT;
            if req.flag(DRR_FLAG_CI_DATA) {
                phys.flags |= DslDatasetPhys::FLAG_CI_DATASET;
            }
        })?;
        // what the source may ever have had counts as in use: a stream without the flag could not follow
        let kept = [
            (stream::LARGE_BLOCKS, "large_blocks"),
            (stream::LONGNAME, "longname"),
            (stream::LARGE_MICROZAP, "large_microzap"),
        ];
        for (_, name) in kept.iter().filter(|(flag, _)| req.has(*flag)) {
            self.activate_dataset_feature(mos, tx, id, name)?;
        }
        self.log_live(mos, tx, &mos.live(id)?, "receive", " ")
    }

    /// Removes from a clone the redaction of its origin.
    fn drop_redaction(&self, mos: &Mos, tx: &Tx, id: ObjectId) -> Result<(), Error> {
        if redacted_by(mos, id)?.is_some() {
            mos.zap(id)?.remove(tx, keys::REDACTED_DATASETS)?;
            self.feature_decrement(mos, tx, "redacted_datasets")?;
        }
        Ok(())
    }

    fn put_resume_state(&self, mos: &Mos, tx: &Tx, req: &RecvBegin, id: ObjectId) -> Result<(), Error> {
        let zap = self.zapify(mos, tx, id)?;
        if req.begin.fromguid != Guid(0) {
            zap.add_u64(tx, keys::RESUME_FROMGUID, req.begin.fromguid.0)?;
        }
        zap.add_u64(tx, keys::RESUME_TOGUID, req.begin.toguid.0)?;
        let name = String::from_utf8_lossy(req.begin.name()).into_owned();
        zap.add_value(tx, keys::RESUME_TONAME, &ZapValue::from_text(&name))?;
        zap.add_u64(tx, keys::RESUME_OBJECT, 1)?;
        zap.add_u64(tx, keys::RESUME_OFFSET, 0)?;
        zap.add_u64(tx, keys::RESUME_BYTES, 0)?;
        let flags = [
            (stream::LARGE_BLOCKS, keys::RESUME_LARGEBLOCK),
            (stream::EMBED_DATA, keys::RESUME_EMBEDOK),
            (stream::COMPRESSED, keys::RESUME_COMPRESSOK),
            (stream::RAW, keys::RESUME_RAWOK),
        ];
        for (_, key) in flags.iter().filter(|(flag, _)| req.has(*flag)) {
            zap.add_u64(tx, key, 1)?;
        }
        if let Some(snaps) = req.list.get_u64_array("redact_from_snaps") {
            zap.add(tx, keys::RESUME_REDACT_BOOKMARK_SNAPS, 8, snaps)?;
        }
        Ok(())
    }

    /// Goes on where an earlier stream ended.
    fn resume_receive(&self, mos: &Mos, req: &RecvBegin) -> Result<Begun, Error> {
        let clone = match self.find_head(mos, &format!("{}/{CLONE}", req.fs)) {
            Ok(clone) => Some(clone),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        let new_fs = clone.is_none();
        if !new_fs && req.begin.fromguid == Guid(0) && !req.force {
            return req.refuse(Refusal::ResumeExists);
        }
        let ds = clone.map_or_else(|| self.find_head(mos, &req.fs), Ok)?;
        let stored = |key: &str| mos.extra(ds.id, key);
        let fits = ds.phys.flags & DslDatasetPhys::FLAG_INCONSISTENT != 0
            && stored(keys::RESUME_TOGUID)? == Some(req.begin.toguid.0)
            && stored(keys::RESUME_FROMGUID)?.unwrap_or(0) == req.begin.fromguid.0;
        if !fits {
            return req.refuse(Refusal::Invalid("the stream does not go on where the interrupted one ended"));
        }
        if self.dsl.open_datasets.in_use(&[ds.id]) {
            return req.refuse(Refusal::Busy);
        }
        if req.has(stream::REDACTED) {
            let own = redacted_by(mos, ds.id)?.unwrap_or_default();
            let theirs = req.list.get_u64_array("redact_snaps").unwrap_or_default();
            if theirs.is_empty() || theirs.iter().any(|guid| !own.contains(&Guid(*guid))) {
                return req.refuse(Refusal::Invalid("the stream is redacted with respect to other snapshots"));
            }
        }
        check_large_blocks(mos, req, ds.id)?;
        let at = ResumePoint {
            object: ObjectId(stored(keys::RESUME_OBJECT)?.unwrap_or(0)),
            offset: stored(keys::RESUME_OFFSET)?.unwrap_or(0),
            bytes: stored(keys::RESUME_BYTES)?.unwrap_or(0),
        };
        let theirs = (req.list.get_u64("resume_object"), req.list.get_u64("resume_offset"));
        if theirs != (Some(at.object.0), Some(at.offset)) {
            return req.refuse(Refusal::Invalid("the stream does not resume where the interrupted receive stopped"));
        }
        let base = ds.phys.prev_snap_obj;
        let own_base = base.is_some() && req.begin.fromguid != Guid(0);
        let diverged = own_base && !req.is_raw() && mos.extra(base, keys::RAW_RECEIVED)?.is_some_and(|n| n != 0);
        let base = if own_base { base } else { ObjectId::NONE };
        if let Some(raw) = req.raw_head()? {
            self.check_raw(mos, req, &raw, ds.phys.dir_obj, Some(base).filter(|base| base.is_some()))?;
            self.without_key(req, ds.id);
        }
        Ok(Begun { id: ds.id, new_fs, base, resumed: Some(at), ivset_diverged: diverged })
    }

    /// Saves how far a receive has come by this txg.
    pub(in crate::dsl) fn save_resume_point(
        &self,
        mos: &Mos,
        tx: &Tx,
        id: ObjectId,
        at: ResumePoint,
    ) -> Result<(), Error> {
        if mos.extra(id, keys::RESUME_TOGUID)?.is_none() {
            return Ok(());
        }
        let zap = mos.zap(id)?;
        zap.update_u64(tx, keys::RESUME_OBJECT, at.object.0)?;
        zap.update_u64(tx, keys::RESUME_OFFSET, at.offset)?;
        Ok(zap.update_u64(tx, keys::RESUME_BYTES, at.bytes)?)
    }
}

/// The snapshots that a dataset is redacted with respect to; `None` if it is whole.
pub(in crate::dsl) fn redacted_by(mos: &Mos, id: ObjectId) -> Result<Option<Vec<Guid>>, Error> {
    if !mos.object(id)?.phys().object_type.is_zap() {
        return Ok(None);
    }
    Ok(mos.zap(id)?.lookup(keys::REDACTED_DATASETS)?.map(|value| value.iter().map(Guid).collect()))
}

/// Returns whether a stream can be applied to a base that lacks the blocks redacted in `redacted` (OpenZFS: `redact_check`).
fn redaction_fits(req: &RecvBegin, redacted: &[Guid]) -> bool {
    if req.begin.fromguid == Guid(0) {
        return true;
    }
    let within = |snaps: &[u64]| snaps.iter().all(|guid| redacted.contains(&Guid(*guid)));
    if let Some(from) = req.list.get_u64_array("redact_from_snaps") {
        return within(from);
    }
    if req.has(stream::REDACTED) {
        return req.list.get_u64_array("redact_snaps").is_some_and(within);
    }
    redacted.contains(&req.begin.toguid)
}

/// A dataset with large blocks takes no stream without: they would have to be read and put together again.
fn check_large_blocks(mos: &Mos, req: &RecvBegin, id: ObjectId) -> Result<(), Error> {
    let large = feature::by_name("large_blocks").map_or(Ok(None), |def| mos.extra(id, def.guid))?.is_some();
    if large && !req.has(stream::LARGE_BLOCKS) {
        return req.refuse(Refusal::LargeBlocks);
    }
    Ok(())
}

/// Per txg in flight, how far a receive has come.
#[derive(Debug, Default)]
pub(in crate::dsl) struct ResumeSlots(parking_lot::Mutex<[Option<(Txg, ResumePoint)>; 4]>);

impl ResumeSlots {
    pub(in crate::dsl) fn put(&self, txg: Txg, at: ResumePoint) {
        if let Some(slot) = self.0.lock().get_mut((txg.0 & 3) as usize) {
            *slot = Some((txg, at));
        }
    }

    /// The resume point to be saved in `txg`; it stays until the next, as a sync may need several passes.
    pub(in crate::dsl) fn get(&self, txg: Txg) -> Option<ResumePoint> {
        let slots = self.0.lock();
        slots.iter().flatten().find(|(at, _)| *at == txg).map(|(_, point)| *point)
    }
}
