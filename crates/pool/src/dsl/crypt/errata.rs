//! Structures that early versions of ZFS wrote wrongly, and that are in pools to this day (OpenZFS: `zpool_errata_t`).

use std::sync::Arc;

use base::ObjectId;
use codec::crypt::KEY_VERSION;
use ondisk::dsl::dataset_keys;

use crate::dsl::crypt::KeyInfo;
use crate::{Error, Pool};

/// Something that is wrong in the format of a pool, with OpenZFS's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Erratum {
    /// The MACs of encrypted datasets cover what differs from machine to machine: they are read, and neither changed nor sent raw. OpenZFS:
    /// `ZPOOL_ERRATA_ZOL_6845_ENCRYPTION`.
    OldKeys = 3,
    /// Encrypted snapshots do not tell their set of IVs: raw streams cannot be checked to fit. OpenZFS: `ZPOOL_ERRATA_ZOL_8308_ENCRYPTION`.
    NoIvset = 4,
}

impl Erratum {
    /// The one that OpenZFS's number stands for.
    #[must_use]
    pub const fn from_number(number: u64) -> Option<Erratum> {
        match number {
            3 => Some(Erratum::OldKeys),
            4 => Some(Erratum::NoIvset),
            _ => None,
        }
    }
}

impl Pool {
    /// The erratum of this pool's format; of several the first. As in OpenZFS, heads and their last snapshots are looked at.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn erratum(self: &Arc<Self>) -> Result<Option<Erratum>, Error> {
        if !self.feature_active("encryption") {
            return Ok(None);
        }
        let (mut stack, mut found) = (vec![self.root_dir()?], None);
        while let Some(dir) = stack.pop() {
            stack.extend(dir.children()?);
            let Some(key) = dir.crypto_key_obj()? else { continue };
            if is_old(&KeyInfo::load(&self.mos, key)?) {
                return Ok(Some(Erratum::OldKeys));
            }
            let last = dir.head()?.map_or(ObjectId::NONE, |head| head.phys().prev_snap_obj);
            if last.is_some()
                && self.dataset_phys(last)?.dir_obj == dir.id()
                && self.mos.extra(last, dataset_keys::IVSET_GUID)?.is_none()
            {
                found = Some(Erratum::NoIvset);
            }
        }
        Ok(found)
    }
}

/// Whether a dataset with this key is of the old format, which is only read (OpenZFS: `dsl_dir_incompatible_encryption_version`).
pub(in crate::dsl) fn is_old(key: &KeyInfo) -> bool {
    key.wrapped.version != KEY_VERSION
}
