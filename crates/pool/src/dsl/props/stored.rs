//! Inheritance of stored properties (OpenZFS: `dsl_prop.c`).

use std::collections::HashSet;

use crate::dsl::dir::DirInner;
use crate::spa::prop::stored::{INHERIT, RECEIVED, StoredProps};
use crate::spa::prop::{self, PropDef, SNAP, Source, Value};
use crate::{Dataset, Error};

/// A value that is set somewhere, and where.
#[derive(Clone, Debug)]
pub(in crate::dsl) struct Setting {
    pub(in crate::dsl) value: Value,
    pub(in crate::dsl) source: Source,
    /// The name of the dataset on which it is set, also for a received value.
    pub(in crate::dsl) setpoint: String,
}

impl Dataset {
    /// The property ZAPs that this dataset draws on: a snapshot's own, then its directory and the ancestors. The flag says
    /// whether a value from there is inherited.
    fn sources(&self) -> impl Iterator<Item = (&DirInner, bool)> {
        let snapshot = self.is_snapshot();
        self.dir().inner.lineage().enumerate().map(move |(n, dir)| (dir.as_ref(), n > 0 || snapshot))
    }

    /// Returns the value that is set for `name`, here or above (OpenZFS: `dsl_prop_get_ds`).
    pub(in crate::dsl) fn setting(&self, name: &str) -> Result<Option<Setting>, Error> {
        let def = prop::DATASET.iter().find(|p| p.name == name);
        let inheritable = def.is_none_or(PropDef::is_inheritable);
        if self.phys().props_obj.is_some()
            && let Some((value, received)) = self.own_props()?.effective(None, name)
        {
            let source = if received { Source::Received } else { Source::Local };
            return Ok(Some(Setting { value: value.clone(), source, setpoint: self.name().to_string() }));
        }
        for (dir, inherited) in self.sources() {
            if inherited && !inheritable {
                break;
            }
            if let Some((value, received)) = dir.props(self.pool())?.effective(def, name) {
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
    pub(in crate::dsl) fn received_value(&self, name: &str) -> Result<Option<Value>, Error> {
        if self.phys().props_obj.is_some() {
            return Ok(self.own_props()?.received(name).cloned());
        }
        if self.is_snapshot() {
            return Ok(None);
        }
        Ok(self.dir().inner.props(self.pool())?.received(name).cloned())
    }

    /// The names of all user properties in force, in the order in which OpenZFS lists them (OpenZFS: `dsl_prop_get_all_ds`).
    pub(in crate::dsl) fn user_property_names(&self) -> Result<Vec<String>, Error> {
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
        if self.phys().props_obj.is_some() {
            add(self.own_props()?);
        }
        for (dir, _) in self.sources() {
            add(dir.props(self.pool())?);
        }
        Ok(names)
    }

    /// Whether native property `def` applies to this dataset; of a snapshot some depend on what it is a snapshot of.
    pub(in crate::dsl) fn applies(&self, def: &PropDef) -> Result<bool, Error> {
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
