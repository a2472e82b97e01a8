//! Reading and checking blocks in batches, each sorted by place, on several threads.

use std::sync::Mutex;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use ondisk::BlkPtr;
use vdev::{AheadSource, Planned, ReadCx, ReadMode};
use zio::{Bookmark, Scratch, VerifyReport, Zio};

use super::{CheckOptions, Damage, Tally};
use crate::Error;

/// Blocks of a batch: 22 MB of pointers and places.
const BATCH: usize = 128 << 10;
/// Bytes that are handed on together by who waits for them: what the end of a slice of a scrub may have to wait for.
const BATCH_BYTES: u64 = 32 << 20;
/// A block, and which of its copies is to be read.
struct Item {
    bp: BlkPtr,
    bm: Bookmark,
    /// The DVA; [`ALL`] for the whole block.
    copy: u8,
}

const ALL: u8 = u8::MAX;

/// Takes blocks, and hands them to the threads in batches.
pub struct Feeder {
    batch: Vec<Item>,
    /// The bytes of the batch that were added by [`Feeder::add_in_step`].
    bytes: u64,
    to: Sender<Vec<Item>>,
}

impl Feeder {
    /// Adds all copies of a block.
    pub fn add(&mut self, bp: &BlkPtr, bm: &Bookmark) {
        let copies = bp.dvas().count();
        if bp.is_gang() || copies < 2 {
            return self.push(Item { bp: *bp, bm: *bm, copy: ALL });
        }
        // each copy by itself, so that it is read where it lies in the order of the device
        for copy in 0..copies {
            self.push(Item { bp: *bp, bm: *bm, copy: copy as u8 });
        }
    }

    /// As [`Feeder::add`], with so little on its way at a time that it is read soon.
    pub fn add_in_step(&mut self, bp: &BlkPtr, bm: &Bookmark) {
        self.add(bp, bm);
        self.bytes += bp.dvas().map(|dva| dva.asize()).fold(0, u64::saturating_add);
        if self.bytes >= BATCH_BYTES {
            self.flush();
        }
    }

    fn push(&mut self, item: Item) {
        self.batch.push(item);
        if self.batch.len() == BATCH {
            self.flush();
        }
    }

    /// Hands on what was added.
    pub fn flush(&mut self) {
        self.bytes = 0;
        if self.batch.is_empty() {
            return;
        }
        let full = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
        // fails only if every checker has panicked, which the scope will tell
        let _ = self.to.send(full);
    }
}

