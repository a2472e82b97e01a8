//! The tables of `-b`: sums, blocks by type, blocks by size.

use std::io::{self, Write};
use std::sync::Arc;

use nvlist::NvList;
use ondisk::ObjectType;
use pool::{AllocClass, Pool};

use crate::error::Failure;

use super::blocks::Survey;
use super::counting::{ALL_LEVELS, ALL_TYPES, BINS, Bins, DEFERRED, LEVELS, OTHER, Sum, TYPES};
use super::options::{Bin, Options};
use super::text::trouble;
use super::text::{self, quotient};
use super::top::whole_metaslabs;

/// The smallest block, as a power of two.
const FIRST_BIN: usize = 9;

/// Does all of `-b` and `-c`; returns the exit status.
pub(super) fn show(out: &mut dyn Write, options: &Options, pool: &Arc<Pool>) -> Result<u8, Failure> {
    let (checks, leaks) = (options.level('c'), !options.has('L'));
    let word = |set: bool, word: &'static str| if set { word } else { "" };
    writeln!(
        out,
        "\nTraversing all blocks {}{}{}{}{}...\n",
        word(checks > 0 || leaks, "to verify "),
        word(checks == 1, "metadata "),
        word(checks > 0, "checksums "),
        word(checks > 0 && leaks, "and verify "),
        word(leaks, "nothing leaked ")
    )?;
    out.flush()?;
    let survey = super::blocks::survey(options, pool, out)?;
    let (found, allocated) = (survey.found, survey.allocated);
    if leaks && found == allocated {
        writeln!(out, "\n\tNo leaks (block sum matches space maps exactly)")?;
    } else if leaks {
        let leaked = allocated.wrapping_sub(found) as i64;
        writeln!(out, "block traversal size {found} != alloc {allocated} (leaked {leaked})")?;
    }
    if survey.counts.total().count == 0 {
        return Ok(survey.status());
    }
    sums(out, &survey)?;
    classes(out, pool, leaks)?;
    embedded(out, options, &survey)?;
    removed(out, pool)?;
    if options.level('b') >= 2 {
        types(out, options, &survey)?;
        sizes(out, options, &survey)?;
    }
    writeln!(out)?;
    Ok(survey.status())
}

fn sums(out: &mut dyn Write, survey: &Survey) -> io::Result<()> {
    let (total, shared) = (survey.counts.total(), &survey.shared);
    let ratio = |a: u64, b: u64| quotient(a as f64, b as f64, 6, 2);
    let average = |n: u64| n / total.count.max(1);
    writeln!(out, "\n\t{:<16} {:14}", "bp count:", total.count)?;
    writeln!(out, "\t{:<16} {:14}", "ganged count:", total.gangs)?;
    writeln!(out, "\t{:<16} {:14}      avg: {:6}", "bp logical:", total.lsize, average(total.lsize))?;
    for (name, size) in [("bp physical:", total.psize), ("bp allocated:", total.asize)] {
        let compression = ratio(total.lsize, size);
        writeln!(out, "\t{name:<16} {size:14}      avg: {:6}     compression: {compression}", average(size))?;
    }
    let dedup = shared.dedup_asize as f64 / total.asize as f64 + 1.0;
    writeln!(
        out,
        "\t{:<16} {:14}    ref>1: {:6}   deduplication: {}",
        "bp deduped:",
        shared.dedup_asize,
        shared.dedup_blocks,
        quotient(dedup, 1.0, 6, 2)
    )?;
    writeln!(out, "\t{:<16} {:14}    count: {:6}", "bp cloned:", shared.clone_asize, shared.clone_blocks)
}

