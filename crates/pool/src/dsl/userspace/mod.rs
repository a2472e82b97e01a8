//! Space and objects by user, group and project; and what a file system's master node says (OpenZFS: `zfs_quota.c`,
//! `zfs_fuid.c`, `zfs_get_zplprop`).

mod upgrade;

use std::collections::HashMap;
use std::sync::Arc;

use base::{ObjectId, tunable};
use dmu::{Objset, Special, Zap};
use nvlist::NvList;
use ondisk::{ObjsetPhys, ObjsetType};

use crate::{Dataset, Error};

/// The prefix of counts of objects among amounts of space (OpenZFS: `DMU_OBJACCT_PREFIX`).
const OBJECTS_PREFIX: &str = "obj-";

/// The thing that is counted or limited (OpenZFS: `zfs_userquota_prop_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum SpaceKind {
    /// Bytes by user.
    UserUsed,
    /// Limit of bytes by user.
    UserQuota,
    /// Bytes by group.
    GroupUsed,
    /// Limit of bytes by group.
    GroupQuota,
    /// Objects by user.
    UserObjUsed,
    /// Limit of objects by user.
    UserObjQuota,
    /// Objects by group.
    GroupObjUsed,
    /// Limit of objects by group.
    GroupObjQuota,
    /// Bytes by project.
    ProjectUsed,
    /// Limit of bytes by project.
    ProjectQuota,
    /// Objects by project.
    ProjectObjUsed,
    /// Limit of objects by project.
    ProjectObjQuota,
}

use SpaceKind as K;

impl SpaceKind {
    /// All, in the order of OpenZFS's numbers.
    pub const ALL: [SpaceKind; 12] = [
        K::UserUsed,
        K::UserQuota,
        K::GroupUsed,
        K::GroupQuota,
        K::UserObjUsed,
        K::UserObjQuota,
        K::GroupObjUsed,
        K::GroupObjQuota,
        K::ProjectUsed,
        K::ProjectQuota,
        K::ProjectObjUsed,
        K::ProjectObjQuota,
    ];

    /// The front of the property's name, before the `@`.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            K::UserUsed => "userused",
            K::UserQuota => "userquota",
            K::GroupUsed => "groupused",
            K::GroupQuota => "groupquota",
            K::UserObjUsed => "userobjused",
            K::UserObjQuota => "userobjquota",
            K::GroupObjUsed => "groupobjused",
            K::GroupObjQuota => "groupobjquota",
            K::ProjectUsed => "projectused",
            K::ProjectQuota => "projectquota",
            K::ProjectObjUsed => "projectobjused",
            K::ProjectObjQuota => "projectobjquota",
        }
    }

    /// The kind and what is behind the `@` of a property name.
    #[must_use]
    pub fn parse(property: &str) -> Option<(SpaceKind, &str)> {
        let (prefix, who) = property.split_once('@')?;
        Self::ALL.into_iter().find(|k| k.prefix() == prefix).map(|k| (k, who))
    }

    /// Whether objects are counted, not bytes.
    #[must_use]
    pub const fn is_objects(self) -> bool {
        matches!(
            self,
            K::UserObjUsed
                | K::UserObjQuota
                | K::GroupObjUsed
                | K::GroupObjQuota
                | K::ProjectObjUsed
                | K::ProjectObjQuota
        )
    }

    /// Whether it is a limit.
    #[must_use]
    pub const fn is_quota(self) -> bool {
        matches!(
            self,
            K::UserQuota | K::GroupQuota | K::UserObjQuota | K::GroupObjQuota | K::ProjectQuota | K::ProjectObjQuota
        )
    }

    /// Whether it is about projects, not users or groups.
    #[must_use]
    pub const fn is_project(self) -> bool {
        matches!(self, K::ProjectUsed | K::ProjectQuota | K::ProjectObjUsed | K::ProjectObjQuota)
    }

    const fn special(self) -> Option<Special> {
        match self {
            K::UserUsed | K::UserObjUsed => Some(Special::UserUsed),
            K::GroupUsed | K::GroupObjUsed => Some(Special::GroupUsed),
            K::ProjectUsed | K::ProjectObjUsed => Some(Special::ProjectUsed),
            _ => None,
        }
    }
}

/// A user, group or project.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct UserId {
    /// The SID domain of a Windows user or group; `None` for those of POSIX.
    pub domain: Option<String>,
    /// The number (in its domain).
    pub rid: u64,
}

