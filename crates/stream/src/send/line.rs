//! The pipeline of chunks: one thread lays them out, several fill them, one writes them in the order in which they were laid out.
//!
//! The stages share one lock and three condition variables, one for each kind of waiting. The lock is taken a few times per
//! megabyte, and a thread that has to wait sleeps at once instead of spinning first.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

use super::Error;
use super::chunk::Chunk;

/// A chunk that is not yet written.
enum Slot {
    Waiting(Chunk),
    /// A worker has it.
    Taken,
    Filled(Result<Chunk, Error>),
}

#[derive(Default)]
struct State {
    /// The chunks in the order of the stream.
    slots: VecDeque<Slot>,
    /// The number of the first slot.
    first: u64,
    /// The number of the first slot that no worker has taken.
    waiting: u64,
    /// Written chunks, for reuse.
    spare: Vec<Chunk>,
    /// Bytes of memory of all chunks that are laid out and not yet written.
    held: u64,
    /// True when no more chunks will be added.
    ended: bool,
    /// True when the writer has stopped.
    closed: bool,
}

impl State {
    /// Returns the position of a chunk among those that are not written.
    fn place_of(&self, number: u64) -> usize {
        assert!(number >= self.first, "chunk {number} is written, and {} is the next", self.first);
        (number - self.first) as usize
    }
}

/// The pipeline; see the module documentation. It holds at most `limit` bytes, or one chunk.
pub(super) struct Line {
    state: Mutex<State>,
    room: Condvar,
    work: Condvar,
    filled: Condvar,
    limit: u64,
}

impl Line {
    pub(super) fn new(limit: u64) -> Line {
        let (room, work, filled) = Default::default();
        Line { state: Mutex::default(), room, work, filled, limit }
    }

    /// Adds a chunk once there is room for it, and returns an empty one; `None` if the writer has stopped.
    pub(super) fn put(&self, chunk: Chunk) -> Option<Chunk> {
        let bytes = chunk.memory();
        let mut state = self.state.lock();
        while !state.closed && state.held > 0 && state.held.saturating_add(bytes) > self.limit {
            self.room.wait(&mut state);
        }
        if state.closed {
            return None;
        }
        state.held = state.held.saturating_add(bytes);
        state.slots.push_back(Slot::Waiting(chunk));
        let spare = state.spare.pop();
        drop(state);
        self.work.notify_one();
        let mut spare = spare.unwrap_or_default();
        spare.clear();
        Some(spare)
    }

    /// Returns a chunk to be filled; `None` if there is nothing more to do.
    pub(super) fn take(&self) -> Option<Taken<'_>> {
        let mut state = self.state.lock();
        loop {
            if let Some(taken) = self.take_of(&mut state) {
                return Some(taken);
            }
            if state.ended || state.closed {
                return None;
            }
            self.work.wait(&mut state);
        }
    }

    /// As [`Line::take`], if there is one now.
    pub(super) fn try_take(&self) -> Option<Taken<'_>> {
        self.take_of(&mut self.state.lock())
    }

    fn take_of(&self, state: &mut State) -> Option<Taken<'_>> {
        let number = state.waiting;
        let at = state.place_of(number);
        let slot = state.slots.get_mut(at).filter(|_| !state.closed)?;
        let Slot::Waiting(chunk) = std::mem::replace(slot, Slot::Taken) else {
            panic!("chunk {number} was taken before those in front of it");
        };
        state.waiting += 1;
        Some(Taken { line: self, number, chunk: Some(chunk), filled: Err(Error::Stopped) })
    }

    fn give_back(&self, number: u64, filled: Result<Chunk, Error>) {
        let mut state = self.state.lock();
        let at = state.place_of(number);
        // the writer waits for it
        *state.slots.get_mut(at).expect("a chunk that a worker has is in the line") = Slot::Filled(filled);
        drop(state);
        if at == 0 {
            self.filled.notify_one();
        }
    }

    /// Returns the next chunk to be written; `None` at the end.
    pub(super) fn next(&self) -> Option<Result<Chunk, Error>> {
        let mut state = self.state.lock();
        loop {
            match state.slots.pop_front() {
                Some(Slot::Filled(filled)) => {
                    state.first += 1;
                    return Some(filled);
                }
                Some(slot) => state.slots.push_front(slot),
                None if state.ended => return None,
                None => {}
            }
            self.filled.wait(&mut state);
        }
    }

    /// Takes back a chunk that was written.
    pub(super) fn written(&self, chunk: Chunk) {
        let mut state = self.state.lock();
        let bytes = chunk.memory();
        assert!(state.held >= bytes, "a chunk of {bytes} bytes in a line of {}", state.held);
        state.held -= bytes;
        state.spare.push(chunk);
        drop(state);
        self.room.notify_one();
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        for condition in [&self.room, &self.work, &self.filled] {
            condition.notify_all();
        }
    }
}

