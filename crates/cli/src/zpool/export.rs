//! `zpool export`: forgets a pool. Nothing on its devices changes.

use crate::command::Call;
use crate::error::{Failure, Outcome, usage};
use crate::state;

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let names = call.args.names();
    let all = call.args.has('a');
    if all && !names.is_empty() {
        return Err(usage("too many arguments"));
    }
    if !all && names.is_empty() {
        return Err(usage("missing pool argument"));
    }
    let mut status = 0;
    let chosen = if all {
        state::all()?
    } else {
        let mut chosen = Vec::new();
        for name in &names {
            match state::find(name)? {
                Some(pool) => chosen.push(pool),
                None => {
                    let why = crate::names::check_pool(name).err().unwrap_or_else(|| "no such pool".to_owned());
                    eprintln!("cannot open '{name}': {why}");
                    status = 1;
                }
            }
        }
        chosen
    };
    for pool in chosen {
        match state::forget(pool.guid) {
            Ok(()) => {}
            Err(Failure::Failed(why)) => {
                eprintln!("cannot export '{}': {why}", pool.name);
                status = 1;
            }
            Err(other) => return Err(other),
        }
    }
    Ok(status)
}
