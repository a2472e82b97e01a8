//! The datasets that a command is about, in order (OpenZFS: `zfs_iter.c`).

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use base::Errno;
use control::{Failed, Ioc};
use nvlist::NvList;
use pool::prop::PropKind;
use pool::{Error, Value};
use site::Query;

use super::listed::{self, Listed, Wanted};
use crate::answers;
use crate::columns::{Column, Of, column};
use crate::console;
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

    /// Everything that is selected, in order, with the properties `wanted`, and whether everything that was named was found. What was not is
    /// reported.
    pub(super) fn run(&self, names: &[String], wanted: &Wanted) -> Result<(Vec<Listed>, bool), Failure> {
        let mut wanted = wanted.clone();
        wanted.add(self.sort.iter().map(|(column, _)| column));
        let mut found = Vec::new();
        let mut whole = true;
        if names.is_empty() {
            let (open, all_open) = pools::open_all()?;
            whole = all_open;
            for source in open {
                let source = Arc::new(source);
                let top = Listed::top(&source, &wanted).map_err(|e| failed(e.to_string()))?;
                let all = Selection { recurse: true, ..self.clone() };
                found.extend(all.under(top, &wanted).map_err(|e| failed(e.to_string()))?);
            }
        } else {
            for name in names {
                match self.named(name, &wanted) {
                    Ok(entries) => found.extend(entries),
                    Err(Failure::Failed(why)) => {
                        eprintln!("{why}");
                        whole = false;
                    }
                    Err(other) => return Err(other),
                }
            }
        }
        if names.len() > 1 {
            let mut seen = HashSet::new();
            found.retain(|entry| seen.insert(entry.name().to_owned()));
        }
        self.order(&mut found)?;
        Ok((found, whole))
    }

    /// The datasets that one operand selects.
    fn named(&self, name: &str, wanted: &Wanted) -> Result<Vec<Listed>, Failure> {
        let mut accepted = self.types;
        if self.recurse {
            accepted.filesystems = true;
            accepted.volumes |= self.types.snapshots || self.types.bookmarks;
        }
        let name = &*by_path(name)?;
        let source = find_pool(name, accepted)?;
        let entry = Listed::ask(&source, name, wanted).map_err(|e| failed(told(&e, name)))?;
        if !entry.fits(accepted) {
            return Err(bad_type(name));
        }
        match self.recurse && !name.contains(['@', '#']) {
            true => self.under(entry, wanted).map_err(|e| failed(told(&e, name))),
            false => Ok(vec![entry]),
        }
    }

    /// Lists what is selected of a file system or volume and of all below.
    fn under(&self, top: Listed, wanted: &Wanted) -> Result<Vec<Listed>, Failed> {
        let (source, name) = (top.source().clone(), top.name().to_owned());
        let depth = self.depth.map_or(u64::from(u32::MAX), u64::from);
        let mut types = self.types;
        if self.list_snapshots {
            types.snapshots = lists_snapshots(&source)?;
        }
        let heads = types.filesystems || types.volumes;
        let mut all = Vec::new();
        // where both kinds of heads are wanted theirs need not be known, and no root block be read: all is listed at once
        let any = types.filesystems && types.volumes;
        let at_once = any && !wanted.has_types();
        if depth > 0 && types.snapshots && !at_once {
            all.extend(listed::snapshots(&source, (&name, depth), &wanted.clone().typed(false))?);
        }
        if types.bookmarks {
            all.extend(listed::bookmarks(&source, (&name, depth), wanted)?);
        }
        if depth > 0 && heads {
            let typed = wanted.clone().typed(!at_once);
            let below = listed::below(&source, (&name, depth), at_once && types.snapshots, &typed)?;
            all.extend(below.into_iter().filter(|entry| any || entry.fits(types)));
        }
        if heads && top.fits(types) {
            all.push(top);
        }
        Ok(all)
    }

    fn order(&self, entries: &mut Vec<Listed>) -> Result<(), Failure> {
        if self.sort.is_empty() {
            entries.sort_by(Listed::list_order);
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

/// Whether the pool's property `listsnapshots` is on.
fn lists_snapshots(source: &Query) -> Result<bool, Failed> {
    let mut input = NvList::new();
    input.insert("get_props_names", answers::names(["listsnapshots"]));
    let props = source.call(Ioc::PoolGetProps, source.name(), &input)?;
    let on = props.get_nvlist("listsnapshots").and_then(|prop| answers::value(prop, "value"));
    Ok(on.and_then(|value| value.number()).is_some_and(|n| n != 0))
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
fn sort_key(entry: &Listed, column: &Column) -> Result<Option<Value>, Failed> {
    if column.name == "name" {
        return Ok(Some(Value::String(entry.name().to_owned())));
    }
    let value = entry.value(&column.name)?;
    Ok(value.map(|value| match (&value, column.native.map(|def| (def, def.kind))) {
        (Value::String(word), Some((def, PropKind::Index { .. }))) => {
            def.index_value(word).map_or(value, Value::Number)
        }
        _ => value,
    }))
}

/// The imported pool that a dataset of one of these kinds is in; the message is OpenZFS's.
fn find_pool(name: &str, accepted: Types) -> Result<Arc<Query>, Failure> {
    let cannot = |why: &str| failed(format!("cannot open '{name}': {why}"));
    names::check(name, accepted).map_err(|why| cannot(&why))?;
    pools::of_dataset(name)?.ok_or_else(|| cannot("dataset does not exist"))
}

/// The message for a dataset of a kind that the command does not take.
pub(super) fn bad_type(name: &str) -> Failure {
    failed(format!("cannot open '{name}': operation not applicable to datasets of this type"))
}

/// Finds one dataset, snapshot or bookmark.
pub(super) fn find(name: &str, accepted: Types) -> Result<Listed, Failure> {
    let source = find_pool(name, accepted)?;
    let entry = Listed::find(&source, name).map_err(|e| failed(told(&e, name)))?;
    if entry.fits(accepted) { Ok(entry) } else { Err(bad_type(name)) }
}

/// As [`find`], with these properties asked for at once.
pub(super) fn find_with(name: &str, accepted: Types, wanted: &Wanted) -> Result<Listed, Failure> {
    let source = find_pool(name, accepted)?;
    let entry = Listed::ask(&source, name, wanted).map_err(|e| failed(told(&e, name)))?;
    if entry.fits(accepted) { Ok(entry) } else { Err(bad_type(name)) }
}

/// The name of the file system that is mounted where a path leads, if it is a path (OpenZFS: `zfs_path_to_zhandle`). For commands that only show: a path below a mount
/// point means all of the file system there, which nobody wants to be destroyed for it.
pub(super) fn by_path(name: &str) -> Result<Cow<'_, str>, Failure> {
    if !name.starts_with('/') && !name.starts_with("./") {
        return Ok(Cow::Borrowed(name));
    }
    let found = console::mounts().and_then(|table| {
        let path = console::path(name).canonicalize().ok()?;
        let mount = table.containing(&path)?;
        // something else may be mounted inside
        let device = |path: &Path| path.symlink_metadata().ok().map(|meta| meta.dev());
        (device(&path)? == device(mount.path())?).then(|| mount.name())
    });
    found.map(Cow::Owned).ok_or_else(|| failed(format!("'{name}': not a ZFS filesystem")))
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

/// The same for a request that failed.
pub(super) fn told(failed: &Failed, name: &str) -> String {
    match &*failed.error {
        control::Error::Pool(e) => said(e, name),
        other => format!("cannot open '{name}': {other}"),
    }
}

/// Whether a dataset belongs to a container, as far as that can be read.
pub(super) fn is_zoned(dataset: &Listed) -> bool {
    dataset.is("zoned").unwrap_or(false)
}