/// Prints how full the allocation classes are, by the space maps alone. When leaks are looked for, zdb gives removed
/// vdevs metaslabs to keep their mappings in, and these are part of the normal class from then on.
fn classes(out: &mut dyn Write, pool: &Arc<Pool>, leaks: bool) -> Result<(), Failure> {
    const TITLES: [(AllocClass, &str); 5] = [
        (AllocClass::Normal, "Normal class:"),
        (AllocClass::Special, "Special class"),
        (AllocClass::Dedup, "Dedup class"),
        (AllocClass::EmbeddedLog, "Embedded log class"),
        (AllocClass::SpecialEmbeddedLog, "Special embedded log"),
    ];
    let tree = pool.tree();
    let tops = || tree.tops().iter().filter(|top| top.is_concrete());
    let has = |class| tops().any(|top| pool.vdev_class(top) == class);
    for (class, title) in TITLES {
        let there = match class {
            AllocClass::Normal => true,
            AllocClass::EmbeddedLog => has(AllocClass::Normal) || has(AllocClass::Dedup),
            AllocClass::SpecialEmbeddedLog => has(AllocClass::Special),
            class => has(class),
        };
        if !there {
            continue;
        }
        let (mut space, mut used) = (0u64, 0u64);
        for top in tops() {
            for metaslab in pool.metaslabs(top.id()).map_err(trouble)?.iter().filter(|m| m.class == class) {
                space = space.saturating_add(metaslab.size);
                used = used.wrapping_add(metaslab.header.as_ref().map_or(0, |h| h.alloc as u64));
            }
        }
        if class == AllocClass::Normal && leaks {
            let removed = tree.tops().iter().filter(|top| top.is_indirect());
            space = removed.fold(space, |sum, top| sum.saturating_add(whole_metaslabs(top).1));
        }
        let percent = quotient(100.0 * used as f64, space as f64, 5, 2);
        writeln!(out, "\t{title:<16} {used:14}     used: {percent}%")?;
    }
    Ok(())
}

fn embedded(out: &mut dyn Write, options: &Options, survey: &Survey) -> io::Result<()> {
    for (kind, lengths) in survey.counts.embedded.iter().enumerate() {
        let count: u64 = lengths.iter().sum();
        if count == 0 {
            continue;
        }
        writeln!(out, "\n\tadditional, non-pointer bps of type {kind}: {count:10}")?;
        if options.level('b') >= 3 {
            writeln!(out, "\t number of (compressed) bytes:  number of bps")?;
            text::histogram(out, lengths, 0)?;
        }
    }
    let total = survey.counts.total();
    if total.ditto_same_vdev != 0 {
        writeln!(out, "\tDittoed blocks on same vdev: {}", total.ditto_same_vdev)?;
    }
    if total.ditto_same_metaslab != 0 {
        writeln!(out, "\tDittoed blocks in same metaslab: {}", total.ditto_same_metaslab)?;
    }
    Ok(())
}

fn removed(out: &mut dyn Write, pool: &Arc<Pool>) -> io::Result<()> {
    for top in pool.tree().tops() {
        if let Some(mapping) = top.mapping() {
            let count = mapping.entries().len() as u64;
            let memory = pool::prop::nicenum(count);
            writeln!(out, "\tindirect vdev id {} has {count} segments ({memory} in memory)", top.id())?;
        }
    }
    Ok(())
}

/// The name of a type in the table.
fn type_name(kind: usize) -> String {
    match kind {
        DEFERRED => "deferred free".to_owned(),
        n if n == TYPES + 1 => "dedup ditto".to_owned(),
        OTHER => "other".to_owned(),
        ALL_TYPES => "Total".to_owned(),
        n => ObjectType(n as u8).name(),
    }
}

fn types(out: &mut dyn Write, options: &Options, survey: &Survey) -> io::Result<()> {
    writeln!(out, "\nBlocks\tLSIZE\tPSIZE\tASIZE\t  avg\t comp\t%Total\tType")?;
    let counts = &survey.counts;
    let mut metadata = Sum::default();
    for kind in 0..=ALL_TYPES {
        let all = counts.sum(ALL_LEVELS, kind);
        if all.asize == 0 {
            let [a, b, c, d, e, f, g] = ["-"; 7];
            writeln!(out, "{a:>6}\t{b:>5}\t{c:>5}\t{d:>5}\t{e:>5}\t{f:>5}\t{g:>6}\t{}", type_name(kind))?;
            continue;
        }
        // the highest level first, all levels together last
        for level in (0..LEVELS).rev().chain([ALL_LEVELS]) {
            let sum = counts.sum(level, kind);
            if sum.asize == 0 {
                continue;
            }
            let is_metadata = kind < TYPES && (level > 0 || ObjectType(kind as u8).is_metadata());
            if level != ALL_LEVELS && is_metadata {
                metadata.add(sum);
            }
            let alone = level == 0 && sum.asize == all.asize;
            if alone || (options.level('b') < 3 && level != ALL_LEVELS) {
                continue;
            }
            let title = if level == ALL_LEVELS { String::new() } else { format!("    L{level} ") };
            row(out, options, sum, counts.total().asize, &format!("{title}{}", type_name(kind)))?;
            if options.level('b') >= 3 && sum.gangs > 0 {
                writeln!(out, "\t number of ganged blocks: {}", text::number(options, sum.gangs))?;
            }
            if options.level('b') >= 4 {
                writeln!(out, "psize (in 512-byte sectors): number of blocks")?;
                text::histogram(out, &sum.by_sectors, 0)?;
            }
        }
    }
    row(out, options, &metadata, counts.total().asize, "Metadata Total")
}

