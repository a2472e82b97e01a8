//! `zfs wait`.

use control::Ioc;
use nvlist::NvList;

use super::session::Session;
use super::words::standard;
use crate::command::Call;
use crate::error::{Outcome, failed, usage};
use crate::names::Types;

/// The queue of deleted files (OpenZFS: `ZFS_WAIT_DELETEQ`).
const DELETEQ: i32 = 0;

pub(super) fn run(call: &Call<'_>) -> Outcome {
    if let Some(words) = call.args.text('t')
        && let Some(bad) = words.split(',').find(|word| *word != "deleteq")
    {
        return Err(usage(format!("invalid activity '{bad}'")));
    }
    let operands = call.args.names();
    let name = match operands.as_slice() {
        [] => return Err(usage("missing 'filesystem' argument")),
        [name] => name,
        _ => return Err(usage("too many arguments")),
    };
    Session::run(|session| {
        session.dataset(name, Types::FILESYSTEMS)?;
        let mut input = NvList::new();
        input.insert("wait_activity", DELETEQ);
        let done = session.requests(name)?.call(Ioc::WaitFs, name, &input);
        done.map_err(|e| failed(format!("failed to wait for activity in '{name}': {}", standard(&e))))?;
        Ok(0)
    })
}
