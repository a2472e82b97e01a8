//! `zpool attach`, `zpool replace` and `zpool detach`.

use std::sync::Arc;

use base::{Errno, Guid};
use control::{Failed, Ioc};
use nvlist::NvList;
use site::{Imported, Query};
use vdev::VdevType;

use super::add::{ashift, asked_ashift, why};
use super::newdevs::NewVdevs;
use super::scrub;
use super::vdevs::{Class, Vdev, Vdevs, brief_stats};
use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, failed, usage};
use crate::{messages, pools, writable};

/// What is done with the new device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Attach,
    Replace,
}

pub(super) fn attach(call: &Call<'_>) -> Outcome {
    attach_or_replace(call, Verb::Attach)
}

pub(super) fn replace(call: &Call<'_>) -> Outcome {
    attach_or_replace(call, Verb::Replace)
}

fn attach_or_replace(call: &Call<'_>, verb: Verb) -> Outcome {
    let args = &call.args;
    let said = asked_ashift(args)?;
    let operands = args.names();
    let Some((name, devices)) = operands.split_first() else { return Err(usage("missing pool name argument")) };
    let (old, new) = match devices {
        [] => return Err(usage("missing <device> specification")),
        [old] if verb == Verb::Replace => (old, old),
        [_] => return Err(usage("missing <new_device> specification")),
        [old, new] => (old, new),
        _ => return Err(usage("too many arguments")),
    };
    let record = pools::find(name)?;
    let query = pools::query(&record)?;
    let config = brief_stats(&query)?;
    let doing = match verb {
        Verb::Replace => format!("cannot replace {old} with {new}"),
        Verb::Attach => format!("cannot attach {new} to {old}"),
    };
    let ashift = ashift(&query, &config, &said).map_err(|why| failed(format!("{doing}: {why}")))?;
    let vdevs = NewVdevs::find(std::slice::from_ref(new), None)?;
    // a spare of the pool may replace a device
    if verb == Verb::Attach || !vdevs.is_spare_of(name)? {
        vdevs.check_in_use(args.has('f'))?;
    }
    let target = target(&query, old, &doing)?;
    if verb == Verb::Replace && target.is_spare_in_use && !vdevs.is_spare_of(name)? {
        return Err(failed(format!("{doing}: can only be replaced by another hot spare")));
    }
    let mut input = vdevs.request(ashift, &[]);
    input.insert("guid", target.vdev.guid.0);
    for (key, is_set) in [("replacing", verb == Verb::Replace), ("rebuild", args.has('s'))] {
        if is_set {
            input.insert(key, nvlist::Value::Boolean);
        }
    }
    let asked = Asked { verb, target: &target, new, rebuild: args.has('s') };
    change(&record, &doing, args.has('w'), |control| {
        here().change_vdevs(control, Ioc::VdevAttach, &input).map(drop).map_err(|e| asked.why(&e))
    })
}

/// The device that is named, as it is in the pool.
struct Target {
    vdev: Vdev,
    parent: Option<Guid>,
    is_spare_in_use: bool,
}

/// Finds a device of a pool's tree; spares and caches are none.
fn target(query: &Query, device: &str, doing: &str) -> Result<Target, Failure> {
    let cannot = |why: &str| failed(format!("{doing}: {why}"));
    let all = Vdevs::ask(query)?;
    let (vdev, aside) = Vdevs::find(query, device)?.ok_or_else(|| cannot("no such device in pool"))?;
    let in_use = all.root.walk().into_iter().find(|inside| !inside.is_hidden() && inside.guid == vdev.guid).cloned();
    let is_spare = all.spares.iter().any(|spare| spare.guid == vdev.guid);
    let is_parent = |parent: &&Vdev| parent.children.iter().any(|child| child.guid == vdev.guid);
    let parent = all.root.walk().into_iter().find(is_parent).map(|parent| parent.guid);
    match in_use {
        Some(inside) => Ok(Target { vdev: inside, parent, is_spare_in_use: is_spare }),
        None if is_spare => Err(cannot("device is reserved as a hot spare")),
        None if aside => Err(cannot("device is in use as a cache")),
        None => Ok(Target { vdev, parent, is_spare_in_use: false }),
    }
}

/// A change that was asked for, for the reason why it was refused.
struct Asked<'a> {
    verb: Verb,
    target: &'a Target,
    new: &'a str,
    rebuild: bool,
}

impl Asked<'_> {
    /// The reason in OpenZFS's words (`zpool_vdev_attach`).
    fn why(&self, e: &Failed) -> String {
        let (is_raidz, is_log) = (self.target.vdev.kind == VdevType::Raidz, self.target.vdev.class == Class::Logs);
        match (e.errno, self.verb) {
            (Errno::ENOTSUP, _) if self.rebuild => {
                "sequential reconstruction is not supported in this version".to_owned()
            }
            (Errno::ENOTSUP, Verb::Replace) if is_log => "cannot replace a log with a spare".to_owned(),
            (Errno::ENOTSUP, Verb::Replace) => {
                "already in replacing/spare config; wait for completion or use 'zpool detach'".to_owned()
            }
            (Errno::ENOTSUP, Verb::Attach) if is_raidz => "a raidz cannot be expanded in this version".to_owned(),
            (Errno::ENOTSUP, Verb::Attach) => "can only attach to mirrors and top-level disks".to_owned(),
            (Errno::EINVAL, _) => "new device must be a single disk".to_owned(),
            (Errno::EBUSY, _) => format!("{} is busy", self.new),
            _ => why(e),
        }
    }
}

pub(super) fn detach(call: &Call<'_>) -> Outcome {
    let operands = call.args.names();
    let (name, device) = match operands.as_slice() {
        [] => return Err(usage("missing pool name argument")),
        [_] => return Err(usage("missing <device> specification")),
        [name, device, ..] => (name, device),
    };
    let record = pools::find(name)?;
    let doing = format!("cannot detach {device}");
    let target = target(&pools::query(&record)?, device, &doing)?;
    let mut input = NvList::new();
    input.insert("guid", target.vdev.guid.0);
    change(&record, &doing, false, |control| {
        // a replacement may have ended meanwhile: then something else was meant
        let tree = control.spa().tree();
        let parent = tree.config().walk().find(|vdev| vdev.children.iter().any(|child| child.guid == target.vdev.guid));
        if parent.map(|parent| parent.guid) != target.parent {
            return Err("the pool has changed meanwhile".to_owned());
        }
        drop(tree);
        here().change_vdevs(control, Ioc::VdevDetach, &input).map(drop).map_err(|e| match e.errno {
            Errno::ENOTSUP => "only applicable to mirror and replacing vdevs".to_owned(),
            Errno::EBUSY => "no valid replicas".to_owned(),
            _ => why(&e),
        })
    })
}

/// Makes a change, and has the devices that miss something brought up to date: with `waits` until they are.
fn change(
    record: &Imported,
    doing: &str,
    waits: bool,
    change: impl FnOnce(&control::Control) -> Result<(), String>,
) -> Outcome {
    let cannot = |why: String| failed(format!("{doing}: {why}"));
    let control = console::control(writable::open(record, doing)?).on(Arc::new(here()));
    change(&control).map_err(cannot)?;
    match waits {
        true => scrub::wait(&control).map_err(|e| cannot(messages::why_failed(&e)))?,
        false => here().catch_up(control.spa()),
    }
    writable::close(control.spa(), doing)?;
    Ok(0)
}