fn row(out: &mut dyn Write, options: &Options, sum: &Sum, total: u64, title: &str) -> io::Result<()> {
    let average = sum.asize / sum.count.max(1);
    let numbers = [sum.count, sum.lsize, sum.psize, sum.asize, average].map(|n| text::number(options, n));
    let [count, lsize, psize, asize, average] = numbers;
    let compression = quotient(sum.lsize as f64, sum.psize as f64, 5, 2);
    let percent = quotient(100.0 * sum.asize as f64, total as f64, 6, 2);
    writeln!(out, "{count:>6}\t{lsize:>5}\t{psize:>5}\t{asize:>5}\t{average:>5}\t{compression}\t{percent}\t{title}")
}

fn sizes(out: &mut dyn Write, options: &Options, survey: &Survey) -> io::Result<()> {
    writeln!(out, "\nBlock Size Histogram")?;
    match options.bin {
        None => writeln!(out, "(note: all categories are binned separately)")?,
        Some(Bin::Psize) => writeln!(out, "(note: all categories are binned by psize)")?,
        Some(Bin::Lsize) => writeln!(out, "(note: all categories are binned by lsize)")?,
        Some(Bin::Asize) => writeln!(out, "(note: all categories are binned by asize)")?,
    }
    if !options.classes.is_all() {
        let names: Vec<String> = options.classes.names().iter().map(|name| format!("\"{name}\"")).collect();
        writeln!(out, "(note: only blocks in these classes are counted: {})", names.join(", "))?;
    }
    let raw = options.has('P');
    if raw {
        writeln!(out, "\nblock\tpsize\t\t\tlsize\t\t\t  asize")?;
        writeln!(out, "size\t{}", "Count\tSize\tCum.\t".repeat(3))?;
    } else {
        writeln!(out, "\n{:>7}   {:<7}              {:<7}              asize", "block", "psize", "lsize")?;
        let titles = format!("{:>7}{:>7}{:>7}", "Count", "Size", "Cum.");
        writeln!(out, "{:>7} {}", "size", titles.repeat(3))?;
    }
    let counts = &survey.counts;
    let mut sums = [0u64; 3];
    for bin in FIRST_BIN..BINS {
        let size = text::number(options, 1 << bin);
        if raw {
            write!(out, "{size}")?
        } else {
            write!(out, "{size:>7}:")?
        }
        for (bins, sum) in [&counts.psize, &counts.lsize, &counts.asize].into_iter().zip(&mut sums) {
            let (count, bytes) = in_bin(bins, bin);
            *sum += bytes;
            for n in [count, bytes, *sum].map(|n| text::number(options, n)) {
                if raw { write!(out, "\t{n}")? } else { write!(out, "{n:>7}")? }
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn in_bin(bins: &Bins, bin: usize) -> (u64, u64) {
    (bins.count.get(bin).copied().unwrap_or(0), bins.bytes.get(bin).copied().unwrap_or(0))
}

impl Survey {
    /// The sums as a list.
    pub(super) fn list(&self) -> NvList {
        let mut list = of_sum(self.counts.total());
        list.insert("allocated", self.allocated);
        list.insert("found", self.found);
        list.insert("leaked", self.leaked || self.allocated != self.found);
        list.insert("dedup_asize", self.shared.dedup_asize);
        list.insert("dedup_blocks", self.shared.dedup_blocks);
        list.insert("clone_asize", self.shared.clone_asize);
        list.insert("clone_blocks", self.shared.clone_blocks);
        list.insert("errors", self.errors.values().sum::<u64>());
        let mut types = NvList::new();
        for kind in 0..ALL_TYPES {
            let sum = self.counts.sum(ALL_LEVELS, kind);
            if sum.count != 0 {
                types.insert(type_name(kind), of_sum(sum));
            }
        }
        list.insert("types", types);
        list
    }
}

fn of_sum(sum: &Sum) -> NvList {
    let mut list = NvList::new();
    let numbers =
        [("count", sum.count), ("lsize", sum.lsize), ("psize", sum.psize), ("asize", sum.asize), ("gangs", sum.gangs)];
    numbers.into_iter().for_each(|(name, n)| list.insert(name, n));
    list
}
