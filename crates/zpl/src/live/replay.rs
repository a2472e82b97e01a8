//! Replay of the intent log of a file system (OpenZFS: `zfs_replay.c`).
//!
//! Records hold results: object numbers, owners, modes and times of creation are used as recorded. So no permissions are checked
//! and no quotas apply, since they were checked when the record was written; times of change are those of the replay, as with
//! OpenZFS. All changes of a record are in one transaction, that of its window, which the replaying threads share, through a handle
//! whose operations are all within it.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use base::{Endian, ObjectId, bytes};
use dmu::sa::Attr;
use dmu::{Object, Tx};
use nvlist::{Encoding, NvList, Value};
use ondisk::BlkPtr;
use ondisk::zil::{AttrPart, Create, Record, Rename, SetAttr as Logged, TxType, Whiteout, Write};
use pool::Spa;
use zil::replay::{Entry, Replayed, Replayer};
use zio::Payload;

use super::hold::Shared;
use super::names::entry_word;
use super::namespace::Delta;
use super::new::{MAX_SLOTS, Recorded};
use super::setattr::acl_values;
use super::znode::{content_modified, state_changed};
use super::{Cred, NewFile, Refusal, RenameMode, SMALL_CHANGE, SetAttr, Settings, Zfs, Znode};
use crate::acl::modes::{self as acl, Owners};
use crate::{Ace, Acl, Error, FileFlags, Kind, Time, decode_dxattr};

/// Mask bits of the attributes that a SETATTR changes (Linux: `ATTR_*`).
pub(super) const ATTR_MODE: u64 = 0x1;
pub(super) const ATTR_UID: u64 = 0x2;
pub(super) const ATTR_GID: u64 = 0x4;
pub(super) const ATTR_SIZE: u64 = 0x8;
pub(super) const ATTR_ATIME: u64 = 0x10;
pub(super) const ATTR_MTIME: u64 = 0x20;
/// Mask bits of further attributes: the time of creation, and the project (OpenZFS: `XAT0_*`).
pub(super) const XAT_CREATETIME: u32 = 0x1;
pub(super) const XAT_PROJID: u32 = 0x4_0000;
/// Further attributes that are flags of a file.
pub(super) const XAT_FLAGS: [(u32, FileFlags); 14] = [
    (0x2, FileFlags::ARCHIVE),
    (0x4, FileFlags::SYSTEM),
    (0x8, FileFlags::READONLY),
    (0x10, FileFlags::HIDDEN),
    (0x20, FileFlags::NOUNLINK),
    (0x40, FileFlags::IMMUTABLE),
    (0x80, FileFlags::APPENDONLY),
    (0x100, FileFlags::NODUMP),
    (0x200, FileFlags::OPAQUE),
    (0x400, FileFlags::AV_QUARANTINED),
    (0x800, FileFlags::AV_MODIFIED),
    (0x8000, FileFlags::OFFLINE),
    (0x1_0000, FileFlags::SPARSE),
    (0x2_0000, FileFlags::PROJINHERIT),
];

impl Zfs {
    /// Replays the intent log, if it holds records to replay. The file system is not in use yet, and no quotas are loaded.
    ///
    /// # Errors
    /// If the pool is suspended. A record that cannot be replayed ends the replay, which is reported in the result.
    pub(super) fn replay(&self, name: &str) -> Result<Option<Replayed<Error>>, Error> {
        let settings = self.settings();
        // changes from before the file system became read-only are replayed all the same
        *self.0.settings.write() = Settings { readonly: false, ..*settings }.into();
        let objset = self.fs().objset();
        let done = self.spa().replaying(objset, || {
            zil::replay::replay(objset, self.spa().take_log(objset), &Player(self), self.spa().replay_meter())
        });
        *self.0.settings.write() = settings;
        let done = done?;
        tell(self.spa(), name, done.as_ref())?;
        Ok(done)
    }
}

/// Records in the pool's history that a replay ended early.
pub(crate) fn tell(spa: &Arc<Spa>, name: &str, done: Option<&Replayed<Error>>) -> Result<(), Error> {
    if let Some((seq, kind, error)) = done.and_then(|done| done.failed.as_ref()) {
        let what = format!("replay of the intent log of {name} ended at record {seq} of type {kind}: {error}");
        spa.log_replay_failure(what)?;
    }
    Ok(())
}

