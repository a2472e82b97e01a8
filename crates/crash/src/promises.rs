//! Programs that call `fsync`, and a record of the completed calls: for a power cut with realistic files.
//!
//! There are three kinds of programs, each a thread: a *journal* appends records and calls `fsync` after each; a *spool* creates messages,
//! calls `fsync`, renames them into place, and calls `fsync` for the name; a *table* overwrites random pages of a file, and calls `fsync`
//! after each. All contents are generated from numbers, so a promise is a few numbers, and a check can tell whether contents are valid: at
//! least what was promised, and nothing that was never written.

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

/// Contents that a completed `fsync` made safe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Promised {
    /// The journal of this number has at least so many records: (journal, records).
    Journal(u64, u64),
    /// The message exists under its name: (spool, message).
    Message(u64, u64),
    /// The page has at least this version: (table, page, version).
    Page(u64, u64, u64),
}

impl Promised {
    /// The promise as a line of text.
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

/// The contents generated from three numbers.
fn bytes_of(what: u64, number: u64, version: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(what ^ number.rotate_left(24) ^ version.rotate_left(48)).fill(&mut bytes);
    // one half is text, which compresses like real files
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

/// The result of a program.
type Failed = Result<(), Box<dyn std::error::Error>>;

/// A program, identified by its number from 0.
#[derive(Clone, Copy, Debug)]
pub struct Program(pub u64);

impl Program {
    /// Runs until an operation fails (as it does after the power cut); returns the promises. Calls `told` after each promise.
    pub fn run(self, files: &Files, told: &dyn Fn()) -> Vec<Promised> {
        let mut kept = Vec::new();
        // it always ends with an error
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

/// The contents of a page; its first eight bytes are the version.
fn page_bytes(who: u64, page: u64, version: u64) -> Vec<u8> {
    let mut bytes = bytes_of(who, page, version, PAGE);
    bytes.iter_mut().zip(version.to_le_bytes()).for_each(|(byte, new)| *byte = new);
    bytes
}

/// Reads bytes of a file: path, offset, maximum length.
pub type Read<'a> = dyn Fn(&str, u64, usize) -> io::Result<Vec<u8>> + 'a;

/// Checks a promise against the contents found.
///
/// # Errors
/// A description of the broken promise.
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
                return Err(format!("{path}: page {page} is not of version {version} or later"));
            }
            Ok(())
        }
    }
}

/// Checks that all promised records are there, followed only by whole records or the first part of one.
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
