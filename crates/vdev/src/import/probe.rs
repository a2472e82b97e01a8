//! Asking devices for their labels.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::{Guid, bytes};
use codec::embedded;
use ondisk::label::{self as layout, key};

use super::FoundDevice;
use crate::device::{self, Access, Device};
use crate::label::{Label, read_label};

/// Devices are mostly waited for: more threads than cores.
const THREADS: usize = 8;
/// The largest state that a label can have: `l2cache`.
const STATE_MAX: u64 = 4;
/// From here on, states of devices that belong to no tree: spare and cache.
pub(super) const STATE_SPARE: u64 = 3;

/// Asks every path; what is no device of a pool is left out. The order of the paths is kept.
pub(super) fn all(paths: &[PathBuf]) -> Vec<FoundDevice> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(paths.len()) {
            scope.spawn(|| {
                while let Some((n, path)) = {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    paths.get(n).map(|path| (n, path))
                } {
                    let Ok(opened) = device::open(path, Access::Read) else { continue };
                    if let Some(device) = device(path.clone(), opened) {
                        found.lock().unwrap_or_else(PoisonError::into_inner).push((n, device));
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(n, _)| *n);
    found.into_iter().map(|(_, device)| device).collect()
}

/// Reads the labels of one device and takes the best.
///
/// Labels that name different leaves are remains of other pools: most labels win, then the first. Among labels of one leaf the
/// newest wins: an update may have been cut short between them.
pub(crate) fn device(path: PathBuf, device: Arc<dyn Device>) -> Option<FoundDevice> {
    let labels: Vec<Label> = (0..layout::LABELS)
        .filter(|index| has_trailer(&*device, *index))
        .filter_map(|index| read_label(&*device, index).ok())
        .filter(is_in_use)
        .collect();
    let same = |label: &Label| (label.pool_guid(), label.guid());
    let count = |label: &Label| labels.iter().filter(|other| same(other) == same(label)).count();
    let most = labels.iter().map(count).max()?;
    let leaf = labels.iter().find(|label| count(label) == most).map(same)?;
    // of equal labels the last that `max_by_key` meets is taken: go backwards to have the first
    let best = labels.iter().rev().filter(|label| same(label) == leaf).max_by_key(|label| label.txg())?;
    let of_pool = labels.iter().filter(|label| label.pool_guid() == best.pool_guid());
    let mut other_guids: Vec<Guid> =
        of_pool.filter_map(Label::guid).filter(|guid| Some(*guid) != best.guid()).collect();
    other_guids.dedup();
    let elsewhere = |label: &&Label| label.guid() == best.guid() && label.pool_guid() != best.pool_guid();
    let other = labels.iter().filter(elsewhere).max_by_key(|label| label.txg()).cloned().map(Box::new);
    let is_torn = other.is_some() || !other_guids.is_empty();
    Some(FoundDevice {
        guid: best.guid()?,
        label: best.clone(),
        labels: most,
        other_guids,
        other,
        is_torn,
        device,
        path,
    })
}

/// Whether the trailer of label `index` has its magic number: a small read that spares a large one on most files of a folder.
fn has_trailer(device: &dyn Device, index: usize) -> bool {
    let Some(offset) = layout::offset(device.size(), index) else { return false };
    let mut magic = [0; 8];
    let at = offset + layout::CONFIG_OFFSET + (layout::CONFIG_SIZE - layout::TRAILER_SIZE) as u64;
    let read = device.read_at(at, &mut magic).is_ok();
    let word = bytes::u64(&magic, 0, base::Endian::Little);
    read && (word == Some(embedded::MAGIC) || word == Some(embedded::MAGIC.swap_bytes()))
}

/// Whether a label makes its device part of a pool. One with txg 0 was only begun.
fn is_in_use(label: &Label) -> bool {
    let state = label.config.get_u64(key::POOL_STATE);
    label.guid().is_some_and(|g| g.0 != 0)
        && state.is_some_and(|s| s <= STATE_MAX)
        && (state >= Some(STATE_SPARE) || (label.txg().0 != 0 && label.pool_guid().is_some()))
}