struct Player<'a>(&'a Zfs);

/// The transaction of a window of records.
struct Window {
    place: Shared,
    /// The time when it was assigned: files get this time of change from the writes of the window, so that their attributes
    /// change only once.
    begun: Time,
}

impl Replayer for Player<'_> {
    type Error = Error;
    type Window = Window;

    fn window(&self, bytes: u64) -> Result<Window, Error> {
        let place = Shared::begin(self.0.spa(), self.0.fs().objset(), bytes)?;
        Ok(Window { place, begun: self.0.now() })
    }

    fn tx(window: &Window) -> &Tx {
        window.place.tx()
    }

    fn apply(&self, window: &Window, entry: &Entry<'_>) -> Result<(), Error> {
        let tx = window.place.tx();
        self.0.within(tx).play(tx, entry, window.begun)
    }

    fn bytes(&self, record: &Record<'_>) -> u64 {
        let data = match record {
            // the blocks that it touches, which may be larger than new ones
            Record::Write(write) => blocks_of(write, self.0.settings().recordsize.max(write.blkptr.lsize())),
            Record::Truncate { .. } | Record::CloneRange { .. } | Record::SetAttr(_) => {
                2 * self.0.settings().recordsize
            }
            _ => 2 * SMALL_CHANGE,
        };
        data.saturating_add(2 * SMALL_CHANGE)
    }

    fn frees_long(&self, record: &Record<'_>) -> Option<(Object, Range<u64>)> {
        let (id, range) = match record {
            Record::Truncate { foid, offset, length: 0 } => (*foid, *offset..u64::MAX),
            // a range that no file can have makes the replay of the record fail
            Record::Truncate { foid, offset, length } => (*foid, *offset..end_of(*foid, *offset, *length).ok()?),
            Record::SetAttr(set) if set.mask & ATTR_SIZE != 0 => (set.foid, set.size..u64::MAX),
            _ => return None,
        };
        // an object that is missing or is not a file makes the replay of the record fail
        let node = self.0.znode(id).ok().filter(|node| super::io::expect_file(node).is_ok())?;
        node.object().is_long(&range).then(|| (node.object().clone(), range))
    }

    fn file_of(&self, dir: ObjectId, name: &[u8]) -> Option<Option<ObjectId>> {
        let dir = self.0.directory(dir).ok()?;
        let Some(entry) = self.0.find(&dir, name).ok()? else { return Some(None) };
        // files in a hidden directory of extended attributes are freed with the file
        let node = self.0.znode(entry.object).ok()?;
        node.with_attrs(|attrs| attrs.xattr_dir.is_none()).then_some(Some(entry.object))
    }

    fn after_window(&self) {
        self.0.reap();
    }

    fn is_unanswered(error: &Error) -> bool {
        error.is_unanswered()
    }

    fn waits(&self) -> bool {
        !self.0.spa().gives_up_logs()
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(self.0.spa().sync()?)
    }

    fn finish(&self, blocks: Vec<BlkPtr>) -> Result<(), Error> {
        Ok(self.0.spa().destroy_log(self.0.fs().objset(), blocks)?)
    }
}

/// Returns the bytes of the blocks of `size` bytes that a write touches.
fn blocks_of(write: &Write<'_>, size: u64) -> u64 {
    let into = write.offset.checked_rem(size).unwrap_or(0);
    into.saturating_add(write.length).checked_next_multiple_of(size.max(1)).unwrap_or(u64::MAX)
}

fn time([sec, nsec]: [u64; 2]) -> Time {
    Time { sec: sec.cast_signed(), nsec: nsec as u32 }
}

