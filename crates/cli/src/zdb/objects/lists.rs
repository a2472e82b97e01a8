//! Lists of block pointers (deadlists, livelists, deferred frees) and bookmarks.

use std::collections::HashSet;
use std::io;

use base::{ObjectId, Txg, bytes};
use dmu::{Object, Zap};
use ondisk::bpobj::{BpobjPhys, BptreePhys, livelist_entry_is_free};
use ondisk::dsl::{DeadlistPhys, dataset_keys, dir_keys};
use ondisk::{BLKPTR_SIZE, BlkPtr, ObjectType};
use pool::{Bookmark, Dataset};
use zuse::zil::ShowBlkPtr;

use super::bonus::Bonus;
use super::{Cx, tree, zap};
use crate::error::Failure;

/// Limit on the depth of nested lists that is followed; OpenZFS makes two or three levels.
const DEPTH_MAX: usize = 16;
/// Limit on the sublists of a list.
const SUBOBJS_MAX: u64 = 1 << 20;
/// The version from which deadlists are lists of lists, and frees of snapshots are deferred.
const VERSION_DEADLISTS: u64 = 26;

/// A list of block pointers.
struct List {
    object: Object,
    phys: BpobjPhys,
    /// Set if its header has room for sublists.
    has_subobjs: bool,
    /// Set if its header counts pointers marked FREE.
    has_freed: bool,
}

impl List {
    fn open(cx: &Cx<'_>, id: ObjectId) -> Result<List, String> {
        let object = cx.pool.mos().object(id).map_err(|e| e.to_string())?;
        if object.phys().object_type != ObjectType::BPOBJ {
            return Err(format!("object {id} of the MOS is no list of block pointers"));
        }
        let phys = BpobjPhys::decode(object.bonus(), object.endian()).map_err(|e| e.to_string())?;
        let size = object.bonus().len();
        Ok(List { object, phys, has_subobjs: size > 32, has_freed: size > 48 })
    }

    /// The sublists.
    fn subobjs(&self, cx: &mut Cx<'_>) -> Vec<ObjectId> {
        if !self.has_subobjs || self.phys.subobjs.is_none() {
            return Vec::new();
        }
        let Some(object) = cx.told(cx.pool.mos().object(self.phys.subobjs)) else { return Vec::new() };
        let count = self.phys.num_subobjs.min(object.most_bytes() / 8).min(SUBOBJS_MAX);
        let ids = cx.told(object.read_u64s(0, count as usize)).unwrap_or_default();
        ids.into_iter().map(ObjectId).collect()
    }
}

/// Prints the header of a list, and with `-ddddd` its pointers.
pub(super) fn header(cx: &mut Cx<'_>, object: &Object, bonus: &Bonus) -> io::Result<()> {
    let Some(phys) = cx.told(BpobjPhys::decode(&bonus.bytes, bonus.endian)) else { return Ok(()) };
    let size = bonus.bytes.len();
    let [all, comp, uncomp] = [phys.bytes, phys.comp, phys.uncomp].map(|n| cx.number(n));
    writeln!(cx.out, "\t\tnum_blkptrs = {}\n\t\tbytes = {all}", phys.num_blkptrs)?;
    if size >= 32 {
        writeln!(cx.out, "\t\tcomp = {comp}\n\t\tuncomp = {uncomp}")?;
    }
    if size >= 48 {
        writeln!(cx.out, "\t\tsubobjs = {}\n\t\tnum_subobjs = {}", phys.subobjs, phys.num_subobjs)?;
    }
    if size >= 56 {
        writeln!(cx.out, "\t\tnum_freed = {}", phys.num_freed)?;
    }
    if cx.level < 5 {
        return Ok(());
    }
    let pointers = object.most_bytes() / BLKPTR_SIZE as u64;
    for blkid in 0..blocks(object, phys.num_blkptrs.min(pointers)) {
        let Some(block) = pointers_of(cx, object, blkid, phys.num_blkptrs) else {
            return writeln!(cx.out, "got error 5 from dmu_read");
        };
        for bp in block {
            let text = tree::compact(cx, &bp, livelist_entry_is_free(&bp));
            writeln!(cx.out, "\t{text}")?;
        }
    }
    Ok(())
}

