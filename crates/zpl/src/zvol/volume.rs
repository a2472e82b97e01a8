//! Volumes open for writing (OpenZFS: `zvol_write`, `zvol_discard`, `zvol_set_volsize`).
//!
//! A volume is one object of equal blocks. A write is split into chunks of whole blocks, each in a transaction of its own; a
//! discard frees whole blocks and zeroes partial ones, in pieces. The size is stored in a ZAP beside the data, and in the
//! property `volsize`. Writes and discards are logged in the intent log, and each flush commits all of them (OpenZFS:
//! `zvol_log_write`, `zvol_log_truncate`, `zvol_get_data`).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use base::{ObjectId, Txg};
use dmu::{Object, Objset, TxObjects, Zap};
use ondisk::zil::{Record, TxType};
use pool::{Dataset, DatasetStats, PropSource, PropsWatch, Spa, Value};
use zil::write::{BlockGot, Got, WriteSource, ZilPolicy};

use crate::live::hold::{Ask, Held, Owed};
use crate::live::io::chunk;
use crate::live::log::{self, Log, Piece};
use crate::live::rangelock::RangeLock;
use crate::live::{Refusal, SMALL_CHANGE, replay};
use crate::zvol::extents::extents;
use crate::zvol::replay as replay_volume;
use crate::{Error, Extent, Zvol};

/// Bytes of one chunk of a write, if blocks are not larger.
const CHUNK: u64 = 4 << 20;
/// Maximum bytes that one transaction frees.
const DISCARD: u64 = 1 << 30;

/// A volume that is open for writing (OpenZFS: `zvol_state_t`). Shared by its users: those of overlapping ranges wait for each other.
pub struct Volume {
    spa: Arc<Spa>,
    name: String,
    objset: Arc<Objset>,
    body: Arc<Body>,
    properties: Zap,
    block: u64,
}

/// The contents of a volume.
struct Body {
    spa: Arc<Spa>,
    data: Object,
    /// A range is held for writing while it changes, for reading while it is read, and all of it while the size changes.
    ranges: RangeLock,
    size: AtomicU64,
    log: Arc<Log>,
    /// The object number of its dataset.
    id: ObjectId,
    /// What its users do.
    stats: Arc<DatasetStats>,
}

impl PropsWatch for Body {
    /// Updates the log policy and the size, which whoever sets `volsize` changes. If the dataset cannot be read, the previous ones stay in effect.
    fn props_changed(&self) {
        let read = || {
            let dataset = self.spa.view()?.dataset_by_id(self.id)?;
            self.stats.is_named(dataset.name());
            Ok::<_, Error>((policy(&dataset)?, dataset.volume_size()?))
        };
        match read() {
            Ok((policy, size)) => {
                self.log.set_policy(policy);
                if let Some((size, _)) = size {
                    self.size.store(size, Ordering::Relaxed);
                }
            }
            Err(error) => {
                tracing::warn!(target: "zuse::zpl", dataset = self.id.0, %error, "properties stay as they were")
            }
        }
    }
}

impl Body {
    /// Opens the contents of a volume that nobody has open.
    fn first(spa: &Arc<Spa>, dataset: &Dataset, objset: &Arc<Objset>, volume: &Zvol) -> Result<Arc<Body>, Error> {
        let data = volume.object().clone();
        let player = replay_volume::Player { spa, objset, data: &data, block: volume.block_size() };
        let done =
            spa.replaying(objset, || zil::replay::replay(objset, spa.take_log(objset), &player, spa.replay_meter()))?;
        replay::tell(spa, dataset.name(), done.as_ref())?;
        let body = Arc::new(Body {
            spa: spa.clone(),
            data,
            ranges: RangeLock::default(),
            size: AtomicU64::new(volume.size()),
            log: Log::new(spa),
            id: objset.id(),
            stats: spa.count_dataset(objset.id(), dataset.name()),
        });
        let weak: Weak<Body> = Arc::downgrade(&body);
        spa.watch_props(weak.clone());
        body.log.begin(spa.zil(objset), weak, policy(dataset)?);
        // properties may have been set during the replay, which may have taken long
        spa.tell_props(&*body);
        Ok(body)
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }
}

impl WriteSource for Body {
    fn copy(&self, _object: ObjectId, _generation: u64, offset: u64, buf: &mut [u8]) -> Result<Got, dmu::Error> {
        let _range = self.ranges.read_range(offset..offset.saturating_add(buf.len() as u64));
        if offset >= self.size() {
            return Ok(Got::Gone);
        }
        self.data.read(offset, buf)?;
        Ok(Got::Data)
    }

