//! Whether what a state of a pool leads to is there, as far as that may be in doubt: the blocks of its last txgs (OpenZFS: `spa_load_verify`).
//!
//! What is freed is handed out again only some txgs later, so a state of the last few has all its older blocks. The younger ones were written just
//! before the pool was left: devices that lied about a flush, or a newer state that was gone back from, may have taken them. So a state is taken
//! only if they can be read. Metadata always counts; data only where older states may be taken in its place (`-F`), and then it refuses a
//! state only if the caller has set a limit. Whoever names a txg (`-T`) may be led far back, where nothing is sure: all of the pool is read.
//!
//! Blocks are found by their birth: what lies below a pointer is no younger. Of a block one good copy is enough, and what is wrong counts as an error of
//! no device. [`SPA_LOAD_VERIFY_SHIFT`](tunable::SPA_LOAD_VERIFY_SHIFT) bounds what is under way.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{ObjectId, Txg, tunable};
use dmu::{Objset, Visit, Walk};
use ondisk::{BlkPtr, ObjectType, Uberblock};
use vdev::{IoClass, ReadCx};
use zio::{Bookmark, Scratch, Zio};

use super::OpenOptions;
use crate::Error;
use crate::spa::mos::Mos;

/// For so many txgs nothing that was freed is handed out again.
pub(crate) const TXG_DEFER_SIZE: u64 = space::DEFER_TXGS as u64;
/// The txg before the first one of a pool (OpenZFS: `TXG_INITIAL`).
const BEFORE_ALL: Txg = Txg(3);
/// Blocks that are read side by side at most.
const BLOCKS: usize = 4096;

/// How much of a pool's last txgs may be missing (OpenZFS: `zpool_load_policy_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadPolicy {
    /// An older state may be taken: data is read as well as metadata.
    pub rewind: bool,
    /// Any state may be taken, however old (OpenZFS: `ZPOOL_EXTREME_REWIND`).
    pub extreme: bool,
    /// Blocks of metadata that may be unreadable.
    pub max_meta_errors: u64,
    /// Blocks of data that may be. With a limit data is read in any case.
    pub max_data_errors: u64,
}

impl Default for LoadPolicy {
    fn default() -> Self {
        LoadPolicy { rewind: false, extreme: false, max_meta_errors: 0, max_data_errors: u64::MAX }
    }
}

/// Blocks of the last txgs that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoadErrors {
    /// Blocks of metadata.
    pub metadata: u64,
    /// Blocks of data.
    pub data: u64,
}

/// Reads what `options` ask for: what was born in the last txgs; all of a state that is older than `newest` by more than the pool remembers what was freed, or
/// that was asked for by its txg, because its blocks may have been overwritten.
pub(crate) fn verify(
    (mos, zio): (&Mos, &Arc<Zio>),
    uberblock: &Uberblock,
    newest: Txg,
    options: &OpenOptions,
) -> Result<LoadErrors, Error> {
    let Some(policy) = options.verify.filter(|_| tunable::SPA_LOAD_VERIFY_METADATA.get() != 0) else {
        return Ok(LoadErrors::default());
    };
    let data = tunable::SPA_LOAD_VERIFY_DATA.get() != 0 && (policy.rewind || policy.max_data_errors < u64::MAX);
    read_back((mos, zio), uberblock, newest, options, (policy, data))
}

/// As [`verify`], whatever the tunables say: metadata, and `data` if that is true.
pub(crate) fn read_back(
    (mos, zio): (&Mos, &Arc<Zio>),
    uberblock: &Uberblock,
    newest: Txg,
    options: &OpenOptions,
    (policy, data): (LoadPolicy, bool),
) -> Result<LoadErrors, Error> {
    let txg = uberblock.txg;
    let all = options.txg.is_some() || (!options.checkpoint && !is_held(txg, newest));
    let after = if all { BEFORE_ALL } else { Txg(txg.0.saturating_sub(TXG_DEFER_SIZE + 1)) };
    let shift = u32::try_from(tunable::SPA_LOAD_VERIFY_SHIFT.get()).unwrap_or(u32::MAX);
    let most = options.arc_bytes.checked_shr(shift).unwrap_or(0);
    let mut look = Look { zio, data, most, batch: Vec::new(), bytes: 0, errors: LoadErrors::default() };
    let mut datasets = BTreeSet::new();
    look.objset(&mos.objset, after, &mut |at| {
        if at.dnode.bonus_type == ObjectType::DSL_DATASET {
            datasets.insert(at.bookmark.object);
        }
    });
    for id in datasets {
        look.dataset(mos, id, after);
    }
    look.flush();
    let found = look.errors;
    if found.metadata > policy.max_meta_errors || found.data > policy.max_data_errors {
        return Err(Error::Unverified { metadata: found.metadata, data: found.data });
    }
    Ok(found)
}

/// Returns whether what the state of `txg` leads to was not yet reused in the txgs up to `newest`.
pub(super) fn is_held(txg: Txg, newest: Txg) -> bool {
    txg.0.saturating_add(TXG_DEFER_SIZE) >= newest.0
}

struct Look<'a> {
    zio: &'a Arc<Zio>,
    data: bool,
    /// Bytes that are read side by side.
    most: u64,
    batch: Vec<(BlkPtr, Bookmark)>,
    bytes: u64,
    errors: LoadErrors,
}

impl Look<'_> {
    fn dataset(&mut self, mos: &Mos, id: ObjectId, after: Txg) {
        let Ok(phys) = mos.dataset_phys(id) else {
            self.errors.metadata += 1;
            return;
        };
        // what is older belongs to the snapshot before, too
        let after = after.max(phys.prev_snap_txg);
        if phys.bp.is_hole() || phys.bp.birth() <= after {
            return;
        }
        match Objset::open(self.zio.clone(), id, &phys.bp) {
            Ok(objset) => self.objset(&objset, after, &mut |_| ()),
            Err(_) => self.errors.metadata += 1,
        }
    }

    /// Looks at what was born in a tree after a txg. `see` is told of each pointer.
    fn objset(&mut self, objset: &Arc<Objset>, after: Txg, see: &mut dyn FnMut(&Visit<'_>)) {
        objset.walk_as(IoClass::Scrub, &mut |at| {
            if at.damage.is_some() {
                self.errors.metadata += 1;
                return Walk::Into;
            }
            see(at);
            if at.bp.is_hole() || at.bp.is_embedded() || at.bp.is_redacted() || at.bp.birth() <= after {
                return Walk::Skip;
            }
            // the walk reads what it goes through
            let leaf = at.level == 0 && at.dnode.object_type != ObjectType::DNODE;
            if leaf && (self.data || at.bp.object_type().is_metadata()) {
                self.add(at);
            }
            Walk::Into
        });
    }

    fn add(&mut self, at: &Visit<'_>) {
        self.batch.push((*at.bp, *at.bookmark));
        self.bytes += at.bp.psize();
        if self.bytes >= self.most || self.batch.len() >= BLOCKS {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.bytes = 0;
        let read = |(bp, bm): &(BlkPtr, Bookmark)| {
            let cx = ReadCx { counts: false, class: IoClass::Scrub, ..ReadCx::NORMAL };
            let lost = self.zio.verify_sums(bp, bm, &cx, &mut Scratch::default()).is_err();
            (bp.object_type().is_metadata(), lost)
        };
        for (metadata, lost) in base::pump::all(std::mem::take(&mut self.batch), read) {
            let errors = if metadata { &mut self.errors.metadata } else { &mut self.errors.data };
            *errors += u64::from(lost);
        }
    }
}
