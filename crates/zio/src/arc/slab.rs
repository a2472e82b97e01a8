//! Entries in a slab, chained into lists by index.

use super::ArcKey;
use crate::Buf;

/// "No entry".
pub(super) const NIL: u32 = u32::MAX;

/// The lists of the cache, and the chain of free slab entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Mru = 0,
    Mfu = 1,
    MruGhost = 2,
    MfuGhost = 3,
    Free = 4,
    Uncached = 5,
}

/// One entry. A ghost has no data; `size` is what it had.
#[derive(Debug)]
pub(super) struct Entry {
    pub key: ArcKey,
    pub hash: u64,
    pub size: u64,
    pub data: Option<Buf>,
    pub state: State,
    newer: u32,
    older: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    newest: u32,
    oldest: u32,
    bytes: u64,
    /// The bytes of metadata among them.
    metadata: u64,
    count: u64,
}

impl List {
    /// The bytes of metadata that an entry has.
    fn metadata_of(entry: &Entry) -> u64 {
        if entry.key.metadata { entry.size } else { 0 }
    }
}

const EMPTY: List = List { newest: NIL, oldest: NIL, bytes: 0, metadata: 0, count: 0 };

/// All entries of a shard. Each is on exactly one list, the one of its state.
#[derive(Debug)]
pub(super) struct Slab {
    entries: Vec<Entry>,
    lists: [List; 6],
}

impl Slab {
    pub(super) const fn new() -> Self {
        Slab { entries: Vec::new(), lists: [EMPTY; 6] }
    }

    pub(super) fn get(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)
    }

    pub(super) fn bytes(&self, state: State) -> u64 {
        self.lists[state as usize].bytes
    }

    pub(super) fn metadata(&self, state: State) -> u64 {
        self.lists[state as usize].metadata
    }

    pub(super) fn count(&self, state: State) -> u64 {
        self.lists[state as usize].count
    }

    /// The entry of a list that was used longest ago.
    pub(super) fn oldest(&self, state: State) -> Option<u32> {
        Some(self.lists[state as usize].oldest).filter(|n| *n != NIL)
    }

    /// Puts a new entry at the front of its list; `None` when indices run out.
    pub(super) fn add(&mut self, key: ArcKey, hash: u64, data: Buf, state: State) -> Option<u32> {
        let size = data.len() as u64;
        let fresh = Entry { key, hash, size, data: Some(data), state, newer: NIL, older: NIL };
        let index = match self.oldest(State::Free) {
            Some(index) => {
                self.unlink(index);
                *self.entries.get_mut(index as usize)? = fresh;
                index
            }
            None => {
                let index = u32::try_from(self.entries.len()).ok().filter(|n| *n != NIL)?;
                self.entries.push(fresh);
                index
            }
        };
        self.link(index, state);
        Some(index)
    }

    /// Moves an entry to the front of `state`'s list. Ghosts and free entries lose their data.
    pub(super) fn put(&mut self, index: u32, state: State) {
        self.unlink(index);
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.state = state;
            if !matches!(state, State::Mru | State::Mfu | State::Uncached) {
                entry.data = None;
            }
        }
        self.link(index, state);
    }

    /// Gives a ghost its data back, at the front of `state`'s list.
    pub(super) fn revive(&mut self, index: u32, data: Buf, state: State) {
        self.unlink(index);
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.size = data.len() as u64;
            entry.data = Some(data);
            entry.state = state;
        }
        self.link(index, state);
    }

    fn unlink(&mut self, index: u32) {
        let Some(entry) = self.entries.get_mut(index as usize) else { return };
        let (newer, older, size, state) = (entry.newer, entry.older, entry.size, entry.state);
        (entry.newer, entry.older) = (NIL, NIL);
        let metadata = List::metadata_of(entry);
        let list = &mut self.lists[state as usize];
        list.bytes -= size;
        list.metadata -= metadata;
        list.count -= 1;
        match self.entries.get_mut(newer as usize) {
            Some(e) => e.older = older,
            None => list.newest = older,
        }
        match self.entries.get_mut(older as usize) {
            Some(e) => e.newer = newer,
            None => list.oldest = newer,
        }
    }

    fn link(&mut self, index: u32, state: State) {
        let list = &mut self.lists[state as usize];
        let older = std::mem::replace(&mut list.newest, index);
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.older = older;
            list.bytes += entry.size;
            list.metadata += List::metadata_of(entry);
            list.count += 1;
        }
        match self.entries.get_mut(older as usize) {
            Some(e) => e.newer = index,
            None => list.oldest = index,
        }
    }
}
