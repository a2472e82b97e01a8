//! Read-ahead (OpenZFS: `dmu_zfetch.c`).
//!
//! For each file some *streams* are kept: the position where a reader is expected next, and the distance between its reads. After
//! an expected read, the following data is fetched into the ARC by a few threads, the further ahead the longer the stream has
//! lasted: the distance doubles up to [`ZFETCH_MIN_DISTANCE`](base::tunable::ZFETCH_MIN_DISTANCE), then grows by the bytes read,
//! up to the maximum. An unexpected read starts a stream in place of the oldest.
//!
//! Data is fetched in *pieces*, a block or 128 KiB. A reader that reaches a piece that no thread has started takes it over, and
//! waits for one that is being fetched: no block is read twice. Errors are ignored here, for the reader will meet them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use base::tunable;
use dmu::Object;
use parking_lot::{Condvar, Mutex};

use super::readers::Reader;
use super::{Zfs, Znode};

/// Bytes of a piece, if blocks are not larger.
const PIECE: u64 = 128 << 10;
/// Threads that fetch: they decompress, too.
const WORKERS: usize = 2;
/// Bytes of pieces that a thread takes at a time: their reads are under way together.
const TAKE: u64 = 4 << 20;
/// Maximum number of waiting pieces; more are not fetched.
const QUEUE_MAX: usize = 2048;
/// Reads of a strided stream that are fetched ahead of it.
const STRIDES_AHEAD: u64 = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    Done,
    /// Taken over by a reader.
    Taken,
}

/// A range of blocks of a file that is fetched.
struct Piece {
    blocks: Range<u64>,
    stage: Mutex<Stage>,
    done: Condvar,
}

impl Piece {
    fn begin(&self, as_what: Stage) -> bool {
        let mut stage = self.stage.lock();
        let free = *stage == Stage::Waiting;
        if free {
            *stage = as_what;
        }
        free
    }

    fn finish(&self) {
        *self.stage.lock() = Stage::Done;
        self.done.notify_all();
    }

    /// Waits for the piece if a thread has started it, or takes it over if not.
    fn claim(&self) {
        let mut stage = self.stage.lock();
        if *stage == Stage::Waiting {
            *stage = Stage::Taken;
        }
        while *stage == Stage::Running {
            self.done.wait(&mut stage);
        }
    }
}

/// A reader, in blocks.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The start of its last read.
    last: u64,
    /// The expected start of its next read, if it continues without a gap.
    next: u64,
    /// The distance between the starts of two reads; 0 if it varies, or is not known.
    stride: u64,
    /// The end of the blocks that are fetched.
    ahead: u64,
    /// The read-ahead distance in bytes.
    distance: u64,
    /// Counts reads of the file, to find the oldest stream.
    used: u64,
}

/// The streams of one file.
#[derive(Default)]
pub(super) struct Streams {
    all: Vec<Stream>,
    reads: u64,
    /// The last read continued a stream.
    continued: bool,
    pieces: VecDeque<Arc<Piece>>,
    /// The maximum read-ahead distance in bytes, if it is less than the usual one.
    most: Option<u64>,
}

impl Streams {
    /// Records a read of `blocks`; returns the ranges to fetch in a file of `end` blocks of `size` bytes.
    fn note(&mut self, blocks: Range<u64>, size: u64, end: u64) -> Vec<Range<u64>> {
        self.reads += 1;
        self.continued = true;
        let reads = self.reads;
        let len = (blocks.end - blocks.start).max(1);
        let expected = |s: &&mut Stream| s.next == blocks.start || (s.last <= blocks.start && blocks.start < s.next);
        if let Some(stream) = self.all.iter_mut().find(expected) {
            stream.used = reads;
            if blocks.end <= stream.next {
                return Vec::new();
            }
            (stream.last, stream.next, stream.stride) = (blocks.start, blocks.end, 0);
            let min = tunable::ZFETCH_MIN_DISTANCE.get();
            let bytes = len.saturating_mul(size);
            let more =
                if stream.distance < min { (stream.distance * 2).max(bytes).min(min) } else { stream.distance + bytes };
            stream.distance = more.min(tunable::ZFETCH_MAX_DISTANCE.get()).min(self.most.unwrap_or(u64::MAX));
            let from = stream.ahead.max(blocks.end);
            let to = blocks.end.saturating_add(stream.distance.div_ceil(size)).min(end);
            stream.ahead = stream.ahead.max(to);
            return (from < to).then_some(from..to).into_iter().collect();
        }
        let strided = |s: &&mut Stream| s.stride != 0 && s.last.checked_add(s.stride) == Some(blocks.start);
        if let Some(stream) = self.all.iter_mut().find(strided) {
            let stride = stream.stride;
            let again = stream.distance > 0;
            (stream.last, stream.next, stream.used, stream.distance) = (blocks.start, blocks.end, reads, 1);
            let nth = |n: u64| blocks.start.saturating_add(stride.saturating_mul(n));
            let first = if again { STRIDES_AHEAD } else { 1 };
            let reads = (first..=STRIDES_AHEAD).map(|n| nth(n)..nth(n).saturating_add(len));
            return reads.filter(|read| read.end <= end).collect();
        }
        self.continued = false;
        self.begin(blocks, len);
        Vec::new()
    }

