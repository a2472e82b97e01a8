//! `zpool list`.

use std::io::Write;

use nvlist::NvList;
use pool::prop::{POOL, nicenum};
use site::Query;

use super::describe::{self, describe, json_key};
use super::repeat::{Repeat, timestamp};
use super::status_json::print_pools;
use super::unavailable::{Seen, each};
use super::vdev_json::spare_state;
use super::vdevs::{Class, NameFlags, Vdev, Vdevs, brief_stats};
use crate::args::{JSON_INT, JSON_POOL_KEY_GUID};
use crate::columns::{self, Cell, Column, Lister, Of, Style, property_json};
use crate::command::Call;
use crate::console::here;
use crate::error::{Failure, Outcome, usage};
use crate::pools::stdout;

const DEFAULT: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";

/// The options of the command.
struct Options {
    style: Style,
    names: NameFlags,
    verbose: bool,
    as_int: bool,
    by_guid: bool,
}

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    let options = Options {
        style: Style { scripted: args.has('H'), parsable: args.has('p') || args.has(JSON_INT) },
        names: NameFlags::of(args),
        verbose: args.has('v'),
        as_int: args.has(JSON_INT),
        by_guid: args.has(JSON_POOL_KEY_GUID),
    };
    let as_json = args.has('j');
    for (wanted, text) in [(options.as_int, "'--json-int'"), (options.by_guid, "'json-pool-key-guid'")] {
        if wanted && !as_json {
            return Err(usage(format!("{text} only works with '-j' option")));
        }
    }
    let fields = args.text('o').unwrap_or_else(|| DEFAULT.to_owned());
    let columns = columns::parse(&fields, Of::Pool).map_err(usage)?.unwrap_or_else(all_columns);
    let mut names = args.names();
    let repeat = Repeat::take(&mut names)?;

    let mut done = 0;
    loop {
        here().look_again();
        let status = match as_json {
            true => print_json(call, &names, &columns, &options)?,
            false => print(call, &names, &columns, &options, done == 0)?,
        };
        done += 1;
        if status != 0 || !repeat.again(done) {
            return Ok(status);
        }
    }
}

fn all_columns() -> Vec<Column> {
    let name = columns::column("name", Of::Pool).into_iter();
    name.chain(POOL.iter().filter(|def| def.visible).map(Column::native)).collect()
}

/// The cells of a pool, one for each column.
fn row(query: &Query, columns: &[Column], parsable: bool) -> Result<Vec<Cell>, Failure> {
    // the name is known, whether properties can be read or not
    let props = match columns.iter().all(|column| column.name == "name") {
        true => NvList::new(),
        false => describe::props(query, columns)?,
    };
    let cell = |column: &Column| match &*column.name {
        "name" => Cell { text: query.name().to_owned(), ..Cell::none() },
        name => describe::cell(&props, name, parsable).unwrap_or_else(Cell::none),
    };
    Ok(columns.iter().map(cell).collect())
}

fn print(call: &Call<'_>, names: &[String], columns: &[Column], options: &Options, first: bool) -> Outcome {
    let mut lister = Lister::new(columns.to_vec(), options.style);
    let mut listed: Vec<(String, Option<Vdevs>)> = Vec::new();
    let mut width = 9;
    let status = each(names, |pool| {
        let (name, vdevs) = match pool {
            Seen::Open(query) => {
                lister.add(row(&query, columns, options.style.parsable)?);
                (query.name().to_owned(), options.verbose.then(|| Vdevs::ask(&query)).transpose()?)
            }
            Seen::Unavailable(pool) => {
                lister.add(columns.iter().map(|column| pool.cell(column)).collect());
                (pool.name, options.verbose.then_some(pool.vdevs))
            }
        };
        width = width.max(name.len()).max(vdevs.as_ref().map_or(0, |v| v.width(&name, options.names)));
        listed.push((name, vdevs));
        Ok(())
    })?;
    let mut out = stdout();
    if let Some(stamp) = timestamp(call)? {
        writeln!(out, "{stamp}")?;
    }
    if options.verbose {
        lister.first_width = Some(width);
    }
    if (first || options.verbose) && !lister.is_empty() {
        lister.print_header(&mut out)?;
    }
    for (n, (pool, vdevs)) in listed.iter().enumerate() {
        lister.print_row(&mut out, n)?;
        if let Some(vdevs) = vdevs {
            let lines = Lines { lister: &lister, pool, options, width };
            lines.pool(&mut out, vdevs)?;
        }
    }
    out.flush()?;
    if names.is_empty() && lister.is_empty() && status == 0 && !options.style.scripted {
        println!("no pools available");
    }
    Ok(status)
}

/// The lines of vdevs below a pool.
struct Lines<'a> {
    lister: &'a Lister,
    pool: &'a str,
    options: &'a Options,
    width: usize,
}

