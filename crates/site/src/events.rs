//! The events of this machine's pools, kept from one command to the next: what a kernel would keep in memory.
//!
//! A process adds its events ([`pool::events`]) to the file `events` in the folder of the site, once a second and at its end, and gives them the
//! numbers that follow there. The file keeps the last `zfs_zevent_len_max` events. A process that is killed leaves out its last second.
//!
//! On disk: the number of the newest event, then each event as its length and its packed list.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Mutex;

use base::{Endian, bytes, tunable};
use nvlist::{Encoding, NvList};
use pool::events::{self, EID, News};

use crate::state::{self, Folder, Lock, Patience};
use crate::{Error, records};

/// The file in the state folder.
const EVENTS: &str = "events";
const HEADER: usize = 8;

/// The number of the last event of this process that is in the file.
static PUBLISHED: Mutex<u64> = Mutex::new(0);

/// The events in the file.
#[derive(Default)]
struct Log {
    last: u64,
    events: Vec<NvList>,
}

impl Log {
    /// Decodes a file. What follows a damaged event is left out.
    fn decode(file: &[u8]) -> Log {
        let mut log = Log { last: bytes::u64(file, 0, Endian::Little).unwrap_or(0), events: Vec::new() };
        let mut rest = file.get(HEADER..).unwrap_or(&[]);
        while let Some(len) = bytes::u32(rest, 0, Endian::Little) {
            let Some((event, more)) = rest.get(4..).and_then(|rest| rest.split_at_checked(len as usize)) else { break };
            let Ok(event) = NvList::unpack(event) else { break };
            log.events.push(event);
            rest = more;
        }
        log
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.last.to_le_bytes().to_vec();
        for packed in self.events.iter().filter_map(|event| event.pack(Encoding::Xdr, Endian::Big).ok()) {
            bytes.extend((packed.len() as u32).to_le_bytes());
            bytes.extend(packed);
        }
        bytes
    }

    fn read(file: &File) -> std::io::Result<Log> {
        Ok(Log::decode(&state::read_all(file)?))
    }

    fn add(&mut self, new: Vec<NvList>) {
        for mut event in new {
            self.last += 1;
            event.insert(EID, self.last);
            self.events.push(event);
        }
        let max = usize::try_from(tunable::ZFS_ZEVENT_LEN_MAX.get()).unwrap_or(usize::MAX);
        let excess = self.events.len().saturating_sub(max);
        self.events.drain(..excess);
    }
}

/// Adds the events of this process that are not in the file yet. A file that cannot be written is no reason to fail.
pub fn publish() {
    let Ok(mut published) = PUBLISHED.lock() else { return };
    let news = events::since(*published);
    if news.events.is_empty() {
        return;
    }
    if update(|log| log.add(news.events)).is_ok() {
        *published = news.last;
    }
}

/// Returns the events of the file after event `seen`; 0 for all.
///
/// # Errors
/// When the file cannot be read.
pub fn since(seen: u64) -> Result<News, Error> {
    let path = path()?;
    let log = match Folder::open().and_then(|folder| folder.file(EVENTS)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Log::default(),
        opened => opened
            .and_then(|file| state::lock(&file, Lock::Shared, Patience::Moment).map(|()| file))
            .and_then(|file| Log::read(&file))
            .map_err(|source| Error::Folder { path, source })?,
    };
    let new = log.last.saturating_sub(seen);
    let kept = usize::try_from(new).unwrap_or(usize::MAX).min(log.events.len());
    let dropped = if seen == 0 { 0 } else { new - kept as u64 };
    let events = log.events.into_iter().rev().take(kept).rev().collect();
    Ok(News { events, dropped, last: log.last })
}

/// Forgets all events; returns their number.
///
/// # Errors
/// When the file cannot be written.
pub fn clear() -> Result<usize, Error> {
    let path = path()?;
    if !path.exists() {
        return Ok(0);
    }
    let cleared = update(|log| std::mem::take(&mut log.events).len());
    cleared.map_err(|source| Error::Folder { path, source })
}

fn path() -> Result<PathBuf, Error> {
    Ok(records::folder()?.join(EVENTS))
}

/// Changes the file; one process after the other.
fn update<T>(change: impl FnOnce(&mut Log) -> T) -> std::io::Result<T> {
    let mut file = Folder::open()?.shared_file(EVENTS)?;
    state::lock(&file, Lock::Exclusive, Patience::Moment)?;
    let mut log = Log::read(&file)?;
    let done = change(&mut log);
    let bytes = log.encode();
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&bytes)?;
    file.set_len(bytes.len() as u64)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_numbered_and_bounded_and_a_damaged_end_is_left_out() {
        let mut log = Log::default();
        for n in 0..600u64 {
            let mut event = NvList::new();
            event.insert("n", n);
            log.add(vec![event]);
        }
        let bytes = log.encode();
        let again = Log::decode(&bytes);
        assert_eq!((again.last, again.events.len()), (600, 512));
        assert_eq!(again.events.first().and_then(|event| event.get_u64(EID)), Some(89));
        let cut = Log::decode(&bytes[..bytes.len() - 3]);
        assert_eq!((cut.last, cut.events.len()), (600, 511));
        assert_eq!(Log::decode(&[1, 2]).events.len(), 0);
    }
}
