//! The features that a pool uses, while that changes (OpenZFS: `zfeature.c`, the writing half).
//!
//! Refcounts are in two ZAPs of the MOS, one for features without which a pool cannot be read and one for the others; active features that
//! are needed to read the MOS are in the labels as well.

use std::sync::atomic::Ordering;

use base::{Endian, ObjectId};
use dmu::{Owner, Tx, UsedBy};
use nvlist::Value;
use ondisk::ObjectType;
use ondisk::label::key;

use crate::Error;
use crate::spa::Spa;
use crate::spa::bpobj::write::EmptyCount;
use crate::spa::ddt::FeatureUse;
use crate::spa::feature::{self, Feature, State};
use crate::spa::mos::Mos;

const FOR_READ: &str = "features_for_read";
const FOR_WRITE: &str = "features_for_write";
const DESCRIPTIONS: &str = "feature_descriptions";
const ENABLED_TXG: &str = "feature_enabled_txg";
/// The feature by which headers of gang blocks may be larger than 512 bytes.
const GANG_HEADERS: &str = "dynamic_gang_header";

fn list_of(def: &Feature) -> &'static str {
    if def.readonly_compatible() { FOR_WRITE } else { FOR_READ }
}

/// Returns how often the feature is used; `None` if it is disabled.
pub(crate) fn refcount(mos: &Mos, def: &Feature) -> Result<Option<u64>, Error> {
    match mos.named_zap(list_of(def))? {
        Some(zap) => Ok(zap.lookup_u64(def.guid)?),
        None => Ok(None),
    }
}

/// Makes the lists of features in a new pool.
pub(crate) fn create_lists(mos: &Mos, tx: &Tx) -> Result<(), Error> {
    for name in [FOR_READ, FOR_WRITE, DESCRIPTIONS] {
        let id = mos.new_zap(tx, ObjectType::OTN_ZAP_METADATA)?;
        mos.root_zap()?.add_id(tx, name, id)?;
    }
    Ok(())
}

impl Spa {
    fn known(name: &str) -> Result<&'static Feature, Error> {
        feature::by_name(name).ok_or_else(|| Error::Features(vec![name.to_string()]))
    }

    /// Returns whether the pool may use feature `name`.
    pub(crate) fn feature_enabled(&self, mos: &Mos, name: &str) -> Result<bool, Error> {
        Ok(refcount(mos, Self::known(name)?)?.is_some())
    }

    /// Returns whether the pool uses feature `name`.
    pub(crate) fn feature_active(&self, mos: &Mos, name: &str) -> Result<bool, Error> {
        Ok(refcount(mos, Self::known(name)?)?.is_some_and(|n| n > 0))
    }

    /// Enables a feature and what it depends on (OpenZFS: `spa_feature_enable`).
    pub(crate) fn feature_enable(&self, mos: &Mos, tx: &Tx, def: &'static Feature) -> Result<(), Error> {
        for name in def.depends {
            self.feature_enable(mos, tx, Self::known(name)?)?;
        }
        if refcount(mos, def)?.is_some() {
            return Ok(());
        }
        let descriptions = mos.named_zap(DESCRIPTIONS)?.ok_or_else(no_lists)?;
        if descriptions.lookup(def.guid)?.is_none() {
            descriptions.add_value(tx, def.guid, &dmu::ZapValue::from_text(def.description))?;
        }
        self.set_refcount(mos, tx, def, u64::from(def.activates_on_enable()))?;
        if def.name == "enabled_txg" && mos.id_of(ENABLED_TXG)?.is_none() {
            let id = mos.new_zap(tx, ObjectType::OTN_ZAP_METADATA)?;
            mos.root_zap()?.add_id(tx, ENABLED_TXG, id)?;
        }
        if let Some(txgs) = mos.named_zap(ENABLED_TXG)? {
            self.feature_increment(mos, tx, "enabled_txg")?;
            txgs.add_u64(tx, def.guid, tx.txg().0)?;
        }
        Ok(())
    }

    fn set_refcount(&self, mos: &Mos, tx: &Tx, def: &'static Feature, count: u64) -> Result<(), Error> {
        let zap = mos.named_zap(list_of(def))?.ok_or_else(no_lists)?;
        zap.update_u64(tx, def.guid, count)?;
        if def.is_mos() {
            let mut config = self.config.lock();
            let list = config.nv.get_nvlist(key::FEATURES_FOR_READ).cloned().unwrap_or_default();
            let mut changed = list.clone();
            if count > 0 {
                changed.insert(def.guid, Value::Boolean);
            } else {
                changed.remove_all(def.guid);
            }
            if changed != list {
                config.nv.insert(key::FEATURES_FOR_READ, changed);
                config.dirty = true;
            }
        }
        self.apply_feature(def.name, if count > 0 { State::Active } else { State::Enabled });
        Ok(())
    }

    /// Changes the engine's behaviour for an active feature and, for dedup tables, for an enabled one.
    pub(crate) fn apply_feature(&self, name: &str, state: State) {
        let active = state == State::Active;
        match name {
            "hole_birth" => self.zio.set_hole_birth(active),
            GANG_HEADERS => self.large_gang_headers.store(active, Ordering::Relaxed),
            "fast_dedup" => self.dedup.set_fast(state != State::Disabled),
            _ => {}
        }
    }

    /// Makes headers of gang blocks as large as the devices allow, once one was found too small for its block (OpenZFS: the end of
    /// `zio_write_gang_block`). They grow when the txg is on disk: the intent log may need blocks that are written before.
    pub(crate) fn grow_gang_headers(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        let grow = self.zio.take_outgrown_gangs()
            && self.feature_enabled(mos, GANG_HEADERS)?
            && !self.feature_active(mos, GANG_HEADERS)?;
        if grow { self.feature_increment(mos, tx, GANG_HEADERS) } else { Ok(()) }
    }

    /// Adds one use of feature `name` (OpenZFS: `spa_feature_incr`).
    pub(crate) fn feature_increment(&self, mos: &Mos, tx: &Tx, name: &str) -> Result<(), Error> {
        self.change(mos, tx, name, 1)
    }

    /// Runs `work` with the counter of uses of the shared empty bpobj.
    pub(crate) fn with_empty_bpobj<R>(
        &self,
        mos: &Mos,
        tx: &Tx,
        work: impl FnOnce(&mut EmptyCount<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let name = "empty_bpobj";
        let mut count = |by: i64| {
            if refcount(mos, Self::known(name)?)?.is_none() {
                return Ok(None);
            }
            if by != 0 {
                self.change(mos, tx, name, by)?;
            }
            refcount(mos, Self::known(name)?)
        };
        work(&mut count)
    }

    /// Removes one use of feature `name` (OpenZFS: `spa_feature_decr`).
    pub(crate) fn feature_decrement(&self, mos: &Mos, tx: &Tx, name: &str) -> Result<(), Error> {
        self.change(mos, tx, name, -1)
    }

    fn change(&self, mos: &Mos, tx: &Tx, name: &str, by: i64) -> Result<(), Error> {
        let def = Self::known(name)?;
        let count = refcount(mos, def)?.ok_or_else(|| Error::FeatureDisabled(name.to_string()))?;
        let changed = count.checked_add_signed(by).ok_or_else(|| {
            Error::corrupt(ObjectId::POOL_DIRECTORY, format!("feature {name} is used {count} times, and shall be {by}"))
        })?;
        self.set_refcount(mos, tx, def, changed)
    }
}

