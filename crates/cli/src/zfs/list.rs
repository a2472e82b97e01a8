//! `zfs list`.

use std::io::Write;

use nvlist::NvList;
use pool::prop::DATASET;

use super::listed::{Listed, Wanted};
use super::select::Selection;
use crate::args::JSON_INT;
use crate::columns::{self, Cell, Column, Lister, Of, Style, property_json};
use crate::command::Call;
use crate::error::{Failure, Outcome, usage};
use crate::json;
use crate::names::Types;
use crate::pools::stdout;

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let mut fields = "name,used,available,referenced,mountpoint".to_owned();
    let mut types = None;
    let mut selection = Selection::new(Types::DATASETS);
    for (option, value) in &call.args.options {
        match option {
            'o' => fields = value.to_string_lossy().into_owned(),
            't' => types = Some(Types::parse(&value.to_string_lossy()).map_err(usage)?),
            'd' => selection.set_depth(value)?,
            'r' => selection.recurse = true,
            's' => selection.add_sort(value, false)?,
            'S' => selection.add_sort(value, true)?,
            _ => {}
        }
    }
    let as_json = call.args.has('j');
    let as_int = call.args.has(JSON_INT);
    if as_int && !as_json {
        return Err(usage("'--json-int' only works with '-j' option"));
    }
    selection.list_snapshots = types.is_none();
    selection.types = types.unwrap_or(if fields == "space" { Types::HEADS } else { Types::DATASETS });
    let names = call.args.names();
    selection.default_depth(!names.is_empty());

    let columns = columns::parse(&fields, Of::Dataset).map_err(usage)?.unwrap_or_else(all_columns);
    let style = Style { scripted: call.args.has('H'), parsable: call.args.has('p') || as_int };
    let wanted = Wanted::of(Some(&columns)).typed(as_json);
    let (entries, whole) = selection.run(&names, &wanted)?;
    if as_json {
        return if whole { print_json(call, &entries, &columns, style, as_int) } else { Ok(1) };
    }

    let mut lister = Lister::new(columns, style);
    for entry in &entries {
        let cell = |column: &Column| Ok(entry.cell(column, style.parsable)?.unwrap_or_else(Cell::none));
        let row = lister.columns.iter().map(cell).collect::<Result<Vec<Cell>, Failure>>()?;
        lister.add(row);
    }
    let mut out = stdout();
    lister.print(&mut out)?;
    out.flush()?;
    if lister.is_empty() && whole && !style.scripted {
        eprintln!("no datasets available");
    }
    Ok(if whole { 0 } else { 1 })
}

/// The columns of `-o all`: the name and every native property.
fn all_columns() -> Vec<Column> {
    let name = columns::column("name", Of::Dataset).into_iter();
    name.chain(DATASET.iter().filter(|def| def.visible).map(Column::native)).collect()
}

fn print_json(call: &Call<'_>, entries: &[Listed], columns: &[Column], style: Style, as_int: bool) -> Outcome {
    let mut datasets = NvList::new();
    for entry in entries {
        let mut properties = NvList::new();
        for column in columns.iter().filter(|column| column.name != "name") {
            let cell = entry.cell(column, style.parsable)?.unwrap_or_else(Cell::none);
            properties.insert(&column.name, property_json(&cell, as_int));
        }
        let mut item = entry.describe(as_int)?;
        item.insert("properties", properties);
        datasets.insert(entry.name(), item);
    }
    let mut schema = json::schema(call);
    schema.insert("datasets", datasets);
    json::print(&schema)
}
