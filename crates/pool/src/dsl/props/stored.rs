//! Properties as they are stored in ZAPs, and inheritance (OpenZFS: `dsl_prop.c`).
//!
//! A name stands bare for a value that was set here, with `$recvd` for one that came with a stream, with `$inherit` where a
//! received value is to be ignored, and with `$iuv` for a value in a form that older software cannot mistake.

use std::collections::{HashMap, HashSet};

use dmu::ZapValue;

use crate::dsl::dir::DirInner;
use crate::spa::mos::{self, Mos};
use crate::spa::prop::{self, PropDef, SNAP, Source, Value};
use crate::{Dataset, Error};

const INHERIT: &str = "$inherit";
const RECEIVED: &str = "$recvd";
const IUV: &str = "$iuv";

/// The contents of a property ZAP, in its order.
#[derive(Default)]
pub(crate) struct StoredProps {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl StoredProps {
    /// Those in object `id`; none for 0.
    pub(crate) fn load(mos: &Mos, id: u64) -> Result<StoredProps, Error> {
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

    fn with_suffix(&self, name: &str, suffix: &str) -> Option<&Value> {
        self.get(&format!("{name}{suffix}"))
    }

    pub(crate) fn received(&self, name: &str) -> Option<&Value> {
        self.with_suffix(name, RECEIVED)
    }

    /// The value here, and whether it was received; `None` where it is not set or explicitly inherited.
    fn effective(&self, def: Option<&PropDef>, name: &str) -> Option<(&Value, bool)> {
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

/// A value that is set somewhere, and where.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) value: Value,
    pub(crate) source: Source,
    /// The name of the dataset on which it is set, also for a received value.
    pub(crate) setpoint: String,
}

impl Dataset {
    /// The property ZAPs that this dataset draws on: a snapshot's own, then its directory and the ancestors. The flag says
    /// whether a value from there is inherited.
    fn sources(&self) -> impl Iterator<Item = (&DirInner, bool)> {
        let snapshot = self.is_snapshot();
        self.dir().inner.lineage().enumerate().map(move |(n, dir)| (dir.as_ref(), n > 0 || snapshot))
    }

    /// What is set for `name`, here or above (OpenZFS: `dsl_prop_get_ds`).
    pub(crate) fn setting(&self, name: &str) -> Result<Option<Setting>, Error> {
        let def = prop::DATASET.iter().find(|p| p.name == name);
        let inheritable = def.is_none_or(PropDef::is_inheritable);
        if self.phys().props_obj != 0
            && let Some((value, received)) = self.own_props()?.effective(None, name)
        {
            let source = if received { Source::Received } else { Source::Local };
            return Ok(Some(Setting { value: value.clone(), source, setpoint: self.name().to_string() }));
        }
        for (dir, inherited) in self.sources() {
            if inherited && !inheritable {
                break;
            }
            if let Some((value, received)) = dir.props(&self.pool().mos)?.effective(def, name) {
                let source = match (inherited, received) {
                    (true, _) => Source::Inherited(dir.name.clone()),
                    (false, true) => Source::Received,
                    (false, false) => Source::Local,
                };
                return Ok(Some(Setting { value: value.clone(), source, setpoint: dir.name.clone() }));
            }
        }
        Ok(None)
    }

    /// The value of `name` that came with a stream, whether or not it is in force.
    pub(crate) fn received_value(&self, name: &str) -> Result<Option<Value>, Error> {
        if self.phys().props_obj != 0 {
            return Ok(self.own_props()?.received(name).cloned());
        }
        if self.is_snapshot() {
            return Ok(None);
        }
        Ok(self.dir().inner.props(&self.pool().mos)?.received(name).cloned())
    }

    /// The names of all user properties in force, in the order in which OpenZFS lists them (OpenZFS: `dsl_prop_get_all_ds`).
    pub(crate) fn user_property_names(&self) -> Result<Vec<String>, Error> {
        let (mut seen, mut names) = (HashSet::new(), Vec::new());
        let mut add = |props: &StoredProps| {
            for (stored, _) in props.entries() {
                let (name, suffix) =
                    stored.split_once('$').map_or((stored.as_str(), ""), |(name, suffix)| (name, suffix));
                let overridden = || props.get(name).is_some() || props.with_suffix(name, INHERIT).is_some();
                let counts = suffix.is_empty() || (suffix == &RECEIVED[1..] && !overridden());
                if counts && prop::is_user_property(name) && seen.insert(name.to_string()) {
                    names.push(name.to_string());
                }
            }
        };
        if self.phys().props_obj != 0 {
            add(self.own_props()?);
        }
        for (dir, _) in self.sources() {
            add(dir.props(&self.pool().mos)?);
        }
        Ok(names)
    }

    /// Whether native property `def` applies to this dataset; of a snapshot some depend on what it is a snapshot of.
    pub(crate) fn applies(&self, def: &PropDef) -> Result<bool, Error> {
        let kind = self.kind()?;
        if !def.is_valid_for(kind.mask()) {
            return Ok(false);
        }
        let text = matches!(def.kind, prop::PropKind::String { .. });
        if kind.mask() != SNAP || text || def.valid == SNAP {
            return Ok(true);
        }
        Ok(def.is_valid_for(self.head_kind()?.mask()))
    }
}
