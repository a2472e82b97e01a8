//! `zpool clear`: devices that were given up are tried again.
//!
//! Errors are counted while a command runs, and are gone with it; what stays are the states that a pool's configuration holds.

use base::Guid;

use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::state::Imported;
use crate::{pools, writable};

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
    let spa = writable::open(record, &doing)?;
    let guid = match device {
        None => None,
        Some(wanted) => {
            let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
            let is = |leaf: &vdev::Leaf| {
                leaf.guid().0.to_string() == wanted
                    || leaf.path().is_some_and(|path| path == wanted || base(path) == wanted)
            };
            let found = spa.tree().leaves().iter().find(|leaf| is(leaf)).map(|leaf| leaf.guid());
            Some(found.ok_or_else(|| failed(format!("{doing}: no such device in pool")))?)
        }
    };
    spa.clear(guid.map(|Guid(guid)| guid)).map_err(|e| failed(format!("{doing}: {}", writable::why(&e))))?;
    writable::close(&spa, &doing)
}
