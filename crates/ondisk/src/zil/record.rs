//! The bodies of log records, by type. Offsets are from the start of the record.

use base::{Endian, ObjectId, bytes};

use super::{RawRecord, TxType, WRITE_RECORD_SIZE};
use crate::{BLKPTR_SIZE, BlkPtr, Error};

/// The bit of [`SetAttr::mask`] that says that [`SetAttr::attrs`] follows (OpenZFS on Linux: `ATTR_XVATTR`).
const ATTR_XVATTR: u64 = 1 << 31;
/// Low bits of an object id in a record; the 8 above hold the dnode's slots less one.
pub(super) const OBJECT_BITS: u32 = 48;

/// A decoded record. Names are without their NUL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// A marker that exists in memory only.
    Commit,
    /// CREATE, MKDIR, MKXATTR, SYMLINK and their ACL and ATTR forms.
    Create(Create<'a>),
    /// REMOVE, RMDIR.
    Remove {
        /// The directory.
        doid: ObjectId,
        /// The removed entry.
        name: &'a [u8],
    },
    /// LINK.
    Link {
        /// The directory.
        doid: ObjectId,
        /// The object that got the additional name.
        link_obj: ObjectId,
        /// The name.
        name: &'a [u8],
    },
    /// RENAME, RENAME_EXCHANGE, RENAME_WHITEOUT.
    Rename(Rename<'a>),
    /// WRITE, WRITE2.
    Write(Write<'a>),
    /// TRUNCATE: also punches holes.
    Truncate {
        /// The object.
        foid: ObjectId,
        /// First byte to free.
        offset: u64,
        /// Bytes to free; 0 means to the end.
        length: u64,
    },
    /// SETATTR.
    SetAttr(SetAttr<'a>),
    /// ACL_V0: entries of the fixed 12-byte form.
    AclV0 {
        /// The object.
        foid: ObjectId,
        /// Number of entries.
        count: u64,
        /// The entries.
        aces: &'a [u8],
    },
    /// ACL.
    Acl {
        /// The object.
        foid: ObjectId,
        /// The list.
        acl: AclPart<'a>,
    },
    /// SETSAXATTR: an extended attribute that is stored in the system attributes.
    SetSaXattr {
        /// The object.
        foid: ObjectId,
        /// The stored name, with its name space.
        name: &'a [u8],
        /// The value; `None` removes the attribute.
        value: Option<&'a [u8]>,
    },
    /// CLONE_RANGE: blocks of another file are cloned into this one.
    CloneRange {
        /// The object.
        foid: ObjectId,
        /// The start of the range.
        offset: u64,
        /// Its length in bytes.
        length: u64,
        /// The block size that the file must have.
        blksz: u64,
        /// The blocks.
        bps: Vec<BlkPtr>,
    },
}

/// A new object (OpenZFS: `lr_create_t`, `lr_acl_create_t`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Create<'a> {
    /// The directory.
    pub doid: ObjectId,
    /// The new object's number.
    pub foid: ObjectId,
    /// Slots of 512 bytes of its dnode.
    pub slots: u64,
    /// Type and permissions.
    pub mode: u64,
    /// Owner, possibly a FUID into [`Create::domains`].
    pub uid: u64,
    /// Group, as the owner.
    pub gid: u64,
    /// The generation: the txg of the creation.
    pub generation: u64,
    /// Seconds and nanoseconds.
    pub crtime: [u64; 2],
    /// Device number.
    pub rdev: u64,
    /// Attributes, in the ATTR forms.
    pub attrs: Option<AttrPart<'a>>,
    /// The ACL, in the ACL forms.
    pub acl: Option<AclPart<'a>>,
    /// Domains of owner and group, if there is no ACL part that contains them.
    pub domains: Vec<&'a [u8]>,
    /// The name; empty for MKXATTR.
    pub name: &'a [u8],
    /// The target of a symbolic link.
    pub link: Option<&'a [u8]>,
}

/// The optional attributes (OpenZFS: `lr_attr_t`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttrPart<'a> {
    /// The set of attributes present (OpenZFS: `XAT_*`), as 32-bit words.
    pub bitmap: Vec<u32>,
    /// Values of the boolean ones (OpenZFS: `XAT0_*`).
    pub attrs: u64,
    /// Seconds and nanoseconds.
    pub crtime: [u64; 2],
    /// Virus scan stamp, or in its first word (in the writer's order) the project id.
    pub scanstamp: &'a [u8],
}

/// An ACL with the domains of its FUIDs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AclPart<'a> {
    /// Number of entries.
    pub count: u64,
    /// Flags of the list.
    pub flags: u64,
    /// The entries in the form of the system call: 12 bytes each, object entries 44 (OpenZFS: `ace_t`, `ace_object_t`).
    pub aces: &'a [u8],
    /// FUIDs into `domains` that replace the ephemeral ids in `aces`.
    pub fuids: Vec<u64>,
    /// Domains (SIDs).
    pub domains: Vec<&'a [u8]>,
}

