//! Replay of the intent log of a volume (OpenZFS: `zvol_replay_write`, `zvol_replay_truncate`, `zvol_replay_clone_range`).

use std::ops::Range;
use std::sync::Arc;

use base::ObjectId;
use dmu::{Object, Objset, Tx};
use ondisk::BlkPtr;
use ondisk::zil::{Record, TxType, Write};
use pool::Spa;
use zil::replay::{Entry, Replayer};
use zio::Payload;

use crate::Error;
use crate::live::hold::Shared;
use crate::live::{Refusal, SMALL_CHANGE};

/// A volume whose log is replayed. It is not in use yet.
pub(crate) struct Player<'a> {
    pub(crate) spa: &'a Arc<Spa>,
    pub(crate) objset: &'a Arc<Objset>,
    pub(crate) data: &'a Object,
    pub(crate) block: u64,
}

impl Replayer for Player<'_> {
    type Error = Error;
    type Window = Shared;

    fn window(&self, bytes: u64) -> Result<Shared, Error> {
        Shared::begin(self.spa, self.objset, bytes)
    }

    fn tx(window: &Shared) -> &Tx {
        window.tx()
    }

    fn apply(&self, window: &Shared, entry: &Entry<'_>) -> Result<(), Error> {
        let tx = window.tx();
        match entry.record {
            Record::Write(write) if entry.kind == TxType::Write && !entry.superseded => self.write(tx, write, entry),
            Record::Truncate { offset, length, .. } => Ok(self.data.free_range(tx, *offset, *length)?),
            Record::CloneRange { offset, blksz, bps, .. } => self.clone_range(tx, *offset, *blksz, bps),
            Record::Commit | Record::Write(_) => Ok(()),
            _ => Err(Refusal::Unsupported("the log record does not apply to volumes").of(self.data.id())),
        }
    }

    fn bytes(&self, record: &Record<'_>) -> u64 {
        let data = if let Record::Write(write) = record { write.length } else { 0 };
        data.saturating_add(SMALL_CHANGE + 2 * self.block)
    }

    fn frees_long(&self, record: &Record<'_>) -> Option<(Object, Range<u64>)> {
        let Record::Truncate { offset, length, .. } = record else { return None };
        let range = *offset..offset.saturating_add(*length);
        self.data.is_long(&range).then(|| (self.data.clone(), range))
    }

    fn file_of(&self, _dir: ObjectId, _name: &[u8]) -> Option<Option<ObjectId>> {
        None
    }

    fn after_window(&self) {}

    fn is_unanswered(error: &Error) -> bool {
        error.is_unanswered()
    }

    fn waits(&self) -> bool {
        !self.spa.gives_up_logs()
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(self.spa.sync()?)
    }

    fn finish(&self, blocks: Vec<BlkPtr>) -> Result<(), Error> {
        Ok(self.spa.destroy_log(self.objset, blocks)?)
    }
}

impl Player<'_> {
    fn write(&self, tx: &Tx, write: &Write<'_>, entry: &Entry<'_>) -> Result<(), Error> {
        let (at, data) = crate::live::replay::content_of(write, entry);
        Ok(self.data.write(tx, at, data)?)
    }

    fn clone_range(&self, tx: &Tx, at: u64, block: u64, bps: &[BlkPtr]) -> Result<(), Error> {
        if block != self.block || at.checked_rem(block) != Some(0) {
            return Err(Refusal::Invalid("the blocks to clone have another size").of(self.data.id()));
        }
        for (blkid, bp) in (at / block..).zip(bps) {
            if bp.is_hole() {
                self.data.free_range(tx, blkid.saturating_mul(block), block)?;
            } else {
                self.data.write_stored(tx, blkid, Payload::Clone(*bp))?;
            }
        }
        Ok(())
    }
}
