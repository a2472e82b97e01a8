//! Changing the properties of a pool (OpenZFS: `spa_sync_props`).

use std::sync::Arc;

use dmu::Tx;
use ondisk::ObjectType;
use ondisk::label::key;

use crate::mos::Mos;
use crate::spa::Spa;
use crate::spa::create::stored;
use crate::{Error, Value, feature, prop};

impl Spa {
    /// Sets a property; the caller has checked name and value. `feature@NAME` enables a feature whatever the value.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn set_prop(self: &Arc<Self>, name: &str, value: Value) -> Result<(), Error> {
        let name = name.to_string();
        self.sync_task(move |cx| cx.spa.put_prop(cx.mos, cx.tx, &name, &value))
    }

    /// Enables all features that `zpool upgrade` enables; gives those that were new.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn upgrade(self: &Arc<Self>) -> Result<Vec<&'static str>, Error> {
        self.sync_task(|cx| {
            let mut new = Vec::new();
            for def in feature::FEATURES.iter().filter(|def| !def.not_by_upgrade()) {
                if super::features::refcount(cx.mos, def)?.is_none() {
                    cx.spa.feature_enable(cx.mos, cx.tx, def)?;
                    new.push(def.name);
                }
            }
            Ok(new)
        })
    }

    pub(crate) fn put_prop(&self, mos: &Mos, tx: &Tx, name: &str, value: &Value) -> Result<(), Error> {
        if let Some(name) = name.strip_prefix("feature@") {
            let def = feature::by_name(name).ok_or_else(|| Error::Features(vec![name.to_string()]))?;
            self.feature_enable(mos, tx, def)?;
            return self.log_internal(mos, tx, "set", &format!("feature@{name}=enabled"));
        }
        let shown = value.text().map_or_else(|| value.number().unwrap_or(0).to_string(), str::to_owned);
        self.log_internal(mos, tx, "set", &format!("{name}={shown}"))?;
        if let (key::COMMENT | key::COMPATIBILITY, Value::String(text)) = (name, value) {
            let none = text.is_empty() || (name == key::COMPATIBILITY && text == "off");
            self.edit_config(|nv| {
                if none {
                    nv.remove_all(name);
                } else {
                    nv.insert(name, text.as_str());
                }
            });
            return Ok(());
        }
        if name == "multihost" {
            self.multihost.set(value.number() == Some(1), &self.txgs)?;
        }
        if name == "dedup_table_quota" {
            self.dedup.set_quota(value.number().unwrap_or(u64::MAX));
        }
        let props = match mos.number("pool_props")? {
            Some(id) => mos.zap(id)?,
            None => {
                let id = mos.new_zap(tx, ObjectType::POOL_PROPS)?;
                mos.root_zap()?.add_u64(tx, "pool_props", id)?;
                mos.zap(id)?
            }
        };
        if prop::is_user_property(name) && shown.is_empty() {
            // a user property without a value is none
            props.remove(tx, name)?;
            return Ok(());
        }
        Ok(props.update_value(tx, name, &stored(value))?)
    }
}