/// Runs `produce`, and checks what it feeds on `threads` threads. `progress` is called from these with the bytes of each batch.
///
/// # Errors
/// Where not even one thread can be had.
pub fn check<T>(
    zio: &Zio,
    options: &CheckOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
    produce: impl FnOnce(&mut Feeder) -> T,
) -> Result<(T, Tally), Error> {
    let total = Mutex::new(Tally::default());
    let (to, from) = bounded::<Vec<Item>>(1);
    let result = thread::scope(|scope| {
        for n in 0..options.threads.max(1) {
            let from = from.clone();
            let work = || {
                let tally = checker(zio, &from, options, progress);
                drop(from);
                lock(&total).add(tally);
            };
            match thread::Builder::new().name("check".to_owned()).spawn_scoped(scope, work) {
                Ok(_) => {}
                Err(source) if n == 0 => return Err(Error::Thread { source }),
                // fewer do
                Err(_) => break,
            }
        }
        drop(from);
        let mut feeder = Feeder { batch: Vec::with_capacity(BATCH), bytes: 0, to };
        let result = produce(&mut feeder);
        feeder.flush();
        Ok(result)
    });
    let tally = std::mem::take(&mut *lock(&total));
    Ok((result?, tally))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn checker(
    zio: &Zio,
    from: &Receiver<Vec<Item>>,
    options: &CheckOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Tally {
    let source = AheadSource::default();
    // what is not right is looked at once more, and counts then
    let cx = ReadCx { source: &source, counts: false, class: options.class, ..ReadCx::SCRUB };
    let mut scratch = Scratch::default();
    let mut tally = Tally::default();
    let mut order: Vec<(u64, u32)> = Vec::new();
    for batch in from {
        order.clear();
        order.extend(batch.iter().enumerate().map(|(n, item)| (item.place(), n as u32)));
        order.sort_unstable();
        let items = order.iter().filter_map(|(_, n)| batch.get(*n as usize));
        source.plan(&zio.tree(), ReadMode::Scrub, options.class, items.filter_map(Item::planned));
        let before = (tally.bytes, tally.lost_blocks);
        let suspects = check_batch(zio, &batch, &order, (&cx, options), &mut scratch, &mut tally);
        source.finish();
        look_again(zio, suspects, options, &mut scratch, &mut tally);
        progress(tally.bytes - before.0, tally.lost_blocks - before.1);
    }
    tally
}

impl Item {
    /// Orders by vdev, then by offset.
    fn place(&self) -> u64 {
        let dva = self.bp.dva(if self.copy == ALL { 0 } else { self.copy.into() });
        (dva.vdev() << 48) | ((dva.offset() >> 9) & 0xffff_ffff_ffff)
    }

    /// Its place, if one is known before it is read: gang blocks lead to others.
    fn planned(&self) -> Option<Planned> {
        let dva = self.bp.dva(if self.copy == ALL { 0 } else { self.copy.into() });
        let is_plain = !self.bp.is_gang() && !self.bp.is_embedded() && !self.bp.is_hole();
        is_plain.then(|| (dva, self.bp.psize(), self.bp.birth_physical()))
    }

    /// The pointer with only the copy that is to be read.
    fn pointer(&self) -> BlkPtr {
        let mut bp = self.bp;
        if self.copy != ALL {
            let dva = bp.dva(self.copy.into());
            (bp.words[0], bp.words[1]) = (dva.word0, dva.word1);
            // in place of the third address an encrypted block has salt and IV
            let end = if bp.is_encrypted() { 4 } else { 6 };
            bp.words.iter_mut().take(end).skip(2).for_each(|w| *w = 0);
        }
        bp
    }
}

impl CheckOptions {
    /// The function that checks a block.
    fn verify(
        &self,
    ) -> impl Fn(&Zio, &BlkPtr, &Bookmark, &ReadCx<'_>, &mut Scratch) -> Result<VerifyReport, zio::Error> {
        if self.expand { Zio::verify_block } else { Zio::verify_sums }
    }
}

/// Checks the copies of a batch in order; returns what is not right.
fn check_batch<'a>(
    zio: &Zio,
    batch: &'a [Item],
    order: &[(u64, u32)],
    (cx, options): (&ReadCx<'_>, &CheckOptions),
    scratch: &mut Scratch,
    tally: &mut Tally,
) -> Vec<&'a Item> {
    let verify = options.verify();
    let mut suspects = Vec::new();
    for (_, n) in order {
        let Some(item) = batch.get(*n as usize) else { continue };
        match verify(zio, &item.pointer(), &item.bm, cx, scratch) {
            Ok(report) if report.is_clean() => tally.good(&report),
            _ => suspects.push(item),
        }
    }
    suspects
}

/// Looks once more at blocks that are not right, each as a whole, with all its copies.
fn look_again(zio: &Zio, mut suspects: Vec<&Item>, options: &CheckOptions, scratch: &mut Scratch, tally: &mut Tally) {
    let verify = options.verify();
    suspects.sort_by_key(|item| item.bp.words);
    suspects.dedup_by_key(|item| item.bp.words);
    for item in suspects {
        match verify(
            zio,
            &item.bp,
            &item.bm,
            &ReadCx { heal: options.heal, class: options.class, ..ReadCx::SCRUB },
            scratch,
        ) {
            Ok(report) => tally.repairable(&report),
            Err(why) => tally.lost(Damage {
                bm: item.bm,
                birth: item.bp.birth_physical(),
                why: why.to_string(),
                below: None,
                errno: why.errno(),
            }),
        }
    }
}
