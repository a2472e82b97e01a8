//! Slices, the units in which every kind of scan runs.
//!
//! The txg stays open for the length of a slice, so that a repair is written only to blocks that the pool still has there. The slice ends as soon
//! as the txg is wanted, because it is old or full or a caller waits for it, or when the scan is interrupted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Errno, Txg, tunable};
use zio::{Bookmark, IoClass};

use crate::spa::Spa;
use crate::spa::check::{self, CheckOptions, Damage, Feeder, Tally};
use crate::{Error, ErrorEntry, Pool};

/// A slice lasts at most this long, so that the progress is recorded.
const SLICE_MAX: Duration = Duration::from_secs(5);
/// The clock is looked at after this many blocks.
const BLOCKS_PER_LOOK: u64 = 32;

/// The state of a scan that its slices share.
pub(super) struct Slicer {
    options: CheckOptions,
    /// The results so far.
    pub(super) sum: Tally,
    /// Repairs that got lost before the slice that runs.
    unhealed: u64,
    /// A slice lasts at least this long, however much its txg is wanted.
    least: Duration,
}

/// One slice: what its walk works with.
pub(super) struct Slice<'a, 'l> {
    pub(super) view: &'a Arc<Pool>,
    pub(super) feeder: &'a mut Feeder,
    pub(super) limit: &'a mut Limit<'l>,
    /// Blocks of pointers that cannot be followed.
    pub(super) unreachable: &'a mut Vec<Damage>,
}

/// The result of a slice.
pub(super) struct Sliced<R> {
    /// The result of its walk.
    pub(super) walked: R,
    /// The results of its reads.
    pub(super) tally: Tally,
    /// Blocks of pointers that cannot be followed, less those that are wrong by `tally` as well.
    pub(super) unreachable: Vec<Damage>,
    /// Repairs that could not be written, or may have got lost since the slice before was recorded.
    pub(super) unhealed: u64,
}

impl Slicer {
    /// Creates the state of a scan whose slices last at least `least`.
    pub(super) fn new(spa: &Spa, least: Duration) -> Slicer {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let threads = match tunable::ZUSE_SCRUB_THREADS.get() {
            0 if spa.env().is_seeded() => 1,
            0 => cores,
            some => usize::try_from(some).unwrap_or(cores),
        };
        let expand = tunable::ZUSE_SCRUB_DECOMPRESS.get() != 0;
        let options = CheckOptions { threads, heal: true, expand, class: IoClass::Scrub };
        Slicer { options, sum: Tally::default(), unhealed: spa.tree().unhealed(), least }
    }

    /// Runs a slice over the pool as it is now: all that `walk` feeds is read when this returns.
    pub(super) fn slice<R>(
        &mut self,
        spa: &Arc<Spa>,
        walk: impl FnOnce(&mut Slice<'_, '_>) -> R,
    ) -> Result<Sliced<R>, Error> {
        let still = spa.tx_still()?;
        // while the txg before is synced, a full pool may give away what it freed, which a view from before still leads to
        spa.wait_synced(Txg(still.txg().0 - 1))?;
        let view = spa.view()?;
        let wanted = || spa.txgs().open() > still.txg();
        let stop = || spa.background.scan.is_interrupted();
        let mut limit = Limit::new(&wanted, &stop, self.least);
        let mut unreachable = Vec::new();
        let progress = |bytes, lost| spa.scanner.seen(bytes, lost);
        let checked = check::check(view.zio(), &self.options, &progress, |feeder| {
            walk(&mut Slice { view: &view, feeder, limit: &mut limit, unreachable: &mut unreachable })
        });
        drop(still);
        let (walked, tally) = checked?;
        let known: BTreeSet<Bookmark> = tally.damage.iter().map(|damage| damage.bm).collect();
        unreachable.retain(|damage| !known.contains(&damage.bm));
        let unhealed = self.take_unhealed(spa);
        Ok(Sliced { walked, tally, unreachable, unhealed })
    }

    /// Takes the number of repairs that could not be written, or may have got lost, since this was last called.
    pub(super) fn take_unhealed(&mut self, spa: &Spa) -> u64 {
        let now = spa.tree().unhealed();
        now - std::mem::replace(&mut self.unhealed, now).min(now)
    }
}

impl Slice<'_, '_> {
    /// Notes a block of pointers that cannot be followed.
    pub(super) fn damaged(&mut self, bm: &Bookmark, birth: Txg, why: &dmu::Error) {
        let errno = if let dmu::Error::Zio(e) = why { e.errno() } else { Errno::EIO };
        self.unreachable.push(Damage { bm: *bm, birth, why: why.to_string(), below: None, errno });
    }
}

/// The entry of the pool's error list for a damage.
pub(super) fn entry(damage: &Damage) -> ErrorEntry {
    ErrorEntry {
        objset: damage.bm.objset,
        object: damage.bm.object,
        // root blocks and logs have levels below 0
        level: damage.bm.level.cast_signed().into(),
        blkid: damage.bm.blkid,
        birth: Some(damage.birth),
        last: true,
    }
}

/// The limit of a slice.
pub(super) struct Limit<'a> {
    wanted: &'a dyn Fn() -> bool,
    stop: &'a dyn Fn() -> bool,
    least: Duration,
    begun: Instant,
    /// Number of places at which the slice could have ended. It passes one at least, so that each slice gets on.
    passed: u64,
}

impl<'a> Limit<'a> {
    fn new(wanted: &'a dyn Fn() -> bool, stop: &'a dyn Fn() -> bool, least: Duration) -> Limit<'a> {
        Limit { wanted, stop, least, begun: Instant::now(), passed: 0 }
    }

    /// Returns whether the slice ends at this place.
    pub(super) fn reached(&mut self) -> bool {
        self.passed += 1;
        if self.passed == 1 || !self.passed.is_multiple_of(BLOCKS_PER_LOOK) {
            return false;
        }
        let lasted = self.begun.elapsed();
        lasted >= SLICE_MAX || (self.stop)() || (lasted >= self.least && (self.wanted)())
    }
}