/// A rename (OpenZFS: `lr_rename_t`, `lr_rename_whiteout_t`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rename<'a> {
    /// The source directory.
    pub sdoid: ObjectId,
    /// The target directory.
    pub tdoid: ObjectId,
    /// Its old name.
    pub src: &'a [u8],
    /// Its new name.
    pub dst: &'a [u8],
    /// The character device that replaces the old name, in RENAME_WHITEOUT.
    pub whiteout: Option<Whiteout>,
}

/// The object that a whiteout leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Whiteout {
    /// Its object number.
    pub foid: ObjectId,
    /// Slots of its dnode.
    pub slots: u64,
    /// Type and permissions.
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// The generation.
    pub generation: u64,
    /// Seconds and nanoseconds.
    pub crtime: [u64; 2],
    /// Device number, 0.
    pub rdev: u64,
}

/// A write (OpenZFS: `lr_write_t`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write<'a> {
    /// The object.
    pub foid: ObjectId,
    /// Offset in it, bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// The data's block pointer, if `data` is `None`; a hole stands for zeros.
    pub blkptr: BlkPtr,
    /// The data, `length` bytes, if it is in the record.
    pub data: Option<&'a [u8]>,
}

/// A change of attributes (OpenZFS: `lr_setattr_t`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetAttr<'a> {
    /// The object.
    pub foid: ObjectId,
    /// The fields that are set. The bits are those of the writer's operating system; on Linux 1 mode, 2 uid, 4 gid, 8 size, 0x10 atime,
    /// 0x20 mtime, 0x40 ctime.
    pub mask: u64,
    /// Type and permissions.
    pub mode: u64,
    /// Owner, possibly a FUID into `domains`.
    pub uid: u64,
    /// Group, as the owner.
    pub gid: u64,
    /// Size in bytes.
    pub size: u64,
    /// Seconds and nanoseconds.
    pub atime: [u64; 2],
    /// Seconds and nanoseconds.
    pub mtime: [u64; 2],
    /// Further attributes.
    pub attrs: Option<AttrPart<'a>>,
    /// Domains of owner and group.
    pub domains: Vec<&'a [u8]>,
}

