//! Slices, the units in which every kind of scrub runs.
//!
//! The txg stays open for the length of a slice, so that a repair is written only to blocks that the pool still has there. The slice ends as soon
//! as the txg is wanted, because it is old or full or a caller waits for it, or when the scrub is to stop.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::{Errno, Txg, tunable};
use pool::{ErrorEntry, Pool, Spa};
use zio::Bookmark;

use crate::scrub::Scrubbed;
use crate::verify::check::{Feeder, check};
use crate::verify::{Damage, Error, Options, Tally};

/// A slice lasts at least so long, however much its txg is wanted (OpenZFS: `zfs_scrub_min_time_ms`, where 750 ms of each sync are the scrub's).
const SLICE_MIN: Duration = Duration::from_millis(100);
/// And at most so long, so that it is recorded how far it is.
const SLICE_MAX: Duration = Duration::from_secs(5);
/// The clock is looked at after so many blocks.
const BLOCKS_PER_LOOK: u64 = 32;

/// A scrub that is under way.
pub(crate) struct Slices<'a> {
    pub(crate) spa: &'a Arc<Spa>,
    reading: Options,
    stop: &'a AtomicBool,
    progress: &'a (dyn Fn(u64, u64) + Sync),
    /// The results so far.
    sum: Tally,
    /// Repairs that got lost before the slice that is made.
    unhealed: u64,
    /// Records a pause when it is to stop; a resilver does not, since it resumes by itself.
    pauses: bool,
}

/// One slice: what its walk works with.
pub(crate) struct Slice<'a, 'l> {
    pub(crate) view: &'a Arc<Pool>,
    pub(crate) feeder: &'a mut Feeder,
    pub(crate) limit: &'a mut Limit<'l>,
    /// Blocks of pointers that cannot be followed.
    pub(crate) unreachable: &'a mut Vec<Damage>,
}

/// The result of a slice.
pub(crate) struct Sliced<R> {
    /// The result of its walk.
    pub(crate) walked: R,
    /// The results of its reads.
    pub(crate) tally: Tally,
    /// Blocks of pointers that cannot be followed, less those that are wrong by `tally` as well.
    pub(crate) unreachable: Vec<Damage>,
    /// Repairs that could not be written, or may have got lost since the slice before was recorded.
    pub(crate) unhealed: u64,
}

impl<'a> Slices<'a> {
    /// Creates the state of a scrub that reads with `threads` threads besides the one that walks; `stop` and `progress` as in [`crate::scrub()`].
    pub(crate) fn new(
        spa: &'a Arc<Spa>,
        threads: usize,
        stop: &'a AtomicBool,
        progress: &'a (dyn Fn(u64, u64) + Sync),
    ) -> Slices<'a> {
        let reading = Options { dataset: None, threads, heal: true, expand: tunable::ZUSE_SCRUB_DECOMPRESS.get() != 0 };
        let unhealed = spa.tree().unhealed();
        Slices { spa, reading, stop, progress, sum: Tally::default(), unhealed, pauses: true }
    }

    /// The same of a resilver.
    pub(crate) fn resilver(
        spa: &'a Arc<Spa>,
        threads: usize,
        stop: &'a AtomicBool,
        progress: &'a (dyn Fn(u64, u64) + Sync),
    ) -> Slices<'a> {
        Slices { pauses: false, ..Slices::new(spa, threads, stop, progress) }
    }

    /// Returns whether it is to stop: then it is paused.
    pub(crate) fn is_stopped(&self) -> Result<bool, Error> {
        let stop = self.stop.load(Ordering::Relaxed);
        if stop && self.pauses {
            self.spa.scrub_pause()?;
        }
        Ok(stop)
    }

    /// Makes a slice of the pool as it is now: all that `walk` feeds is read when this returns.
    pub(crate) fn slice<R>(&mut self, walk: impl FnOnce(&mut Slice<'_, '_>) -> R) -> Result<Sliced<R>, Error> {
        let still = self.spa.tx_still()?;
        let view = self.spa.view()?;
        let wanted = || self.spa.txgs().open() > still.txg();
        let mut limit = Limit::new(&wanted, self.stop);
        let mut unreachable = Vec::new();
        let checked = check(view.zio(), &self.reading, self.progress, |feeder| {
            walk(&mut Slice { view: &view, feeder, limit: &mut limit, unreachable: &mut unreachable })
        });
        drop(still);
        let (walked, tally) = checked?;
        let known: BTreeSet<Bookmark> = tally.damage.iter().map(|damage| damage.bm).collect();
        unreachable.retain(|damage| !known.contains(&damage.bm));
        let unhealed = self.take_unhealed();
        Ok(Sliced { walked, tally, unreachable, unhealed })
    }

    /// Repairs that could not be written, or may have got lost since this was last asked.
    pub(crate) fn take_unhealed(&mut self) -> u64 {
        let now = self.spa.tree().unhealed();
        now - std::mem::replace(&mut self.unhealed, now).min(now)
    }

    /// Adds what a slice has seen.
    pub(crate) fn add(&mut self, tally: Tally) {
        self.sum.add(tally);
    }

    /// It saw everything.
    pub(crate) fn whole(self) -> Scrubbed {
        Scrubbed::Whole(Box::new(self.sum))
    }
}

impl Slice<'_, '_> {
    /// Notes a block of pointers that cannot be followed.
    pub(crate) fn damaged(&mut self, bm: &Bookmark, birth: Txg, why: &dmu::Error) {
        let errno = if let dmu::Error::Zio(e) = why { e.errno() } else { Errno::EIO };
        self.unreachable.push(Damage { bm: *bm, birth, why: why.to_string(), below: None, errno });
    }
}

/// The entry of the pool's error list for a damage.
pub(crate) fn entry(damage: &Damage) -> ErrorEntry {
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

/// When a slice is over.
pub(crate) struct Limit<'a> {
    wanted: &'a dyn Fn() -> bool,
    stop: &'a AtomicBool,
    begun: Instant,
    looks: u64,
    /// Places at which it might have ended. It passes one at least, so that each slice gets on.
    passed: u64,
}

impl<'a> Limit<'a> {
    fn new(wanted: &'a dyn Fn() -> bool, stop: &'a AtomicBool) -> Limit<'a> {
        Limit { wanted, stop, begun: Instant::now(), looks: 0, passed: 0 }
    }

    pub(crate) fn reached(&mut self) -> bool {
        let first = self.passed == 0;
        self.passed += 1;
        self.looks += 1;
        if first || !self.looks.is_multiple_of(BLOCKS_PER_LOOK) {
            return false;
        }
        let lasted = self.begun.elapsed();
        lasted >= SLICE_MAX || self.stop.load(Ordering::Relaxed) || (lasted >= SLICE_MIN && (self.wanted)())
    }
}
