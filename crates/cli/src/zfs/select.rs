//! The datasets that a command is about, in order, and their properties as text (OpenZFS: `zfs_iter.c`).

use std::cmp::Ordering;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::sync::Arc;

use base::Errno;
use pool::prop::{self, PropKind, Value};
use pool::{Dataset, Entry, Error, Kind, ListOptions, Pool};

use crate::columns::{Cell, Column, Of, column};
use crate::error::{Failure, failed, usage};
use crate::names::{self, Types};
use crate::pools;

/// The criteria that select datasets.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    /// The kinds that are wanted.
    pub(super) types: Types,
    /// Includes everything below the named datasets.
    pub(super) recurse: bool,
    /// The number of levels below.
    pub(super) depth: Option<u32>,
    /// Includes snapshots of pools whose `listsnapshots` is on.
    pub(super) list_snapshots: bool,
    /// Columns to sort by first, each with whether in reverse.
    pub(super) sort: Vec<(Column, bool)>,
}

/// A number as C reads it: with a sign, octal after a `0`, hexadecimal after `0x`. A number that does not fit is -1,
/// which is what the largest `long` leaves in an `int`.
fn c_int(text: &str) -> Option<i32> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let number = i32::from_str_radix(digits, radix);
    Some(number.map_or(-1, |number| if negative { -number } else { number }))
}

impl Selection {
    pub(super) fn new(types: Types) -> Selection {
        Selection { types, recurse: false, depth: None, list_snapshots: false, sort: Vec::new() }
    }

    /// Applies an option `-d`.
    pub(super) fn set_depth(&mut self, value: &OsStr) -> Result<(), Failure> {
        let text = value.to_string_lossy();
        let depth = c_int(&text).ok_or_else(|| usage(format!("{text} is not an integer")))?;
        self.depth = Some(u32::try_from(depth).map_err(|_| usage("Depth can not be negative."))?);
        self.recurse = true;
        Ok(())
    }

    /// Applies an option `-s` or `-S`.
    pub(super) fn add_sort(&mut self, value: &OsStr, reverse: bool) -> Result<(), Failure> {
        let text = value.to_string_lossy();
        let column = column(&text, Of::Dataset).ok_or_else(|| usage(format!("invalid property '{text}'")))?;
        self.sort.push((column, reverse));
        Ok(())
    }

    /// Limits the depth to one level for users who name a dataset and ask only for its snapshots, or its bookmarks.
    pub(super) fn default_depth(&mut self, named: bool) {
        if named && !self.recurse && (self.types == Types::SNAPSHOTS || self.types == Types::BOOKMARKS) {
            self.recurse = true;
            self.depth = Some(1);
        }
    }

    /// Everything that is selected, in order, and whether everything that was named was found. What was not is
    /// reported.
    pub(super) fn run(&self, names: &[String]) -> Result<(Vec<Entry>, bool), Failure> {
        let mut found = Vec::new();
        let mut whole = true;
        if names.is_empty() {
            let (open, all_open) = pools::open_all()?;
            whole = all_open;
            for pool in open {
                let all = Selection { recurse: true, ..self.clone() };
                found.extend(all.under(&pool, pool.name()).map_err(|e| failed(e.to_string()))?);
            }
        } else {
            for name in names {
                match self.named(name) {
                    Ok(entries) => found.extend(entries),
                    Err(Failure::Failed(why)) => {
                        eprintln!("{why}");
                        whole = false;
                    }
                    Err(other) => return Err(other),
                }
            }
        }
        let mut seen = HashSet::new();
        found.retain(|entry| seen.insert(entry.name().to_owned()));
        self.order(&mut found)?;
        Ok((found, whole))
    }

