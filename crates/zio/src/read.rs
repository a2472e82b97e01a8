//! [`Zio`]: the read interface for all layers above.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use base::ObjectId;
use codec::Checksummer;
use codec::crypt::DatasetKey;
use ondisk::{BlkPtr, EmbeddedType, ObjectType};
use vdev::{AheadSource, IoClass, LiveTree, ReadCx, ReadMode, TreeRef, VdevTree};

use crate::checksum::Check;
use crate::error::CopyFailures;
use crate::physical::Source;
use crate::self_heal::SelfHealQueue;
use crate::suspend::Suspend;
use crate::transform::Transform;
use crate::write::WriteSide;
use crate::{ArcCache, ArcKey, Bookmark, Buf, Error, KeyRing, KeySource, Stats};

thread_local! {
    /// The buffer for compressed blocks before they are decompressed.
    static STORED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The most that a thread keeps of [`STORED`] between blocks.
const KEEP_STORED: usize = 1 << 20;

/// Reads the blocks of one pool. Shared by all threads; see the head of this crate. OpenZFS: `zio_read`, `arc_read`.
pub struct Zio {
    tree: Arc<LiveTree>,
    arc: ArcCache,
    keys: KeyRing,
    unsalted: Checksummer,
    salted: OnceLock<Checksummer>,
    dynamic_gang: AtomicBool,
    stats: Stats,
    guard: OnceLock<Arc<dyn ReadGuard>>,
    pub(crate) suspend: OnceLock<Arc<dyn Suspend>>,
    pub(crate) write: WriteSide,
    pub(crate) self_heal: SelfHealQueue,
}

/// Detects that another host writes the pool while it is read here.
pub trait ReadGuard: Send + Sync {
    /// Returns whether blocks of the state being read may have been freed and reused.
    fn is_overtaken(&self) -> bool;
}

/// The number of checksum "off" (OpenZFS: `ZIO_CHECKSUM_OFF`).
const CHECKSUM_OFF: u8 = 2;

/// The use of the cache by a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Look in the cache first, and insert the block.
    Use,
    /// Use a cached copy without moving it in its list, and insert none.
    Bypass,
    /// The block is not to be cached: a staged copy is used, and dropped if this is the last read of it.
    Once {
        /// True if it is the last read.
        last: bool,
    },
    /// The block is not to be cached: stage it for its reader.
    Stage,
    /// The block is about to be replaced: remove it from the cache, and do not insert it.
    Take,
}

impl Zio {
    /// Creates the pipeline over the devices of `tree`, with a cache of `arc_bytes`.
    #[must_use]
    pub fn new(tree: Arc<VdevTree>, arc_bytes: u64) -> Self {
        Zio {
            tree: Arc::new(LiveTree::new(tree)),
            arc: ArcCache::new(arc_bytes),
            keys: KeyRing::default(),
            unsalted: Checksummer::new(None),
            salted: OnceLock::new(),
            dynamic_gang: AtomicBool::new(false),
            stats: Stats::default(),
            guard: OnceLock::new(),
            suspend: OnceLock::new(),
            write: WriteSide::default(),
            self_heal: SelfHealQueue::default(),
        }
    }

    /// The current devices, for one operation.
    #[must_use]
    pub fn tree(&self) -> TreeRef {
        self.tree.load()
    }

    /// The devices, following every change of the vdev tree.
    #[must_use]
    pub fn live_tree(&self) -> &Arc<LiveTree> {
        &self.tree
    }

    /// The bytes that blocks can occupy: the configured size, but no more than the devices have, since a configuration
    /// can be forged. A missing device counts as the largest that is present.
    #[must_use]
    pub fn room(&self) -> u64 {
        let tree = self.tree();
        let told = tree.tops().iter().fold(0u64, |sum, top| sum.saturating_add(top.config().asize));
        let sizes = || tree.leaves().iter().map(|leaf| leaf.device().map(|device| device.size()));
        let largest = sizes().flatten().max().unwrap_or(0);
        told.min(sizes().fold(0, |sum, size| sum.saturating_add(size.unwrap_or(largest))))
    }