/// The number of blocks that hold `pointers` pointers.
fn blocks(object: &Object, pointers: u64) -> u64 {
    let per_block = object.block_size() / BLKPTR_SIZE as u64;
    if per_block == 0 { 0 } else { pointers.div_ceil(per_block).min(object.most_blocks()) }
}

/// The pointers in block `blkid` of a list of `count`; a hole has none, whatever the count says. `None` if it cannot
/// be read.
fn pointers_of(cx: &mut Cx<'_>, object: &Object, blkid: u64, count: u64) -> Option<Vec<BlkPtr>> {
    let per_block = object.block_size() / BLKPTR_SIZE as u64;
    let here = count.saturating_sub(blkid.saturating_mul(per_block)).min(per_block) as usize;
    Some(match cx.told(object.block_with_endian(blkid))? {
        Some((block, endian)) => {
            let raw = block.as_chunks::<BLKPTR_SIZE>().0;
            raw.iter().take(here).map(|raw| BlkPtr::from_bytes(raw, endian)).collect()
        }
        None => Vec::new(),
    })
}

/// Prints the object numbers of sublists, up to the last that is not 0.
pub(super) fn subobjs(cx: &mut Cx<'_>, object: &Object) -> io::Result<()> {
    let count = (object.most_bytes() / 8).min(SUBOBJS_MAX) as usize;
    let Some(words) = cx.told(object.read_u64s(0, count)) else {
        return writeln!(cx.out, "got error 5 from dmu_read");
    };
    let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    words.iter().take(used).try_for_each(|word| writeln!(cx.out, "\t{word}"))
}

/// Prints the lists of the pool: blocks that are still to be freed.
pub(super) fn pool_lists(cx: &mut Cx<'_>) -> Result<(), Failure> {
    let mut lists = vec![("sync_bplist", "Deferred frees")];
    if cx.pool.version() >= VERSION_DEADLISTS {
        lists.push(("free_bpobj", "Pool snapshot frees"));
    }
    lists.push(("com.delphix:obsolete_bpobj", "Pool obsolete blocks"));
    for (key, name) in lists {
        let id = cx.told(cx.pool.mos_lookup(key)).flatten();
        if let Some(id) = id.filter(|id| id.is_some()) {
            full(cx, id, name)?;
        }
    }
    if cx.pool.feature_active("async_destroy") {
        destroyed(cx)?;
    }
    Ok(())
}

/// Prints the trees of datasets that are being destroyed.
fn destroyed(cx: &mut Cx<'_>) -> io::Result<()> {
    let Some(id) = cx.told(cx.pool.mos_lookup("bptree_obj")).flatten() else { return Ok(()) };
    let Some(object) = cx.told(cx.pool.mos().object(id)) else { return Ok(()) };
    let Some(phys) = cx.told(BptreePhys::decode(object.bonus(), object.endian())) else { return Ok(()) };
    let (count, bytes) = (phys.end.wrapping_sub(phys.begin), cx.number(phys.bytes));
    writeln!(cx.out, "\n    Pool dataset frees: {count} datasets, {bytes}")?;
    if cx.level < 5 {
        return Ok(());
    }
    writeln!(cx.out)?;
    for entry in cx.told(cx.pool.destroyed_trees()).unwrap_or_default() {
        writeln!(cx.out, "\t{}", ShowBlkPtr(&entry.bp))?;
    }
    Ok(())
}

/// Prints a list and its sublists, with `-ddddd` all their pointers as well.
fn full(cx: &mut Cx<'_>, id: ObjectId, name: &str) -> io::Result<()> {
    if cx.level < 3 {
        return Ok(());
    }
    let list = List::open(cx, id);
    let Some(list) = cx.told(list) else { return Ok(()) };
    summary(cx, &list, name, 0, &mut HashSet::from([id]))?;
    if cx.level >= 5 {
        pointers(cx, &list, 0, &mut HashSet::from([id]))?;
        writeln!(cx.out)?;
    }
    Ok(())
}

