//! The size of volumes (OpenZFS: `zvol_set_volsize`, `zvol_check_volsize`).

use std::sync::Arc;

use base::ObjectId;
use dmu::{Object, Objset, Tx, Zap};

use crate::dsl::Refusal;
use crate::dsl::refused;
use crate::spa::Spa;
use crate::{Error, Value};

impl Spa {
    /// The live object set of volume `name`, if it can have this size.
    pub(in crate::dsl) fn volume(&self, name: &str, size: &Value) -> Result<Arc<Objset>, Error> {
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
}

/// A change of a volume's size, of which all is at hand that it needs.
pub(in crate::dsl) struct Resize {
    properties: Zap,
    data: Object,
    size: u64,
}

impl Resize {
    /// Gives the volume `size` bytes.
    pub(in crate::dsl) fn new(objset: &Arc<Objset>, size: u64) -> Result<Resize, Error> {
        let (properties, data) =
            (Zap::open(objset.object(ObjectId::ZVOL_PROPERTIES)?)?, objset.object(ObjectId::ZVOL_DATA)?);
        // the block that the end goes through is read now: nothing may fail later
        data.block(size / data.block_size().max(1))?;
        Ok(Resize { properties, data, size })
    }

    /// Does so in the txg of `tx`. What lies beyond is freed.
    pub(in crate::dsl) fn apply(&self, tx: &Tx) -> Result<(), Error> {
        self.properties.update_u64(tx, "size", self.size)?;
        Ok(self.data.free_range(tx, self.size, u64::MAX)?)
    }
}
