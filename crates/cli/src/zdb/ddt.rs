//! `-D`: the dedup tables; `-S`: what dedup would save.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use base::bytes::with_bits;
use base::{Endian, ObjectId};
use ondisk::ddt::{DdtHistogram, DdtKey, DdtPhys, DdtStat};
use ondisk::{BlkPtr, ObjectType};
use pool::Pool;
use pool::ddt::{Class, Entry, Log, Table};
use pool::prop::{nicebytes, nicenum};
use zuse::codec::ChecksumKind;
use zuse::verify::blocks::visit_blocks;
use zuse::zil::ShowBlkPtr;

use crate::error::{Failure, failed};

use super::text::quotient;
use super::text::trouble;

/// Flags of a log: being flushed, and having a valid checkpoint.
const FLUSHING: u8 = 1;
const CHECKPOINT: u8 = 2;

/// Shows all tables, and their statistics together.
pub(super) fn show(out: &mut dyn Write, pool: &Arc<Pool>, verbosity: u32) -> Result<(), Failure> {
    let tables = pool.ddts().map_err(trouble)?;
    let mut sum = DdtHistogram::empty();
    for table in &tables {
        show_table(out, pool, table, verbosity)?;
        let histogram = table.histogram(pool).map_err(trouble)?;
        sum.buckets.iter_mut().zip(&histogram.buckets).for_each(|(a, b)| a.add(b));
    }
    let total = sum.total();
    if total.blocks == 0 {
        return Ok(writeln!(out, "All DDTs are empty")?);
    }
    writeln!(out)?;
    if verbosity > 1 {
        writeln!(out, "DDT histogram (aggregated over all DDTs):")?;
        histogram(out, &sum, Some(&total))?;
    }
    Ok(ratio(out, &total)?)
}

fn show_table(out: &mut dyn Write, pool: &Arc<Pool>, table: &Table, verbosity: u32) -> Result<(), Failure> {
    let name = table.checksum.name();
    let directory = pool.mos_lookup(&format!("DDT-{name}")).map_err(trouble)?;
    let version = if directory.is_some() { "1 [FDT]" } else { "0 [LEGACY]" };
    let words = [(table.flat, "FLAT"), (!table.logs.is_empty(), "LOG")];
    let set: Vec<&str> = words.iter().filter(|(set, _)| *set).map(|(_, word)| *word).collect();
    let flags = u32::from(table.flat) | u32::from(!table.logs.is_empty()) << 1;
    let set = if set.is_empty() { String::new() } else { format!(" [{}]", set.join(" ")) };
    writeln!(
        out,
        "DDT-{name}: version={version}; flags=0x{flags:02x}{set}; rootobj={}",
        directory.unwrap_or(ObjectId(0))
    )?;
    for store in table.stores.iter().filter(|store| store.count != 0) {
        writeln!(out, "{}: dspace={}; mspace={}; entries={}", store.name, store.dspace, store.mspace, store.count)?;
        if verbosity < 3 {
            continue;
        }
        writeln!(out, "{}: object={}", store.name, store.object)?;
        histogram(out, &store.histogram, None)?;
        if verbosity < 4 || (verbosity < 5 && store.class == Class::Unique) {
            continue;
        }
        writeln!(out, "{} contents:\n", store.name)?;
        for entry in table.stored_entries_from(store, 0).map_err(trouble)? {
            let (cursor, entry) = entry.map_err(trouble)?;
            show_entry(out, table.checksum, &entry, cursor)?;
        }
        writeln!(out)?;
    }
    table.logs.iter().enumerate().try_for_each(|(n, log)| show_log(out, table, n, log, verbosity))
}

fn show_log(out: &mut dyn Write, table: &Table, n: usize, log: &Log, verbosity: u32) -> Result<(), Failure> {
    let header = &log.header;
    let words = [(FLUSHING, "FLUSHING"), (CHECKPOINT, "CHECKPOINT"), (!(FLUSHING | CHECKPOINT), "UNKNOWN")];
    let set: Vec<&str> = words.iter().filter(|(bit, _)| header.flags & bit != 0).map(|(_, word)| *word).collect();
    let set = if set.is_empty() { String::new() } else { format!(" [{}]", set.join(" ")) };
    let entries = table.entries_of(log).map_err(trouble)?;
    writeln!(
        out,
        "DDT-log-{}-{n}: flags=0x{:02x}{set}; obj={}; len={}; txg={}; entries={}",
        table.checksum.name(),
        header.flags,
        log.object,
        header.length,
        header.first_txg,
        entries.len()
    )?;
    if let Some(key) = &header.checkpoint {
        let [a, b, c, d] = key.cksum;
        writeln!(out, "    checkpoint: {a:016x}:{b:016x}:{c:016x}:{d:016x}:{:016x}", key.prop)?;
    }
    if verbosity >= 4 {
        for (index, entry) in entries.values().enumerate() {
            show_entry(out, table.checksum, entry, index as u64)?;
        }
    }
    Ok(())
}

fn show_entry(out: &mut dyn Write, checksum: ChecksumKind, entry: &Entry, index: u64) -> io::Result<()> {
    for (n, slot) in entry.value.slots.iter().enumerate().filter(|(_, slot)| slot.phys_birth.0 != 0) {
        let bp = pointer(checksum as u8, &entry.key, slot);
        writeln!(out, "index {index:x} refcnt {} phys {n} {}", slot.refcnt, ShowBlkPtr(&bp))?;
    }
    Ok(())
}