fn summary(cx: &mut Cx<'_>, list: &List, name: &str, depth: usize, seen: &mut HashSet<ObjectId>) -> io::Result<()> {
    let phys = &list.phys;
    let [all, comp, uncomp] = [phys.bytes, phys.comp, phys.uncomp].map(|n| cx.number(n));
    let freed = if list.has_freed { format!(", {} freed", phys.num_freed) } else { String::new() };
    let (id, count, width) = (list.object.id(), phys.num_blkptrs, depth * 8);
    if !list.has_subobjs || phys.subobjs.is_none() {
        return writeln!(cx.out, "    {name:>width$}: object {id}, {count} blkptrs{freed}, {all}");
    }
    let (below, holder) = (phys.num_subobjs, phys.subobjs);
    writeln!(
        cx.out,
        "    {name:>width$}: object {id}, {count} local blkptrs{freed}, {below} subobjs in object {holder}, \
         {all} ({comp}/{uncomp} comp)"
    )?;
    if depth == DEPTH_MAX {
        return Ok(());
    }
    for id in list.subobjs(cx) {
        if !seen.insert(id) {
            continue;
        }
        match List::open(cx, id) {
            Ok(sub) => summary(cx, &sub, "subobj", depth + 1, seen)?,
            Err(e) => {
                cx.complain(&e);
                writeln!(cx.out, "ERROR 2 while trying to open subobj id {id}")?;
            }
        }
    }
    Ok(())
}

/// Prints all pointers, the last first.
fn pointers(cx: &mut Cx<'_>, list: &List, depth: usize, seen: &mut HashSet<ObjectId>) -> io::Result<()> {
    for blkid in (0..blocks(&list.object, list.phys.num_blkptrs)).rev() {
        let Some(block) = pointers_of(cx, &list.object, blkid, list.phys.num_blkptrs) else { return Ok(()) };
        for bp in block.iter().rev() {
            let text = tree::compact(cx, bp, livelist_entry_is_free(bp));
            writeln!(cx.out, "\t{text}")?;
        }
    }
    if depth == DEPTH_MAX {
        return Ok(());
    }
    for id in list.subobjs(cx).into_iter().rev() {
        if !seen.insert(id) {
            continue;
        }
        let sub = List::open(cx, id);
        let Some(sub) = cx.told(sub) else { return Ok(()) };
        pointers(cx, &sub, depth + 1, seen)?;
    }
    Ok(())
}

/// Prints the lists and bookmarks of a dataset.
pub(super) fn of_dataset(cx: &mut Cx<'_>, dataset: &Dataset) -> Result<(), Failure> {
    deadlist(cx, dataset.phys().deadlist_obj, "Deadlist")?;
    if !dataset.is_snapshot()
        && let Some(id) = cx.told(dataset.dir().field_id(dir_keys::LIVELIST)).flatten()
    {
        deadlist(cx, id, "Livelist")?;
    }
    if let Some(id) = cx.told(dataset.field_id(dataset_keys::REMAP_DEADLIST)).flatten() {
        writeln!(cx.out, "ds_remap_deadlist:")?;
        deadlist(cx, id, "Deadlist")?;
    }
    if cx.level >= 4 && !dataset.is_snapshot() {
        bookmarks(cx, dataset)?;
    }
    Ok(())
}

/// Prints a deadlist or livelist; nothing for 0.
pub(super) fn deadlist(cx: &mut Cx<'_>, id: ObjectId, name: &str) -> Result<(), Failure> {
    if cx.level < 3 || id.is_none() {
        return Ok(());
    }
    let Some(object) = cx.told(cx.pool.mos().object(id)) else { return Ok(()) };
    if object.phys().object_type == ObjectType::BPOBJ {
        full(cx, id, "old-format deadlist")?;
        return Ok(());
    }
    let Some(phys) = cx.told(DeadlistPhys::decode(object.bonus(), object.endian())) else { return Ok(()) };
    let Some(lists) = keyed(cx, object) else { return Ok(()) };
    let [used, comp, uncomp, count] = [phys.used, phys.comp, phys.uncomp, lists.len() as u64].map(|n| cx.number(n));
    writeln!(cx.out, "\n    {name}: {used} ({comp}/{uncomp} comp), {count} entries")?;
    if cx.level < 4 {
        return Ok(());
    }
    writeln!(cx.out)?;
    for (txg, list) in lists {
        let title = format!("mintxg {txg} -> obj {list}");
        if cx.level >= 5 {
            full(cx, list, &title)?;
        } else {
            writeln!(cx.out, "{title}")?;
        }
    }
    Ok(())
}

