//! Names and numbers in the MOS as it is while a txg is synced (OpenZFS: `dsl_dir_hold`, `dsl_dataset_hold`).

use std::collections::BTreeMap;

use base::ObjectId;
use dmu::{MatchMode, Tx};
use ondisk::dsl::{DslDatasetPhys, DslDirPhys};

use crate::dsl::{Refusal, refused};
use crate::spa::Spa;
pub(in crate::dsl) use crate::spa::mos::chain::Live;
use crate::spa::mos::{self, Mos};
use crate::{Error, Pool};

/// The longest name of a dataset, snapshot or bookmark, in bytes (OpenZFS: `ZFS_MAX_DATASET_NAME_LEN`, less its NUL).
pub(in crate::dsl) const NAME_MAX: usize = 255;
/// The most levels in a name (OpenZFS: `zfs_max_dataset_nesting`).
pub(in crate::dsl) const NESTING_MAX: usize = 50;

/// Parent and last part of the name of a file system or volume.
pub(in crate::dsl) fn split_parent(name: &str) -> Result<(&str, &str), Error> {
    name.rsplit_once('/').ok_or_else(|| refused(name, Refusal::Invalid("the pool's own dataset has no parent")))
}

/// File system and snapshot name of `fs@snap`.
pub(in crate::dsl) fn split_snapshot(name: &str) -> Result<(&str, &str), Error> {
    name.split_once('@').ok_or_else(|| refused(name, Refusal::NotSnapshot))
}

/// Checks that `part` can be one component of a new name: of a directory, a snapshot, a bookmark (OpenZFS: `zfs_component_namecheck`). A `%` is
/// reserved for the temporary names of a receive.
pub(in crate::dsl) fn check_component(name: &str, part: &str) -> Result<(), Error> {
    check_old_component(name, part)?;
    match part.contains('%') {
        true => Err(Error::InvalidName { name: name.to_string(), why: "invalid character '%' in name" }),
        false => Ok(()),
    }
}

/// Checks that an existing name can have this component (OpenZFS: `entity_namecheck`).
pub(in crate::dsl) fn check_old_component(name: &str, part: &str) -> Result<(), Error> {
    let valid = |b: u8| b.is_ascii_alphanumeric() || b"-_.: %".contains(&b);
    let why = match part {
        "" => "a part of the name is empty",
        "." | ".." => "a part of the name is '.' or '..'",
        _ if !part.bytes().all(valid) => "a character that no name can have",
        _ => return Ok(()),
    };
    Err(Error::InvalidName { name: name.to_string(), why })
}

/// Checks that `name` can be that of a dataset, snapshot or bookmark (OpenZFS: `entity_namecheck`).
///
/// # Errors
/// [`Error::InvalidName`].
pub fn check_entity_name(name: &str) -> Result<(), Error> {
    if name.len() > NAME_MAX {
        return Err(Error::InvalidName { name: name.to_string(), why: "it is too long" });
    }
    let (head, last) = name.split_once(['@', '#']).unzip();
    head.unwrap_or(name).split('/').chain(last).try_for_each(|part| check_old_component(name, part))
}

/// Checks that `name` can be that of a new file system or volume.
pub(in crate::dsl) fn check_name(name: &str) -> Result<(), Error> {
    name.split('/').try_for_each(|part| check_component(name, part))?;
    if name.len() > NAME_MAX {
        return Err(refused(name, Refusal::NameTooLong));
    }
    if name.matches('/').count() >= NESTING_MAX {
        return Err(refused(name, Refusal::TooDeep));
    }
    Ok(())
}

impl Spa {
    /// The directory of this full name.
    pub(in crate::dsl) fn find_dir(&self, mos: &Mos, name: &str) -> Result<ObjectId, Error> {
        let missing = || Error::no_dataset(name);
        let mut parts = name.split('/');
        if parts.next() != Some(self.name()) {
            return Err(missing());
        }
        let mut dir = mos.id_of("root_dataset")?.ok_or_else(missing)?;
        for part in parts {
            if part.starts_with('$') {
                return Err(Error::InvalidName { name: name.to_string(), why: "a directory of the pool's own" });
            }
            let children = mos.zap_if(mos.dir_phys(dir)?.child_dir_zapobj)?.ok_or_else(missing)?;
            dir = children.lookup_id(part)?.ok_or_else(missing)?;
        }
        Ok(dir)
    }

    /// The head of this full name.
    pub(in crate::dsl) fn find_head(&self, mos: &Mos, name: &str) -> Result<Live, Error> {
        match mos.dir_phys(self.find_dir(mos, name)?)?.head_dataset_obj {
            ObjectId::NONE => Err(Error::no_dataset(name)),
            id => mos.live(id),
        }
    }

