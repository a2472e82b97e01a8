//! `zuse verify`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pool::Pool;
use serde_json::{Value, json};
use zuse::verify::{Names, Options, Summary, verify};

use super::session::Session;
use super::session::targets;
use crate::args::Parsed;
use crate::error::{Outcome, failed, usage};
use crate::progress;

/// Damaged files that are listed without -v.
const SHOWN: usize = 100;

pub(super) fn run(parsed: &Parsed) -> Outcome {
    let mut session = Session::new(parsed)?;
    let targets = targets(parsed)?;
    let [target] = targets.as_slice() else { return Err(usage("too many arguments")) };
    if target.path.is_some() {
        return Err(usage("a pool, dataset or snapshot is verified, not a path"));
    }
    let dataset = session.dataset(target)?;
    let pool = session.pool(target.pool())?;
    session.provide_keys(&pool)?;
    let whole = target.dataset == target.pool();
    let total = if whole { pool.space().map_or(0, |s| s.allocated) } else { dataset.phys().referenced_bytes };
    let bar = progress::bar(total, parsed.has('q') || parsed.has('j'));
    let lost = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let options = Options { dataset: (!whole).then_some(dataset), threads, expand: true };
    let summary = verify(&pool, &options, &|bytes, damaged| {
        bar.inc(bytes);
        if damaged > 0 {
            let all = lost.fetch_add(damaged, Ordering::Relaxed) + damaged;
            bar.set_message(format!("{all} damaged"));
        }
    });
    bar.finish_and_clear();
    let summary = summary.map_err(|e| failed(format!("cannot verify '{}': {e}", target.dataset)))?;
    let mut out = crate::pools::stdout();
    let files = by_file(&pool, &summary);
    if parsed.has('j') {
        let told = format!("{:#}", as_json(&pool, &target.dataset, &summary, &files));
        writeln!(out, "{}", crate::shown::json(&told))?;
    } else {
        print(&mut out, &pool, &target.dataset, &summary, &files, parsed.has('v'))?;
    }
    out.flush()?;
    Ok(u8::from(!summary.is_sound()))
}

/// Damaged files (or objects), with the errors in each.
fn by_file(pool: &Arc<Pool>, summary: &Summary) -> BTreeMap<String, Vec<String>> {
    let mut names = Names::new(pool);
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for damage in summary.damage() {
        let why = match damage.below {
            Some(below) => format!("{}; {below} cannot be reached", damage.why),
            None => damage.why.clone(),
        };
        files.entry(names.place(&damage.bm).to_string()).or_default().push(why);
    }
    files
}

/// Names of leaf devices by guid.
fn leaf_names(pool: &Pool) -> BTreeMap<base::Guid, String> {
    pool.tree().leaves().iter().map(|leaf| (leaf.guid(), leaf.name())).collect()
}

fn print(
    out: &mut dyn Write,
    pool: &Arc<Pool>,
    name: &str,
    summary: &Summary,
    files: &BTreeMap<String, Vec<String>>,
    verbose: bool,
) -> io::Result<()> {
    let tally = &summary.tally;
    writeln!(
        out,
        "{name}: {} blocks, {} copies, {} bytes read and checked",
        summary.blocks, tally.copies, tally.bytes
    )?;
    if tally.authenticated > 0 {
        writeln!(out, "  authenticated (MAC):  {} blocks", tally.authenticated)?;
    }
    if summary.shared_bytes > 0 {
        writeln!(out, "  shared (dedup, clones): {} bytes", summary.shared_bytes)?;
    }
    if tally.repairable > 0 {
        writeln!(out, "  made good by redundancy: {} blocks", tally.repairable)?;
        let names = leaf_names(pool);
        for (guid, faults) in &tally.leaves {
            let leaf = names.get(guid).cloned().unwrap_or_else(|| guid.to_string());
            let (cksum, io, missing) = (faults.checksum, faults.io, faults.missing);
            writeln!(out, "    {leaf}: {cksum} wrong, {io} unreadable, {missing} missing ({} bytes)", faults.bytes)?;
        }
    }
    for vdev in &summary.space {
        if vdev.leaked == 0 && vdev.unallocated == 0 {
            writeln!(
                out,
                "  vdev {}: space maps agree with the blocks ({} bytes allocated)",
                vdev.vdev, vdev.allocated
            )?;
            continue;
        }
        for (bytes, what, ranges) in [
            (vdev.leaked, "allocated and used by nothing", &vdev.leaks),
            (vdev.unallocated, "used and not allocated", &vdev.claims_of_free_space),
        ] {
            if bytes > 0 {
                writeln!(out, "  vdev {}: {bytes} bytes {what}", vdev.vdev)?;
                for range in ranges.iter().take(if verbose { usize::MAX } else { 4 }) {
                    writeln!(out, "    {:#x}-{:#x}", range.start, range.end)?;
                }
            }
        }
    }
    if files.is_empty() && tally.lost_blocks == 0 {
        return writeln!(out, "  no damage that redundancy does not cover");
    }
    if !summary.miscounted.is_empty() {
        writeln!(out, "  wrong fill counts: {} blocks", summary.miscounted.len())?;
    }
    writeln!(out, "  damaged: {} blocks in {} files or objects", tally.lost_blocks, files.len())?;
    for (file, reasons) in files.iter().take(if verbose { usize::MAX } else { SHOWN }) {
        writeln!(out, "    {file} ({} block{})", reasons.len(), if reasons.len() == 1 { "" } else { "s" })?;
        for why in reasons.iter().take(if verbose { usize::MAX } else { 1 }) {
            writeln!(out, "      {why}")?;
        }
    }
    if files.len() > SHOWN && !verbose {
        writeln!(out, "    … and {} more (-v lists all)", files.len() - SHOWN)?;
    }
    Ok(())
}

fn as_json(pool: &Arc<Pool>, name: &str, summary: &Summary, files: &BTreeMap<String, Vec<String>>) -> Value {
    let tally = &summary.tally;
    let names = leaf_names(pool);
    let leaves = tally.leaves.iter().map(|(guid, f)| {
        json!({ "guid": guid.0.to_string(), "name": names.get(guid), "checksum": f.checksum, "io": f.io, "missing": f.missing, "bytes": f.bytes })
    });
    let space = summary.space.iter().map(|v| {
        json!({ "vdev": v.vdev, "allocated": v.allocated, "claimed": v.claimed, "leaked": v.leaked, "unallocated": v.unallocated })
    });
    json!({
        "name": name,
        "sound": summary.is_sound(),
        "clean": summary.is_clean(),
        "blocks": summary.blocks,
        "embedded": summary.embedded,
        "copies": tally.copies,
        "bytes": tally.bytes,
        "authenticated": tally.authenticated,
        "shared_bytes": summary.shared_bytes,
        "repairable": tally.repairable,
        "lost": tally.lost_blocks,
        "miscounted": summary.miscounted.len(),
        "devices": leaves.collect::<Vec<_>>(),
        "space": space.collect::<Vec<_>>(),
        "damaged": files,
    })
}
