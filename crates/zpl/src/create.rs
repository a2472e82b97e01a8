//! New file systems and volumes: the objects that a dataset begins with (OpenZFS: `zfs_create_fs`, `zfs_mknode`, `zvol_create_cb`).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use base::ObjectId;
use dmu::sa::{Attr, SaTable, SaValue, words};
use dmu::{Error, NewObject, NewZap, Objset, Tx, Zap};
use ondisk::{DNODE_SIZE, ObjectType};

use crate::FileFlags;

/// The version of new file systems: with system attributes.
const ZPL_VERSION_SA: u64 = 5;
/// Names fold to upper case (OpenZFS: `U8_TEXTPREP_TOUPPER`).
const TOUPPER: u64 = 0x2;
const S_IFDIR: u32 = 0o040_000;
/// The bytes of a one-slot dnode that are not bonus buffer: its own fields and one block pointer.
const DNODE_FIXED: usize = 64 + 128;
/// The default quotas, for ids without a quota of their own: entries of the master node; 0 (none) in a new file system.
pub const DEFAULT_QUOTAS: [&str; 6] = [
    "defaultuserquota",
    "defaultgroupquota",
    "defaultprojectquota",
    "defaultuserobjquota",
    "defaultgroupobjquota",
    "defaultprojectobjquota",
];

/// The properties that are fixed at the creation of a file system, and the attributes of its root directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FsProps {
    /// Property `version`: 5.
    pub version: u64,
    /// Property `normalization`, as U8_TEXTPREP flags; 0 for none.
    pub normalization: u64,
    /// Property `utf8only`.
    pub utf8only: bool,
    /// Property `casesensitivity`: 0 sensitive, 1 insensitive, 2 mixed.
    pub casesensitivity: u64,
    /// Owner of the root directory.
    pub uid: u64,
    /// Group of the root directory.
    pub gid: u64,
    /// Permissions of the root directory.
    pub mode: u32,
    /// Slots of the root directory's dnode.
    pub slots: usize,
    /// True if project accounting is already active: the root directory then has a project. OpenZFS starts accounting with the
    /// first sync, and its root directories have none.
    pub projects: bool,
    /// Time since 1970.
    pub now: Duration,
}

impl Default for FsProps {
    fn default() -> FsProps {
        FsProps {
            version: ZPL_VERSION_SA,
            normalization: 0,
            utf8only: false,
            casesensitivity: 0,
            uid: 0,
            gid: 0,
            mode: 0o755,
            slots: 1,
            projects: false,
            now: Duration::ZERO,
        }
    }
}

/// Creates the objects of an empty file system in an empty object set: master node, delete queue, attributes, root directory.
///
/// # Errors
/// [`Error::Refused`] for a version other than 5; an error if the objects cannot be created.
pub fn create_fs(objset: &Arc<Objset>, tx: &Tx, props: &FsProps) -> Result<(), Error> {
    if props.version != ZPL_VERSION_SA {
        let (objset, object) = (objset.id(), ObjectId::MASTER_NODE);
        return Err(Error::Refused { objset, object, what: "version of a new file system", value: props.version });
    }
    let new = NewZap { object_type: ObjectType::MASTER_NODE, id: Some(ObjectId::MASTER_NODE), ..NewZap::default() };
    let master = Zap::create_with(tx, objset, &new)?;
    let utf8only = u64::from(props.utf8only || props.normalization != 0);
    let fixed =
        [("normalization", props.normalization), ("utf8only", utf8only), ("casesensitivity", props.casesensitivity)];
    for (name, value) in fixed.into_iter().chain(DEFAULT_QUOTAS.map(|name| (name, 0))) {
        master.add_u64(tx, name, value)?;
    }
    master.add_u64(tx, "VERSION", props.version)?;
    let attributes = Zap::create_link(tx, &master, "SA_ATTRS", ObjectType::SA_MASTER_NODE)?;
    Zap::create_link(tx, &master, "DELETE_QUEUE", ObjectType::UNLINKED_SET)?;
    let fold = if props.casesensitivity == 0 { 0 } else { TOUPPER };
    let root = Zap::create_with(
        tx,
        objset,
        &NewZap {
            object_type: ObjectType::DIRECTORY_CONTENTS,
            normflags: props.normalization | fold,
            bonus_type: ObjectType::SA,
            bonus_len: props.slots.max(1) * DNODE_SIZE - DNODE_FIXED,
            slots: props.slots,
            ..NewZap::default()
        },
    )?;
    let table = SaTable::setup(tx, objset, attributes.object().id())?;
    table.replace_all(tx, root.object(), &root_attrs(tx, root.object().id(), props))?;
    master.add_id(tx, "ROOT", root.object().id())
}

