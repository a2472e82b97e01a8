//! `-m`: metaslabs with their space maps, and the log space maps; `-M`: how full and fragmented vdevs are.

use std::io::Write;
use std::sync::Arc;

use base::Txg;
use nvlist::NvList;
use ondisk::spacemap::{Entry, HISTOGRAM_BUCKETS};
use pool::{AllocClass, MetaslabInfo, Pool};
use vdev::TopVdev;

use crate::error::{Failure, failed};

use super::options::{self, Options};
use super::spacemaps::{Geometry, Map};
use super::text::trouble;
use super::top::top_zap_number;
use super::{indirect, text};

/// Buckets of a histogram over all sizes.
const SIZES: usize = 64;
/// Smaller segments are not in the order by size (OpenZFS: `metaslab_by_size_min_shift`).
const BY_SIZE_MIN: u64 = 1 << 14;
/// Units of the logs of space changes.
const LOG_SHIFT: u32 = 9;

/// Shows the metaslabs of all vdevs, or of those that the operands name.
pub(super) fn show(out: &mut dyn Write, options: &Options, pool: &Arc<Pool>) -> Result<(), Failure> {
    writeln!(out, "\nMetaslabs:")?;
    let tree = pool.tree();
    let tops = tree.tops();
    let wanted = wanted(options)?;
    let Some((vdev, metaslabs)) = wanted.split_first() else {
        return tops.iter().try_for_each(|top| show_vdev(out, options, pool, top));
    };
    let top = tree.top(*vdev).ok_or_else(|| failed(format!("zdb: bad vdev id: {vdev}")))?;
    if metaslabs.is_empty() {
        return show_vdev(out, options, pool, top);
    }
    header(out, pool, top)?;
    for number in metaslabs {
        let all = pool.metaslabs(top.id()).map_err(trouble)?;
        match usize::try_from(*number).ok().and_then(|n| all.get(n)) {
            Some(metaslab) => show_metaslab(out, options, pool, top, metaslab)?,
            None => eprintln!("bad metaslab number {number}"),
        }
    }
    Ok(writeln!(out)?)
}

/// The operands after the pool: a vdev and its metaslabs, unless they are objects.
fn wanted(options: &Options) -> Result<Vec<u64>, Failure> {
    if options.has('d') {
        return Ok(Vec::new());
    }
    let numbers = options.operands.iter().skip(1);
    numbers
        .map(|text| options::number(text).ok_or_else(|| failed(format!("zdb: bad number {text}: Invalid argument"))))
        .collect()
}

fn show_vdev(out: &mut dyn Write, options: &Options, pool: &Arc<Pool>, top: &TopVdev) -> Result<(), Failure> {
    header(out, pool, top)?;
    indirect::show(out, options, pool, top)?;
    for metaslab in pool.metaslabs(top.id()).map_err(trouble)? {
        show_metaslab(out, options, pool, top, metaslab)?;
    }
    Ok(writeln!(out)?)
}

fn header(out: &mut dyn Write, pool: &Arc<Pool>, top: &TopVdev) -> Result<(), Failure> {
    let bias = match pool.vdev_class(top) {
        AllocClass::Log => "log",
        AllocClass::Special => "special",
        AllocClass::Dedup => "dedup",
        _ => "",
    };
    write!(out, "\tvdev {:10}\t{bias}  metaslab shift {:4}", top.id(), top.config().ms_shift)?;
    let flushed = top_zap_number(pool, top, "com.delphix:ms_unflushed_phys_txgs")?;
    if flushed.is_some() {
        write!(out, "   ms_unflushed_phys object {flushed}")?;
    }
    let count = pool.metaslabs(top.id()).map_err(trouble)?.len();
    writeln!(out, "\n\t{:<10}{count:5}   {:<19}   {:<15}   {:<12}", "metaslabs", "offset", "spacemap", "free")?;
    let rule = "-".repeat(19);
    Ok(writeln!(out, "\t{:>15}   {rule}   {:>15}   {:>12}", &rule[4..], &rule[4..], &rule[7..])?)
}