/// The feature that counts objects by user and group.
pub(crate) const USEROBJ_ACCOUNTING: &str = "userobj_accounting";
/// The feature that counts space and objects by project.
pub(crate) const PROJECT_QUOTA: &str = "project_quota";

/// Flags of an object set whose accounting is complete: space by user and group, objects by user and group, and by project (OpenZFS:
/// `OBJSET_FLAG_USERACCOUNTING_COMPLETE` and the like).
const USER_COMPLETE: u64 = 1;
const USEROBJ_COMPLETE: u64 = 2;
const PROJECT_COMPLETE: u64 = 4;

/// The owners of file systems' objects, restricted to the counts that the pool's features allow.
pub(crate) struct Accounts<'a> {
    used: &'a dyn UsedBy,
    objects: bool,
    projects: bool,
}

impl UsedBy for Accounts<'_> {
    fn owner(&self, bonus_type: ObjectType, bonus: &[u8], endian: Endian) -> Option<Owner> {
        self.used.owner(bonus_type, bonus, endian)
    }

    fn counts_objects(&self) -> bool {
        self.objects && self.used.counts_objects()
    }

    fn projects(&self) -> bool {
        self.projects && self.used.projects()
    }
}

impl Spa {
    /// Returns the accounting of files; `None` without a hook that finds their owners.
    pub(crate) fn accounts(&self, mos: &Mos) -> Result<Option<Accounts<'_>>, Error> {
        let Some(used) = self.hooks.used_by.as_deref() else { return Ok(None) };
        let objects = self.feature_enabled(mos, USEROBJ_ACCOUNTING)?;
        Ok(Some(Accounts { used, objects, projects: self.feature_enabled(mos, PROJECT_QUOTA)? }))
    }

    /// Returns the flags of a new file system: the counts that are complete from its beginning.
    pub(crate) fn accounting_flags(&self, mos: &Mos) -> Result<u64, Error> {
        let Some(accounts) = self.accounts(mos)? else { return Ok(0) };
        let objects = if accounts.counts_objects() { USEROBJ_COMPLETE } else { 0 };
        let projects = if accounts.projects() { PROJECT_COMPLETE } else { 0 };
        Ok(USER_COMPLETE | objects | projects)
    }
}

/// A pool's features, in a sync.
pub(crate) struct Uses<'a> {
    pub(crate) spa: &'a Spa,
    pub(crate) mos: &'a Mos,
    pub(crate) tx: &'a Tx,
}

impl FeatureUse for Uses<'_> {
    fn enabled(&self, name: &str) -> Result<bool, Error> {
        self.spa.feature_enabled(self.mos, name)
    }

    fn active(&self, name: &str) -> Result<bool, Error> {
        self.spa.feature_active(self.mos, name)
    }

    fn increment(&self, name: &str) -> Result<(), Error> {
        self.spa.feature_increment(self.mos, self.tx, name)
    }

    fn decrement(&self, name: &str) -> Result<(), Error> {
        self.spa.feature_decrement(self.mos, self.tx, name)
    }
}

fn no_lists() -> Error {
    Error::corrupt(ObjectId::POOL_DIRECTORY, "the pool has no lists of features")
}
