//! Properties in columns: the tables of `zfs list`, `zfs get`, `zpool list` and `zpool get`.
//!
//! A [`Column`] is a property that the user asked for. `list` prints one row per object and one column per property;
//! `get` prints one row per property of each object. Both know the widest value before they print the first line,
//! unless the output is for a script. OpenZFS: `zprop_list_t`, `zprop_width`, `zprop_print_one_property`.

use std::borrow::Cow;
use std::io::{self, Write};

use nvlist::{NvList, Value as Nv};
use pool::prop::{PropDef, PropKind, Source};

use crate::{console, shown};

/// The kind of object a property belongs to: decides in which table its name is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Of {
    /// `zfs`.
    Dataset,
    /// `zpool`.
    Pool,
    /// `zpool get` for vdevs.
    Vdev,
}

/// A property that was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// Its name; for a native one the full name, whatever the user wrote.
    pub(crate) name: String,
    /// The native property.
    pub(crate) native: Option<&'static PropDef>,
    width: usize,
    received_width: usize,
}

impl Column {
    /// The column of a native property.
    pub(crate) fn native(def: &'static PropDef) -> Column {
        Column { name: def.name.to_owned(), native: Some(def), width: natural_width(def), received_width: 0 }
    }

    /// The column of a user property, a feature, or one of a family (`userused@root`).
    pub(crate) fn other(name: &str) -> Column {
        Column { name: name.to_owned(), native: None, width: name.len(), received_width: 0 }
    }

    fn header(&self) -> String {
        self.native.map_or_else(|| self.name.to_ascii_uppercase(), |def| def.column.to_owned())
    }

    /// Returns whether the values are right-aligned. The header of a family of numbers is not.
    fn right(&self, header: bool) -> bool {
        match self.native {
            Some(def) => def.right_aligned(),
            None => !header && is_family(&self.name),
        }
    }

    /// Takes a value into account for the width of the column.
    fn widen(&mut self, cell: &Cell, parsable: bool) {
        if parsable || self.native.is_none_or(is_flexible) {
            self.width = self.width.max(cell.text.len());
        }
        self.received_width = self.received_width.max(cell.received.as_ref().map_or(0, String::len));
    }
}

/// A value as it is printed.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// The value.
    pub(crate) text: String,
    /// The source of the value.
    pub(crate) source: Source,
    /// The value that came with a send stream.
    pub(crate) received: Option<String>,
}

impl Cell {
    /// The cell of a property without a value.
    pub(crate) fn none() -> Cell {
        Cell { text: "-".to_owned(), source: Source::None, received: None }
    }
}

/// Returns whether a name is one of `userused@…`, `written@…` and their like.
pub(crate) fn is_family(name: &str) -> bool {
    if name.strip_prefix("written").is_some_and(|rest| rest.starts_with(['@', '#'])) {
        return true;
    }
    let Some((family, _)) = name.split_once('@') else { return false };
    let of_whom = ["user", "group", "project"].iter().find_map(|who| family.strip_prefix(who));
    of_whom.is_some_and(|what| matches!(what, "used" | "quota" | "objused" | "objquota"))
}

/// Returns whether the column widens with its values: numbers have a fixed width, except identities and dates.
fn is_flexible(def: &'static PropDef) -> bool {
    let exempt = ["guid", "createtxg", "objsetid", "pbkdf2iters", "load_guid", "creation", "snapshots_changed"]
        .contains(&def.name);
    exempt || !matches!(def.kind, PropKind::Number { .. })
}

/// The width of the header and of every value that is known beforehand.
fn natural_width(def: &PropDef) -> usize {
    let header = def.column.len();
    match def.kind {
        PropKind::Number { .. } if def.name == "health" => 8,
        PropKind::Number { .. } => header.max(5),
        PropKind::Index { values, .. } => values.iter().map(|(word, _)| word.len()).fold(header, usize::max),
        PropKind::String { .. } => header,
    }
}

/// Makes the columns of a list of names as users write them; `None` for `all`.
pub(crate) fn parse(names: &str, of: Of) -> Result<Option<Vec<Column>>, String> {
    const SPACE: [&str; 7] =
        ["name", "avail", "used", "usedbysnapshots", "usedbydataset", "usedbyrefreservation", "usedbychildren"];
    if names == "all" {
        return Ok(None);
    }
    if names.is_empty() {
        return Err("bad property list: no properties specified".to_owned());
    }
    let mut columns = Vec::new();
    for name in names.split(',') {
        if name == "space" && of == Of::Dataset {
            columns.extend(SPACE.iter().filter_map(|name| column(name, of)));
        } else {
            let invalid = || format!("bad property list: invalid property '{name}'");
            columns.push(column(name, of).ok_or_else(invalid)?);
        }
    }
    Ok(Some(columns))
}

