//! `-d` and `-i` with `-j`: object sets, with `-dd` their objects, and their intent logs.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use dmu::Object;
use nvlist::NvList;
use pool::{Dataset, Pool};
use zuse::zil::{Step, walk};

use super::objset::{Heading, each_selected};
use super::select::Selection;
use super::subject::Subject;
use super::type_name::type_name;
use super::{Cx, cannot_open, find_dataset, for_each_dataset, selections};
use crate::error::Failure;
use crate::zdb::options::Options;

/// All object sets of a pool, the MOS first, and the exit status.
pub(in crate::zdb) fn pool(options: &Options, pool: &Arc<Pool>) -> Result<(Vec<NvList>, u8), Failure> {
    let mut sink = io::sink();
    let mut cx = Cx::new(&mut sink, options, pool);
    let mut sets = vec![set(&mut cx, &Subject::mos(pool), &[])];
    for_each_dataset(&mut cx, &mut |cx, dataset| {
        let subject = Subject::dataset(cx.pool, dataset);
        if let Some(subject) = cx.told(subject) {
            sets.push(set(cx, &subject, &[]));
        }
        Ok(())
    })?;
    Ok((sets, cx.status()))
}

/// One object set: that of a dataset, or for the pool's own name the MOS.
pub(in crate::zdb) fn one(
    options: &Options,
    pool: &Arc<Pool>,
    name: &str,
    selectors: &[String],
) -> Result<(NvList, u8), Failure> {
    let selected = selections(selectors)?;
    let mut sink = io::sink();
    let mut cx = Cx::new(&mut sink, options, pool);
    if name.trim_end_matches("/0") == pool.name() {
        return Ok((set(&mut cx, &Subject::mos(pool), &selected), cx.status()));
    }
    let (dataset, _key) = find_dataset(options, pool, name)?;
    let subject = Subject::dataset(pool, &dataset).map_err(|e| cannot_open(name, &e))?;
    Ok((set(&mut cx, &subject, &selected), cx.status()))
}

fn set(cx: &mut Cx<'_>, subject: &Subject, selected: &[Selection]) -> NvList {
    let Heading { kind, txg, used, inconsistent } = Heading::of(cx, subject);
    let mut list = NvList::new();
    list.insert("name", subject.name());
    list.insert("id", subject.objset.id().0);
    list.insert("type", kind);
    list.insert("cr_txg", txg.0);
    list.insert("referenced", used);
    list.insert("objects", subject.objset.rootbp().fill());
    list.insert("inconsistent", inconsistent);
    if !selected.is_empty() {
        let mut objects = Vec::new();
        for selection in selected {
            // writing to a sink cannot fail
            let _ = each_selected(cx, &subject.objset, selection, &mut |_, object| {
                if selection.types.want(object.phys().object_type) {
                    objects.push(shape(object));
                }
                Ok(())
            });
        }
        list.insert("object_list", objects);
        return list;
    }
    let is_snapshot = subject.dataset.as_ref().is_some_and(Dataset::is_snapshot);
    if (cx.options.has('i') || cx.level >= 2) && !is_snapshot {
        list.insert("intent_log", log(subject));
    }
    if cx.level >= 2 && !subject.objset.rootbp().is_hole() {
        let mut objects = Vec::new();
        for found in subject.objset.objects() {
            objects.extend(cx.told(found).map(|object| shape(&object)));
        }
        list.insert("object_list", objects);
    }
    list
}

/// The columns of `-dd` for an object, and what belongs to them.
fn shape(object: &Object) -> NvList {
    let dn = object.phys();
    let mut list = NvList::new();
    list.insert("object", object.id().0);
    list.insert("type", type_name(dn.object_type));
    list.insert("levels", u64::from(dn.nlevels));
    list.insert("iblk", 1u64.checked_shl(dn.indblkshift.into()).filter(|_| dn.indblkshift != 0).unwrap_or(0));
    list.insert("dblk", dn.datablksz());
    list.insert("dsize", dn.used_bytes());
    list.insert("dnsize", dn.size() as u64);
    list.insert("lsize", dn.maxblkid.wrapping_add(1).wrapping_mul(dn.datablksz()));
    list.insert("fill", dn.blkptr.iter().fold(0u64, |sum, bp| sum.wrapping_add(bp.fill())));
    list.insert("bonus_type", type_name(dn.bonus_type));
    list.insert("bonus_size", dn.bonus.len() as u64);
    list
}

/// The header of the log, and its records.
fn log(subject: &Subject) -> NvList {
    let header = &subject.objset.phys().zil_header;
    let mut list = NvList::new();
    list.insert("claim_txg", header.claim_txg.0);
    list.insert("claim_blk_seq", header.claim_blk_seq);
    list.insert("claim_lr_seq", header.claim_lr_seq);
    list.insert("replay_seq", header.replay_seq);
    list.insert("flags", header.flags);
    if header.log.is_hole() {
        return list;
    }
    let mut bytes = 0u64;
    let summary = walk(&subject.objset, &mut |step| {
        if let Step::Block(bp) = step {
            bytes = bytes.saturating_add(bp.lsize());
        }
        ControlFlow::Continue(())
    });
    list.insert("blocks", summary.blocks);
    list.insert("records", summary.records);
    list.insert("bytes", bytes);
    list.insert("max_blk_seq", summary.max_blk_seq);
    list.insert("max_lr_seq", summary.max_lr_seq);
    list
}
