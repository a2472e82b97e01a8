//! System attributes: the metadata that a file system keeps about a file (OpenZFS: `sa.c`).
//!
//! An object set has a *registry* (attribute name → number, length, kind of integers) and *layouts* (number → sequence of
//! attribute numbers), both ZAPs; [`SaTable`] holds them decoded. The header of a file's bonus buffer names a layout,
//! which gives the position of every attribute. Attributes that do not fit in the bonus buffer are in the spill block,
//! under a layout of its own. File systems of ZPL versions before 5, and files of newer ones not changed since, have a
//! fixed structure instead; it reads as the same attributes.
//!
//! [`SaAttrs`] returns values in the byte order of this machine, whatever the order of the header, which its magic number
//! shows. Numbers are those of the registry, names are fixed: all access is by [`Attr`], found by name.

mod attrs;
mod table;
mod write;

pub use attrs::SaAttrs;
pub use table::SaTable;
pub use write::{SaValue, words};

macro_rules! attributes {
    ($($(#[$doc:meta])* $id:ident = $name:literal;)*) => {
        /// An attribute of a file, whatever its number in the registry of its file system (OpenZFS: `zpl_attr_t`).
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Attr {
            $($(#[$doc])* $id,)*
        }

        impl Attr {
            /// All attributes; the first sixteen are in the order of their numbers in file systems before ZPL 5.
            pub const ALL: &'static [Attr] = &[$(Attr::$id),*];

            /// Its name in the registry.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Attr::$id => $name,)*
                }
            }
        }
    };
}

attributes! {
    /// Time of last access: seconds, nanoseconds.
    Atime = "ZPL_ATIME";
    /// Time of last change of contents: seconds, nanoseconds.
    Mtime = "ZPL_MTIME";
    /// Time of last change of attributes: seconds, nanoseconds.
    Ctime = "ZPL_CTIME";
    /// Time of creation: seconds, nanoseconds.
    Crtime = "ZPL_CRTIME";
    /// Txg of creation.
    Gen = "ZPL_GEN";
    /// File type and permissions.
    Mode = "ZPL_MODE";
    /// Length in bytes; of a directory, number of entries and 2.
    Size = "ZPL_SIZE";
    /// Object number of a directory that has it.
    Parent = "ZPL_PARENT";
    /// Number of links.
    Links = "ZPL_LINKS";
    /// Object number of the directory of extended attributes, or 0.
    Xattr = "ZPL_XATTR";
    /// Device number of a device file.
    Rdev = "ZPL_RDEV";
    /// Flags (`ZFS_XATTR` and the rest).
    Flags = "ZPL_FLAGS";
    /// Owner, an FUID.
    Uid = "ZPL_UID";
    /// Group, an FUID.
    Gid = "ZPL_GID";
    /// Four unused words of the old structure.
    Pad = "ZPL_PAD";
    /// The embedded ACL of the old structure: see [`ondisk::znode::ZnodeAcl`], here in the order of this machine.
    ZnodeAcl = "ZPL_ZNODE_ACL";
    /// Number of access control entries.
    DaclCount = "ZPL_DACL_COUNT";
    /// Target of a symbolic link.
    Symlink = "ZPL_SYMLINK";
    /// A virus scanner's stamp.
    Scanstamp = "ZPL_SCANSTAMP";
    /// Access control entries.
    DaclAces = "ZPL_DACL_ACES";
    /// Extended attributes, a packed nvlist.
    Dxattr = "ZPL_DXATTR";
    /// Project id.
    Projid = "ZPL_PROJID";
    /// Change counter.
    Seq = "ZPL_SEQ";
}