/// The column of one name, if it can be the name of a property.
pub(crate) fn column(name: &str, of: Of) -> Option<Column> {
    let native = match of {
        Of::Dataset => pool::prop::find(name),
        Of::Pool => pool::prop::find_pool(name),
        Of::Vdev => pool::prop::find_vdev(name),
    };
    if let Some(def) = native {
        return Some(Column::native(def));
    }
    let possible = match of {
        Of::Dataset => pool::prop::is_user_property(name) || is_family(name),
        Of::Pool => {
            let feature = name.strip_prefix("feature@").is_some_and(|f| pool::feature::by_name(f).is_some());
            feature || name.starts_with("unsupported@") || pool::prop::is_user_property(name)
        }
        Of::Vdev => pool::prop::is_user_property(name),
    };
    possible.then(|| Column::other(name))
}

/// How a table is printed.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Style {
    /// `-H`: tabs between the columns, no header.
    pub(crate) scripted: bool,
    /// `-p`: exact numbers.
    pub(crate) parsable: bool,
}

impl Style {
    /// With `-H`, values are printed exactly as they are ([`console::for_scripts`]).
    fn heed(self) {
        if self.scripted {
            console::for_scripts();
        }
    }
}

/// A value as a table shows it: on one line, unless a program reads it exactly as it is.
pub(crate) fn in_line(text: &str) -> Cow<'_, str> {
    if console::is_exact() { Cow::Borrowed(text) } else { shown::on_one_line(text) }
}

/// Collects rows and prints them, one object per row.
#[derive(Debug)]
pub(crate) struct Lister {
    pub(crate) columns: Vec<Column>,
    style: Style,
    rows: Vec<Vec<Cell>>,
    /// The width of the first column, where it is more than its values need.
    pub(crate) first_width: Option<usize>,
}

impl Lister {
    pub(crate) fn new(columns: Vec<Column>, style: Style) -> Lister {
        style.heed();
        Lister { columns, style, rows: Vec::new(), first_width: None }
    }

    /// Adds a row: a cell for each column.
    pub(crate) fn add(&mut self, row: Vec<Cell>) {
        for (column, cell) in self.columns.iter_mut().zip(&row) {
            column.widen(cell, self.style.parsable);
        }
        self.rows.push(row);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn width(&self, n: usize, column: &Column) -> usize {
        self.first_width.filter(|_| n == 0).unwrap_or(column.width)
    }

    /// One line of texts in the columns. `right` says which of them line up at the right.
    fn line(&self, out: &mut impl Write, texts: &[String], right: impl Fn(usize, &Column) -> bool) -> io::Result<()> {
        for (n, (column, text)) in self.columns.iter().zip(texts).enumerate() {
            let last = n + 1 == self.columns.len();
            let width = self.width(n, column);
            match (self.style.scripted, right(n, column)) {
                (true, _) => write!(out, "{}{text}", if n == 0 { "" } else { "\t" })?,
                (false, right) => {
                    out.write_all(if n == 0 { b"" } else { b"  " })?;
                    match right {
                        true => write!(out, "{text:>width$}")?,
                        false if last => out.write_all(text.as_bytes())?,
                        false => write!(out, "{text:<width$}")?,
                    }
                }
            }
        }
        writeln!(out)
    }

    /// The header line, unless scripted.
    pub(crate) fn print_header(&self, out: &mut impl Write) -> io::Result<()> {
        if self.style.scripted {
            return Ok(());
        }
        let titles: Vec<String> = self.columns.iter().map(Column::header).collect();
        self.line(out, &titles, |_, column| column.right(true))
    }

    /// A line of dashes behind a title, as sections of `zpool list -v` have it.
    pub(crate) fn print_dashes(&self, out: &mut impl Write, title: &str) -> io::Result<()> {
        for (n, column) in self.columns.iter().enumerate() {
            let width = self.width(n, column);
            match n {
                0 => write!(out, "{title:<width$}")?,
                _ => write!(out, "  {:>width$}", "-")?,
            }
        }
        writeln!(out)
    }

    /// The row `n`.
    pub(crate) fn print_row(&self, out: &mut impl Write, n: usize) -> io::Result<()> {
        let texts: Vec<String> =
            self.rows.get(n).into_iter().flatten().map(|cell| in_line(&cell.text).into_owned()).collect();
        self.line(out, &texts, |_, column| column.right(false))
    }

    /// A cell of a line that is no row (a vdev in `zpool list -v`): column `n`, right-aligned, not widened by other rows.
    pub(crate) fn print_cell(&self, out: &mut impl Write, n: usize, text: &str) -> io::Result<()> {
        let width = self.columns.get(n).and_then(|column| column.native).map_or(0, natural_width);
        match self.style.scripted {
            true => write!(out, "\t{text}"),
            false => write!(out, "  {text:>width$}"),
        }
    }

    /// The header and all rows.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if !self.rows.is_empty() {
            self.print_header(out)?;
        }
        (0..self.rows.len()).try_for_each(|n| self.print_row(out, n))
    }
}

