//! Files in use.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use base::Versioned;
use dmu::sa::{Attr, SaAttrs, SaValue, words};
use dmu::{Object, Tx, Zap};
use parking_lot::{Mutex, RwLock};

use super::{Refusal, Zfs};
use crate::{Attrs, Error, FileFlags, Kind, Time};

const SHARDS: usize = 32;
/// Files that a shard keeps though nobody uses them.
const KEEP: usize = 512;

/// That of the next [`Znode`].
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A file in use (OpenZFS: `znode_t`). Its locks are those of the order in [`live`](super).
pub struct Znode {
    object: Object,
    zap: OnceLock<Zap>,
    /// Of a directory: held for writing while its names change.
    pub(crate) names: RwLock<()>,
    /// Held by who changes owners, mode, flags or list, from the look at what they are to the change.
    pub(super) rights: Mutex<()>,
    /// Of a file: held for writing by who changes its contents as a whole, for reading by who relies on them.
    pub(crate) content: Versioned<()>,
    /// Who reads it, and where.
    pub(super) streams: Mutex<super::prefetch::Streams>,
    /// It is being made, and has no name yet.
    nascent: AtomicBool,
    /// It was looked for the attribute that makes a program more than its caller, and there is none (Linux: `S_NOSEC`).
    plain: AtomicBool,
    /// The last txg with something that the intent log does not have.
    missed: AtomicU64,
    state: Versioned<State>,
    /// No other has this number, not even one of the same file.
    number: u64,
}

struct State {
    attrs: Attrs,
    /// It has no name any more.
    unlinked: bool,
    /// How many hold it open.
    opens: u64,
    /// Of them, for writes that are waited for.
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
            content: Versioned::default(),
            streams: Mutex::default(),
            nascent: AtomicBool::new(false),
            plain: AtomicBool::new(false),
            missed: AtomicU64::new(0),
            state: Versioned::new(State { attrs, unlinked, opens: 0, syncs: 0 }),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The object's number.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.object.id()
    }

    /// The object. What the handle tells of its dnode is as of its first use: see [`Object::reload`].
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// The attributes as they are now.
    #[must_use]
    pub fn attrs(&self) -> Attrs {
        self.state.read().attrs.clone()
    }

    /// Something of the attributes, without a copy of all.
    pub fn with_attrs<R>(&self, look: impl FnOnce(&Attrs) -> R) -> R {
        look(&self.state.read().attrs)
    }

    /// Which one this is of all that there ever were in memory.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The attributes, as they were looked at last if nothing has changed since.
    pub(super) fn look<R: Copy>(&self, last: &mut Option<(u64, R)>, look: impl FnOnce(&Attrs) -> R) -> R {
        if let Some((_, seen)) = last.filter(|(version, _)| self.state.is(*version)) {
            return seen;
        }
        let state = self.state.read();
        let seen = look(&state.attrs);
        *last = self.state.version().map(|version| (version, seen));
        seen
    }

    /// What kind of file.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.with_attrs(Attrs::kind)
    }

    /// Whether it has no name any more.
    #[must_use]
    pub fn is_unlinked(&self) -> bool {
        self.state.read().unlinked
    }

    /// Whether it has no name: any more, or yet.
    pub(super) fn is_nameless(&self) -> bool {
        self.nascent.load(Ordering::Relaxed) || self.is_unlinked()
    }

    /// Says whether the file is being made.
    pub(super) fn set_nascent(&self, nascent: bool) {
        self.nascent.store(nascent, Ordering::Relaxed);
    }

    /// Whether it is known to have no capabilities. Said with `content` held.
    pub(super) fn is_plain(&self) -> bool {
        self.plain.load(Ordering::Relaxed)
    }

    pub(super) fn set_plain(&self, plain: bool) {
        self.plain.store(plain, Ordering::Relaxed);
    }

    /// Something of the file is not in the intent log.
    pub(super) fn miss(&self, tx: &Tx) {
        self.missed.fetch_max(tx.txg().0, Ordering::Relaxed);
    }

    /// The last txg that has such.
    pub(super) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Whether somebody holds it open for writes that are waited for.
    pub(super) fn writes_sync(&self) -> bool {
        self.state.read().syncs > 0
    }

    /// The names of a directory.
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

    /// All system attributes as they are now.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(crate) fn sa(&self, zfs: &Zfs) -> Result<SaAttrs, Error> {
        Ok(zfs.fs().sa().attrs(&self.object.reload()?)?)
    }

    /// Changes attributes: `change` is given a copy, and what differs afterwards is written. An error leaves all as it was.
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

    /// As [`Znode::edit`], and sets attributes that [`Attrs`] does not have (lists, packed extended attributes) in the same step.
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
        let mut state = self.state.write();
        let mut attrs = state.attrs.clone();
        let result = change(&mut attrs)?;
        let mut values = differences(&state.attrs, &attrs);
        values.extend(others.iter().cloned());
        if !values.is_empty() {
            zfs.fs().sa().update(tx, &self.object, &values)?;
        }
        state.attrs = attrs;
        Ok(result)
    }

    /// The last name is gone. Tells whether nobody holds the file.
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

/// The contents change now (OpenZFS: `zfs_tstamp_update_setup`, `CONTENT_MODIFIED`).
pub(crate) fn content_modified(attrs: &mut Attrs, now: Time) {
    (attrs.mtime, attrs.ctime) = (now, now);
    attrs.flags.0 |= FileFlags::ARCHIVE.0 | FileFlags::AV_MODIFIED.0;
    attrs.seq = attrs.seq.map(|seq| seq.wrapping_add(1));
}

