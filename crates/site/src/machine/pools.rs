//! The pools that a machine has open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use base::{Errno, Guid};
use control::{AllKept, Failed, Ioc};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use pool::{Pool, Spa};

use super::lent::{Lent, Loans};
use crate::error::opening;
use crate::writing::Starts;
use crate::{Error, Imported, Query, Site, iostats, keys, records, suspended};

/// The time that an export waits for the requests to its pool to end, and these for it before they ask whether it is suspended.
const MOMENT: Duration = Duration::from_millis(250);

/// What is known of a pool that is open, or is being opened: its record, and if that is for a change itself, and whether it is ready. One that did not open is gone.
type Known = (Imported, Option<(Weak<Spa>, Arc<Shared>)>);

/// The place of a pool: it is filled while the pool is open. Requests have it locked for reading, those that open and close for writing.
#[derive(Default)]
pub(super) struct Place {
    open: RwLock<Option<Open>>,
    /// The record of what is in it, and its pool if that is open for a change: they are known without the lock, which a request may have for as long as devices are away.
    known: Mutex<Option<Known>>,
    /// Whether its pool is being opened, imported or created.
    is_opening: AtomicBool,
    /// The pool that the program has open besides, and whether that is ready.
    besides: Mutex<Option<(Weak<Spa>, Arc<Shared>)>>,
}

impl Place {
    /// Locks it for a request.
    fn try_read_for(&self, time: Duration) -> Option<RwLockReadGuard<'_, Option<Open>>> {
        self.open.try_read_for(time)
    }

    /// Locks it to fill or to empty it, once the requests have ended.
    pub(super) fn write(self: &Arc<Self>) -> Filling<'_> {
        Filling { open: self.open.write(), place: self }
    }

    fn try_write_for(self: &Arc<Self>, time: Duration) -> Option<Filling<'_>> {
        Some(Filling { open: self.open.try_write_for(time)?, place: self })
    }

    /// As [`Place::write`], to close what is in it: nobody has it on loan, either.
    fn try_alone_for(self: &Arc<Self>, time: Duration) -> Option<Filling<'_>> {
        let end = Instant::now() + time;
        loop {
            let open = self.open.try_write_until(end)?;
            let shared = open.as_ref().map(|open| open.shared.clone());
            match shared.filter(|shared| shared.loans.are_any()) {
                None => return Some(Filling { open, place: self }),
                Some(shared) => {
                    drop(open);
                    if !shared.loans.wait_until(end) {
                        return None;
                    }
                }
            }
        }
    }

    /// The pool that is open for a change here.
    fn spa(&self) -> Option<Arc<Spa>> {
        self.known.lock().as_ref()?.1.as_ref()?.0.upgrade()
    }

    /// Lets others see a pool that is about to be in it: it can be cleared and closed, should it be suspended meanwhile.
    pub(super) fn expect(&self, record: Imported, spa: &Arc<Spa>) {
        *self.known.lock() = Some((record, Some((Arc::downgrade(spa), Arc::default()))));
        self.is_opening.store(true, Ordering::Relaxed);
    }

    fn is_opening(&self) -> bool {
        self.is_opening.load(Ordering::Relaxed) && self.spa().is_some_and(|spa| !spa.is_stopped())
    }

    /// Whether a pool of this name is in it, or about to be.
    fn is_of(&self, pool: &str) -> bool {
        let is_there = |spa: &Option<(Weak<Spa>, _)>| spa.as_ref().is_none_or(|(spa, _)| spa.strong_count() > 0);
        self.known.lock().as_ref().is_some_and(|(record, spa)| record.name == pool && is_there(spa))
    }

    /// The pool that the program has open, and closes. All requests to it make it ready together.
    fn besides(&self, record: Imported, spa: Arc<Spa>) -> Open {
        let mut besides = self.besides.lock();
        let is_it = |other: &Weak<Spa>| std::ptr::eq(other.as_ptr(), Arc::as_ptr(&spa));
        let shared = match &*besides {
            Some((other, shared)) if is_it(other) => shared.clone(),
            _ => Arc::default(),
        };
        *besides = Some((Arc::downgrade(&spa), shared.clone()));
        Open { record, held: Held::Writing(spa), shared }
    }

    /// Gives up what is in it, if that is suspended: requests that wait for its devices end.
    fn give_up_suspended(&self) {
        if let Some(spa) = self.spa().filter(|spa| spa.suspended().is_some()) {
            spa.abandon();
        }
    }

    /// What is in it, if that is suspended: who has the lock may wait for it to be cleared. A request that waits for devices is refused, before it has the pool: that may be cleared meanwhile, and
    /// who is opening it comes first.
    fn suspended(&self, by: Use) -> Option<Result<Open, Failed>> {
        let (record, spa) = self.known.lock().clone()?;
        let (spa, shared) = spa?;
        let spa = spa.upgrade()?;
        let cause = spa.suspended()?;
        let open = Open { record, held: Held::Writing(spa), shared };
        Some(if by.suspended_too { Ok(open) } else { Err(control::Error::Suspended(cause).into()) })
    }
}

