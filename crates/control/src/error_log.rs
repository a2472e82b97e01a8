//! The blocks that are known to be damaged, and what they belong to (OpenZFS: `zfs_ioc_error_log`, `zfs_ioc_dsobj_to_dsname`, `zfs_ioc_obj_to_path`).

use base::ObjectId;
use nvlist::{NvList, Value as Nv};
use pool::Kind;
use vdev::LostBlock;

use crate::decode::require_u64;
use crate::objects::path_of;
use crate::{Error, Failed, ReadOnlyControl};

/// Words of a block in an answer: object set, object, level, block (OpenZFS: `zbookmark_phys_t`).
pub const ERROR_WORDS: usize = 4;

impl ReadOnlyControl {
    /// The answer to [`Ioc::ErrorLog`](crate::Ioc::ErrorLog) with blocks that were met and are not in the log yet.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn error_log_with(&self, met: &[LostBlock]) -> Result<NvList, Failed> {
        let errors = self.view.errlog_with(met)?;
        let words = |e: &pool::ErrorEntry| [e.objset.0, e.object.0, e.level.cast_unsigned(), e.blkid];
        let mut out = NvList::new();
        out.insert("errors", Nv::Uint64Array(errors.iter().flat_map(words).collect()));
        Ok(out)
    }

    pub(crate) fn dsobj_to_dsname(&self, input: &NvList) -> Result<NvList, Failed> {
        let mut out = NvList::new();
        out.insert("name", self.view.dataset_by_id(ObjectId(input.get_u64("obj").unwrap_or(0)))?.name());
        Ok(out)
    }

    pub(crate) fn obj_to_path(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let dataset = self.view.dataset(name)?;
        if dataset.head_kind()? != Kind::Filesystem {
            return Err(Error::Invalid(format!("'{name}' is not a file system")).into());
        }
        let path = path_of(&zpl::FileSystem::open(&dataset)?, ObjectId(require_u64(input, "obj")?))?;
        let mut out = NvList::new();
        out.insert("path", Nv::String(path.into()));
        Ok(out)
    }
}
