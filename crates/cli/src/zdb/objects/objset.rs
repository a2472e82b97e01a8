//! One object set: its line, its log, its lists, its objects.

use std::io;
use std::sync::Arc;

use base::{ObjectId, Txg};
use dmu::{Object, Objects, Objset, Special};
use ondisk::ObjsetType;
use pool::Dataset;
use zuse::zil::{ShowBlkPtr, list};

use super::super::text::{ctime, quotient};
use super::select::{Selection, Types};
use super::subject::Subject;
use super::{Cx, lists, object};
use crate::error::{Failure, failed};

/// Prints an object set: all of it, or the selected objects.
pub(super) fn show(cx: &mut Cx<'_>, subject: &mut Subject, selected: &[Selection]) -> Result<(), Failure> {
    heading(cx, subject)?;
    if !selected.is_empty() {
        let mut header = true;
        for selection in selected {
            select(cx, subject, selection, &mut header)?;
        }
        writeln!(cx.out)?;
        return Ok(());
    }
    if cx.options.has('i') || cx.level >= 2 {
        intent_log(cx, subject)?;
    }
    if let Some(dataset) = subject.dataset.clone() {
        lists::of_dataset(cx, &dataset)?;
    }
    if cx.level < 2 || subject.objset.rootbp().is_hole() {
        return Ok(());
    }
    all_objects(cx, subject)
}

/// The heading of an object set.
pub(super) struct Heading {
    pub(super) kind: &'static str,
    pub(super) txg: Txg,
    pub(super) used: u64,
    pub(super) inconsistent: bool,
}

impl Heading {
    pub(super) fn of(cx: &mut Cx<'_>, subject: &Subject) -> Heading {
        let kind = match subject.objset.phys().os_type {
            ObjsetType::None => "NONE",
            ObjsetType::Meta => "META",
            ObjsetType::Zfs => "ZPL",
            ObjsetType::Zvol => "ZVOL",
            ObjsetType::Other => "OTHER",
            ObjsetType::Unknown(5) => "ANY",
            ObjsetType::Unknown(_) => "UNKNOWN",
        };
        /// The txg of a new pool's MOS.
        const FIRST: Txg = Txg(4);
        let (txg, used, inconsistent) = match &subject.dataset {
            Some(ds) => (ds.phys().creation_txg, ds.phys().referenced_bytes, ds.is_inconsistent()),
            None => {
                let root = cx.pool.root_dir();
                let dir = cx.told(root.and_then(|dir| dir.child("$MOS"))).flatten();
                (FIRST, dir.map_or(0, |dir| dir.phys().used_bytes), false)
            }
        };
        Heading { kind, txg, used, inconsistent }
    }
}

fn heading(cx: &mut Cx<'_>, subject: &Subject) -> Result<(), Failure> {
    let objset = &subject.objset;
    let Heading { kind, txg, used, inconsistent } = Heading::of(cx, subject);
    let (name, id, used, objects) = (subject.name(), objset.id(), cx.number(used), objset.rootbp().fill());
    write!(cx.out, "Dataset {name} [{kind}], ID {id}, cr_txg {txg}, {used}, {objects} objects")?;
    if cx.level >= 4 {
        write!(cx.out, ", rootbp {}", ShowBlkPtr(&objset.rootbp()))?;
    }
    writeln!(cx.out, "{}", if inconsistent { " (inconsistent)" } else { "" })?;
    Ok(())
}

fn intent_log(cx: &mut Cx<'_>, subject: &Subject) -> Result<(), Failure> {
    // a snapshot has a meaningless copy of the header
    if subject.dataset.as_ref().is_some_and(Dataset::is_snapshot) {
        return Ok(());
    }
    let uberblock = cx.pool.uberblock();
    let options = list::Options {
        verbosity: cx.level.max(cx.options.level('i')),
        min_claim_txg: Txg(uberblock.txg.0.saturating_add(1)),
        checkpoint_txg: uberblock.checkpoint_txg,
        ctime: &ctime,
    };
    list::write_log(&mut *cx.out, &subject.objset, &options).map_err(|e| failed(format!("zdb: {e}")))
}

fn select(cx: &mut Cx<'_>, subject: &mut Subject, selection: &Selection, header: &mut bool) -> Result<(), Failure> {
    let objset = subject.objset.clone();
    each_selected(cx, &objset, selection, &mut |cx, object| {
        object::show(cx, subject, object, header, selection.types)
    })?;
    Ok(())
}

/// Visits the objects of a selection, of any type. Those that cannot be read are reported.
pub(super) fn each_selected(
    cx: &mut Cx<'_>,
    objset: &Arc<Objset>,
    selection: &Selection,
    visit: &mut dyn FnMut(&mut Cx<'_>, &Object) -> io::Result<()>,
) -> io::Result<()> {
    let Selection { start, end, .. } = *selection;
    let mut at = start;
    if start == ObjectId::META_DNODE || start == end {
        let found = if start == ObjectId::META_DNODE {
            objset
                .special(Special::MetaDnode)
                .ok_or(dmu::Error::NoObject { objset: objset.id(), object: ObjectId::META_DNODE })
        } else {
            objset.object(start)
        };
        match found {
            Ok(object) => visit(cx, &object)?,
            Err(e) => cx.complain(&e),
        }
    } else {
        at = ObjectId(start.0 - 1);
    }
    // there is nothing after the last object, nor after the special ones
    let Some(first) = at.checked_add(1).filter(|first| *first <= end) else { return Ok(()) };
    let mut objects = objset.objects_from(first);
    while let Some(found) = objects.next() {
        match found {
            Ok(object) if object.id() > end => break,
            Ok(object) => visit(cx, &object)?,
            Err(e) => complain(cx, &e, &objects),
        }
    }
    Ok(())
}

/// Reports objects that cannot be listed, once for all objects below one block.
fn complain(cx: &mut Cx<'_>, error: &dmu::Error, objects: &Objects) {
    match objects.lost() {
        Some(below) => cx.complain(&format_args!("{error}; {below} cannot be listed")),
        None => cx.complain(error),
    }
}

fn all_objects(cx: &mut Cx<'_>, subject: &mut Subject) -> Result<(), Failure> {
    let objset = subject.objset.clone();
    let mut header = true;
    for which in [Special::MetaDnode, Special::UserUsed, Special::GroupUsed, Special::ProjectUsed] {
        if let Some(object) = objset.special(which) {
            object::show(cx, subject, &object, &mut header, Types::ALL)?;
        }
    }
    let (mut used, mut last) = (0u64, 0u64);
    let mut objects = objset.objects();
    while let Some(found) = objects.next() {
        match found {
            Ok(object) => {
                object::show(cx, subject, &object, &mut header, Types::ALL)?;
                let slots = object.phys().slots() as u64;
                used = used.saturating_add(slots);
                last = object.id().saturating_add(slots - 1).0;
            }
            Err(e) => complain(cx, &e, &objects),
        }
    }
    let empty = quotient(last.saturating_sub(used) as f64 * 100.0, last as f64, 10, 6);
    writeln!(cx.out, "\n    Dnode slots:")?;
    writeln!(cx.out, "\tTotal used:    {used:10}")?;
    writeln!(cx.out, "\tMax used:      {last:10}")?;
    writeln!(cx.out, "\tPercent empty: {empty}\n")?;
    if subject.leaked != 0 {
        writeln!(cx.out, "{} potentially leaked objects detected", subject.leaked)?;
        subject.leaked = 0;
    }
    Ok(())
}
