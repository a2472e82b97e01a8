//! The size of volumes (OpenZFS: `zvol_set_volsize`, `zvol_check_volsize`).

use std::sync::Arc;

use dmu::{Objset, Zap};

use crate::dsl::Refusal;
use crate::dsl::lookup::refused;
use crate::spa::Spa;
use crate::{Error, Value};

/// The object of a volume's data (OpenZFS: `ZVOL_OBJ`).
const DATA: u64 = 1;
/// The object of its properties (OpenZFS: `ZVOL_ZAP_OBJ`).
const PROPERTIES: u64 = 2;
/// What a change of the size dirties, in bytes: a block of properties, and pointers where data is cut off.
const RESIZE_BYTES: u64 = 1 << 20;

impl Spa {
    /// The live object set of volume `name`, if it can have this size.
    pub(crate) fn volume(&self, name: &str, size: &Value) -> Result<Arc<Objset>, Error> {
        let dataset = self.view()?.dataset(name)?;
        let invalid = |why| refused("volsize", Refusal::Invalid(why));
        let (_, block) = dataset.volume_size()?.ok_or_else(|| invalid("not a volume"))?;
        if dataset.prop("readonly")?.is_some_and(|prop| prop.value.number() == Some(1)) {
            return Err(Error::ReadOnlyDataset { name: name.to_string() });
        }
        match size.number() {
            None | Some(0) => Err(invalid("volume size cannot be zero")),
            Some(size) if size % block != 0 => Err(invalid("volume size must be a multiple of the volume block size")),
            Some(size) if size > i64::MAX as u64 => Err(refused("volsize", Refusal::Overflow)),
            Some(_) => self.objset(&dataset),
        }
    }

    /// Gives a volume another size. What lies beyond is freed.
    pub(crate) fn resize_volume(&self, objset: &Arc<Objset>, size: u64) -> Result<(), Error> {
        let tx = self.dataset_tx(objset, RESIZE_BYTES, true)?;
        Zap::open(objset.object(PROPERTIES)?)?.update_u64(&tx, "size", size)?;
        objset.object(DATA)?.free_range(&tx, size, u64::MAX)?;
        let txg = tx.txg();
        drop(tx);
        self.wait_synced(txg)
    }
}
