//! `zpool get` and `zpool set` for vdevs.

use std::io::Write;

use control::Ioc;
use nvlist::NvList;
use pool::Value;
use pool::prop::{self, Source, VDEV, format_vdev};
use site::{Imported, Query};

use super::describe::describe;
use super::vdev_json::describe_vdev;
use super::vdevs::{NameFlags, ROOT, Vdev, Vdevs, brief_stats};
use crate::answers::{self, numbered_source};
use crate::columns::{self, Cell, Column, Field, Getter, Of, Style, property_json};
use crate::command::Call;
use crate::console::here;
use crate::error::{Failure, Outcome, failed, usage};
use crate::pools::{self, stdout};
use crate::props::values::{self, Of as ValueOf, TEXT_MAX};
use crate::{json, writable};

/// The operand that means all vdevs of the pool.
const ALL: &str = "all-vdevs";

/// The properties to be shown, and the format.
pub(super) struct Wanted<'a> {
    pub(super) properties: &'a str,
    pub(super) fields: Vec<Field>,
    pub(super) style: Style,
    /// Set for JSON, with whether numbers are JSON numbers.
    pub(super) json: Option<bool>,
}

/// A vdev with the name that is shown; its class if it is a spare or a cache.
struct Named {
    name: String,
    vdev: Vdev,
    aside: Option<&'static str>,
}

/// A vdev with its properties, as they were answered.
struct Handle<'a> {
    named: &'a Named,
    props: NvList,
}

pub(super) fn get(call: &Call<'_>, record: &Imported, operands: &[String], wanted: Wanted<'_>) -> Outcome {
    let query = pools::query(record)?;
    let vdevs = resolve(&query, operands)?;
    let asked = columns::parse(wanted.properties, Of::Vdev).map_err(usage)?;
    let handles = vdevs.iter().map(|named| {
        let props = props(&query, named, asked.as_deref())?;
        Ok(Handle { named, props })
    });
    let vdevs = handles.collect::<Result<Vec<Handle<'_>>, Failure>>()?;
    let all = asked.is_none();
    let mut columns =
        asked.unwrap_or_else(|| VDEV.iter().filter(|def| def.visible).map(Column::native).collect::<Vec<_>>());
    if all {
        for name in user_props(&vdevs) {
            columns.push(Column::other(name));
        }
    }
    match wanted.json {
        Some(as_int) => print_json(call, &query, &vdevs, &columns, as_int),
        None => print(&vdevs, &columns, wanted),
    }
}

/// The properties of a vdev, all or those of these columns.
fn props(query: &Query, named: &Named, columns: Option<&[Column]>) -> Result<NvList, Failure> {
    let mut input = NvList::new();
    input.insert("vdevprops_get_vdev", named.vdev.guid.0);
    if let Some(columns) = columns {
        let mut names = NvList::new();
        columns.iter().for_each(|column| names.insert(&column.name, ()));
        input.insert("vdevprops_get_props", names);
    }
    let answer = query.call(Ioc::VdevGetProps, query.name(), &input);
    answer.map_err(|e| failed(format!("cannot get vdev properties for {} in {}: {e}", named.name, query.name())))
}

fn print(vdevs: &[Handle<'_>], columns: &[Column], wanted: Wanted<'_>) -> Outcome {
    let parsable = wanted.style.parsable;
    let mut getter = Getter::new(wanted.fields, wanted.style);
    getter.expect(columns);
    for handle in vdevs {
        let name = &handle.named.name;
        getter.expect_name(name);
        for (mut column, cell) in cells(handle, columns, parsable) {
            getter.add(name, &mut column, cell);
        }
    }
    let mut out = stdout();
    getter.print(&mut out)?;
    out.flush()?;
    Ok(0)
}

fn print_json(call: &Call<'_>, query: &Query, vdevs: &[Handle<'_>], columns: &[Column], as_int: bool) -> Outcome {
    let config = brief_stats(query)?;
    let mut list = NvList::new();
    for handle in vdevs {
        let Named { name, vdev, aside } = handle.named;
        let mut properties = NvList::new();
        for (column, cell) in cells(handle, columns, as_int || call.args.has('p')) {
            properties.insert(&column.name, property_json(&cell, as_int));
        }
        let about = describe_vdev(query.name(), vdev, NameFlags::default(), as_int, *aside);
        let mut item = NvList::new();
        item.insert("name", name.as_str());
        item.insert("type", "VDEV");
        for (key, value) in about.iter().filter(|(key, _)| *key != "name") {
            item.insert(key, value.clone());
        }
        item.insert("properties", properties);
        list.insert(name, item);
    }
    let mut schema = json::schema(call);
    schema.insert("pool", describe(&config, false, as_int));
    schema.insert("vdevs", list);
    json::print(&schema)
}

