//! `zpool export`: marks a pool as one that any machine may import, and forgets it. Of a pool that was imported read-only nothing on its devices
//! changes. One that cannot be opened, as its devices are gone or know an older state only, is forgotten with `-f`.

use control::Ioc;
use pool::Pool;
use vdev::import::PoolState;

use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::state::{self, Imported};
use crate::{pools, writable};

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
    Ok(pools::for_each_record(&names, |record| export(record, force, hard))?.0)
}

fn export(record: &Imported, force: bool, hard: bool) -> Result<(), Failure> {
    let name = &record.name;
    if !record.readonly && !hard && !is_left(record) {
        match pools::candidate(record) {
            // what is not there cannot be marked; it is still in use by this machine, for whoever finds it again
            Err(Failure::Failed(_)) if force => {}
            Err(Failure::Failed(why)) => return Err(failed(format!("{why}\n'zpool export -f {name}' forgets it"))),
            Err(other) => return Err(other),
            Ok(found) if force && Pool::open(&found, &pools::options(record)).is_err() => {}
            Ok(_) => writable::leave(record, &format!("cannot export '{name}'"), Ioc::PoolExport)?,
        }
    }
    state::forget(record.guid)
}

/// Whether another system or user has imported the pool since, and left it: there is nothing to be done then but to forget it.
fn is_left(record: &Imported) -> bool {
    pools::candidate(record).is_ok_and(|found| matches!(found.state, PoolState::Exported | PoolState::Destroyed))
}
