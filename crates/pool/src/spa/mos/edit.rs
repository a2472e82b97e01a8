//! Small changes of the MOS: fields of directories and datasets, entries of the MOS directory.

use base::{Endian, ObjectId};
use dmu::{NewObject, Object, Tx, Zap};
use nvlist::NvList;
use ondisk::ObjectType;
use ondisk::dsl::{DslDatasetPhys, DslDirPhys};

use crate::Error;
use crate::spa::mos::Mos;

/// Block size of packed configurations (OpenZFS: `SPA_CONFIG_BLOCKSIZE`).
const CONFIG_BLOCKSIZE: u64 = 1 << 14;

/// log2 of the size of indirect blocks of small objects of which there can be many: room for 128 pointers. (OpenZFS uses 17 here as
/// everywhere: 128 KiB of zeros in memory for two pointers.)
pub(crate) const SMALL_INDIRECT_SHIFT: u8 = 14;

/// The byte order that is written: little-endian.
pub(crate) const OURS: Endian = Endian::Little;

/// Removes an entry that must be there (as OpenZFS asserts): one that stayed would name an object that is gone.
///
/// # Errors
/// If it is not there.
pub(crate) fn remove_present(tx: &Tx, zap: &Zap, name: impl AsRef<[u8]>) -> Result<(), Error> {
    let name = name.as_ref();
    match zap.remove(tx, name)? {
        true => Ok(()),
        false => Err(Error::corrupt(zap.object().id(), format!("no entry '{}' to be removed", name.escape_ascii()))),
    }
}

/// As [`remove_present`], of an entry whose name is a number.
pub(crate) fn remove_int_present(tx: &Tx, zap: &Zap, key: u64) -> Result<(), Error> {
    match zap.remove_int(tx, key)? {
        true => Ok(()),
        false => Err(Error::corrupt(zap.object().id(), format!("no entry {key:x} to be removed"))),
    }
}

impl Mos {
    /// Changes the directory in object `id`.
    pub(crate) fn edit_dir<R>(
        &self,
        tx: &Tx,
        id: ObjectId,
        edit: impl FnOnce(&mut DslDirPhys) -> R,
    ) -> Result<R, Error> {
        let object = self.object(id)?;
        let mut phys = Self::bonus(&object, DslDirPhys::decode)?;
        let result = edit(&mut phys);
        object.set_bonus(tx, &phys.encode(OURS))?;
        Ok(result)
    }

    /// Returns the directory in object `id`.
    pub(crate) fn dir_phys(&self, id: ObjectId) -> Result<DslDirPhys, Error> {
        Self::bonus(&self.object(id)?, DslDirPhys::decode)
    }

    /// Changes the dataset in object `id`.
    pub(crate) fn edit_dataset<R>(
        &self,
        tx: &Tx,
        id: ObjectId,
        edit: impl FnOnce(&mut DslDatasetPhys) -> R,
    ) -> Result<R, Error> {
        let object = self.object(id)?;
        let mut phys = Self::bonus(&object, DslDatasetPhys::decode)?;
        let result = edit(&mut phys);
        object.set_bonus(tx, &phys.encode(OURS))?;
        Ok(result)
    }

    /// Returns the dataset in object `id`.
    pub(crate) fn dataset_phys(&self, id: ObjectId) -> Result<DslDatasetPhys, Error> {
        Self::bonus(&self.object(id)?, DslDatasetPhys::decode)
    }

    /// Returns the ZAP of the MOS directory, as it is now.
    pub(crate) fn root_zap(&self) -> Result<Zap, Error> {
        self.zap(ObjectId::POOL_DIRECTORY)
    }

    /// Makes an object; `block_size` 0 means the smallest.
    pub(crate) fn new_object(
        &self,
        tx: &Tx,
        object_type: ObjectType,
        block_size: u64,
        bonus: Option<(ObjectType, &[u8])>,
    ) -> Result<Object, Error> {
        let (bonus_type, bytes) = bonus.unwrap_or((ObjectType::NONE, &[]));
        self.new_object_as(tx, NewObject { object_type, block_size, bonus_type, ..NewObject::default() }, bytes)
    }

    /// Makes an object as `what` says, with these bytes in its bonus buffer.
    pub(crate) fn new_object_as(&self, tx: &Tx, what: NewObject, bonus: &[u8]) -> Result<Object, Error> {
        let object = self.objset.alloc_object(tx, &NewObject { bonus_len: bonus.len(), ..what })?;
        if !bonus.is_empty() {
            object.set_bonus(tx, bonus)?;
        }
        Ok(object)
    }

    /// Makes an empty ZAP.
    pub(crate) fn new_zap(&self, tx: &Tx, object_type: ObjectType) -> Result<ObjectId, Error> {
        Ok(Zap::create(tx, &self.objset, object_type)?.object().id())
    }

    /// Writes a list into object `id`, whose bonus buffer records the length (OpenZFS: `spa_sync_nvlist`).
    pub(crate) fn put_nvlist(&self, tx: &Tx, id: ObjectId, list: &NvList) -> Result<(), Error> {
        let what = "packed list";
        let mut packed =
            list.pack(nvlist::Encoding::Xdr, Endian::Little).map_err(|source| Error::Nvlist { what, source })?;
        let len = packed.len() as u64;
        // whole blocks are written, so that their compressed size does not change from pass to pass
        packed.resize(packed.len().next_multiple_of(CONFIG_BLOCKSIZE as usize), 0);
        let object = self.object(id)?;
        object.write(tx, 0, &packed)?;
        object.set_bonus(tx, &len.to_le_bytes())?;
        Ok(())
    }

    /// Makes an object for a list.
    pub(crate) fn new_nvlist(&self, tx: &Tx) -> Result<ObjectId, Error> {
        let zero = 0u64.to_le_bytes();
        let bonus = Some((ObjectType::PACKED_NVLIST_SIZE, zero.as_slice()));
        Ok(self.new_object(tx, ObjectType::PACKED_NVLIST, CONFIG_BLOCKSIZE, bonus)?.id())
    }
}