impl Zfs {
    fn play(&self, tx: &Tx, entry: &Entry<'_>, begun: Time) -> Result<(), Error> {
        match entry.record {
            Record::Commit => Ok(()),
            Record::Create(new) if entry.kind == TxType::Mkxattr => self.play_hidden_dir(tx, new),
            Record::Create(new) => self.play_create(tx, new, entry),
            Record::Remove { doid, name } if entry.kind == TxType::Rmdir => self.rmdir(&Cred::ROOT, *doid, name),
            Record::Remove { doid, name } => self.unlink(&Cred::ROOT, *doid, name),
            Record::Link { doid, link_obj, name } => self.link(&Cred::ROOT, *link_obj, *doid, name).map(|_| ()),
            Record::Rename(rename) => self.play_rename(rename, entry.kind),
            Record::Write(write) => self.play_write(tx, write, entry, begun),
            Record::Truncate { foid, offset, length } => self.play_truncate(*foid, *offset, *length),
            Record::SetAttr(set) => self.play_setattr(tx, set, entry.endian),
            Record::AclV0 { foid, count, aces } => {
                self.play_acl(tx, *foid, Acl::decode_old(aces, *count, entry.endian)?, None)
            }
            Record::Acl { foid, acl } => {
                let aces = Acl::decode_given(acl.aces, acl.count, entry.endian)?;
                self.play_acl(tx, *foid, aces, Some(acl.flags))
            }
            Record::SetSaXattr { foid, name, value } => self.play_sa_xattr(tx, *foid, name, *value),
            Record::CloneRange { foid, offset, length, blksz, bps } => {
                self.play_clone(tx, *foid, (*offset, *length), *blksz, bps)
            }
        }
    }

    fn play_create(&self, tx: &Tx, new: &Create<'_>, entry: &Entry<'_>) -> Result<(), Error> {
        let dir = self.directory(new.doid)?;
        let kind = Kind::from_number((new.mode >> 12 & 0xf) as u8);
        let _names = dir.names.write();
        if self.find(&dir, new.name)?.is_some() {
            return Err(Refusal::Exists.of(dir.id()));
        }
        self.check_normal_form(&dir, new.name)?;
        let file = NewFile {
            rdev: new.rdev,
            target: new.link.unwrap_or(&[]),
            ..NewFile::new(kind, (new.mode & 0o7777) as u32)
        };
        let owner = owner_of(new.uid, new.gid);
        let birth = self.plan_new(&owner, &dir, &file)?.recorded_as(recorded_of(new)?);
        self.whole(tx, |steps| {
            let node = steps.make(&birth)?;
            steps.add(&dir, new.name, entry_word(node.id(), kind))?;
            self.entries_changed(steps, &dir, Delta::plus(kind), self.now())?;
            // these are undone with the file
            if let Some(attrs) = &new.attrs {
                let (set, _) = further(attrs, entry.endian, &node);
                self.setattr(&Cred::ROOT, new.foid, &set)?;
            }
            if let Some(acl) = &new.acl {
                let aces = Acl::decode_given(acl.aces, acl.count, entry.endian)?;
                self.play_acl(tx, new.foid, aces, Some(acl.flags))?;
            }
            self.note_long_name(tx, new.name);
            Ok(())
        })
    }

    /// Replays MKXATTR: the hidden directory of extended attributes of a file.
    fn play_hidden_dir(&self, tx: &Tx, new: &Create<'_>) -> Result<(), Error> {
        let node = self.znode(new.doid)?;
        let _content = node.content.write();
        let recorded = recorded_of(new)?;
        self.whole(tx, |steps| self.make_hidden_dir(steps, &node, Some(recorded)).map(|_| ()))
    }

    fn play_rename(&self, rename: &Rename<'_>, kind: TxType) -> Result<(), Error> {
        let mode = match kind {
            TxType::RenameExchange => RenameMode::Exchange,
            TxType::RenameWhiteout => RenameMode::Whiteout,
            _ => RenameMode::Replace,
        };
        let whiteout = |new: &Whiteout| -> Result<(Cred, Recorded), Error> {
            let (id, slots) = (new.foid, slots(new.foid, new.slots)?);
            let recorded = Recorded { id, slots, generation: new.generation, crtime: time(new.crtime) };
            Ok((owner_of(new.uid, new.gid), recorded))
        };
        let whiteout = rename.whiteout.as_ref().map(whiteout).transpose()?;
        let (from, to) = ((rename.sdoid, rename.src), (rename.tdoid, rename.dst));
        self.rename_as(&Cred::ROOT, from, to, mode, whiteout)
    }

