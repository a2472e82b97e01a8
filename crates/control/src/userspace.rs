//! What users, groups and projects have of a file system (OpenZFS: `zfs_ioc_userspace_many`, `zfs_useracct_t`).

use nvlist::{NvList, Value};
use pool::{Kind, SpaceKind};

use crate::{Error, Failed, ReadOnlyControl};

impl ReadOnlyControl {
    pub(crate) fn userspace_many(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let number = input.get_u64("type").and_then(|number| usize::try_from(number).ok());
        let kind = number.and_then(|number| SpaceKind::ALL.get(number)).copied();
        let kind = kind.ok_or_else(|| Error::Invalid("no such kind of accounting".to_owned()))?;
        let dataset = self.view.dataset(name)?;
        if dataset.head_kind()? != Kind::Filesystem {
            return Err(Error::Invalid(format!("'{name}' is not of a file system")).into());
        }
        let (mut domains, mut rids, mut space) = (Vec::new(), Vec::new(), Vec::new());
        for (id, amount) in dataset.userspace(kind)? {
            domains.push(id.domain.unwrap_or_default());
            rids.push(id.rid);
            space.push(amount);
        }
        let mut out = NvList::new();
        if let (Some(whose), false) = (kind.prefix().strip_suffix("used"), rids.is_empty()) {
            let default = dataset.prop(&format!("default{whose}quota"))?;
            out.insert("default_quota", default.and_then(|prop| prop.value.number()).unwrap_or(0));
        }
        out.insert("domains", domains);
        out.insert("rids", Value::Uint64Array(rids));
        out.insert("space", Value::Uint64Array(space));
        Ok(out)
    }
}
