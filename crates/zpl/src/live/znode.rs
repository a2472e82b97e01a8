//! Znodes: files in use.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use base::{ObjectId, UseTable, Versioned};
use dmu::sa::{Attr, SaAttrs, SaValue, words};
use dmu::{Object, Tx, Zap};
use parking_lot::{Mutex, RwLock};
use pool::KeptObject;

use super::rangelock::RangeLock;
use super::{Refusal, Zfs};
use crate::node::attr_of;
use crate::{Attrs, Error, FileFlags, Kind, Time};

const SHARDS: usize = 32;
/// Number of unused files that a shard keeps.
const KEEP: usize = 512;

/// The number of the next [`Znode`].
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A file in use (OpenZFS: `znode_t`). Its locks are those of the order in [`live`](super).
pub struct Znode {
    object: Object,
    zap: OnceLock<Zap>,
    /// For a directory: held for writing while its names change.
    pub(crate) names: RwLock<()>,
    /// Held across the check and the change of owners, mode, flags or ACL.
    pub(crate) rights: Mutex<()>,
    /// For a file: a range is held for writing while its contents change, for reading by operations that rely on them. Its extended attributes
    /// change while all of it is held.
    pub(crate) content: RangeLock,
    /// The streams of its readers, for read-ahead.
    pub(super) streams: Mutex<super::prefetch::Streams>,
    /// True while it is being created and has no name yet.
    nascent: AtomicBool,
    /// True if it is known to have no capabilities attribute (Linux: `S_NOSEC`).
    plain: AtomicBool,
    /// True if the spill block could not be read: attributes that it holds are missing.
    partial: AtomicBool,
    state: Versioned<State>,
    /// A unique number, different even from an earlier znode of the same file.
    number: u64,
}

struct State {
    attrs: Attrs,
    /// True if it has no name any more.
    unlinked: bool,
    /// Number of open handles.
    opens: u64,
    /// Number of these that are let go of, until they are taken back.
    let_go: u64,
    /// Number of these for synchronous writes.
    syncs: u64,
}

impl Znode {
    pub(super) fn new(object: Object, attrs: Attrs) -> Znode {
        let unlinked = attrs.links == 0;
        Znode {
            object,
            zap: OnceLock::new(),
            names: RwLock::default(),
            rights: Mutex::default(),
            content: RangeLock::default(),
            streams: Mutex::default(),
            nascent: AtomicBool::new(false),
            plain: AtomicBool::new(false),
            partial: AtomicBool::new(false),
            state: Versioned::new(State { attrs, unlinked, opens: 0, let_go: 0, syncs: 0 }),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns the object number.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.object.id()
    }

    /// Returns the object. The dnode in the handle is as of its first use: see [`Object::reload`].
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Returns the current attributes.
    #[must_use]
    pub fn attrs(&self) -> Attrs {
        self.state.read().attrs.clone()
    }

    /// Returns a part of the attributes, without copying all of them.
    pub fn with_attrs<R>(&self, look: impl FnOnce(&Attrs) -> R) -> R {
        look(&self.state.read().attrs)
    }

    /// Returns the unique number of this znode.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns a part of the attributes, from `last` if nothing has changed since.
    pub(super) fn look<R: Copy>(&self, last: &mut Option<(u64, R)>, look: impl FnOnce(&Attrs) -> R) -> R {
        if let Some((_, seen)) = last.filter(|(version, _)| self.state.is(*version)) {
            return seen;
        }
        let state = self.state.read();
        let seen = look(&state.attrs);
        *last = self.state.version().map(|version| (version, seen));
        seen
    }

    /// Returns the kind of the file.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.with_attrs(Attrs::kind)
    }

    /// True if it has no name any more.
    #[must_use]
    pub fn is_unlinked(&self) -> bool {
        self.state.read().unlinked
    }

    /// True if a handle holds it, or would be taken back.
    pub(super) fn is_held(&self) -> bool {
        self.state.read().opens > 0
    }

    /// True if it has no name any more, or not yet.
    pub(super) fn is_nameless(&self) -> bool {
        self.nascent.load(Ordering::Relaxed) || self.is_unlinked()
    }