    /// Replays WRITE, and WRITE2, which says that the data is on disk, possibly beyond the end of the file. An indirect write
    /// carries a whole block: all of it is written, because the record of a later part of the block may have come too late for a
    /// block of its own; the end of the file is that of the record.
    fn play_write(&self, tx: &Tx, write: &Write<'_>, entry: &Entry<'_>, begun: Time) -> Result<(), Error> {
        let node = self.znode(write.foid)?;
        super::io::expect_file(&node)?;
        let _content = node.content.write();
        let end = end_of(write.foid, write.offset, write.length)?;
        if entry.kind == TxType::Write2 {
            return node.edit(self, tx, |attrs| {
                attrs.size = attrs.size.max(end);
                Ok(())
            });
        }
        if !entry.superseded {
            let (at, data) = content_of(write, entry);
            let size = node.with_attrs(|attrs| attrs.size);
            self.grow_first_block(tx, &node, size.max(at.saturating_add(data.len() as u64)))?;
            node.object().write(tx, at, data)?;
        }
        node.edit(self, tx, |attrs| {
            attrs.size = attrs.size.max(end);
            content_modified(attrs, begun);
            Ok(())
        })
    }

    /// Replays TRUNCATE, which makes a hole. Without a length the offset is the new end; a range beyond the end extends the file.
    fn play_truncate(&self, id: ObjectId, offset: u64, length: u64) -> Result<(), Error> {
        let node = self.znode(id)?;
        let size = node.with_attrs(|attrs| attrs.size);
        let end = end_of(id, offset, length)?;
        if length > 0 && offset < size {
            self.punch(&Cred::ROOT, id, offset..end)?;
        }
        if length == 0 || end > size { self.set_length(&Cred::ROOT, &node, end) } else { Ok(()) }
    }

    fn play_setattr(&self, tx: &Tx, from: &Logged<'_>, endian: Endian) -> Result<(), Error> {
        let node = self.znode(from.foid)?;
        let (mut set, flags) = match &from.attrs {
            Some(attrs) => further(attrs, endian, &node),
            None => (SetAttr::default(), None),
        };
        let given = |bit: u64| from.mask & bit != 0;
        set.mode = given(ATTR_MODE).then_some((from.mode & 0o7777) as u32);
        set.uid = given(ATTR_UID).then_some(from.uid as u32);
        set.gid = given(ATTR_GID).then_some(from.gid as u32);
        set.size = given(ATTR_SIZE).then_some(from.size);
        set.atime = given(ATTR_ATIME).then_some(time(from.atime));
        // a record of a new size carries the modification time, although the mask does not say so
        set.mtime = given(ATTR_MTIME | ATTR_SIZE).then_some(time(from.mtime));
        self.whole(tx, |steps| {
            // a file that becomes immutable or append-only was not so when the rest changed, nor is one that no longer is
            if let Some(flags) = flags {
                steps.edit(&node, |attrs| {
                    attrs.flags.0 &= !(FileFlags::IMMUTABLE.0 | FileFlags::APPENDONLY.0);
                    Ok(())
                })?;
                set.flags = Some(flags);
            }
            self.setattr(&Cred::ROOT, from.foid, &set).map(|_| ())
        })
    }

    fn play_acl(&self, tx: &Tx, id: ObjectId, aces: Vec<Ace>, flags: Option<u64>) -> Result<(), Error> {
        let node = self.znode(id)?;
        let before = node.attrs();
        let owners = Owners { uid: before.owner, gid: before.group };
        let list_flags = flags.unwrap_or(before.flags.0);
        let new = acl::of_list(aces, list_flags, before.kind(), before.mode, owners)?;
        let now = self.now();
        node.edit_with(self, tx, &acl_values(&new), |attrs| {
            attrs.mode = new.mode;
            attrs.flags.0 = attrs.flags.0 & !acl::ACL_WIDE | new.flags;
            state_changed(attrs, now);
            Ok(())
        })
    }

    /// Replays SETSAXATTR: by the stored name, regardless of name space and properties.
    fn play_sa_xattr(&self, tx: &Tx, id: ObjectId, name: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        let node = self.znode(id)?;
        let _content = node.content.write();
        let what = "extended attributes";
        let broken = |source| Error::NvList { object: id, what, source };
        let sa = node.sa(self)?;
        let packed = sa.get(Attr::Dxattr).filter(|packed| !packed.is_empty());
        let mut list = NvList::new();
        for (stored, old) in packed.map_or(Ok(Vec::new()), decode_dxattr).map_err(broken)? {
            if stored != name {
                list.insert(stored, Value::ByteArray(old));
            }
        }
        if let Some(value) = value {
            list.insert(name, Value::ByteArray(value.to_vec()));
        }
        let bytes = list.pack(Encoding::Xdr, Endian::Little).map_err(broken)?;
        let now = self.now();
        node.edit_with(self, tx, &[(Attr::Dxattr, Cow::Owned(bytes))], |attrs| {
            state_changed(attrs, now);
            Ok(())
        })
    }

