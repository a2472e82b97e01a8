//! `zpool destroy`.

use control::Ioc;

use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::{pools, writable, zfs};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let names = call.args.names();
    let name = match names.as_slice() {
        [] => return Err(usage("missing pool argument")),
        [name] => name,
        _ => return Err(usage("too many arguments")),
    };
    let record = pools::find(name).map_err(|failure| match failure {
        Failure::Failed(why) if name.contains('/') => failed(format!("{why}\nuse 'zfs destroy' to destroy a dataset")),
        other => other,
    })?;
    let doing = format!("cannot destroy '{name}'");
    if record.readonly {
        return Err(failed(format!("{doing}: one or more devices is read only")));
    }
    let unmounted = zfs::disable(record.guid, call.args.has('f')).map_err(|failure| match failure {
        Failure::Failed(why) => failed(format!("{why}\ncould not destroy '{name}': could not unmount datasets")),
        other => other,
    })?;
    writable::leave(&record, &doing, Ioc::PoolDestroy)?;
    unmounted();
    Ok(0)
}
