//! The properties of a vdev (OpenZFS: `vdev_prop_get`, `vdev_prop_set`).
//!
//! What is set stands in a ZAP of the vdev: the root's, a top-level vdev's or a leaf's, the first that there is. Spares and caches have none.
//! Leaves are judged by `io_n`, `io_t`, `checksum_n` and `checksum_t` (`thresholds`); what is set for slow I/O, and schedulers, is kept for OpenZFS.
//! `allocating` counts from the next opening on.

use std::sync::Arc;

use base::Guid;
use ondisk::label::key;
use ondisk::{VDEV_LABEL_END_SIZE, VDEV_LABEL_START_SIZE};
use vdev::{VdevConfig, VdevState, VdevStatus, VdevType};

use crate::spa::create::stored;
use crate::spa::metaslab::AllocClass;
use crate::spa::mos;
use crate::spa::prop::{self, PropDef, PropKind, PropValue, Source, THIRD, Value};
use crate::spa::{Spa, VdevRefusal, thresholds};
use crate::{Error, Pool, VdevSpace};

/// A path that a device may be given begins so.
const DEVICES: &str = "/dev/";

/// A vdev with what its properties are computed from.
struct FoundVdev {
    config: VdevConfig,
    parent: Option<VdevConfig>,
    /// The top-level vdev that it is, or that it is in.
    top: Option<u64>,
    /// How it is; `None` for spares and caches.
    status: Option<VdevStatus>,
}

impl FoundVdev {
    fn is_top(&self) -> bool {
        self.parent.as_ref().is_some_and(|parent| parent.kind == VdevType::Root)
    }

    fn is_root(&self) -> bool {
        self.config.kind == VdevType::Root
    }
}

/// The properties of one vdev, spare or cache. What is set was read when it was made.
pub struct VdevProps<'a> {
    pool: &'a Pool,
    found: FoundVdev,
    stored: Vec<(String, Value)>,
}

