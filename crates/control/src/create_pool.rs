//! New pools (OpenZFS: `zfs_ioc_pool_create`).

use nvlist::NvList;
use pool::{CreateOptions, Hooks, PropSource, Spa, Value};
use vdev::create::NewPool;

use crate::datasets::fill_fs;
use crate::decode::Props;
use crate::keys::new_key;
use crate::{Caller, Control, Failed};

/// The properties that are checked against the space of the finished pool, and so come last.
const LIMITS: [&str; 6] = ["quota", "refquota", "reservation", "refreservation", "filesystem_limit", "snapshot_limit"];

impl Control {
    /// Makes a pool. `root` is what its own file system gets, as in the `props` of a new dataset, with `hidden_args` as there; it takes the
    /// place of `options.fs_props`, `options.key` and `options.populate`. What was on the devices is lost.
    ///
    /// # Errors
    /// [`Failed`]. Once the devices are written, as when a limit does not fit, the new pool is destroyed.
    pub fn create_pool(
        new: NewPool,
        options: CreateOptions,
        root: &NvList,
        hidden: Option<&NvList>,
        (hooks, caller): (Hooks, Caller),
    ) -> Result<Control, Failed> {
        let mut props = Props::of_dataset(Some(root))?;
        let (key, _) = new_key(&mut props, hidden)?;
        let populate = fill_fs(&mut props, None, caller, hooks.env.now())?;
        let is_limit = |(name, _): &(String, Value)| LIMITS.contains(&name.as_str());
        let (limits, fs_props): (Vec<_>, Vec<_>) = props.values.into_iter().partition(is_limit);
        let wrapping = key.as_ref().map(|key| key.wrapping.clone());
        let options = CreateOptions { fs_props, key, populate: Some(populate), ..options };
        let control = Control::new(Spa::create(new, options, hooks)?, caller);
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
                spa.destroy()?;
                Err(failed)
            }
        }
    }
}