    fn play_clone(
        &self,
        tx: &Tx,
        id: ObjectId,
        (at, len): (u64, u64),
        block: u64,
        bps: &[BlkPtr],
    ) -> Result<(), Error> {
        let node = self.znode(id)?;
        super::io::expect_file(&node)?;
        let _content = node.content.write();
        let misfit = || Refusal::Invalid("the blocks to clone have another size").of(id);
        let end = end_of(id, at, len)?;
        let first = at.checked_div(block).filter(|first| first * block == at).ok_or_else(misfit)?;
        if len.div_ceil(block) != bps.len() as u64 {
            return Err(Error::corrupt(id, "number of blocks to clone, in a log,", bps.len() as u64));
        }
        if !self.fit_block_size(tx, &node, block, at)? {
            return Err(misfit());
        }
        let object = node.object();
        for (blkid, bp) in (first..).zip(bps) {
            if !bp.is_hole() {
                object.write_stored(tx, blkid, Payload::Clone(*bp))?;
            } else if blkid < object.nblocks() {
                object.free_range(tx, blkid * block, block)?;
            }
        }
        let now = self.now();
        node.edit(self, tx, |attrs| {
            attrs.size = attrs.size.max(end);
            content_modified(attrs, now);
            Ok(())
        })
    }
}

/// Returns the end of a range in a log, which must be one that a file can have.
fn end_of(id: ObjectId, offset: u64, length: u64) -> Result<u64, Error> {
    let end = offset.checked_add(length).filter(|end| *end <= super::io::MAX_SIZE);
    end.ok_or_else(|| Refusal::FileTooLarge.of(id))
}

/// Returns the offset and the bytes of a WRITE: those of the record; or a whole block, from its start, of which the record wrote
/// a part; or the first bytes of a block.
pub(crate) fn content_of<'a>(write: &Write<'a>, entry: &'a Entry<'_>) -> (u64, &'a [u8]) {
    let Some(block) = entry.data.as_deref() else { return (write.offset, write.data.unwrap_or(&[])) };
    let size = write.blkptr.lsize();
    if write.length < size {
        return (write.offset - write.offset.checked_rem(size).unwrap_or(0), block);
    }
    let len = usize::try_from(write.length).unwrap_or(usize::MAX);
    (write.offset, block.get(..len).unwrap_or(block))
}

/// Returns credentials of the owner of a new file.
fn owner_of(uid: u64, gid: u64) -> Cred {
    Cred::user(uid as u32, gid as u32, [])
}

/// Returns the slots of the dnode of a new file.
fn slots(id: ObjectId, recorded: u64) -> Result<usize, Error> {
    let slots = usize::try_from(recorded).ok().filter(|slots| (1..=MAX_SLOTS).contains(slots));
    slots.ok_or_else(|| Error::corrupt(id, "number of slots of a new dnode, in a log,", recorded))
}

fn recorded_of(new: &Create<'_>) -> Result<Recorded, Error> {
    let (id, slots) = (new.foid, slots(new.foid, new.slots)?);
    Ok(Recorded { id, slots, generation: new.generation, crtime: time(new.crtime) })
}

/// Returns the changes of further attributes in a record and, if flags are among them, the file's new flags.
fn further(attrs: &AttrPart<'_>, endian: Endian, node: &Znode) -> (SetAttr, Option<FileFlags>) {
    let asked = attrs.bitmap.first().copied().unwrap_or(0);
    let mut flags = node.with_attrs(|attrs| attrs.flags);
    let mut any = false;
    for (bit, flag) in XAT_FLAGS.into_iter().filter(|(bit, _)| asked & bit != 0) {
        any = true;
        let set = attrs.attrs & u64::from(bit) != 0;
        flags.0 = if set { flags.0 | flag.0 } else { flags.0 & !flag.0 };
    }
    let project = || bytes::u64(attrs.scanstamp, 0, endian);
    let flags = any.then_some(flags);
    let set = SetAttr {
        flags,
        crtime: (asked & XAT_CREATETIME != 0).then_some(time(attrs.crtime)),
        projid: if asked & XAT_PROJID != 0 { project() } else { None },
        ..SetAttr::default()
    };
    (set, flags)
}
