//! Work that waits for the disk, and what it was promised: for a power cut of files that programs would have.
//!
//! Three sorts of programs, each a thread: a *journal* appends records and waits after each; a *spool* makes messages, waits, renames them
//! into place, and waits for the name; a *table* overwrites pages anywhere in a file, and waits after each. All contents come from
//! numbers, so a promise is a few numbers, and what is found can be told right from wrong: at least what was promised, and nothing
//! that was never written.

use std::fmt::Write as _;
use std::io;

use zpl::live::{Cred, NewFile};
use zuse::Files;
use zuse::zpl;

use crate::Rng;

/// Bytes of a record of a journal.
const RECORD: usize = 4096;
/// Bytes of a page of a table.
const PAGE: usize = 8192;
/// Pages of a table.
const PAGES: u64 = 512;

/// What a program was told to be on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Promised {
    /// So many records of the journal of this number.
    Journal(u64, u64),
    /// The message of this spool and number, under its name.
    Message(u64, u64),
    /// The page of this table at least in this version.
    Page(u64, u64, u64),
}

impl Promised {
    /// As a line of text.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Promised::Journal(who, records) => format!("journal {who} {records}"),
            Promised::Message(who, number) => format!("message {who} {number}"),
            Promised::Page(who, page, version) => format!("page {who} {page} {version}"),
        }
    }

    /// Reads [`Promised::line`] back.
    #[must_use]
    pub fn parse(line: &str) -> Option<Promised> {
        let mut words = line.split_whitespace();
        let kind = words.next()?;
        let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
        match (kind, numbers.as_slice()) {
            ("journal", &[who, records]) => Some(Promised::Journal(who, records)),
            ("message", &[who, number]) => Some(Promised::Message(who, number)),
            ("page", &[who, page, version]) => Some(Promised::Page(who, page, version)),
            _ => None,
        }
    }
}

/// The bytes that three numbers stand for.
fn bytes_of(what: u64, number: u64, version: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(what ^ number.rotate_left(24) ^ version.rotate_left(48)).fill(&mut bytes);
    // one half is text: it compresses as files do
    let mut text = String::new();
    while text.len() < len / 2 {
        let _ = write!(text, "record {number} of {what}, version {version}; ");
    }
    bytes.iter_mut().zip(text.bytes().take(len / 2)).for_each(|(byte, letter)| *byte = letter);
    bytes
}

fn message_len(number: u64) -> usize {
    500 + (number.wrapping_mul(7919) % 12_000) as usize
}

/// How a program ends.
type Failed = Result<(), Box<dyn std::error::Error>>;

/// A program of the work; they are numbered from 0.
#[derive(Clone, Copy, Debug)]
pub struct Program(pub u64);

impl Program {
    /// Works until something fails (as when the power goes); gives what was promised. `told` hears of each promise.
    pub fn run(self, files: &Files, told: &dyn Fn()) -> Vec<Promised> {
        let mut kept = Vec::new();
        // that it ends with an error is what is waited for
        let _power_cut = match self.0 % 3 {
            0 => self.journal(files, &mut kept, told),
            1 => self.spool(files, &mut kept, told),
            _ => self.table(files, &mut kept, told),
        };
        kept
    }

    fn journal(self, files: &Files, kept: &mut Vec<Promised>, told: &dyn Fn()) -> Failed {
        let path = journal_path(self.0);
        let id = files.make(path.as_bytes(), &NewFile::new(zpl::Kind::File, 0o644))?;
        for number in 0.. {
            let record = bytes_of(self.0, number, 0, RECORD);
            files.zfs().write(&Cred::ROOT, id, number * RECORD as u64, &record)?;
            files.zfs().fsync(id)?;
            *kept = vec![Promised::Journal(self.0, number + 1)];
            told();
        }
        Ok(())
    }