    fn write_block(
        &self,
        _object: ObjectId,
        _generation: u64,
        offset: u64,
        _len: u64,
        txg: Txg,
    ) -> Result<BlockGot, dmu::Error> {
        let block = self.data.block_size();
        let start = offset - offset.checked_rem(block).unwrap_or(0);
        let _range = self.ranges.read_range(start..start.saturating_add(block));
        if offset >= self.size() {
            return Ok(BlockGot::Gone);
        }
        log::write_block(&self.spa, &self.data, offset, txg)
    }
}

impl Volume {
    /// Opens the volume `name` for writing. Where it is open already, this is another handle of the same.
    ///
    /// # Errors
    /// If the dataset is not a volume or is a snapshot, its key is not loaded, or its objects are unreadable.
    pub fn open(spa: &Arc<Spa>, name: &str) -> Result<Volume, Error> {
        let dataset = spa.view()?.dataset(name)?;
        let objset = spa.objset_to_replay(&dataset)?;
        let volume = Zvol::from_objset(&objset)?;
        let properties = Zap::open(objset.object(ObjectId::ZVOL_PROPERTIES)?)?;
        let block = volume.block_size();
        let body = spa.open_shared(&objset, || Body::first(spa, &dataset, &objset, &volume))?;
        Ok(Volume { spa: spa.clone(), name: name.to_string(), objset, body, properties, block })
    }

    /// Returns the object number of its dataset, which stays whatever its name is by now.
    #[must_use]
    pub fn dataset(&self) -> ObjectId {
        self.objset.id()
    }

    /// Returns the size in bytes (property `volsize`).
    #[must_use]
    pub fn size(&self) -> u64 {
        self.body.size()
    }

    /// Returns the block size in bytes (property `volblocksize`).
    #[must_use]
    pub fn block_size(&self) -> u64 {
        self.block
    }

    /// Reads from `offset`; returns the number of bytes, less than requested only at the end.
    ///
    /// # Errors
    /// When a block cannot be read.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let _range = self.body.ranges.read_range(offset..offset.saturating_add(buf.len() as u64));
        let left = usize::try_from(self.size().saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = left.min(buf.len());
        self.body.data.read(offset, buf.get_mut(..len).unwrap_or_default())?;
        self.body.stats.read(len as u64);
        Ok(len)
    }

    /// Returns the data and holes of a range that is within the volume, at most `max` from its beginning on.
    ///
    /// # Errors
    /// When an indirect block cannot be read.
    pub fn extents(&self, range: Range<u64>, max: usize) -> Result<Vec<Extent>, Error> {
        let _range = self.body.ranges.read_range(range.clone());
        extents(&self.body.data, range, max)
    }