/// A column of `get`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Field {
    Name,
    Property,
    Value,
    Received,
    Source,
}

impl Field {
    const fn title(self) -> &'static str {
        match self {
            Field::Name => "NAME",
            Field::Property => "PROPERTY",
            Field::Value => "VALUE",
            Field::Received => "RECEIVED",
            Field::Source => "SOURCE",
        }
    }

    /// The fields of an option `-o`; `all` is all of `known`.
    pub(crate) fn parse(words: &str, known: &[Field]) -> Result<Vec<Field>, String> {
        let mut fields = Vec::new();
        for word in words.split(',') {
            if fields.len() == known.len() {
                return Err("too many fields given to -o option".to_owned());
            }
            if word == "all" {
                if !fields.is_empty() {
                    return Err("\"all\" conflicts with specific fields given to -o option".to_owned());
                }
                fields = known.to_vec();
                continue;
            }
            let field = known
                .iter()
                .find(|f| f.title().eq_ignore_ascii_case(word) && word.bytes().all(|b| b.is_ascii_lowercase()));
            fields.push(*field.ok_or_else(|| format!("invalid column name '{word}'"))?);
        }
        Ok(fields)
    }
}

/// Prints the rows of `get`: one property of one object per row.
#[derive(Debug)]
pub(crate) struct Getter {
    pub(crate) fields: Vec<Field>,
    pub(crate) style: Style,
    rows: Vec<(String, String, Cell)>,
    /// The longest name of a thing, shown or not.
    name_width: usize,
    value_width: usize,
    property_width: usize,
}

impl Getter {
    pub(crate) fn new(fields: Vec<Field>, style: Style) -> Getter {
        style.heed();
        Getter { fields, style, rows: Vec::new(), name_width: 0, value_width: 0, property_width: 0 }
    }

    /// Widens the columns for the properties that were asked for, whether or not any object has them.
    pub(crate) fn expect(&mut self, columns: &[Column]) {
        for column in columns {
            self.property_width = self.property_width.max(column.name.len());
            self.value_width = self.value_width.max(column.width);
        }
    }

    /// Takes the name of a thing into account.
    pub(crate) fn expect_name(&mut self, name: &str) {
        self.name_width = self.name_width.max(name.len());
    }

    /// Adds a row; `column` is widened where its values count.
    pub(crate) fn add(&mut self, name: &str, column: &mut Column, cell: Cell) {
        column.widen(&cell, self.style.parsable);
        self.value_width = self.value_width.max(column.width);
        self.rows.push((name.to_owned(), column.name.clone(), cell));
    }

    fn width(&self, field: Field) -> usize {
        let title = field.title().len();
        let received = || self.rows.iter().filter_map(|(_, _, cell)| cell.received.as_ref()).map(String::len).max();
        match field {
            Field::Name => title.max(self.name_width),
            Field::Property => title.max(self.property_width),
            Field::Value => title.max(self.value_width),
            Field::Received => title.max(received().unwrap_or(0)),
            // room for the longest name that one could inherit from
            Field::Source if self.name_width > Field::Name.title().len() => self.name_width + "inherited from".len(),
            Field::Source => title,
        }
    }

