//! New pools (OpenZFS: `zfs_ioc_pool_create`).

use std::sync::Arc;

use nvlist::{NvList, Value as Nv};
use pool::prop::check_pool_value;
use pool::{CreateOptions, Hooks, PropSource, Spa, Value, feature};
use vdev::create::LayoutOptions;

use crate::datasets::fill_fs;
use crate::decode::{Props, require_list};
use crate::devices::{Devices, Opened};
use crate::keys::new_key;
use crate::vdevs::lay_out;
use crate::{Caller, Control, Error, Failed, Ioc, NewVdevs};

/// The properties that are checked against the space of the finished pool, and so come last.
const LIMITS: [&str; 6] = ["quota", "refquota", "reservation", "refreservation", "filesystem_limit", "snapshot_limit"];
/// Names in `props` that are no properties of the pool: those of its root file system (OpenZFS: `ZPOOL_ROOTFS_PROPS`), and its key.
const ROOT_PROPS: &str = "root-props-nvl";
const HIDDEN: &str = "hidden_args";
/// The name of the pool while it is open (OpenZFS: the property `tname`).
const TEMPORARY: &str = "tname";
const FEATURE: &str = "feature@";
/// Properties that are of one opening of a pool, and are not stored.
pub const TRANSIENT: [&str; 3] = ["altroot", "cachefile", "readonly"];
/// The version of pools with features.
const VERSION_FEATURES: u64 = 5000;

impl Control {
    /// Answers [`Ioc::PoolCreate`]: the pool `name` is open then. What was on the devices is lost.
    ///
    /// # Errors
    /// [`Failed`]. Once the devices are written, as when a limit does not fit, the new pool is destroyed.
    pub fn create_pool(
        name: &str,
        input: &NvList,
        (hooks, caller): (Hooks, Caller),
        devices: Arc<dyn Devices>,
    ) -> Result<Control, Failed> {
        Ioc::PoolCreate.check(input)?;
        let new = NewVdevs::of_list(require_list(input, "config")?)?;
        new.spec.require_normal().map_err(|e| Error::Invalid(e.to_string()))?;
        let said = input.get_nvlist("props");
        let mut options = pool_options(name, said)?;
        let mut props = Props::of_dataset(said.and_then(|said| said.get_nvlist(ROOT_PROPS)))?;
        let (key, _) = new_key(&mut props, said.and_then(|said| said.get_nvlist(HIDDEN)))?;
        // the names of snapshots of the topmost one are exact, as in OpenZFS, whatever those of files are
        let populate = fill_fs(&mut props, None, &caller, hooks.env.now())?.init;
        let is_limit = |(name, _): &(String, Value)| LIMITS.contains(&name.as_str());
        let (limits, fs_props): (Vec<_>, Vec<_>) = props.values.into_iter().partition(is_limit);
        let wrapping = key.as_ref().map(|key| key.wrapping.clone());
        (options.fs_props, options.key, options.populate) = (fs_props, key, Some(populate));
        let layout = LayoutOptions { ashift: new.ashift, ..LayoutOptions::default() };
        let (laid_out, opened) = lay_out(&new, &*devices, layout, &hooks.env)?;
        let Opened { devices: own, meanwhile } = opened;
        // one that goes, and is back, can be opened again by the new pool alone
        drop(own);
        let control = Control::new(Spa::create(laid_out, options, hooks)?, caller).on(devices);
        drop(meanwhile);
        control.note_change();
        let spa = control.spa();
        let finish = || -> Result<(), Failed> {
            if let Some(wrapping) = &wrapping {
                spa.load_key(spa.name(), wrapping)?;
            }
            if !limits.is_empty() {
                spa.set_props(spa.name(), &limits, PropSource::Local)?;
            }
            Ok(control.set_quotas(spa.name(), &props.quotas)?)
        };
        match finish() {
            Ok(()) => Ok(control),
            Err(failed) => {
                // the error is what counts; the pool is stopped in any case
                let _destroyed = spa.destroy();
                Err(failed)
            }
        }
    }
}

/// The properties of the pool itself. Features are those that are named, and no others.
fn pool_options(name: &str, said: Option<&NvList>) -> Result<CreateOptions, Error> {
    let mut options = CreateOptions { features: Vec::new(), ..CreateOptions::new(name) };
    let invalid = |name: &str| Error::Invalid(format!("'{name}' cannot be set on a new pool"));
    for (name, value) in said.into_iter().flatten() {
        if matches!(name, ROOT_PROPS | HIDDEN) {
            continue;
        }
        let value = match value {
            Nv::Uint64(n) => Value::Number(*n),
            Nv::String(text) => Value::String(text.to_str().ok_or_else(|| invalid(name))?.to_owned()),
            _ => return Err(invalid(name)),
        };
        if let Some(known) = name.strip_prefix(FEATURE) {
            options.features.push(feature::by_name(known).ok_or_else(|| invalid(name))?.name);
            continue;
        }
        if name == TEMPORARY {
            options.temporary_name = value.text().map(str::to_owned);
            continue;
        }
        check_pool_value(name, &value).map_err(|_| invalid(name))?;
        match (name, &value) {
            ("version", Value::Number(VERSION_FEATURES)) => {}
            ("version", _) => return Err(Error::NotSupported(name.to_owned())),
            ("altroot", Value::String(altroot)) => options.altroot = Some(altroot.clone()),
            _ if TRANSIENT.contains(&name) => {}
            _ => options.props.push((name.to_owned(), value)),
        }
    }
    Ok(options)
}
