//! `zpool online`, `zpool offline` and `zpool reopen`: devices that are put to use, or taken out of it, or looked for.

use control::{Control, Ioc};
use nvlist::NvList;
use site::Imported;
use vdev::VdevState;

use super::vdevs::Vdevs;
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::{messages, pools, writable};

/// The flags of the request (OpenZFS: `ZFS_OFFLINE_TEMPORARY`, `VDEV_AUX_EXTERNAL`, `VDEV_AUX_EXTERNAL_PERSIST`).
const TEMPORARILY: u64 = 1;
const EXTERNAL: u64 = 14;
const FOR_GOOD: u64 = 17;

/// A change of the devices that are named.
struct Change<'a> {
    /// `cannot online`.
    doing: &'a str,
    state: VdevState,
    flags: u64,
}

pub(super) fn online(call: &Call<'_>) -> Outcome {
    if call.args.has('e') {
        return Err(usage("devices cannot be expanded in this version"));
    }
    change(call, &Change { doing: "cannot online", state: VdevState::Healthy, flags: 0 })
}

pub(super) fn offline(call: &Call<'_>) -> Outcome {
    let temporarily = call.args.has('t');
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
        writable::catch_up(&spa);
    }
    writable::close(&spa, &doing)
}

fn change(call: &Call<'_>, change: &Change<'_>) -> Outcome {
    let operands = call.args.names();
    let Some((name, devices)) = operands.split_first() else { return Err(usage("missing pool name")) };
    let Some(first) = devices.first() else { return Err(usage("missing device name")) };
    let record = pools::find(name)?;
    let doing = format!("{} {first}", change.doing);
    let pool = pools::open(&record)?;
    // what others missed comes first: they may be needed for the one that goes
    let spa = writable::open(&record, &doing)?;
    let control = Control::new(spa, writable::caller());
    let mut status = 0;
    for device in devices {
        if let Err(why) = one(&control, &pool, device, change)? {
            eprintln!("{} {device}: {why}", change.doing);
            status = 1;
        }
    }
    if control.has_changed() {
        writable::catch_up(control.spa());
    }
    writable::close(control.spa(), &doing)?;
    Ok(status)
}

/// Changes one device. Returns the reason if it is refused.
fn one(
    control: &Control,
    pool: &std::sync::Arc<pool::Pool>,
    device: &str,
    change: &Change<'_>,
) -> Result<Result<(), String>, Failure> {
    let Some((vdev, aside)) = Vdevs::find(pool, device)? else { return Ok(Err("no such device in pool".to_owned())) };
    if aside {
        return Ok(Err("device is reserved as a hot spare".to_owned()));
    }
    let mut input = NvList::new();
    for (name, value) in [("guid", vdev.guid.0), ("state", change.state.number()), ("flags", change.flags)] {
        input.insert(name, value);
    }
    let out = match control.call(Ioc::VdevSetState, control.spa().name(), &input) {
        Ok(out) => out,
        Err(e) => return Ok(Err(crate::messages::why_failed(&e))),
    };
    let state = out.get_u64("state");
    if change.state == VdevState::Healthy && state != Some(VdevState::Healthy.number()) {
        println!("warning: device '{device}' onlined, but remains in faulted state");
        match state == Some(VdevState::Faulted.number()) {
            true => println!("use 'zpool clear' to restore a faulted device"),
            false => println!("use 'zpool replace' to replace devices that are no longer present"),
        }
    }
    Ok(Ok(()))
}
