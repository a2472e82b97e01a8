//! A dataset as a file system: its master node.

use std::fmt;
use std::sync::{Arc, OnceLock};

use dmu::sa::SaTable;
use dmu::{Objset, Zap, normal_form_fits};
use ondisk::ObjsetType;

use crate::{Error, FuidTable, MASTER_NODE_OBJ, Node};

/// The newest ZPL version (OpenZFS: `ZPL_VERSION`).
const ZPL_VERSION: u64 = 5;
/// Where inode numbers of snapshot roots begin, downwards (OpenZFS: `ZFSCTL_INO_SNAPDIRS`).
const ZFSCTL_INO_SNAPDIRS: u64 = 0x0000_ffff_ffff_fffc;

/// How names compare with regard to case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CaseSensitivity {
    /// Case counts.
    Sensitive,
    /// Case does not count.
    Insensitive,
    /// Case counts for POSIX callers, and does not for a file server that asks so.
    Mixed,
}

impl CaseSensitivity {
    /// The value of the property `casesensitivity`.
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
    root: u64,
    unlinked_set: Option<u64>,
    fuid_object: Option<u64>,
    fuids: OnceLock<FuidTable>,
    shares: Option<u64>,
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
    /// When the dataset is no file system, of a newer version, its key is not loaded, or its master node is unreadable.
    pub fn open(dataset: &pool::Dataset) -> Result<FileSystem, Error> {
        let acltype = dataset.prop("acltype")?.and_then(|prop| prop.value.number());
        FileSystem::open_with(dataset.objset()?, dataset.is_snapshot(), acltype == Some(ACLTYPE_POSIX))
    }

    /// Opens the file system in `objset`, and shows the POSIX lists of its files whatever the property `acltype` says.
    ///
    /// # Errors
    /// As [`FileSystem::open`].
    pub fn from_objset(objset: Arc<Objset>, is_snapshot: bool) -> Result<FileSystem, Error> {
        FileSystem::open_with(objset, is_snapshot, true)
    }

    fn open_with(objset: Arc<Objset>, is_snapshot: bool, posix_acls: bool) -> Result<FileSystem, Error> {
        if objset.phys().os_type != ObjsetType::Zfs {
            return Err(Error::WrongType { objset: objset.id(), wanted: "file system" });
        }
        let master = Zap::open(objset.object(MASTER_NODE_OBJ)?)?;
        let number = |key: &str| master.lookup_u64(key).map_err(Error::from);
        let must = |key: &'static str| number(key)?.ok_or(Error::Missing { object: MASTER_NODE_OBJ, what: key });
        let version = must("VERSION")?;
        if version == 0 || version > ZPL_VERSION {
            return Err(Error::Version { objset: objset.id(), version });
        }
        let case = match number("casesensitivity")?.unwrap_or(0) {
            0 => CaseSensitivity::Sensitive,
            1 => CaseSensitivity::Insensitive,
            2 => CaseSensitivity::Mixed,
            n => return Err(Error::corrupt(MASTER_NODE_OBJ, "casesensitivity", n)),
        };
        let inner = Inner {
            sa: SaTable::load(&objset, number("SA_ATTRS")?.unwrap_or(0))?,
            is_snapshot,
            version,
            root: must("ROOT")?,
            unlinked_set: number("DELETE_QUEUE")?,
            fuid_object: number("FUID")?.filter(|id| *id != 0),
            fuids: OnceLock::new(),
            shares: number("SHARES")?.filter(|id| *id != 0),
            case,
            normalization: number("normalization")?.unwrap_or(0),
            utf8_only: number("utf8only")?.unwrap_or(0) != 0,
            posix_acls,
            objset,
        };
        Ok(FileSystem(Arc::new(inner)))
    }

    /// The object set.
    #[must_use]
    pub fn objset(&self) -> &Arc<Objset> {
        &self.0.objset
    }

    /// Whether this is a snapshot.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.0.is_snapshot
    }

    /// The ZPL version, 1 to 5.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.version
    }

    /// The object of the root directory.
    #[must_use]
    pub fn root(&self) -> u64 {
        self.0.root
    }

    /// The directory of shares (`.zfs/shares`), if there is one.
    #[must_use]
    pub fn shares(&self) -> Option<u64> {
        self.0.shares
    }

    /// How case counts in names.
    #[must_use]
    pub fn case_sensitivity(&self) -> CaseSensitivity {
        self.0.case
    }

    /// The property `normalization` as stored (OpenZFS: `U8_TEXTPREP_*`); 0 is none.
    #[must_use]
    pub fn normalization(&self) -> u64 {
        self.0.normalization
    }

    /// How directories compare names, as their ZAPs have it.
    fn normflags(&self) -> u64 {
        self.0.normalization | if self.0.case == CaseSensitivity::Sensitive { 0 } else { TOUPPER }
    }

    /// Whether OpenZFS can find a file of this name: the normal form of a name has no more room than a name.
    #[must_use]
    pub fn is_in_reach(&self, name: &[u8]) -> bool {
        let flags = self.normflags();
        let as_written = self.0.case != CaseSensitivity::Mixed || normal_form_fits(name, flags & !TOUPPER);
        flags == 0 || (as_written && normal_form_fits(name, flags))
    }

    /// Whether new names must be UTF-8.
    #[must_use]
    pub fn utf8_only(&self) -> bool {
        self.0.utf8_only
    }

    /// Whether the POSIX lists that files have are seen: not unless property `acltype` says so.
    #[must_use]
    pub fn shows_posix_acls(&self) -> bool {
        self.0.posix_acls
    }

    /// The table of system attributes.
    #[must_use]
    pub fn sa(&self) -> &SaTable {
        &self.0.sa
    }

    /// The domains of ids. Loaded at the first call.
    ///
    /// # Errors
    /// When the table is there and unreadable.
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

    /// The file that is object `object`.
    ///
    /// # Errors
    /// When there is no such object, it is no file, or its attributes are unreadable.
    pub fn node(&self, object: u64) -> Result<Node, Error> {
        Node::open(self, object)
    }

    /// The root directory.
    ///
    /// # Errors
    /// As [`FileSystem::node`].
    pub fn root_node(&self) -> Result<Node, Error> {
        self.node(self.root())
    }

    /// The inode number that `stat` shows: the object's, but for the root of a snapshot, which shows one that tells the
    /// snapshots of a file system apart.
    #[must_use]
    pub fn inode(&self, object: u64) -> u64 {
        if self.is_snapshot() && object == self.root() {
            ZFSCTL_INO_SNAPDIRS.wrapping_sub(self.objset().id())
        } else {
            object
        }
    }

    /// Files that were deleted while open: they have no name and go at the next mount for writing.
    ///
    /// # Errors
    /// When the set is unreadable.
    pub fn delete_queue(&self) -> Result<Vec<u64>, Error> {
        let Some(set) = self.0.unlinked_set else { return Ok(Vec::new()) };
        let entries = Zap::open(self.0.objset.object(set)?)?.entries()?;
        entries.map(|entry| entry?.value.u64().ok_or(Error::corrupt(set, "entry of the delete queue", 0))).collect()
    }

    pub(crate) fn is_unlinked(&self, object: u64) -> Result<bool, Error> {
        let Some(set) = self.0.unlinked_set else { return Ok(false) };
        Ok(Zap::open(self.0.objset.object(set)?)?.lookup(format!("{object:x}"))?.is_some())
    }
}

impl fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file system {:?}, version {}", self.0.objset, self.0.version)
    }
}