impl VdevProps<'_> {
    /// The native property `name`; `None` for what is no property, and for what such a vdev does not have and that is not shown for it.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn get(&self, name: &str) -> Result<Option<PropValue>, Error> {
        let Some(def) = prop::find_vdev(name) else { return Ok(None) };
        let (pool, found) = (self.pool, &self.found);
        let text = |text: Option<String>| match text {
            Some(text) => PropValue::text(text),
            None => set_nowhere(def),
        };
        let raw = |key: &str| text(found.config.raw.get_str(key).map(str::to_owned));
        Ok(Some(match def.name {
            "name" => text(Some(pool.kernel_name(&found.config))),
            "path" => text(found.config.path.clone()),
            "devid" => raw("devid"),
            "physpath" => raw("phys_path"),
            "encpath" => raw("vdev_enc_sysfs_path"),
            "fru" => raw("fru"),
            "parent" => text(found.parent.as_ref().map(|parent| pool.kernel_name(parent))),
            "children" => {
                let names: Vec<String> = found.config.children.iter().map(|c| pool.kernel_name(c)).collect();
                text(Some(names.join(",")).filter(|_| !names.is_empty()))
            }
            "comment" => match self.stored(def.name) {
                Some(Value::String(text)) => PropValue { source: Source::Local, ..PropValue::text(text.clone()) },
                _ => set_nowhere(def),
            },
            _ => return self.number(def),
        }))
    }

    /// The user properties, by their names: texts in its ZAP (OpenZFS shows its allocation bias among them).
    #[must_use]
    pub fn user(&self) -> Vec<(String, PropValue)> {
        let texts = self.stored.iter().filter_map(|(name, value)| Some((name, value.text()?)));
        let own = texts.filter(|(name, _)| prop::find_vdev(name).is_none());
        own.map(|(name, text)| (name.clone(), PropValue { source: Source::Local, ..PropValue::text(text) })).collect()
    }

    fn stored(&self, name: &str) -> Option<&Value> {
        self.stored.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// A property that is a number, or one of some words.
    fn number(&self, def: &'static PropDef) -> Result<Option<PropValue>, Error> {
        let (pool, found, config) = (self.pool, &self.found, &self.found.config);
        let leaf = config.children.is_empty() && !found.is_root();
        let tree = pool.tree();
        let shape = found.top.and_then(|top| tree.top(top)).map(|top| top.config());
        let striped = |config: &VdevConfig| matches!(config.kind, VdevType::Raidz | VdevType::Draid);
        let number = match def.name {
            "allocating" if found.top.is_some() && !found.is_top() => THIRD,
            "failfast" => return Ok(Some(self.failfast(def))),
            "autosit" if !striped(config) => return Ok(None),
            "raidz_expanding" if config.kind != VdevType::Raidz => return Ok(None),
            "raidz_expanding" => u64::from(config.raidz_expanding),
            "sit_out" if leaf && shape.is_some_and(striped) => 0,
            "sit_out" => return Ok(None),
            "trim_support" if !leaf => return Ok(Some(PropValue::text("-"))),
            "trim_support" => tree.leaf(config.guid).is_some_and(|leaf| leaf.discards().plainly).into(),
            "alloc_bias" if !found.is_top() => return Ok(None),
            "alloc_bias" => match found.top.and_then(|top| tree.top(top)).map(|top| pool.vdev_class(top)) {
                Some(AllocClass::Log) => 1,
                Some(AllocClass::Special) => 2,
                Some(AllocClass::Dedup) => 3,
                _ => 0,
            },
            "failure_domain" | "failure_group" => match shape.and_then(|top| place_in_groups(top, config.guid)) {
                Some((domain, group)) => {
                    if def.name == "failure_domain" {
                        domain
                    } else {
                        group
                    }
                }
                None => return Ok(Some(set_nowhere(def))),
            },
            // nothing tells
            "bootsize" => return Ok(Some(set_nowhere(def))),
            _ if def.is_read_only() => pool.vdev_fact(def.name, found)?,
            _ => {
                let n = self.stored(def.name).and_then(Value::number).unwrap_or(def.default_number());
                let source = if n == def.default_number() { Source::Default } else { Source::Local };
                return Ok(Some(PropValue { source, ..PropValue::computed(n) }));
            }
        };
        Ok(Some(PropValue::computed(number)))
    }

    fn failfast(&self, def: &'static PropDef) -> PropValue {
        let found = &self.found;
        let unset = if found.is_root() { def.default_number() } else { THIRD };
        let n = self.stored(def.name).and_then(Value::number).unwrap_or(unset);
        let default = n == THIRD || (found.is_root() && n == def.default_number());
        let source = if default { Source::Default } else { Source::Local };
        PropValue { source, ..PropValue::computed(n) }
    }
}

