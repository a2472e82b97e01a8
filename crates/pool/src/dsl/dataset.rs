//! Datasets: file systems, volumes and their snapshots (OpenZFS: `dsl_dataset.c`).

use std::sync::{Arc, OnceLock};

use base::{Guid, ObjectId};
use dmu::{MatchMode, Objset, Zap};
use ondisk::ObjsetType;
use ondisk::dsl::{DslDatasetPhys, dataset_keys};

use crate::dsl::names::NameList;
use crate::dsl::policy::primary_cache;
use crate::spa::feature;
use crate::spa::mos::known::OfObject;
use crate::spa::mos::{self, Mos};
use crate::spa::prop::stored::StoredProps;
use crate::spa::prop::{FS, SNAP, TypeMask, VOL};
use crate::{Dir, Error, Pool};

/// The kind of a dataset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// A file system.
    Filesystem,
    /// A volume.
    Volume,
    /// A snapshot of either.
    Snapshot,
    /// The MOS, or something that no user sees.
    Other,
}

impl Kind {
    /// As `zfs list -o type` prints it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Filesystem => "filesystem",
            Kind::Volume => "volume",
            Kind::Snapshot => "snapshot",
            Kind::Other => "other",
        }
    }

    /// Its bit in the tables of properties.
    #[must_use]
    pub const fn mask(self) -> TypeMask {
        match self {
            Kind::Filesystem => FS,
            Kind::Volume => VOL,
            Kind::Snapshot => SNAP,
            Kind::Other => 0,
        }
    }
}

/// A dataset as its object in the MOS has it.
struct DatasetRecord {
    phys: DslDatasetPhys,
    /// True if the object was extended to a ZAP.
    extended: bool,
}

impl OfObject for DatasetRecord {}

/// The type of a dataset's object set.
struct RootType(ObjsetType);

impl OfObject for RootType {}

pub(in crate::dsl) struct DatasetInner {
    id: ObjectId,
    name: String,
    dir: Dir,
    record: Arc<DatasetRecord>,
    /// The object as a ZAP, once it was asked for.
    extension: OnceLock<Zap>,
    objset: OnceLock<Arc<Objset>>,
    /// Set when the object set has been told what is cached of it.
    told: OnceLock<()>,
    props: OnceLock<Arc<StoredProps>>,
}

/// A dataset: the head of a directory, or one of its snapshots (OpenZFS: `dsl_dataset_t`). Cheap to clone.
#[derive(Clone)]
pub struct Dataset {
    inner: Arc<DatasetInner>,
}

/// A hold on a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hold {
    /// Its tag.
    pub tag: String,
    /// When it was placed, seconds since 1970.
    pub time: u64,
}

impl Dataset {
    fn new(dir: &Dir, id: ObjectId, record: Arc<DatasetRecord>, snapshot: Option<&str>) -> Result<Dataset, Error> {
        let phys = &record.phys;
        if phys.dir_obj != dir.id() {
            return Err(Error::corrupt(id, format!("dataset belongs to directory {}, not {}", phys.dir_obj, dir.id())));
        }
        if phys.is_snapshot() != snapshot.is_some() {
            return Err(Error::corrupt(
                id,
                format!("dataset of '{}' is a snapshot where a head should be, or the reverse", dir.name()),
            ));
        }
        let name = snapshot.map_or_else(|| dir.name().to_string(), |snap| format!("{}@{snap}", dir.name()));
        let inner = DatasetInner {
            id,
            name,
            dir: dir.clone(),
            record,
            extension: OnceLock::new(),
            objset: OnceLock::new(),
            told: OnceLock::new(),
            props: OnceLock::new(),
        };
        Ok(Dataset { inner: Arc::new(inner) })
    }

    fn load(pool: &Pool, id: ObjectId) -> Result<Arc<DatasetRecord>, Error> {
        pool.known.of(id, || {
            let object = pool.mos.object(id)?;
            let phys = Mos::bonus(&object, DslDatasetPhys::decode)?;
            Ok(DatasetRecord { phys, extended: object.phys().object_type.is_zap() })
        })
    }

    pub(in crate::dsl) fn open_head(dir: &Dir, id: ObjectId) -> Result<Dataset, Error> {
        Self::new(dir, id, Self::load(&dir.pool, id)?, None)
    }

