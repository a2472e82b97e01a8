//! One object: its line in the table, its flags, its contents, and the locations of its blocks and segments.

use std::io;

use base::{ObjectId, bytes};
use codec::{ChecksumKind, Compress};
use dmu::Object;
use ondisk::{DNODE_SIZE, DnodePhys, ObjectType};

use super::super::text::quotient;
use super::select::Types;
use super::subject::Subject;
use super::type_name::type_name;
use super::{Cx, tree, viewers};

/// Dnodes per block, for computing how full a set is.
const DNODES_PER_BLOCK: f64 = 32.0;

/// Prints an object, if its type is one of `types`. `header` says whether the table's heading must come first.
pub(super) fn show(
    cx: &mut Cx<'_>,
    subject: &mut Subject,
    object: &Object,
    header: &mut bool,
    types: Types,
) -> io::Result<()> {
    if *header {
        writeln!(cx.out, "\n    Object  lvl   iblk   dblk  dsize  dnsize  lsize   %full  type")?;
        *header = false;
    }
    let dn = object.phys();
    if !types.want(dn.object_type) {
        return Ok(());
    }
    line(cx, subject, object)?;
    if cx.verbosity < 4 {
        return Ok(());
    }
    if dn.bonus_type != ObjectType::NONE {
        let (size, name) = (cx.number(dn.bonus.len() as u64), type_name(dn.bonus_type));
        writeln!(cx.out, "{:45}{size:>5}   bonus  {name}", "")?;
    }
    let flag = |bit: u8, name| if dn.flags & bit != 0 { name } else { "" };
    writeln!(
        cx.out,
        "\tdnode flags: {}{}{}{}",
        flag(DnodePhys::FLAG_USED_BYTES, "USED_BYTES "),
        flag(DnodePhys::FLAG_USERUSED_ACCOUNTED, "USERUSED_ACCOUNTED "),
        flag(DnodePhys::FLAG_USEROBJUSED_ACCOUNTED, "USEROBJUSED_ACCOUNTED "),
        flag(DnodePhys::FLAG_SPILL_BLKPTR, "SPILL_BLKPTR"),
    )?;
    writeln!(cx.out, "\tdnode maxblkid: {}", dn.maxblkid)?;
    if subject.locked && dn.bonus_type.is_encrypted() {
        writeln!(cx.out, "\t\t(bonus encrypted)")?;
    } else {
        viewers::bonus(cx, subject, object)?;
    }
    if subject.locked && dn.object_type.is_encrypted() {
        writeln!(cx.out, "\t\t(object encrypted)")?;
    } else {
        viewers::contents(cx, subject, object)?;
    }
    *header = true;
    if cx.verbosity >= 5 {
        if dn.flags & DnodePhys::FLAG_SPILL_BLKPTR != 0
            && let Some(spill) = &dn.spill
        {
            writeln!(cx.out, "\nSpill block: {}", tree::compact(cx, spill, false))?;
        }
        tree::show(cx, object)?;
        segments(cx, object)?;
    }
    Ok(())
}

fn line(cx: &mut Cx<'_>, subject: &Subject, object: &Object) -> io::Result<()> {
    let dn = object.phys();
    let is_meta = object.id() == ObjectId::META_DNODE;
    let end = dn.maxblkid.wrapping_add(1).wrapping_mul(dn.datablksz());
    let fill: u64 = dn.blkptr.iter().fold(0, |sum, bp| sum.wrapping_add(bp.fill()));
    let part = 100.0 * fill as f64 * dn.datablksz() as f64 / if is_meta { DNODES_PER_BLOCK } else { 1.0 };
    let iblk = if dn.indblkshift == 0 { 0 } else { 1u64.checked_shl(dn.indblkshift.into()).unwrap_or(0) };
    // counted in sectors, rounded
    let used = (dn.used_bytes().wrapping_add(256) >> 9) << 9;
    let [iblk, dblk, used, size, end_text] = [iblk, dn.datablksz(), used, dn.size() as u64, end].map(|n| cx.number(n));
    writeln!(
        cx.out,
        "{:10}  {:3}  {iblk:>5}  {dblk:>5}  {used:>5}  {size:>6}  {end_text:>5}  {}  {}{}",
        object.id().0.cast_signed(),
        dn.nlevels,
        quotient(part, end as f64, 6, 2),
        type_name(dn.object_type),
        algorithms(cx.verbosity, subject, dn),
    )
}

