//! Raw objects of a dataset: what a program stores that wants no files.
//!
//! A dataset holds objects by number: arrays of equal blocks, and tables (ZAPs). Beside its files, a file system can hold objects of a program's
//! own: a table that the master node names leads to them. Tools for files do not see them; snapshots, clones, send streams, checksums,
//! compression and encryption take them as all else.

use std::sync::Arc;

use dmu::{NewObject, Object, Objset, Tx, Zap};
use ondisk::ObjectType;
use pool::{Dataset, Spa};
use zpl::MASTER_NODE_OBJ;

use crate::Error;

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
}

impl Objects {
    /// The objects of a dataset, to be changed; the table is made if there is none.
    ///
    /// # Errors
    /// If there is no such dataset, or it is no file system.
    pub fn open(spa: &Arc<Spa>, dataset: &str) -> Result<Objects, Error> {
        let objset = spa.objset(&spa.view()?.dataset(dataset)?)?;
        let master = Zap::open(objset.object(MASTER_NODE_OBJ)?)?;
        let table = match master.lookup_u64(TABLE)? {
            Some(id) => Zap::open(objset.object(id)?)?,
            None => {
                let tx = spa.tx(TABLE_BYTES)?;
                Zap::create_link(&tx, &master, TABLE, ObjectType::ZAP_OTHER)?
            }
        };
        Ok(Objects { spa: Some(spa.clone()), table })
    }

    /// The objects of a dataset or snapshot as they are on disk.
    ///
    /// # Errors
    /// If it has none.
    pub fn read(dataset: &Dataset) -> Result<Objects, Error> {
        let objset = dataset.objset()?;
        let master = Zap::open(objset.object(MASTER_NODE_OBJ)?)?;
        let none = || pool::Error::NoSuchDataset { name: format!("{} ({TABLE})", dataset.name()) };
        let id = master.lookup_u64(TABLE)?.ok_or_else(none)?;
        Ok(Objects { spa: None, table: Zap::open(objset.object(id)?)? })
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

    /// Makes changes that reach the disk together, or not at all; `bytes` is about how much they write. Readers of the same object set see
    /// them at once. A change cannot be taken back: check first, change then.
    ///
    /// # Errors
    /// When there is no room, or the pool is suspended or open for reading; what `work` gives.
    pub fn change<R>(&self, bytes: u64, work: impl FnOnce(&Tx) -> Result<R, dmu::Error>) -> Result<R, Error> {
        let read_only = || pool::Error::ReadOnlyDataset { name: format!("dataset {}", self.objset().id()) };
        let tx = self.spa.as_ref().ok_or_else(read_only)?.tx(bytes)?;
        Ok(work(&tx)?)
    }

    /// Makes an object with blocks of `block_size` bytes and enters it in the table.
    ///
    /// # Errors
    /// If the name is taken, or the object cannot be made.
    pub fn create(&self, tx: &Tx, name: &str, block_size: u64) -> Result<Object, dmu::Error> {
        let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size, ..NewObject::default() };
        let object = self.objset().alloc_object(tx, &new)?;
        self.table.add_u64(tx, name, object.id())?;
        Ok(object)
    }

    /// The object of that name.
    ///
    /// # Errors
    /// When the table is unreadable.
    pub fn get(&self, name: &str) -> Result<Option<Object>, Error> {
        let id = self.table.lookup_u64(name)?;
        Ok(id.map(|id| self.objset().object(id)).transpose()?)
    }
}
