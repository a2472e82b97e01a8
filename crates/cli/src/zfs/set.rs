//! `zfs set`.

use base::Errno;
use control::{Failed, Ioc};
use nvlist::{NvList, Value as Nv};
use pool::Kind;

use super::listed::Listed;
use super::mounting;
use super::mounting::changes::{Change, Changes};
use super::select::{is_zoned, told};
use super::session::Session;
use super::volume;
use super::words::{of_property, standard};
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::Types;
use crate::pools;
use crate::props::Said;
use crate::props::valid::{Target, add_said, valid};

/// The exit status of OpenZFS's -1.
const MINUS_ONE: u8 = 255;

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let operands = call.args.names();
    let at = operands.iter().position(|operand| !operand.contains('='));
    match operands.as_slice() {
        [] => return Err(usage("missing arguments")),
        [only] if !only.contains('=') => return Err(usage("missing property=value argument(s)")),
        _ => {}
    }
    let (said, names) = operands.split_at(at.unwrap_or(operands.len()));
    if names.iter().any(|name| name.contains('=')) && !said.is_empty() {
        return Err(usage("invalid argument order"));
    }
    if names.is_empty() {
        return Err(usage("missing dataset name(s)"));
    }
    let mut list: Vec<Said> = Vec::new();
    for said in said {
        if let Err(why) = add_said(&mut list, said) {
            eprintln!("{why}");
            return Ok(MINUS_ONE);
        }
    }
    Session::run(|session| {
        let mut status = 0;
        for name in names {
            let dataset = match session.dataset(name, Types::DATASETS) {
                Err(Failure::Failed(why)) => {
                    eprintln!("{why}");
                    status = status.max(1);
                    continue;
                }
                other => other?,
            };
            match set(session, &dataset, &list, call.args.has('u')) {
                Err(Failure::Failed(why)) => {
                    eprintln!("{why}");
                    status = MINUS_ONE;
                }
                other => other?,
            }
        }
        Ok(status)
    })
}

/// Sets properties; with `stays` nothing is mounted or unmounted for that.
fn set(session: &Session, dataset: &Listed, list: &[Said], stays: bool) -> Result<(), Failure> {
    let name = dataset.name();
    let cannot = |why: String| failed(format!("cannot set property for '{name}': {why}"));
    let kind = dataset.kind().map_err(|e| failed(told(&e, name)))?;
    let target = Target {
        kind,
        existing: Some(dataset),
        large_blocks: pools::has_feature(dataset.source(), "large_blocks").map_err(|e| failed(told(&e, name)))?,
        zoned: is_zoned(dataset),
        key_params: false,
    };
    let mut props = valid(list, &target).map_err(cannot)?;
    if kind == Kind::Volume {
        reserve(dataset, &mut props).map_err(|e| failed(told(&e, name)))?;
    }
    let names: Vec<String> = props.iter().map(|(name, _)| name.to_owned()).collect();
    let mut mounts = mounts_of(session, dataset, &props, stays)?;
    Changes::around(&mut mounts, || apply(session, name, props))?;
    mounting::follow_props(name, names.iter().map(String::as_str))
}

/// The mounts that change with these properties.
fn mounts_of<'a>(
    session: &'a Session,
    dataset: &Listed,
    props: &NvList,
    stays: bool,
) -> Result<Vec<Changes<'a>>, Failure> {
    let mut all = Vec::new();
    for (name, value) in props.iter().filter(|_| !stays) {
        // one that may be mounted stays as it is
        let change = match (name, value.as_u64()) {
            ("canmount", Some(mounting::CANMOUNT_OFF)) => Change::Canmount,
            (name, _) => match Change::of_property(name).filter(|change| *change != Change::Canmount) {
                Some(change) => change,
                None => continue,
            },
        };
        all.push(Changes::gather(session, dataset, change, false)?);
    }
    Ok(all)
}

/// Adjusts the reservation of a volume to its new size, if it matched the size before; `auto` is what the size needs.
fn reserve(volume: &Listed, props: &mut NvList) -> Result<(), Failed> {
    let tops = || volume::Tops::of(volume.source());
    let size = props.get_u64("volsize");
    match (size, props.get_u64("refreservation")) {
        (Some(size), None) => {
            if let Some(reservation) = tops()?.follow(volume, size)? {
                props.insert("refreservation", reservation);
            }
        }
        (size, Some(u64::MAX)) => props.insert("refreservation", tops()?.full(volume, size)?),
        _ => {}
    }
    Ok(())
}

/// Sets checked properties.
pub(super) fn apply(session: &Session, name: &str, props: NvList) -> Result<(), Failure> {
    let mut input = NvList::new();
    input.insert("props", props);
    match session.requests(name)?.call(Ioc::SetProp, name, &input) {
        Ok(_) => Ok(()),
        Err(e) => Err(failed(refused(&format!("cannot set property for '{name}'"), &e))),
    }
}

/// The message for each property that could not be set, else for all.
fn refused(doing: &str, e: &Failed) -> String {
    let line = |(name, value): (&str, &Nv)| match value {
        Nv::Int32(n) => Some(format!("{doing}: {}", of_property(name, e, Errno::from_raw(*n)))),
        _ => None,
    };
    let lines: Vec<String> = e.out.iter().filter_map(line).collect();
    if lines.is_empty() { format!("{doing}: {}", standard(e)) } else { lines.join("\n") }
}
