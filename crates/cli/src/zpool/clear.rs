//! `zpool clear`: resets error counts, and retries devices that were given up.

use std::collections::HashSet;

use base::Guid;
use control::Ioc;
use nvlist::NvList;
use ondisk::label::key;
use site::{Imported, iostats, suspended};

use super::vdevs::{Vdev, Vdevs};
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::{messages, pools, writable};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let names = call.args.names();
    let (pool, device) = match names.as_slice() {
        [] => return Err(usage("missing pool name")),
        [pool] => (pool.clone(), None),
        [pool, device] => (pool.clone(), Some(device.clone())),
        _ => return Err(usage("too many arguments")),
    };
    Ok(pools::for_each_record(&[pool], |record| clear(record, device.as_deref()))?.0)
}

fn clear(record: &Imported, device: Option<&str>) -> Result<(), Failure> {
    let name = device.unwrap_or(&record.name);
    let doing = format!("cannot clear errors for {name}");
    if let Some(suspended) = suspended::of(Guid(record.guid)) {
        // the process that has it open does it; which device is meant can be told only while some can be read
        let vdev = device.and_then(|wanted| find(record, wanted, &doing).ok());
        let cleared = suspended::clear(Guid(record.guid), &suspended, vdev.map(|vdev| vdev.guid));
        return cleared.map_err(|cause| failed(format!("{doing}: I/O error\n{cause}")));
    }
    let vdev = device.map(|wanted| find(record, wanted, &doing)).transpose()?;
    let spa = writable::open(record, &doing)?;
    let mut input = NvList::new();
    if let Some(vdev) = &vdev {
        input.insert("guid", vdev.guid.0);
    }
    writable::ask(&spa, &doing, Ioc::Clear, &input)?;
    // what is used again has missed something
    writable::catch_up(&spa);
    writable::close(&spa, &doing)?;
    let below: Option<HashSet<Guid>> = vdev.map(|vdev| vdev.walk().iter().map(|vdev| vdev.guid).collect());
    iostats::clear(spa.guid(), |vdev| below.as_ref().is_none_or(|below| below.contains(&vdev)));
    Ok(())
}

/// The vdev that the operand names. A spare has nothing that could be cleared.
fn find(record: &Imported, wanted: &str, doing: &str) -> Result<Vdev, Failure> {
    let cannot = |why: &str| failed(format!("{doing}: {why}"));
    let pool = pools::open(record)?;
    let (vdev, _) = Vdevs::find(&pool, wanted)?.ok_or_else(|| cannot("no such device in pool"))?;
    let spares = pool.spares().map_err(|e| cannot(&messages::why(&e)))?;
    if spares.iter().any(|spare| spare.get_u64(key::GUID) == Some(vdev.guid.0)) {
        return Err(cannot("device is reserved as a hot spare"));
    }
    Ok(vdev)
}
