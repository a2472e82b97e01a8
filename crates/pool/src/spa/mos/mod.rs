//! The meta object set: where everything of the pool that is no dataset's contents stands.

pub(crate) mod chain;
pub(crate) mod edit;
pub(crate) mod known;
pub(crate) mod miscount;

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Endian, ObjectId, tunable};
use dmu::{Object, Objset, Zap, ZapValue};
use nvlist::{Limits, NvList};
use ondisk::{BlkPtr, Dva};

use crate::Error;
use crate::spa::mos::miscount::Miscounts;

/// The MOS with its directory opened.
#[derive(Clone)]
pub(crate) struct Mos {
    pub(crate) objset: Arc<Objset>,
    pub(crate) directory: Zap,
    miscounts: Arc<Miscounts>,
}

impl std::fmt::Debug for Mos {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MOS")
    }
}

impl Mos {
    pub(crate) fn open(objset: Arc<Objset>) -> Result<Mos, Error> {
        let directory = Zap::open(objset.object(ObjectId::POOL_DIRECTORY)?)?;
        Ok(Mos { objset, directory, miscounts: Arc::default() })
    }

    pub(crate) fn object(&self, id: ObjectId) -> Result<Object, Error> {
        Ok(self.objset.object(id)?)
    }

    /// The ZAP in object `id`. An object that is more than a ZAP (a directory, a dataset) counts if its type says so.
    pub(crate) fn zap(&self, id: ObjectId) -> Result<Zap, Error> {
        Ok(Zap::open(self.object(id)?)?)
    }

    /// The ZAP in object `id`; `None` if it names no object.
    pub(crate) fn zap_if(&self, id: ObjectId) -> Result<Option<Zap>, Error> {
        if id.is_none() { Ok(None) } else { self.zap(id).map(Some) }
    }

    /// The number of the object that the MOS directory has under `key`.
    pub(crate) fn id_of(&self, key: &str) -> Result<Option<ObjectId>, Error> {
        Ok(self.directory.lookup_id(key)?)
    }

    /// A number of the MOS directory that is not an object's.
    pub(crate) fn number(&self, key: &str) -> Result<Option<u64>, Error> {
        Ok(self.directory.lookup_u64(key)?)
    }

    /// The ZAP that the MOS directory names.
    pub(crate) fn named_zap(&self, key: &str) -> Result<Option<Zap>, Error> {
        self.id_of(key)?.map(|id| self.zap(id)).transpose()
    }

    /// The packed list in object `id`, whose bonus tells its length.
    pub(crate) fn nvlist(&self, id: ObjectId, what: &'static str) -> Result<NvList, Error> {
        let object = self.object(id)?;
        let len = base::bytes::u64(object.bonus(), 0, object.endian())
            .ok_or_else(|| Error::corrupt(id, format!("{what}: no length in the bonus buffer")))?;
        let stored = object.most_bytes();
        if len > stored.min(tunable::ZFS_MAX_NVLIST_BYTES.get()) {
            return Err(Error::corrupt(id, format!("{what}: length {len} is more than there is")));
        }
        let bytes = object.read_vec(0, len as usize)?;
        let limits = Limits::default();
        let list = NvList::unpack_with(&bytes, &limits);
        list.map(|(list, _)| list).map_err(|source| Error::Nvlist { what, source })
    }

    /// The `u64` words that an array object holds, all of them, at most `limit`.
    pub(crate) fn words(&self, id: ObjectId, limit: u64) -> Result<Vec<u64>, Error> {
        let object = self.object(id)?;
        let stored = object.most_bytes() / 8;
        Ok(object.read_u64s(0, stored.min(limit) as usize)?)
    }

    /// The numbers of objects that an array object holds, at most `limit`.
    pub(crate) fn ids(&self, id: ObjectId, limit: u64) -> Result<Vec<ObjectId>, Error> {
        Ok(self.words(id, limit)?.into_iter().map(ObjectId).collect())
    }

    /// The bytes that a block counts for in the accounts of datasets: parity evened out, unless the pool is older than that (version 3;
    /// OpenZFS: `bp_get_dsize`).
    pub(crate) fn dsize(&self, bp: &BlkPtr, deflate: bool) -> u64 {
        let tree = self.objset.zio().tree();
        let of = |dva: Dva| match tree.top(dva.vdev()) {
            Some(top) if deflate => top.deflated(dva.asize()),
            _ => dva.asize(),
        };
        bp.dvas().map(of).fold(0, u64::saturating_add)
    }

    /// Decodes the bonus buffer of `object` with `decode`.
    pub(crate) fn bonus<T>(
        object: &Object,
        decode: impl FnOnce(&[u8], Endian) -> Result<T, ondisk::Error>,
    ) -> Result<T, Error> {
        decode(object.bonus(), object.endian()).map_err(|source| Error::Format { object: object.id(), source })
    }
}

/// The name of a ZAP entry as text.
pub(crate) fn text(zap: &Zap, name: &[u8]) -> Result<String, Error> {
    String::from_utf8(name.to_vec())
        .map_err(|_| Error::corrupt(zap.object().id(), format!("name {name:?} is not text")))
}

/// The directories in a list of them. One that has two names there would be gone through twice, one below it four times, and so on.
pub(crate) fn child_dirs(zap: &Zap) -> Result<Vec<(String, ObjectId)>, Error> {
    let dirs: Vec<(String, ObjectId)> = named_entries(zap)?.into_iter().map(|(name, id)| (name, id.id())).collect();
    named_twice(&dirs).map_or(Ok(dirs), |id| Err(two_names(id)))
}

/// Returns a directory that a list of them names twice.
pub(crate) fn named_twice(dirs: &[(String, ObjectId)]) -> Option<ObjectId> {
    let mut seen = BTreeSet::new();
    dirs.iter().find(|(_, id)| !seen.insert(*id)).map(|(_, id)| *id)
}

/// The error for a directory that [has two names](named_twice).
pub(crate) fn two_names(id: ObjectId) -> Error {
    Error::corrupt(id, "a directory that has two names")
}

/// All entries of a ZAP whose keys are names.
pub(crate) fn named_entries(zap: &Zap) -> Result<Vec<(String, ZapValue)>, Error> {
    zap.entries()?
        .map(|entry| {
            let entry = entry?;
            Ok((text(zap, &entry.name)?, entry.value))
        })
        .collect()
}