/// The properties in the master node of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZplProps {
    /// Version of the file system's format, 1 to 5.
    pub version: u64,
    /// How names are normalised: OpenZFS's U8_TEXTPREP flags.
    pub normalization: u64,
    /// Whether names must be UTF-8.
    pub utf8only: u64,
    /// 0 case counts, 1 it does not, 2 it does for some.
    pub casesensitivity: u64,
    /// Limit of bytes for users without one of their own, 0 none.
    pub defaultuserquota: u64,
    /// The same for groups.
    pub defaultgroupquota: u64,
    /// The same for projects.
    pub defaultprojectquota: u64,
    /// Limit of objects for users without one of their own, 0 none.
    pub defaultuserobjquota: u64,
    /// The same for groups.
    pub defaultgroupobjquota: u64,
    /// The same for projects.
    pub defaultprojectobjquota: u64,
}

impl ZplProps {
    /// The value of the property called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        Some(match name {
            "version" => self.version,
            "normalization" => self.normalization,
            "utf8only" => self.utf8only,
            "casesensitivity" => self.casesensitivity,
            "defaultuserquota" => self.defaultuserquota,
            "defaultgroupquota" => self.defaultgroupquota,
            "defaultprojectquota" => self.defaultprojectquota,
            "defaultuserobjquota" => self.defaultuserobjquota,
            "defaultgroupobjquota" => self.defaultgroupobjquota,
            "defaultprojectobjquota" => self.defaultprojectobjquota,
            _ => return None,
        })
    }
}

fn master_node(objset: &Arc<Objset>) -> Result<Zap, Error> {
    Ok(Zap::open(objset.object(ObjectId::MASTER_NODE)?)?)
}

/// The domains of Windows identities, by their index in numbers on disk.
fn domains(objset: &Arc<Objset>, master: &Zap) -> Result<HashMap<u64, String>, Error> {
    let Some(id) = master.lookup_id("FUID")?.filter(|id| id.is_some()) else { return Ok(HashMap::new()) };
    let object = objset.object(id)?;
    let size = base::bytes::u64(object.bonus(), 0, object.endian()).unwrap_or(0);
    let stored = object.most_bytes();
    if size == 0 {
        return Ok(HashMap::new());
    }
    if size > stored.min(tunable::ZFS_MAX_NVLIST_BYTES.get()) {
        return Err(Error::corrupt(id, format!("table of domains claims {size} bytes")));
    }
    let packed = object.read_vec(0, size as usize)?;
    let list = NvList::unpack(&packed).map_err(|source| Error::Nvlist { what: "table of domains", source })?;
    let entries = list.get_nvlist_array("fuid_nvlist").unwrap_or(&[]);
    let entry = |e: &NvList| Some((e.get_u64("fuid_idx")?, e.get_str("fuid_domain")?.to_string()));
    Ok(entries.iter().filter_map(entry).collect())
}

