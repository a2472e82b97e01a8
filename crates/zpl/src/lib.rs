//! The ZFS POSIX layer (ZPL): file systems and volumes over the objects of a dataset, for reading and for writing.
//!
//! # What it is
//! A [`FileSystem`] is a dataset seen as files, for reading; a [`live::Zfs`] is one that is open for writing. Object 1 of the
//! object set, the master node, names the root directory, the table of system attributes (SA) and the set of unlinked files, and
//! holds the properties that are fixed at creation: how names compare. A directory is a ZAP of names; a [`Node`] is an object
//! with its attributes. A [`Zvol`] is a dataset seen as a disk; a [`live::Volume`] is one that is open for writing.
//! [`create`] makes the objects of new file systems and volumes.
//!
//! # Layout
//! * The files at the root read: `filesystem`, `node`, `attrs`, `dir`, `path`, `resolver`, `reader`, `reach`, `fuid`.
//! * [`live`]: file systems open for writing, their operations, logs and replays.
//! * `acl`, `xattr`, `zvol`: what has a reading and a writing half, both of them. The writing halves are operations on a [`live::Zfs`] or a
//!   [`live::Volume`].
//!
//! # The few ideas
//! * **Everything is shown as a mounted file system on Linux shows it**: the mode bits, the 32-bit ids out of FUIDs, link counts
//!   and sizes of directories, names of extended attributes, [`Attrs::linux_flags`], [`Node::blocks`]. What Linux hides is
//!   available under its own name: domains of ids ([`Fuid`]), the NFSv4 list ([`Acl`]), raw flags.
//! * **Names compare as the dataset specifies**: the ZAP does case folding and Unicode normalization; [`FileSystem::lookup`]
//!   chooses between them as OpenZFS on Linux does.
//! * **Symbolic links are not followed unless requested** ([`Follow`]), never out of the dataset, and at most 40 of them.
//! * **[`Resolver`] adds `.zfs/snapshot`**, for which no object exists: the pool's snapshots as directories.
//! * **[`Reader`] streams a file** with read-ahead by two workers, as blocks, with holes as lengths; memory is bounded.
//! * **A change is atomic**: each operation of [`live::Zfs`] runs in one transaction of the open txg and is logged in the intent
//!   log; large writes and frees are split into several. See [`live`] for transactions, lock order, unlinked files and the log.
//! * **[`live::Vfs`] is the interface of a mount**: operations on object numbers with the caller's credentials, checked against
//!   mode, ACL, flags and quotas; errors carry Linux error numbers. [`live::Still`] is a snapshot behind it, [`live::Ctldir`] a file system with
//!   its snapshots in `.zfs`.
//! * **Logs are replayed** when a dataset is opened for writing, or for a whole pool by [`live::replay_all()`] at import, which
//!   also frees unlinked files. [`UsedByBonus`] gives the pool's space accounting the owners of files.
//!
//! # Invariants
//! Only [`live`] and [`create`] write; everything else only reads. Loops through directories and links are bounded. A number
//! from disk is never used as the size of an allocation before it is checked against the data that exists.
//!
//! # Callers
//! `zuse`, `control` and `cli`; verification in `zuse` and `zpool status` name damaged files with [`FileSystem::path_of`];
//! `crash` and `fuzzing` in tests. OpenZFS: `zfs_vnops.c`, `zfs_znode_os.c`, `zfs_dir.c`, `zfs_acl.c`, `zvol.c`.
#![forbid(unsafe_code)]

mod acl;
mod attrs;
pub mod create;
mod dir;
mod error;
mod filesystem;
mod fuid;
pub mod live;
mod node;
mod path;
mod reach;
mod reader;
mod resolver;
mod used;
mod xattr;
mod zvol;

pub use acl::posix::{PosixAce, PosixAcl, PosixTag};
pub use acl::{Ace, AceType, Acl, Who};
pub use attrs::{Attrs, FileFlags, Kind, Time};
pub use dir::{DirEntry, ReadDir};
pub use error::Error;
pub use filesystem::{CaseSensitivity, FileSystem};
pub use fuid::{Fuid, FuidTable};
pub use node::Node;
pub use path::Follow;
pub use reach::{NameInDir, OutOfReach, UnreachableNames};
pub use reader::{Piece, Reader};
pub use resolver::{Control, Resolved, Resolver};
pub use used::UsedByBonus;
pub use xattr::{MAX_XATTR_SIZE, Xattr, decode_dxattr, linux_name};
pub use zio::Buf;
pub use zvol::Zvol;
pub use zvol::extents::Extent;
