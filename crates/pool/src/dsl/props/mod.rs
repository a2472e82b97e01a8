//! The properties of a dataset: what is computed, joined with what is stored (OpenZFS: `dsl_dataset_stats`, `zfs_prop_get`).
//!
//! For each native property: does it apply to this kind of dataset? Is it computed? Then the computed value counts, and its source
//! is what was stored under that name, or the default if it equals the default, or none. Else what is stored here or
//! above counts, else the default.

pub(in crate::dsl) mod stored;
pub(in crate::dsl) mod write;

use crate::dsl::props::stored::Setting;
use crate::dsl::userspace::SpaceKind;
use crate::spa::prop::{self, Attr, PropDef, PropKind, PropValue, Source, Value};
use crate::{Dataset, Error, KeyFormat, Kind};

/// Which number stands for "not encrypted" in property `encryption`.
const CRYPT_OFF: u64 = 2;

/// A property as it is stored on a dataset.
#[derive(Clone, PartialEq, Debug)]
pub struct StoredProp {
    /// Its name.
    pub name: String,
    /// The value that is set here, by a user or with a stream; `None` if an inherited one or the default is in force.
    pub value: Option<Value>,
    /// The value that came with a stream, whether or not it is in force.
    pub received: Option<Value>,
}

impl Dataset {
    /// The property `name`: native, user, `userused@…` and its like, `written@…`, `written#…`. `None` if it does not apply
    /// or has no value; commands then print `-`.
    ///
    /// # Errors
    /// When the MOS or the dataset cannot be read.
    pub fn prop(&self, name: &str) -> Result<Option<PropValue>, Error> {
        if let Some(def) = prop::find(name) {
            return self.native(def);
        }
        if let Some((kind, who)) = SpaceKind::parse(name) {
            return self.space_prop(kind, who);
        }
        if let Some(since) = name.strip_prefix("written").filter(|s| s.starts_with(['@', '#'])) {
            return self.written_prop(since).map(|n| Some(PropValue::computed(n)));
        }
        let received = self.received_value(name)?;
        let setting = self.setting(name)?;
        Ok(setting.map(|s| PropValue { value: s.value, source: s.source, received }))
    }

    /// All visible properties that have a value, in the order of `zfs get all`, then user properties.
    ///
    /// # Errors
    /// When the MOS or the dataset cannot be read.
    pub fn props(&self) -> Result<Vec<(String, PropValue)>, Error> {
        let mut all = Vec::new();
        for def in prop::DATASET.iter().filter(|def| def.visible) {
            if let Some(value) = self.native(def)? {
                all.push((def.name.to_string(), value));
            }
        }
        for name in self.user_property_names()? {
            if let Some(value) = self.prop(&name)? {
                all.push((name, value));
            }
        }
        Ok(all)
    }