/// The use that a request makes of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    /// Whether it is made to a suspended pool as well.
    suspended_too: bool,
    /// Whether it waits until the pool is open.
    waits: bool,
}

impl Use {
    pub(super) const OPEN: Use = Use { suspended_too: true, waits: true };

    /// The use that requests of this kind make.
    pub(super) fn by(ioc: Ioc) -> Use {
        Use { suspended_too: !ioc.pool_check().suspended, waits: !ioc.looks() }
    }
}

/// The place of a pool that nobody else uses.
pub(super) struct Filling<'a> {
    open: RwLockWriteGuard<'a, Option<Open>>,
    place: &'a Arc<Place>,
}

impl<'a> Filling<'a> {
    pub(super) fn open(&self) -> Option<&Open> {
        self.open.as_ref()
    }

    /// Lets others see the pool of this record while it is being opened.
    pub(super) fn expects(&self, record: &Imported) -> Starts {
        // the pool keeps it
        let (place, record) = (Arc::downgrade(self.place), record.clone());
        Arc::new(move |spa| {
            if let Some(place) = place.upgrade() {
                place.expect(record.clone(), spa);
            }
        })
    }

    pub(super) fn fill(&mut self, mut open: Open) {
        let mut known = self.place.known.lock();
        let spa = match &open.held {
            Held::Writing(spa) => {
                let is_it = |other: &Weak<Spa>| std::ptr::eq(other.as_ptr(), Arc::as_ptr(spa));
                // those who have used it while it was suspended, and is no more, have made it ready
                if let Some((_, Some((expected, shared)))) = &*known
                    && is_it(expected)
                {
                    open.shared = shared.clone();
                }
                Some((Arc::downgrade(spa), open.shared.clone()))
            }
            Held::Reading(..) => None,
        };
        *known = Some((open.record.clone(), spa));
        drop(known);
        *self.open = Some(open);
        self.place.is_opening.store(false, Ordering::Relaxed);
    }

    pub(super) fn empty(&mut self) -> Option<Open> {
        self.place.is_opening.store(false, Ordering::Relaxed);
        *self.place.known.lock() = None;
        self.open.take()
    }

    /// Lets other requests use what is in it.
    fn share(self) -> RwLockReadGuard<'a, Option<Open>> {
        RwLockWriteGuard::downgrade(self.open)
    }
}

/// A pool that is open. A clone is the same.
#[derive(Clone)]
pub(super) struct Open {
    /// The record of its import, from when it was opened.
    pub(super) record: Imported,
    pub(super) held: Held,
    /// Also whether its logs were replayed, and its devices brought up to date: before its first change.
    shared: Arc<Shared>,
}

/// What all requests to an open pool share.
#[derive(Default)]
pub(super) struct Shared {
    /// Whether the pool is ready for a change; who has it locked makes it so.
    ready: Mutex<bool>,
    /// Locked while vdevs are added or removed: the record is changed before and after.
    vdevs: Mutex<()>,
    /// Who uses the pool for longer than a request: it is not closed meanwhile.
    loans: Arc<Loans>,
}