/// The algorithms of an object, if they are its own or the level is high.
fn algorithms(level: u32, subject: &Subject, dn: &DnodePhys) -> String {
    let mut text = String::new();
    if dn.checksum != 0 || level >= 6 {
        text += &format!(" (K={})", checksum_name(dn.checksum));
    }
    if dn.compress == 0 && level >= 6 {
        text += &format!(" (Z=inherit={})", subject.compression);
    } else if dn.compress != 0 {
        text += &format!(" (Z={})", compress_name(dn.compress));
    }
    text
}

fn checksum_name(n: u8) -> &'static str {
    match n {
        0 => "inherit",
        1 => "on",
        n => ChecksumKind::from_u8(n).map_or("UNKNOWN", ChecksumKind::name),
    }
}

fn compress_name(n: u8) -> &'static str {
    match n {
        0 => "inherit",
        1 => "on",
        n => Compress::from_u8(n).map_or("UNKNOWN", Compress::name),
    }
}

/// Prints the segments that hold data.
fn segments(cx: &mut Cx<'_>, object: &Object) -> io::Result<()> {
    let dn = object.phys();
    if dn.object_type == ObjectType::DNODE {
        return dnode_segments(cx, object);
    }
    if !dn.datablksz().is_power_of_two() {
        // a block of odd size is the only one, and counts as data in any case
        return segment(cx, 0, dn.datablksz());
    }
    let mut at = 0;
    for _ in 0..cx.most_blocks() {
        let start = match object.next_data(at) {
            Ok(Some(start)) => start,
            Ok(None) => return Ok(()),
            Err(e) => {
                cx.complain(&e);
                return Ok(());
            }
        };
        let end = match object.next_hole(start) {
            Ok(end) => end,
            Err(e) => {
                cx.complain(&e);
                return Ok(());
            }
        };
        segment(cx, start, end)?;
        if end <= start {
            return Ok(());
        }
        at = end;
    }
    Ok(())
}

fn segment(cx: &mut Cx<'_>, start: u64, end: u64) -> io::Result<()> {
    let size = cx.number(end.wrapping_sub(start));
    writeln!(cx.out, "\t\tsegment [{start:016x}, {end:016x}) size {size:>5}")
}

/// Segments of slots in use.
fn dnode_segments(cx: &mut Cx<'_>, object: &Object) -> io::Result<()> {
    let size = object.block_size();
    let mut cursor = object.cursor();
    // the current run
    let mut run: Option<(u64, u64)> = None;
    let mut blkid = 0;
    for _ in 0..cx.most_blocks() {
        let block = match cursor.next_block(blkid).and_then(|next| match next {
            Some(next) => Ok(cursor.block(next)?.map(|(buf, _)| (next, buf))),
            None => Ok(None),
        }) {
            Ok(Some(block)) => block,
            Ok(None) => break,
            Err(e) => {
                cx.complain(&e);
                break;
            }
        };
        blkid = block.0;
        for (start, end) in used_slots(&block.1) {
            let place = |slot: usize| blkid.wrapping_mul(size).wrapping_add((slot * DNODE_SIZE) as u64);
            let (start, end) = (place(start), place(end));
            match &mut run {
                Some((_, last)) if *last == start => *last = end,
                _ => {
                    if let Some((from, to)) = run.replace((start, end)) {
                        segment(cx, from, to)?;
                    }
                }
            }
        }
        let Some(next) = blkid.checked_add(1) else { break };
        blkid = next;
    }
    match run {
        Some((from, to)) => segment(cx, from, to),
        None => Ok(()),
    }
}

/// The slots that each dnode of a block takes, as first and one past the last.
fn used_slots(block: &[u8]) -> Vec<(usize, usize)> {
    let slots = block.len() / DNODE_SIZE;
    let mut found = Vec::new();
    let mut slot = 0;
    while slot < slots {
        let head = block.get(slot * DNODE_SIZE..).unwrap_or(&[]);
        let next = slot + 1 + usize::from(bytes::u8(head, 12).unwrap_or(0));
        if bytes::u8(head, 0).unwrap_or(0) == ObjectType::NONE.0 {
            slot += 1;
            continue;
        }
        found.push((slot, next.min(slots)));
        slot = next;
    }
    found
}
