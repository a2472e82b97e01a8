//! Dirty time logs: the txgs that each vdev misses, and the leaves that the pool needs.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use base::{Endian, Guid};
use ondisk::spacemap::SpaceMapHeader;
use vdev::{VdevConfig, VdevState, VdevType};
use zuse::space::{MapGeometry, RangeTree, load_metaslab};

use super::super::spacemaps::{Geometry, Map};
use super::Cx;
use crate::console;
use crate::error::Failure;

/// Ranges of txgs, ascending.
type Txgs = Vec<Range<u64>>;

/// The txgs that a vdev misses.
#[derive(Default)]
struct Missed {
    /// Txgs whose data the vdev does not have.
    missing: Txgs,
    /// Txgs whose data part of it does not have.
    partial: Txgs,
    /// Txgs whose data it cannot supply now.
    outage: Txgs,
}

/// The dirty time logs of leaves, and which of these are readable.
struct Leaves {
    logs: HashMap<Guid, Txgs>,
    readable: HashMap<Guid, bool>,
}

/// Prints the logs of all vdevs.
pub(super) fn show(cx: &mut Cx<'_>) -> Result<(), Failure> {
    let tree = cx.pool.tree().clone();
    let status = tree.status();
    let readable = status.walk().map(|s| (s.guid, matches!(s.state, VdevState::Healthy | VdevState::Degraded)));
    let mut leaves = Leaves { logs: HashMap::new(), readable: readable.collect() };
    for leaf in tree.config().leaves().filter(|leaf| leaf.dtl.is_some()) {
        if let Some(txgs) = log_of(cx, leaf) {
            leaves.logs.insert(leaf.guid, txgs);
        }
    }
    writeln!(cx.out, "\nDirty time logs:\n")?;
    let name = cx.pool.name().to_owned();
    writeln!(cx.out, "\t{name} [DTL-required]")?;
    for top in &tree.config().children {
        one(cx, &leaves, top, top, 4)?;
    }
    Ok(())
}

/// The missed txgs in the log of a leaf.
fn log_of(cx: &mut Cx<'_>, leaf: &VdevConfig) -> Option<Txgs> {
    let object = cx.told(cx.pool.mos().object(leaf.dtl))?;
    let header = cx.told(SpaceMapHeader::decode(object.bonus(), object.endian()))?;
    let count = header.length.min(object.most_bytes()).div_ceil(object.block_size().max(1));
    let mut blocks: Vec<(_, Endian)> = Vec::new();
    for blkid in 0..count {
        blocks.push(cx.told(object.block_with_endian(blkid))??);
    }
    let map: RangeTree = cx.told(load_metaslab(&header, MapGeometry::DTL, blocks))?;
    Some(map.iter().collect())
}

fn one(cx: &mut Cx<'_>, leaves: &Leaves, top: &VdevConfig, vdev: &VdevConfig, indent: usize) -> Result<(), Failure> {
    let device = cx.pool.tree().leaf(vdev.guid).and_then(|leaf| leaf.device().map(|d| full_path(&d.name())));
    let path = device.or_else(|| vdev.path.clone());
    let name = path.unwrap_or_else(|| vdev.kind.name().to_owned());
    let required = vdev.guid == top.guid || !missed(leaves, top, Some(vdev.guid)).outage.is_empty();
    let word = if required { "required" } else { "expendable" };
    writeln!(cx.out, "\t{:indent$}{name} [DTL-{word}]", "")?;
    let Missed { missing, partial, outage } = missed(leaves, vdev, None);
    for (name, txgs) in [("missing", missing), ("partial", partial), ("outage", outage)] {
        if txgs.is_empty() {
            continue;
        }
        for Range { start, end } in txgs {
            let (length, indent) = (end - start, indent + 2);
            writeln!(cx.out, "\t{:indent$}{name} [{start},{end}) length {length}", "")?;
        }
        if cx.level > 5 && vdev.children.is_empty() && vdev.dtl.is_some() {
            Map::open(cx.pool, vdev.dtl)?.show(cx.out, Geometry { start: 0, shift: 0 }, true, None)?;
        }
    }
    vdev.children.iter().try_for_each(|child| one(cx, leaves, top, child, indent + 4))
}

/// The absolute path of a device, with the last link unresolved.
fn full_path(path: &str) -> String {
    let path = Path::new(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (console::path(folder).canonicalize(), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name).display().to_string(),
        _ => path.display().to_string(),
    }
}

/// The txgs that a vdev misses when the leaf `without` is taken away (OpenZFS: `vdev_dtl_reassess`).
fn missed(leaves: &Leaves, vdev: &VdevConfig, without: Option<Guid>) -> Missed {
    if matches!(vdev.kind, VdevType::Indirect | VdevType::Hole | VdevType::Missing) {
        return Missed::default();
    }
    if vdev.kind.is_leaf() {
        let missing = leaves.logs.get(&vdev.guid).cloned().unwrap_or_default();
        let readable = without != Some(vdev.guid) && leaves.readable.get(&vdev.guid).copied().unwrap_or(false);
        let all = Range { start: 0, end: u64::MAX };
        let outage = if readable { missing.clone() } else { vec![all] };
        return Missed { partial: missing.clone(), outage, missing };
    }
    let below: Vec<Missed> = vdev.children.iter().map(|child| missed(leaves, child, without)).collect();
    let tolerated = match vdev.kind {
        VdevType::Raidz | VdevType::Draid => vdev.nparity as usize + 1,
        _ => below.len(),
    };
    let outage = at_least(tolerated, below.iter().map(|m| &m.outage));
    let partial = at_least(1, below.iter().map(|m| &m.partial));
    Missed { missing: outage.clone(), partial, outage }
}

/// The txgs that are in `count` of the lists or more.
fn at_least<'a>(count: usize, lists: impl Iterator<Item = &'a Txgs>) -> Txgs {
    let mut steps: Vec<(u64, i64)> = lists.flatten().flat_map(|r| [(r.start, 1), (r.end, -1)]).collect();
    steps.sort_unstable();
    let (mut found, mut depth, mut start): (Txgs, i64, Option<u64>) = (Vec::new(), 0, None);
    let mut rest = steps.iter().peekable();
    while let Some((at, step)) = rest.next() {
        depth += step;
        if rest.peek().is_some_and(|(next, _)| next == at) {
            continue;
        }
        match (depth >= count as i64, start) {
            (true, None) => start = Some(*at),
            (false, Some(from)) => {
                found.push(from..*at);
                start = None;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    #[test]
    fn txgs_that_several_miss() {
        let lists = [vec![1..5, 9..10], vec![3..9], vec![4..6]];
        assert_eq!(at_least(1, lists.iter()), [1..10]);
        assert_eq!(at_least(2, lists.iter()), [3..6]);
        assert_eq!(at_least(3, lists.iter()), [4..5]);
        assert!(at_least(4, lists.iter()).is_empty());
    }
}
