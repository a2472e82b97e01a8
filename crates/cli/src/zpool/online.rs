//! `zpool online`, `zpool offline` and `zpool reopen`: devices that are put to use, or taken out of it, or looked for.

use control::{Control, Ioc};
use nvlist::NvList;
use site::Imported;
use vdev::VdevState;

use super::vdevs::{Vdev, Vdevs};
use crate::args::POWER;
use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, failed, usage};
use crate::{messages, pools, writable};

/// The flags of the request (OpenZFS: `ZFS_ONLINE_EXPAND`, `ZFS_OFFLINE_TEMPORARY`, `VDEV_AUX_EXTERNAL`, `VDEV_AUX_EXTERNAL_PERSIST`).
const EXPAND: u64 = 8;
const TEMPORARILY: u64 = 1;
const EXTERNAL: u64 = 14;
const FOR_GOOD: u64 = 17;

/// The exit status where no slot of an enclosure can be switched on or off (OpenZFS: `ENOTSUP` of `zpool_power`).
const NO_POWER: u8 = 95;

/// A change of the devices that are named.
struct Change<'a> {
    /// `cannot online`.
    doing: &'a str,
    state: VdevState,
    flags: u64,
}

impl Change<'_> {
    fn expands(&self) -> bool {
        self.state == VdevState::Healthy && self.flags == EXPAND
    }
}

pub(super) fn online(call: &Call<'_>) -> Outcome {
    if call.args.has(POWER) {
        operands(call)?;
        eprintln!("Power control not supported");
        return Ok(NO_POWER);
    }
    let state = VdevState::Healthy;
    match call.args.has('e') {
        true => change(call, &Change { doing: "cannot expand", state, flags: EXPAND }),
        false => change(call, &Change { doing: "cannot online", state, flags: 0 }),
    }
}

pub(super) fn offline(call: &Call<'_>) -> Outcome {
    let temporarily = call.args.has('t');
    if call.args.has(POWER) {
        if let Some(other) = ['f', 't'].into_iter().find(|other| call.args.has(*other)) {
            return Err(usage(format!("-0 and -{other} cannot be used together")));
        }
        let (_, _, devices) = operands(call)?;
        devices.iter().for_each(|device| eprintln!("unable to power off slot for {device} {NO_POWER}"));
        return Ok(NO_POWER);
    }
    change(
        call,
        &match call.args.has('f') {
            true => Change {
                doing: "cannot fault",
                state: VdevState::Faulted,
                flags: if temporarily { EXTERNAL } else { FOR_GOOD },
            },
            false => Change {
                doing: "cannot offline",
                state: VdevState::Offline,
                flags: u64::from(temporarily) * TEMPORARILY,
            },
        },
    )
}

/// `zpool reopen`: devices are looked for by each command that opens a pool; this one says so, and waits for them to be brought up to date.
pub(super) fn reopen(call: &Call<'_>) -> Outcome {
    let restart = !call.args.has('n');
    Ok(pools::for_each_record(&call.args.names(), |record| reopen_one(record, restart))?.0)
}

fn reopen_one(record: &Imported, restart: bool) -> Result<(), Failure> {
    if record.readonly {
        return Ok(());
    }
    let doing = format!("cannot reopen '{}'", record.name);
    let spa = writable::open_as_it_is(record, &doing)?;
    let scrubs = spa.is_scrubbing().map_err(|e| failed(format!("{doing}: {}", messages::why(&e))))?;
    let mut input = NvList::new();
    input.insert("scrub_restart", restart);
    writable::ask(&spa, &doing, Ioc::PoolReopen, &input)?;
    if restart || !scrubs {
        here().catch_up(&spa);
    }
    writable::close(&spa, &doing)
}

/// The pool that is named, and the devices: the first one, and all.
fn operands(call: &Call<'_>) -> Result<(Imported, String, Vec<String>), Failure> {
    let mut devices = call.args.names();
    if devices.is_empty() {
        return Err(usage("missing pool name"));
    }
    let name = devices.remove(0);
    let Some(first) = devices.first().cloned() else { return Err(usage("missing device name")) };
    Ok((pools::find(&name)?, first, devices))
}

fn change(call: &Call<'_>, change: &Change<'_>) -> Outcome {
    let (record, first, devices) = operands(call)?;
    let name = &record.name;
    let doing = format!("{} {first}", change.doing);
    let query = pools::query(&record)?;
    // what others missed comes first: they may be needed for the one that goes
    let spa = writable::open(&record, &doing)?;
    let control = console::control(spa);
    let mut status = 0;
    for device in &devices {
        let is_online = change.state == VdevState::Healthy;
        let Some((vdev, aside)) = Vdevs::find(&query, device)? else {
            status = 1;
            match is_online {
                true => eprintln!("couldn't find device \"{device}\" in pool \"{name}\""),
                false => eprintln!("{} {device}: no such device in pool", change.doing),
            }
            continue;
        };
        let is_spare = aside && Vdevs::ask(&query)?.spares.iter().any(|spare| spare.guid == vdev.guid);
        let done = match () {
            () if is_spare => Err("device is reserved as a hot spare".to_owned()),
            () if aside && change.expands() => Err("cannot expand cache devices".to_owned()),
            () => one(&control, device, &vdev, change),
        };
        match done {
            Ok(true) => {}
            // the devices after it stay as they are
            Ok(false) => {
                status = 1;
                break;
            }
            Err(why) => {
                status = 1;
                eprintln!("{} {device}: {why}", change.doing);
                if is_online {
                    eprintln!("Failed to online \"{device}\" in pool \"{name}\": -1");
                }
            }
        }
    }
    if control.has_changed() {
        here().catch_up(control.spa());
    }
    writable::close(control.spa(), &doing)?;
    Ok(status)
}

/// Changes one device. Returns `false` if it cannot be expanded though it was in use, or the reason if it is refused.
fn one(control: &Control, device: &str, vdev: &Vdev, change: &Change<'_>) -> Result<bool, String> {
    let mut input = NvList::new();
    for (name, value) in [("guid", vdev.guid.0), ("state", change.state.number()), ("flags", change.flags)] {
        input.insert(name, value);
    }
    let out = control.call(Ioc::VdevSetState, control.spa().name(), &input).map_err(|e| messages::why_failed(&e))?;
    let state = out.get_u64("state");
    if change.state == VdevState::Healthy && state != Some(VdevState::Healthy.number()) {
        println!("warning: device '{device}' onlined, but remains in faulted state");
        match state == Some(VdevState::Faulted.number()) {
            true => println!("use 'zpool clear' to restore a faulted device"),
            false => println!("use 'zpool replace' to replace devices that are no longer present"),
        }
        if change.expands() {
            let was_in_use = vdev.state >= VdevState::Degraded;
            let what = if was_in_use { "error" } else { "warning" };
            println!("{what}: failed to expand usable space on unhealthy device '{device}'");
            return Ok(!was_in_use);
        }
    }
    Ok(true)
}