    /// Returns the next byte at or after `offset` that is stored, as it is at some moment: ranges are not locked. `None` if only holes follow.
    ///
    /// # Errors
    /// When an indirect block cannot be read.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>, Error> {
        Ok(self.body.data.next_data(offset)?.filter(|at| *at < self.size()))
    }

    /// Writes at `offset`.
    ///
    /// # Errors
    /// ENXIO beyond the end, where nothing is written; EDQUOT, ENOSPC.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.write_awaited(offset, data, false)
    }

    /// Writes at `offset`, and waits until the data is on stable storage (FUA).
    ///
    /// # Errors
    /// As [`Volume::write`] and [`Volume::flush`].
    pub fn write_sync(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.write_awaited(offset, data, true)?;
        self.flush()
    }

    fn write_awaited(&self, offset: u64, data: &[u8], awaited: bool) -> Result<(), Error> {
        self.check_range(offset, data.len() as u64)?;
        let mut owed = Owed::default();
        let written = self.write_chunks(offset, data, awaited, &mut owed);
        if written.is_ok() {
            self.body.stats.wrote(data.len() as u64);
        }
        // also waits for the written part of a failed write
        let logged = owed.settle(&self.body.log);
        written.and(logged)
    }

    fn write_chunks(&self, offset: u64, data: &[u8], awaited: bool, owed: &mut Owed) -> Result<(), Error> {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let len = chunk(at, rest.len(), self.block, CHUNK);
            let (now, later) = rest.split_at_checked(len).unwrap_or((rest, &[]));
            // partially changed blocks are read before the transaction is assigned
            for edge in [at, at.saturating_add(now.len() as u64)] {
                if edge.checked_rem(self.block).unwrap_or(0) != 0 {
                    self.body.data.fetch(edge / self.block)?;
                }
            }
            let bytes = SMALL_CHANGE.max(now.len() as u64 + 2 * self.block);
            let place = self.place(bytes, false)?;
            let range = self.body.ranges.write_range(|| at..at.saturating_add(now.len() as u64));
            self.check_range(at, now.len() as u64)?;
            self.body.data.write(&place, at, now)?;
            let piece = Piece {
                object: self.body.data.id(),
                generation: 0,
                offset: at,
                data: now,
                block_size: self.block,
                end: None,
                awaited,
                sync: true,
            };
            self.body.log.put_write(&place, &piece);
            drop(range);
            place.finish_owing(&self.body.log, owed);
            at = at.saturating_add(now.len() as u64);
            rest = later;
        }
        Ok(())
    }

    /// Frees a range: it reads as zeros.
    ///
    /// # Errors
    /// ENXIO beyond the end; an error if a block at the edge cannot be read.
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.check_range(offset, len)?;
        let mut owed = Owed::default();
        let freed = self.discard_pieces(offset, len, &mut owed);
        // what is a hole already may be one since a moment ago: whoever freed it has logged that when the range is free
        drop(self.body.ranges.read_range(offset..offset.saturating_add(len)));
        owed.add(self.body.log.waits_always());
        let logged = owed.settle(&self.body.log);
        freed.and(logged)
    }

    fn discard_pieces(&self, offset: u64, len: u64, owed: &mut Owed) -> Result<(), Error> {
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            // an existing hole needs no transaction
            at = match self.body.data.next_data(at)? {
                Some(data) if data < end => data,
                _ => break,
            };
            let piece = (end - at).min(DISCARD);
            let place = self.place(SMALL_CHANGE.max(2 * self.block), true)?;
            // what reaches the last block is freed up to the end
            let range = self.body.ranges.write_range(|| at..self.freed_to(at.saturating_add(piece)));
            self.check_range(at, piece)?;
            self.body.data.free_range(&place, at, piece)?;
            let id = self.body.data.id();
            let record = Record::Truncate { foid: id, offset: at, length: piece };
            self.body.log.put(&place, TxType::Truncate, &record, Some(id), true);
            drop(range);
            place.finish_owing(&self.body.log, owed);
            at = at.saturating_add(piece);
        }
        Ok(())
    }

    /// Waits until all writes are on stable storage; with `sync=disabled` it does not wait. All waits for a volume use this
    /// function.
    ///
    /// # Errors
    /// EIO if the pool is suspended.
    pub fn flush(&self) -> Result<(), Error> {
        self.body.log.commit(None)
    }

    /// Changes the size of the volume, to a multiple of its blocks; data beyond it is freed.
    ///
    /// # Errors
    /// EINVAL, ENOSPC.
    pub fn resize(&self, size: u64) -> Result<(), Error> {
        let value = vec![("volsize".to_string(), Value::Number(size))];
        self.spa.set_props(&self.name, &value, PropSource::Local)?;
        let stored = self.properties.lookup_u64("size")?;
        let stored = stored.ok_or(Error::Missing { object: ObjectId::ZVOL_PROPERTIES, what: "size" })?;
        let _all = self.body.ranges.write();
        self.body.size.store(stored, Ordering::Relaxed);
        Ok(())
    }

    fn place(&self, bytes: u64, netfree: bool) -> Result<Held, Error> {
        let objects = TxObjects::of(self.objset.id(), &[self.body.data.id()]);
        Held::begin(&Ask { spa: &self.spa, objset: &self.objset, bytes, netfree, objects }, None)
    }

    /// Returns the end of a range that is freed: that of everything if the range reaches the last block.
    fn freed_to(&self, end: u64) -> u64 {
        let blocks = self.block.saturating_mul(self.body.data.nblocks());
        if end >= blocks { u64::MAX } else { end }
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<(), Error> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size());
        if inside { Ok(()) } else { Err(Refusal::NoData.of(self.body.data.id())) }
    }
}

/// Returns the log policy of a volume's properties.
fn policy(dataset: &Dataset) -> Result<ZilPolicy, Error> {
    let number = |name: &str| -> Result<u64, Error> {
        Ok(dataset.prop(name)?.and_then(|prop| prop.value.number()).unwrap_or(0))
    };
    Ok(log::policy_of(number("sync")?, number("logbias")?))
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "volume {} of {} bytes", self.name, self.size())
    }
}