    /// The snapshot of this full name.
    pub(in crate::dsl) fn find_snapshot(&self, mos: &Mos, name: &str) -> Result<Live, Error> {
        let (fs, snap) = split_snapshot(name)?;
        let head = self.find_head(mos, fs)?;
        let id = mos.snapshot_id(&head.phys, snap)?.ok_or_else(|| Error::no_dataset(name))?;
        mos.live(id)
    }

    /// Records the event `event` on `dataset` in the pool's history.
    pub(in crate::dsl) fn log_live(
        &self,
        mos: &Mos,
        tx: &Tx,
        dataset: &Live,
        event: &str,
        what: &str,
    ) -> Result<(), Error> {
        let name = mos.full_name(self.name(), dataset)?;
        self.log_named(mos, tx, event, (&name, dataset.id), what)
    }

    /// The head or snapshot of this full name.
    pub(in crate::dsl) fn find(&self, mos: &Mos, name: &str) -> Result<Live, Error> {
        if name.contains('@') { self.find_snapshot(mos, name) } else { self.find_head(mos, name) }
    }
}

impl Pool {
    /// Returns the stored form of the dataset in object `id`, without its name.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn dataset_phys(&self, id: ObjectId) -> Result<DslDatasetPhys, Error> {
        Mos::bonus(&self.mos.object(id)?, DslDatasetPhys::decode)
    }

    /// The snapshot that stands before dataset `id` in its chain, by its object.
    ///
    /// # Errors
    /// When one of the two cannot be read, or the chain does not go back in time.
    pub fn snapshot_before(&self, id: ObjectId) -> Result<Option<(ObjectId, DslDatasetPhys)>, Error> {
        Ok(self.mos.before(&self.mos.live(id)?)?.map(|before| (before.id, before.phys)))
    }
}

impl Mos {
    /// The object of snapshot `snap` of a head.
    pub(in crate::dsl) fn snapshot_id(&self, head: &DslDatasetPhys, snap: &str) -> Result<Option<ObjectId>, Error> {
        let Some(zap) = self.zap_if(head.snapnames_zapobj)? else { return Ok(None) };
        if head.flags & DslDatasetPhys::FLAG_CI_DATASET != 0 && zap.normflags() != 0 {
            return Ok(zap.lookup_norm(snap, MatchMode::Normalize)?.map(|found| found.value.id()));
        }
        Ok(zap.lookup_id(snap)?)
    }

    /// The name of a snapshot in the list of its head.
    pub(in crate::dsl) fn snapshot_name(&self, snap: &Live) -> Result<String, Error> {
        let head = self.dataset_phys(self.dir_phys(snap.phys.dir_obj)?.head_dataset_obj)?;
        self.name_of(head.snapnames_zapobj, snap.id)
    }

    /// The names of all snapshots of a head, by their objects.
    pub(in crate::dsl) fn snapshot_names(&self, head: &DslDatasetPhys) -> Result<BTreeMap<ObjectId, String>, Error> {
        let named = mos::named_entries(&self.zap(head.snapnames_zapobj)?)?;
        Ok(named.into_iter().map(|(name, id)| (id.id(), name)).collect())
    }

    /// The full name of directory `id`, in the pool `pool`.
    pub(in crate::dsl) fn dir_name(&self, pool: &str, id: ObjectId) -> Result<String, Error> {
        let mut parts = Vec::new();
        let (mut id, mut phys) = (id, self.dir_phys(id)?);
        while phys.parent_obj.is_some() {
            if parts.len() > NESTING_MAX + 1 {
                return Err(Error::corrupt(id, "directories are nested too deeply"));
            }
            let parent: DslDirPhys = self.dir_phys(phys.parent_obj)?;
            parts.push(self.name_of(parent.child_dir_zapobj, id)?);
            (id, phys) = (phys.parent_obj, parent);
        }
        parts.push(pool.to_string());
        parts.reverse();
        Ok(parts.join("/"))
    }

    /// The full name of a dataset, in the pool `pool`.
    pub(in crate::dsl) fn full_name(&self, pool: &str, dataset: &Live) -> Result<String, Error> {
        let dir = self.dir_name(pool, dataset.phys.dir_obj)?;
        if !dataset.phys.is_snapshot() {
            return Ok(dir);
        }
        Ok(format!("{dir}@{}", self.snapshot_name(dataset)?))
    }

    fn name_of(&self, zap: ObjectId, id: ObjectId) -> Result<String, Error> {
        let found = mos::named_entries(&self.zap(zap)?)?.into_iter().find(|(_, value)| value.id() == id);
        found.map(|(name, _)| name).ok_or_else(|| Error::corrupt(zap, format!("no name of object {id}")))
    }
}