    /// Starts a stream, or takes a read as the second one of a strided stream.
    fn begin(&mut self, blocks: Range<u64>, len: u64) {
        // a gap of a few reads' length may be a stride
        let near = |s: &&mut Stream| s.next < blocks.start && blocks.start - s.last <= len.saturating_mul(64);
        if let Some(stream) = self.all.iter_mut().find(near) {
            let stride = blocks.start - stream.last;
            *stream = Stream {
                last: blocks.start,
                next: blocks.end,
                stride,
                ahead: blocks.end,
                distance: 0,
                used: self.reads,
            };
            return;
        }
        let new =
            Stream { last: blocks.start, next: blocks.end, used: self.reads, ahead: blocks.end, ..Stream::default() };
        let most = usize::try_from(tunable::ZFETCH_MAX_STREAMS.get()).unwrap_or(1).max(1);
        if self.all.len() < most {
            self.all.push(new);
        } else if let Some(oldest) = self.all.iter_mut().min_by_key(|stream| stream.used) {
            *oldest = new;
        }
    }

    /// Returns the pieces that hold these blocks, and drops the completed pieces before them.
    fn pieces_of(&mut self, blocks: &Range<u64>) -> Vec<Arc<Piece>> {
        if self.pieces.is_empty() {
            return Vec::new();
        }
        let mut found = Vec::new();
        self.pieces.retain(|piece| {
            let hit = piece.blocks.start < blocks.end && blocks.start < piece.blocks.end;
            if hit {
                found.push(piece.clone());
            }
            let passed = piece.blocks.end <= blocks.end;
            !(passed && (hit || *piece.stage.lock() != Stage::Running))
        });
        found
    }
}

struct Queue {
    pieces: VecDeque<(Object, Arc<Piece>)>,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

/// The threads that fetch for a file system; started with the first read that is worth it.
pub(super) struct Fetcher {
    shared: Arc<Shared>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl Default for Fetcher {
    fn default() -> Fetcher {
        let queue = Mutex::new(Queue { pieces: VecDeque::new(), closed: false });
        Fetcher { shared: Arc::new(Shared { queue, work: Condvar::new() }), workers: Mutex::default() }
    }
}

impl Fetcher {
    fn fetch(&self, object: &Object, pieces: &[Arc<Piece>]) {
        {
            let mut workers = self.workers.lock();
            while workers.len() < WORKERS {
                let shared = self.shared.clone();
                // without a thread there is no read-ahead, and readers read for themselves
                let Ok(worker) = thread::Builder::new().name("zpl-ahead".into()).spawn(move || work(&shared)) else {
                    return;
                };
                workers.push(worker);
            }
        }
        let mut queue = self.shared.queue.lock();
        for piece in pieces {
            if queue.pieces.len() >= QUEUE_MAX {
                piece.begin(Stage::Taken);
            } else {
                queue.pieces.push_back((object.clone(), piece.clone()));
            }
        }
        drop(queue);
        self.shared.work.notify_all();
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        {
            let mut queue = self.shared.queue.lock();
            queue.closed = true;
            queue.pieces.clear();
        }
        self.shared.work.notify_all();
        for worker in self.workers.get_mut().drain(..) {
            // a panic in a worker has been printed
            let _ = worker.join();
        }
    }
}

/// Takes pieces of one object from the front of the queue, as many as are read together; none when it is closed.
fn take(shared: &Shared) -> Option<(Object, Vec<Arc<Piece>>)> {
    let mut queue = shared.queue.lock();
    loop {
        if queue.closed {
            return None;
        }
        if let Some((object, first)) = queue.pieces.pop_front() {
            let size = object.block_size().max(1);
            let mut left = (TAKE / size).saturating_sub(first.blocks.end - first.blocks.start);
            let mut pieces = vec![first];
            while let Some((other, piece)) = queue.pieces.front()
                && other.id() == object.id()
                && Arc::ptr_eq(other.objset(), object.objset())
                && piece.blocks.end - piece.blocks.start <= left
            {
                left -= piece.blocks.end - piece.blocks.start;
                pieces.extend(queue.pieces.pop_front().map(|(_, piece)| piece));
            }
            return Some((object, pieces));
        }
        shared.work.wait(&mut queue);
    }
}

fn work(shared: &Shared) {
    while let Some((object, mut pieces)) = take(shared) {
        pieces.retain(|piece| piece.begin(Stage::Running));
        let blocks: Vec<u64> = pieces.iter().flat_map(|piece| piece.blocks.clone()).collect();
        let mut done = |blkid: u64| {
            // its last block ends a piece; what is left is ended below
            pieces.iter().filter(|piece| piece.blocks.end == blkid + 1).for_each(|piece| piece.finish());
        };
        object.cursor().prefetch(blocks, &mut done);
        pieces.iter().for_each(|piece| piece.finish());
    }
}

impl Zfs {
    /// Records a read, starts fetching the data expected next, and waits for the parts of this read that are being fetched. What is cached already, as
    /// `reader` knows, is no work for a thread.
    pub(super) fn read_ahead(&self, reader: &mut Reader, node: &Znode, offset: u64, len: u64, file_size: u64) {
        let size = node.object().block_size();
        if file_size <= size || size == 0 || tunable::ZFS_PREFETCH_DISABLE.get() != 0 {
            return;
        }
        let blocks = offset / size..offset.saturating_add(len).div_ceil(size);
        let (held, pieces, continued) = {
            let mut streams = node.streams.lock();
            let held = streams.pieces_of(&blocks);
            streams.most = node.object().objset().ahead_limit();
            let wanted = streams.note(blocks, size, file_size.div_ceil(size));
            let mut pieces = cut(wanted, size);
            pieces.retain(|piece| !reader.cursor.are_cached(piece.blocks.clone()));
            streams.pieces.extend(pieces.iter().cloned());
            (held, pieces, streams.continued)
        };
        self.0.stats.streamed(continued);
        if !pieces.is_empty() {
            self.0.fetcher.fetch(node.object(), &pieces);
        }
        held.iter().for_each(|piece| piece.claim());
    }
}

/// Cuts ranges of blocks into pieces.
fn cut(ranges: Vec<Range<u64>>, size: u64) -> Vec<Arc<Piece>> {
    let step = (PIECE / size).max(1);
    let mut pieces = Vec::new();
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let end = at.saturating_add(step).min(range.end);
            pieces.push(Arc::new(Piece { blocks: at..end, stage: Mutex::new(Stage::Waiting), done: Condvar::new() }));
            at = end;
        }
    }
    pieces
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    const BLOCK: u64 = 128 << 10;

