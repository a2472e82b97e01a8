//! `-d`: object sets, their objects and the contents of these.
//!
//! A pool is shown as its MOS, then every dataset in the order in which OpenZFS walks them (children and snapshots in
//! the order of their hashes, each before the head), then the expected counts of features. The count of `-d` is the
//! level of detail: 1 names the sets, 2 lists objects and the intent log, 3 lists of blocks, 4 the contents of
//! objects, 5 block pointers and segments, 6 every copy and every word.
//!
//! With `-K` the key of each dataset is loaded for as long as the dataset is shown.
//!
//! With `-O` and `-r` an object is named by the path of its file ([`by_path`]).
//!
//! Whatever cannot be read is reported on standard error and left out; the rest is shown all the same.

mod bonus;
pub(super) mod by_path;
mod dsl;
mod dtl;
mod features;
pub(super) mod json;
mod lists;
mod object;
mod objset;
mod paths;
mod select;
mod subject;
mod tree;
mod type_name;
mod unlock;
mod viewers;
mod zap;
mod znode;

use std::collections::HashSet;
use std::io::Write;
use std::sync::Arc;

use base::{Errno, ObjectId};
use ondisk::BlkPtr;
use pool::Pool;

use super::options::{Options, number as parse_number};
use super::text;
use crate::error::{Failure, Outcome, cause, failed};

use features::Counts;
use select::Selection;
use subject::Subject;
use unlock::Unlocked;

/// The context of printing: output, options, pool, level.
struct Cx<'a> {
    out: &'a mut dyn Write,
    options: &'a Options,
    pool: &'a Arc<Pool>,
    /// The count of `-d`.
    level: u32,
    /// The level of detail for objects: the same, except for objects named by their path.
    verbosity: u32,
    /// Set if something could not be read.
    trouble: bool,
}

impl<'a> Cx<'a> {
    fn new(out: &'a mut dyn Write, options: &'a Options, pool: &'a Arc<Pool>) -> Self {
        let level = options.level('d');
        Cx { out, options, pool, level, verbosity: level, trouble: false }
    }

    /// A number for people, or in full with `-P`.
    fn number(&self, n: u64) -> String {
        text::number(self.options, n)
    }

    /// Reports what cannot be shown.
    fn complain(&mut self, what: &dyn std::fmt::Display) {
        eprintln!("zdb: {what}");
        self.trouble = true;
    }

    /// The value, or `None` after reporting the error.
    fn told<T, E: std::fmt::Display>(&mut self, result: Result<T, E>) -> Option<T> {
        result.inspect_err(|e| self.complain(e)).ok()
    }

    /// More blocks than the pool has room for: a chain that is longer is circular.
    fn most_blocks(&self) -> u64 {
        self.pool.zio().most_blocks()
    }

    fn status(&self) -> u8 {
        u8::from(self.trouble)
    }
}

/// `zdb -d POOL`: all object sets of the pool, and whether the counts of its features are right.
pub(super) fn pool(out: &mut dyn Write, options: &Options, pool: &Arc<Pool>) -> Outcome {
    let mut cx = Cx::new(out, options, pool);
    objset::show(&mut cx, &mut Subject::mos(pool), &[])?;
    if cx.level >= 3 {
        lists::pool_lists(&mut cx)?;
        dtl::show(&mut cx)?;
    }
    let mut counts = Counts::default();
    for_each_dataset(&mut cx, &mut |cx, dataset| one_dataset(cx, &mut counts, dataset))?;
    if !options.has('L') {
        origin_deadlists(&mut cx)?;
    }
    let verdict = counts.verify(&mut cx)?;
    Ok(if verdict == 0 { cx.status() } else { verdict })
}

/// `zdb -d POOL OBJECT...`: objects of the MOS.
pub(super) fn mos(out: &mut dyn Write, options: &Options, pool: &Arc<Pool>, selectors: &[String]) -> Outcome {
    let selected = selections(selectors)?;
    let mut cx = Cx::new(out, options, pool);
    objset::show(&mut cx, &mut Subject::mos(pool), &selected)?;
    Ok(cx.status())
}

