//! How many errors of a leaf are too many, as the properties of vdevs say.
//!
//! Most pools have no such property, and commands open pools all the time: the properties are read only when a leaf has erred.

use std::time::Duration;

use base::Guid;
use vdev::{Threshold, Thresholds, VdevConfig};

use crate::spa::Spa;
use crate::spa::mos::Mos;

/// The properties, in the order of [`Values`].
const NAMES: [&str; 4] = ["io_n", "io_t", "checksum_n", "checksum_t"];
/// The value that a vdev without a property has stored, if any (OpenZFS: `vdev_prop_default_numeric`).
const UNSET: u64 = u64::MAX;

/// The thresholds that are set on a vdev, or above it.
type Values = [Option<u64>; 4];

/// Whether a change of the property `name` is one of thresholds.
pub(crate) fn is_threshold(name: &str) -> bool {
    NAMES.contains(&name)
}

impl Spa {
    /// Forgets the thresholds of all leaves: before errors are judged by their number, they are read.
    pub(crate) fn forget_thresholds(&self) {
        self.tree().leaves().iter().for_each(|leaf| leaf.set_thresholds(None));
    }

    /// Judges the leaves that have erred since the last time.
    pub(crate) fn judge_devices(&self) {
        let tree = self.tree();
        if !tree.has_new_errors() {
            return;
        }
        if !tree.leaves().iter().all(|leaf| leaf.has_thresholds()) {
            let mut all = Vec::new();
            // of those that cannot be read, nothing is known
            if let Ok(mos) = self.live_mos() {
                read(&mos, tree.config(), Values::default(), &mut all);
            }
            for leaf in tree.leaves() {
                let values = all.iter().find(|(guid, _)| *guid == leaf.guid()).map(|(_, values)| *values);
                leaf.set_thresholds(Some(thresholds(values.unwrap_or_default())));
            }
        }
        tree.judge();
    }
}

/// The values of the leaves of a vdev: each property from the first that has it, from the leaf upwards (OpenZFS: `vdev_prop_get_inherited`).
fn read(mos: &Mos, vdev: &VdevConfig, above: Values, out: &mut Vec<(Guid, Values)>) {
    let mut values = above;
    if let Ok(Some(zap)) = mos.zap_if(vdev.props_zap()) {
        for (value, name) in values.iter_mut().zip(NAMES) {
            *value = zap.lookup_u64(name).ok().flatten().filter(|own| *own != UNSET).or(*value);
        }
    }
    if vdev.children.is_empty() {
        out.push((vdev.guid, values));
    }
    vdev.children.iter().for_each(|child| read(mos, child, values, out));
}

fn thresholds([io_n, io_t, checksum_n, checksum_t]: Values) -> Thresholds {
    let own = |default: Threshold, n: Option<u64>, t: Option<u64>| Threshold {
        events: n.unwrap_or(default.events),
        within: t.map_or(default.within, Duration::from_secs),
    };
    let Thresholds { io, checksum } = Thresholds::default();
    Thresholds { io: own(io, io_n, io_t), checksum: own(checksum, checksum_n, checksum_t) }
}