    fn spool(self, files: &Files, kept: &mut Vec<Promised>, told: &dyn Fn()) -> Failed {
        let dir = files.create_dir(format!("spool-{}", self.0).as_bytes(), 0o755)?;
        for number in 0.. {
            let (new, path) = (format!("spool-{}/new", self.0), message_path(self.0, number));
            let id = files.make(new.as_bytes(), &NewFile::new(zpl::Kind::File, 0o600))?;
            let text = bytes_of(self.0, number, 0, message_len(number));
            files.zfs().write(&Cred::ROOT, id, 0, &text)?;
            files.zfs().fsync(id)?;
            files.rename(new.as_bytes(), path.as_bytes())?;
            files.zfs().fsync(dir)?;
            kept.push(Promised::Message(self.0, number));
            told();
        }
        Ok(())
    }

    fn table(self, files: &Files, kept: &mut Vec<Promised>, told: &dyn Fn()) -> Failed {
        let path = table_path(self.0);
        let id = files.make(path.as_bytes(), &NewFile::new(zpl::Kind::File, 0o644))?;
        let rng = Rng::new(self.0);
        let mut versions = vec![0; PAGES as usize];
        for version in 1.. {
            let page = rng.below(PAGES);
            let bytes = page_bytes(self.0, page, version);
            files.zfs().write(&Cred::ROOT, id, page * PAGE as u64, &bytes)?;
            files.zfs().fsync(id)?;
            if let Some(slot) = versions.get_mut(page as usize) {
                *slot = version;
            }
            kept.retain(|old| !matches!(old, Promised::Page(_, other, _) if *other == page));
            kept.push(Promised::Page(self.0, page, version));
            told();
        }
        Ok(())
    }
}

fn journal_path(who: u64) -> String {
    format!("journal-{who}")
}

fn message_path(who: u64, number: u64) -> String {
    format!("spool-{who}/{number:06}")
}

fn table_path(who: u64) -> String {
    format!("table-{who}")
}

/// A page tells its version in its first eight bytes.
fn page_bytes(who: u64, page: u64, version: u64) -> Vec<u8> {
    let mut bytes = bytes_of(who, page, version, PAGE);
    bytes.iter_mut().zip(version.to_le_bytes()).for_each(|(byte, new)| *byte = new);
    bytes
}

/// Gives bytes of a file: path, offset, length at most.
pub type Read<'a> = dyn Fn(&str, u64, usize) -> io::Result<Vec<u8>> + 'a;

/// Compares what is there with a promise.
///
/// # Errors
/// What is not as it was promised.
pub fn check(promised: &Promised, read: &Read<'_>) -> Result<(), String> {
    match *promised {
        Promised::Journal(who, records) => check_journal(who, records, read),
        Promised::Message(who, number) => {
            let (path, len) = (message_path(who, number), message_len(number));
            let found = read(&path, 0, len + 1).map_err(|e| format!("{path}: {e}"))?;
            if found == bytes_of(who, number, 0, len) { Ok(()) } else { Err(format!("{path}: not what was written")) }
        }
        Promised::Page(who, page, version) => {
            let path = table_path(who);
            let found = read(&path, page * PAGE as u64, PAGE).map_err(|e| format!("{path}: {e}"))?;
            let is = found.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            if is < version || found != page_bytes(who, page, is) {
                return Err(format!("{path}: page {page} is no version from {version} on"));
            }
            Ok(())
        }
    }
}

/// All records that were promised, and behind them whole records, or the first part of one.
fn check_journal(who: u64, records: u64, read: &Read<'_>) -> Result<(), String> {
    let path = journal_path(who);
    for number in 0.. {
        let found = read(&path, number * RECORD as u64, RECORD).map_err(|e| format!("{path}: {e}"))?;
        if found.len() < RECORD && number < records {
            return Err(format!("{path}: record {number} of {records} is missing"));
        }
        if found != bytes_of(who, number, 0, RECORD).get(..found.len()).unwrap_or_default() {
            return Err(format!("{path}: record {number} of {records} is not what was written"));
        }
        if found.len() < RECORD {
            break;
        }
    }
    Ok(())
}
