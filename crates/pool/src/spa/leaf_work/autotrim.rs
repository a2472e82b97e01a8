//! Automatic trim: what was freed is discarded in the background while the property `autotrim` is on.
//!
//! Each metaslab keeps what was freed on it since it was last trimmed, from the moment on at which that may be allocated again. In each txg one of
//! `zfs_trim_txg_batch` groups of metaslabs has its turn, evenly spread over their vdevs: so a metaslab collects for as many txgs. It is disabled, what was
//! freed there and is still free is discarded on all leaves of its vdev, and it is enabled again. Extents below `zfs_trim_extent_bytes_min` are passed over, and
//! leaves that are being replaced, or are trimmed by hand.
//!
//! Nothing of it is on disk: what was freed before the pool was opened is left to `zpool trim`, and so is what a close interrupts.
//!
//! OpenZFS: `vdev_autotrim_thread`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Txg, tunable};
use parking_lot::Mutex;
use space::{DisabledMetaslab, RangeTree};
use vdev::{Leaf, TopVdev};

use super::LeafWork;
use crate::Error;
use crate::spa::Spa;
use crate::spa::zthr::Next;

/// The time after which a metaslab that could not be disabled is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// The state of automatic trim.
#[derive(Default)]
pub(crate) struct Autotrim {
    on: AtomicBool,
    /// Metaslabs whose turn it is, by vdev and number.
    due: Mutex<BTreeSet<(u32, u32)>>,
}

impl Spa {
    /// Turns automatic trim on or off.
    pub(crate) fn set_autotrim(&self, on: bool) {
        self.autotrim.on.store(on, Ordering::Release);
        self.space().manager().keep_freed(on);
        if !on {
            self.autotrim.due.lock().clear();
        }
    }

    /// Gives the metaslabs of a group their turn: `txg` is on disk.
    pub(crate) fn kick_autotrim(&self, txg: Txg) {
        // without threads the work would wait for somebody who waits for it, and nobody does
        if !self.autotrim.on.load(Ordering::Acquire) || self.env().is_seeded() {
            return;
        }
        let groups = tunable::ZFS_TRIM_TXG_BATCH.get().max(1);
        let manager = self.space().manager();
        let due: Vec<_> =
            manager.metaslabs().into_iter().filter(|(_, id)| u64::from(*id) % groups == txg.0 % groups).collect();
        let due: Vec<_> = due.into_iter().filter(|id| manager.with(*id, |ms| ms.has_freed()) == Some(true)).collect();
        if !due.is_empty() {
            self.autotrim.due.lock().extend(due);
            self.background.autotrim.wake(self);
        }
    }
}

/// A slice of automatic trim: one metaslab.
pub(crate) fn autotrim_slice(spa: &Arc<Spa>) -> Result<Next, Error> {
    if spa.txgs().failed().is_some() || spa.suspended().is_some() {
        return Ok(Next::Done);
    }
    let Some(id) = spa.autotrim.due.lock().pop_first() else { return Ok(Next::Done) };
    let top = spa.tree().top(id.0.into()).cloned();
    let Some(top) = top.filter(|top| !top.config().removing) else { return Ok(Next::More) };
    match spa.space().manager().disable(id) {
        Ok(Some(disabled)) => {
            let freed = disabled.take_freed();
            trim_leaves(spa, &top, &disabled, &freed);
            Ok(Next::More)
        }
        Ok(None) => {
            spa.autotrim.due.lock().insert(id);
            Ok(Next::Rest(RETRY))
        }
        // nothing is allocated there either
        Err(error) => {
            tracing::warn!(target: "zuse::space", %error, "its free space is left as it is");
            Ok(Next::More)
        }
    }
}

/// Discards free space on all leaves of a vdev that are neither being replaced nor trimmed by hand.
fn trim_leaves(spa: &Spa, top: &TopVdev, disabled: &DisabledMetaslab<'_>, freed: &RangeTree) {
    let config = top.config();
    let own = std::iter::once(config).filter(|config| config.children.is_empty());
    for config in own.chain(&config.children).filter(|config| config.kind.is_leaf()) {
        let leaf = spa.tree().leaf(config.guid).cloned();
        let leaf = leaf.filter(|leaf| leaf.is_writable() && leaf.discards().plainly);
        let by_hand = spa.leaf_works.has(LeafWork::Trim, config.leaf_zap);
        let (Some(leaf), Some(map), false) = (leaf, top.leaf_map(config.guid), by_hand) else { continue };
        let mut parts = Vec::new();
        freed.iter().for_each(|range| map.ranges(range, &mut |part| parts.push(part)));
        let least = tunable::ZFS_TRIM_EXTENT_BYTES_MIN.get();
        for part in parts.into_iter().filter(|part| part.end - part.start >= least) {
            if !trim_part(spa, &leaf, disabled, part) {
                break;
            }
        }
    }
}

/// Discards a range of a leaf. Returns whether the leaf goes on; an interruption leaves the rest as it is.
fn trim_part(spa: &Spa, leaf: &Leaf, disabled: &DisabledMetaslab<'_>, part: std::ops::Range<u64>) -> bool {
    let mut at = part.start;
    while at < part.end {
        // what another machine may have by now is left alone
        let is_over = spa.txgs().failed().is_some() || spa.suspended().is_some();
        let is_interrupted = spa.background.autotrim.is_interrupted() || !spa.autotrim.on.load(Ordering::Acquire);
        if is_over || is_interrupted || disabled.is_wanted() {
            return false;
        }
        let len = (part.end - at).min(tunable::ZFS_TRIM_EXTENT_BYTES_MAX.get());
        if let Err(error) = leaf.trim(at, len, false) {
            tracing::debug!(target: "zuse::vdev", %error, "free space is left as it is");
            return leaf.is_writable();
        }
        at += len;
    }
    true
}
