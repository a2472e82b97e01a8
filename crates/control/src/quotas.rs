//! Quotas of users, groups and projects: what files keep, and not the dataset.

use pool::SpaceKind;
use zpl::live::Zfs;

use crate::decode::Quota;
use crate::{Control, Error};

impl Control {
    /// Sets quotas in the file system `name`.
    pub(crate) fn set_quotas(&self, name: &str, quotas: &[Quota]) -> Result<(), Error> {
        if quotas.is_empty() {
            return Ok(());
        }
        if let Some(quota) = quotas.iter().find(|quota| !quota.domain.is_empty()) {
            return Err(Error::NotSupported(format!("{}@{}-{}", quota.family, quota.domain, quota.id)));
        }
        let zfs = Zfs::open(&self.spa, name)?;
        for quota in quotas {
            zfs.set_quota(kind_of(quota.family)?, quota.id, quota.value)?;
        }
        Ok(self.spa.sync()?)
    }

    /// Sets quotas for those that have none of their own.
    pub(crate) fn set_default_quotas(&self, name: &str, defaults: &[(&'static str, u64)]) -> Result<(), Error> {
        if defaults.is_empty() {
            return Ok(());
        }
        let zfs = Zfs::open(&self.spa, name)?;
        for (prop, value) in defaults {
            zfs.set_default_quota(kind_of(prop.strip_prefix("default").unwrap_or(prop))?, *value)?;
        }
        Ok(self.spa.sync()?)
    }
}

fn kind_of(family: &str) -> Result<SpaceKind, Error> {
    Ok(match family {
        "userquota" => SpaceKind::UserQuota,
        "groupquota" => SpaceKind::GroupQuota,
        "projectquota" => SpaceKind::ProjectQuota,
        "userobjquota" => SpaceKind::UserObjQuota,
        "groupobjquota" => SpaceKind::GroupObjQuota,
        "projectobjquota" => SpaceKind::ProjectObjQuota,
        other => return Err(Error::Invalid(format!("'{other}' is not a quota"))),
    })
}