/// A chunk that a worker has taken. If it is dropped without being filled, the send stops.
pub(super) struct Taken<'a> {
    line: &'a Line,
    number: u64,
    chunk: Option<Chunk>,
    filled: Result<Chunk, Error>,
}

impl Taken<'_> {
    /// Prepares it with `begin`.
    pub(super) fn begin(&mut self, begin: impl FnMut(&mut Chunk)) {
        self.chunk.as_mut().into_iter().for_each(begin);
    }

    /// Fills it with `fill` and returns it to the pipeline.
    pub(super) fn fill(mut self, fill: impl FnOnce(&mut Chunk) -> Result<(), Error>) {
        if let Some(mut chunk) = self.chunk.take() {
            self.filled = fill(&mut chunk).map(|()| chunk);
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.line.give_back(self.number, std::mem::replace(&mut self.filled, Err(Error::Stopped)));
    }
}

/// Marks on drop, however the traversal ends, that no more chunks will be added.
pub(super) struct LaysOut<'a>(pub(super) &'a Line);

impl Drop for LaysOut<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.ended = true);
    }
}

/// Marks on drop, however the writer ends, that nothing is written any more.
pub(super) struct Writes<'a>(pub(super) &'a Line);

impl Drop for Writes<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.closed = true);
    }
}

#[cfg(test)]
mod tests {
    use ondisk::send::RECORD_SIZE;

    use super::super::chunk::CHUNK;
    use super::*;

    /// Returns a chunk of one record whose payload is `len` times `byte`.
    fn chunk(byte: u8, len: usize) -> Chunk {
        let mut chunk = Chunk::default();
        chunk.put(&[byte; RECORD_SIZE], &vec![byte; len], None, len);
        chunk
    }

    #[test]
    fn chunks_are_written_in_order_and_no_more_is_held_than_may_be() {
        let line = Line::new(3 * CHUNK as u64);
        let lens = [1000, 4 * CHUNK, 8, 16, 24, 32, 40, 2 * CHUNK, 48, 56];
        std::thread::scope(|scope| {
            for worker in 0..2 {
                let line = &line;
                scope.spawn(move || {
                    while let Some(taken) = line.take() {
                        // workers differ in speed
                        (0..worker * 1000).for_each(|_| std::hint::spin_loop());
                        taken.fill(|_| Ok(()));
                    }
                });
            }
            scope.spawn(|| {
                let _ends = LaysOut(&line);
                for (n, len) in (0..).zip(lens) {
                    assert!(line.put(chunk(n, len)).is_some_and(|chunk| chunk.is_empty()));
                }
            });
            let _writes = Writes(&line);
            for len in lens {
                // a chunk larger than the limit is held alone
                let state = line.state.lock();
                assert!(state.held <= 3 * CHUNK as u64 || state.slots.len() == 1, "{}", state.held);
                drop(state);
                let chunk = line.next().map(|chunk| chunk.map_err(|_| ()));
                let Some(Ok(chunk)) = chunk else { panic!("a chunk") };
                assert_eq!(chunk.len(), RECORD_SIZE + len);
                line.written(chunk);
            }
            assert!(line.next().is_none());
        });
        assert_eq!(line.state.lock().held, 0);
    }

    #[test]
    fn who_waits_is_told_that_nobody_writes() {
        let line = Line::new(1);
        assert!(line.put(chunk(1, 0)).is_some());
        std::thread::scope(|scope| {
            let lays_out = scope.spawn(|| line.put(chunk(2, 0)).is_none());
            let works = scope.spawn(|| {
                while let Some(taken) = line.take() {
                    taken.fill(|_| Ok(()));
                }
            });
            drop(Writes(&line));
            assert!(lays_out.join().is_ok_and(|told| told));
            assert!(works.join().is_ok());
        });
    }

    #[test]
    fn a_worker_that_goes_stops_the_send() {
        let line = Line::new(1);
        assert!(line.put(chunk(1, 0)).is_some());
        drop(line.take());
        assert!(matches!(line.next(), Some(Err(Error::Stopped))));
    }
}
