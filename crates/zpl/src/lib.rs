//! POSIX files over objects, and volumes: the read side of the ZPL.
//!
//! # What it is
//! A [`FileSystem`] is a dataset seen as files. Object 1 of its object set, the master node, names the root directory, the
//! table of system attributes and the set of unlinked files, and holds what is fixed at creation: how names compare. A
//! directory is a ZAP of names; a [`Node`] is an object with its attributes. A [`Zvol`] is a dataset seen as a disk.
//!
//! # The few ideas
//! * **Everything is as a mounted file system on Linux shows it**: the mode bits, the 32-bit ids out of FUIDs, link counts and
//!   sizes of directories, names of extended attributes, [`Attrs::linux_flags`], [`Node::blocks`]. What Linux hides is there
//!   under its own name: domains of ids ([`Fuid`]), the NFSv4 list ([`Acl`]), raw flags.
//! * **Names compare as the dataset says**: case and Unicode normalisation are the ZAP's business; [`FileSystem::lookup`]
//!   chooses between them as OpenZFS on Linux does.
//! * **Symbolic links are not followed unless asked** ([`Follow`]), never out of the dataset, and never more than 40.
//! * **[`Resolver`] adds `.zfs/snapshot`**, which no object stands for: the pool's snapshots as directories.
//! * **[`Reader`] streams a file** ahead of its consumer with two workers, in blocks, holes as lengths; memory is bounded.
//!
//! # Invariants
//! Nothing is written. Loops through directories and links are bounded. A number from disk is never the size of an
//! allocation before it is compared with what is there.
//!
//! # Callers
//! `cli`, `fuse`, `nbd`, `zuse`; and `pool::verify`'s damage report through [`FileSystem::path_of`].
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
mod posix_acl;
mod reader;
mod resolver;
mod used;
mod xattr;
mod zvol;

pub use acl::{Ace, AceType, Acl, Who};
pub use attrs::{Attrs, FileFlags, Kind, Time};
pub use dir::{DirEntry, ReadDir};
pub use error::Error;
pub use filesystem::{CaseSensitivity, FileSystem};
pub use fuid::{Fuid, FuidTable};
pub use node::Node;
pub use path::Follow;
pub use posix_acl::{PosixAce, PosixAcl, PosixTag};
pub use reader::{Piece, Reader};
pub use resolver::{Control, Found, Resolver};
pub use used::UsedByBonus;
pub use xattr::{MAX_XATTR_SIZE, Xattr, decode_dxattr, linux_name};
pub use zvol::Zvol;

/// Object number of the master node of a file system (OpenZFS: `MASTER_NODE_OBJ`).
pub const MASTER_NODE_OBJ: u64 = 1;
