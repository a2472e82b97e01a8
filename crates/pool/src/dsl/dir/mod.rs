//! Directories: the names of the hierarchy, their space accounting and their properties (OpenZFS: `dsl_dir.c`).

mod counts;
mod write;

use std::sync::{Arc, OnceLock};

use base::ObjectId;
use dmu::Zap;
use ondisk::dsl::{DslDirPhys, dir_keys};

use crate::dsl::names::ChildList;
use crate::spa::mos::Mos;
use crate::spa::mos::known::OfObject;
use crate::spa::prop::stored::StoredProps;
use crate::{Dataset, Error, Pool};

/// Deepest nesting that is followed; OpenZFS allows 50.
const DEPTH_MAX: usize = 128;

/// A directory as its object in the MOS has it.
struct DirRecord {
    phys: DslDirPhys,
    /// True if the object was extended to a ZAP.
    extended: bool,
}

impl OfObject for DirRecord {}

/// A directory of a view, under its name there.
pub(in crate::dsl) struct DirInner {
    pub(in crate::dsl) id: ObjectId,
    pub(in crate::dsl) name: String,
    record: Arc<DirRecord>,
    /// The object as a ZAP, once it was asked for.
    extension: OnceLock<Zap>,
    pub(in crate::dsl) parent: Option<Arc<DirInner>>,
    props: OnceLock<Arc<StoredProps>>,
}

impl DirInner {
    fn load(pool: &Pool, id: ObjectId, name: String, parent: Option<Arc<DirInner>>) -> Result<Arc<DirInner>, Error> {
        let record = record(pool, id)?;
        Ok(Arc::new(DirInner { id, name, record, extension: OnceLock::new(), parent, props: OnceLock::new() }))
    }

    /// Its stored form.
    pub(in crate::dsl) fn phys(&self) -> &DslDirPhys {
        &self.record.phys
    }

    /// This directory and its ancestors up to the root.
    pub(in crate::dsl) fn lineage(self: &Arc<Self>) -> impl Iterator<Item = &Arc<DirInner>> {
        std::iter::successors(Some(self), |dir| dir.parent.as_ref())
    }

    pub(in crate::dsl) fn props(&self, pool: &Pool) -> Result<&Arc<StoredProps>, Error> {
        if let Some(props) = self.props.get() {
            return Ok(props);
        }
        let loaded = StoredProps::known(&pool.known, &pool.mos, self.phys().props_zapobj)?;
        Ok(self.props.get_or_init(|| loaded))
    }

    /// The object as a ZAP, if it was extended.
    fn extension(&self, mos: &Mos) -> Result<Option<&Zap>, Error> {
        if !self.record.extended {
            return Ok(None);
        }
        if let Some(zap) = self.extension.get() {
            return Ok(Some(zap));
        }
        let opened = mos.zap(self.id)?;
        Ok(Some(self.extension.get_or_init(|| opened)))
    }

    /// A number of the extension.
    pub(in crate::dsl) fn field(&self, mos: &Mos, key: &str) -> Result<Option<u64>, Error> {
        match self.extension(mos)? {
            Some(zap) => Ok(zap.lookup_u64(key)?),
            None => Ok(None),
        }
    }

    /// The words of the extension's `key`.
    pub(in crate::dsl) fn field_words(&self, mos: &Mos, key: &str) -> Result<Option<Vec<u64>>, Error> {
        match self.extension(mos)? {
            Some(zap) => Ok(zap.lookup(key)?.map(|v| v.u64s())),
            None => Ok(None),
        }
    }
}

/// The directory in object `id`, as the MOS of a view has it.
fn record(pool: &Pool, id: ObjectId) -> Result<Arc<DirRecord>, Error> {
    pool.known.of(id, || {
        let object = pool.mos.object(id)?;
        let phys = Mos::bonus(&object, DslDirPhys::decode)?;
        Ok(DirRecord { phys, extended: object.phys().object_type.is_zap() })
    })
}

/// A directory of a pool (OpenZFS: `dsl_dir_t`). Cheap to clone.
#[derive(Clone)]
pub struct Dir {
    pub(in crate::dsl) pool: Arc<Pool>,
    pub(in crate::dsl) inner: Arc<DirInner>,
}