/// A cursor over the body of a record.
struct Reader<'a> {
    buf: &'a [u8],
    at: usize,
    endian: Endian,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let end = self.at.checked_add(len);
        let piece = end.and_then(|end| self.buf.get(self.at..end));
        let piece = piece.ok_or(Error::short("log record", self.at.saturating_add(len), self.buf.len()))?;
        self.at += len;
        Ok(piece)
    }

    fn take_u64_len(&mut self, len: u64) -> Result<&'a [u8], Error> {
        self.take(usize::try_from(len).unwrap_or(usize::MAX))
    }

    fn word(&mut self) -> Result<u64, Error> {
        let e = self.endian;
        let raw = self.take(8)?;
        bytes::u64(raw, 0, e).ok_or(Error::short("log record", 8, raw.len()))
    }

    fn object(&mut self) -> Result<ObjectId, Error> {
        self.word().map(ObjectId)
    }

    fn half(&mut self) -> Result<u32, Error> {
        let e = self.endian;
        let raw = self.take(4)?;
        bytes::u32(raw, 0, e).ok_or(Error::short("log record", 4, raw.len()))
    }

    fn pair(&mut self) -> Result<[u64; 2], Error> {
        Ok([self.word()?, self.word()?])
    }

    fn text(&mut self) -> Result<&'a [u8], Error> {
        let rest = self.rest();
        let len = rest.iter().position(|b| *b == 0).ok_or(Error::short(
            "string in a log record",
            rest.len() + 1,
            rest.len(),
        ))?;
        let text = self.take(len)?;
        self.take(1)?;
        Ok(text)
    }

    /// Reads `count` strings. Each takes at least one byte, so a claimed count is bounded by the bytes present.
    fn texts(&mut self, count: u64) -> Result<Vec<&'a [u8]>, Error> {
        (0..count).map(|_| self.text()).collect()
    }

    fn rest(&self) -> &'a [u8] {
        self.buf.get(self.at..).unwrap_or(&[])
    }

    fn blkptr(&mut self) -> Result<BlkPtr, Error> {
        let e = self.endian;
        BlkPtr::decode(self.take(BLKPTR_SIZE)?, e)
    }

    fn attrs(&mut self) -> Result<AttrPart<'a>, Error> {
        let words = self.half()?;
        let map = self.take_u64_len(u64::from(words) * 4)?;
        let e = self.endian;
        let bitmap = map.as_chunks::<4>().0.iter().map(|b| e.u32(*b)).collect();
        Ok(AttrPart { bitmap, attrs: self.word()?, crtime: self.pair()?, scanstamp: self.take(32)? })
    }

    /// The counts of an ACL: entries, domains, FUIDs, bytes, flags.
    fn acl_counts(&mut self) -> Result<[u64; 5], Error> {
        Ok([self.word()?, self.word()?, self.word()?, self.word()?, self.word()?])
    }

    fn acl(&mut self, [count, domains, fuids, len, flags]: [u64; 5]) -> Result<AclPart<'a>, Error> {
        let aces = self.take_u64_len(len)?;
        self.take_u64_len(len.wrapping_neg() % 8)?;
        let fuids = self.take_u64_len(fuids.saturating_mul(8))?;
        let fuids = bytes::u64s(fuids, self.endian).collect();
        Ok(AclPart { count, flags, aces, fuids, domains: self.texts(domains)? })
    }
}

const fn object(foid: u64) -> ObjectId {
    ObjectId(bytes::bits(foid, 0, OBJECT_BITS))
}

const fn slots(foid: u64) -> u64 {
    bytes::bits(foid, 56, 8) + 1
}

/// The number of domains that owner and group refer to (the index in a FUID's upper half), each counted once.
const fn domain_count(uid: u64, gid: u64) -> u64 {
    let (u, g) = (uid >> 32, gid >> 32);
    (u != 0) as u64 + (g != 0 && g != u) as u64
}

pub(super) fn decode<'a>(raw: &RawRecord<'a>) -> Result<Record<'a>, Error> {
    let kind = raw.header.kind();
    let kind = kind.ok_or(Error::Invalid { what: "log record", field: "type", value: raw.header.txtype })?;
    let mut r = Reader { buf: raw.bytes, at: super::RECORD_HEADER_SIZE, endian: raw.endian };
    use TxType::*;
    Ok(match kind {
        Commit => Record::Commit,
        Create | Mkdir | Mkxattr | Symlink | CreateAcl | CreateAttr | CreateAclAttr | MkdirAcl | MkdirAttr
        | MkdirAclAttr => Record::Create(create(&mut r, kind)?),
        Remove | Rmdir => Record::Remove { doid: r.object()?, name: r.text()? },
        Link => Record::Link { doid: r.object()?, link_obj: r.object()?, name: r.text()? },
        Rename | RenameExchange | RenameWhiteout => Record::Rename(rename(&mut r, kind)?),
        Write | Write2 => Record::Write(write(&mut r)?),
        Truncate => Record::Truncate { foid: r.object()?, offset: r.word()?, length: r.word()? },
        Setattr => Record::SetAttr(setattr(&mut r)?),
        AclV0 => {
            let (foid, count) = (r.object()?, r.word()?);
            Record::AclV0 { foid, count, aces: r.take_u64_len(count.saturating_mul(12))? }
        }
        Acl => {
            let foid = r.object()?;
            let counts = r.acl_counts()?;
            Record::Acl { foid, acl: r.acl(counts)? }
        }
        Setsaxattr => {
            let (foid, size, name) = (r.object()?, r.word()?, r.text()?);
            let value = if size == 0 { None } else { Some(r.take_u64_len(size)?) };
            Record::SetSaXattr { foid, name, value }
        }
        CloneRange => {
            let (foid, offset, length, blksz) = (r.object()?, r.word()?, r.word()?, r.word()?);
            Record::CloneRange { foid, offset, length, blksz, bps: blkptrs(&mut r)? }
        }
    })
}

