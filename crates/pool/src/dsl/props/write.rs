//! Setting and inheriting properties (OpenZFS: `dsl_props_set`, `dsl_prop_inherit`, `zfs_prop_set_special`).
//!
//! All properties of one call are checked, then all are stored, in one txg. Those that are more than a value in a ZAP (quotas,
//! reservations, the size of a volume) have their effect with them. Heads that are open, here and below, are written by
//! the new rules from then on.

use std::sync::Arc;

use base::ObjectId;
use dmu::{Tx, Zap};
use ondisk::ObjectType;

use crate::dsl::Refusal;
use crate::dsl::lookup::Live;
use crate::dsl::refused;
use crate::dsl::space::quota;
use crate::dsl::volume::Resize;
use crate::spa::create::stored;
use crate::spa::mos::Mos;
use crate::spa::prop::{self, FS, PropDef, SNAP, TypeMask, VOL};
use crate::spa::{Spa, TaskCx};
use crate::{Error, Value};

/// The longest name of a property, with its NUL (OpenZFS: `ZAP_MAXNAMELEN`).
const NAME_MAX: usize = 256;
/// The longest text of a property, with its NUL (OpenZFS: `ZAP_MAXVALUELEN`).
const TEXT_MAX: usize = 8192;
/// In the list of a dataset's properties: some of them came with a stream (OpenZFS: `ZPROP_HAS_RECVD`).
const HAS_RECEIVED: &str = "$hasrecvd";

/// Suffix of the name under which a received value is stored (OpenZFS: `ZPROP_RECVD_SUFFIX`).
const RECEIVED: &str = "$recvd";

/// The source of new values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PropSource {
    /// A user sets them.
    Local,
    /// They came with a stream: in force where nothing is set.
    Received,
}

/// The time at which properties are set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::dsl) enum When {
    /// At the creation of a dataset other than a clone: properties that cannot change later can be set.
    Made,
    /// At the creation of a clone, which has such properties from its origin, or on an existing dataset.
    Later,
}