impl Open {
    pub(super) fn new(record: Imported, held: Held) -> Open {
        Open { record, held, shared: Arc::default() }
    }

    /// Lends it: it is not closed until that is dropped.
    fn lend(&self) -> Lent {
        Lent { open: self.clone(), loan: Loans::take(&self.shared.loans) }
    }

    /// Locks the vdevs of the record against other threads that add or remove some.
    pub(super) fn lock_vdevs(&self) -> MutexGuard<'_, ()> {
        self.shared.vdevs.lock()
    }

    /// Makes it ready for a change.
    pub(super) fn make_ready(&self, site: &Site) -> Result<(), Failed> {
        let Held::Writing(spa) = &self.held else { return Ok(()) };
        // who makes it ready may wait for its devices
        let check = || spa.suspended().map_or(Ok(()), |cause| Err(control::Error::Suspended(cause)));
        check()?;
        let mut ready = self.shared.ready.lock();
        if !*ready {
            check()?;
            if spa.had_logs() {
                site.replay(spa, &mut |_| {})?;
                spa.sync()?;
            }
            site.catch_up(spa);
            *ready = true;
        }
        Ok(())
    }

    /// A key was loaded: the log of its datasets may be replayed.
    pub(super) fn has_new_key(&self) {
        *self.shared.ready.lock() = false;
    }

    /// Whether it is what this record says. A pool that is written belongs to this process until it is exported; one that is read may have been exported and imported by another.
    fn is_of(&self, record: &Imported) -> bool {
        let same = |other: &Imported| {
            (other.guid, other.load_guid, other.readonly) == (record.guid, record.load_guid, record.readonly)
        };
        match self.held {
            Held::Writing(_) => self.record.guid == record.guid,
            Held::Reading(..) => same(&self.record),
        }
    }
}

/// How it is open.
#[derive(Clone)]
pub(super) enum Held {
    /// For a change.
    Writing(Arc<Spa>),
    /// For reading, on these devices.
    Reading(Arc<Pool>, HashMap<Guid, String>),
}

/// A pool that is open, for those who look at its figures. It is to be let go of at once: as long as somebody has it its devices stay open.
#[derive(Clone)]
pub struct LivePool {
    /// The record of its import, from when it was opened.
    pub record: Imported,
    /// The pool.
    pub held: LiveHeld,
    /// Whether it is being opened, imported or created: requests to it wait for that.
    pub is_opening: bool,
}

/// How such a pool is open.
#[derive(Clone)]
pub enum LiveHeld {
    /// For a change.
    Writing(Arc<Spa>),
    /// To be read.
    Reading(Arc<Pool>),
}

impl std::fmt::Debug for LivePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LivePool").field("record", &self.record).finish_non_exhaustive()
    }
}

/// The pools of a machine, and what its sessions keep of them.
pub(crate) struct Pools {
    pub(crate) site: Site,
    /// The places of pools by their guids; they stay, as somebody may be waiting for one.
    places: Mutex<HashMap<Guid, Arc<Place>>>,
    pub(crate) kept: AllKept,
    /// No pool is opened any more.
    ending: AtomicBool,
    /// How many file systems are mounted of pools that are only read. Those of others are known to their pools.
    mounted: Arc<Mutex<HashMap<Guid, usize>>>,
}

/// A file system of a pool that is only read is mounted, until this is dropped.
#[derive(Debug)]
pub struct Mounted {
    all: Arc<Mutex<HashMap<Guid, usize>>>,
    guid: Guid,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        match all.get_mut(&self.guid) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(all.remove(&self.guid)),
        }
    }
}

impl Pools {
    pub(super) fn new(site: Site) -> Pools {
        Pools {
            site,
            places: Mutex::default(),
            kept: AllKept::default(),
            ending: AtomicBool::new(false),
            mounted: Arc::default(),
        }
    }

    /// Notes that a file system of a pool that is only read is mounted.
    pub(super) fn mounted(&self, guid: Guid) -> Mounted {
        *self.mounted.lock().entry(guid).or_default() += 1;
        Mounted { all: self.mounted.clone(), guid }
    }

