//! Streaming a file with read-ahead.
//!
//! Two workers take runs of blocks in turn, read and decompress them past the cache, and put them in a window; the consumer takes
//! them out in order. The window bounds memory: [`WINDOW`] runs of about [`RUN_BYTES`]. Blocks are passed on in the buffers that
//! they were read into. Holes are not passed on: a run begins at data, and a gap between runs is a hole, so a sparse file costs
//! as much as its data. A small file is read without workers.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use dmu::{BlockCursor, Object};
use parking_lot::{Condvar, Mutex};
use zio::Buf;

use crate::Error;

/// Bytes of one run; at least one block.
const RUN_BYTES: u64 = 1 << 20;
/// Runs read ahead of the consumer, not counting the one that it holds.
const WINDOW: u64 = 6;
const WORKERS: usize = 2;
/// The size up to which workers gain nothing.
const SMALL: u64 = 512 << 10;

/// A range of a file.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Its offset in the file, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The block that holds it and the offset in the block; `None` for a hole.
    data: Option<(Buf, usize)>,
}

impl Piece {
    /// Returns the bytes; `None` for a hole, which reads as zeros.
    #[must_use]
    pub fn data(&self) -> Option<&[u8]> {
        let (buf, start) = self.data.as_ref()?;
        let part = buf.get(*start..).and_then(|tail| tail.get(..usize::try_from(self.len).ok()?));
        Some(part.expect("a piece lies within its block"))
    }
}

/// The result of reading `blocks` blocks from `first` on.
struct Item {
    first: u64,
    blocks: u64,
    data: Result<Buf, Error>,
}

/// The position of the next run. The worker that holds the lock reads indirect blocks to find it: runs are handed out in order.
struct Plan {
    cursor: BlockCursor,
    next: u64,
    end: u64,
    run_blocks: u64,
    /// Number of blocks below one indirect block: a run stays below one, so that its loss is reported once.
    siblings: u64,
    seq: u64,
}

/// A run to be read; with an error if the addresses of its blocks could not be read.
struct Run {
    seq: u64,
    blocks: Range<u64>,
    damage: Option<Error>,
}

impl Plan {
    fn claim(&mut self) -> Option<Run> {
        if self.next >= self.end {
            return None;
        }
        let (first, last, damage) = match self.cursor.next_block(self.next) {
            Ok(None) => (self.end, self.end, None),
            Ok(Some(first)) => {
                let stranger = (first / self.siblings).saturating_add(1).saturating_mul(self.siblings);
                (first, first.saturating_add(self.run_blocks).min(stranger), None)
            }
            Err(e) => {
                let lost = self.cursor.damaged();
                let first = lost.start.max(self.next);
                (first, lost.end.max(first.saturating_add(1)), Some(e.into()))
            }
        };
        let last = last.min(self.end);
        self.next = last;
        if first >= self.end {
            return None;
        }
        self.seq += 1;
        Some(Run { seq: self.seq - 1, blocks: first..last, damage })
    }
}

/// Reads the data blocks of a run, skipping holes.
fn read_run(object: &Object, run: Run) -> VecDeque<Item> {
    let Range { start, end } = run.blocks;
    if let Some(e) = run.damage {
        return VecDeque::from([Item { first: start, blocks: end - start, data: Err(e) }]);
    }
    let mut items = Vec::new();
    object.cursor().blocks_uncached(start..end, &mut |first, block| {
        items.push(Item { first, blocks: 1, data: block.map_err(Error::from) });
    });
    // those that cannot be read came first
    items.sort_by_key(|item| item.first);
    items.into()
}

/// The state shared by workers and consumer.
struct Shared {
    plan: Mutex<Plan>,
    state: Mutex<State>,
    /// Notified when a run is ready or a worker has ended.
    ready: Condvar,
    /// Notified when the window has room or the consumer has ended.
    room: Condvar,
}

#[derive(Default)]
struct State {
    done: BTreeMap<u64, VecDeque<Item>>,
    /// Number of runs that workers started, and that the consumer took.
    begun: u64,
    taken: u64,
    working: usize,
    closed: bool,
}

/// Counts a running worker; released even if it panics, so that the consumer does not wait for it.
struct RunningWorker(Arc<Shared>);

impl Drop for RunningWorker {
    fn drop(&mut self) {
        self.0.state.lock().working -= 1;
        self.0.ready.notify_all();
    }
}

fn work(shared: Arc<Shared>, object: Object) {
    let place = RunningWorker(shared);
    let shared = &place.0;
    loop {
        let mut state = shared.state.lock();
        while !state.closed && state.begun - state.taken >= WINDOW {
            shared.room.wait(&mut state);
        }
        if state.closed {
            return;
        }
        state.begun += 1;
        drop(state);
        // the lock is held while indirect blocks are read: runs are in order, and the other worker could only wait for the same
        // blocks
        let Some(run) = shared.plan.lock().claim() else { return };
        let seq = run.seq;
        let items = read_run(&object, run);
        shared.state.lock().done.insert(seq, items);
        shared.ready.notify_all();
    }
}

