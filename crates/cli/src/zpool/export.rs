//! `zpool export`: marks a pool as one that any machine may import, and forgets it. Of a pool that was imported read-only nothing on its devices
//! changes.

use control::Ioc;
use vdev::import::PoolState;

use crate::command::Call;
use crate::error::{Failure, Outcome, usage};
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
    let hard = call.args.has('F');
    Ok(pools::for_each_record(&names, |record| export(record, hard))?.0)
}

fn export(record: &Imported, hard: bool) -> Result<(), Failure> {
    let doing = format!("cannot export '{}'", record.name);
    if !record.readonly && !hard && !is_left(record) {
        writable::leave(record, &doing, Ioc::PoolExport)?;
    }
    state::forget(record.guid)
}

/// Whether another system or user has imported the pool since, and left it: there is nothing to be done then but to forget it.
fn is_left(record: &Imported) -> bool {
    pools::candidate(record).is_ok_and(|found| matches!(found.state, PoolState::Exported | PoolState::Destroyed))
}
