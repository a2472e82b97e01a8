//! Several programs under power cuts, each of which calls `fsync` after each write: whatever `fsync` promised to one is there, however far
//! the others are.
//!
//! Each writer has a file, writes a piece of it, calls `fsync`, and continues. The devices delay each call for a random time: so writers
//! share batches of all sizes, whose blocks reach the devices in any order, and a cut leaves holes in the chain. A piece is one record:
//! after a cut a file holds the pieces up to the promised one, or one more.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::ObjectId;
use parking_lot::Mutex;
use vdev::{Device, DeviceKind};
use zuse::zpl::Kind;
use zuse::zpl::live::{Cred, NewFile, Zfs};

use crate::compare::{Context, Result};
use crate::fsynced::{FS, enter, import};
use crate::pools::{NAME, Shape, open, verify_all};
use crate::storage::Storage;
use crate::{Recording, State, Tape};

/// Number of writers.
const WRITERS: usize = 6;
/// Bytes of a piece, and pieces of a file; after the last the first is overwritten.
const PIECE: usize = 3000;
const PIECES: u64 = 16;
/// Maximum delay of a device, in microseconds.
const DAWDLE_US: u64 = 1500;

/// The number of safe pieces of each file.
pub type Safe = Vec<u64>;

/// A device that delays each call.
#[derive(Debug)]
struct Dawdling {
    inner: Arc<dyn Device>,
    calls: AtomicU64,
}

impl Dawdling {
    fn think(&self) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let us = call.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) % DAWDLE_US;
        std::thread::sleep(Duration::from_micros(us));
    }
}

impl Device for Dawdling {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.think();
        self.inner.write_at(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        self.think();
        self.inner.flush()
    }
    fn is_writable(&self) -> bool {
        self.inner.is_writable()
    }
    fn kind(&self) -> DeviceKind {
        self.inner.kind()
    }
    fn name(&self) -> String {
        self.inner.name()
    }
}

/// Piece number `n` of a file: its offset, and its bytes.
fn piece(file: usize, n: u64) -> (u64, Vec<u8>) {
    let byte = |at: usize| (file as u64 * 31 + n * 7 + at as u64 % 13) as u8;
    (n % PIECES * PIECE as u64, (0..PIECE).map(byte).collect())
}

/// The contents of a file after `count` pieces.
fn content(file: usize, count: u64) -> Vec<u8> {
    let mut all = vec![0; (count.min(PIECES) as usize) * PIECE];
    for n in count.saturating_sub(PIECES)..count {
        let (at, bytes) = piece(file, n);
        if let Some(place) = all.get_mut(at as usize..at as usize + PIECE) {
            place.copy_from_slice(&bytes);
        }
    }
    all
}

fn name(file: usize) -> String {
    format!("f{file}")
}

/// Creates a pool, and lets each writer write and `fsync` `pieces` pieces while recording a tape.
///
/// # Errors
/// The first failure.
pub fn record(shape: &Shape, seed: u64, pieces: u64) -> Result<Tape<Safe>> {
    let recording = Recording::new(&shape.disks()?, 512 << 20);
    shape.create(&recording.devices(), seed)?.export().context(|| "export".to_string())?;
    let dawdling = |inner| -> Arc<dyn Device> { Arc::new(Dawdling { inner, calls: AtomicU64::new(seed) }) };
    let devices: Vec<_> = recording.devices().into_iter().map(dawdling).collect();
    let spa = import(&devices, seed | 1 << 63, false)?;
    Storage::Plain.create(&spa, &format!("{NAME}/{FS}"))?;
    let zfs = enter(&spa)?;
    let root = zfs.fs().root();
    let mut ids = Vec::new();
    for file in 0..WRITERS {
        let new = NewFile::new(Kind::File, 0o644);
        ids.push(zfs.create(&Cred::ROOT, root, name(file).as_bytes(), &new).context(|| name(file))?.0);
    }
    spa.sync().context(|| "sync".to_string())?;
    let safe = Mutex::new(vec![0; WRITERS]);
    recording.promise(0, safe.lock().clone());
    std::thread::scope(|scope| {
        let one = |(file, id): (usize, ObjectId)| write(&zfs, id, file, pieces, &safe, &recording);
        let all: Vec<_> = ids.into_iter().enumerate().map(|of| scope.spawn(move || one(of))).collect();
        all.into_iter().try_for_each(|writer| writer.join().map_err(|_| "a writer panicked".to_string())?)
    })?;
    Ok(recording.finish())
}

fn write(
    zfs: &Zfs,
    id: ObjectId,
    file: usize,
    pieces: u64,
    safe: &Mutex<Safe>,
    recording: &Recording<Safe>,
) -> Result<()> {
    for n in 0..pieces {
        let (at, bytes) = piece(file, n);
        zfs.write_sync(&Cred::ROOT, id, Some(at), &bytes).context(|| name(file))?;
        let mut safe = safe.lock();
        if let Some(count) = safe.get_mut(file) {
            *count = n + 1;
        }
        recording.promise(0, safe.clone());
    }
    Ok(())
}

/// Checks the state after a cut: imports it, with log replay.
///
/// # Errors
/// The loss or damage found.
pub fn check(state: &State<'_, Safe>) -> Result<()> {
    let Some(safe) = state.promised.map(|promise| &promise.payload) else { return Ok(()) };
    let devices = state.devices();
    let spa = import(&devices, state.cut.seed, false)?;
    let zfs = enter(&spa)?;
    for (file, count) in safe.iter().enumerate() {
        let entry = zfs.fs().lookup(zfs.fs().root(), name(file).as_bytes()).context(|| name(file))?;
        let node = zfs.fs().node(entry.ok_or_else(|| format!("{} is gone", name(file)))?.object);
        let node = node.context(|| name(file))?;
        let mut bytes = vec![0; node.size() as usize];
        node.read(0, &mut bytes).context(|| name(file))?;
        if bytes != content(file, *count) && bytes != content(file, count + 1) {
            return Err(format!("{} has neither {count} pieces, as promised, nor one more", name(file)));
        }
    }
    drop(zfs);
    spa.export().context(|| "export".to_string())?;
    drop(spa);
    verify_all(&open(&devices)?).map(drop)
}
