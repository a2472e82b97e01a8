//! Which file a damaged block belongs to.

use std::collections::HashMap;
use std::sync::Arc;

use base::ObjectId;
use pool::{Dataset, Kind, Pool};
use zio::Bookmark;
use zpl::FileSystem;

/// The place that a block belongs to, in terms of names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DamagedItem {
    /// The pool's own data.
    Meta {
        /// Object of the MOS.
        object: ObjectId,
    },
    /// A dataset's own data: its dnodes, accounting, a directory without a name.
    Dataset {
        /// Its name.
        name: String,
        /// Object in it.
        object: ObjectId,
    },
    /// A file.
    File {
        /// The dataset's name.
        name: String,
        /// The path from its root.
        path: Vec<u8>,
    },
}

impl std::fmt::Display for DamagedItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DamagedItem::Meta { object } => write!(f, "<metadata>:<{object:#x}>"),
            DamagedItem::Dataset { name, object } => write!(f, "{name}:<{object:#x}>"),
            DamagedItem::File { name, path } => write!(f, "{name}:/{}", String::from_utf8_lossy(path)),
        }
    }
}

/// Finds names for blocks; keeps what it opened.
pub struct Names<'a> {
    pool: &'a Arc<Pool>,
    open: HashMap<ObjectId, (Option<Dataset>, Option<FileSystem>)>,
}

impl<'a> Names<'a> {
    /// For the blocks of `pool`.
    #[must_use]
    pub fn new(pool: &'a Arc<Pool>) -> Self {
        Names { pool, open: HashMap::new() }
    }

    /// The place of a block.
    pub fn place(&mut self, bm: &Bookmark) -> DamagedItem {
        if bm.objset == ObjectId::MOS {
            return DamagedItem::Meta { object: bm.object };
        }
        let (dataset, fs) = self.open.entry(bm.objset).or_insert_with(|| {
            let dataset = self.pool.dataset_by_id(bm.objset).ok();
            let is_fs = |ds: &&Dataset| matches!(ds.head_kind(), Ok(Kind::Filesystem));
            let fs = dataset.as_ref().filter(is_fs).and_then(|ds| FileSystem::open(ds).ok());
            (dataset, fs)
        });
        let name = dataset.as_ref().map_or_else(|| format!("<{:#x}>", bm.objset), |ds| ds.name().to_owned());
        match fs.as_ref().map(|fs| fs.path_of(bm.object)) {
            Some(Ok(path)) => {
                DamagedItem::File { name, path: path.iter().copied().skip_while(|b| *b == b'/').collect() }
            }
            _ => DamagedItem::Dataset { name, object: bm.object },
        }
    }
}
