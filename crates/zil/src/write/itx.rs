//! One change on its way to the log.

use base::Endian;
use ondisk::zil::{RecordHeader, TxType, WRITE_RECORD_SIZE};

/// One change on its way to the log (OpenZFS: `itx_t`).
#[derive(Clone, Debug)]
pub struct Itx {
    /// The whole record in this machine's order, header first; txg and sequence number are filled in on the way.
    pub record: Vec<u8>,
    /// The object that it changes, if it changes one alone.
    pub object: Option<u64>,
    /// Whether every commit takes it. Else it waits for a commit of its object, or of everything.
    pub sync: bool,
    /// Where what is written comes from.
    pub data: ItxData,
}

/// Where the data of a record is (OpenZFS: `itx_wr_state_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItxData {
    /// All is in the record (OpenZFS: `WR_COPIED`).
    InRecord,
    /// A WRITE whose data is copied from the file when its block is written; it may be split over several blocks (OpenZFS: `WR_NEED_COPY`).
    NeedCopy {
        /// From where, bytes.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// The generation of the object.
        generation: u64,
    },
    /// A WRITE whose block is written in its place and pointed at (OpenZFS: `WR_INDIRECT`).
    Indirect {
        /// From where, bytes; within one block.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// The generation of the object.
        generation: u64,
    },
}

/// Where in a record its type, length, txg and sequence number stand, and in a WRITE offset, length and pointer.
pub(crate) const TXTYPE_AT: usize = 0;
pub(crate) const RECLEN_AT: usize = 8;
pub(crate) const TXG_AT: usize = 16;
pub(crate) const SEQ_AT: usize = 24;
pub(crate) const OFFSET_AT: usize = 40;
pub(crate) const LENGTH_AT: usize = 48;
pub(crate) const BLKPTR_AT: usize = 64;
/// Records are multiples of this.
pub(crate) const WORD: u64 = 8;

/// Replaces eight bytes of a record.
pub(crate) fn put_u64(record: &mut [u8], at: usize, value: u64) {
    if let Some(word) = record.get_mut(at..at.saturating_add(8)) {
        word.copy_from_slice(&Endian::Little.put_u64(value));
    }
}

impl Itx {
    /// Whether the record is one that the log can hold: its length is told rightly, and a WRITE without data is as long as such are.
    pub(crate) fn is_sound(&self) -> bool {
        let Ok(header) = RecordHeader::decode(&self.record, Endian::Little) else { return false };
        let len = self.record.len() as u64;
        let bare = header.kind() == Some(TxType::Write) && self.record.len() == WRITE_RECORD_SIZE;
        header.reclen == len
            && len.is_multiple_of(WORD)
            && (self.data == ItxData::InRecord || bare && self.object.is_some())
    }

    /// Bytes that it takes in the log (OpenZFS: `zil_itx_full_size`).
    pub(crate) fn full_size(&self) -> u64 {
        self.record.len() as u64 + self.data_size()
    }

    /// Bytes behind the record that are copied there later (OpenZFS: `zil_itx_data_size`).
    pub(crate) fn data_size(&self) -> u64 {
        match self.data {
            ItxData::NeedCopy { len, .. } => len.next_multiple_of(WORD),
            _ => 0,
        }
    }
}