    pub(in crate::dsl) fn open_snapshot(dir: &Dir, id: ObjectId, name: &str) -> Result<Dataset, Error> {
        Self::new(dir, id, Self::load(&dir.pool, id)?, Some(name))
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.inner.dir.pool
    }

    /// Its object in the MOS, which is also the number of its object set.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.inner.id
    }

    /// Its identity, kept by send and receive.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.phys().guid
    }

    /// Its full name: `pool/fs` or `pool/fs@snap`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The name after the last `/`, or behind the `@` of a snapshot.
    #[must_use]
    pub fn short_name(&self) -> &str {
        self.name().rsplit(['/', '@']).next().unwrap_or("")
    }

    /// The directory that it belongs to.
    #[must_use]
    pub fn dir(&self) -> &Dir {
        &self.inner.dir
    }

    /// Its stored form.
    #[must_use]
    pub fn phys(&self) -> &DslDatasetPhys {
        &self.inner.record.phys
    }

    /// Whether it is a snapshot.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.phys().is_snapshot()
    }

    /// Its object set. Opened once; the key of an encrypted dataset is not needed for that.
    ///
    /// # Errors
    /// When its root block cannot be read.
    pub fn objset(&self) -> Result<Arc<Objset>, Error> {
        let objset = self.root()?;
        self.inner.told.get_or_init(|| {
            // what cannot be read of its properties makes its contents no less readable
            let set = self.setting("primarycache").ok().flatten().and_then(|set| set.value.number());
            if let Some(value) = set {
                objset.set_primary_cache(primary_cache(value));
            }
        });
        Ok(objset)
    }

    /// Its object set, for who only looks at the root block.
    fn root(&self) -> Result<Arc<Objset>, Error> {
        if let Some(objset) = self.inner.objset.get() {
            return Ok(objset.clone());
        }
        let opened = Objset::open(self.pool().zio().clone(), self.id(), &self.phys().bp)?;
        Ok(self.inner.objset.get_or_init(|| opened).clone())
    }

    /// The properties of a snapshot's own.
    pub(in crate::dsl) fn own_props(&self) -> Result<&Arc<StoredProps>, Error> {
        if let Some(props) = self.inner.props.get() {
            return Ok(props);
        }
        let pool = self.pool();
        let loaded = StoredProps::known(&pool.known, &pool.mos, self.phys().props_obj)?;
        Ok(self.inner.props.get_or_init(|| loaded))
    }

    /// Its kind.
    ///
    /// # Errors
    /// When the root block of a head cannot be read.
    pub fn kind(&self) -> Result<Kind, Error> {
        if self.is_snapshot() { Ok(Kind::Snapshot) } else { self.head_kind() }
    }

    /// Its kind, or that of the dataset that it is a snapshot of.
    ///
    /// # Errors
    /// When its root block cannot be read.
    pub fn head_kind(&self) -> Result<Kind, Error> {
        let root = self.pool().known.of(self.id(), || Ok(RootType(self.root()?.phys().os_type)))?;
        Ok(match root.0 {
            ObjsetType::Zfs => Kind::Filesystem,
            ObjsetType::Zvol => Kind::Volume,
            _ => Kind::Other,
        })
    }

    /// The head that a snapshot is of; a head itself.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn head(&self) -> Result<Dataset, Error> {
        if !self.is_snapshot() {
            return Ok(self.clone());
        }
        self.dir().head()?.ok_or_else(|| Error::corrupt(self.id(), "snapshot of a directory without a head"))
    }

    /// All snapshots of a head, oldest first. Of a snapshot, none.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn snapshots(&self) -> Result<Vec<Dataset>, Error> {
        let list = NameList::snapshots(self.pool(), self.phys().snapnames_zapobj)?;
        let open = |(name, id): &(String, ObjectId)| Self::open_snapshot(self.dir(), *id, name);
        let mut all = list.entries().iter().map(open).collect::<Result<Vec<_>, _>>()?;
        all.sort_by(|a, b| (a.phys().creation_txg, a.name()).cmp(&(b.phys().creation_txg, b.name())));
        Ok(all)
    }

    /// The names of all snapshots of a head with their objects, in the order of the list on disk.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn snapshot_names(&self) -> Result<Vec<(String, ObjectId)>, Error> {
        Ok(NameList::snapshots(self.pool(), self.phys().snapnames_zapobj)?.entries().to_vec())
    }

    /// The number of snapshots of a head.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn snapshot_count(&self) -> Result<usize, Error> {
        Ok(NameList::snapshots(self.pool(), self.phys().snapnames_zapobj)?.entries().len())
    }

    /// The snapshot `name` of a head.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`], or when the MOS cannot be read.
    pub fn snapshot(&self, name: &str) -> Result<Dataset, Error> {
        let missing = || Error::no_dataset(&format!("{}@{name}", self.name()));
        let (pool, list) = (self.pool(), self.phys().snapnames_zapobj);
        // snapshots of a file system that ignores case are found whatever the case
        if self.phys().flags & DslDatasetPhys::FLAG_CI_DATASET != 0
            && let Some(zap) = pool.mos.zap_if(list)?.filter(|zap| zap.normflags() != 0)
        {
            let found = zap.lookup_norm(name, MatchMode::Normalize)?.ok_or_else(missing)?;
            return Self::open_snapshot(self.dir(), ObjectId(found.value.first()), &mos::text(&zap, &found.name)?);
        }
        let look_up = || match pool.mos.zap_if(list)? {
            Some(zap) => Ok(zap.lookup_id(name)?),
            None => Ok(None),
        };
        let id = pool.known.id(list, name, look_up)?.ok_or_else(missing)?;
        Self::open_snapshot(self.dir(), id, name)
    }

    /// The snapshot before this dataset: of itself, or the origin for the first snapshot of a clone.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn prev_snap(&self) -> Result<Option<Dataset>, Error> {
        self.neighbour(self.phys().prev_snap_obj)
    }

    /// The successor of a snapshot: a snapshot, or the head.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn next_snap(&self) -> Result<Option<Dataset>, Error> {
        self.neighbour(self.phys().next_snap_obj)
    }

    fn neighbour(&self, id: ObjectId) -> Result<Option<Dataset>, Error> {
        if id.is_none() { Ok(None) } else { self.pool().dataset_by_id(id).map(Some) }
    }

    /// The snapshot that a clone was made of. Datasets that were not cloned have none, though OpenZFS gives them one on disk.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn origin(&self) -> Result<Option<Dataset>, Error> {
        let id = self.dir().phys().origin_obj;
        if self.is_snapshot() || id.is_none() || Some(id) == self.pool().origin_snap_obj {
            return Ok(None);
        }
        self.pool().dataset_by_id(id).map(Some)
    }

    /// The clones of a snapshot, in the order of the list on disk.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn clones(&self) -> Result<Vec<Dataset>, Error> {
        let Some(zap) = self.pool().mos.zap_if(self.phys().next_clones_obj)? else { return Ok(Vec::new()) };
        // an old bug left entries out; OpenZFS then shows none
        if zap.count().checked_add(1) != Some(self.phys().num_children) {
            return Ok(Vec::new());
        }
        // what comes next after the origin need not be the clone's head: it may be the clone's first snapshot
        zap.entries()?.map(|entry| self.pool().dataset_by_id(ObjectId(entry?.value.first()))?.head()).collect()
    }

    /// The heads directly below in the hierarchy, sorted by name, special ones left out.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn children(&self) -> Result<Vec<Dataset>, Error> {
        if self.is_snapshot() {
            return Ok(Vec::new());
        }
        let dirs = self.dir().children()?.into_iter().filter(|dir| !dir.is_special());
        dirs.filter_map(|dir| dir.head().transpose()).collect()
    }

    /// The holds on a snapshot, sorted by tag.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn holds(&self) -> Result<Vec<Hold>, Error> {
        let Some(zap) = self.pool().mos.zap_if(self.phys().userrefs_obj)? else { return Ok(Vec::new()) };
        let entries = mos::named_entries(&zap)?;
        let mut holds: Vec<Hold> = entries.into_iter().map(|(tag, value)| Hold { tag, time: value.first() }).collect();
        holds.sort_by(|a, b| a.tag.cmp(&b.tag));
        Ok(holds)
    }

    /// How many holds there are.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn userrefs(&self) -> Result<u64, Error> {
        Ok(self.pool().mos.zap_if(self.phys().userrefs_obj)?.map_or(0, |zap| zap.count()))
    }

    /// The object as a ZAP, if it was extended (see [`dataset_keys`]).
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn extension(&self) -> Result<Option<&Zap>, Error> {
        if !self.inner.record.extended {
            return Ok(None);
        }
        if let Some(zap) = self.inner.extension.get() {
            return Ok(Some(zap));
        }
        let opened = self.pool().mos.zap(self.id())?;
        Ok(Some(self.inner.extension.get_or_init(|| opened)))
    }

    /// A number with which the dataset was extended.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn field(&self, key: &str) -> Result<Option<u64>, Error> {
        match self.extension()? {
            Some(zap) => Ok(zap.lookup_u64(key)?),
            None => Ok(None),
        }
    }

    /// The object that the extension of the dataset has under `key`.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn field_id(&self, key: &str) -> Result<Option<ObjectId>, Error> {
        Ok(self.field(key)?.map(ObjectId))
    }

    /// Whether the dataset uses the feature of this name (`large_blocks`) or guid.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn feature_active(&self, name_or_guid: &str) -> Result<bool, Error> {
        let guid = feature::by_name(name_or_guid).map_or(name_or_guid, |f| f.guid);
        match self.extension()? {
            Some(zap) => Ok(zap.lookup(guid)?.is_some()),
            None => Ok(false),
        }
    }

    /// The names of the features that the dataset uses.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn features(&self) -> Result<Vec<&'static str>, Error> {
        let Some(zap) = self.extension()? else { return Ok(Vec::new()) };
        let mut active = Vec::new();
        for f in feature::FEATURES.iter().filter(|f| f.is_per_dataset()) {
            if zap.lookup(f.guid)?.is_some() {
                active.push(f.name);
            }
        }
        Ok(active)
    }

    /// The guids of the snapshots with respect to which the dataset was redacted; `None` if it is whole.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn redact_snaps(&self) -> Result<Option<Vec<Guid>>, Error> {
        let Some(zap) = self.extension()? else { return Ok(None) };
        Ok(zap.lookup(dataset_keys::REDACTED_DATASETS)?.map(|v| v.iter().map(Guid).collect()))
    }

    /// Whether a redacted send left parts of it out.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn is_redacted(&self) -> Result<bool, Error> {
        self.redact_snaps().map(|s| s.is_some())
    }

    /// Whether it is half received or half destroyed.
    #[must_use]
    pub fn is_inconsistent(&self) -> bool {
        self.phys().flags & DslDatasetPhys::FLAG_INCONSISTENT != 0
    }

    /// Whether it goes away with its last hold or clone.
    #[must_use]
    pub fn is_defer_destroyed(&self) -> bool {
        self.phys().flags & DslDatasetPhys::FLAG_DEFER_DESTROY != 0
    }

    /// Which set of IVs the blocks of an encrypted snapshot were written with.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn ivset_guid(&self) -> Result<Option<Guid>, Error> {
        Ok(self.field(dataset_keys::IVSET_GUID)?.map(Guid))
    }
}

