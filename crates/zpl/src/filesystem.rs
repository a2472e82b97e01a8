//! A dataset as a file system: its master node.

use std::fmt;
use std::sync::{Arc, OnceLock};

use base::ObjectId;
use dmu::sa::SaTable;
use dmu::{Objset, Zap, ZapValue, normal_form_fits};
use ondisk::ObjsetType;

use crate::{Error, FuidTable, Node};

/// The newest ZPL version (OpenZFS: `ZPL_VERSION`).
const ZPL_VERSION: u64 = 5;
/// The highest inode number of snapshot roots, which count downwards (OpenZFS: `ZFSCTL_INO_SNAPDIRS`).
pub(crate) const ZFSCTL_INO_SNAPDIRS: u64 = 0x0000_ffff_ffff_fffc;

/// The case sensitivity of names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CaseSensitivity {
    /// Names that differ in case are different.
    Sensitive,
    /// Names that differ only in case are the same.
    Insensitive,
    /// Case-sensitive for POSIX callers, and case-insensitive for a file server that requests it.
    Mixed,
}

impl CaseSensitivity {
    /// Returns the value of the property `casesensitivity`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            CaseSensitivity::Sensitive => "sensitive",
            CaseSensitivity::Insensitive => "insensitive",
            CaseSensitivity::Mixed => "mixed",
        }
    }
}

/// A file system or a snapshot of one, for reading (OpenZFS: `zfsvfs_t`). Cheap to clone.
#[derive(Clone)]
pub struct FileSystem(Arc<Inner>);

struct Inner {
    objset: Arc<Objset>,
    sa: SaTable,
    is_snapshot: bool,
    version: u64,
    root: ObjectId,
    unlinked_set: Option<ObjectId>,
    fuid_object: Option<ObjectId>,
    fuids: OnceLock<FuidTable>,
    shares: Option<ObjectId>,
    case: CaseSensitivity,
    normalization: u64,
    utf8_only: bool,
    posix_acls: bool,
}

/// Names fold to upper case (OpenZFS: `U8_TEXTPREP_TOUPPER`).
const TOUPPER: u64 = 0x2;
/// Value of the property `acltype`: files have POSIX lists.
const ACLTYPE_POSIX: u64 = 1;

impl FileSystem {
    /// Opens a file system or a snapshot of one. An encrypted one needs its key loaded.
    ///
    /// # Errors
    /// If the dataset is not a file system or is of a newer version, its key is not loaded, or its master node is unreadable.
    pub fn open(dataset: &pool::Dataset) -> Result<FileSystem, Error> {
        let acltype = dataset.prop("acltype")?.and_then(|prop| prop.value.number());
        FileSystem::open_with(dataset.objset()?, dataset.is_snapshot(), acltype == Some(ACLTYPE_POSIX))
    }

    /// Opens the file system in `objset`, and shows the POSIX ACLs of its files regardless of the property `acltype`.
    ///
    /// # Errors
    /// As [`FileSystem::open`].
    pub fn from_objset(objset: Arc<Objset>, is_snapshot: bool) -> Result<FileSystem, Error> {
        FileSystem::open_with(objset, is_snapshot, true)
    }

    pub(crate) fn open_with(objset: Arc<Objset>, is_snapshot: bool, posix_acls: bool) -> Result<FileSystem, Error> {
        if objset.phys().os_type != ObjsetType::Zfs {
            return Err(Error::WrongType { objset: objset.id(), wanted: "file system" });
        }
        let master = Zap::open(objset.object(ObjectId::MASTER_NODE)?)?;
        let number = |key: &str| master.lookup_u64(key).map_err(Error::from);
        let id = |key: &str| master.lookup_id(key).map_err(Error::from);
        let must = |key: &'static str| number(key)?.ok_or(Error::Missing { object: ObjectId::MASTER_NODE, what: key });
        let version = must("VERSION")?;
        if version == 0 || version > ZPL_VERSION {
            return Err(Error::Version { objset: objset.id(), version });
        }
        let case = match number("casesensitivity")?.unwrap_or(0) {
            0 => CaseSensitivity::Sensitive,
            1 => CaseSensitivity::Insensitive,
            2 => CaseSensitivity::Mixed,
            n => return Err(Error::corrupt(ObjectId::MASTER_NODE, "casesensitivity", n)),
        };
        let inner = Inner {
            sa: SaTable::load(&objset, id("SA_ATTRS")?.unwrap_or(ObjectId::NONE))?,
            is_snapshot,
            version,
            root: ObjectId(must("ROOT")?),
            unlinked_set: id("DELETE_QUEUE")?,
            fuid_object: id("FUID")?.filter(|id| id.is_some()),
            fuids: OnceLock::new(),
            shares: id("SHARES")?.filter(|id| id.is_some()),
            case,
            normalization: number("normalization")?.unwrap_or(0),
            utf8_only: number("utf8only")?.unwrap_or(0) != 0,
            posix_acls,
            objset,
        };
        Ok(FileSystem(Arc::new(inner)))
    }