impl Lines<'_> {
    fn pool(&self, out: &mut impl Write, vdevs: &Vdevs) -> Result<(), Failure> {
        for top in vdevs.root.listed() {
            self.vdev(out, top, 2, false)?;
        }
        for class in Class::SECTIONS {
            let mut members = vdevs.root.of_class(class).peekable();
            if members.peek().is_some() {
                self.lister.print_dashes(out, class.title())?;
            }
            members.try_for_each(|vdev| self.vdev(out, vdev, 2, false))?;
        }
        for (title, members, spare) in [("cache", &vdevs.l2cache, false), ("spare", &vdevs.spares, true)] {
            if !members.is_empty() {
                self.lister.print_dashes(out, title)?;
            }
            members.iter().try_for_each(|vdev| self.vdev(out, vdev, 2, spare))?;
        }
        Ok(())
    }

    fn vdev(&self, out: &mut impl Write, vdev: &Vdev, depth: usize, spare: bool) -> Result<(), Failure> {
        let name = vdev.name(self.pool, self.options.names);
        match self.options.style.scripted {
            true => write!(out, "\t{name}")?,
            false => write!(out, "{:depth$}{name:<width$}", "", width = self.width.saturating_sub(depth))?,
        }
        for (n, column) in self.lister.columns.iter().enumerate() {
            if column.name != "name" {
                let text = vdev_value(vdev, &column.name, spare, self.options.style.parsable);
                self.lister.print_cell(out, n, &text)?;
            }
        }
        writeln!(out)?;
        vdev.children.iter().filter(|c| !c.is_hidden()).try_for_each(|c| self.vdev(out, c, depth + 2, spare))
    }
}

/// The value of a pool property for a vdev: `-` for most.
fn vdev_value(vdev: &Vdev, property: &str, spare: bool, parsable: bool) -> String {
    let dash = || "-".to_owned();
    let size = |n: u64| if parsable { n.to_string() } else { nicenum(n) };
    let or_dash = |n: u64| if n == 0 { dash() } else { size(n) };
    if property == "health" {
        return spare_state(vdev).filter(|_| spare).unwrap_or_else(|| vdev.state.name()).to_owned();
    }
    if property == "size" {
        let space = vdev.space.map_or(0, |s| s.size);
        return or_dash(vdev.device_size.unwrap_or(space));
    }
    if property == "expandsize" {
        return or_dash(vdev.growth);
    }
    let Some(space) = vdev.space else { return dash() };
    match property {
        "allocated" => size(space.allocated),
        "free" => size(space.size.saturating_sub(space.allocated)),
        "checkpoint" => or_dash(space.checkpoint),
        "fragmentation" => match space.fragmentation {
            Some(n) if parsable => n.to_string(),
            Some(n) => format!("{n}%"),
            None => dash(),
        },
        "capacity" => {
            let share = (u128::from(space.allocated) * 10_000).checked_div(space.size.into()).unwrap_or(0) as u64;
            let percent = share as f64 / 100.0;
            match share {
                _ if parsable => (share / 100).to_string(),
                0..1000 => format!("{percent:.2}%"),
                1000..10_000 => format!("{percent:.1}%"),
                _ => format!("{percent:.0}%"),
            }
        }
        _ => dash(),
    }
}

fn print_json(call: &Call<'_>, names: &[String], columns: &[Column], options: &Options) -> Outcome {
    let mut all = NvList::new();
    let status = each(names, |pool| {
        let (key, mut item, cells, name, vdevs) = match pool {
            Seen::Open(query) => {
                let config = brief_stats(&query)?;
                let vdevs = options.verbose.then(|| Vdevs::of(&config)).transpose()?;
                let cells = row(&query, columns, options.style.parsable)?;
                let item = describe(&config, true, options.as_int);
                (json_key(&config, options.by_guid), item, cells, query.name().to_owned(), vdevs)
            }
            Seen::Unavailable(pool) => {
                let cells = columns.iter().map(|column| pool.cell(column)).collect();
                let (key, item) = (pool.key(options.by_guid), pool.describe(options.as_int));
                (key, item, cells, pool.name, options.verbose.then_some(pool.vdevs))
            }
        };
        let mut properties = NvList::new();
        for (column, cell) in columns.iter().zip(&cells).filter(|(column, _)| column.name != "name") {
            properties.insert(&column.name, property_json(cell, options.as_int));
        }
        item.insert("properties", properties);
        if let Some(vdevs) = vdevs {
            item.insert("vdevs", vdevs_json(&name, &vdevs, columns, options));
        }
        all.insert(key, item);
        Ok(())
    })?;
    if status != 0 { Ok(status) } else { print_pools(call, all, options.as_int) }
}

fn vdevs_json(pool: &str, vdevs: &Vdevs, columns: &[Column], options: &Options) -> NvList {
    let mut list = NvList::new();
    for top in vdevs.root.listed() {
        list.insert(top.name(pool, options.names), vdev_json(pool, top, columns, options, None));
    }
    let mut section = |key: &str, members: Vec<&Vdev>, class: Option<&str>| {
        let mut inner = NvList::new();
        for vdev in members {
            inner.insert(vdev.name(pool, options.names), vdev_json(pool, vdev, columns, options, class));
        }
        if !inner.is_empty() {
            list.insert(key, inner);
        }
    };
    for class in Class::SECTIONS {
        section(class.title(), vdevs.root.of_class(class).collect(), None);
    }
    section("l2cache", vdevs.l2cache.iter().collect(), Some("l2cache"));
    section("spares", vdevs.spares.iter().collect(), Some("spare"));
    list
}

fn vdev_json(pool: &str, vdev: &Vdev, columns: &[Column], options: &Options, class: Option<&str>) -> NvList {
    let mut item = super::vdev_json::describe_vdev(pool, vdev, options.names, options.as_int, class);
    let mut properties = NvList::new();
    for column in columns.iter().filter(|column| column.name != "name") {
        let text = vdev_value(vdev, &column.name, class == Some("spare"), options.style.parsable);
        properties.insert(&column.name, property_json(&Cell { text, ..Cell::none() }, options.as_int));
    }
    item.insert("properties", properties);
    let mut children = NvList::new();
    for child in vdev.children.iter().filter(|c| !c.is_hidden()) {
        children.insert(child.name(pool, options.names), vdev_json(pool, child, columns, options, class));
    }
    if !children.is_empty() {
        item.insert("vdevs", children);
    }
    item
}