    /// The datasets that one operand selects.
    fn named(&self, name: &str) -> Result<Vec<Entry>, Failure> {
        let mut accepted = self.types;
        if self.recurse {
            accepted.filesystems = true;
            accepted.volumes |= self.types.snapshots || self.types.bookmarks;
        }
        let entry = open(name, accepted)?;
        let of = entry.dataset().map_or_else(|| None, |ds| Some(ds.pool().clone()));
        let is_head = entry.dataset().is_some_and(|ds| !ds.is_snapshot());
        match of {
            Some(pool) if self.recurse && is_head => {
                self.under(&pool, entry.name()).map_err(|e| failed(said(&e, name)))
            }
            _ => Ok(vec![entry]),
        }
    }

    fn under(&self, pool: &Arc<Pool>, name: &str) -> Result<Vec<Entry>, Error> {
        let mut snapshots = self.types.snapshots;
        if self.list_snapshots {
            let on = pool.prop("listsnapshots")?.and_then(|p| p.value.number());
            snapshots = on.is_some_and(|n| n != 0);
        }
        let options = ListOptions {
            depth: self.depth,
            filesystems: self.types.filesystems,
            volumes: self.types.volumes,
            snapshots,
            bookmarks: self.types.bookmarks,
            special: false,
        };
        pool.list(name, &options)
    }

    fn order(&self, entries: &mut Vec<Entry>) -> Result<(), Failure> {
        if self.sort.is_empty() {
            entries.sort_by(Entry::list_order);
            return Ok(());
        }
        let mut keyed = Vec::with_capacity(entries.len());
        for entry in entries.drain(..) {
            let keys = self.sort.iter().map(|(column, _)| sort_key(&entry, column)).collect::<Result<Vec<_>, _>>();
            keyed.push((keys.map_err(|e| failed(e.to_string()))?, entry));
        }
        keyed.sort_by(|(a, ea), (b, eb)| {
            let by_columns = a.iter().zip(b).zip(&self.sort).map(|((a, b), (_, reverse))| compare(a, b, *reverse));
            by_columns.fold(Ordering::Equal, Ordering::then).then_with(|| ea.list_order(eb))
        });
        entries.extend(keyed.into_iter().map(|(_, entry)| entry));
        Ok(())
    }
}

/// Compares two values; datasets without the property come last in either direction.
fn compare(a: &Option<Value>, b: &Option<Value>, reverse: bool) -> Ordering {
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) => {
            let order = match (a, b) {
                (Value::Number(a), Value::Number(b)) => a.cmp(b),
                (a, b) => a.to_string().cmp(&b.to_string()),
            };
            if reverse { order.reverse() } else { order }
        }
    }
}

/// The value to sort by: a word sorts by its number, as in OpenZFS.
fn sort_key(entry: &Entry, column: &Column) -> Result<Option<Value>, Error> {
    if column.name == "name" {
        return Ok(Some(Value::String(entry.name().to_owned())));
    }
    let value = match entry {
        Entry::Dataset(ds) => ds.prop(&column.name)?.map(|p| p.value),
        Entry::Bookmark(mark) => mark.prop(&column.name)?.map(|p| p.value),
    };
    Ok(value.map(|value| match (&value, column.native.map(|def| (def, def.kind))) {
        (Value::String(word), Some((def, PropKind::Index { .. }))) => {
            def.index_value(word).map_or(value, Value::Number)
        }
        _ => value,
    }))
}

/// Opens one dataset, snapshot or bookmark; the message is OpenZFS's.
pub(super) fn open(name: &str, accepted: Types) -> Result<Entry, Failure> {
    let cannot = |why: &str| failed(format!("cannot open '{name}': {why}"));
    if name.starts_with('/') || name.starts_with("./") {
        // nothing is mounted to which a path could lead
        return Err(failed(format!("'{name}': not a ZFS filesystem")));
    }
    names::check(name, accepted).map_err(|why| cannot(&why))?;
    let pool = pools::of_dataset(name)?.ok_or_else(|| cannot("dataset does not exist"))?;
    let opened = match name.contains('#') {
        true => pool.bookmark(name).map(Entry::Bookmark),
        false => pool.dataset(name).map(Entry::Dataset),
    };
    let entry = opened.map_err(|e| failed(said(&e, name)))?;
    let fits = match &entry {
        Entry::Bookmark(_) => accepted.bookmarks,
        Entry::Dataset(ds) => match ds.kind().map_err(|e| failed(said(&e, name)))? {
            Kind::Filesystem => accepted.filesystems,
            Kind::Volume => accepted.volumes,
            Kind::Snapshot => accepted.snapshots,
            Kind::Other => false,
        },
    };
    if fits { Ok(entry) } else { Err(cannot("operation not applicable to datasets of this type")) }
}

