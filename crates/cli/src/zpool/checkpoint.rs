//! `zpool checkpoint`: makes a state to go back to, or discards it.

use std::sync::Arc;

use control::{Failed, Ioc};
use nvlist::NvList;
use pool::{Activity, Spa};
use site::Imported;

use crate::command::Call;
use crate::console;
use crate::error::{Failure, Outcome, failed, usage};
use crate::{messages, pools, writable};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    let names = args.names();
    if names.is_empty() {
        return Err(usage("missing pool argument"));
    }
    if args.has('w') && !args.has('d') {
        return Err(usage("--wait only valid when used with --discard"));
    }
    let work = |record: &Imported| if args.has('d') { discard(record) } else { make(record) };
    Ok(pools::for_each_record(&names, work)?.0)
}

fn make(record: &Imported) -> Result<(), Failure> {
    let doing = format!("cannot checkpoint '{}'", record.name);
    let spa = writable::open(record, &doing)?;
    ask(&spa, Ioc::PoolCheckpoint).map_err(|e| failed(format!("{doing}: {}", messages::why_failed(&e))))?;
    writable::close(&spa, &doing)
}

/// Discards the checkpoint. What only it held is freed in the background of the open pool, which ends with the command: this waits for it, with
/// or without `-w`.
fn discard(record: &Imported) -> Result<(), Failure> {
    let doing = format!("cannot discard checkpoint in '{}'", record.name);
    let spa = writable::open(record, &doing)?;
    ask(&spa, Ioc::PoolDiscardCheckpoint).map_err(|e| match &*e.error {
        control::Error::Pool(pool::Error::NoCheckpoint) => failed(format!("{doing}: checkpoint does not exist")),
        _ => failed(format!("{doing}: {}", messages::why_failed(&e))),
    })?;
    writable::wait(&spa, &doing, Activity::Discard)?;
    writable::close(&spa, &doing)
}

fn ask(spa: &Arc<Spa>, ioc: Ioc) -> Result<(), Failed> {
    console::control(Arc::clone(spa)).call(ioc, spa.name(), &NvList::new()).map(drop)
}