impl Pool {
    /// The properties of the vdev, spare or cache with this guid.
    ///
    /// # Errors
    /// [`Error::Vdevs`] if there is no such vdev; when the MOS cannot be read.
    pub fn vdev_props(&self, vdev: Guid) -> Result<VdevProps<'_>, Error> {
        let found = self.find_vdev(vdev)?;
        let mut stored = Vec::new();
        if let Some(zap) = self.mos.zap_if(found.config.props_zap())? {
            for (name, value) in mos::named_entries(&zap)? {
                let text = value.str().map(|text| Value::String(text.to_owned()));
                stored.extend(text.or_else(|| value.u64().map(Value::Number)).map(|value| (name, value)));
            }
        }
        Ok(VdevProps { pool: self, found, stored })
    }

    fn find_vdev(&self, vdev: Guid) -> Result<FoundVdev, Error> {
        let status = self.tree().status().walk().find(|status| status.guid == vdev).cloned();
        let root = self.tree().config();
        if root.guid == vdev {
            return Ok(FoundVdev { config: root.clone(), parent: None, top: None, status });
        }
        for top in &root.children {
            let mut parents = std::iter::once(root).chain(top.walk());
            let parent = parents.find(|parent| parent.children.iter().any(|child| child.guid == vdev));
            let child = parent.and_then(|parent| parent.children.iter().find(|child| child.guid == vdev));
            if let (Some(parent), Some(child)) = (parent, child) {
                let top = if parent.guid == root.guid { child.id } else { top.id };
                return Ok(FoundVdev { config: child.clone(), parent: Some(parent.clone()), top: Some(top), status });
            }
        }
        for list in self.spares()?.iter().chain(&self.l2cache()?) {
            if list.get_u64(key::GUID) == Some(vdev.0) {
                let config = VdevConfig::parse(list)?;
                return Ok(FoundVdev { config, parent: None, top: None, status: None });
            }
        }
        Err(Error::Vdevs(VdevRefusal::NoDevice))
    }

    /// Returns the name that OpenZFS's kernel gives a vdev.
    fn kernel_name(&self, config: &VdevConfig) -> String {
        match &config.path {
            Some(path) => path.clone(),
            None if config.kind == VdevType::Root => self.name().to_owned(),
            None => format!("{}-{}", config.kind.name(), config.id),
        }
    }

    /// Returns a property that is computed. Operations and bytes are counted nowhere across commands.
    fn vdev_fact(&self, name: &str, found: &FoundVdev) -> Result<u64, Error> {
        let config = &found.config;
        let device = self.tree().leaf(config.guid).and_then(|leaf| leaf.device());
        let errors = |count: fn(&VdevStatus) -> u64| found.status.as_ref().map_or(0, count);
        Ok(match name {
            "guid" => config.guid.0,
            "state" => state_number(found.status.as_ref().map_or(VdevState::Healthy, |status| status.state)),
            "parity" => config.nparity,
            "numchildren" => config.children.len() as u64,
            "removing" => u64::from(config.removing),
            "ashift" if config.ashift != 0 => config.ashift,
            "ashift" => device.map_or(0, |device| device.kind().logical_ashift),
            "asize" if found.is_top() && config.asize != 0 => config.asize,
            "asize" => self.tree().max_asize(config).unwrap_or(0),
            "psize" if config.kind.is_leaf() => {
                self.tree().max_asize(config).map_or(0, |n| n + VDEV_LABEL_START_SIZE + VDEV_LABEL_END_SIZE)
            }
            "read_errors" => errors(|status| status.errors.read),
            "write_errors" => errors(|status| status.errors.write),
            "checksum_errors" => errors(|status| status.errors.checksum),
            "expandsize" => found.top.filter(|_| found.is_top()).map_or(0, |top| self.growth(top)),
            "fragmentation" => match found.top.filter(|_| found.is_top()) {
                Some(top) => self.vdev_fragmentation(top)?.unwrap_or(u64::MAX),
                None => 0,
            },
            "size" | "free" | "allocated" | "capacity" => {
                let (size, allocated) = self.vdev_stat_space(found)?;
                match name {
                    "size" => size,
                    "allocated" => allocated,
                    "free" => size.saturating_sub(allocated),
                    _ => (u128::from(allocated) * 100).checked_div(size.into()).unwrap_or(0) as u64,
                }
            }
            _ => 0,
        })
    }

    /// Size without parity, and what is allocated, parity included (OpenZFS: `vs_dspace`, `vs_alloc`): only the root and top-level vdevs have
    /// them; the root's is that of all but logs.
    fn vdev_stat_space(&self, found: &FoundVdev) -> Result<(u64, u64), Error> {
        let mut sum = (0u64, 0u64);
        let wanted = |id: u64| found.is_root() || (found.is_top() && found.top == Some(id));
        for top in self.tree().tops().iter().filter(|top| wanted(top.id())) {
            let Some(VdevSpace { size, allocated, class, .. }) = self.vdev_space(top.id())? else { continue };
            if !found.is_root() || class != AllocClass::Log {
                sum = (sum.0.saturating_add(top.deflated(size)), sum.1.saturating_add(allocated));
            }
        }
        Ok(sum)
    }
}

