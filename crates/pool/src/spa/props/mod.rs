//! The properties of a pool (OpenZFS: `spa_prop_get`, `zpool_get_prop`).

pub(crate) mod write;

use std::sync::Arc;

use base::ObjectId;
use ondisk::label::key;

use crate::spa::datasets::DatasetNames;
use crate::spa::feature::State;
use crate::spa::prop::stored::StoredProps;
use crate::spa::prop::{self, PropDef, PropKind, PropValue, Source, Value};
use crate::{Error, Pool};

/// The facts that the pool's properties are computed from, read once for all of them.
struct Facts {
    stored: Arc<StoredProps>,
    space: crate::SpaceStats,
}

impl Pool {
    /// All properties in the order of `zpool get all`: native ones, features, features that are unknown here, user properties.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn props(self: &Arc<Self>) -> Result<Vec<(String, PropValue)>, Error> {
        let facts = self.facts()?;
        let mut all = Vec::new();
        for def in prop::POOL.iter().filter(|def| def.visible) {
            all.push((def.name.to_string(), self.native_prop(def, &facts)?));
        }
        for f in self.features() {
            let name = match f.def {
                Some(def) => format!("feature@{}", def.name),
                None => format!("unsupported@{}", f.guid),
            };
            let value = match (f.def, f.state) {
                (Some(_), state) => state.as_str(),
                (None, State::Active) => "readonly",
                (None, _) => "inactive",
            };
            all.push((
                name,
                PropValue { value: Value::String(value.to_string()), source: feature_source(f.state), received: None },
            ));
        }
        for (name, value) in facts.stored.entries().iter().filter(|(name, _)| prop::is_user_property(name)) {
            all.push((name.clone(), PropValue { value: value.clone(), source: Source::Local, received: None }));
        }
        Ok(all)
    }

    /// The property `name`; `None` if there is none such.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn prop(self: &Arc<Self>, name: &str) -> Result<Option<PropValue>, Error> {
        match prop::find_pool(name) {
            Some(def) => self.native_prop(def, &self.facts()?).map(Some),
            None => Ok(self.props()?.into_iter().find(|(n, _)| n == name).map(|(_, v)| v)),
        }
    }

    fn facts(&self) -> Result<Facts, Error> {
        let stored =
            StoredProps::known(&self.known, &self.mos, self.mos.id_of("pool_props")?.unwrap_or(ObjectId::NONE))?;
        Ok(Facts { stored, space: self.space()? })
    }

    fn native_prop(self: &Arc<Self>, def: &PropDef, facts: &Facts) -> Result<PropValue, Error> {
        let value = match self.computed_prop(def.name, facts)? {
            Some(value) => value,
            None => match facts.stored.get(def.name) {
                Some(value) => self.stored_prop(def, value)?,
                None => default_prop(def),
            },
        };
        Ok(value)
    }

    fn computed_prop(&self, name: &str, facts: &Facts) -> Result<Option<PropValue>, Error> {
        let space = &facts.space;
        let local =
            |text: &str| PropValue { value: Value::String(text.to_string()), source: Source::Local, received: None };
        let number = match name {
            "name" => return Ok(Some(PropValue::text(self.name()))),
            "health" => return Ok(Some(PropValue::text(self.tree().status().state.name()))),
            "altroot" => return Ok(self.options.altroot.as_deref().map(local)),
            "comment" => return Ok(self.config().get_str(key::COMMENT).map(local)),
            "compatibility" => return Ok(self.config().get_str(key::COMPATIBILITY).map(local)),
            // nothing is remembered anywhere
            "cachefile" => return Ok(Some(local("none"))),
            "version" => {
                let source = if self.version() == 5000 { Source::Default } else { Source::Local };
                return Ok(Some(PropValue { value: Value::Number(self.version()), source, received: None }));
            }
            "size" => space.size,
            "allocated" => space.allocated,
            "free" => space.free,
            "capacity" => space.capacity,
            "fragmentation" => space.fragmentation.unwrap_or(u64::MAX),
            "expandsize" => space.expandsize,
            "checkpoint" => space.checkpoint,
            "freeing" => space.freeing,
            "leaked" => space.leaked,
            "readonly" => 1,
            "guid" => self.guid.0,
            "load_guid" => self.load_guid,
            "dedupratio" => self.dedupratio()?,
            "dedup_table_size" => self.dedup_table_size()?,
            "bcloneused" => self.brt_stats()?.used,
            "bclonesaved" => self.brt_stats()?.saved,
            "bcloneratio" => self.brt_stats()?.ratio(),
            "last_scrubbed_txg" => self.last_scrubbed_txg()?.0,
            "maxblocksize" => {
                if self.feature_enabled("large_blocks") {
                    16 << 20
                } else {
                    128 << 10
                }
            }
            "maxdnodesize" => {
                if self.feature_enabled("large_dnode") {
                    16 << 10
                } else {
                    512
                }
            }
            _ => return Ok(None),
        };
        Ok(Some(PropValue::computed(number)))
    }

    fn stored_prop(self: &Arc<Self>, def: &PropDef, value: &Value) -> Result<PropValue, Error> {
        let source = |is_default: bool| if is_default { Source::Default } else { Source::Local };
        Ok(match value {
            // the dataset to boot from is stored by its object
            Value::Number(id) if def.name == "bootfs" => {
                let id = ObjectId(*id);
                let name = if id.is_none() { None } else { Some(self.dataset_name(id)?) };
                name.map_or_else(
                    || default_prop(def),
                    |name| PropValue { value: Value::String(name), source: Source::Local, received: None },
                )
            }
            Value::Number(n) => {
                PropValue { value: value.clone(), source: source(*n == def.default_number()), received: None }
            }
            // as OpenZFS has it: only numbers are told to be set
            Value::String(_) => PropValue { value: value.clone(), source: Source::Default, received: None },
        })
    }
}

fn feature_source(state: State) -> Source {
    if state == State::Disabled { Source::Default } else { Source::Local }
}

fn default_prop(def: &PropDef) -> PropValue {
    let value = match def.kind {
        PropKind::String { default } => Value::String(default.unwrap_or("-").to_string()),
        PropKind::Number { default } | PropKind::Index { default, .. } => Value::Number(default),
    };
    PropValue { value, source: Source::Default, received: None }
}