fn show_metaslab(
    out: &mut dyn Write,
    options: &Options,
    pool: &Arc<Pool>,
    top: &TopVdev,
    metaslab: &MetaslabInfo,
) -> Result<(), Failure> {
    let level = options.level('m');
    let stored = metaslab.header.as_ref().map_or(0, |h| h.alloc as u64);
    writeln!(
        out,
        "\tmetaslab {:6}   offset {:12x}   spacemap {:6}   free    {:>5}",
        metaslab.id,
        metaslab.start,
        metaslab.sm_object,
        text::number(options, metaslab.size.wrapping_sub(stored))
    )?;
    if level > 2 && !options.has('L') {
        free_segments(out, options, pool, top, metaslab)?;
    }
    if options.allocated_map() {
        let allocated = pool.metaslab_map(top.id(), metaslab.id).map_err(trouble)?;
        for range in allocated.iter() {
            writeln!(out, "ALLOC: {} {}", range.start, range.end - range.start)?;
        }
    }
    let histogram = metaslab.header.as_ref().map(|h| h.histogram.unwrap_or_default());
    if let Some(histogram) = histogram.filter(|_| level > 1 && pool.feature_active("spacemap_histogram")) {
        let fragmentation = metaslab.fragmentation.unwrap_or(u64::MAX);
        writeln!(out, "\tOn-disk histogram:\t\tfragmentation {fragmentation}")?;
        text::histogram(out, &histogram, top.ashift())?;
    }
    if metaslab.sm_object.is_some() {
        let geometry = Geometry { start: metaslab.start, shift: top.ashift() };
        Map::open(pool, metaslab.sm_object)?.show(out, geometry, level >= 4 || options.level('d') >= 6, None)?;
    }
    if pool.feature_active("log_spacemap") {
        writeln!(out, "\tFlush data:\n\tunflushed txg={}\n", metaslab.unflushed_txg)?;
    }
    Ok(())
}

/// Prints the free segments of a metaslab, as an allocator would find them.
fn free_segments(
    out: &mut dyn Write,
    options: &Options,
    pool: &Arc<Pool>,
    top: &TopVdev,
    metaslab: &MetaslabInfo,
) -> Result<(), Failure> {
    let allocated = pool.metaslab_map(top.id(), metaslab.id).map_err(trouble)?;
    let free = allocated.complement(metaslab.range());
    let largest = free.largest().map_or(0, |r| r.end - r.start);
    let by_size = free.iter().filter(|r| largest < BY_SIZE_MIN || r.end - r.start >= BY_SIZE_MIN).count();
    let percent = (u128::from(free.total()) * 100).checked_div(metaslab.size.into()).unwrap_or(0);
    writeln!(
        out,
        "\t {:>25} {by_size:10}   {:>7}  {:>6}   {:>4} {percent:4}%",
        "segments",
        "maxsize",
        text::number(options, largest),
        "freepct"
    )?;
    writeln!(out, "\tIn-memory histogram:")?;
    Ok(text::histogram(out, &free.histogram(), 0)?)
}

/// Prints the log space maps that are not flushed to metaslabs yet, and how many of their entries are obsolete.
pub(super) fn show_logs(out: &mut dyn Write, options: &Options, pool: &Arc<Pool>) -> Result<(), Failure> {
    if !pool.feature_active("log_spacemap") {
        return Ok(());
    }
    let entries = options.level('m') >= 4 || options.level('d') >= 6;
    let only = wanted(options)?.first().copied();
    let logs = pool.log_space_maps().map_err(trouble)?;
    writeln!(out, "\nLog Space Maps in Pool:")?;
    for (txg, id) in &logs {
        writeln!(out, "Log Spacemap object {id} txg {txg}")?;
        Map::open(pool, *id)?.show(out, Geometry { start: 0, shift: LOG_SHIFT }, entries, only)?;
    }
    writeln!(out, "\nLog Space Map Obsolete Entry Statistics:")?;
    let mut all = Entries::default();
    let mut last = None;
    for (txg, id) in &logs {
        let mut of_log = Entries::default();
        Map::open(pool, *id)?.for_each(&mut |entry| {
            of_log.count(pool, *txg, &entry);
            Ok(())
        })?;
        // a log without entries is skipped, as long as another one follows
        if of_log.all > 0
            && let Some((txg, entries)) = last.replace((*txg, of_log))
        {
            entries.print(out, &format!("txg {txg}"))?;
        }
        all.all += of_log.all;
        all.valid += of_log.valid;
    }
    let (txg, entries) = last.unwrap_or_default();
    entries.print(out, &format!("txg {txg}"))?;
    all.print(out, "total")?;
    Ok(writeln!(out)?)
}