/// Returns the attributes of a root directory, in the order that all files use.
fn root_attrs(tx: &Tx, id: ObjectId, props: &FsProps) -> Vec<SaValue<'static>> {
    let mode = S_IFDIR | (props.mode & 0o7777);
    let mut flags = FileFlags::ARCHIVE.0
        | FileFlags::AV_MODIFIED.0
        | FileFlags::ACL_TRIVIAL.0
        | FileFlags::ACL_AUTO_INHERIT.0
        | acl_flags(mode);
    if props.projects {
        flags |= FileFlags::PROJID.0;
    }
    let one = |attr, word: u64| (attr, Cow::Owned(words(&[word])));
    let time = |attr| (attr, Cow::Owned(words(&[props.now.as_secs(), props.now.subsec_nanos().into()])));
    let mut all = vec![
        one(Attr::Mode, mode.into()),
        one(Attr::Size, 2),
        one(Attr::Gen, tx.txg().0),
        one(Attr::Uid, props.uid),
        one(Attr::Gid, props.gid),
        one(Attr::Parent, id.0),
        one(Attr::Flags, flags),
        time(Attr::Atime),
        time(Attr::Mtime),
        time(Attr::Ctime),
        time(Attr::Crtime),
        one(Attr::Links, 2),
    ];
    if props.projects {
        all.push(one(Attr::Projid, 0));
    }
    let (count, aces) = trivial_acl(mode);
    all.push(one(Attr::DaclCount, count));
    all.push((Attr::DaclAces, Cow::Owned(aces)));
    all
}

/// Returns the ACL flag of a file with this mode, which says that nobody is denied execution (OpenZFS: `zfs_mode_compute`).
#[must_use]
pub fn acl_flags(mode: u32) -> u64 {
    if mode & 0o111 == 0o111 { FileFlags::NO_EXECS_DENIED.0 } else { 0 }
}

/// Returns the access control list equivalent to a mode: the number of entries, and the entries as stored in [`Attr::DaclAces`]
/// (OpenZFS: `acl_trivial_access_masks`, `zfs_acl_chmod`).
#[must_use]
pub fn trivial_acl(mode: u32) -> (u64, Vec<u8>) {
    const READ: u32 = 0x1;
    const WRITE: u32 = 0x2 | 0x4;
    const EXECUTE: u32 = 0x20;
    /// Read attributes, named attributes and list; synchronise.
    const ANYONE: u32 = 0x8 | 0x80 | 0x2_0000 | 0x10_0000;
    /// Write attributes, named attributes, list and owner.
    const OWNER_ALSO: u32 = 0x10 | 0x100 | 0x4_0000 | 0x8_0000;
    const OWNER: u16 = 0x1000;
    const GROUP: u16 = 0x2040;
    const EVERYONE: u16 = 0x4000;
    let mask = |bits: u32| {
        let of = |bit, mask| if bits & bit != 0 { mask } else { 0 };
        of(4, READ) | of(2, WRITE) | of(1, EXECUTE)
    };
    let (user, group, other) = ((mode >> 6) & 7, (mode >> 3) & 7, mode & 7);
    let (allow, deny) = (0u16, 1u16);
    let aces = [
        // the owner is allowed what others are allowed but the group is not, before the group is denied it
        (allow, OWNER, mask(user & !group & other), false),
        (deny, OWNER, mask(!user & (group | other)), false),
        (deny, GROUP, mask(!group & other), false),
        (allow, OWNER, mask(user) | ANYONE | OWNER_ALSO, true),
        (allow, GROUP, mask(group) | ANYONE, true),
        (allow, EVERYONE, mask(other) | ANYONE, true),
    ];
    let mut out = Vec::new();
    let mut count = 0;
    for (kind, who, mask, _) in aces.into_iter().filter(|(_, _, mask, always)| *always || *mask != 0) {
        out.extend_from_slice(&kind.to_ne_bytes());
        out.extend_from_slice(&who.to_ne_bytes());
        out.extend_from_slice(&mask.to_ne_bytes());
        count += 1;
    }
    (count, out)
}

