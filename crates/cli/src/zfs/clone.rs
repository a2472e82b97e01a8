//! `zfs clone`, `zfs promote`.

use base::Errno;
use control::Ioc;
use nvlist::NvList;
use pool::Kind;

use super::ancestors::{self, Ancestors};
use super::listed::Listed;
use super::mounting;
use super::select::told;
use super::session::Session;
use super::volume;
use super::words::{BAD_TYPE, standard};
use crate::command::Call;
use crate::error::{Outcome, failed, usage};
use crate::names::{self, Types};
use crate::pools;
use crate::props::Said;
use crate::props::valid::{Target, add_said, valid};

/// Properties of keys: a clone shares those of its origin.
const KEY_PROPS: [&str; 4] = ["keyformat", "keylocation", "encryption", "pbkdf2iters"];

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let mut props: Vec<Said> = Vec::new();
    for value in call.args.values('o') {
        add_said(&mut props, &value.to_string_lossy()).map_err(failed)?;
    }
    let operands = call.args.names();
    let (origin, name) = match operands.as_slice() {
        [] => return Err(usage("missing source dataset argument")),
        [_] => return Err(usage("missing target dataset argument")),
        [origin, name] => (origin, name),
        _ => return Err(usage("too many arguments")),
    };
    let ancestors = Ancestors::of(call.args.count('p'));
    Session::run(|session| {
        let snap = session.dataset(origin, Types::SNAPSHOTS)?;
        if let Ancestors::Made { unmountable } = ancestors
            && names::check_new(name, Types::HEADS).is_ok()
        {
            if session.reach(name)?.is_some() && ancestors::exists(name)? {
                return Ok(0);
            }
            ancestors::make(session, name, unmountable)?;
        }
        let status = clone(session, &snap, name, &props)?;
        let is_file_system = snap.head_kind().map_err(|e| failed(told(&e, origin)))? == Kind::Filesystem;
        if is_file_system && !call.args.has('u') {
            mounting::mount_new(session, name)?;
        }
        Ok(status)
    })
}

fn clone(session: &Session, origin: &Listed, name: &str, said: &[Said]) -> Outcome {
    let doing = format!("cannot create '{name}'");
    let cannot = |why: String| failed(format!("{doing}: {why}"));
    names::check_new(name, Types::HEADS).map_err(cannot)?;
    ancestors::existing(session, name, false)?;
    let kind = origin.head_kind().map_err(|e| cannot(e.to_string()))?;
    let mut props = check_props(origin, kind, said).map_err(cannot)?;
    if KEY_PROPS.iter().any(|prop| props.contains(prop)) {
        return Err(failed(format!(
            "Encryption clone error: Encryption properties must inherit from origin dataset.\n{doing}: encryption failure"
        )));
    }
    if kind == Kind::Volume && props.get_u64("refreservation") == Some(u64::MAX) {
        let full = volume::Tops::of(origin.source()).and_then(|tops| tops.full(origin, props.get_u64("volsize")));
        props.insert("refreservation", full.map_err(|e| cannot(e.to_string()))?);
    }
    let mut input = NvList::new();
    input.insert("origin", origin.name());
    if !props.is_empty() {
        input.insert("props", props);
    }
    let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
    session.requests(origin.name())?.call(Ioc::Clone, name, &input).map_err(|e| {
        cannot(match e.errno {
            Errno::ENOENT => format!("no such parent '{parent}'"),
            Errno::EXDEV => "source and target pools differ".to_owned(),
            _ => standard(&e),
        })
    })?;
    Ok(0)
}

fn check_props(origin: &Listed, kind: Kind, said: &[Said]) -> Result<NvList, String> {
    let large_blocks = pools::has_feature(origin.source(), "large_blocks").map_err(|e| e.to_string())?;
    let target = Target { kind, existing: Some(origin), large_blocks, zoned: false, key_params: true };
    valid(said, &target)
}

pub(super) fn promote(call: &Call<'_>) -> Outcome {
    let operands = call.args.names();
    let name = match operands.as_slice() {
        [] => return Err(usage("missing clone filesystem argument")),
        [name] => name,
        _ => return Err(usage("too many arguments")),
    };
    Session::run(|session| {
        let clone = session.dataset(name, Types::HEADS)?;
        let cannot = |why: &str| failed(format!("cannot promote '{name}': {why}"));
        let origin = clone.text("origin").map_err(|e| failed(told(&e, name)))?;
        let origin = origin.ok_or_else(|| cannot("not a cloned filesystem"))?;
        let Err(e) = session.requests(name)?.call(Ioc::Promote, name, &NvList::new()) else { return Ok(0) };
        let conflict = e.out.get_str("conflsnap").unwrap_or("");
        let why = match e.errno {
            Errno::EACCES => "cannot promote dataset outside its encryption root".to_owned(),
            Errno::EEXIST => format!("conflicting snapshot '{conflict}' from parent '{origin}'"),
            Errno::EINVAL => BAD_TYPE.to_owned(),
            _ => standard(&e),
        };
        Err(cannot(&why))
    })
}