    /// Sets whether the file is being created.
    pub(super) fn set_nascent(&self, nascent: bool) {
        self.nascent.store(nascent, Ordering::Relaxed);
    }

    /// True if it is known to have no capabilities. Set with `content` held.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain.load(Ordering::Relaxed)
    }

    pub(crate) fn set_plain(&self, plain: bool) {
        self.plain.store(plain, Ordering::Relaxed);
    }

    /// True if it is open for synchronous writes.
    pub(super) fn writes_sync(&self) -> bool {
        self.state.read().syncs > 0
    }

    /// Returns the ZAP of a directory's names.
    ///
    /// # Errors
    /// ENOTDIR; when the ZAP cannot be read.
    pub(crate) fn dir(&self) -> Result<&Zap, Error> {
        if let Some(zap) = self.zap.get() {
            return Ok(zap);
        }
        if self.kind() != Kind::Directory {
            return Err(Error::NotDirectory { name: format!("object {}", self.id()).into_bytes() });
        }
        let zap = Zap::open(self.object.clone())?;
        Ok(self.zap.get_or_init(|| zap))
    }

    pub(super) fn set_dir(&self, zap: Zap) {
        let _ = self.zap.set(zap);
    }

    /// Returns all current system attributes.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(crate) fn sa(&self, zfs: &Zfs) -> Result<SaAttrs, Error> {
        Ok(zfs.fs().sa().attrs(&self.object.reload()?)?)
    }

    /// Adds the hidden directory of extended attributes to attributes that were read without their spill block, if that can be
    /// read by now.
    ///
    /// # Errors
    /// When the attributes cannot be read.
    pub(crate) fn complete(&self, zfs: &Zfs) -> Result<(), Error> {
        if !self.partial.load(Ordering::Relaxed) {
            return Ok(());
        }
        let sa = self.sa(zfs)?;
        if sa.spill_error().is_none() {
            let mut state = self.state.write();
            if state.attrs.xattr_dir.is_none() {
                state.attrs.xattr_dir = ObjectId(sa.u64(Attr::Xattr).unwrap_or(0));
            }
            self.partial.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Checks that the hidden directory of extended attributes is not among attributes that cannot be read.
    ///
    /// # Errors
    /// If it may be.
    pub(crate) fn check_complete(&self, zfs: &Zfs) -> Result<(), Error> {
        if self.partial.load(Ordering::Relaxed) {
            attr_of(self.id(), &self.sa(zfs)?, Attr::Xattr)?;
        }
        Ok(())
    }

    /// Changes attributes: `change` gets a copy, and the differences are written afterwards. On an error nothing is changed.
    ///
    /// # Errors
    /// Those of `change`; when the attributes cannot be written.
    pub(crate) fn edit<R>(
        &self,
        zfs: &Zfs,
        tx: &Tx,
        change: impl FnOnce(&mut Attrs) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.edit_with(zfs, tx, &[], change)
    }

    /// As [`Znode::edit`], and also sets attributes that are not in [`Attrs`] (ACLs, packed extended attributes) in the same
    /// step.
    ///
    /// # Errors
    /// As [`Znode::edit`].
    pub(crate) fn edit_with<R>(
        &self,
        zfs: &Zfs,
        tx: &Tx,
        others: &[SaValue<'_>],
        change: impl FnOnce(&mut Attrs) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.edit_without(zfs, tx, others, &[], change)
    }

    /// As [`Znode::edit_with`], and then removes the attributes `gone` in the same step.
    ///
    /// # Errors
    /// As [`Znode::edit`].
    pub(super) fn edit_without<R>(
        &self,
        zfs: &Zfs,
        tx: &Tx,
        others: &[SaValue<'_>],
        gone: &[Attr],
        change: impl FnOnce(&mut Attrs) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut state = self.state.write();
        let mut attrs = state.attrs.clone();
        let result = change(&mut attrs)?;
        let changes = Changes::between(&state.attrs, &attrs);
        let mut values = changes.values();
        values.extend(others.iter().cloned());
        if state.attrs.projid.is_none() && attrs.projid.is_some() {
            zfs.add_project(tx, self, &values)?;
        } else if !values.is_empty() {
            zfs.fs().sa().update(tx, &self.object, &values)?;
        }
        state.attrs = attrs;
        if !gone.is_empty() {
            zfs.fs().sa().remove(tx, &self.object, gone)?;
        }
        Ok(result)
    }

    /// Notes that the last name is removed. Returns true if no handle holds the file.
    pub(super) fn set_unlinked(&self) -> bool {
        let mut state = self.state.write();
        state.unlinked = true;
        state.opens == 0
    }
}

impl std::fmt::Debug for Znode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "file {} ({:?})", self.id(), self.kind())
    }
}