    /// An upper bound of the number of blocks: each takes at least a sector. A tree with more of them than this (plus a
    /// margin, as a device may have grown since its size was written) leads to the same ones again and again.
    #[must_use]
    pub fn most_blocks(&self) -> u64 {
        (self.room() / 256).saturating_add(1 << 16)
    }

    /// The keys of encrypted datasets.
    #[must_use]
    pub fn keys(&self) -> &KeyRing {
        &self.keys
    }

    /// The cache.
    #[must_use]
    pub fn arc(&self) -> &ArcCache {
        &self.arc
    }

    /// The counters of reads and writes.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Gives the salt of the pool's keyed checksums, once it is known (it is read through this very object). Only the first
    /// one counts.
    pub fn set_salt(&self, salt: [u8; 32]) {
        self.salted.get_or_init(|| Checksummer::new(Some(salt)));
    }

    /// Sets whether feature `dynamic_gang_header` is active.
    pub fn set_dynamic_gang(&self, active: bool) {
        self.dynamic_gang.store(active, Ordering::Relaxed);
    }

    /// Sets the guard that knows whether another host reuses the space of blocks being read. Only the first call counts.
    pub fn set_guard(&self, guard: Arc<dyn ReadGuard>) {
        self.guard.get_or_init(|| guard);
    }

    /// Returns whether the guard says that blocks of the state being read may have been reused.
    #[must_use]
    pub fn is_overtaken(&self) -> bool {
        self.guard.get().is_some_and(|guard| guard.is_overtaken())
    }

    /// Forgets the key of dataset `objset`, and all cached data, which may be decrypted with it.
    pub fn forget_key(&self, objset: ObjectId) {
        if self.keys.remove(objset) {
            self.arc.clear();
        }
    }

    pub(crate) fn sums(&self) -> &Checksummer {
        self.salted.get().unwrap_or(&self.unsalted)
    }

