//! Whether vdevs are alike: what survives the loss of a device in one, and not in another, is probably a mistake.

use std::sync::Arc;

use nvlist::NvList;
use ondisk::label::key;

use super::{Bias, Group, TopSpec, VdevSpec};
use crate::{Device, VdevConfig, VdevType};

/// Devices of a group may differ by this much in size.
const SIZE_FUZZ: u64 = 16 << 20;

/// Finds a device by its path.
type Find<'f> = dyn Fn(&str) -> Option<Arc<dyn Device>> + 'f;

/// The differences of new vdevs, among themselves and against those of `pool` (its `vdev_tree`): lines as OpenZFS's `zpool` prints them, none
/// if all is well. `-f` overrides them; [`complaint`] puts the right words in front.
#[must_use]
pub fn replication(pool: Option<&NvList>, spec: &VdevSpec, device: &Find<'_>) -> Vec<String> {
    let current = match pool.map(|pool| level(&of_pool(pool, device), None)) {
        // a pool that is uneven already may become more so
        Some(None) => return Vec::new(),
        Some(current) => current,
        None => None,
    };
    let tops: Vec<Top> = spec.tops.iter().filter(|t| t.bias != Some(Bias::Log)).map(|t| of_spec(t, device)).collect();
    let mut lines = Vec::new();
    if tops.is_empty() {
        return lines;
    }
    let new = level(&tops, Some(&mut lines));
    if let (Some(current), Some(new)) = (current, new) {
        lines.extend(against_pool(&current, &new));
    }
    lines
}

/// The lines of an error message of `zpool`.
#[must_use]
pub fn complaint(lines: &[String], force: bool) -> String {
    let how = if force {
        "the following errors must be manually repaired:"
    } else {
        "use '-f' to override the following errors:"
    };
    let mut text = format!("invalid vdev specification\n{how}");
    for line in lines {
        text.push('\n');
        text.push_str(line);
    }
    text
}

/// A top-level vdev, as far as it matters here.
struct Top {
    kind: &'static str,
    parity: u64,
    /// Whether it is a group, not a device.
    group: bool,
    /// Type and size of each device.
    children: Vec<(&'static str, Option<u64>)>,
}

/// The failures that a top-level vdev survives.
#[derive(Clone, PartialEq)]
struct Level {
    kind: &'static str,
    children: u64,
    parity: u64,
}

fn leaf(path: &str, device: &Find<'_>) -> (&'static str, Option<u64>) {
    let found = device(path);
    let is_block = found.as_ref().is_some_and(|device| device.kind().is_block);
    (if is_block { "disk" } else { "file" }, found.map(|device| device.size()).filter(|size| *size != 0))
}

fn of_spec(top: &TopSpec, device: &Find<'_>) -> Top {
    let children: Vec<_> = top.paths.iter().map(|path| leaf(path, device)).collect();
    let (kind, parity) = match top.group {
        Group::Single => (children.first().map_or("file", |c| c.0), 0),
        Group::Mirror => ("mirror", 0),
        Group::Raidz(parity) => ("raidz", parity),
        Group::Draid(draid) => ("draid", draid.nparity),
    };
    Top { kind, parity, group: top.group != Group::Single, children }
}

fn of_pool(tree: &NvList, device: &Find<'_>) -> Vec<Top> {
    let Ok(root) = VdevConfig::parse(tree) else { return Vec::new() };
    let counts = |top: &&VdevConfig| !top.is_log && !matches!(top.kind, VdevType::Hole | VdevType::Indirect);
    let child = |mut vdev: &VdevConfig| -> Option<(&'static str, Option<u64>)> {
        // the device that is replaced, or that a spare stands in for
        while let (VdevType::Replacing | VdevType::Spare, Some(first)) = (vdev.kind, vdev.children.first()) {
            vdev = first;
        }
        let is_spare = vdev.raw.get_u64(key::IS_SPARE) == Some(1) || vdev.kind == VdevType::DraidSpare;
        (!is_spare).then(|| (vdev.kind.name(), leaf(vdev.path.as_deref().unwrap_or_default(), device).1))
    };
    root.children
        .iter()
        .filter(counts)
        .map(|top| Top {
            kind: top.kind.name(),
            parity: top.nparity,
            group: !top.children.is_empty(),
            children: top.children.iter().filter_map(child).collect(),
        })
        .collect()
}

/// The level that all of `tops` have, if it is one; what is wrong goes to `lines`.
fn level(tops: &[Top], mut lines: Option<&mut Vec<String>>) -> Option<Level> {
    let mut last: Option<Level> = None;
    let mut even = true;
    for top in tops {
        if top.group {
            let wrong = within(top, lines.is_some());
            if let Some(text) = wrong {
                even = false;
                if let Some(lines) = lines.as_deref_mut() {
                    lines.push(text);
                }
            }
        }
        let children = if top.group { top.children.len() as u64 } else { 1 };
        let own = Level { kind: top.kind, children, parity: top.parity };
        if let Some(text) = last.as_ref().and_then(|last| between(last, &own)) {
            even = false;
            if let Some(lines) = lines.as_deref_mut() {
                lines.push(text);
            }
        }
        last = Some(own);
    }
    last.filter(|_| even)
}

/// Returns the unevenness within a group.
fn within(top: &Top, mixed_types_matter: bool) -> Option<String> {
    let mut before: Option<(&str, u64)> = None;
    for (kind, size) in &top.children {
        if let Some((other, _)) = before
            && mixed_types_matter
            && other != *kind
        {
            return Some(format!("mismatched replication level: {} contains both files and devices", top.kind));
        }
        let Some(size) = size else { continue };
        if let Some((_, other)) = before
            && size.abs_diff(other) > SIZE_FUZZ
        {
            return Some(format!("{} contains devices of different sizes", top.kind));
        }
        before = Some((kind, *size));
    }
    None
}

fn is_parity(level: &Level) -> bool {
    matches!(level.kind, "raidz" | "draid")
}

/// A raidz (or dRAID) and a mirror, in this order.
fn raidz_and_mirror<'l>(a: &'l Level, b: &'l Level) -> Option<(&'l Level, &'l Level)> {
    if is_parity(a) && b.kind == "mirror" {
        Some((a, b))
    } else if is_parity(b) && a.kind == "mirror" {
        Some((b, a))
    } else {
        None
    }
}