/// Stamps a change of the contents (OpenZFS: `zfs_tstamp_update_setup`, `CONTENT_MODIFIED`).
pub(crate) fn content_modified(attrs: &mut Attrs, now: Time) {
    (attrs.mtime, attrs.ctime) = (now, now);
    attrs.flags.0 |= FileFlags::ARCHIVE.0 | FileFlags::AV_MODIFIED.0;
    attrs.seq = attrs.seq.map(|seq| seq.wrapping_add(1));
}

/// Stamps a change of anything but the contents (OpenZFS: `zfs_tstamp_update_setup`, `STATE_CHANGED`).
pub(crate) fn state_changed(attrs: &mut Attrs, now: Time) {
    attrs.ctime = now;
    attrs.flags.0 |= FileFlags::ARCHIVE.0;
    attrs.seq = attrs.seq.map(|seq| seq.wrapping_add(1));
}

/// Attributes to write.
#[derive(Default)]
struct Changes {
    /// Their values, in the byte order of this machine.
    bytes: Vec<u8>,
    /// Which, and the ends of their values.
    attrs: Vec<(Attr, usize)>,
}

impl Changes {
    /// Returns those that make `old` become `new`.
    fn between(old: &Attrs, new: &Attrs) -> Changes {
        let mut out = Changes { bytes: Vec::with_capacity(64), attrs: Vec::with_capacity(6) };
        out.word(Attr::Mode, Some(old.mode.into()), Some(new.mode.into()));
        out.word(Attr::Size, Some(old.size), Some(new.size));
        out.word(Attr::Gen, Some(old.generation), Some(new.generation));
        out.word(Attr::Uid, Some(old.owner.0), Some(new.owner.0));
        out.word(Attr::Gid, Some(old.group.0), Some(new.group.0));
        out.word(Attr::Parent, Some(old.parent.0), Some(new.parent.0));
        out.word(Attr::Flags, Some(old.flags.0), Some(new.flags.0));
        out.word(Attr::Links, Some(old.links), Some(new.links));
        out.word(Attr::Xattr, Some(old.xattr_dir.0), Some(new.xattr_dir.0));
        out.word(Attr::Projid, old.projid, new.projid);
        out.word(Attr::Rdev, old.rdev, new.rdev);
        out.word(Attr::Seq, old.seq, new.seq);
        out.time(Attr::Atime, old.atime, new.atime);
        out.time(Attr::Mtime, old.mtime, new.mtime);
        out.time(Attr::Ctime, old.ctime, new.ctime);
        out.time(Attr::Crtime, old.crtime, new.crtime);
        out
    }

    fn word(&mut self, attr: Attr, old: Option<u64>, new: Option<u64>) {
        if let Some(value) = new.filter(|_| new != old) {
            self.put(attr, &[value]);
        }
    }

    fn time(&mut self, attr: Attr, old: Time, new: Time) {
        if old != new {
            self.put(attr, &[new.sec.cast_unsigned(), new.nsec.into()]);
        }
    }

    fn put(&mut self, attr: Attr, words: &[u64]) {
        words.iter().for_each(|word| self.bytes.extend_from_slice(&word.to_ne_bytes()));
        self.attrs.push((attr, self.bytes.len()));
    }

    /// Returns them as values.
    fn values(&self) -> Vec<SaValue<'_>> {
        let mut start = 0;
        let value = |(attr, end): &(Attr, usize)| {
            let value = self.bytes.get(start..*end).unwrap_or_default();
            start = *end;
            (*attr, Cow::Borrowed(value))
        };
        self.attrs.iter().map(value).collect()
    }
}

