//! Pools as a whole: their properties and those of their vdevs, versions, errors forgotten, the end of their use.

use std::sync::Arc;

use base::{Errno, Guid};
use nvlist::NvList;
use pool::prop::{check_kind, check_pool_value, find_vdev, is_user_property};
use pool::{Error as PoolError, Spa, Value, VdevRefusal, feature};

use crate::create_pool::TRANSIENT;
use crate::decode::{Props, require_list};
use crate::props::tell;
use crate::{Control, Error, Failed};

/// The newest version before features, and that of pools with them.
const VERSION_BEFORE: u64 = 28;
const VERSION_FEATURES: u64 = 5000;
const FEATURE: &str = "feature@";

impl Control {
    pub(crate) fn pool_set_props(&self, input: &NvList) -> Result<NvList, Failed> {
        let props = Props::decode(Some(require_list(input, "props")?))?;
        let mut kept = Vec::new();
        for (name, value) in props.values {
            let checked = self.check_pool_prop(&name, value.clone()).map_err(|e| tell(e, &[(name.clone(), value)]))?;
            // dedupditto has no effect
            if !TRANSIENT.contains(&name.as_str()) && name != "dedupditto" {
                kept.push((name, checked));
            }
        }
        self.done(if kept.is_empty() { Ok(()) } else { self.spa.set_pool_props(kept) })
    }

    /// Returns the stored form of a property (OpenZFS: `spa_prop_validate`).
    fn check_pool_prop(&self, name: &str, value: Value) -> Result<Value, Error> {
        check_pool_value(name, &value).map_err(|_| invalid())?;
        match (name, &value) {
            ("version", Value::Number(version)) => {
                let now = self.spa.view()?.version();
                if *version < now || *version > VERSION_BEFORE { Err(invalid()) } else { Ok(value) }
            }
            // the dataset to boot from is stored by its object
            ("bootfs", Value::String(dataset)) if dataset.is_empty() => Ok(Value::Number(0)),
            ("bootfs", Value::String(dataset)) => {
                self.check_pool(dataset)?;
                Ok(Value::Number(self.spa.view()?.dataset(dataset)?.id().0))
            }
            _ => Ok(value),
        }
    }

    pub(crate) fn pool_upgrade(&self, input: &NvList) -> Result<NvList, Failed> {
        let version = input.get_u64("version").unwrap_or(0);
        let props = Props::decode(input.get_nvlist("props"))?.values;
        let now = self.spa.view()?.version();
        if version < now || !matches!(version, 1..=VERSION_BEFORE | VERSION_FEATURES) {
            return Err(invalid().into());
        }
        let known = |name: &str| feature::by_name(name.strip_prefix(FEATURE)?).map(|def| def.name);
        let names = props.iter().map(|(name, _)| known(name)).collect::<Option<Vec<_>>>().ok_or_else(invalid)?;
        if version < VERSION_FEATURES && !names.is_empty() {
            return Err(invalid().into());
        }
        self.done(self.spa.upgrade(version, &names).map(drop))
    }

    pub(crate) fn clear(&self, input: &NvList) -> Result<NvList, Failed> {
        let guid = input.get_u64("guid");
        if let Some(guid) = guid {
            self.spa.view()?.vdev_props(Guid(guid)).map(drop).map_err(|e| match e {
                PoolError::Vdevs(VdevRefusal::NoDevice) => Error::NoDevice,
                e => e.into(),
            })?;
        }
        self.done(self.spa.clear(guid.map(Guid)))
    }

    /// Ends the use of a pool, unless file systems are mounted. The command comes into the history before nothing more can (OpenZFS: `zfs_log_history`).
    pub(crate) fn leave(&self, input: &NvList, end: fn(&Arc<Spa>) -> Result<(), PoolError>) -> Result<NvList, Failed> {
        if self.spa.has_users() {
            return Err(Error::Opening(Errno::EBUSY, "pool is busy".into()).into());
        }
        if let Some(message) = input.get_str("message") {
            self.spa.log_history(self.caller.real_uid, message)?;
        }
        self.done(end(&self.spa))
    }

    /// Gives the pool another identity. Where file systems are mounted it could not be closed then.
    pub(crate) fn pool_reguid(&self, input: &NvList) -> Result<NvList, Failed> {
        if self.spa.has_users() {
            return Err(Error::Opening(Errno::EBUSY, "pool is busy".into()).into());
        }
        let guid = self.spa.change_guid(input.get_u64("guid").map(Guid))?;
        if let Some(message) = input.get_str("message") {
            // the pool has its new identity, whatever becomes of the line
            if let Err(error) = self.spa.log_history(self.caller.real_uid, message) {
                tracing::warn!(target: "zuse::control", %error, "the change of a pool's identity is not in its history");
            }
        }
        let mut out = NvList::new();
        out.insert("guid", guid.0);
        Ok(out)
    }

    pub(crate) fn vdev_set_props(&self, input: &NvList) -> Result<NvList, Failed> {
        let vdev = Guid(input.get_u64("vdevprops_set_vdev").unwrap_or(0));
        let props = Props::decode(Some(require_list(input, "vdevprops_set_props")?))?.values;
        for (name, value) in &props {
            let good = match find_vdev(name) {
                Some(def) if def.is_read_only() => Err(invalid()),
                Some(def) => check_kind(def, value).map_err(|_| invalid()),
                None if is_user_property(name) && value.text().is_some() => Ok(()),
                None => Err(invalid()),
            };
            good.map_err(|e| tell(e, &[(name.clone(), value.clone())]))?;
        }
        self.spa.set_vdev_props(vdev, props.clone()).map_err(|e| tell(e.into(), &props))?;
        Ok(NvList::new())
    }
}

fn invalid() -> Error {
    Error::Invalid("Invalid argument".to_owned())
}