/// `zdb -d POOL/DATASET [OBJECT...]`; the dataset may be given by the number of its object set, the pool itself by 0.
pub(super) fn dataset(
    out: &mut dyn Write,
    options: &Options,
    pool: &Arc<Pool>,
    name: &str,
    selectors: &[String],
) -> Outcome {
    let name = name.strip_suffix('/').unwrap_or(name);
    let id = name.split_once('/').and_then(|(_, rest)| parse_number(rest));
    if id == Some(0) {
        return if selectors.is_empty() { self::pool(out, options, pool) } else { mos(out, options, pool, selectors) };
    }
    let cannot = |e: pool::Error| cannot_open(name, &e);
    if let Some((head, mark)) = name.split_once('#') {
        let mark = pool.dataset(head).and_then(|ds| ds.bookmark(mark)).map_err(cannot)?;
        let mut cx = Cx::new(out, options, pool);
        lists::bookmark(&mut cx, &mark, true, options.verbose > 1)?;
        return Ok(cx.status());
    }
    let selected = selections(selectors)?;
    let (dataset, unlocked) = find_dataset(options, pool, name)?;
    let mut subject = Subject::dataset(pool, &dataset).map_err(cannot)?;
    let mut cx = Cx::new(out, options, pool);
    tell_unlocked(&mut cx, unlocked.as_ref())?;
    objset::show(&mut cx, &mut subject, &selected)?;
    Ok(cx.status())
}

/// The dataset of this name or number, unlocked if a key is given.
fn find_dataset(options: &Options, pool: &Arc<Pool>, name: &str) -> Result<(pool::Dataset, Option<Unlocked>), Failure> {
    let id = name.split_once('/').and_then(|(_, rest)| parse_number(rest)).map(ObjectId);
    let by_name = if options.has('N') { None } else { pool.dataset(name).ok() };
    let found = match (by_name, id) {
        (Some(dataset), _) => Ok(dataset),
        (None, Some(id)) => pool.dataset_by_id(id),
        (None, None) => pool.dataset(name),
    };
    let dataset = found.map_err(|e| cannot_open(name, &e))?;
    let unlocked = unlock(options, pool, &dataset).map_err(|why| failed(format!("zdb: {why}")))?;
    Ok((dataset, unlocked))
}

fn cannot_open(name: &str, e: &pool::Error) -> Failure {
    let why = cause(&std::io::Error::from(e.errno()));
    failed(format!("zdb: can't open '{name}': {why}"))
}

fn unlock(options: &Options, pool: &Arc<Pool>, dataset: &pool::Dataset) -> Result<Option<Unlocked>, String> {
    match &options.key {
        Some(material) => unlock::unlock(pool, dataset, material),
        None => Ok(None),
    }
}

fn tell_unlocked(cx: &mut Cx<'_>, unlocked: Option<&Unlocked>) -> Result<(), Failure> {
    if let Some(unlocked) = unlocked {
        writeln!(cx.out, "Unlocked encryption root: {}", unlocked.root)?;
    }
    Ok(())
}

/// The object set of that name, unlocked if a key is given; else an errno, which is reported.
fn open_dataset(cx: &mut Cx<'_>, name: &str) -> Result<(Subject, Option<Unlocked>), Errno> {
    let told = |e: pool::Error| {
        let why = cause(&std::io::Error::from(e.errno()));
        eprintln!("failed to hold dataset '{name}': {why}");
        e.errno()
    };
    let dataset = cx.pool.dataset(name).map_err(told)?;
    let unlocked = unlock(cx.options, cx.pool, &dataset).map_err(|why| {
        eprintln!("zdb: {why}");
        Errno::EACCES
    })?;
    if let Some(unlocked) = &unlocked {
        // an output error shows up in what follows
        let _ = writeln!(cx.out, "Unlocked encryption root: {}", unlocked.root);
    }
    Ok((Subject::dataset(cx.pool, &dataset).map_err(told)?, unlocked))
}

