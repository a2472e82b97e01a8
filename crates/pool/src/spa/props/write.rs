//! Changing the properties of a pool (OpenZFS: `spa_sync_props`).

use std::sync::Arc;

use dmu::Tx;
use ondisk::ObjectType;
use ondisk::label::key;

use crate::refusal::{Refusal, refused};
use crate::spa::Spa;
use crate::spa::create::{CHECKSUM_SALT, VERSION, stored};
use crate::spa::mos::Mos;
use crate::spa::{feature, prop};
use crate::{Error, Value};

/// Checks that a pool can have all these properties.
pub(crate) fn check_pool_props(props: &[(String, Value)]) -> Result<(), Error> {
    for (name, value) in props {
        prop::check_pool_value(name, value).map_err(|bad| refused(name, Refusal::Invalid(bad.why())))?;
    }
    Ok(())
}

impl Spa {
    /// Sets a property. `feature@NAME` enables a feature whatever the value, and gives a pool of a version before features its lists of
    /// features; `bootfs` is the object of a dataset.
    ///
    /// # Errors
    /// [`Error::Refused`] for an unknown property or an invalid value; when the pool is suspended.
    pub fn set_prop(self: &Arc<Self>, name: &str, value: Value) -> Result<(), Error> {
        self.set_pool_props(vec![(name.to_owned(), value)])
    }

    /// As [`Spa::set_prop`], several in one txg. They may include `version`, the version of a pool before features.
    ///
    /// # Errors
    /// As [`Spa::set_prop`].
    pub fn set_pool_props(self: &Arc<Self>, props: Vec<(String, Value)>) -> Result<(), Error> {
        check_pool_props(&props)?;
        for (name, value) in &props {
            check_prop_room(name, value)?;
        }
        self.sync_task(move |cx| {
            for (name, value) in &props {
                if name == key::VERSION {
                    cx.spa.raise_version(cx.mos, cx.tx, value.number().unwrap_or(0))?;
                    continue;
                }
                if name.starts_with("feature@") {
                    cx.spa.raise_version(cx.mos, cx.tx, VERSION)?;
                }
                cx.spa.put_prop(cx.mos, cx.tx, name, value)?;
            }
            Ok(())
        })
    }

    /// Upgrades a pool of an older version to `version`, which must exist, and enables the named features, in one txg; returns the previous
    /// version.
    ///
    /// # Errors
    /// [`Error::Features`] for an unknown name; when the pool is suspended.
    pub fn upgrade(self: &Arc<Self>, version: u64, names: &[&str]) -> Result<u64, Error> {
        if let Some(name) = names.iter().find(|name| feature::by_name(name).is_none()) {
            return Err(Error::Features(vec![(*name).to_string()]));
        }
        let names: Vec<String> = names.iter().map(|name| format!("feature@{name}")).collect();
        self.sync_task(move |cx| {
            let old = cx.spa.raise_version(cx.mos, cx.tx, version)?;
            for name in &names {
                cx.spa.put_prop(cx.mos, cx.tx, name, &Value::String("enabled".to_owned()))?;
            }
            Ok(old)
        })
    }

    /// Raises the pool's version to `version` in this txg, unless it is that or a later one already; returns the previous version. Between
    /// the versions that can be written and those with features, versions are mere numbers (OpenZFS: `spa_sync_version`,
    /// `spa_sync_upgrades`).
    fn raise_version(&self, mos: &Mos, tx: &Tx, version: u64) -> Result<u64, Error> {
        let old = self.uberblock().version;
        if old >= version {
            return Ok(old);
        }
        if version >= VERSION {
            crate::spa::feature::write::create_lists(mos, tx)?;
            if mos.directory.lookup(CHECKSUM_SALT)?.is_none() {
                self.put_salt(&mos.root_zap()?, tx)?;
            }
        }
        self.edit_config(|nv| nv.insert(key::VERSION, version));
        self.uberblock.lock().version = version;
        self.log_internal(mos, tx, "set", &format!("version={version}"))?;
        Ok(old)
    }

    pub(crate) fn put_prop(&self, mos: &Mos, tx: &Tx, name: &str, value: &Value) -> Result<(), Error> {
        if let Some(name) = name.strip_prefix("feature@") {
            let def = feature::by_name(name).ok_or_else(|| Error::Features(vec![name.to_string()]))?;
            self.feature_enable(mos, tx, def)?;
            return self.log_internal(mos, tx, "set", &format!("feature@{name}=enabled"));
        }
        // steps that can fail come first
        if name == "multihost" {
            self.multihost.set(value.number() == Some(1), &self.txgs)?;
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
        if name == "failmode" {
            self.suspension.set_failmode(value.number().unwrap_or(0));
        }
        if name == "autotrim" {
            self.set_autotrim(value.number() == Some(1));
        }
        if name == "dedup_table_quota" {
            self.dedup.set_quota(value.number().unwrap_or(u64::MAX));
        }
        let props = match mos.id_of("pool_props")? {
            Some(id) => mos.zap(id)?,
            None => {
                let id = mos.new_zap(tx, ObjectType::POOL_PROPS)?;
                mos.root_zap()?.add_id(tx, "pool_props", id)?;
                mos.zap(id)?
            }
        };
        if prop::is_user_property(name) && shown.is_empty() {
            // an empty value removes a user property
            props.remove(tx, name)?;
            return Ok(());
        }
        Ok(props.update_value(tx, name, &stored(value))?)
    }
}

/// Checks that a property has room and that a feature exists: nothing may fail once something is changed.
pub(crate) fn check_prop_room(name: &str, value: &Value) -> Result<(), Error> {
    /// OpenZFS: `ZAP_MAXNAMELEN`, `ZAP_MAXVALUELEN`.
    const LONGEST: (usize, usize) = (256, 8192);
    if name.len() >= LONGEST.0 {
        return Err(Error::Refused { name: name.to_string(), why: Refusal::NameTooLong });
    }
    if value.text().is_some_and(|text| text.len() >= LONGEST.1) {
        return Err(Error::Refused { name: name.to_string(), why: Refusal::ValueTooLong });
    }
    match name.strip_prefix("feature@") {
        Some(feature) if feature::by_name(feature).is_none() => Err(Error::Features(vec![feature.to_string()])),
        _ => Ok(()),
    }
}
