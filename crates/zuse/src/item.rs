//! A file on its way from one place to another: all that a copy keeps of it but its data.

use zpl::{Kind, Node};

use crate::dest::Meta;

/// The identity of a file that has several names: it is the same file where this is the same.
pub type LinkId = (u64, u64);

/// A file without its data.
#[derive(Clone, Debug)]
pub struct Item {
    /// The kind of file.
    pub kind: Kind,
    /// Owner, permission bits, times, extended attributes.
    pub meta: Meta,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Bytes, holes included; 0 for what has no data.
    pub size: u64,
    /// Set if the file may have other names.
    pub link: Option<LinkId>,
    /// The part of it that could not be understood where it comes from, and is not here.
    pub trouble: Option<String>,
}

impl Item {
    /// An item of a kind, with nothing else.
    #[must_use]
    pub fn new(kind: Kind, meta: Meta) -> Item {
        Item { kind, meta, target: Vec::new(), device: (0, 0), size: 0, link: None, trouble: None }
    }

    /// The item of a file of a pool. Extended attributes and the target of a link that cannot be read are missing; the second value says why.
    #[must_use]
    pub fn of_node(node: &Node) -> (Item, Option<zpl::Error>) {
        let attrs = node.attrs();
        let (xattrs, mut trouble) = match node.xattrs() {
            Ok(xattrs) => (xattrs, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let meta = Meta {
            uid: attrs.uid(),
            gid: attrs.gid(),
            mode: attrs.mode & 0o7777,
            atime: (attrs.atime.sec, attrs.atime.nsec),
            mtime: (attrs.mtime.sec, attrs.mtime.nsec),
            xattrs,
        };
        let kind = node.kind();
        let mut item = Item { device: attrs.device().unwrap_or((0, 0)), ..Item::new(kind, meta) };
        match kind {
            Kind::File => item.size = node.size(),
            Kind::Symlink => match node.target() {
                Ok(target) => item.target = target,
                Err(why) => trouble = Some(why),
            },
            _ => {}
        }
        if kind != Kind::Directory && attrs.links > 1 {
            item.link = Some((node.fs().objset().id().0, node.id().0));
        }
        (item, trouble)
    }
}

/// The device number that a file system on Linux stores: minor in the low 20 bits, major above (Linux: `new_encode_dev`'s 64-bit form,
/// as [`zpl::Attrs::device`] reads it).
#[must_use]
pub fn stored_device((major, minor): (u32, u32)) -> u64 {
    (u64::from(major) << 20) | u64::from(minor & 0xf_ffff)
}