impl Dir {
    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Its object in the MOS.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.inner.id
    }

    /// Its full name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its stored form.
    #[must_use]
    pub fn phys(&self) -> &DslDirPhys {
        self.inner.phys()
    }

    /// The directory above; `None` for the pool's root.
    #[must_use]
    pub fn parent(&self) -> Option<Dir> {
        Some(Dir { pool: self.pool.clone(), inner: self.inner.parent.clone()? })
    }

    /// Whether it is one of OpenZFS's own: `$MOS`, `$ORIGIN`, `$FREE`, `$LEAK`, or the home of a receive in progress (`%recv`).
    #[must_use]
    pub fn is_special(&self) -> bool {
        self.inner.parent.is_some() && self.name().rsplit('/').next().is_some_and(|n| n.starts_with(['$', '%']))
    }

    /// The directory `name` directly below.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn child(&self, name: &str) -> Result<Option<Dir>, Error> {
        let (pool, list) = (&self.pool, self.phys().child_dir_zapobj);
        let look_up = || match pool.mos.zap_if(list)? {
            Some(zap) => Ok(zap.lookup_id(name)?),
            None => Ok(None),
        };
        match pool.known.id(list, name, look_up)? {
            Some(id) => self.open_child(name, id).map(Some),
            None => Ok(None),
        }
    }

    /// All directories directly below, sorted by name, special ones too.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn children(&self) -> Result<Vec<Dir>, Error> {
        let listed = ChildList::load(&self.pool, self.phys().child_dir_zapobj)?;
        listed.entries()?.iter().map(|(name, id)| self.open_child(name, *id)).collect()
    }

    fn open_child(&self, name: &str, id: ObjectId) -> Result<Dir, Error> {
        let stray = |parent: ObjectId| {
            Error::corrupt(id, format!("directory is listed in '{}', and names {parent} as its parent", self.name()))
        };
        if let Some(inner) = self.pool.names.dir(id) {
            // lists that lead in a circle would be followed without end
            let parent = inner.parent.as_ref().map_or(ObjectId::NONE, |p| p.id);
            return if parent == self.id() { Ok(Dir { pool: self.pool.clone(), inner }) } else { Err(stray(parent)) };
        }
        if self.inner.lineage().count() >= DEPTH_MAX {
            return Err(Error::corrupt(id, "directories are nested too deeply"));
        }
        let full = format!("{}/{name}", self.name());
        let inner = DirInner::load(&self.pool, id, full, Some(self.inner.clone()))?;
        if inner.phys().parent_obj != self.inner.id {
            return Err(stray(inner.phys().parent_obj));
        }
        self.pool.names.keep_dir(&inner);
        Ok(Dir { pool: self.pool.clone(), inner })
    }

    /// The file system or volume of this name; `None` for a directory without one (`$MOS`, `$FREE`).
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn head(&self) -> Result<Option<Dataset>, Error> {
        match self.phys().head_dataset_obj {
            ObjectId::NONE => Ok(None),
            id => Dataset::open_head(self, id).map(Some),
        }
    }

    /// The key object, if the dataset is encrypted.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn crypto_key_obj(&self) -> Result<Option<ObjectId>, Error> {
        self.field_id(dir_keys::CRYPTO_KEY_OBJ)
    }

    /// A number with which the directory was extended (see [`dir_keys`]).
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn field(&self, key: &str) -> Result<Option<u64>, Error> {
        self.inner.field(&self.pool.mos, key)
    }

    /// The object that the extension of the directory has under `key` (see [`dir_keys`]).
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn field_id(&self, key: &str) -> Result<Option<ObjectId>, Error> {
        Ok(self.field(key)?.map(ObjectId))
    }

    /// When the list of snapshots last changed: seconds since 1970, nanoseconds.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn snapshots_changed(&self) -> Result<Option<(u64, u64)>, Error> {
        let words = self.inner.field_words(&self.pool.mos, dir_keys::SNAPSHOTS_CHANGED)?;
        Ok(words.map(|w| (w.first().copied().unwrap_or(0), w.get(1).copied().unwrap_or(0))))
    }
}

impl std::fmt::Debug for Dir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "directory {} ({})", self.name(), self.id())
    }
}

impl Pool {
    /// The directory of the pool's root dataset.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn root_dir(self: &Arc<Self>) -> Result<Dir, Error> {
        let id = self.root_dir_obj;
        if let Some(inner) = self.names.dir(id) {
            return Ok(Dir { pool: self.clone(), inner });
        }
        let inner = DirInner::load(self, id, self.name().to_string(), None)?;
        self.names.keep_dir(&inner);
        Ok(Dir { pool: self.clone(), inner })
    }

    /// The directory of this full name.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`], or when the MOS cannot be read.
    pub fn dir(self: &Arc<Self>, name: &str) -> Result<Dir, Error> {
        let mut parts = name.split('/');
        if parts.next() != Some(self.name()) {
            return Err(Error::no_dataset(name));
        }
        let mut dir = self.root_dir()?;
        for part in parts {
            dir = dir.child(part)?.ok_or_else(|| Error::no_dataset(name))?;
        }
        Ok(dir)
    }

    /// The directory in object `id`. Its name is found by way of its parents.
    ///
    /// # Errors
    /// When the MOS cannot be read, or the directory hangs nowhere.
    pub fn dir_by_id(self: &Arc<Self>, id: ObjectId) -> Result<Dir, Error> {
        let mut path = vec![id];
        let mut dir = loop {
            let Some(&at) = path.last() else { return self.root_dir() };
            if at == self.root_dir_obj {
                path.pop();
                break self.root_dir()?;
            }
            if let Some(inner) = self.names.dir(at) {
                path.pop();
                break Dir { pool: self.clone(), inner };
            }
            if path.len() > DEPTH_MAX {
                return Err(Error::corrupt(id, "directories are nested too deeply"));
            }
            path.push(record(self, at)?.phys.parent_obj);
        };
        while let Some(below) = path.pop() {
            let name = self.child_name(&dir.inner, below)?;
            dir = dir.open_child(&name, below)?;
        }
        Ok(dir)
    }
}