/// Something else than the contents changes now (OpenZFS: `zfs_tstamp_update_setup`, `STATE_CHANGED`).
pub(crate) fn state_changed(attrs: &mut Attrs, now: Time) {
    attrs.ctime = now;
    attrs.flags.0 |= FileFlags::ARCHIVE.0;
    attrs.seq = attrs.seq.map(|seq| seq.wrapping_add(1));
}

/// What is to be written so that `old` becomes `new`.
fn differences(old: &Attrs, new: &Attrs) -> Vec<SaValue<'static>> {
    let mut out = Vec::with_capacity(6);
    let mut word = |attr, old: Option<u64>, new: Option<u64>| {
        if let Some(value) = new.filter(|_| new != old) {
            out.push((attr, Cow::Owned(words(&[value]))));
        }
    };
    word(Attr::Mode, Some(old.mode.into()), Some(new.mode.into()));
    word(Attr::Size, Some(old.size), Some(new.size));
    word(Attr::Gen, Some(old.generation), Some(new.generation));
    word(Attr::Uid, Some(old.owner.0), Some(new.owner.0));
    word(Attr::Gid, Some(old.group.0), Some(new.group.0));
    word(Attr::Parent, Some(old.parent), Some(new.parent));
    word(Attr::Flags, Some(old.flags.0), Some(new.flags.0));
    word(Attr::Links, Some(old.links), Some(new.links));
    word(Attr::Xattr, Some(old.xattr_dir), Some(new.xattr_dir));
    word(Attr::Projid, old.projid, new.projid);
    word(Attr::Rdev, old.rdev, new.rdev);
    word(Attr::Seq, old.seq, new.seq);
    let times = [
        (Attr::Atime, old.atime, new.atime),
        (Attr::Mtime, old.mtime, new.mtime),
        (Attr::Ctime, old.ctime, new.ctime),
        (Attr::Crtime, old.crtime, new.crtime),
    ];
    out.extend(times.into_iter().filter(|(_, old, new)| old != new).map(|(attr, _, new)| time_value(attr, new)));
    out
}

/// A time as an attribute.
pub(crate) fn time_value(attr: Attr, time: Time) -> SaValue<'static> {
    (attr, Cow::Owned(words(&[time.sec.cast_unsigned(), time.nsec.into()])))
}

/// All files in use, and some that were.
#[derive(Default)]
pub(super) struct Nodes([Shard; SHARDS]);

#[derive(Default)]
struct Shard {
    files: RwLock<HashMap<u64, Arc<Znode>>>,
    /// Held while a file is read, so that none comes in that has been changed since.
    loading: Mutex<()>,
}

impl Nodes {
    fn shard(&self, id: u64) -> &Shard {
        // a remainder
        #[allow(clippy::indexing_slicing)]
        &self.0[(id % SHARDS as u64) as usize]
    }

    pub(super) fn get(&self, id: u64) -> Option<Arc<Znode>> {
        self.shard(id).files.read().get(&id).cloned()
    }

    /// Takes in a file.
    pub(super) fn insert(&self, node: Znode) -> Arc<Znode> {
        let node = Arc::new(node);
        let mut files = self.shard(node.id()).files.write();
        if files.len() >= KEEP {
            files.retain(|_, node| Arc::strong_count(node) > 1 || node.is_unlinked());
        }
        files.insert(node.id(), node.clone());
        node
    }

    /// Forgets a file that is no more.
    pub(super) fn remove(&self, id: u64) {
        self.shard(id).files.write().remove(&id);
    }
}

impl Zfs {
    /// The file that is object `id`.
    ///
    /// # Errors
    /// ENOENT if there is no such object, EINVAL if it is no file; when its attributes cannot be read.
    pub fn znode(&self, id: u64) -> Result<Arc<Znode>, Error> {
        let nodes = &self.0.nodes;
        if let Some(node) = nodes.get(id) {
            return Ok(node);
        }
        let _loading = nodes.shard(id).loading.lock();
        if let Some(node) = nodes.get(id) {
            return Ok(node);
        }
        let node = self.fs().node(id)?;
        Ok(nodes.insert(Znode::new(node.object().clone(), node.attrs().clone())))
    }

    /// Holds a file open: until the last such handle is dropped it lives, even without a name.
    ///
    /// # Errors
    /// ENOENT if there is no such file, or it has no name any more and nobody holds it.
    pub fn hold(&self, id: u64) -> Result<Open, Error> {
        let node = self.znode(id)?;
        {
            let mut state = node.state.write();
            if state.unlinked && state.opens == 0 {
                return Err(Refusal::Gone.of(id));
            }
            state.opens += 1;
        }
        Ok(Open { zfs: self.clone(), node, sync: false })
    }
}

/// A file that is held open. See [`Zfs::hold`].
pub struct Open {
    zfs: Zfs,
    node: Arc<Znode>,
    sync: bool,
}

impl Open {
    /// The file.
    #[must_use]
    pub fn node(&self) -> &Arc<Znode> {
        &self.node
    }

    /// The object's number.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.node.id()
    }

    /// The same for synchronous writes (`O_SYNC`, `O_DSYNC`): while it is held, whoever waits for the log has what is written to the file
    /// in it. To wait for each write is for the writer: [`Vfs::write_sync`](super::Vfs::write_sync).
    #[must_use]
    pub fn synchronous(mut self) -> Open {
        if !std::mem::replace(&mut self.sync, true) {
            self.node.state.write().syncs += 1;
        }
        self
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let last = {
            let mut state = self.node.state.write();
            state.opens = state.opens.saturating_sub(1);
            state.syncs = state.syncs.saturating_sub(self.sync.into());
            state.opens == 0 && state.unlinked
        };
        if last {
            self.zfs.free_later(self.id());
            self.zfs.reap();
        }
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "open {:?}", self.node)
    }
}