    #[test]
    fn a_sequential_reader_is_read_ahead_of_without_repeats() {
        let mut streams = Streams::default();
        let (mut fetched, end) = (0..0, 10_000);
        assert!(streams.note(0..1, BLOCK, end).is_empty());
        assert!(!streams.continued);
        for at in 1..2000 {
            let wanted = streams.note(at..at + 1, BLOCK, end);
            assert!(streams.continued);
            for range in wanted {
                assert!(fetched.is_empty() || range.start == fetched.end, "{range:?} after {fetched:?}");
                fetched = range;
            }
            assert!(fetched.end > at + 1);
        }
        assert_eq!(fetched.end, 2000 + (64 << 20) / BLOCK);
    }

    #[test]
    fn a_file_ends_and_so_does_reading_ahead() {
        let mut streams = Streams::default();
        streams.note(0..4, BLOCK, 10);
        assert_eq!(streams.note(4..8, BLOCK, 10), [8..10]);
        assert!(streams.note(8..10, BLOCK, 10).is_empty());
    }

    #[test]
    fn a_strided_reader_is_read_ahead_of_where_it_reads() {
        let mut streams = Streams::default();
        for n in 0..2 {
            assert!(streams.note(n * 10..n * 10 + 2, BLOCK, 1000).is_empty());
        }
        assert_eq!(streams.note(20..22, BLOCK, 1000), [30..32, 40..42, 50..52, 60..62]);
        assert_eq!(streams.note(30..32, BLOCK, 1000), [70..72]);
    }

    #[test]
    fn random_reads_fetch_nothing() {
        let mut streams = Streams::default();
        let mut at = 1u64;
        for _ in 0..1000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = at >> 20;
            assert!(streams.note(block..block + 1, BLOCK, u64::MAX).is_empty());
        }
        assert_eq!(streams.all.len(), 8);
    }

    #[test]
    fn several_readers_are_told_apart() {
        let mut streams = Streams::default();
        for at in 0..20 {
            for start in [0, 1000, 2000] {
                let wanted = streams.note(start + at..start + at + 1, BLOCK, 10_000);
                assert!(wanted.iter().all(|range| range.start > start && range.end < start + 1000));
            }
        }
        assert_eq!(streams.all.len(), 3);
    }
}