/// A block pointer that a livelist frees, in short.
pub(super) fn compact(options: &Options, pool: &Arc<Pool>, bp: &BlkPtr) -> String {
    tree::compact(&Cx::new(&mut std::io::sink(), options, pool), bp, true)
}

fn selections(selectors: &[String]) -> Result<Vec<Selection>, Failure> {
    let parse = |text: &String| {
        Selection::parse(text).map_err(|why| failed(format!("zdb: Bad object or range: '{text}': {why}\n")))
    };
    selectors.iter().map(parse).collect()
}

/// Visits all datasets, snapshots before their head.
fn for_each_dataset(
    cx: &mut Cx<'_>,
    visit: &mut dyn FnMut(&mut Cx<'_>, &pool::Dataset) -> Result<(), Failure>,
) -> Result<(), Failure> {
    enum Work {
        Open(pool::Dir),
        Show(pool::Dir),
    }
    let root = cx.pool.root_dir();
    let mut stack: Vec<Work> = cx.told(root).map(Work::Open).into_iter().collect();
    while let Some(work) = stack.pop() {
        match work {
            Work::Open(dir) => {
                let below = children(cx, &dir);
                stack.push(Work::Show(dir));
                stack.extend(below.into_iter().rev().map(Work::Open));
            }
            Work::Show(dir) => {
                let Some(head) = cx.told(dir.head()).flatten() else { continue };
                for (name, _) in cx.told(head.snapshot_names()).unwrap_or_default() {
                    if let Some(snapshot) = cx.told(head.snapshot(&name)) {
                        visit(cx, &snapshot)?;
                    }
                }
                visit(cx, &head)?;
            }
        }
    }
    Ok(())
}

fn one_dataset(cx: &mut Cx<'_>, counts: &mut Counts, dataset: &pool::Dataset) -> Result<(), Failure> {
    let unlocked = unlock(cx.options, cx.pool, dataset);
    let unlocked = cx.told(unlocked).flatten();
    tell_unlocked(cx, unlocked.as_ref())?;
    let mut subject = match Subject::dataset(cx.pool, dataset) {
        Ok(subject) => subject,
        Err(e) => {
            cx.complain(&format_args!("failed to hold dataset '{}': {e}", dataset.name()));
            return Ok(());
        }
    };
    counts.add(cx, dataset);
    objset::show(cx, &mut subject, &[])
}

/// The child directories, in the order of the list on disk, without OpenZFS's internal ones.
fn children(cx: &mut Cx<'_>, dir: &pool::Dir) -> Vec<pool::Dir> {
    let Some(names) = zap::names(cx, dir.phys().child_dir_zapobj) else { return Vec::new() };
    let names = names.into_iter().filter(|name| !name.starts_with('$'));
    // each once, even under several names
    let mut seen = HashSet::new();
    names.filter_map(|name| cx.told(dir.child(&name)).flatten()).filter(|dir| seen.insert(dir.id())).collect()
}

/// Prints the deadlists of the dataset that every other one descends from, which has no name.
fn origin_deadlists(cx: &mut Cx<'_>) -> Result<(), Failure> {
    let root = cx.pool.root_dir();
    let Some(origin) = cx.told(root.and_then(|dir| dir.child("$ORIGIN"))).flatten() else { return Ok(()) };
    let Some(head) = cx.told(origin.head()).flatten() else { return Ok(()) };
    let snapshot = cx.told(head.prev_snap()).flatten();
    for dataset in [Some(head), snapshot].into_iter().flatten() {
        lists::deadlist(cx, dataset.phys().deadlist_obj, "Deadlist")?;
    }
    Ok(())
}