    pub(crate) fn source<'a>(&'a self, cx: &'a ReadCx<'a>) -> Source<'a> {
        let dynamic_gang = self.dynamic_gang.load(Ordering::Relaxed);
        Source { tree: self.tree(), sums: self.sums(), dynamic_gang, stats: &self.stats, cx, damaged: Cell::new(false) }
    }

    pub(crate) fn key_of(&self, bp: &BlkPtr, bm: &Bookmark) -> Option<Arc<DatasetKey>> {
        bp.uses_crypt().then(|| self.keys.key(bm.objset)).flatten()
    }

    /// The logical data of a block: lsize bytes, verified, decrypted, decompressed, in the byte order of
    /// [`BlkPtr::endian`]. A hole is zeros. Looks in the cache first and leaves the block there.
    ///
    /// # Errors
    /// [`Error`]: no good copy, no key, damaged in spite of a right checksum, redacted, or an impossible pointer.
    pub fn read(&self, bp: &BlkPtr, bm: &Bookmark) -> Result<Buf, Error> {
        self.read_as(bp, bm, Caching::Use, IoClass::SyncRead)
    }

    /// As [`Zio::read`], with another use of the cache, and in a class of the caller's choice.
    ///
    /// # Errors
    /// As [`Zio::read`].
    pub fn read_as(&self, bp: &BlkPtr, bm: &Bookmark, caching: Caching, class: IoClass) -> Result<Buf, Error> {
        self.read_logical(bp, bm, (caching, &ReadCx { class, ..ReadCx::NORMAL }), false)
    }

    /// As [`Zio::read_as`] for many blocks, whose reads are under way together; `each` gets the number and the data of one after the other.
    pub fn read_many(
        &self,
        blocks: &[(BlkPtr, Bookmark)],
        (caching, class): (Caching, IoClass),
        each: &mut dyn FnMut(usize, Result<Buf, Error>),
    ) {
        let is_missing = |bp: &BlkPtr| ArcKey::of(bp).is_none_or(|key| self.arc.peek(&key).is_none());
        let is_plain = |bp: &BlkPtr| !bp.is_hole() && !bp.is_embedded() && !bp.is_gang();
        let ahead = AheadSource::default();
        let wanted = blocks.iter().filter(|(bp, bm)| is_plain(bp) && is_missing(bp) && validate(bp, bm).is_ok());
        let planned = wanted.map(|(bp, _)| (bp.dva(0), bp.psize(), bp.birth_physical()));
        // one that is not written yet would be read ahead as what was there before
        if self.write.late.is_empty() {
            ahead.plan(&self.tree(), ReadMode::Normal, class, planned);
        }
        let cx = ReadCx { class, source: &ahead, ..ReadCx::NORMAL };
        for (n, (bp, bm)) in blocks.iter().enumerate() {
            each(n, self.read_logical(bp, bm, (caching, &cx), false));
        }
    }

    /// As [`Zio::read`], but uses a cached copy without moving it in its list, and inserts none.
    ///
    /// # Errors
    /// As [`Zio::read`].
    pub fn read_uncached(&self, bp: &BlkPtr, bm: &Bookmark) -> Result<Buf, Error> {
        self.read_as(bp, bm, Caching::Bypass, IoClass::SyncRead)
    }

    /// As [`Zio::read`], for a block that is not to be cached. A staged copy is used, and dropped if this is the `last`
    /// read of it.
    ///
    /// # Errors
    /// As [`Zio::read`].
    pub fn read_once(&self, bp: &BlkPtr, bm: &Bookmark, last: bool) -> Result<Buf, Error> {
        self.read_as(bp, bm, Caching::Once { last }, IoClass::SyncRead)
    }

    /// As [`Zio::read`], for a block that is not to be cached: it is staged for its reader, which calls
    /// [`Zio::read_once`] or [`Zio::read_to_change`].
    ///
    /// # Errors
    /// As [`Zio::read`].
    pub fn read_staged(&self, bp: &BlkPtr, bm: &Bookmark) -> Result<Buf, Error> {
        self.read_as(bp, bm, Caching::Stage, IoClass::SyncRead)
    }

    /// As [`Zio::read`], for a caller that changes the block and writes it elsewhere: the cache gives up its copy, which
    /// can then be changed in place if it is not shared (OpenZFS: `arc_release`).
    ///
    /// # Errors
    /// As [`Zio::read`].
    pub fn read_to_change(&self, bp: &BlkPtr, bm: &Bookmark) -> Result<Buf, Error> {
        self.read_as(bp, bm, Caching::Take, IoClass::SyncRead)
    }

    /// As [`Zio::read`], but reads an encrypted or authenticated block without using a key: encrypted parts are returned
    /// as ciphertext. Useful for dnode blocks, in which only bonus buffers are encrypted (OpenZFS: the NOAUTH read of
    /// `dmu_objset_hold_flags` without decryption).
    ///
    /// # Errors
    /// As [`Zio::read`]; a compressed encrypted block is [`Error::Decompress`].
    pub fn read_noauth(&self, bp: &BlkPtr, bm: &Bookmark) -> Result<Buf, Error> {
        self.read_logical(bp, bm, (Caching::Use, &ReadCx::NORMAL), bp.is_encrypted())
    }

    /// The block as it is stored, psize bytes: still compressed and encrypted. The checksum is verified, gang blocks are
    /// assembled. For an embedded block, the payload. Empty for a hole. Never cached.
    ///
    /// # Errors
    /// [`Error`]: no good copy, redacted, or an impossible pointer.
    pub fn read_raw(&self, bp: &BlkPtr, bm: &Bookmark) -> Result<Buf, Error> {
        validate(bp, bm)?;
        if bp.is_hole() {
            return Ok(Buf::zeros(0));
        }
        if bp.is_embedded() {
            return embedded_payload(bp, bm).map(Buf::from);
        }
        let mut data = vec![0; size(bp.psize())];
        self.noted(bp, bm, self.read_physical(bp, bm, &ReadCx::NORMAL, &mut data))?;
        Ok(Buf::from(data))
    }

    pub(crate) fn read_logical(
        &self,
        bp: &BlkPtr,
        bm: &Bookmark,
        (caching, cx): (Caching, &ReadCx<'_>),
        noauth: bool,
    ) -> Result<Buf, Error> {
        if bp.is_hole() {
            return Ok(Buf::zeros(size(bp.lsize())));
        }
        validate(bp, bm)?;
        if bp.is_embedded() {
            return read_embedded(bp, bm).map(Buf::from);
        }
        let key = ArcKey::of(bp).map(|key| ArcKey { noauth, ..key });
        let key = key.filter(|_| bp.object_type() != ObjectType::INTENT_LOG);
        let cached = key.and_then(|key| match caching {
            Caching::Use if cx.class == IoClass::AsyncRead => self.arc.get_ahead(&key),
            Caching::Use => self.arc.get(&key),
            Caching::Bypass => self.arc.peek(&key),
            Caching::Once { last } => self.arc.use_up(&key, last),
            Caching::Stage => self.arc.staged(&key),
            Caching::Take => self.arc.take(&key),
        });
        // a hostile pointer may share the address of a block of another size
        if let Some(data) = cached.filter(|data| data.len() as u64 == bp.lsize()) {
            return Ok(data);
        }
        let data = Buf::from(self.noted(bp, bm, self.read_miss(bp, bm, cx, noauth))?);
        match (key, caching) {
            (Some(key), Caching::Use) => self.arc.insert(&key, &data),
            (Some(key), Caching::Stage) => self.arc.stage(&key, &data),
            _ => {}
        }
        Ok(data)
    }

    fn read_miss(&self, bp: &BlkPtr, bm: &Bookmark, cx: &ReadCx<'_>, noauth: bool) -> Result<Vec<u8>, Error> {
        let key = if noauth { None } else { self.key_of(bp, bm) };
        let transform = Transform::new(bp, bm, key.as_deref(), noauth)?;
        if key.is_some() {
            self.stats.decrypts.add(1);
        }
        let (lsize, psize) = (size(bp.lsize()), size(bp.psize()));
        let mut out = vec![0; lsize];
        if transform.in_place() {
            self.read_physical(bp, bm, cx, &mut out)?;
            transform.apply_in_place(&mut out)?;
            return Ok(out);
        }
        with_stored(psize, |stored| {
            self.read_physical(bp, bm, cx, stored)?;
            transform.apply(stored, &mut out)
        })?;
        Ok(out)
    }

    fn read_physical(&self, bp: &BlkPtr, bm: &Bookmark, cx: &ReadCx<'_>, buf: &mut [u8]) -> Result<(), Error> {
        // an ordinary read repairs nothing: its pointer may be older than the block that is at that address now
        if self.read_stored(bp, bm, cx, buf)? {
            self.suspect(bp, bm);
        }
        Ok(())
    }

    /// Fills `buf` with the block as it is stored. Returns whether a copy was bad while another was good.
    pub(crate) fn read_stored(
        &self,
        bp: &BlkPtr,
        bm: &Bookmark,
        cx: &ReadCx<'_>,
        buf: &mut [u8],
    ) -> Result<bool, Error> {
        if self.read_late(bp, buf) {
            return Ok(false);
        }
        let mut seen = None;
        loop {
            let read = |cx: &ReadCx<'_>| {
                let source = self.source(cx);
                source.read(bp, buf).map(|()| source.damaged.get())
            };
            match self.guarded(bp, bm, cx, read, |damaged| !damaged) {
                Err(error) if self.reads_again(&error, cx, &mut seen) => {}
                done => return done,
            }
        }
    }

    /// Fills `buf` with a block that waits for the end of the sync to be written; returns false if it is not such a block.
    fn read_late(&self, bp: &BlkPtr, buf: &mut [u8]) -> bool {
        let Some(stored) = self.write.late.find(bp) else { return false };
        let right = Check::of(bp, self.sums()).is_some_and(|check| check.test(&stored).unwrap_or(false));
        if right && stored.len() == buf.len() {
            buf.copy_from_slice(&stored);
        }
        right && stored.len() == buf.len()
    }

    /// Reads a block while another host may be writing the pool ([`ReadGuard`]). Wrong bytes are certain to be a device's
    /// fault only if the block is known to be still there, so it is then read again, and the errors counted; bytes
    /// without a checksum are trusted only then.
    pub(crate) fn guarded<R>(
        &self,
        bp: &BlkPtr,
        bm: &Bookmark,
        cx: &ReadCx<'_>,
        mut read: impl FnMut(&ReadCx<'_>) -> Result<R, CopyFailures>,
        is_clean: impl FnOnce(&R) -> bool,
    ) -> Result<R, Error> {
        let Some(guard) = self.guard.get() else { return read(cx).map_err(|copies| Error::unreadable(bm, copies)) };
        let got = read(&ReadCx { counts: false, ..*cx });
        let clean = got.as_ref().is_ok_and(is_clean);
        match got {
            Ok(got) if clean && bp.checksum() != CHECKSUM_OFF => Ok(got),
            _ if guard.is_overtaken() => Err(Error::Overtaken { bm: *bm }),
            Ok(got) if clean => Ok(got),
            _ => match read(cx) {
                Err(_) if guard.is_overtaken() => Err(Error::Overtaken { bm: *bm }),
                sure => sure.map_err(|copies| Error::unreadable(bm, copies)),
            },
        }
    }
}