/// Creates the objects of a volume in an empty object set.
///
/// # Errors
/// If the objects cannot be created.
pub fn create_volume(objset: &Arc<Objset>, tx: &Tx, volsize: u64, volblocksize: u64) -> Result<(), Error> {
    let data = NewObject { object_type: ObjectType::ZVOL, block_size: volblocksize, ..NewObject::default() };
    objset.claim_object(tx, ObjectId::ZVOL_DATA, &data)?;
    let new = NewZap { object_type: ObjectType::ZVOL_PROP, id: Some(ObjectId::ZVOL_PROPERTIES), ..NewZap::default() };
    Zap::create_with(tx, objset, &new)?.update_u64(tx, "size", volsize)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entries(mode: u32) -> Vec<(u16, u16, u32)> {
        let (count, bytes) = trivial_acl(mode);
        let all: Vec<_> = bytes
            .chunks_exact(8)
            .map(|raw| {
                let half = |at: usize| u16::from_ne_bytes([raw[at], raw[at + 1]]);
                (half(0), half(2), u32::from_ne_bytes(raw[4..8].try_into().unwrap()))
            })
            .collect();
        assert_eq!(count, all.len() as u64);
        all
    }

    fn objset(os_type: ondisk::ObjsetType) -> (Arc<Objset>, Tx) {
        let mut leaf = nvlist::NvList::new();
        leaf.insert("type", "file");
        leaf.insert("path", "/memory");
        for (name, value) in [("id", 0), ("guid", 2), ("ashift", 9), ("asize", 59u64 << 20)] {
            leaf.insert(name, value);
        }
        let mut root = nvlist::NvList::new();
        root.insert("type", "root");
        root.insert("id", 0u64);
        root.insert("guid", 1u64);
        root.insert("children", vec![leaf]);
        let device = Arc::new(vdev::MemoryDevice::writable(64 << 20));
        let config = vdev::VdevConfig::parse(&root).unwrap();
        let tree = vdev::VdevTree::open(&config, &|_| Some(device.clone())).unwrap();
        let tx = Tx::syncing(base::Txg(4));
        let zio = Arc::new(zio::Zio::new(Arc::new(tree), 8 << 20));
        (Objset::create(zio, ObjectId(5), os_type, 0, &tx).unwrap(), tx)
    }

    #[test]
    fn a_new_file_system_is_one() {
        let (os, tx) = objset(ondisk::ObjsetType::Zfs);
        let props = FsProps { casesensitivity: 2, now: Duration::new(1_700_000_000, 5), ..FsProps::default() };
        create_fs(&os, &tx, &props).unwrap();
        // the numbers that OpenZFS allocates
        let master = Zap::open(os.object(ObjectId(1)).unwrap()).unwrap();
        let number = |name| master.lookup_u64(name).unwrap();
        assert_eq!([number("SA_ATTRS"), number("DELETE_QUEUE"), number("ROOT")], [Some(32), Some(33), Some(34)]);
        let root = os.object(ObjectId(34)).unwrap();
        assert_eq!(root.bonus().len(), 168);
        assert_eq!(Zap::open(root).unwrap().normflags(), TOUPPER);
        let fs = crate::FileSystem::from_objset(os.clone(), false).unwrap();
        let root = fs.root_node().unwrap();
        let attrs = root.attrs();
        assert_eq!((attrs.mode, attrs.size, attrs.links, attrs.parent), (0o40755, 2, 2, ObjectId(34)));
        assert_eq!((attrs.flags.0, attrs.crtime.sec, attrs.crtime.nsec), (0x408_0000_0144, 1_700_000_000, 5));
        let old = FsProps { version: 4, ..props };
        assert!(create_fs(&os, &tx, &old).is_err());
    }

    #[test]
    fn a_new_volume_is_one() {
        let (os, tx) = objset(ondisk::ObjsetType::Zvol);
        create_volume(&os, &tx, 1 << 30, 16 << 10).unwrap();
        let volume = crate::Zvol::from_objset(&os).unwrap();
        assert_eq!((volume.size(), volume.block_size()), (1 << 30, 16 << 10));
    }

    #[test]
    fn a_common_mode_takes_three_entries() {
        let all = [(0, 0x1000, 0x1e_01bf), (0, 0x2040, 0x12_00a9), (0, 0x4000, 0x12_00a9)];
        assert_eq!(entries(0o755), all);
        assert_eq!(acl_flags(0o755), 0x100);
        assert_eq!(acl_flags(0o644), 0);
    }

    #[test]
    fn a_mode_that_gives_others_more_takes_denials() {
        let first: Vec<_> = entries(0o404).into_iter().take(2).collect();
        assert_eq!(first, [(0, 0x1000, 1), (1, 0x2040, 1)]);
        assert_eq!(entries(0o070)[0], (1, 0x1000, 0x27));
    }
}
