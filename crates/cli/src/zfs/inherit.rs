//! `zfs inherit`.

use control::Ioc;
use nvlist::NvList;
use pool::prop::{self, PropDef};

use super::listed::{Listed, Wanted};
use super::mounting;
use super::mounting::changes::{Change, Changes};
use super::select::{Selection, told};
use super::session::Session;
use super::words::standard;
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::Types;

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let (recursive, received) = (call.args.has('r'), call.args.has('S'));
    let operands = call.args.names();
    let (property, names) = match operands.split_first() {
        None => return Err(usage("missing property argument")),
        Some((_, [])) => return Err(usage("missing dataset argument")),
        Some((property, names)) => (property, names),
    };
    let def = prop::find(property);
    match def {
        Some(def) => check(def, property, received)?,
        None if prop::is_user_property(property) => {}
        None => return Err(usage(format!("invalid property '{property}'"))),
    }
    Session::run(|session| {
        for name in names {
            session.reach(name)?;
        }
        let mut selection = Selection::new(Types::DATASETS);
        selection.recurse = recursive;
        let (entries, whole) = selection.run(names, &Wanted::default())?;
        let mut good = whole;
        for dataset in entries.iter() {
            match inherit(session, dataset, property, def, recursive, received) {
                Err(Failure::Failed(why)) => {
                    eprintln!("{why}");
                    good = false;
                }
                other => other?,
            }
        }
        Ok(u8::from(!good))
    })
}

/// Checks that a property can be inherited.
fn check(def: &PropDef, property: &str, received: bool) -> Result<(), Failure> {
    if def.is_read_only() {
        return Err(failed(format!("{property} property is read-only")));
    }
    if !def.is_inheritable() && !received {
        let mut why = format!("'{property}' property cannot be inherited");
        if matches!(def.name, "quota" | "reservation" | "refquota" | "refreservation") {
            why += &format!(
                "\nuse 'zfs set {property}=none' to clear\n\
                 use 'zfs inherit -S {property}' to revert to received value"
            );
        }
        return Err(failed(why));
    }
    if received && matches!(def.name, "volsize" | "version") {
        return Err(failed(format!("'{property}' property cannot be reverted to a received value")));
    }
    Ok(())
}

fn inherit(
    session: &Session,
    dataset: &Listed,
    property: &str,
    def: Option<&'static PropDef>,
    recursive: bool,
    received: bool,
) -> Result<(), Failure> {
    let name = dataset.name();
    let cannot = |why: String| failed(format!("cannot inherit {property} for '{name}': {why}"));
    let kind = dataset.kind().map_err(|e| failed(told(&e, name)))?;
    if def.is_some_and(|def| !def.is_valid_for(kind.mask())) {
        // with -r, only datasets that have the property are meant
        return match recursive {
            true => Ok(()),
            false => Err(cannot("property doesn't apply to datasets of this type".to_owned())),
        };
    }
    let mut input = NvList::new();
    input.insert("prop", def.map_or(property, |def| def.name));
    if received {
        input.insert("received", ());
    }
    let mut mounts = match def.and_then(|def| Change::of_property(def.name)) {
        Some(change) => Some(Changes::gather(session, dataset, change, false)?),
        None => None,
    };
    Changes::around(mounts.as_mut_slice(), || {
        let done = session.requests(name)?.call(Ioc::InheritProp, name, &input);
        done.map(drop).map_err(|e| cannot(standard(&e)))
    })?;
    mounting::follow_props(name, def.map(|def| def.name))
}