/// Returns the unevenness of two new vdevs.
fn between(a: &Level, b: &Level) -> Option<String> {
    let text = if let Some((raidz, mirror)) = raidz_and_mirror(a, b) {
        let survives = mirror.children.saturating_sub(1);
        (raidz.parity != survives).then(|| {
            format!(
                "{} and {} vdevs with different redundancy, {} vs. {survives} ({}-way) are present",
                raidz.kind, mirror.kind, raidz.parity, mirror.children
            )
        })
    } else if is_parity(a) && is_parity(b) {
        // the number of their children is no matter
        (a.parity != b.parity).then(|| {
            format!(
                "{} and {} vdevs with different redundancy, {} vs. {} are present",
                a.kind, b.kind, a.parity, b.parity
            )
        })
    } else if a.kind != b.kind {
        Some(format!("both {} and {} vdevs are present", a.kind, b.kind))
    } else if a.children != b.children {
        Some(format!("both {}-way and {}-way {} vdevs are present", a.children, b.children, b.kind))
    } else {
        None
    };
    text.map(|text| format!("mismatched replication level: {text}"))
}

/// Returns the unevenness of the pool and new vdevs.
fn against_pool(pool: &Level, new: &Level) -> Option<String> {
    let text = if let Some((raidz, mirror)) = raidz_and_mirror(pool, new) {
        let survives = mirror.children.saturating_sub(1);
        (raidz.parity != survives).then(|| {
            format!(
                "pool and new vdev with different redundancy, {} and {} vdevs, {} vs. {survives} ({}-way)",
                raidz.kind, mirror.kind, raidz.parity, mirror.children
            )
        })
    } else if is_parity(pool) && is_parity(new) {
        (pool.parity != new.parity).then(|| {
            format!(
                "pool and new vdev with different redundancy, {} and {} vdevs, {} vs. {}",
                pool.kind, new.kind, pool.parity, new.parity
            )
        })
    } else if pool.kind != new.kind {
        Some(format!("pool uses {} and new vdev is {}", pool.kind, new.kind))
    } else if pool.children != new.children {
        Some(format!(
            "pool uses {}-way {} and new vdev uses {}-way {}",
            pool.children, pool.kind, new.children, new.kind
        ))
    } else {
        None
    };
    text.map(|text| format!("mismatched replication level: {text}"))
}
