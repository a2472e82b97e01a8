//! The object that a target leads to.

use std::sync::Arc;

use pool::{Dataset, Kind};
use zpl::{Control, Follow, Node, Resolved, Resolver, Zvol};

use crate::Error;

/// The object that a target leads to.
pub enum TargetObject {
    /// A file or directory.
    File(Box<Node>),
    /// A volume.
    Volume(Zvol),
    /// A directory below `.zfs` that is not an object on disk.
    Control(Control),
}

impl TargetObject {
    /// Opens what `path` leads to in a dataset; the path of a volume is empty. A symbolic link at the end is followed as `follow` says.
    ///
    /// # Errors
    /// [`Error::NoFiles`] for a path in a volume; ENOENT, ENOTDIR, ELOOP; what is damaged on the way.
    pub fn open(dataset: &Dataset, path: &[u8], follow: Follow) -> Result<TargetObject, Error> {
        if dataset.head_kind()? == Kind::Volume {
            if !path.is_empty() {
                return Err(Error::NoFiles { volume: dataset.name().to_owned() });
            }
            return Ok(TargetObject::Volume(Zvol::open(dataset)?));
        }
        let resolver = Resolver::new(Arc::clone(dataset.pool()));
        Ok(match resolver.resolve(dataset.name(), path, follow)? {
            Resolved::Node(node) => TargetObject::File(node),
            Resolved::Control(control) => TargetObject::Control(control),
        })
    }
}