/// Encodes a time as an attribute.
pub(crate) fn time_value(attr: Attr, time: Time) -> SaValue<'static> {
    (attr, Cow::Owned(words(&[time.sec.cast_unsigned(), time.nsec.into()])))
}

/// All files in use, and some recently used ones.
#[derive(Default)]
pub(super) struct Nodes([Shard; SHARDS]);

struct Shard {
    files: RwLock<UseTable<ObjectId, Arc<Znode>>>,
    /// Held while a file is loaded, so that no outdated copy is inserted.
    loading: Mutex<()>,
}

impl Default for Shard {
    fn default() -> Shard {
        Shard { files: RwLock::new(UseTable::new(KEEP)), loading: Mutex::default() }
    }
}

fn in_use(node: &Arc<Znode>) -> bool {
    Arc::strong_count(node) > 1 || node.is_unlinked() || node.is_held()
}

impl Nodes {
    fn shard(&self, id: ObjectId) -> &Shard {
        // in range: a remainder
        #[allow(clippy::indexing_slicing)]
        &self.0[(id.0 % SHARDS as u64) as usize]
    }

    pub(super) fn get(&self, id: ObjectId) -> Option<Arc<Znode>> {
        self.shard(id).files.read().get(&id).cloned()
    }

    /// Inserts a file.
    pub(super) fn insert(&self, node: Znode) -> Arc<Znode> {
        let node = Arc::new(node);
        let unused = self.shard(node.id()).files.write().insert(node.id(), node.clone(), in_use);
        release(unused);
        node
    }

    /// Removes a file that no longer exists.
    pub(super) fn remove(&self, id: ObjectId) {
        let removed = self.shard(id).files.write().remove(&id);
        drop(removed);
    }

    /// Notes that no handle holds a file any more.
    fn released(&self, id: ObjectId) {
        let files = &self.shard(id).files;
        let is_due = files.read().release();
        if is_due {
            let unused = files.write().sweep(in_use);
            release(unused);
        }
    }

    /// The number of files, in use or not.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.files.read().len()).sum()
    }
}

/// Drops files that are in the table no more, and lets go of their objects.
fn release(unused: Vec<Arc<Znode>>) {
    for node in unused {
        let (objset, id) = (node.object.objset().clone(), node.id());
        drop(node);
        objset.release(id);
    }
}

impl Zfs {
    /// Returns the file with object number `id`.
    ///
    /// # Errors
    /// ENOENT if the object does not exist, EINVAL if it is not a file; an error if its attributes cannot be read.
    pub fn znode(&self, id: ObjectId) -> Result<Arc<Znode>, Error> {
        let nodes = &self.0.nodes;
        if let Some(node) = nodes.get(id) {
            return Ok(node);
        }
        let _loading = nodes.shard(id).loading.lock();
        if let Some(node) = nodes.get(id) {
            return Ok(node);
        }
        let node = self.fs().node(id)?;
        let mut znode = Znode::new(node.object().clone(), node.attrs().clone());
        znode.partial = AtomicBool::new(node.sa().spill_error().is_some());
        Ok(nodes.insert(znode))
    }

    /// Holds a file open: it exists until the last such handle is dropped, even without a name.
    ///
    /// # Errors
    /// ENOENT if the file does not exist, or has no name any more and no handle holds it.
    pub fn hold(&self, id: ObjectId) -> Result<Open, Error> {
        let node = self.znode(id)?;
        {
            let mut state = node.state.write();
            if state.unlinked && state.opens == 0 {
                return Err(Refusal::Gone.of(id));
            }
            state.opens += 1;
        }
        Ok(Open { zfs: self.clone(), node, sync: false, let_go: false })
    }

    /// Counts a handle of an earlier opening, which is going to be [taken back](Zfs::take_back), if the file is still that one.
    pub(super) fn expect_back(&self, kept: KeptObject) {
        // one that cannot be read cannot be taken back either
        let Ok(node) = self.znode(kept.id) else { return };
        let mut state = node.state.write();
        if state.attrs.generation == kept.generation {
            state.opens += 1;
            state.let_go += 1;
        }
    }

