//! `zpool checkpoint`: a state to go back to, made or given up.

use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::state::Imported;
use crate::{pools, writable};

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
    spa.checkpoint().map_err(|e| failed(format!("{doing}: {}", writable::why(&e))))?;
    writable::close(&spa, &doing)
}

/// It is discarded when the command ends, so there is nothing to wait for (`-w`).
fn discard(record: &Imported) -> Result<(), Failure> {
    let doing = format!("cannot discard checkpoint in '{}'", record.name);
    let spa = writable::open(record, &doing)?;
    spa.discard_checkpoint().map_err(|e| match e {
        pool::Error::NoCheckpoint => failed(format!("{doing}: checkpoint does not exist")),
        other => failed(format!("{doing}: {}", writable::why(&other))),
    })?;
    writable::close(&spa, &doing)
}