impl Spa {
    /// Sets properties of the vdev with this guid, in one txg; the caller has checked names and types. An empty user property is removed.
    ///
    /// # Errors
    /// [`Error::Vdevs`] if there is no such vdev, it cannot have one of them, or not this value; when the pool is suspended.
    pub fn set_vdev_props(self: &Arc<Self>, vdev: Guid, props: Vec<(String, Value)>) -> Result<(), Error> {
        let view = self.view()?;
        let found = view.find_vdev(vdev)?;
        for (name, value) in &props {
            view.check_vdev_prop(&found, name, value).map_err(Error::Vdevs)?;
            crate::spa::check_prop_room(name, value)?;
        }
        let id = found.config.props_zap();
        self.sync_task(move |cx| {
            let zap = cx.mos.zap(id)?;
            for (name, value) in &props {
                cx.spa.put_vdev_prop(vdev, name, value);
                let removed = prop::is_user_property(name) && value.text() == Some("");
                match removed {
                    true => drop(zap.remove(cx.tx, name)?),
                    false => zap.update_value(cx.tx, name, &stored(value))?,
                }
                let what = format!("vdev_guid={}: {name}={value}", vdev.0);
                cx.spa.log_internal(cx.mos, cx.tx, "vdev set", &what)?;
            }
            if props.iter().any(|(name, _)| thresholds::is_threshold(name)) {
                cx.spa.forget_thresholds();
            }
            Ok(())
        })
    }

    /// Changes a property that the configuration has as well.
    fn put_vdev_prop(&self, vdev: Guid, name: &str, value: &Value) {
        if !matches!(name, "path" | "allocating") {
            return;
        }
        self.edit_vdev(vdev.0, &mut |nv| match (name, value) {
            ("path", Value::String(path)) => nv.insert(key::PATH, path.as_str()),
            ("allocating", Value::Number(0)) => nv.insert(key::NON_ALLOCATING, 1u64),
            ("allocating", _) => _ = nv.remove_all(key::NON_ALLOCATING),
            _ => {}
        });
    }
}

impl Pool {
    fn check_vdev_prop(&self, found: &FoundVdev, name: &str, value: &Value) -> Result<(), VdevRefusal> {
        let (config, on) = (&found.config, value.number() == Some(1));
        let invalid = Err(VdevRefusal::BadValue);
        match (name, value) {
            _ if config.props_zap().is_none() => invalid,
            ("path", _) if config.path.is_none() => Err(VdevRefusal::NotSettable),
            ("path", Value::String(path)) if !path.starts_with(DEVICES) => invalid,
            ("failfast", Value::Number(THIRD)) if found.is_root() => invalid,
            ("autosit", _) if !matches!(config.kind, VdevType::Raidz | VdevType::Draid) => {
                Err(VdevRefusal::NotSettable)
            }
            ("sit_out" | "alloc_bias", _) => Err(VdevRefusal::NotSettable),
            ("allocating", Value::Number(THIRD)) => invalid,
            ("allocating", _) if !found.is_top() || config.is_log => Err(VdevRefusal::NotSettable),
            ("allocating", _) if !on && self.is_last_allocating(config) => invalid,
            _ => Ok(()),
        }
    }

    /// Whether nothing could be written any more without this vdev.
    fn is_last_allocating(&self, config: &VdevConfig) -> bool {
        let allocates = |top: &VdevConfig| !top.removing && top.raw.get_u64(key::NON_ALLOCATING).unwrap_or(0) == 0;
        let normal = self.tree().tops().iter().filter(|t| t.is_concrete() && self.vdev_class(t) == AllocClass::Normal);
        !normal.into_iter().any(|top| top.guid() != config.guid && allocates(top.config()))
    }
}

fn set_nowhere(def: &'static PropDef) -> PropValue {
    let value = match def.kind {
        PropKind::String { .. } => Value::String("-".to_owned()),
        _ => Value::Number(def.default_number()),
    };
    PropValue { value, source: Source::Default, received: None }
}

/// The failure domain and group of a child of a dRAID that has some.
fn place_in_groups(top: &VdevConfig, child: Guid) -> Option<(u64, u64)> {
    let in_group = top.draid_nchildren.filter(|n| *n != 0 && *n < top.children.len() as u64)?;
    let place = top.children.iter().position(|c| c.guid == child)? as u64;
    Some((place % in_group, place / in_group))
}

/// OpenZFS: `vdev_state_t`.
const fn state_number(state: VdevState) -> u64 {
    match state {
        VdevState::Offline => 2,
        VdevState::Removed => 3,
        VdevState::CantOpen => 4,
        VdevState::Faulted => 5,
        VdevState::Degraded => 6,
        VdevState::Healthy => 7,
    }
}