    /// The user properties in force.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn user_props(&self) -> Result<Vec<(String, PropValue)>, Error> {
        let mut all = Vec::new();
        for name in self.user_property_names()? {
            all.extend(self.prop(&name)?.map(|value| (name, value)));
        }
        Ok(all)
    }

    /// The properties that can be set, as they are stored on the dataset itself: native ones in the order of `zfs get all`, then
    /// those of users.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn stored_props(&self) -> Result<Vec<StoredProp>, Error> {
        let native = prop::DATASET.iter().filter(|def| !def.is_read_only()).map(|def| def.name.to_owned());
        let mut all = Vec::new();
        for name in native.chain(self.user_property_names()?) {
            let setting = self.setting(&name)?;
            if setting.is_none() && prop::is_user_property(&name) {
                continue;
            }
            let own = setting.filter(|s| matches!(s.source, Source::Local | Source::Received));
            let (value, received) = (own.map(|s| s.value), self.received_value(&name)?);
            if value.is_some() || received.is_some() {
                all.push(StoredProp { name, value, received });
            }
        }
        Ok(all)
    }

    fn native(&self, def: &'static PropDef) -> Result<Option<PropValue>, Error> {
        if !self.applies(def)? {
            return Ok(None);
        }
        let computed = match self.computed_text(def.name)? {
            Some(text) => text.map(PropValue::text),
            None => match self.computed_number(def.name)? {
                Some(number) => number.map(|n| self.joined(def, n)).transpose()?,
                None => self.stored_or_default(def)?,
            },
        };
        let Some(mut value) = computed else { return Ok(None) };
        value.received = self.received_value(def.name)?;
        if value.source == Source::None && is_local_without_source(def.name) {
            value.source = Source::Local;
        }
        Ok(Some(value))
    }

    /// A computed number with its source: that of a stored value of the same name, or the default if it is the default.
    fn joined(&self, def: &PropDef, n: u64) -> Result<PropValue, Error> {
        let source = match self.setting(def.name)? {
            // what the master node says has no source, default or not
            _ if is_zpl(def.name) => Source::None,
            Some(setting) => setting.source,
            None if has_default(def) && n == def.default_number() => Source::Default,
            None => Source::None,
        };
        Ok(PropValue { value: Value::Number(n), source, received: None })
    }

    fn stored_or_default(&self, def: &'static PropDef) -> Result<Option<PropValue>, Error> {
        if def.name == "mountpoint" {
            return self.mountpoint().map(Some);
        }
        if let Some(Setting { value, source, .. }) = self.setting(def.name)? {
            return Ok(Some(PropValue { value, source, received: None }));
        }
        let value = match def.kind {
            PropKind::String { default } => default.map(|s| Value::String(s.to_string())),
            // what is computed and has no value here
            _ if !has_default(def) => None,
            PropKind::Number { default } | PropKind::Index { default, .. } => Some(Value::Number(default)),
        };
        Ok(value.map(|value| PropValue { value, source: Source::Default, received: None }))
    }

    /// The path at which the file system is to be mounted: an inherited one is continued with the part of the name below the ancestor.
    fn mountpoint(&self) -> Result<PropValue, Error> {
        let setting = self.setting("mountpoint")?;
        let (stored, source, setpoint) = match setting {
            Some(s) => (s.value.to_string(), s.source, s.setpoint),
            None => ("/".to_string(), Source::Default, String::new()),
        };
        if !stored.starts_with('/') {
            return Ok(PropValue { value: Value::String(stored), source, received: None });
        }
        let rest = match source {
            Source::Received => "",
            _ => self.name().strip_prefix(&setpoint).unwrap_or(""),
        };
        let rest = rest.strip_prefix('/').unwrap_or(rest);
        let altroot = self.pool().options().altroot.as_deref().unwrap_or("");
        let altroot = if altroot == "/" { "" } else { altroot };
        let has_more = self.pool().options().altroot.is_some() || !rest.is_empty();
        let own =
            if stored == "/" && has_more && !(altroot.is_empty() && rest.is_empty()) { "" } else { stored.as_str() };
        let slash = if rest.is_empty() || rest.starts_with('@') { "" } else { "/" };
        let path = format!("{altroot}{own}{slash}{rest}");
        Ok(PropValue { value: Value::String(path), source, received: None })
    }

    /// `Some(None)`: a computed text that this dataset does not have. `None`: no computed text.
    #[allow(clippy::option_option)]
    fn computed_text(&self, name: &str) -> Result<Option<Option<String>>, Error> {
        let some = |s: &str| Ok(Some(Some(s.to_string())));
        match name {
            "type" => some(self.kind()?.as_str()),
            "name" => some(self.name()),
            "origin" => Ok(Some(self.origin()?.map(|o| o.name().to_string()))),
            "clones" => {
                let names: Vec<String> = self.clones()?.iter().map(|c| c.name().to_string()).collect();
                Ok(Some((!names.is_empty()).then(|| names.join(","))))
            }
            "prevsnap" => Ok(Some(self.prev_own_snapshot()?)),
            "receive_resume_token" => Ok(Some(self.receive_resume_token()?)),
            "encryptionroot" => Ok(Some(self.encryption_root()?)),
            "redact_snaps" => Ok(Some(self.redact_snaps()?.map(|guids| {
                let texts: Vec<String> = guids.iter().map(ToString::to_string).collect();
                if texts.is_empty() { "none".to_string() } else { texts.join(",") }
            }))),
            _ => Ok(None),
        }
    }

    fn prev_own_snapshot(&self) -> Result<Option<String>, Error> {
        let prev = self.phys().prev_snap_obj;
        let is_own = prev.is_some() && self.pool().dataset_phys(prev)?.dir_obj == self.dir().id();
        if is_own { Ok(self.prev_snap()?.map(|p| p.name().to_string())) } else { Ok(None) }
    }

    /// `Some(None)`: a computed number that this dataset does not have. `None`: no computed number.
    #[allow(clippy::option_option)]
    fn computed_number(&self, name: &str) -> Result<Option<Option<u64>>, Error> {
        let p = self.phys();
        let dir = self.dir();
        let number = match name {
            "creation" => Some(p.creation_time),
            "createtxg" => Some(p.creation_txg.0),
            "guid" => Some(p.guid.0),
            "objsetid" => Some(self.id().0),
            "used" => Some(self.used()),
            "available" => Some(self.available()?),
            "referenced" => Some(self.referenced()),
            "logicalused" => self.logical_used(),
            "logicalreferenced" => Some(self.logical_referenced()),
            "compressratio" => Some(self.compressratio()),
            "refcompressratio" => Some(self.refcompressratio()),
            "usedbysnapshots" => self.used_by_snapshots(),
            "usedbydataset" => self.used_by_dataset(),
            "usedbychildren" => self.used_by_children(),
            "usedbyrefreservation" => self.used_by_refreservation(),
            "written" => self.written()?,
            "unique" => Some(p.unique_bytes),
            "quota" => Some(dir.phys().quota),
            "reservation" => Some(dir.phys().reserved),
            "refquota" => Some(self.refquota()?),
            "refreservation" => Some(self.refreservation()?),
            "mounted" => Some(0),
            "userrefs" => Some(self.userrefs()?),
            "defer_destroy" => Some(u64::from(self.is_defer_destroyed())),
            "inconsistent" => Some(u64::from(self.is_inconsistent())),
            "redacted" => Some(u64::from(self.is_redacted()?)),
            "numclones" => Some(p.num_children.saturating_sub(1)),
            "useraccounting" => Some(u64::from(self.has_accounting(SpaceKind::UserUsed)?)),
            "snapshots_changed" => dir.snapshots_changed()?.map(|(seconds, _)| seconds).filter(|s| *s != 0),
            "filesystem_count" | "snapshot_count" => return self.counted(name),
            // what is half received is not looked into: it has what a new volume has
            "volsize" | "volblocksize" if self.is_inconsistent() => return Ok(None),
            "volsize" => self.volume_size()?.map(|(size, _)| size),
            "volblocksize" => self.volume_size()?.map(|(_, block_size)| block_size),
            "encryption" | "keyformat" | "pbkdf2iters" | "pbkdf2salt" | "keyguid" | "keystatus" | "ivsetguid" => {
                return self.crypto_number(name);
            }
            _ => match self.zpl_number(name)? {
                Some(n) => n,
                None => return Ok(None),
            },
        };
        Ok(Some(number))
    }

    /// Counts that are kept only where limits are in use.
    #[allow(clippy::option_option)]
    fn counted(&self, name: &str) -> Result<Option<Option<u64>>, Error> {
        use ondisk::dsl::dir_keys::{FILESYSTEM_COUNT, SNAPSHOT_COUNT};
        let key = if name == "filesystem_count" { FILESYSTEM_COUNT } else { SNAPSHOT_COUNT };
        let count = self.dir().field(key)?;
        // where nothing is counted, "none" is printed
        Ok(Some(Some(count.unwrap_or(u64::MAX))))
    }

    #[allow(clippy::option_option)]
    fn zpl_number(&self, name: &str) -> Result<Option<Option<u64>>, Error> {
        if !is_zpl(name) {
            return Ok(None);
        }
        Ok(Some(self.zpl_props()?.and_then(|zpl| zpl.get(name))))
    }

    #[allow(clippy::option_option)]
    fn crypto_number(&self, name: &str) -> Result<Option<Option<u64>>, Error> {
        let Some(info) = self.crypto()? else {
            return Ok(match name {
                "encryption" => Some(Some(CRYPT_OFF)),
                "keyformat" | "pbkdf2iters" | "pbkdf2salt" => Some(Some(0)),
                _ => Some(None),
            });
        };
        Ok(Some(match name {
            "encryption" => Some(info.wrapped.suite as u64),
            "keyformat" => Some(info.keyformat.map_or(0, KeyFormat::number)),
            "pbkdf2iters" => Some(info.pbkdf2_iters),
            "pbkdf2salt" => Some(info.pbkdf2_salt),
            "keyguid" => Some(info.wrapped.guid.0),
            "keystatus" => Some(self.key_status()?.number()),
            _ => self.ivset_guid()?.map(|guid| guid.0),
        }))
    }

    /// `userused@1000`, `projectquota@3`, …: numbers of POSIX users, groups and projects; names are the caller's to turn into
    /// numbers.
    fn space_prop(&self, kind: SpaceKind, who: &str) -> Result<Option<PropValue>, Error> {
        let Ok(id) = who.parse::<u64>() else { return Ok(None) };
        if self.head_kind()? != Kind::Filesystem {
            return Ok(None);
        }
        Ok(self.userspace_one(kind, id)?.map(|n| PropValue {
            value: Value::Number(n),
            source: Source::Local,
            received: None,
        }))
    }

    fn written_prop(&self, since: &str) -> Result<u64, Error> {
        let head = self.name().split('@').next().unwrap_or("");
        // a full name, or one of this dataset
        let name = since.get(1..).unwrap_or("");
        let is_full = name.contains(['@', '#']);
        let full = if is_full { name.to_string() } else { format!("{head}{since}") };
        let space = if full.contains('#') {
            self.written_since_bookmark(&self.pool().bookmark(&full)?)?
        } else {
            self.written_since(&self.pool().dataset(&full)?)?
        };
        Ok(space.used)
    }
}

fn is_zpl(name: &str) -> bool {
    matches!(name, "version" | "normalization" | "utf8only" | "casesensitivity") || name.starts_with("default")
}

/// Computed properties have no default; those that are set at creation do.
fn has_default(def: &PropDef) -> bool {
    def.attr != Attr::ReadOnly || matches!(def.name, "filesystem_count" | "snapshot_count")
}

/// Values that are no defaults and name no source are taken to be set here (OpenZFS: `get_numeric_property`).
fn is_local_without_source(name: &str) -> bool {
    matches!(
        name,
        "canmount"
            | "volsize"
            | "quota"
            | "refquota"
            | "reservation"
            | "refreservation"
            | "filesystem_limit"
            | "snapshot_limit"
            | "filesystem_count"
            | "snapshot_count"
    )
}