    /// True if a file system of a pool that is only read is mounted.
    pub(super) fn has_mounts(&self, guid: Guid) -> bool {
        self.mounted.lock().contains_key(&guid)
    }

    /// The imported pool of this name.
    pub(super) fn record(&self, pool: &str) -> Result<Imported, Failed> {
        let found = self.site.find(pool).map_err(opening)?;
        found.ok_or_else(|| no_such_pool(pool))
    }

    /// The place of the pool with this guid.
    pub(super) fn place(&self, guid: Guid) -> Arc<Place> {
        self.places.lock().entry(guid).or_default().clone()
    }

    /// The place of a pool that is open under this name, or is being opened. It is found whoever has it locked.
    pub(super) fn opened(&self, pool: &str) -> Option<Arc<Place>> {
        self.places.lock().values().find(|place| place.is_of(pool)).cloned()
    }

    pub(super) fn open_pools(&self) -> Vec<Imported> {
        let places: Vec<Arc<Place>> = self.places.lock().values().cloned().collect();
        // one that is being opened is not open yet
        let record = |place: &Arc<Place>| Some(place.open.try_read()?.as_ref()?.record.clone());
        let mut open: Vec<Imported> = places.iter().filter_map(record).collect();
        open.sort_by(|a, b| a.name.cmp(&b.name));
        open
    }

    /// The pools that are open, or are being opened for a change. Nobody who has one locked is waited for; one that is only read is left out while it is locked.
    pub(super) fn live(&self) -> Vec<LivePool> {
        let places: Vec<Arc<Place>> = self.places.lock().values().cloned().collect();
        let live = |place: &Arc<Place>| {
            let (record, spa) = place.known.lock().clone()?;
            let held = match spa {
                Some((spa, _)) => LiveHeld::Writing(spa.upgrade()?),
                None => match &place.open.try_read()?.as_ref()?.held {
                    Held::Reading(pool, _) => LiveHeld::Reading(pool.clone()),
                    Held::Writing(spa) => LiveHeld::Writing(spa.clone()),
                },
            };
            Some(LivePool { record, held, is_opening: place.is_opening() })
        };
        let mut all: Vec<LivePool> = places.iter().filter_map(live).collect();
        all.sort_by(|a, b| a.record.name.cmp(&b.record.name));
        all
    }

    /// Uses a pool if it is open. One that is read, and was exported since, is let go; one that is suspended while it is opened or exported is used nevertheless.
    pub(super) fn if_open<R>(
        &self,
        pool: &str,
        by: Use,
        work: impl FnOnce(&Open) -> Result<R, Failed>,
    ) -> Option<Result<R, Failed>> {
        let place = self.opened(pool)?;
        let open = loop {
            if let Some(open) = place.try_read_for(MOMENT) {
                break open;
            }
            if let Some(open) = place.suspended(by) {
                return Some(open.and_then(|open| work(&open)));
            }
            if !by.waits && place.is_opening() {
                return None;
            }
        };
        let Some(now) = open.as_ref() else {
            // a new pool is not in it before it is made
            drop(open);
            return place.suspended(by).map(|open| open.and_then(|open| work(&open)));
        };
        if !self.is_stale(now) {
            return open.as_ref().filter(|open| open.record.name == pool).map(work);
        }
        drop(open);
        // nobody waits for that: it is let go by the next one at the latest
        if let Some(mut filling) = place.try_write_for(MOMENT)
            && filling.open().is_some_and(|open| self.is_stale(open))
        {
            self.let_go(&mut filling);
        }
        None
    }

    /// Whether it is read, and is not what is imported now.
    fn is_stale(&self, open: &Open) -> bool {
        let is_imported = || self.record(&open.record.name).is_ok_and(|record| open.is_of(&record));
        matches!(open.held, Held::Reading(..)) && !is_imported()
    }

    fn let_go(&self, filling: &mut Filling<'_>) {
        if let Some(open) = filling.empty() {
            self.kept.forget();
            self.site.look_again_at(open.record.guid);
        }
    }

