//! `zfs change-key`.

use base::Errno;
use control::{Failed, Ioc};
use nvlist::NvList;

use super::listed::Listed;
use super::select::{self, is_zoned, told};
use super::session::Session;
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::keys::{self, Material};
use crate::names::Types;
use crate::pools;
use crate::props::Said;
use crate::props::valid::{Target, add_said, valid};

/// Operations on keys (OpenZFS: `dcp_cmd_t`).
const NEW_KEY: u64 = 2;
const INHERIT: u64 = 3;
/// The exit status of OpenZFS's -1.
const MINUS_ONE: u8 = 255;

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let (load, inherit) = (call.args.has('l'), call.args.has('i'));
    let mut list: Vec<Said> = Vec::new();
    for value in call.args.values('o') {
        add_said(&mut list, &value.to_string_lossy()).map_err(failed)?;
    }
    let operands = call.args.names();
    let name = match operands.as_slice() {
        [] => return Err(usage("Missing dataset argument")),
        [name] => name,
        _ => return Err(usage("Too many arguments")),
    };
    Session::run(|session| {
        // as in OpenZFS, a dataset that does not exist is a usage error
        let dataset = session.dataset(name, Types::HEADS).map_err(|failure| match failure {
            Failure::Failed(why) => usage(why),
            other => other,
        })?;
        let done = change(session, &dataset, &list, load, inherit);
        match done {
            Err(Failure::Failed(why)) => {
                eprintln!("{why}");
                Ok(MINUS_ONE)
            }
            other => other,
        }
    })
}

fn change(session: &Session, dataset: &Listed, list: &[Said], load: bool, inherit: bool) -> Outcome {
    let name = dataset.name();
    let now = || select::find(name, Types::HEADS);
    if load && !now()?.has_key().map_err(|e| failed(told(&e, name)))? {
        keys::load(dataset.source(), name, None)?;
    }
    let cannot = |why: &str| failed(format!("Key change error: {why}"));
    check(dataset, list, inherit).map_err(|why| cannot(&why))?;
    let is_root = dataset.is_encryption_root().map_err(|e| failed(told(&e, name)))?;
    let target = Target {
        kind: dataset.kind().map_err(|e| failed(told(&e, name)))?,
        existing: None,
        large_blocks: true,
        zoned: is_zoned(dataset),
        key_params: true,
    };
    let mut props = valid(list, &target).map_err(|why| cannot(&why))?;
    let key = if inherit {
        check_parent(dataset, is_root).map_err(|why| cannot(&why))?;
        None
    } else {
        Some(new_key(dataset, is_root, &mut props).map_err(|why| cannot(&why))?)
    };
    if now()?.lacks_key().map_err(|e| failed(told(&e, name)))? {
        return Err(cannot("Key must be loaded."));
    }
    let location = props.get_str("keylocation").map(str::to_owned);
    let input = request(props, key.as_ref());
    session.requests(name)?.call(Ioc::ChangeKey, name, &input).map_err(|e| {
        cannot(match e.errno {
            Errno::EPERM => "Permission denied.",
            Errno::EINVAL => "Invalid properties for key change.",
            Errno::EACCES => "Key is not currently loaded.",
            _ => "encryption failure",
        })
    })?;
    let new = key.as_ref().map(|key| (location.as_deref().unwrap_or("prompt"), key));
    keys::remember_change(name, dataset.source(), new)?;
    Ok(0)
}

/// Checks that the key of a dataset can be changed, and that all properties describe keys.
fn check(dataset: &Listed, list: &[Said], inherit: bool) -> Result<(), String> {
    if !pools::has_feature(dataset.source(), "encryption").map_err(|e| e.to_string())? {
        return Err("Encryption feature not enabled.".to_owned());
    }
    if !dataset.is_encrypted().map_err(|e| e.to_string())? {
        return Err("Dataset not encrypted.".to_owned());
    }
    if dataset.text("origin").map_err(|e| e.to_string())?.is_some() {
        return Err("Keys cannot be changed on clones.".to_owned());
    }
    let of_key = |name: &str| matches!(name, "keyformat" | "keylocation" | "pbkdf2iters");
    let odd = |(name, _): &Said| !pool::prop::is_user_property(name) && (inherit || !of_key(name));
    match list.iter().any(odd) {
        true if inherit => Err("Only user properties may be set with 'zfs change-key -i'".to_owned()),
        true => {
            Err("Only keyformat, keylocation, pbkdf2iters, and user properties may be set with this command."
                .to_owned())
        }
        false => Ok(()),
    }
}

/// Checks that a dataset can inherit its parent's key.
fn check_parent(dataset: &Listed, is_root: bool) -> Result<(), String> {
    let said = |e: Failed| e.to_string();
    if !is_root {
        return Err("Key inheritting can only be performed on encryption roots.".to_owned());
    }
    let Some((parent, _)) = dataset.name().rsplit_once('/') else {
        return Err("Root dataset cannot inherit key.".to_owned());
    };
    let parent = Listed::named(dataset.source(), parent.to_owned());
    parent.guid().map_err(|_| "Failed to lookup parent.".to_owned())?;
    if !parent.is_encrypted().map_err(said)? {
        return Err("Parent must be encrypted.".to_owned());
    }
    match parent.lacks_key().map_err(said)? {
        true => Err("Parent key must be loaded.".to_owned()),
        false => Ok(()),
    }
}

/// The new key, from the location in the properties, else from that of the old key.
fn new_key(dataset: &Listed, is_root: bool, props: &mut NvList) -> Result<Material, String> {
    if is_root {
        let said = |e: Failed| e.to_string();
        let old = dataset.number("keyformat").map_err(said)?.filter(|format| *format != 0);
        if let (None, Some(format)) = (props.get_u64("keyformat"), old) {
            props.insert("keyformat", format);
        }
        if !props.contains("keylocation")
            && let Some(old) = dataset.text("keylocation").map_err(said)?
        {
            props.insert("keylocation", old);
        }
    }
    if props.get_u64("keyformat").is_none_or(|format| format == 0) {
        return Err("Keyformat required for new encryption root.".to_owned());
    }
    if !props.contains("keylocation") {
        props.insert("keylocation", "prompt");
    }
    keys::material_for(dataset.name(), props)
}

fn request(props: NvList, key: Option<&Material>) -> NvList {
    let mut input = NvList::new();
    input.insert("crypt_cmd", if key.is_some() { NEW_KEY } else { INHERIT });
    if let Some(key) = key {
        input.insert("hidden_args", key.hidden());
    }
    if !props.is_empty() {
        input.insert("props", props);
    }
    input
}