/// A sequential reader of a part of a file: returns [`Piece`]s, or acts as an [`io::Read`].
pub struct Reader {
    object: Object,
    range: Range<u64>,
    block_size: u64,
    /// The consumer's position.
    at: u64,
    items: VecDeque<Item>,
    next_run: u64,
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    started: bool,
    /// The rest of the current piece of [`io::Read`].
    current: Option<Piece>,
    failed: bool,
}

impl Reader {
    pub(crate) fn new(object: Object, range: Range<u64>) -> Reader {
        let block_size = object.block_size().max(512);
        let end = if range.is_empty() { 0 } else { (range.end - 1) / block_size + 1 };
        let run_blocks = (RUN_BYTES / block_size).max(1);
        let siblings = 1u64.checked_shl(object.phys().fanout_shift()).unwrap_or(u64::MAX);
        let next = range.start / block_size;
        let plan = Plan { cursor: object.cursor(), next, end, run_blocks, siblings, seq: 0 };
        let shared =
            Shared { plan: Mutex::new(plan), state: Mutex::default(), ready: Condvar::new(), room: Condvar::new() };
        Reader {
            object,
            at: range.start,
            range,
            block_size,
            items: VecDeque::new(),
            next_run: 0,
            shared: Arc::new(shared),
            workers: Vec::new(),
            started: false,
            current: None,
            failed: false,
        }
    }

    /// Returns the next range; `None` at the end. Ranges are in order and without gaps, except for unreadable ones.
    ///
    /// # Errors
    /// If blocks cannot be read: their range is skipped, and the next call continues after it.
    pub fn next_piece(&mut self) -> Result<Option<Piece>, Error> {
        if self.at >= self.range.end {
            return Ok(None);
        }
        while self.items.is_empty() {
            match self.next_items() {
                Some(items) => self.items = items,
                None => break,
            }
        }
        let size = self.block_size;
        let start = self.items.front().map_or(self.range.end, |item| item.first.saturating_mul(size));
        if start > self.at {
            let end = start.min(self.range.end);
            let hole = Piece { offset: self.at, len: end - self.at, data: None };
            self.at = end;
            return Ok(Some(hole));
        }
        let Some(item) = self.items.pop_front() else { return Ok(None) };
        let end = item.first.saturating_add(item.blocks).saturating_mul(size).min(self.range.end);
        let (offset, skip) = (self.at, self.at - start);
        self.at = end.max(offset);
        let (buf, len) = (item.data?, self.at - offset);
        if (buf.len() as u64) < skip + len {
            return Err(Error::corrupt(self.object.id(), "length of a block", buf.len() as u64));
        }
        Ok(Some(Piece { offset, len, data: Some((buf, skip as usize)) }))
    }

    /// Returns the items of the next run; `None` when there is no more data.
    fn next_items(&mut self) -> Option<VecDeque<Item>> {
        if !self.started && self.range.end - self.range.start > SMALL {
            self.start();
        }
        self.started = true;
        if self.workers.is_empty() {
            let run = self.shared.plan.lock().claim()?;
            return Some(read_run(&self.object, run));
        }
        let mut state = self.shared.state.lock();
        loop {
            if let Some(items) = state.done.remove(&self.next_run) {
                state.taken += 1;
                self.next_run += 1;
                self.shared.room.notify_all();
                return Some(items);
            }
            if state.working == 0 {
                break;
            }
            self.shared.ready.wait(&mut state);
        }
        drop(state);
        // all workers have ended: at the end of the file, or by a panic, which must not pass for the end
        for worker in self.workers.drain(..) {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
        None
    }

    /// Starts the workers; if no thread can be created, the consumer reads by itself.
    fn start(&mut self) {
        for _ in 0..WORKERS {
            let (shared, object) = (Arc::clone(&self.shared), self.object.clone());
            self.shared.state.lock().working += 1;
            match thread::Builder::new().name("zpl-read".into()).spawn(move || work(shared, object)) {
                Ok(worker) => self.workers.push(worker),
                Err(_) => self.shared.state.lock().working -= 1,
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.room.notify_all();
        for worker in self.workers.drain(..) {
            // a panic in a worker has been printed, and its data is no longer needed
            let _ = worker.join();
        }
    }
}

impl io::Read for Reader {
    /// Reads the next bytes; holes as zeros. An error is sticky: unreadable data is never silently skipped.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.failed {
            return Err(io::Error::other("an earlier part of the file could not be read"));
        }
        if buf.is_empty() {
            return Ok(0);
        }
        if self.current.is_none() {
            self.current = self.next_piece().map_err(|e| {
                self.failed = true;
                io::Error::other(e)
            })?;
        }
        let Some(piece) = &mut self.current else { return Ok(0) };
        let len = usize::try_from(piece.len).unwrap_or(usize::MAX).min(buf.len());
        let (out, _) = buf.split_at_mut(len);
        match piece.data() {
            None => out.fill(0),
            Some(data) => out.copy_from_slice(data.split_at(len).0),
        }
        piece.offset += len as u64;
        piece.len -= len as u64;
        if let Some((_, start)) = &mut piece.data {
            *start += len;
        }
        if piece.len == 0 {
            self.current = None;
        }
        Ok(len)
    }
}
