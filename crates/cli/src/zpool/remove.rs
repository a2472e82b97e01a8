//! `zpool remove`: logs, spares and caches. Data is not moved off vdevs in this version.

use control::Ioc;
use nvlist::NvList;
use site::Imported;

use super::add::why;
use super::vdevs::{Class, Vdevs};
use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Outcome, failed, usage};
use crate::{pools, writable};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    let operands = args.names();
    let Some((name, devices)) = operands.split_first() else { return Err(usage("missing pool name argument")) };
    let record = pools::find(name)?;
    if args.has('s') {
        if args.has('n') {
            eprintln!("stop request ignored");
            return Ok(0);
        }
        if !devices.is_empty() {
            return Err(usage("too many arguments"));
        }
        return Err(failed("cannot cancel removal: Operation canceled"));
    }
    if devices.is_empty() {
        return Err(usage("missing device"));
    }
    if args.has('n') {
        return tell_memory(&record, devices, args.has('p'));
    }
    remove(&record, devices)
}

/// Prints the memory that the mapping of a removed vdev would take.
fn tell_memory(record: &Imported, devices: &[String], parsable: bool) -> Outcome {
    let query = pools::query(record)?;
    for device in devices {
        let cannot = |why: &str| failed(format!("cannot determine indirect size of {device}: {why}"));
        let (vdev, aside) = Vdevs::find(&query, device)?.ok_or_else(|| cannot("no such device in pool"))?;
        if !aside && vdev.class != Class::Logs {
            return Err(cannot("indirect size not available"));
        }
        match parsable {
            true => println!("{device} 0"),
            false => println!("Memory that will be used after removing {device}: 0"),
        }
    }
    Ok(0)
}

fn remove(record: &Imported, devices: &[String]) -> Outcome {
    let first = devices.first().map_or("", String::as_str);
    let pool = pools::open(record)?;
    let query = here().query(&pool);
    let control = console::control(writable::open(record, &format!("cannot remove {first}"))?);
    let mut status = 0;
    for device in devices {
        let removed = Vdevs::find(&query, device)?.ok_or_else(|| "no such device in pool".to_owned());
        let removed = removed.and_then(|(vdev, _)| {
            let mut input = NvList::new();
            input.insert("guid", vdev.guid.0);
            here().change_vdevs(&control, Ioc::VdevRemove, &input).map_err(|e| why(&e))
        });
        if let Err(why) = removed {
            eprintln!("cannot remove {device}: {why}");
            status = 1;
        }
    }
    if control.has_changed() {
        writable::close(control.spa(), &format!("cannot remove {first}"))?;
    }
    Ok(status)
}
