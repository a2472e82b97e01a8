//! The object set that is shown, with all that its objects need to be understood.

use std::collections::HashSet;
use std::sync::Arc;

use base::ObjectId;
use dmu::Objset;
use ondisk::ObjsetType;
use pool::{Dataset, Pool};
use zpl::FileSystem;

use super::paths::Paths;

/// An object set under inspection.
pub(super) struct Subject {
    pub(super) objset: Arc<Objset>,
    /// The dataset that it belongs to; `None` for the MOS.
    pub(super) dataset: Option<Dataset>,
    /// Set if its encrypted contents cannot be read.
    pub(super) locked: bool,
    /// The file system in it, if there is one that can be read.
    pub(super) fs: Option<FileSystem>,
    /// Unlinked files that wait to be freed.
    pub(super) unlinked: HashSet<ObjectId>,
    /// The paths of its files.
    pub(super) paths: Paths,
    /// The compression of new blocks, in words.
    pub(super) compression: String,
    /// Files to which no path leads.
    pub(super) leaked: u64,
}

impl Subject {
    pub(super) fn mos(pool: &Pool) -> Subject {
        Subject {
            objset: pool.mos().clone(),
            dataset: None,
            locked: false,
            fs: None,
            unlinked: HashSet::new(),
            paths: Paths::default(),
            compression: "on".to_owned(),
            leaked: 0,
        }
    }

    pub(super) fn dataset(pool: &Pool, dataset: &Dataset) -> Result<Subject, pool::Error> {
        let objset = dataset.objset()?;
        let encrypted = dataset.dir().crypto_key_obj()?.is_some_and(|id| id.is_some());
        let locked = encrypted && !pool.zio().keys().contains(dataset.id());
        let mut subject = Subject {
            compression: compression(pool, dataset),
            locked,
            fs: None,
            unlinked: HashSet::new(),
            paths: Paths::default(),
            leaked: 0,
            dataset: Some(dataset.clone()),
            objset,
        };
        if subject.objset.phys().os_type == ObjsetType::Zfs && !locked && !subject.objset.rootbp().is_hole() {
            match FileSystem::open(dataset) {
                Ok(fs) => {
                    subject.unlinked = fs.delete_queue().unwrap_or_default().into_iter().collect();
                    subject.fs = Some(fs);
                }
                Err(e) => eprintln!("zdb: {}: {e}", dataset.name()),
            }
        }
        Ok(subject)
    }

    pub(super) fn name(&self) -> &str {
        self.dataset.as_ref().map_or("mos", Dataset::name)
    }
}

/// The compression of new blocks that the property selects; a snapshot has none of its own.
fn compression(pool: &Pool, dataset: &Dataset) -> String {
    if dataset.is_snapshot() {
        return "inherit".to_owned();
    }
    let value = dataset.prop("compression").ok().flatten();
    let word = value.map_or_else(String::new, |v| pool::prop::format("compression", &v.value, false));
    match word.as_str() {
        "off" => "uncompressed".to_owned(),
        "on" if pool.feature_active("lz4_compress") => "lz4".to_owned(),
        "on" => "lzjb".to_owned(),
        "gzip" => "gzip-6".to_owned(),
        _ => word,
    }
}
