//! `zpool export`: marks a pool as one that any machine may import, and forgets it. On the devices of a pool that was
//! imported read-only nothing changes. A pool that cannot be opened, because its devices are gone or hold an older
//! state only, is forgotten with `-f`.

use control::Ioc;
use pool::Pool;
use site::{Imported, devices};
use vdev::import::PoolState;

use crate::command::Call;
use crate::console::here;
use crate::error::{Failure, Outcome, failed, usage};
use crate::{messages, pools, writable, zfs};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let names = call.args.names();
    let all = call.args.has('a');
    if all && !names.is_empty() {
        return Err(usage("too many arguments"));
    }
    if !all && names.is_empty() {
        return Err(usage("missing pool argument"));
    }
    // -F leaves the devices alone
    let (force, hard) = (call.args.has('f'), call.args.has('F'));
    let leave = |record: &Imported| {
        let unmounted = zfs::disable(record.guid, force)?;
        export(record, force, hard)?;
        unmounted();
        Ok(())
    };
    Ok(pools::for_each_record(&names, leave)?.0)
}

fn export(record: &Imported, force: bool, hard: bool) -> Result<(), Failure> {
    let name = &record.name;
    if !record.readonly && !hard && !is_left(record) {
        match devices::candidate(record) {
            // absent devices cannot be marked; if they are found again they still say that this machine uses the pool
            Err(_) if force => {}
            Err(why) => return Err(failed(format!("{why}\n'zpool export -f {name}' forgets it"))),
            Ok(found) if force && Pool::open(&found, &devices::options(record)).is_err() => {}
            Ok(_) => return writable::leave(record, &format!("cannot export '{name}'"), Ioc::PoolExport),
        }
    }
    here().forget(record).map_err(|e| failed(format!("cannot export '{name}': {}", messages::why_failed(&e))))
}

/// Returns whether another system or user has imported the pool since, and exported or destroyed it: then it only
/// needs to be forgotten.
fn is_left(record: &Imported) -> bool {
    devices::candidate(record).is_ok_and(|found| matches!(found.state, PoolState::Exported | PoolState::Destroyed))
}
