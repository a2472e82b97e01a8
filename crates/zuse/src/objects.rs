//! Raw objects of a dataset: storage for programs that need no files.
//!
//! A dataset holds objects by number: arrays of equal blocks, and tables (ZAPs). Beside its files, a file system can hold objects of a program's
//! own: a table that the master node names leads to them. Tools for files do not see them; snapshots, clones, send streams, checksums,
//! compression and encryption take them as all else.

use std::sync::Arc;

use base::ObjectId;
use dmu::{NewObject, Object, Objset, Tx, Zap};
use ondisk::ObjectType;
use pool::{Dataset, Spa};
use zpl::live::change_objects;

use crate::Error;
use crate::kept::Kept;

/// Under which the master node has the table.
const TABLE: &str = "zuse:objects";
/// Room for a table and its entry.
const TABLE_BYTES: u64 = 64 << 10;

/// The raw objects of a dataset, found through one table.
///
/// ```
/// # fn main() -> Result<(), zuse::Error> {
/// # let pool = zuse::Pool::in_memory("tank", 128 << 20)?;
/// let objects = pool.objects("tank")?;
/// // both changes are there after a crash, or neither is
/// objects.change(1 << 20, |tx| {
///     let log = objects.create(tx, "log", 128 << 10)?;
///     log.write(tx, 0, b"first entry")?;
///     objects.table().add_u64(tx, "length", 11)
/// })?;
/// let log = objects.get("log")?.map(|log| log.read_vec(6, 5)).transpose()?;
/// assert_eq!(log.as_deref(), Some(&b"entry"[..]));
/// # pool.export()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Objects {
    spa: Option<Arc<Spa>>,
    table: Zap,
    /// The pool, if it is one of the library's.
    _kept: Option<Arc<Kept>>,
}

impl Objects {
    /// The objects of a dataset, to be changed; the table is made if there is none.
    ///
    /// # Errors
    /// If there is no such dataset, or it is no file system.
    pub fn open(spa: &Arc<Spa>, dataset: &str) -> Result<Objects, Error> {
        let objset = spa.objset(&spa.view()?.dataset(dataset)?)?;
        let master = Zap::open(objset.object(ObjectId::MASTER_NODE)?)?;
        let table = match master.lookup_id(TABLE)? {
            Some(id) => Zap::open(objset.object(id)?)?,
            None => change_objects(spa, &objset, TABLE_BYTES, |tx| {
                Zap::create_link(tx, &master, TABLE, ObjectType::ZAP_OTHER)
            })?,
        };
        Ok(Objects { spa: Some(spa.clone()), table, _kept: None })
    }

    pub(crate) fn of_pool(kept: &Arc<Kept>, dataset: &str) -> Result<Objects, Error> {
        Ok(Objects { _kept: Some(kept.clone()), ..Objects::open(kept, dataset)? })
    }

    /// The objects of a dataset or snapshot as they are on disk.
    ///
    /// # Errors
    /// If it has none.
    pub fn read(dataset: &Dataset) -> Result<Objects, Error> {
        let objset = dataset.objset()?;
        let master = Zap::open(objset.object(ObjectId::MASTER_NODE)?)?;
        let none = || pool::Error::NoSuchDataset { name: format!("{} ({TABLE})", dataset.name()) };
        let id = master.lookup_id(TABLE)?.ok_or_else(none)?;
        Ok(Objects { spa: None, table: Zap::open(objset.object(id)?)?, _kept: None })
    }

    /// The table: names of the program's choice, with numbers of objects, or values of any kind.
    #[must_use]
    pub fn table(&self) -> &Zap {
        &self.table
    }

    /// The object set.
    #[must_use]
    pub fn objset(&self) -> &Arc<Objset> {
        self.table.object().objset()
    }

    /// Makes changes that reach the disk together, or not at all; `bytes` is about how much they write. The
    /// caller must not be within another change of the pool: what is a part of that uses its transaction. Readers of the same object set see them at once. A change cannot be taken back: check first,
    /// change then.
    ///
    /// # Errors
    /// When there is no room in the pool or within the quotas of the dataset, or the pool is suspended or open for reading; what `work` gives.
    pub fn change<R>(&self, bytes: u64, work: impl FnOnce(&Tx) -> Result<R, dmu::Error>) -> Result<R, Error> {
        let read_only = || pool::Error::ReadOnlyDataset { name: format!("dataset {}", self.objset().id()) };
        let spa = self.spa.as_ref().ok_or_else(read_only)?;
        Ok(change_objects(spa, self.objset(), bytes, work)?)
    }

    /// Makes an object with blocks of `block_size` bytes and enters it in the table.
    ///
    /// # Errors
    /// If the name is taken, or the object cannot be made.
    pub fn create(&self, tx: &Tx, name: &str, block_size: u64) -> Result<Object, dmu::Error> {
        let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size, ..NewObject::default() };
        let object = self.objset().alloc_object(tx, &new)?;
        self.table.add_id(tx, name, object.id())?;
        Ok(object)
    }

    /// The object of that name.
    ///
    /// # Errors
    /// When the table is unreadable.
    pub fn get(&self, name: &str) -> Result<Option<Object>, Error> {
        let id = self.table.lookup_id(name)?;
        Ok(id.map(|id| self.objset().object(id)).transpose()?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods)]
mod tests {
    use base::Errno;

    use crate::Pool;

    #[test]
    fn the_transaction_of_a_change_of_files_serves_objects() {
        let pool = Pool::in_memory("t", 128 << 20).unwrap();
        let (files, objects) = (pool.files("t").unwrap(), pool.objects("t").unwrap());
        let done = files.zfs().change(1 << 16, |tx| Ok(objects.table().add_u64(tx, "a", 1).map(|()| tx.txg())));
        assert!(done.unwrap().is_ok());
        pool.sync().unwrap();
        assert_eq!(objects.table().lookup_u64("a").unwrap(), Some(1));
        pool.export().unwrap();
    }

    #[test]
    fn changes_keep_within_the_quota_of_the_dataset() {
        let pool = Pool::in_memory("t", 128 << 20).unwrap();
        pool.create("t/small", &[("quota", pool::Value::Number(1 << 20))]).unwrap();
        let objects = pool.objects("t/small").unwrap();
        let full = (0..8u64).find_map(|n| {
            let done = objects.change(1 << 20, |tx| {
                let object = objects.create(tx, &n.to_string(), 128 << 10)?;
                // nothing that compresses
                let noise = (0..64 << 10).map(|m: u64| (m ^ n << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                object.write(tx, 0, &noise.flat_map(|word| (word ^ word >> 29).to_ne_bytes()).collect::<Vec<u8>>())
            });
            pool.sync().unwrap();
            done.err()
        });
        assert_eq!(full.map(|e| e.errno()), Some(Errno::EDQUOT));
        pool.export().unwrap();
    }
}
