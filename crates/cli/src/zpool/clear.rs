//! `zpool clear`: resets error counts, and retries devices that were given up.

use base::Guid;
use control::Ioc;
use nvlist::NvList;
use site::suspended::Suspended;
use site::{Imported, Query, suspended};

use super::vdevs::Vdevs;
use crate::command::Call;
use crate::console::here;
use crate::error::{Failure, Outcome, failed, usage};
use crate::{pools, writable};

const NO_DEVICE: &str = "no such device in pool";

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let names = call.args.names();
    let (pool, device) = match names.as_slice() {
        [] => return Err(usage("missing pool name")),
        [pool] => (pool.clone(), None),
        [pool, device] => (pool.clone(), Some(device.clone())),
        _ => return Err(usage("too many arguments")),
    };
    // --power is for slots that can be switched on, and there are none; a pool that opens is not taken back to an earlier state, whatever is asked for; one that does not is exported, and imported with -F
    if (call.args.has('n') || call.args.has('X')) && !call.args.has('F') {
        return Err(usage("-n or -X only meaningful with -F"));
    }
    if here().find(&pool)?.is_none()
        && let Some((guid, suspended)) = suspended::named(&pool)
    {
        // another process is importing or creating it
        let doing = doing(device.as_deref().unwrap_or(&pool));
        let find = |wanted: String| suspended.vdev(&wanted).ok_or_else(|| failed(format!("{doing}: {NO_DEVICE}")));
        return clear_elsewhere(guid, &suspended, device.map(find).transpose()?, &doing).map(|()| 0);
    }
    Ok(pools::for_each_record(&[pool], |record| clear(record, device.as_deref()))?.0)
}

fn doing(name: &str) -> String {
    format!("cannot clear errors for {name}")
}

/// Has a suspended pool cleared by the process that has it open.
fn clear_elsewhere(guid: Guid, suspended: &Suspended, vdev: Option<Guid>, doing: &str) -> Result<(), Failure> {
    let cleared = suspended::clear(guid, suspended, vdev);
    cleared.map_err(|cause| failed(format!("{doing}: I/O error\n{cause}")))
}

fn clear(record: &Imported, device: Option<&str>) -> Result<(), Failure> {
    let doing = doing(device.unwrap_or(&record.name));
    let cannot = |why: &str| failed(format!("{doing}: {why}"));
    if let Some(suspended) = suspended::of(record.guid) {
        // the process that has it open does it; while the devices cannot be read, that knows the names
        let find = |wanted: &str| match pools::query(record) {
            Ok(pool) => find(&pool, wanted, &doing),
            Err(_) => suspended.vdev(wanted).ok_or_else(|| cannot(NO_DEVICE)),
        };
        let vdev = device.map(find).transpose()?;
        return clear_elsewhere(record.guid, &suspended, vdev, &doing);
    }
    let vdev = device.map(|wanted| find(&pools::query(record)?, wanted, &doing)).transpose()?;
    let spa = writable::open(record, &doing)?;
    let mut input = NvList::new();
    if let Some(vdev) = vdev {
        input.insert("guid", vdev.0);
    }
    writable::ask(&spa, &doing, Ioc::Clear, &input)?;
    // what is used again has missed something
    here().catch_up(&spa);
    writable::close(&spa, &doing)
}

/// The vdev that the operand names. A spare has nothing that could be cleared.
fn find(pool: &Query, wanted: &str, doing: &str) -> Result<Guid, Failure> {
    let cannot = |why: &str| failed(format!("{doing}: {why}"));
    let (vdev, _) = Vdevs::find(pool, wanted)?.ok_or_else(|| cannot(NO_DEVICE))?;
    if Vdevs::ask(pool)?.spares.iter().any(|spare| spare.guid == vdev.guid) {
        return Err(cannot("device is reserved as a hot spare"));
    }
    Ok(vdev.guid)
}
