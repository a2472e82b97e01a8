//! The contents of a ZAP of properties (OpenZFS: `dsl_prop.c`).
//!
//! A name stands bare for a value that was set here, with `$recvd` for one that came with a stream, with `$inherit` where a
//! received value is to be ignored, and with `$iuv` for a value in a form that older software cannot mistake.

use std::collections::HashMap;
use std::sync::Arc;

use base::ObjectId;
use dmu::ZapValue;

use crate::Error;
use crate::spa::mos::known::{Known, NAME_BYTES, OfObject};
use crate::spa::mos::{self, Mos};
use crate::spa::prop::{PropDef, Value};

pub(crate) const INHERIT: &str = "$inherit";
pub(crate) const RECEIVED: &str = "$recvd";
const IUV: &str = "$iuv";

/// The contents of a property ZAP, in its order.
#[derive(Default)]
pub(crate) struct StoredProps {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl OfObject for StoredProps {
    fn weight(&self) -> usize {
        let text = |value: &Value| if let Value::String(text) = value { text.len() } else { 0 };
        self.entries.iter().map(|(name, value)| 3 * NAME_BYTES + 2 * name.len() + text(value)).sum::<usize>()
            + NAME_BYTES
    }
}

impl StoredProps {
    /// As [`StoredProps::load`], for a view that knows what of the MOS did not change.
    pub(crate) fn known(known: &Known, mos: &Mos, id: ObjectId) -> Result<Arc<StoredProps>, Error> {
        known.of(id, || StoredProps::load(mos, id))
    }

    /// The properties in object `id`; none for 0.
    pub(crate) fn load(mos: &Mos, id: ObjectId) -> Result<StoredProps, Error> {
        let Some(zap) = mos.zap_if(id)? else { return Ok(StoredProps::default()) };
        let entries: Vec<(String, Value)> =
            mos::named_entries(&zap)?.into_iter().map(|(name, v)| (name, value_of(&v))).collect();
        let index = entries.iter().enumerate().map(|(n, (name, _))| (name.clone(), n)).collect();
        Ok(StoredProps { entries, index })
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.index.get(name).and_then(|n| self.entries.get(*n)).map(|(_, v)| v)
    }

    pub(crate) fn entries(&self) -> &[(String, Value)] {
        &self.entries
    }

    pub(crate) fn with_suffix(&self, name: &str, suffix: &str) -> Option<&Value> {
        self.get(&format!("{name}{suffix}"))
    }

    pub(crate) fn received(&self, name: &str) -> Option<&Value> {
        self.with_suffix(name, RECEIVED)
    }

    /// The value here, and whether it was received; `None` where it is not set or explicitly inherited.
    pub(crate) fn effective(&self, def: Option<&PropDef>, name: &str) -> Option<(&Value, bool)> {
        let known = |v: &Value| def.is_some_and(|d| v.number().and_then(|n| d.index_name(n)).is_some());
        if let Some(v) = self.with_suffix(name, IUV).filter(|v| known(v)) {
            return Some((v, false));
        }
        if let Some(v) = self.get(name) {
            return Some((v, false));
        }
        if self.with_suffix(name, INHERIT).is_some() {
            return None;
        }
        self.received(name).map(|v| (v, true))
    }
}

pub(crate) fn value_of(v: &ZapValue) -> Value {
    match v.as_bytes() {
        Some(bytes) => Value::String(String::from_utf8_lossy(base::bytes::until_nul(bytes)).into_owned()),
        None => Value::Number(v.first()),
    }
}