impl std::fmt::Debug for Dataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "dataset {} ({})", self.name(), self.id())
    }
}

impl Pool {
    /// The file system, volume or snapshot of this name. Each part of the name is looked up, nothing is searched.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`], [`Error::InvalidName`], or when the MOS cannot be read.
    pub fn dataset(self: &Arc<Self>, name: &str) -> Result<Dataset, Error> {
        if name.contains('#') {
            return Err(Error::InvalidName { name: name.to_string(), why: "a bookmark is no dataset" });
        }
        let (head, snapshot) = name.split_once('@').map_or((name, None), |(head, snap)| (head, Some(snap)));
        let head = self.dir(head)?.head()?.ok_or_else(|| Error::no_dataset(name))?;
        match snapshot {
            Some(snapshot) => head.snapshot(snapshot),
            None => Ok(head),
        }
    }

    /// The dataset in object `id`.
    ///
    /// # Errors
    /// When there is none, or the MOS cannot be read.
    pub fn dataset_by_id(self: &Arc<Self>, id: ObjectId) -> Result<Dataset, Error> {
        let record = Dataset::load(self, id)?;
        let dir = self.dir_by_id(record.phys.dir_obj)?;
        if !record.phys.is_snapshot() {
            return Dataset::new(&dir, id, record, None);
        }
        let head = dir.head()?.ok_or_else(|| Error::corrupt(id, "snapshot of a directory without a head"))?;
        let name = self.snapshot_name(head.phys().snapnames_zapobj, id)?;
        Dataset::new(&dir, id, record, Some(&name))
    }
}