    /// The header and all rows.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let widths: Vec<usize> = self.fields.iter().map(|f| self.width(*f)).collect();
        if !self.style.scripted && !self.rows.is_empty() {
            let titles: Vec<&str> = self.fields.iter().map(|f| f.title()).collect();
            self.line(out, &titles, &widths)?;
        }
        for (name, property, cell) in &self.rows {
            let source = cell.source.to_string();
            let texts: Vec<&str> = self
                .fields
                .iter()
                .map(|field| match field {
                    Field::Name => name.as_str(),
                    Field::Property => property,
                    Field::Value => &cell.text,
                    Field::Received => cell.received.as_deref().unwrap_or("-"),
                    Field::Source => &source,
                })
                .collect();
            self.line(out, &texts, &widths)?;
        }
        Ok(())
    }

    fn line(&self, out: &mut impl Write, texts: &[&str], widths: &[usize]) -> io::Result<()> {
        for (n, (text, width)) in texts.iter().zip(widths).enumerate() {
            let text = in_line(text);
            match n + 1 == texts.len() {
                true => writeln!(out, "{text}")?,
                false if self.style.scripted => write!(out, "{text}\t")?,
                false => write!(out, "{text:<width$}  ")?,
            }
        }
        Ok(())
    }
}

/// A property as JSON has it (OpenZFS: `zprop_nvlist_one_property`).
pub(crate) fn property_json(cell: &Cell, as_int: bool) -> NvList {
    let (kind, data) = match &cell.source {
        Source::None => ("NONE", "-"),
        Source::Default => ("DEFAULT", "-"),
        Source::Local => ("LOCAL", "-"),
        Source::Temporary => ("TEMPORARY", "-"),
        Source::Inherited(from) => ("INHERITED", from.as_str()),
        Source::Received => ("RECEIVED", cell.received.as_deref().unwrap_or("-")),
    };
    let mut source = NvList::new();
    source.insert("type", kind);
    source.insert("data", data);
    let mut property = NvList::new();
    property.insert("value", number_or_text(&cell.text, as_int));
    property.insert("source", source);
    property
}

/// Digits become a number if numbers are wanted.
pub(crate) fn number_or_text(text: &str, as_int: bool) -> Nv {
    match text.parse::<u64>() {
        Ok(n) if as_int && text.bytes().all(|b| b.is_ascii_digit()) => Nv::Uint64(n),
        _ => Nv::from(text),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn cell(text: &str) -> Cell {
        Cell { text: text.into(), source: Source::Local, received: None }
    }

    #[test]
    fn numbers_line_up_at_the_right_and_the_last_text_is_not_padded() {
        let columns = parse("name,used,mountpoint", Of::Dataset).unwrap().unwrap();
        let mut lister = Lister::new(columns, Style::default());
        lister.add(vec![cell("tank"), cell("1.5K"), cell("/tank")]);
        lister.add(vec![cell("tank/fs"), cell("12M"), cell("/t")]);
        let mut out = Vec::new();
        console::in_test(|| lister.print(&mut out)).unwrap();
        let want = "NAME      USED  MOUNTPOINT\ntank      1.5K  /tank\ntank/fs    12M  /t\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }

    #[test]
    fn scripts_get_tabs() {
        let out = console::in_test(|| {
            let columns = parse("name,used", Of::Dataset).unwrap().unwrap();
            let mut lister = Lister::new(columns, Style { scripted: true, parsable: true });
            lister.add(vec![cell("tank"), cell("1536")]);
            let mut out = Vec::new();
            lister.print(&mut out).unwrap();
            out
        });
        assert_eq!(out, b"tank\t1536\n");
    }

    #[test]
    fn names_of_properties() {
        let names = |list: &str| {
            parse(list, Of::Dataset).map(|c| c.unwrap().iter().map(|c| c.name.clone()).collect::<Vec<_>>())
        };
        assert_eq!(names("refer,com.x:y,userused@root").unwrap(), ["referenced", "com.x:y", "userused@root"]);
        assert_eq!(names("space").unwrap().len(), 7);
        assert!(names("nope").is_err() && names("").is_err());
        assert!(
            is_family("written@a") && is_family("projectobjquota@1") && !is_family("written") && !is_family("xused@y")
        );
        assert!(parse("feature@lz4_compress,health", Of::Pool).is_ok() && parse("feature@x", Of::Pool).is_err());
    }

    #[test]
    fn fields_of_get() {
        let known = [Field::Name, Field::Property, Field::Value, Field::Received, Field::Source];
        assert_eq!(Field::parse("value,name", &known), Ok(vec![Field::Value, Field::Name]));
        assert_eq!(Field::parse("all", &known).unwrap().len(), 5);
        assert!(Field::parse("x", &known).is_err() && Field::parse("name,all", &known).is_err());
    }
}