/// A pointer to the block of an entry (OpenZFS: `ddt_bp_create`).
pub(super) fn pointer(checksum: u8, key: &DdtKey, slot: &DdtPhys) -> BlkPtr {
    let mut bp = BlkPtr::HOLE;
    for (n, dva) in slot.dva.iter().enumerate() {
        if let Some([a, b]) = bp.words.get_mut(2 * n..2 * n + 2) {
            (*a, *b) = (dva.word0, dva.word1);
        }
    }
    // sizes and compression are laid out in the key as in a pointer
    let mut prop = base::bytes::bits(key.prop, 0, 39);
    prop = with_bits(prop, 40, 8, checksum.into());
    prop = with_bits(prop, 48, 8, ObjectType::DEDUP.0.into());
    prop = with_bits(prop, 61, 1, key.is_encrypted().into());
    prop = with_bits(prop, 62, 1, 1);
    bp.words[6] = with_bits(prop, 63, 1, (Endian::NATIVE == Endian::Little).into());
    bp.words[10] = slot.phys_birth.0;
    bp.words[11] = 1;
    bp.words[12..16].copy_from_slice(&key.cksum);
    bp
}

/// Statistics by number of references (OpenZFS: `zpool_dump_ddt`).
fn histogram(out: &mut dyn Write, histogram: &DdtHistogram, total: Option<&DdtStat>) -> io::Result<()> {
    writeln!(out, "\nbucket              allocated                       referenced          ")?;
    writeln!(out, "______   {0}   {0}", "_".repeat(30))?;
    row(out, ["refcnt", "blocks", "LSIZE", "PSIZE", "DSIZE", "blocks", "LSIZE", "PSIZE", "DSIZE"])?;
    row(out, ["------", "------", "-----", "-----", "-----", "------", "-----", "-----", "-----"])?;
    for (n, stat) in histogram.buckets.iter().enumerate() {
        show_stat(out, &nicenum(1_u64.checked_shl(n as u32).unwrap_or(0)), stat)?;
    }
    total.map_or(Ok(()), |total| show_stat(out, "Total", total))?;
    writeln!(out)
}

fn show_stat(out: &mut dyn Write, title: &str, stat: &DdtStat) -> io::Result<()> {
    if stat.blocks == 0 {
        return Ok(());
    }
    let [blocks, ref_blocks] = [stat.blocks, stat.ref_blocks].map(nicenum);
    let [lsize, psize, dsize] = [stat.lsize, stat.psize, stat.dsize].map(nicebytes);
    let [ref_lsize, ref_psize, ref_dsize] = [stat.ref_lsize, stat.ref_psize, stat.ref_dsize].map(nicebytes);
    row(out, [title, &blocks, &lsize, &psize, &dsize, &ref_blocks, &ref_lsize, &ref_psize, &ref_dsize])
}

fn row(out: &mut dyn Write, [a, b, c, d, e, f, g, h, i]: [&str; 9]) -> io::Result<()> {
    writeln!(out, "{a:>6}   {b:>6}   {c:>5}   {d:>5}   {e:>5}   {f:>6}   {g:>5}   {h:>5}   {i:>5}")
}

fn ratio(out: &mut dyn Write, total: &DdtStat) -> io::Result<()> {
    if total.blocks == 0 {
        return Ok(());
    }
    let [lsize, psize, dsize, once] =
        [total.ref_lsize, total.ref_psize, total.ref_dsize, total.dsize].map(|n| n as f64);
    let all = (dsize / once) * (lsize / psize) / (dsize / psize);
    write!(out, "dedup = {}, ", quotient(dsize, once, 0, 2))?;
    write!(out, "compress = {}, copies = {}, ", quotient(lsize, psize, 0, 2), quotient(dsize, psize, 0, 2))?;
    writeln!(out, "dedup * compress / copies = {}\n", quotient(all, 1.0, 0, 2))
}

/// Simulates dedup: the table that would exist if all data had been written with it.
pub(super) fn simulate(out: &mut dyn Write, pool: &Arc<Pool>) -> Result<(), Failure> {
    let mut blocks: HashMap<DdtKey, DdtStat> = HashMap::new();
    visit_blocks(pool, None, &mut |block| {
        let bp = block.bp;
        let data = bp.level() == 0 && !bp.object_type().is_metadata() && bp.checksum() != ChecksumKind::Off as u8;
        if block.damage.is_some() || bp.is_embedded() || !data {
            return;
        }
        let stat = blocks.entry(DdtKey::of(bp)).or_default();
        stat.ref_blocks += 1;
        stat.ref_lsize += bp.lsize();
        stat.ref_psize += bp.psize();
        stat.ref_dsize += deflated(pool, bp);
    })
    .map_err(|e| failed(format!("zdb: {e}")))?;
    let mut sum = DdtHistogram::empty();
    for stat in blocks.values() {
        let refs = stat.ref_blocks.max(1);
        let once = DdtStat {
            blocks: 1,
            lsize: stat.ref_lsize / refs,
            psize: stat.ref_psize / refs,
            dsize: stat.ref_dsize / refs,
            ..*stat
        };
        if let Some(bucket) = sum.buckets.get_mut(refs.ilog2() as usize) {
            bucket.add(&once);
        }
    }
    writeln!(out, "Simulated DDT histogram:")?;
    let total = sum.total();
    histogram(out, &sum, Some(&total))?;
    Ok(ratio(out, &total)?)
}

/// The deflated size of a block, as the space accounting of datasets counts it.
fn deflated(pool: &Pool, bp: &BlkPtr) -> u64 {
    bp.dvas().map(|dva| pool.tree().top(dva.vdev()).map_or(0, |top| top.deflated(dva.asize()))).sum()
}