/// The change of a property (OpenZFS: `zprop_source_t` of `dsl_prop_set_sync_impl`).
#[derive(Clone, Copy, Debug)]
pub(in crate::dsl) enum Put<'a> {
    Local(&'a Value),
    Received(&'a Value),
    /// Nothing is set here, and what was received is not to count.
    Inherit,
    /// Nothing is set here: what was received counts.
    Revert,
}

impl Spa {
    /// Sets properties of the file system, volume or snapshot `name`: all or none. Native properties have the numbers of their words; whether
    /// they can be, apply, and fit what is there, is checked here.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`]; [`Error::Refused`] with the property's name.
    pub fn set_props(self: &Arc<Self>, name: &str, props: &[(String, Value)], source: PropSource) -> Result<(), Error> {
        let volsize = match props.iter().find(|(prop, _)| prop == "volsize") {
            Some((_, value)) => Some((self.volume(name, value)?, value.number().unwrap_or(0))),
            None => None,
        };
        let (owned, dataset) = (props.to_vec(), name.to_string());
        self.sync_task(move |cx| {
            let ds = cx.spa.find(cx.mos, &dataset)?;
            let puts: Vec<(&str, Put<'_>)> = owned
                .iter()
                .filter(|(prop, _)| prop != "volsize")
                .map(|(prop, value)| match source {
                    PropSource::Local => (prop.as_str(), Put::Local(value)),
                    PropSource::Received => (prop.as_str(), Put::Received(value)),
                })
                .collect();
            cx.spa.check_props(cx.mos, &ds, &puts)?;
            let resize = volsize.map(|(objset, size)| Resize::new(&objset, size)).transpose()?;
            cx.apply_props(&ds, &puts)?;
            let Some(resize) = resize else { return Ok(()) };
            // who has the volume open learns its size
            cx.spa.note_props_changed();
            resize.apply(cx.tx)
        })
    }

    /// Unsets property `prop`: the value above, or the default, counts. With `received`, a value that came with a stream counts.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`]; [`Error::Refused`] for a property that is not inherited, or a new value that does not fit.
    pub fn inherit_prop(self: &Arc<Self>, name: &str, prop: &str, received: bool) -> Result<(), Error> {
        let (dataset, prop) = (name.to_string(), prop.to_string());
        if !received && def_of(&prop).is_some_and(|def| !def.is_inheritable()) {
            return Err(refused(&prop, Refusal::Invalid("property cannot be inherited")));
        }
        self.sync_task(move |cx| {
            let ds = cx.spa.find(cx.mos, &dataset)?;
            let puts = [(prop.as_str(), if received { Put::Revert } else { Put::Inherit })];
            cx.spa.check_props(cx.mos, &ds, &puts)?;
            cx.apply_props(&ds, &puts)
        })
    }

    /// Which kind a head or snapshot is of, as a bit of the tables of properties.
    pub(in crate::dsl) fn kind_of(&self, ds: &Live) -> Result<TypeMask, Error> {
        if ds.phys.is_snapshot() { Ok(SNAP) } else { self.contents_of(ds) }
    }

    /// As [`Spa::kind_of`], of a snapshot what it is a snapshot of.
    pub(in crate::dsl) fn contents_of(&self, ds: &Live) -> Result<TypeMask, Error> {
        let os_type = match self.dsl.open_datasets.get(ds.id) {
            Some(head) => head.objset.phys().os_type,
            None => dmu::Objset::open(self.zio().clone(), ds.id, &ds.phys.bp)?.phys().os_type,
        };
        Ok(match os_type {
            ondisk::ObjsetType::Zfs => FS,
            ondisk::ObjsetType::Zvol => VOL,
            _ => 0,
        })
    }

    /// Checks that these changes can be made.
    pub(in crate::dsl) fn check_props(&self, mos: &Mos, ds: &Live, puts: &[(&str, Put<'_>)]) -> Result<(), Error> {
        let kind = self.kind_of(ds)?;
        for (name, put) in puts {
            check_one(name, put, kind, When::Later).map_err(|why| refused(name, why))?;
            if let Put::Local(value) | Put::Received(value) = put {
                self.check_feature(mos, name, value)?;
            }
        }
        if kind == SNAP {
            return Ok(());
        }
        if let Some((_, Put::Local(Value::String(location)))) = puts.iter().find(|(name, _)| *name == "keylocation") {
            self.check_keylocation(mos, ds, location)?;
        }
        self.check_limits(mos, ds, &mut |name| {
            let put = puts.iter().find(|(prop, _)| *prop == name).map(|(_, put)| *put);
            put.map(|put| mos.predict(ds.phys.dir_obj, name, put)).transpose()
        })
    }

    /// Values that need a feature of the pool (OpenZFS: `zfs_check_settable`).
    fn check_feature(&self, mos: &Mos, name: &str, value: &Value) -> Result<(), Error> {
        let Some(n) = value.number() else { return Ok(()) };
        if self.uberblock().version < version_for(name, n) {
            return Err(refused(name, Refusal::Unsupported));
        }
        let feature = match (name, n) {
            ("compression", 15) => "lz4_compress",
            ("compression", n) if n & 0x7f == ZSTD => "zstd_compress",
            ("checksum" | "dedup", n) => match n & 0xff {
                11 => "sha512",
                12 => "skein",
                13 => "edonr",
                14 => "blake3",
                _ => return Ok(()),
            },
            ("recordsize", n) if n > 128 << 10 => "large_blocks",
            ("dnodesize", n) if n != 0 => "large_dnode",
            ("filesystem_limit" | "snapshot_limit", n) if n != NO_LIMIT => "filesystem_limits",
            ("longname", 1) => "longname",
            _ => return Ok(()),
        };
        if self.feature_enabled(mos, feature)? { Ok(()) } else { Err(refused(name, Refusal::Unsupported)) }
    }

    /// Checks that a new file system or volume in directory `parent` can have these properties.
    pub(in crate::dsl) fn check_new_props(
        &self,
        mos: &Mos,
        parent: ObjectId,
        (kind, when): (TypeMask, When),
        props: &[(String, Value)],
    ) -> Result<(), Error> {
        for (name, value) in props {
            check_one(name, &Put::Local(value), kind, when).map_err(|why| refused(name, why))?;
            self.check_feature(mos, name, value)?;
        }
        let number = |name: &str| {
            let found = props.iter().find(|(prop, _)| prop == name);
            found.and_then(|(_, value)| value.number()).unwrap_or(0)
        };
        let block = number("volblocksize");
        if block != 0 && (number("volsize") == 0 || !number("volsize").is_multiple_of(block)) {
            return Err(refused(
                "volsize",
                Refusal::Invalid("volume size must be a multiple of the volume block size"),
            ));
        }
        self.check_new_limits(mos, parent, &number)
    }

    /// Stores one property, without its effects.
    pub(in crate::dsl) fn store_prop(
        &self,
        mos: &Mos,
        tx: &Tx,
        ds: &Live,
        name: &str,
        put: Put<'_>,
    ) -> Result<(), Error> {
        let Some(zap) = own_props(mos, tx, ds, put)? else { return Ok(()) };
        let (inherit, received, iuv) = (format!("{name}$inherit"), format!("{name}{RECEIVED}"), format!("{name}$iuv"));
        match put {
            Put::Local(value) => {
                zap.remove(tx, &inherit)?;
                match ignored_by_older(name, value) {
                    Some(default) => {
                        zap.update_value(tx, &iuv, &stored(value))?;
                        zap.update_u64(tx, name, default)?;
                    }
                    None => {
                        zap.update_value(tx, name, &stored(value))?;
                        zap.remove(tx, &iuv)?;
                    }
                }
            }
            Put::Received(value) => {
                zap.update_value(tx, &received, &stored(value))?;
                zap.update_u64(tx, HAS_RECEIVED, 0)?;
            }
            Put::Inherit => {
                zap.remove(tx, name)?;
                zap.remove(tx, &iuv)?;
                // under a name for which there is no room nothing was received
                if inherit.len() < NAME_MAX && zap.lookup(HAS_RECEIVED)?.is_some() {
                    zap.update_u64(tx, &inherit, 0)?;
                }
            }
            Put::Revert => {
                zap.remove(tx, name)?;
                zap.remove(tx, &inherit)?;
                zap.remove(tx, &iuv)?;
            }
        }
        if ds.phys.is_snapshot() && mos.zap(zap.object().id())?.count() == 0 {
            mos.objset.free_object(tx, zap.object().id())?;
            mos.edit_dataset(tx, ds.id, |phys| phys.props_obj = ObjectId::NONE)?;
        }
        let (event, value) = match put {
            Put::Local(value) | Put::Received(value) => ("set", value.to_string()),
            Put::Inherit | Put::Revert => ("inherit", String::new()),
        };
        self.log_live(mos, tx, ds, event, &format!("{name}={value}"))
    }

    /// Stores properties of a dataset that was just made; none of them has an effect beyond itself but those of space.
    pub(in crate::dsl) fn store_new_props(
        &self,
        mos: &Mos,
        tx: &Tx,
        ds: &Live,
        props: &[(String, Value)],
    ) -> Result<(), Error> {
        for (name, value) in props.iter().filter(|(name, _)| !stands_in_contents(name)) {
            self.store_prop(mos, tx, ds, name, Put::Local(value))?;
            match name.as_str() {
                "refreservation" => mos.set_refreservation(tx, ds.id, 0, value.number().unwrap_or(0))?,
                _ => self.space_effect(mos, tx, ds, name)?,
            }
        }
        Ok(())
    }

    fn space_effect(&self, mos: &Mos, tx: &Tx, ds: &Live, name: &str) -> Result<(), Error> {
        let dir = ds.phys.dir_obj;
        match name {
            "quota" => {
                let quota = mos.prop_number(dir, name)?;
                mos.edit_dir(tx, dir, |dir| dir.quota = quota)
            }
            "reservation" => mos.set_reservation(tx, dir, mos.prop_number(dir, name)?),
            // nothing has to be counted for the sake of no limit
            "filesystem_limit" | "snapshot_limit" if mos.prop_number(dir, name)? != NO_LIMIT => {
                self.activate_limits(mos, tx, dir)
            }
            _ => Ok(()),
        }
    }
}

impl TaskCx<'_> {
    pub(in crate::dsl) fn apply_props(&self, ds: &Live, puts: &[(&str, Put<'_>)]) -> Result<(), Error> {
        let (spa, mos, tx) = (self.spa, self.mos, self.tx);
        let mut rules = false;
        for (name, put) in puts {
            let before = if *name == "refreservation" { mos.prop_number(ds.phys.dir_obj, name)? } else { 0 };
            spa.store_prop(mos, tx, ds, name, *put)?;
            if ds.phys.is_snapshot() || def_of(name).is_none() {
                continue;
            }
            rules = true;
            if *name == "refreservation" {
                mos.set_refreservation(tx, ds.id, before, mos.prop_number(ds.phys.dir_obj, name)?)?;
            }
            if let ("compression", Put::Local(Value::Number(n))) = (*name, put)
                && n & 0x7f == ZSTD
            {
                spa.activate_dataset_feature(mos, tx, ds.id, "zstd_compress")?;
            }
            spa.space_effect(mos, tx, ds, name)?;
        }
        if rules { spa.refresh_open_datasets(mos, ds.phys.dir_obj) } else { Ok(()) }
    }
}

/// The limit of file systems or snapshots that is none.
const NO_LIMIT: u64 = u64::MAX;

/// The version of pools from which on they can have this value of a property (OpenZFS: `zfs_check_settable`).
fn version_for(name: &str, n: u64) -> u64 {
    match (name, n) {
        ("copies", _) => 2,
        ("compression", 5..=13) => 5,
        ("compression", 14) => 20,
        ("aclinherit", PASSTHROUGH_X) => 14,
        ("dedup", _) => 21,
        _ => 0,
    }
}

/// The number of passthrough-x among the values of `aclinherit`.
const PASSTHROUGH_X: u64 = 5;
/// The number of zstd among compressions.
const ZSTD: u64 = 16;

fn def_of(name: &str) -> Option<&'static PropDef> {
    prop::DATASET.iter().find(|def| def.name == name)
}

/// Returns whether the property is stored in the object set, or with the key, instead of in the list of properties.
fn stands_in_contents(name: &str) -> bool {
    const NAMES: [&str; 9] = [
        "volsize",
        "volblocksize",
        "version",
        "normalization",
        "utf8only",
        "casesensitivity",
        "encryption",
        "keyformat",
        "pbkdf2iters",
    ];
    NAMES.contains(&name)
}

/// A value that older software does not know stands under a name of its own; what it sees is the default (OpenZFS:
/// `dsl_prop_set_iuv`).
fn ignored_by_older(name: &str, value: &Value) -> Option<u64> {
    let new = match name {
        "redundant_metadata" => matches!(value, Value::Number(2 | 3)),
        "snapdir" => matches!(value, Value::Number(2)),
        _ => false,
    };
    new.then(|| def_of(name).map_or(0, PropDef::default_number))
}

/// Checks that a snapshot can be created with this user property.
pub(in crate::dsl) fn check_user_prop(name: &str, value: &Value) -> Result<(), Refusal> {
    match prop::is_user_property(name) {
        true => check_one(name, &Put::Local(value), SNAP, When::Later),
        false => Err(Refusal::Invalid("only user properties can be set on snapshots")),
    }
}

/// Checks that the root file system of a new pool can have these properties; those that cannot change later are set with its contents.
pub(in crate::dsl) fn check_root_props(props: &[(String, Value)]) -> Result<(), Error> {
    let check = |(name, value): &(String, Value)| check_one(name, &Put::Local(value), FS, When::Later);
    props.iter().try_for_each(|prop| check(prop).map_err(|why| refused(&prop.0, why)))
}

/// Returns whether the property describes encryption: a new dataset is given its key, and no property that says so.
fn is_of_key(name: &str) -> bool {
    matches!(name, "encryption" | "keyformat" | "pbkdf2iters" | "pbkdf2salt")
}

/// Checks that a list has room for a property.
pub(in crate::dsl) fn check_lengths(name: &str, value: &Value) -> Result<(), Refusal> {
    if name.len() >= NAME_MAX {
        return Err(Refusal::NameTooLong);
    }
    if value.text().is_some_and(|text| text.len() >= TEXT_MAX) { Err(Refusal::ValueTooLong) } else { Ok(()) }
}

fn check_one(name: &str, put: &Put<'_>, kind: TypeMask, when: When) -> Result<(), Refusal> {
    let suffix = if matches!(put, Put::Received(_)) { RECEIVED.len() } else { 0 };
    if name.len() + suffix >= NAME_MAX {
        return Err(Refusal::NameTooLong);
    }
    if let Put::Local(value) | Put::Received(value) = put {
        check_lengths(name, value)?;
        prop::check_value(name, value).map_err(|bad| Refusal::Invalid(bad.why()))?;
    }
    let Some(def) = def_of(name) else {
        return if prop::is_user_property(name) { Ok(()) } else { Err(Refusal::Invalid("invalid property")) };
    };
    if !def.is_valid_for(kind) || (kind == SNAP && matches!(put, Put::Local(_))) {
        return Err(Refusal::Invalid("property does not apply to datasets of this type"));
    }
    if when == When::Made && is_of_key(name) {
        return Err(Refusal::Invalid("encryption needs a key"));
    }
    let fixed = def.is_set_once() || name == "version";
    if (def.is_read_only() || fixed) && !(fixed && when == When::Made) {
        return Err(Refusal::Invalid("property is readonly"));
    }
    Ok(())
}

/// The ZAP of a dataset's own properties; that of a snapshot is made when it is needed.
fn own_props(mos: &Mos, tx: &Tx, ds: &Live, put: Put<'_>) -> Result<Option<Zap>, Error> {
    if !ds.phys.is_snapshot() {
        return mos.zap_if(mos.dir_phys(ds.phys.dir_obj)?.props_zapobj);
    }
    let there = mos.dataset_phys(ds.id)?.props_obj;
    if there.is_some() || matches!(put, Put::Inherit | Put::Revert) {
        return mos.zap_if(there);
    }
    let new = mos.new_zap(tx, ObjectType::DSL_PROPS)?;
    mos.edit_dataset(tx, ds.id, |phys| phys.props_obj = new)?;
    mos.zap(new).map(Some)
}

/// The value of `name` in one list of properties; `None` if it has none, or a mark that it is inherited (OpenZFS: `dsl_prop_get_dd`).
fn effective(zap: &Zap, def: Option<&PropDef>, name: &str) -> Result<Option<Value>, Error> {
    let value = |key: &str| Ok::<_, Error>(zap.lookup(key)?.map(|v| crate::spa::prop::stored::value_of(&v)));
    if let (Some(def), Some(newer)) = (def, value(&format!("{name}$iuv"))?)
        && newer.number().and_then(|n| def.index_name(n)).is_some()
    {
        return Ok(Some(newer));
    }
    if let Some(own) = value(name)? {
        return Ok(Some(own));
    }
    if zap.lookup(format!("{name}$inherit"))?.is_some() {
        return Ok(None);
    }
    value(&format!("{name}$recvd"))
}

impl Mos {
    /// The value of property `name` in force in directory `dir`, as it is now; `None` if it is set nowhere.
    pub(in crate::dsl) fn prop(&self, dir: ObjectId, name: &str) -> Result<Option<Value>, Error> {
        let def = def_of(name);
        let inheritable = def.is_none_or(PropDef::is_inheritable);
        let mut at = dir;
        for _ in 0..=quota::DEPTH_MAX {
            if at.is_none() {
                return Ok(None);
            }
            let phys = self.dir_phys(at)?;
            if let Some(zap) = self.zap_if(phys.props_zapobj)?
                && let Some(value) = effective(&zap, def, name)?
            {
                return Ok(Some(value));
            }
            at = if inheritable { phys.parent_obj } else { ObjectId::NONE };
        }
        Err(Error::corrupt(dir, "directories are nested too deeply"))
    }

    /// As [`Mos::prop`], of a property that is a number; its default if it is set nowhere.
    pub(in crate::dsl) fn prop_number(&self, dir: ObjectId, name: &str) -> Result<u64, Error> {
        let set = self.prop(dir, name)?.and_then(|value| value.number());
        Ok(set.unwrap_or_else(|| def_of(name).map_or(0, PropDef::default_number)))
    }

    /// The future value of a number that is not inherited (OpenZFS: `dsl_prop_predict`).
    fn predict(&self, dir: ObjectId, name: &str, put: Put<'_>) -> Result<u64, Error> {
        let zap = self.zap(self.dir_phys(dir)?.props_zapobj)?;
        let number = |value: &Value| value.number().unwrap_or(0);
        Ok(match put {
            Put::Local(value) => number(value),
            Put::Received(value) => match zap.lookup_u64(name)? {
                Some(own) => own,
                None => number(value),
            },
            Put::Inherit => 0,
            Put::Revert => zap.lookup_u64(format!("{name}$recvd"))?.unwrap_or(0),
        })
    }

    /// Returns whether directory `id` is below `above`.
    pub(in crate::dsl) fn is_below(&self, id: ObjectId, above: ObjectId) -> Result<bool, Error> {
        let mut at = self.dir_phys(id)?.parent_obj;
        for _ in 0..quota::DEPTH_MAX {
            match at {
                ObjectId::NONE => return Ok(false),
                at if at == above => return Ok(true),
                _ => at = self.dir_phys(at)?.parent_obj,
            }
        }
        Err(Error::corrupt(id, "directories are nested too deeply"))
    }
}