    /// Returns the object set.
    #[must_use]
    pub fn objset(&self) -> &Arc<Objset> {
        &self.0.objset
    }

    /// True if this is a snapshot.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.0.is_snapshot
    }

    /// Returns the ZPL version, 1 to 5.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.version
    }

    /// Returns the object of the root directory.
    #[must_use]
    pub fn root(&self) -> ObjectId {
        self.0.root
    }

    /// Returns the directory of shares (`.zfs/shares`), if there is one.
    #[must_use]
    pub fn shares(&self) -> Option<ObjectId> {
        self.0.shares
    }

    /// Returns the case sensitivity of names.
    #[must_use]
    pub fn case_sensitivity(&self) -> CaseSensitivity {
        self.0.case
    }

    /// Returns the property `normalization` as stored (OpenZFS: `U8_TEXTPREP_*`); 0 is none.
    #[must_use]
    pub fn normalization(&self) -> u64 {
        self.0.normalization
    }

    /// Returns whether each entry has one name, as neither case nor normalization is ignored.
    #[must_use]
    pub fn names_are_exact(&self) -> bool {
        self.0.normalization == 0 && self.0.case == CaseSensitivity::Sensitive
    }

    /// Returns the normalization flags with which the ZAPs of directories compare names.
    pub(crate) fn normflags(&self) -> u64 {
        self.0.normalization | if self.0.case == CaseSensitivity::Sensitive { 0 } else { TOUPPER }
    }

    /// True if OpenZFS can find a file of this name: its buffer for the normal form of a name is no larger than that for a name.
    #[must_use]
    pub fn is_in_reach(&self, name: &[u8]) -> bool {
        let flags = self.normflags();
        let as_written = self.0.case != CaseSensitivity::Mixed || normal_form_fits(name, flags & !TOUPPER);
        flags == 0 || (as_written && normal_form_fits(name, flags))
    }

    /// True if new names must be UTF-8.
    #[must_use]
    pub fn utf8_only(&self) -> bool {
        self.0.utf8_only
    }

    /// True if the POSIX ACLs of files are shown, which depends on the property `acltype`.
    #[must_use]
    pub fn shows_posix_acls(&self) -> bool {
        self.0.posix_acls
    }

    /// Returns the table of system attributes.
    #[must_use]
    pub fn sa(&self) -> &SaTable {
        &self.0.sa
    }

    /// Returns the domains of ids. Loaded at the first call.
    ///
    /// # Errors
    /// If the table exists but is unreadable.
    pub fn fuids(&self) -> Result<&FuidTable, Error> {
        if let Some(table) = self.0.fuids.get() {
            return Ok(table);
        }
        let table = match self.0.fuid_object {
            Some(object) => FuidTable::load(&self.0.objset, object)?,
            None => FuidTable::default(),
        };
        Ok(self.0.fuids.get_or_init(|| table))
    }

    /// Opens the file with object number `object`.
    ///
    /// # Errors
    /// If the object does not exist or is not a file, or its attributes are unreadable.
    pub fn node(&self, object: ObjectId) -> Result<Node, Error> {
        Node::open(self, object)
    }

    /// Opens the root directory.
    ///
    /// # Errors
    /// As [`FileSystem::node`].
    pub fn root_node(&self) -> Result<Node, Error> {
        self.node(self.root())
    }

    /// Returns the inode number that `stat` shows: the object number, except for the root of a snapshot, whose number
    /// distinguishes the snapshots of a file system.
    #[must_use]
    pub fn inode(&self, object: ObjectId) -> u64 {
        if self.is_snapshot() && object == self.root() {
            ZFSCTL_INO_SNAPDIRS.wrapping_sub(self.objset().id().0)
        } else {
            object.0
        }
    }

    /// Returns the files that were deleted while open: they have no name and are freed when the file system is next opened for
    /// writing.
    ///
    /// # Errors
    /// When the set is unreadable.
    pub fn delete_queue(&self) -> Result<Vec<ObjectId>, Error> {
        let Some(set) = self.0.unlinked_set else { return Ok(Vec::new()) };
        let entries = Zap::open(self.0.objset.object(set)?)?.entries()?;
        let id = |value: ZapValue| value.u64().map(ObjectId);
        entries.map(|entry| id(entry?.value).ok_or(Error::corrupt(set, "entry of the delete queue", 0))).collect()
    }

    pub(crate) fn is_unlinked(&self, object: ObjectId) -> Result<bool, Error> {
        let Some(set) = self.0.unlinked_set else { return Ok(false) };
        Ok(Zap::open(self.0.objset.object(set)?)?.lookup(format!("{object:x}"))?.is_some())
    }
}

impl fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file system {:?}, version {}", self.0.objset, self.0.version)
    }
}