/// The vdevs that the operands name.
fn resolve(pool: &Query, operands: &[String]) -> Result<Vec<Named>, Failure> {
    if let [all] = operands
        && all == ALL
    {
        return every(pool);
    }
    let mut found = Vec::new();
    for operand in operands {
        let name = if operand == "root" { ROOT } else { operand };
        let Some((vdev, aside)) = Vdevs::find(pool, name)? else {
            return Err(unresolved(pool, "a list of vdevs", operands));
        };
        found.push(Named { name: name.to_owned(), vdev, aside: aside.then_some("spare") });
    }
    Ok(found)
}

/// The root, spares, caches, and all vdevs below the root, each before its children (OpenZFS: `for_each_vdev_cb`).
fn every(pool: &Query) -> Result<Vec<Named>, Failure> {
    fn add(into: &mut Vec<Named>, pool: &str, vdev: &Vdev) {
        into.push(Named { name: vdev.name(pool, NameFlags::default()), vdev: vdev.clone(), aside: None });
        vdev.children.iter().filter(|child| !child.is_hidden()).for_each(|child| add(into, pool, child));
    }
    let vdevs = Vdevs::ask(pool)?;
    let mut all = vec![Named { name: ROOT.to_owned(), vdev: vdevs.root.clone(), aside: None }];
    for (members, class) in [(&vdevs.spares, "spare"), (&vdevs.l2cache, "l2cache")] {
        for vdev in members {
            let name = vdev.name(pool.name(), NameFlags::default());
            all.push(Named { name, vdev: vdev.clone(), aside: Some(class) });
        }
    }
    vdevs.root.children.iter().filter(|top| !top.is_hidden()).for_each(|top| add(&mut all, pool.name(), top));
    Ok(all)
}

/// The error that says of each operand what it is, if not all are what was `expected`.
pub(super) fn unresolved(pool: &Query, expected: &str, operands: &[String]) -> Failure {
    let mut text = format!("Expected {expected} in \"{}\", but got:\n", pool.name());
    for name in operands {
        let is_vdev = |pool: &Query| matches!(Vdevs::find(pool, name), Ok(Some(_)));
        let elsewhere = || {
            let records = here().all().unwrap_or_default();
            records.iter().filter_map(|record| pools::query(record).ok()).any(|pool| is_vdev(&pool))
        };
        let what = match () {
            () if matches!(here().find(name), Ok(Some(_))) => "pool",
            () if is_vdev(pool) => "vdev in this pool",
            () if elsewhere() => "vdev in another pool",
            () => "unknown",
        };
        text.push_str(&format!("\t{name} ({what})\n"));
    }
    usage(text)
}

/// The user properties that are set on any of these vdevs.
fn user_props<'a>(vdevs: &'a [Handle<'_>]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in vdevs.iter().flat_map(|handle| &handle.props) {
        if prop::find_vdev(name).is_none() && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The wanted properties that a vdev has.
fn cells(handle: &Handle<'_>, columns: &[Column], parsable: bool) -> Vec<(Column, Cell)> {
    let cell = |column: &Column| {
        let prop = handle.props.get_nvlist(&column.name);
        let value = prop.and_then(|prop| answers::value(prop, "value"));
        let cell = match prop.zip(value) {
            Some((prop, value)) => {
                let text = format_vdev(&column.name, &value, parsable);
                Cell { text, source: numbered_source(prop), received: None }
            }
            None if column.native.is_some() => return None,
            None => Cell { source: Source::Default, ..Cell::none() },
        };
        Some((column.clone(), cell))
    };
    columns.iter().filter_map(cell).collect()
}

pub(super) fn set(record: &Imported, vdev: &str, property: &str, text: &str) -> Result<(), Failure> {
    let view = pools::query(record)?;
    let name = if vdev == "root" { ROOT } else { vdev };
    let Some((found, _)) = Vdevs::find(&view, name)? else {
        return Err(failed(format!("cannot find '{name}' in '{}': device not in pool", record.name)));
    };
    let doing = format!("cannot set property {property} for {name} on {}", record.name);
    let (property, value) = check(property, text).map_err(|why| failed(format!("{doing}: {why}")))?;
    let (mut props, mut input) = (NvList::new(), NvList::new());
    props.insert(property, values::value_of(value));
    input.insert("vdevprops_set_vdev", found.guid.0);
    input.insert("vdevprops_set_props", props);
    writable::request(record, &doing, Ioc::VdevSetProps, &input).map(drop)
}

/// Checks a property and returns its value (OpenZFS: `zpool_valid_proplist`).
fn check<'a>(name: &'a str, text: &str) -> Result<(&'a str, Value), String> {
    match prop::find_vdev(name) {
        Some(def) if def.is_read_only() => Err(format!("'{name}' is readonly")),
        Some(def) => Ok((def.name, values::parse(def, ValueOf::Vdev, name, text)?)),
        None if !prop::is_user_property(name) => Err(format!("invalid property: '{name}'")),
        None if text.len() >= TEXT_MAX => Err(format!("property value '{text}' is too long")),
        None => Ok((name, Value::String(text.to_owned()))),
    }
}