    /// Takes back a handle that was [let go of](Open::let_go); `None` if the file is not there any more.
    pub(super) fn take_back(&self, id: ObjectId) -> Option<Open> {
        let node = self.0.nodes.get(id)?;
        {
            let mut state = node.state.write();
            state.let_go = state.let_go.checked_sub(1)?;
        }
        Some(Open { zfs: self.clone(), node, sync: false, let_go: false })
    }
}

/// A handle that holds a file open. See [`Zfs::hold`].
pub struct Open {
    zfs: Zfs,
    node: Arc<Znode>,
    sync: bool,
    /// It counts on without this handle.
    let_go: bool,
}

impl Open {
    /// Returns the file.
    #[must_use]
    pub fn node(&self) -> &Arc<Znode> {
        &self.node
    }

    /// Returns the object number.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.node.id()
    }

    /// Turns the handle into one for synchronous writes (`O_SYNC`, `O_DSYNC`): while it is held, every commit of the log includes
    /// the writes to the file. The writer itself must wait for each write: [`Vfs::write_sync`](super::Vfs::write_sync).
    #[must_use]
    pub fn synchronous(mut self) -> Open {
        if !std::mem::replace(&mut self.sync, true) {
            self.node.state.write().syncs += 1;
        }
        self
    }
}

impl Open {
    /// Lets go of the file system, and not of the file, which is not freed until the handle was taken back: here, or where the file system is opened
    /// again and [expects it](Zfs::expect_back).
    pub(super) fn let_go(mut self) {
        let mut state = self.node.state.write();
        state.let_go += 1;
        state.syncs -= u64::from(self.sync);
        drop(state);
        self.let_go = true;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.let_go {
            return;
        }
        let (unused, unlinked) = {
            let mut state = self.node.state.write();
            assert!(state.opens > 0 && state.syncs >= self.sync.into(), "object {} is closed twice", self.id());
            state.opens -= 1;
            state.syncs -= u64::from(self.sync);
            (state.opens == 0, state.unlinked)
        };
        if unused && !unlinked {
            self.zfs.0.nodes.released(self.id());
        }
        if unused && unlinked {
            self.zfs.free_later(self.id());
            // a batch of this thread may have a transaction; its end frees the file
            if self.zfs.1.is_some() || self.zfs.0.batches.load(Ordering::SeqCst) == 0 {
                self.zfs.reap();
            }
        }
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "open {:?}", self.node)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ondisk::ObjsetType;
    use pool::NewDataset;

    use super::*;
    use crate::create::{FsProps, create_fs};
    use crate::live::{Cred, NewFile};

    #[test]
    fn files_that_were_open_once_do_not_stay_in_memory() {
        const FILES: usize = 2 * SHARDS * KEEP + 1000;
        let (spa, _) = pool::testing::in_memory("d0", 1);
        let new = NewDataset::inheriting("t/a", ObjsetType::Zfs);
        spa.create_dataset(new, Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default()))).unwrap();
        let zfs = Zfs::open(&spa, "t/a").unwrap();
        let made = zfs.batch(|zfs| {
            let new = NewFile::new(Kind::File, 0o644);
            let make = |n: usize| zfs.create(&Cred::ROOT, zfs.fs().root(), n.to_string().as_bytes(), &new);
            (0..FILES).map(|n| Ok(make(n)?.0)).collect::<Result<Vec<ObjectId>, Error>>()
        });
        let open: Vec<Open> = made.unwrap().into_iter().map(|id| zfs.hold(id).unwrap()).collect();
        assert!(zfs.0.nodes.len() >= FILES);
        let seen: Vec<_> = open.iter().map(|open| Arc::downgrade(open.node())).collect();
        drop(open);
        // nothing else is opened or removed
        let left = seen.iter().filter(|node| node.strong_count() > 0).count();
        assert!(left <= SHARDS * KEEP && zfs.0.nodes.len() <= SHARDS * KEEP, "{left} of {FILES} files are in memory");
    }
}
