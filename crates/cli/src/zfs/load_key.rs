//! `zfs load-key`.
//!
//! Nothing runs between commands that could keep a key. So `load-key` checks the key, and remembers *where it is* if that is a file
//! (`keylocation` or `-L file:///…`): later commands read it again. A key that was typed serves this command alone, and the
//! command says so. With `-n` nothing is remembered.

use pool::{Dataset, Entry};

use super::select::{Selection, said};
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::Types;
use crate::{keys, pools, state};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let noop = call.args.has('n');
    let all = call.args.has('a');
    let recursive = all || call.args.has('r');
    let location = call.args.text('L');
    let names = call.args.names();
    if !all && names.is_empty() {
        return Err(usage("Missing dataset argument or -a option"));
    }
    if all && !names.is_empty() {
        return Err(usage("Cannot specify dataset with -a option"));
    }
    if recursive && location.as_deref().is_some_and(|l| l != "prompt") {
        return Err(usage("alternate keylocation may only be 'prompt' with -r or -a"));
    }
    let mut selection = Selection::new(Types::HEADS);
    selection.recurse = recursive;
    let (entries, whole) = selection.run(&names)?;

    let (mut tried, mut failures) = (0, 0);
    for dataset in entries.iter().filter_map(Entry::dataset) {
        if recursive && !is_locked_root(dataset)? {
            continue;
        }
        tried += 1;
        match load(dataset, location.as_deref(), noop) {
            Ok(()) => {}
            Err(Failure::Failed(why)) => {
                eprintln!("{why}");
                failures += 1;
            }
            Err(other) => return Err(other),
        }
    }
    if noop || (recursive && tried != 0) {
        println!("{} / {tried} key(s) successfully {}", tried - failures, if noop { "verified" } else { "loaded" });
    }
    // OpenZFS's -1
    Ok(if failures > 0 { 255 } else { u8::from(!whole) })
}

fn is_locked_root(dataset: &Dataset) -> Result<bool, Failure> {
    let trouble = |e| failed(said(&e, dataset.name()));
    let root = dataset.encryption_root().map_err(trouble)?;
    let locked = dataset.key_status().map_err(trouble)? == pool::KeyStatus::Unavailable;
    Ok(root.as_deref() == Some(dataset.name()) && locked)
}

fn load(dataset: &Dataset, location: Option<&str>, noop: bool) -> Result<(), Failure> {
    let error = |why: String| failed(format!("Key load error: {why}"));
    let name = dataset.name();
    match dataset.encryption_root().map_err(|e| failed(said(&e, name)))? {
        None => return Err(error(format!("'{name}' is not encrypted."))),
        Some(root) if root != name => {
            return Err(error(format!("Keys must be loaded for encryption root of '{name}' ({root}).")));
        }
        Some(_) => {}
    }
    let loaded = dataset.key_status().map_err(|e| failed(said(&e, name)))? == pool::KeyStatus::Available;
    if !noop && loaded {
        return Err(error(format!("Key already loaded for '{name}'.")));
    }
    keys::load(dataset.pool(), name, location)?;
    if noop {
        return Ok(());
    }
    let stored = dataset.prop("keylocation").map_err(|e| failed(said(&e, name)))?.map(|p| p.value.to_string());
    let location = location.map(str::to_owned).or(stored).unwrap_or_default();
    match pools::record(dataset.pool()) {
        Some(mut record) if location.starts_with("file://") => {
            record.keys.retain(|(root, _)| root != name);
            record.keys.push((name.to_owned(), location));
            state::remember(&record)
        }
        _ => {
            eprintln!("The key of '{name}' is right. It was not read from a file, so no later command can use it.");
            Ok(())
        }
    }
}