impl std::fmt::Debug for Zio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zio").field("arc", &self.arc).field("stats", &self.stats).finish_non_exhaustive()
    }
}

/// Refuses pointers with impossible sizes or algorithms.
pub(crate) fn validate(bp: &BlkPtr, bm: &Bookmark) -> Result<(), Error> {
    bp.validate().map_err(|source| Error::BadPointer { bm: *bm, source })?;
    let checksum = bp.checksum();
    if bp.is_embedded() || bp.is_hole() || matches!(checksum, 2 | 5..=14) {
        return Ok(());
    }
    Err(Error::Unsupported { bm: *bm, what: "checksum", value: checksum.into() })
}

fn embedded_payload(bp: &BlkPtr, bm: &Bookmark) -> Result<Vec<u8>, Error> {
    match bp.embedded_type() {
        Some(EmbeddedType::Redacted) => Err(Error::Redacted { bm: *bm }),
        Some(EmbeddedType::Data) => {
            let payload = bp.embedded_payload();
            Ok(payload.get(..size(bp.psize())).unwrap_or(&payload).to_vec())
        }
        _ => Err(Error::Unsupported { bm: *bm, what: "embedded type", value: base::bytes::bits(bp.words[6], 40, 8) }),
    }
}

fn read_embedded(bp: &BlkPtr, bm: &Bookmark) -> Result<Vec<u8>, Error> {
    let mut payload = embedded_payload(bp, bm)?;
    if bp.lsize() > ondisk::SPA_MAXBLOCKSIZE {
        let source =
            ondisk::Error::Invalid { what: "embedded block pointer", field: "logical size", value: bp.lsize() };
        return Err(Error::BadPointer { bm: *bm, source });
    }
    let transform = Transform::new(bp, bm, None, false)?;
    if transform.in_place() {
        return Ok(payload);
    }
    let mut out = vec![0; size(bp.lsize())];
    transform.apply(&mut payload, &mut out)?;
    Ok(out)
}

/// A size that [`validate`] has bounded.
pub(crate) fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Lends `n` bytes of the thread's buffer, of undefined content.
pub(crate) fn with_stored<R>(n: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
    // taken, not borrowed: a nested call of this function finds an empty one
    let mut buf = STORED.take();
    if buf.len() < n {
        buf.resize(n, 0);
    }
    let result = work(buf.get_mut(..n).unwrap_or_default());
    if buf.len() > KEEP_STORED {
        buf = Vec::new();
    }
    STORED.set(buf);
    result
}
