//! `zpool get`.

use std::io::Write;

use nvlist::NvList;
use pool::prop::POOL;
use site::{Imported, Query};

use super::describe::{self, describe, json_key};
use super::unavailable::{Seen, each};
use super::vdev_props::{self, Wanted};
use super::vdevs::brief_stats;
use crate::args::{JSON_INT, JSON_POOL_KEY_GUID};
use crate::columns::{self, Cell, Column, Field, Getter, Of, Style, property_json};
use crate::command::Call;
use crate::console::here;
use crate::error::{Failure, Outcome, failed, usage};
use crate::json;
use crate::pools::stdout;

const FIELDS: [Field; 4] = [Field::Name, Field::Property, Field::Value, Field::Source];

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    let fields = match args.text('o') {
        Some(words) => Field::parse(&words, &FIELDS).map_err(usage)?,
        None => FIELDS.to_vec(),
    };
    let (as_json, as_int, by_guid) = (args.has('j'), args.has(JSON_INT), args.has(JSON_POOL_KEY_GUID));
    for (wanted, text) in [(as_int, "'--json-int'"), (by_guid, "'json-pool-key-guid'")] {
        if wanted && !as_json {
            return Err(usage(format!("{text} only works with '-j' option")));
        }
    }
    let mut names = args.names();
    if names.is_empty() {
        return Err(usage("missing property argument"));
    }
    let properties = names.remove(0);
    let style = Style { scripted: args.has('H'), parsable: args.has('p') || as_int };
    if let Some((pool, vdevs)) = vdevs_of(&names)? {
        let wanted = Wanted { properties: &properties, fields, style, json: as_json.then_some(as_int) };
        return vdev_props::get(call, &pool, &vdevs, wanted);
    }
    let columns = columns::parse(&properties, Of::Pool).map_err(usage)?;

    if as_json {
        let mut all = NvList::new();
        let status = each(&names, |seen| {
            let mut list = NvList::new();
            for (column, cell) in cells(&seen, columns.as_deref(), style.parsable)? {
                list.insert(&column.name, property_json(&cell, as_int));
            }
            if !list.is_empty() {
                let (key, mut item) = match &seen {
                    Seen::Open(query) => {
                        let config = brief_stats(query)?;
                        (json_key(&config, by_guid), describe(&config, true, as_int))
                    }
                    Seen::Unavailable(pool) => (pool.key(by_guid), pool.describe(as_int)),
                };
                item.insert("properties", list);
                all.insert(key, item);
            }
            Ok(())
        })?;
        if status != 0 {
            return Ok(status);
        }
        let mut schema = json::schema(call);
        schema.insert("pools", all);
        return json::print(&schema);
    }

    let mut getter = Getter::new(fields, style);
    match &columns {
        Some(columns) => getter.expect(columns),
        None => getter.expect(&all_native()),
    }
    let status = each(&names, |seen| {
        let name = match &seen {
            Seen::Open(query) => query.name(),
            Seen::Unavailable(pool) => &pool.name,
        };
        getter.expect_name(name);
        for (mut column, cell) in cells(&seen, columns.as_deref(), style.parsable)? {
            // with all properties come features and user properties, which are not known in advance
            if columns.is_none() {
                getter.expect(std::slice::from_ref(&column));
            }
            getter.add(name, &mut column, cell);
        }
        Ok(())
    })?;
    let mut out = stdout();
    getter.print(&mut out)?;
    out.flush()?;
    Ok(status)
}

/// The pool and its vdevs, if the operands are a pool and vdevs of it; `None` if all are pools.
fn vdevs_of(names: &[String]) -> Result<Option<(Imported, Vec<String>)>, Failure> {
    let Some((first, rest)) = names.split_first() else { return Ok(None) };
    let Some(record) = here().find(first)? else {
        return Err(failed(format!("Cannot get properties of {first}: no such pool available.")));
    };
    for name in rest {
        if here().find(name)?.is_none() {
            return Ok(Some((record, rest.to_vec())));
        }
    }
    Ok(None)
}

/// The columns of all properties that every pool has.
fn all_native() -> Vec<Column> {
    POOL.iter().filter(|def| def.visible).map(Column::native).collect()
}

/// The properties of a pool that are to be shown; all of them for `None`. Few are known of a pool that does not open.
fn cells(seen: &Seen, columns: Option<&[Column]>, parsable: bool) -> Result<Vec<(Column, Cell)>, Failure> {
    match seen {
        Seen::Open(query) => cells_of(query, columns, parsable),
        Seen::Unavailable(pool) => {
            let columns = columns.map_or_else(all_native, <[Column]>::to_vec);
            Ok(columns.into_iter().map(|column| (column.clone(), pool.cell(&column))).collect())
        }
    }
}

fn cells_of(query: &Query, columns: Option<&[Column]>, parsable: bool) -> Result<Vec<(Column, Cell)>, Failure> {
    let props = describe::props(query, columns.unwrap_or(&[]))?;
    let cell = |column: Column| {
        match &*column.name {
            "name" => Some(Cell { text: query.name().to_owned(), ..Cell::none() }),
            name => describe::cell(&props, name, parsable),
        }
        .map(|cell| (column, cell))
    };
    let all = || props.iter().map(|(name, _)| name);
    Ok(match columns {
        Some(columns) => columns.iter().cloned().filter_map(cell).collect(),
        None => all().map(column_of).filter_map(cell).collect(),
    })
}

/// The column of a property that a pool has.
fn column_of(name: &str) -> Column {
    pool::prop::find_pool(name).map_or_else(|| Column::other(name), Column::native)
}
