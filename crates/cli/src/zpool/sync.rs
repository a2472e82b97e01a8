//! `zpool sync` and `zpool condense`: write out what is pending.

use control::Ioc;
use nvlist::NvList;
use pool::Activity;
use site::Imported;

use crate::args::TYPES;
use crate::command::Call;
use crate::console::here;
use crate::error::{Failure, Outcome, failed, usage};
use crate::{messages, pools, writable};

/// The structures that can be condensed.
const CONDENSE_TYPES: [&str; 1] = ["log_spacemap"];

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let force = call.args.has('f');
    Ok(pools::for_each_record(&call.args.names(), |record| sync(record, force))?.0)
}

/// Checks that the pool can be written: between two commands nothing is unwritten.
fn sync(record: &Imported, force: bool) -> Result<(), Failure> {
    if record.readonly {
        return Ok(());
    }
    let doing = format!("sync '{}' failed", record.name);
    let spa = writable::open(record, &doing)?;
    let mut input = NvList::new();
    input.insert("force", force);
    writable::ask(&spa, &doing, Ioc::PoolSync, &input)?;
    here().close(&spa).map_err(|e| failed(format!("{doing}: {}", messages::why(&e))))
}

pub(super) fn condense(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    if let Some(kind) = args.text('t').filter(|kind| !CONDENSE_TYPES.contains(&kind.as_str())) {
        return Err(usage(format!("invalid condense type '{kind}'")));
    }
    if args.has(TYPES) {
        CONDENSE_TYPES.iter().for_each(|kind| println!("{kind}"));
        return Ok(0);
    }
    let names = args.names();
    if names.is_empty() && !args.has('a') {
        return Err(usage("missing pool name argument"));
    }
    if args.has('w') && args.has('c') {
        return Err(usage("-w cannot be used with -c"));
    }
    let (status, _) = pools::for_each_record(&names, |record| {
        let doing = format!("condense '{}' failed", record.name);
        if args.has('c') {
            // it is done by the end of the command
            return Err(failed(format!("{doing}: operation is not in progress")));
        }
        let spa = writable::open(record, &doing)?;
        for kind in CONDENSE_TYPES {
            let mut input = NvList::new();
            input.insert("condense_command", "start");
            input.insert("condense_type", kind);
            writable::ask(&spa, &doing, Ioc::PoolCondense, &input)?;
        }
        writable::wait(&spa, &doing, Activity::Condense)?;
        writable::close(&spa, &doing)
    })?;
    Ok(status)
}
