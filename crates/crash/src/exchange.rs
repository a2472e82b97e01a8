//! Devices of a pool that are exchanged at random: attached, detached, replaced.

use std::sync::Arc;

use base::Guid;
use pool::{Error, Spa};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, VdevConfig, VdevType};

use crate::Rng;
use crate::compare::{Context, Result};

/// Siblings that a device gets at most.
const SIBLINGS_MAX: usize = 3;
/// Percentage of the exchanges after which the resilver is waited for.
const WAITS_PCT: u64 = 50;

/// Attaches a device, detaches one, or replaces one, of those in `devices`, which may be in the pool. Returns what was done; nothing if the pool
/// refused.
///
/// # Errors
/// Those of the pool.
pub fn exchange(spa: &Arc<Spa>, devices: &[Arc<dyn Device>], rng: &Rng) -> Result<Option<String>> {
    let tree = spa.tree();
    let all: Vec<(&VdevConfig, &VdevConfig)> =
        tree.config().walk().flat_map(|parent| parent.children.iter().map(move |child| (parent, child))).collect();
    let leaves: Vec<_> = all.into_iter().filter(|(_, child)| child.kind.is_leaf()).collect();
    let (parent, leaf) = leaves[rng.index(leaves.len())];
    let is_free = |device: &&Arc<dyn Device>| !tree.leaves().iter().any(|leaf| leaf.name() == device.name());
    let free: Vec<&Arc<dyn Device>> = devices.iter().filter(is_free).collect();
    let (is_mirror, guid) = (matches!(parent.kind, VdevType::Root | VdevType::Mirror), leaf.guid);
    let (what, done) = match rng.below(3) {
        0 => (format!("detach {guid}"), spa.detach_vdev(guid)),
        _ if free.is_empty() || parent.children.len() >= SIBLINGS_MAX && parent.kind != VdevType::Raidz => {
            return Ok(None);
        }
        verb => {
            let device = free[rng.index(free.len())];
            let replacing = verb == 1 || !is_mirror;
            let word = if replacing { "replace" } else { "attach to" };
            let done = attach(spa, guid, device, replacing)?;
            (format!("{word} {guid} by {}", device.name()), done)
        }
    };
    match done {
        Err(Error::Vdevs(_)) => return Ok(None),
        done => done.context(|| what.clone())?,
    }
    if rng.percent(WAITS_PCT) {
        spa.scan_wait(&mut |_| {}).context(|| "resilver".to_owned())?;
    }
    Ok(Some(what))
}

fn attach(
    spa: &Arc<Spa>,
    old: Guid,
    device: &Arc<dyn Device>,
    replacing: bool,
) -> Result<std::result::Result<(), Error>> {
    let spec = VdevSpec::parse(&[device.name()]).context(|| device.name())?;
    let options =
        LayoutOptions { ashift: spa.tree().tops().first().map(|top| top.ashift().into()), ..spa.layout_options(None) };
    let new = layout(&spec, &|_| Some(device.clone()), options, spa.env()).context(|| device.name())?;
    Ok(spa.attach_vdev(old, new, replacing))
}
