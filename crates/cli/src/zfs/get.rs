//! `zfs get`.

use std::io::Write;

use nvlist::NvList;
use pool::prop::{DATASET, Source};

use super::listed::{Listed, Wanted};
use super::select::Selection;
use crate::args::JSON_INT;
use crate::columns::{self, Cell, Column, Field, Getter, Of, Style, property_json};
use crate::command::Call;
use crate::error::{Failure, Outcome, usage};
use crate::json;
use crate::names::Types;
use crate::pools::stdout;

const FIELDS: [Field; 5] = [Field::Name, Field::Property, Field::Value, Field::Received, Field::Source];

/// The request of the command.
struct Request {
    columns: Option<Vec<Column>>,
    sources: Sources,
    parsable: bool,
}

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let mut fields = vec![Field::Name, Field::Property, Field::Value, Field::Source];
    let mut sources = Sources::default();
    let mut selection = Selection::new(Types::ALL);
    for (option, value) in &call.args.options {
        let text = value.to_string_lossy();
        match option {
            'o' => fields = Field::parse(&text, &FIELDS).map_err(usage)?,
            's' => sources = Sources::parse(&text).map_err(usage)?,
            't' => selection.types = Types::parse(&text).map_err(usage)?,
            'd' => selection.set_depth(value)?,
            'r' => selection.recurse = true,
            _ => {}
        }
    }
    let mut names = call.args.names();
    if names.is_empty() {
        return Err(usage("missing property argument"));
    }
    let as_json = call.args.has('j');
    let as_int = call.args.has(JSON_INT);
    if as_int && !as_json {
        return Err(usage("'--json-int' only works with '-j' option"));
    }
    let properties = names.remove(0);
    selection.default_depth(!names.is_empty());
    let columns = columns::parse(&properties, Of::Dataset).map_err(usage)?;
    let style = Style { scripted: call.args.has('H'), parsable: call.args.has('p') || as_int };
    let request = Request { columns, sources, parsable: style.parsable };

    let wanted = Wanted::of(request.columns.as_deref()).typed(as_json);
    let (entries, whole) = selection.run(&names, &wanted)?;
    let status = if whole { 0 } else { 1 };
    if as_json {
        return if whole { print_json(call, &entries, &request, as_int) } else { Ok(status) };
    }
    let mut getter = Getter::new(fields, style);
    match &request.columns {
        Some(columns) => getter.expect(columns),
        None => getter.expect(&all_native()),
    }
    for entry in &entries {
        getter.expect_name(entry.name());
        for (mut column, cell) in request.cells(entry)? {
            getter.add(entry.name(), &mut column, cell);
        }
    }
    let mut out = stdout();
    getter.print(&mut out)?;
    out.flush()?;
    Ok(status)
}

fn all_native() -> Vec<Column> {
    DATASET.iter().filter(|def| def.visible).map(Column::native).collect()
}

impl Request {
    /// The properties of an object that are to be shown.
    fn cells(&self, entry: &Listed) -> Result<Vec<(Column, Cell)>, Failure> {
        let mut cells = match &self.columns {
            None => entry.cells(self.parsable)?,
            Some(columns) => {
                let of = |column: &Column| {
                    Ok((column.clone(), entry.cell(column, self.parsable)?.unwrap_or_else(Cell::none)))
                };
                columns.iter().map(of).collect::<Result<Vec<_>, Failure>>()?
            }
        };
        cells.retain(|(_, cell)| self.sources.include(&cell.source));
        Ok(cells)
    }
}

/// The sources that are wanted.
#[derive(Debug, PartialEq, Eq)]
struct Sources(Vec<&'static str>);

const SOURCES: [&str; 6] = ["local", "default", "inherited", "received", "temporary", "none"];

impl Default for Sources {
    fn default() -> Self {
        Sources(SOURCES.to_vec())
    }
}

impl Sources {
    fn parse(words: &str) -> Result<Sources, String> {
        let known = |word: &str| {
            SOURCES.iter().find(|s| **s == word).copied().ok_or_else(|| format!("invalid source '{word}'"))
        };
        words.split(',').map(known).collect::<Result<_, _>>().map(Sources)
    }

    fn include(&self, source: &Source) -> bool {
        self.0.contains(&match source {
            Source::None => "none",
            Source::Default => "default",
            Source::Local => "local",
            Source::Inherited(_) => "inherited",
            Source::Received => "received",
            Source::Temporary => "temporary",
        })
    }
}

fn print_json(call: &Call<'_>, entries: &[Listed], request: &Request, as_int: bool) -> Outcome {
    let mut datasets = NvList::new();
    for entry in entries {
        let mut properties = NvList::new();
        for (column, cell) in request.cells(entry)? {
            properties.insert(&column.name, property_json(&cell, as_int));
        }
        if !properties.is_empty() {
            let mut item = entry.describe(as_int)?;
            item.insert("properties", properties);
            datasets.insert(entry.name(), item);
        }
    }
    let mut schema = json::schema(call);
    schema.insert("datasets", datasets);
    json::print(&schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_chosen_by_word() {
        let sources = Sources::parse("local,none").unwrap_or_default();
        assert!(sources.include(&Source::Local) && sources.include(&Source::None));
        assert!(!sources.include(&Source::Inherited("x".into())));
        assert_eq!(Sources::parse("locl"), Err("invalid source 'locl'".into()));
    }
}