/// Opens a file system, volume or snapshot.
pub(super) fn open_dataset(name: &str, accepted: Types) -> Result<Dataset, Failure> {
    match open(name, accepted)? {
        Entry::Dataset(ds) => Ok(ds),
        Entry::Bookmark(_) => {
            Err(failed(format!("cannot open '{name}': operation not applicable to datasets of this type")))
        }
    }
}

/// An error about a dataset in OpenZFS's words.
pub(super) fn said(e: &Error, name: &str) -> String {
    if e.is_not_found() {
        format!("cannot open '{name}': dataset does not exist")
    } else if e.errno() == Errno::EACCES {
        format!("cannot open '{name}': its encryption key is not loaded")
    } else {
        format!("cannot open '{name}': {e}")
    }
}

/// The value of a property as it is printed; `None` if the dataset does not have it.
pub(super) fn cell(entry: &Entry, column: &Column, parsable: bool) -> Result<Option<Cell>, Failure> {
    if column.name == "name" {
        return Ok(Some(Cell { text: entry.name().to_owned(), ..Cell::none() }));
    }
    let stored = crate::users::by_id(&column.name);
    let name = stored.as_deref().unwrap_or(&column.name);
    let value = match entry {
        Entry::Dataset(ds) => ds.prop(name),
        Entry::Bookmark(mark) => mark.prop(name),
    };
    let value = match value {
        Ok(value) => value,
        // for example the space written since a snapshot that does not exist
        Err(_) if column.name.contains(['@', '#']) => return Ok(Some(Cell::none())),
        Err(e) => return Err(failed(format!("cannot get property '{}' of '{}': {e}", column.name, entry.name()))),
    };
    let show = |v: &Value| prop::format(&column.name, v, parsable);
    Ok(value.map(|p| Cell { text: show(&p.value), source: p.source.clone(), received: p.received.as_ref().map(show) }))
}

/// The JSON fields of each dataset besides its properties (OpenZFS: `fill_dataset_info`).
pub(super) fn describe(entry: &Entry, as_int: bool) -> Result<nvlist::NvList, Failure> {
    let number = |n: u64| crate::columns::number_or_text(&n.to_string(), as_int);
    let name = entry.name();
    let mut list = nvlist::NvList::new();
    list.insert("name", name);
    let kind = match entry {
        Entry::Dataset(ds) => ds.kind().map_err(|e| failed(said(&e, name)))?.as_str(),
        Entry::Bookmark(_) => "bookmark",
    };
    list.insert("type", kind.to_ascii_uppercase());
    list.insert("pool", name.split(['/', '@', '#']).next().unwrap_or(""));
    let txg = match entry {
        Entry::Dataset(ds) => ds.phys().creation_txg.0,
        Entry::Bookmark(mark) => mark.phys().creation_txg.0,
    };
    list.insert("createtxg", number(txg));
    if let Entry::Dataset(ds) = entry
        && ds.is_snapshot()
    {
        let (of, snapshot) = name.split_once('@').unwrap_or((name, ""));
        list.insert("dataset", of);
        list.insert("snapshot_name", snapshot);
    }
    Ok(list)
}

/// Returns whether a dataset belongs to a container.
pub(super) fn is_zoned(dataset: &Dataset) -> bool {
    let zoned = dataset.prop("zoned").ok().flatten();
    zoned.and_then(|p| p.value.number()).is_some_and(|n| n != 0)
}
