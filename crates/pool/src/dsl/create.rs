//! New file systems and volumes (OpenZFS: `dmu_objset_create_check`, `dmu_objset_create_sync`, `dsl_dataset_create_sync`).

use std::sync::Arc;

use base::ObjectId;
use dmu::{Objset, Tx};
use ondisk::ObjsetType;
use ondisk::dsl::DslDatasetPhys;

use crate::dsl::lookup::{Live, check_name, split_parent};
use crate::dsl::props::write::When;
use crate::dsl::refused;
use crate::dsl::{NewKey, Refusal, WithoutKey};
use crate::spa::mos::Mos;
use crate::spa::prop::{FS, VOL};
use crate::spa::{Spa, TaskCx};
use crate::{Error, Value};

/// The approximate number of metadata blocks that a new dataset takes (OpenZFS: `dmu_objset_create`).
pub(super) const NEW_BLOCKS: usize = 5;

/// Fills the empty object set of a new dataset, in the txg that creates it.
pub type Init = Box<dyn FnOnce(&Arc<Objset>, &Tx) -> Result<(), dmu::Error> + Send>;

/// The name, type, properties and encryption of a new dataset.
#[derive(Debug)]
pub struct NewDataset {
    /// Its full name.
    pub name: String,
    /// File system or volume.
    pub os_type: ObjsetType,
    /// Its own properties, without those of encryption: see `key`.
    pub props: Vec<(String, Value)>,
    /// Its key, if it is to be an encryption root.
    pub key: Option<NewKey>,
    /// How it is encrypted without a key of its own.
    pub without_key: WithoutKey,
    /// The names of its snapshots and bookmarks are the same in any case: it is a file system that ignores case (OpenZFS: `DS_FLAG_CI_DATASET`).
    pub ignores_case: bool,
}

impl NewDataset {
    /// A dataset without properties or a key of its own.
    #[must_use]
    pub fn inheriting(name: impl Into<String>, os_type: ObjsetType) -> NewDataset {
        NewDataset {
            name: name.into(),
            os_type,
            props: Vec::new(),
            key: None,
            without_key: WithoutKey::Inherit,
            ignores_case: false,
        }
    }
}

impl Spa {
    /// Makes a file system or volume below an existing file system.
    ///
    /// # Errors
    /// [`Error::Refused`]: [`Refusal::Exists`], [`Refusal::NoParent`], [`Refusal::NotAFilesystem`], [`Refusal::NameTooLong`],
    /// [`Refusal::TooDeep`], [`Refusal::KeyUnavailable`], [`Refusal::NoSpace`] for a reservation that does not fit, and what else is wrong
    /// with properties; [`Error::InvalidName`].
    pub fn create_dataset(self: &Arc<Self>, new: NewDataset, init: Init) -> Result<(), Error> {
        check_name(&new.name)?;
        let mut new = new;
        let key = new.key.take();
        self.growing_task(NEW_BLOCKS, move |cx| {
            let (parent, tail) = cx.spa.check_new(cx.mos, &new.name)?;
            let kind = if new.os_type == ObjsetType::Zvol { VOL } else { FS };
            cx.spa.check_new_props(cx.mos, parent, (kind, When::Made), &new.props)?;
            let key = cx.spa.key_of_new(cx.mos, &new.name, parent, key, new.without_key)?;
            let dir = cx.new_dir(parent, tail)?;
            let origin = cx.spa.origin_snapshot(cx.mos)?;
            let id = cx.spa.create_head(cx.mos, cx.tx, dir, origin)?;
            if new.ignores_case {
                cx.mos.edit_dataset(cx.tx, id, |phys| phys.flags |= DslDatasetPhys::FLAG_CI_DATASET)?;
            }
            if let Some(key) = key {
                cx.put_key(dir, id, key)?;
            }
            let ds = cx.mos.live(id)?;
            cx.spa.store_new_props(cx.mos, cx.tx, &ds, &new.props)?;
            cx.fill(&ds, new.os_type, init)?;
            cx.spa.log_named(cx.mos, cx.tx, "create", (&new.name, id), " ")
        })
    }

    /// Checks the name of a new dataset; returns its parent directory and the last part of the name.
    pub(in crate::dsl) fn check_new<'a>(&self, mos: &Mos, name: &'a str) -> Result<(ObjectId, &'a str), Error> {
        let (parent, tail) = split_parent(name)?;
        let missing = |error: Error| match error {
            Error::NoSuchDataset { .. } => refused(name, Refusal::NoParent),
            other => other,
        };
        let head = self.find_head(mos, parent).map_err(missing)?;
        let dir = mos.dir_phys(head.phys.dir_obj)?;
        if mos.zap(dir.child_dir_zapobj)?.lookup(tail)?.is_some() {
            return Err(refused(name, Refusal::Exists));
        }
        if self.kind_of(&head)? != FS {
            return Err(refused(name, Refusal::NotAFilesystem));
        }
        Ok((head.phys.dir_obj, tail))
    }

    /// The snapshot that all datasets other than clones descend from; pools before version 11 have none.
    pub(in crate::dsl) fn origin_snapshot(&self, mos: &Mos) -> Result<Option<ObjectId>, Error> {
        let Some(root) = mos.id_of("root_dataset")? else { return Ok(None) };
        let children = mos.zap(mos.dir_phys(root)?.child_dir_zapobj)?;
        let Some(dir) = children.lookup_id("$ORIGIN")? else { return Ok(None) };
        let head = mos.dataset_phys(mos.dir_phys(dir)?.head_dataset_obj)?;
        Ok(Some(head.prev_snap_obj).filter(|id| id.is_some()))
    }
}

impl TaskCx<'_> {
    /// Creates a directory below `parent`.
    pub(in crate::dsl) fn new_dir(&self, parent: ObjectId, name: &str) -> Result<ObjectId, Error> {
        let dir = self.spa.create_dir(self.mos, self.tx, Some((parent, name)))?;
        if !name.starts_with('$') {
            self.mos.adjust_count(self.tx, parent, ondisk::dsl::dir_keys::FILESYSTEM_COUNT, 1)?;
        }
        self.spa.count_new(self.mos, self.tx, dir)?;
        Ok(dir)
    }

    /// Creates the object set of a new dataset, and fills it.
    pub(in crate::dsl) fn fill(&self, ds: &Live, os_type: ObjsetType, init: Init) -> Result<(), Error> {
        let (spa, mos) = (self.spa, self.mos);
        // whose the space and the objects are is known from the beginning, if it is known at all
        let accounted = os_type == ObjsetType::Zfs && spa.hooks_used_by();
        let flags = if accounted { spa.accounting_flags(mos)? } else { 0 };
        let objset = Objset::create(spa.zio().clone(), ds.id, os_type, flags, self.tx)?;
        init(&objset, self.tx)?;
        spa.add_open_dataset(mos, objset, ds.phys.dir_obj)?;
        if accounted {
            for name in ["userobj_accounting", "project_quota"] {
                if spa.feature_enabled(mos, name)? {
                    spa.activate_dataset_feature(mos, self.tx, ds.id, name)?;
                }
            }
        }
        Ok(())
    }
}