pub(super) fn clear_blkptrs(raw: &RawRecord<'_>) -> Result<Vec<BlkPtr>, Error> {
    let mut r = Reader { buf: raw.bytes, at: 64, endian: raw.endian };
    match raw.header.kind() {
        Some(TxType::Write) if raw.bytes.len() == WRITE_RECORD_SIZE => Ok(vec![r.blkptr()?]),
        Some(TxType::CloneRange) => blkptrs(&mut r),
        _ => Ok(Vec::new()),
    }
}

/// Reads a count and that many block pointers.
fn blkptrs(r: &mut Reader<'_>) -> Result<Vec<BlkPtr>, Error> {
    let count = r.word()?;
    let all = r.take_u64_len(count.saturating_mul(BLKPTR_SIZE as u64))?;
    Ok(all.as_chunks::<BLKPTR_SIZE>().0.iter().map(|b| BlkPtr::from_bytes(b, r.endian)).collect())
}

fn create<'a>(r: &mut Reader<'a>, kind: TxType) -> Result<Create<'a>, Error> {
    use TxType::*;
    let (doid, foid) = (r.object()?, r.word()?);
    let mut new = self::Create {
        doid,
        foid: object(foid),
        slots: slots(foid),
        mode: r.word()?,
        uid: r.word()?,
        gid: r.word()?,
        generation: r.word()?,
        crtime: r.pair()?,
        rdev: r.word()?,
        attrs: None,
        acl: None,
        domains: Vec::new(),
        name: &[],
        link: None,
    };
    let counts = match kind {
        CreateAcl | CreateAclAttr | MkdirAcl | MkdirAclAttr => Some(r.acl_counts()?),
        _ => None,
    };
    if matches!(kind, CreateAttr | CreateAclAttr | MkdirAttr | MkdirAclAttr) {
        new.attrs = Some(r.attrs()?);
    }
    match counts {
        Some(counts) => new.acl = Some(r.acl(counts)?),
        None if kind == Symlink => {}
        None => new.domains = r.texts(domain_count(new.uid, new.gid))?,
    }
    new.name = r.text()?;
    if kind == Symlink {
        new.link = Some(r.text()?);
    }
    Ok(new)
}

fn rename<'a>(r: &mut Reader<'a>, kind: TxType) -> Result<Rename<'a>, Error> {
    let (sdoid, tdoid) = (r.object()?, r.object()?);
    let whiteout = if kind == TxType::RenameWhiteout {
        let foid = r.word()?;
        Some(Whiteout {
            foid: object(foid),
            slots: slots(foid),
            mode: r.word()?,
            uid: r.word()?,
            gid: r.word()?,
            generation: r.word()?,
            crtime: r.pair()?,
            rdev: r.word()?,
        })
    } else {
        None
    };
    Ok(Rename { sdoid, tdoid, src: r.text()?, dst: r.text()?, whiteout })
}

fn write<'a>(r: &mut Reader<'a>) -> Result<Write<'a>, Error> {
    let (foid, offset, length) = (r.object()?, r.word()?, r.word()?);
    r.word()?;
    let blkptr = r.blkptr()?;
    let data = if r.rest().is_empty() { None } else { Some(r.take_u64_len(length)?) };
    Ok(Write { foid, offset, length, blkptr, data })
}

fn setattr<'a>(r: &mut Reader<'a>) -> Result<SetAttr<'a>, Error> {
    let mut set = SetAttr {
        foid: r.object()?,
        mask: r.word()?,
        mode: r.word()?,
        uid: r.word()?,
        gid: r.word()?,
        size: r.word()?,
        atime: r.pair()?,
        mtime: r.pair()?,
        attrs: None,
        domains: Vec::new(),
    };
    if set.mask & ATTR_XVATTR != 0 {
        set.attrs = Some(r.attrs()?);
    }
    // ids that are not set contain uninitialised memory, so domains are read only if bytes are left, and a failure is ignored
    if !r.rest().is_empty() {
        set.domains = r.texts(domain_count(set.uid, set.gid)).unwrap_or_default();
    }
    Ok(set)
}