/// The number of entries of logs, and of those that still count.
#[derive(Clone, Copy, Default)]
struct Entries {
    valid: u64,
    all: u64,
}

impl Entries {
    fn count(&mut self, pool: &Pool, txg: Txg, entry: &Entry) {
        let Entry::Run { offset, vdev: Some(vdev), .. } = entry else { return };
        self.all += 1;
        let Some(top) = pool.tree().top((*vdev).into()).filter(|top| top.is_concrete()) else { return };
        let number = u32::try_from(top.config().ms_shift).ok().and_then(|s| (offset << LOG_SHIFT).checked_shr(s));
        let metaslabs = pool.metaslabs(top.id()).unwrap_or(&[]);
        let metaslab = number.and_then(|n| metaslabs.get(usize::try_from(n).ok()?));
        self.valid += u64::from(metaslab.is_some_and(|m| txg >= m.unflushed_txg));
    }

    fn print(self, out: &mut dyn Write, of: &str) -> std::io::Result<()> {
        writeln!(out, "{:<8} valid entries out of {:<8} - {of}", self.valid, self.all)
    }
}

/// Prints the free segments of vdevs and of the pool, by size, and how fragmented they are. `special` includes special
/// vdevs.
pub(super) fn show_groups(out: &mut dyn Write, pool: &Arc<Pool>, special: bool) -> Result<(), Failure> {
    let mut normal = [0; SIZES];
    let percent = |f: Option<u64>| f.map_or_else(|| "  -".to_owned(), |f| format!("{f:3}%"));
    for top in pool.tree().tops() {
        let class = pool.vdev_class(top);
        let metaslabs = pool.metaslabs(top.id()).map_err(trouble)?;
        if metaslabs.is_empty() || !(class == AllocClass::Normal || (special && class == AllocClass::Special)) {
            continue;
        }
        let mut histogram = [0; SIZES];
        for metaslab in metaslabs.iter().filter(|m| m.class == class) {
            add_histogram(&mut histogram, metaslab, top.ashift());
        }
        if class == AllocClass::Normal {
            normal.iter_mut().zip(histogram).for_each(|(sum, n)| *sum += n);
        }
        let fragmentation = percent(pool.vdev_fragmentation(top.id()).map_err(trouble)?);
        writeln!(out, "\tvdev {:10}\t\tmetaslabs{:5}\t\tfragmentation{fragmentation}", top.id(), metaslabs.len())?;
        text::histogram(out, &histogram, 0)?;
    }
    let fragmentation = percent(pool.space().map_err(trouble)?.fragmentation);
    writeln!(out, "\tpool {}\tfragmentation\t{fragmentation}", pool.name())?;
    Ok(text::histogram(out, &normal, 0)?)
}

fn add_histogram(sum: &mut [u64; SIZES], metaslab: &MetaslabInfo, shift: u32) {
    let Some(histogram) = metaslab.header.as_ref().and_then(|h| h.histogram.as_ref()) else { return };
    for (n, count) in histogram.iter().enumerate().take(HISTOGRAM_BUCKETS) {
        if let Some(bucket) = sum.get_mut(n + shift as usize) {
            *bucket = bucket.wrapping_add(*count);
        }
    }
}

/// The metaslabs of all vdevs as lists.
pub(super) fn list(pool: &Arc<Pool>) -> Result<Vec<NvList>, Failure> {
    let mut vdevs = Vec::new();
    for top in pool.tree().tops() {
        let metaslabs = pool.metaslabs(top.id()).map_err(trouble)?;
        let lists: Vec<NvList> = metaslabs
            .iter()
            .map(|metaslab| {
                let mut list = NvList::new();
                list.insert("id", metaslab.id);
                list.insert("offset", metaslab.start);
                list.insert("size", metaslab.size);
                list.insert("spacemap", metaslab.sm_object.0);
                list.insert("allocated", metaslab.allocated);
                list.insert("free", metaslab.free());
                list.insert("unflushed_txg", metaslab.unflushed_txg.0);
                if let Some(fragmentation) = metaslab.fragmentation {
                    list.insert("fragmentation", fragmentation);
                }
                list
            })
            .collect();
        let mut vdev = NvList::new();
        vdev.insert("vdev", top.id());
        vdev.insert("guid", top.guid().0);
        vdev.insert("metaslab_shift", top.config().ms_shift);
        vdev.insert("metaslabs", lists);
        vdevs.push(vdev);
    }
    Ok(vdevs)
}