    /// Uses a pool, which is opened if it is not open.
    pub(super) fn with<R>(
        &self,
        pool: &str,
        by: Use,
        work: impl FnOnce(&Open) -> Result<R, Failed>,
    ) -> Result<R, Failed> {
        let mut work = Some(work);
        let used = self.if_open(pool, by, |open| match work.take() {
            Some(work) => work(open),
            None => Err(no_such_pool(pool)),
        });
        let work = match (used, work) {
            (None, Some(work)) => work,
            (used, _) => return used.unwrap_or_else(|| Err(no_such_pool(pool))),
        };
        let place = self.place(self.record(pool)?.guid);
        let mut filling = loop {
            if let Some(filling) = place.try_write_for(MOMENT) {
                break filling;
            }
            // who opens it may wait for its devices
            if let Some(open) = place.suspended(by).filter(|_| place.is_of(pool)) {
                return work(&open?);
            }
        };
        // it may have been exported, or imported under another name, meanwhile
        let record = self.record(pool)?;
        if filling.open().is_none_or(|open| open.record.name != pool || !open.is_of(&record)) {
            if !Arc::ptr_eq(&place, &self.place(record.guid)) {
                return Err(busy());
            }
            if let Some(Open { held: Held::Reading(..), .. }) = filling.open() {
                self.let_go(&mut filling);
            }
            if let Some(spa) = self.site.changing(&record) {
                drop(filling);
                return work(&place.besides(record, spa));
            }
            self.go_on()?;
            let open = self.open_now(record, &filling)?;
            filling.fill(open);
        }
        let open = filling.share();
        match &*open {
            Some(open) => work(open),
            None => Err(no_such_pool(pool)),
        }
    }

    fn open_now(&self, record: Imported, filling: &Filling<'_>) -> Result<Open, Failed> {
        if record.readonly {
            let pool = self.site.open(&record).map_err(opening)?;
            let held = Held::Reading(pool.clone(), self.site.devices(&pool));
            return Ok(Open::new(record, held));
        }
        let spa = self.site.write_seen(&record, filling.expects(&record)).map_err(opening)?;
        // what was under way when the pool was last closed goes on, as where a kernel has it
        let ready = self.site.show_changes(&record, &spa).and_then(|()| {
            let name = || record.name.clone();
            spa.resume_scan().map_err(|source| Error::Open { name: name(), source })
        });
        if let Err(e) = ready {
            // the error is what counts
            let _closed = self.close_written(&spa);
            return Err(opening(e));
        }
        Ok(Open::new(record, Held::Writing(spa)))
    }

    /// Lends an imported pool, which is opened if it is not open.
    pub(crate) fn lend(&self, record: &Imported) -> Result<Lent, Failed> {
        self.with(&record.name, Use::OPEN, |open| Ok(open.lend()))
    }

    /// Lends the imported pool of this name, which is opened if it is not open.
    pub(super) fn lend_named(&self, pool: &str) -> Result<Lent, Failed> {
        self.with(pool, Use::OPEN, |open| Ok(open.lend()))
    }

    /// Lends an imported pool if it is open.
    pub(crate) fn lend_if_open(&self, record: &Imported) -> Option<Lent> {
        let lent = self.if_open(&record.name, Use::OPEN, |open| Ok(open.lend()))?;
        lent.ok().filter(|lent| lent.open.record.guid == record.guid)
    }

    /// Whether this pool is open in its place, or about to be.
    pub(crate) fn has(&self, spa: &Arc<Spa>) -> bool {
        let place = self.places.lock().get(&spa.guid()).cloned();
        place.and_then(|place| place.spa()).is_some_and(|own| Arc::ptr_eq(&own, spa))
    }

    /// Closes a pool, if it is open, and forgets that it is imported.
    ///
    /// # Errors
    /// EBUSY if others use it; as [`Pools::close`]; when the record cannot be removed.
    pub(crate) fn forget(&self, guid: Guid) -> Result<(), Failed> {
        self.alone(guid, |filling| {
            self.close_now(filling)?;
            records::forget(guid).map_err(opening)
        })
    }