impl Dataset {
    /// Returns the properties in the master node; `None` for what is no file system, or is half received.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn zpl_props(&self) -> Result<Option<ZplProps>, Error> {
        let objset = self.objset()?;
        if objset.phys().os_type != ObjsetType::Zfs || self.is_inconsistent() {
            return Ok(None);
        }
        let master = master_node(&objset)?;
        let number = |key: &str| -> Result<Option<u64>, Error> { Ok(master.lookup_u64(key)?) };
        let or_none = |key: &str| number(key).map(|n| n.unwrap_or(0));
        Ok(Some(ZplProps {
            version: number("VERSION")?.unwrap_or(5),
            normalization: or_none("normalization")?,
            utf8only: or_none("utf8only")?,
            casesensitivity: or_none("casesensitivity")?,
            defaultuserquota: or_none("defaultuserquota")?,
            defaultgroupquota: or_none("defaultgroupquota")?,
            defaultprojectquota: or_none("defaultprojectquota")?,
            defaultuserobjquota: or_none("defaultuserobjquota")?,
            defaultgroupobjquota: or_none("defaultgroupobjquota")?,
            defaultprojectobjquota: or_none("defaultprojectobjquota")?,
        }))
    }

    /// Size and block size of a volume (or of a snapshot of one).
    ///
    /// # Errors
    /// When its objects cannot be read.
    pub fn volume_size(&self) -> Result<Option<(u64, u64)>, Error> {
        let objset = self.objset()?;
        if objset.phys().os_type != ObjsetType::Zvol || self.is_inconsistent() {
            return Ok(None);
        }
        let size = Zap::open(objset.object(ObjectId::ZVOL_PROPERTIES)?)?.lookup_u64("size")?;
        let block_size = objset.object(ObjectId(1))?.block_size();
        Ok(Some((size.ok_or_else(|| Error::corrupt(self.id(), "volume without a size"))?, block_size)))
    }

    /// Whether accounting of `kind` is kept and complete.
    ///
    /// # Errors
    /// When the dataset's root block cannot be read.
    pub fn has_accounting(&self, kind: SpaceKind) -> Result<bool, Error> {
        let objset = self.objset()?;
        let phys = objset.phys();
        if phys.os_type != ObjsetType::Zfs {
            return Ok(false);
        }
        let flag = |flag| phys.flags & flag != 0;
        Ok(phys.userused.is_some()
            && flag(ObjsetPhys::FLAG_USERACCOUNTING)
            && (!kind.is_objects() || flag(ObjsetPhys::FLAG_USEROBJACCOUNTING))
            && (!kind.is_project() || (phys.projectused.is_some() && flag(ObjsetPhys::FLAG_PROJECTACCOUNTING))))
    }

    fn accounting_zap(&self, kind: SpaceKind) -> Result<Option<(Zap, Zap)>, Error> {
        if !self.has_accounting(kind)? {
            return Ok(None);
        }
        let objset = self.objset()?;
        let master = master_node(&objset)?;
        let object = match kind.special() {
            Some(special) => objset.special(special),
            None => match master.lookup_id(format!("{}@", kind.prefix()))? {
                Some(id) if id.is_some() => Some(objset.object(id)?),
                _ => None,
            },
        };
        match object {
            // an accounting object that was never written has no blocks
            Some(object) if object.phys().blkptr.iter().any(|bp| !bp.is_hole()) => {
                Ok(Some((master, Zap::open(object)?)))
            }
            _ => Ok(None),
        }
    }

    /// Space, objects or limits of all users, groups or projects that have any, in the order on disk.
    ///
    /// # Errors
    /// When the accounting cannot be read; it is encrypted in an encrypted dataset.
    pub fn userspace(&self, kind: SpaceKind) -> Result<Vec<(UserId, u64)>, Error> {
        let Some((master, zap)) = self.accounting_zap(kind)? else { return Ok(Vec::new()) };
        let domains = domains(&self.objset()?, &master)?;
        let objects = kind.is_objects() && !kind.is_quota();
        let mut all = Vec::new();
        for entry in zap.entries()? {
            let entry = entry?;
            let name = entry.name_lossy();
            let stripped = name.strip_prefix(OBJECTS_PREFIX);
            if stripped.is_some() != objects {
                continue;
            }
            let hex = stripped.unwrap_or(&name);
            let fuid = u64::from_str_radix(hex, 16)
                .map_err(|_| Error::corrupt(zap.object().id(), format!("accounting entry '{name}'")))?;
            let domain = if fuid >> 32 == 0 { None } else { domains.get(&(fuid >> 32)).cloned() };
            all.push((UserId { domain, rid: fuid & 0xffff_ffff }, entry.value.first()));
        }
        Ok(all)
    }

    /// Space, objects or limit of one POSIX user or group, or of a project.
    ///
    /// # Errors
    /// When the accounting cannot be read.
    pub fn userspace_one(&self, kind: SpaceKind, id: u64) -> Result<Option<u64>, Error> {
        if !self.has_accounting(kind)? {
            return Ok(None);
        }
        let Some((_, zap)) = self.accounting_zap(kind)? else { return Ok(Some(0)) };
        let objects = kind.is_objects() && !kind.is_quota();
        let key = if objects { format!("{OBJECTS_PREFIX}{id:x}") } else { format!("{id:x}") };
        Ok(Some(zap.lookup_u64(key)?.unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn property_names_are_parsed() {
        assert_eq!(SpaceKind::parse("userobjquota@1000"), Some((K::UserObjQuota, "1000")));
        assert_eq!(SpaceKind::parse("written@snap"), None);
        assert_eq!(SpaceKind::parse("userused"), None);
        assert!(SpaceKind::ALL.iter().all(|k| k.is_objects() == k.prefix().contains("obj")));
        assert!(SpaceKind::ALL.iter().all(|k| k.is_quota() == k.prefix().ends_with("quota")));
        assert!(SpaceKind::ALL.iter().all(|k| k.is_project() == k.prefix().starts_with("project")));
    }
}