/// The lists of a deadlist by the lowest birth txg of their pointers.
fn keyed(cx: &mut Cx<'_>, object: Object) -> Option<Vec<(Txg, ObjectId)>> {
    let zap = cx.told(Zap::open_any(object))?;
    let mut lists = Vec::new();
    for entry in cx.told(zap.entries())? {
        let entry = cx.told(entry)?;
        let txg = u64::from_str_radix(&entry.name_lossy(), 16).unwrap_or(0);
        lists.push((Txg(txg), entry.value.id()));
    }
    lists.sort_unstable();
    Some(lists)
}

fn bookmarks(cx: &mut Cx<'_>, dataset: &Dataset) -> Result<(), Failure> {
    let Some(id) = cx.told(dataset.field_id(dataset_keys::BOOKMARK_NAMES)).flatten() else { return Ok(()) };
    for name in zap::names(cx, id).unwrap_or_default() {
        if let Some(mark) = cx.told(dataset.bookmark(&name)) {
            bookmark(cx, &mark, cx.level >= 5, cx.level >= 6)?;
        }
    }
    Ok(())
}

/// Prints a bookmark, optionally with a summary of its redaction list, or with the whole list.
pub(super) fn bookmark(cx: &mut Cx<'_>, mark: &Bookmark, redaction: bool, entries: bool) -> io::Result<()> {
    let phys = mark.phys();
    writeln!(
        cx.out,
        "\t#{}: {{guid: {:x} creation_txg: {} creation_time: {} redaction_obj: {}}}",
        mark.short_name(),
        phys.guid.0,
        phys.creation_txg,
        phys.creation_time,
        phys.redaction_obj
    )?;
    if !redaction || phys.redaction_obj.is_none() {
        return Ok(());
    }
    let Some(header) = cx.told(mark.redaction_header()).flatten() else { return Ok(()) };
    write!(cx.out, "\tRedacted:\n\t\tProgress: ")?;
    if (header.last_object, header.last_blkid) == (ObjectId(u64::MAX), u64::MAX) {
        writeln!(cx.out, "complete")?;
    } else {
        writeln!(cx.out, "{} {} (incomplete)", header.last_object, header.last_blkid)?;
    }
    let snaps: Vec<String> = header.snaps.iter().map(ToString::to_string).collect();
    writeln!(cx.out, "\t\tSnapshots: [{}]\n\t\tLength: {}", snaps.join(", "), header.num_entries)?;
    if !entries {
        return Ok(());
    }
    let Some(list) = cx.told(mark.redaction_list()).flatten() else { return Ok(()) };
    write!(cx.out, "\t\tRedaction List: [")?;
    for (n, entry) in list.entries.iter().enumerate() {
        write!(cx.out, "{}", if n == 0 { "" } else { ",\n\t\t" })?;
        let (object, blkid, size, count) = (entry.object, entry.blkid, entry.size, entry.count);
        write!(cx.out, "{{object: {object:x}, offset: {blkid:x}, blksz: {size:x}, count: {count:x}}}")?;
    }
    writeln!(cx.out, "]\n")
}

/// Returns whether the redaction list of a bookmark needs a spill block for its header.
pub(super) fn redaction_spills(cx: &Cx<'_>, mark: &Bookmark) -> bool {
    let object = cx.pool.mos().object(mark.phys().redaction_obj);
    object.is_ok_and(|object| object.phys().spill.is_some())
}

/// The number of entries in the ZAP that the MOS directory names; 0 if there is none.
pub(super) fn named_count(cx: &mut Cx<'_>, key: &str) -> u64 {
    let id = cx.told(cx.pool.mos_lookup(key)).flatten().unwrap_or(ObjectId::NONE);
    zap::names(cx, id).map_or(0, |names| names.len() as u64)
}

/// Word `n` of the bonus buffer of object `id` of the MOS, and the buffer's length.
pub(super) fn bonus_word(cx: &mut Cx<'_>, id: ObjectId, n: usize) -> Option<(u64, usize)> {
    let object = cx.told(cx.pool.mos().object(id))?;
    Some((bytes::u64(object.bonus(), n * 8, object.endian()).unwrap_or(0), object.bonus().len()))
}