    /// Takes over a new pool that is to be remembered with this record: it is open from now on.
    pub(crate) fn adopt(&self, record: &Imported, spa: &Arc<Spa>) -> Result<(), Error> {
        let place = self.place(record.guid);
        let mut filling = place.write();
        records::remember_new(record)?;
        iostats::watch_created(spa, self.site.front());
        self.site.keep(spa);
        filling.fill(Open::new(record.clone(), Held::Writing(spa.clone())));
        Ok(())
    }

    /// The place of a pool, for a request that closes it: the others have ended.
    pub(super) fn alone<R>(
        &self,
        guid: Guid,
        work: impl FnOnce(&mut Filling<'_>) -> Result<R, Failed>,
    ) -> Result<R, Failed> {
        let place = self.place(guid);
        let mut filling = place.try_alone_for(MOMENT).ok_or_else(busy)?;
        work(&mut filling)
    }

    pub(super) fn close(&self, pool: &str) -> Result<(), Failed> {
        // one that is just being opened may not be known by its name yet
        let begun = || {
            let guid = self.record(pool).ok()?.guid;
            self.places.lock().get(&guid).cloned()
        };
        self.opened(pool).or_else(begun).map_or(Ok(()), |place| self.close_place(&place))
    }

    /// Lets a pool be opened, which the caller has locked: whoever closes all pools waits for that.
    pub(super) fn go_on(&self) -> Result<(), Failed> {
        match self.ending.load(Ordering::SeqCst) {
            true => Err(control::Error::Opening(Errno::ECANCELED, "the server is ending".into()).into()),
            false => Ok(()),
        }
    }

    /// Closes all pools, and opens none any more. Those that are in use for longer than `limit` are left as they are.
    pub(super) fn end(&self, limit: Duration) -> Result<(), Failed> {
        self.ending.store(true, Ordering::SeqCst);
        self.close_until(Instant::now().checked_add(limit))
    }

    pub(super) fn give_up_suspended(&self) {
        let places: Vec<Arc<Place>> = self.places.lock().values().cloned().collect();
        places.iter().for_each(|place| place.give_up_suspended());
    }

    pub(super) fn close_all(&self) -> Result<(), Failed> {
        self.close_until(None)
    }

    fn close_until(&self, end: Option<Instant>) -> Result<(), Failed> {
        let mut places: Vec<Arc<Place>> = self.places.lock().values().cloned().collect();
        let mut closed = Ok(());
        // all of them, whatever comes of the first; none is waited for while another is suspended
        while !places.is_empty() {
            if end.is_some_and(|end| Instant::now() > end) {
                return closed.and(Err(busy()));
            }
            places.iter().for_each(|place| place.give_up_suspended());
            places.retain(|place| match self.close_if_free(place) {
                Some(now) => {
                    closed = std::mem::replace(&mut closed, Ok(())).and(now);
                    false
                }
                None => true,
            });
        }
        closed
    }

    /// Closes a pool once its requests have ended. Those that wait for the devices of a suspended pool end by that: it is given up, also one that is suspended meanwhile.
    fn close_place(&self, place: &Arc<Place>) -> Result<(), Failed> {
        loop {
            place.give_up_suspended();
            if let Some(closed) = self.close_if_free(place) {
                return closed;
            }
        }
    }

    /// Closes a pool that nobody uses or makes; waits a moment for that.
    fn close_if_free(&self, place: &Arc<Place>) -> Option<Result<(), Failed>> {
        let mut filling = place.try_alone_for(MOMENT)?;
        if filling.open().is_some() || !place.is_opening() {
            return Some(self.close_now(&mut filling));
        }
        // who creates a pool has no place locked before it is made
        drop(filling);
        std::thread::sleep(MOMENT);
        None
    }

    fn close_now(&self, filling: &mut Filling<'_>) -> Result<(), Failed> {
        let Some(open) = filling.open() else { return Ok(()) };
        self.kept.forget();
        let closed = match &open.held {
            Held::Writing(spa) => self.close_written(spa),
            Held::Reading(..) => {
                self.site.look_again_at(open.record.guid);
                Ok(())
            }
        };
        // others reach it until then
        filling.empty();
        closed
    }

    /// Closes a pool that was open for a change. It is given up if it is suspended, also while it is closed.
    pub(super) fn close_written(&self, spa: &Arc<Spa>) -> Result<(), Failed> {
        self.leave_written(spa, || spa.close())
    }

    /// As [`Pools::close_written`], where `leave` closes it.
    pub(super) fn leave_written(
        &self,
        spa: &Arc<Spa>,
        leave: impl FnOnce() -> Result<(), pool::Error>,
    ) -> Result<(), Failed> {
        let (done, ended) = channel::<()>();
        std::thread::scope(|scope| {
            // it goes with the work, however that ends
            let done = done;
            let watch = move || {
                loop {
                    if spa.suspended().is_some() {
                        spa.abandon();
                    }
                    if ended.recv_timeout(MOMENT) != Err(RecvTimeoutError::Timeout) {
                        break;
                    }
                }
            };
            // without a thread a close may wait for devices; what is dirty is written nevertheless
            let _watcher = std::thread::Builder::new().name("close".to_owned()).spawn_scoped(scope, watch);
            let settled = spa.view().map_err(Failed::from).and_then(|view| keys::settle(&view).map_err(opening));
            self.site.hide_changes(spa);
            let closed = leave();
            drop(done);
            suspended::forget(spa.guid());
            closed?;
            settled
        })
    }

    pub(super) fn take(&self, pool: &str) -> Option<Arc<Spa>> {
        let place = self.opened(pool)?;
        let mut filling = loop {
            if let Some(filling) = place.try_write_for(MOMENT) {
                break filling;
            }
            // whoever waits for its devices has it
            if place.suspended(Use::OPEN).is_some() {
                return None;
            }
        };
        let Held::Writing(spa) = &filling.open()?.held else { return None };
        let spa = spa.clone();
        filling.empty();
        Some(spa)
    }

    /// Takes requests about a pool that is open, in one of its states.
    pub(super) fn query(&self, open: &Open, view: &Arc<Pool>) -> Query {
        let devices = match &open.held {
            Held::Reading(_, devices) => Arc::new(OnceLock::from(devices.clone())),
            Held::Writing(_) => Arc::default(),
        };
        Query::of_imported(view.clone(), open.record.clone(), devices)
    }
}

pub(super) fn no_such_pool(pool: &str) -> Failed {
    opening(Error::NoSuchPool { name: pool.to_owned() })
}

/// Others use a pool that is to be closed.
pub(super) fn busy() -> Failed {
    control::Error::Opening(Errno::EBUSY, "pool is busy".into()).into()
}

impl Drop for Pools {
    fn drop(&mut self) {
        if let Err(failed) = self.close_all() {
            tracing::warn!(target: "zuse::site", %failed, "a pool could not be closed");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use pool::{CreateOptions, Hooks};
    use vdev::create::{LayoutOptions, VdevSpec, layout};
    use vdev::{Device, MemoryDevice};

    use super::*;
    use crate::Silent;

    #[test]
    fn a_pool_that_is_being_created_is_closed_once_it_is_made_and_not_taken() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::writable(96 << 20));
        let spec = VdevSpec::parse(&["/a".to_owned()]).unwrap();
        let hooks = Hooks::default();
        let new = layout(&spec, &|_| Some(device.clone()), LayoutOptions::default(), &hooks.env).unwrap();
        let spa = Spa::create(new, CreateOptions::new("t"), hooks).unwrap();
        let record = Imported { guid: spa.guid(), name: "t".to_owned(), ..Imported::default() };
        let pools = Pools::new(Site::new(Arc::new(Silent)));
        let place = pools.place(spa.guid());
        place.expect(record.clone(), &spa);
        assert!(pools.take("t").is_none());
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| pools.close("t").map_err(|failed| failed.errno));
            std::thread::sleep(3 * MOMENT);
            assert!(!closing.is_finished(), "there is nothing yet that it could have closed");
            place.write().fill(Open::new(record, Held::Writing(spa.clone())));
            assert_eq!(closing.join().unwrap(), Ok(()));
        });
        assert!(pools.open_pools().is_empty() && spa.is_stopped());
    }
}
