//! The queue from the reading thread to the writing one: batches of records, bounded by bytes.

use std::collections::VecDeque;

use ondisk::send::Record;
use parking_lot::{Condvar, Mutex};
use zio::Buf;

use super::Error;

/// A record with its payload.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) record: Record,
    pub(super) payload: Buf,
    /// The offset of the record in the stream.
    pub(super) offset: u64,
    /// Number of stream bytes up to its end.
    pub(super) end: u64,
}

/// Records that share a transaction.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) items: Vec<Item>,
    /// Approximate bytes that it will dirty.
    pub(super) dirties: u64,
    /// Bytes that it occupies in memory.
    pub(super) memory: u64,
}

/// The end of the sequence of batches: the proof that END was reached, or the error.
pub(super) type Ending = Result<Whole, Error>;

/// Proof that the stream's END was read and that its checksum is right. No receive is finished without one.
#[derive(Debug)]
pub(super) struct Whole(());

impl Whole {
    /// Creates the proof. Called only by the code that has read END.
    pub(super) fn at_end() -> Whole {
        Whole(())
    }
}

/// The share of the limit from which the other side, waiting for batches or for room, is woken (OpenZFS: `zfs_recv_queue_ff`):
/// waking a thread for each batch costs as much as the batch.
const WAKE_SHARE: u64 = 20;

#[derive(Default)]
struct State {
    batches: VecDeque<Batch>,
    memory: u64,
    ending: Option<Ending>,
    /// True when the writer has stopped.
    closed: bool,
}

/// A queue between one reading and one writing thread.
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    limit: u64,
}

impl Queue {
    pub(super) fn new(limit: u64) -> Queue {
        Queue { state: Mutex::default(), changed: Condvar::new(), limit }
    }

    /// Adds a batch, after waiting for room; an empty queue has room for one batch of any size. Returns `false` if the writer has
    /// stopped.
    pub(super) fn put(&self, batch: Batch) -> bool {
        let mut state = self.state.lock();
        while !state.closed && state.memory > 0 && state.memory.saturating_add(batch.memory) > self.limit {
            // otherwise both would wait
            self.changed.notify_all();
            self.changed.wait(&mut state);
        }
        if state.closed {
            return false;
        }
        state.memory = state.memory.saturating_add(batch.memory);
        state.batches.push_back(batch);
        if state.memory >= self.limit / WAKE_SHARE {
            self.changed.notify_all();
        }
        true
    }

    /// Sets the end. Only the first call counts.
    pub(super) fn end(&self, ending: Ending) {
        self.state.lock().ending.get_or_insert(ending);
        self.changed.notify_all();
    }

    /// Returns the next batch, or the end.
    pub(super) fn take(&self) -> Result<Batch, Ending> {
        let mut state = self.state.lock();
        loop {
            if let Some(batch) = state.batches.pop_front() {
                assert!(
                    state.memory >= batch.memory,
                    "a batch of {} bytes in a queue of {}",
                    batch.memory,
                    state.memory
                );
                state.memory -= batch.memory;
                if state.memory <= self.limit - self.limit / WAKE_SHARE {
                    self.changed.notify_all();
                }
                return Ok(batch);
            }
            if let Some(ending) = state.ending.take() {
                return Err(ending);
            }
            if state.closed {
                return Err(Err(Error::Stopped));
            }
            self.changed.wait(&mut state);
        }
    }

    fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.batches.clear();
        self.changed.notify_all();
    }
}

/// Ends the queue for its writer on drop, however the reader ends.
pub(super) struct Reading<'a>(pub(super) &'a Queue);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.end(Err(Error::Stopped));
    }
}

/// Closes the queue for its reader on drop, however the writer ends.
pub(super) struct Writing<'a>(pub(super) &'a Queue);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::{Batch, Queue, Reading, Whole, Writing};

    #[test]
    fn what_waits_is_bounded_and_one_batch_of_any_size_goes_through() {
        const LIMIT: u64 = 100;
        let queue = Queue::new(LIMIT);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _end = Reading(&queue);
                for n in 0..200u64 {
                    let memory = if n % 50 == 7 { 10 * LIMIT } else { 30 + n % 40 };
                    assert!(queue.put(Batch { memory, dirties: n, ..Batch::default() }));
                }
                queue.end(Ok(Whole::at_end()));
            });
            let mut next = 0;
            while let Ok(batch) = queue.take() {
                let state = queue.state.lock();
                let waiting: u64 = state.batches.iter().map(|batch| batch.memory).sum();
                assert_eq!(waiting, state.memory);
                assert!(waiting <= LIMIT || state.batches.len() == 1, "{waiting}");
                assert_eq!(batch.dirties, next);
                next += 1;
            }
            assert_eq!(next, 200);
        });
    }

    #[test]
    fn who_reads_stops_when_nobody_writes_any_more() {
        let queue = Queue::new(1);
        drop(Writing(&queue));
        assert!(!queue.put(Batch::default()));
        // an error that came first is not hidden by a later success
        queue.end(Err(super::Error::Stopped));
        queue.end(Ok(Whole::at_end()));
        assert!(matches!(queue.take(), Err(Err(_))));
    }
}
