//! `zpool status -D`: the dedup tables.

use std::fmt::Write;

use control::stats::Dedup;
use ondisk::ddt::DdtStat;
use pool::prop::{nicebytes, nicenum};

/// The lines of `zpool status -D`.
pub(super) fn lines(dedup: &Dedup, parsable: bool) -> String {
    let mut text = "\n dedup: ".to_owned();
    if dedup.count == 0 {
        text.push_str("no DDT entries\n");
        return text;
    }
    let nice = |n: u64| if parsable { n.to_string() } else { nicenum(n) };
    // writing to a String does not fail
    let _ = writeln!(
        text,
        "DDT entries {}, size {} on disk, {} in core",
        dedup.count,
        nice(dedup.dspace),
        nice(dedup.mspace)
    );
    text.push_str("\nbucket              allocated                       referenced          \n");
    let _ = writeln!(text, "______   {0}   {0}", "_".repeat(30));
    row(&mut text, ["refcnt", "blocks", "LSIZE", "PSIZE", "DSIZE", "blocks", "LSIZE", "PSIZE", "DSIZE"]);
    row(&mut text, ["------", "------", "-----", "-----", "-----", "------", "-----", "-----", "-----"]);
    for (n, bucket) in dedup.histogram.buckets.iter().enumerate() {
        stat(&mut text, &nicenum(1_u64.checked_shl(n as u32).unwrap_or(0)), bucket);
    }
    stat(&mut text, "Total", &dedup.total);
    text.push('\n');
    text
}

fn stat(text: &mut String, title: &str, stat: &DdtStat) {
    if stat.blocks == 0 {
        return;
    }
    let cells = [
        title.to_owned(),
        nicenum(stat.blocks),
        nicebytes(stat.lsize),
        nicebytes(stat.psize),
        nicebytes(stat.dsize),
        nicenum(stat.ref_blocks),
        nicebytes(stat.ref_lsize),
        nicebytes(stat.ref_psize),
        nicebytes(stat.ref_dsize),
    ];
    row(text, std::array::from_fn(|n| cells.get(n).map_or("", String::as_str)));
}

fn row(text: &mut String, [a, b, c, d, e, f, g, h, i]: [&str; 9]) {
    let _ = writeln!(text, "{a:>6}   {b:>6}   {c:>5}   {d:>5}   {e:>5}   {f:>6}   {g:>5}   {h:>5}   {i:>5}");
}
