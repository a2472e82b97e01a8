//! In-memory log records (itx) that are not yet written to the log.

use base::{Endian, ObjectId};
use ondisk::zil::{RecordHeader, TxType, WRITE_RECORD_SIZE};

/// One change that is to be logged (OpenZFS: `itx_t`).
#[derive(Clone, Debug)]
pub struct Itx {
    /// The whole record in this machine's byte order, header first; txg and sequence number are filled in later.
    pub record: Vec<u8>,
    /// The object that it changes, if it changes only one.
    pub object: Option<ObjectId>,
    /// True if every commit writes it. Otherwise it waits for a commit of its object, or of everything.
    pub sync: bool,
    /// The location of the written data.
    pub data: ItxData,
}

/// The location of a record's data (OpenZFS: `itx_wr_state_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItxData {
    /// In the record (OpenZFS: `WR_COPIED`).
    InRecord,
    /// A WRITE whose data is copied from the file when its block is written; it may be split over several blocks (OpenZFS: `WR_NEED_COPY`).
    NeedCopy {
        /// Start of the write, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The generation of the object.
        generation: u64,
    },
    /// A WRITE whose block is written to its final location and pointed at (OpenZFS: `WR_INDIRECT`).
    Indirect {
        /// Start of the write, in bytes; the write lies within one block.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The generation of the object.
        generation: u64,
    },
}

/// Offsets in a record of its type, length, txg and sequence number, and in a WRITE of offset, length and pointer.
pub(crate) const TXTYPE_AT: usize = 0;
pub(crate) const RECLEN_AT: usize = 8;
pub(crate) const TXG_AT: usize = 16;
pub(crate) const SEQ_AT: usize = 24;
pub(crate) const OFFSET_AT: usize = 40;
pub(crate) const LENGTH_AT: usize = 48;
pub(crate) const BLKPTR_AT: usize = 64;
/// Record lengths are multiples of this.
pub(crate) const WORD: u64 = 8;

/// Replaces eight bytes of a record.
pub(crate) fn put_u64(record: &mut [u8], at: usize, value: u64) {
    put(record, at, &Endian::Little.put_u64(value));
}

/// Replaces bytes of a record.
pub(crate) fn put(record: &mut [u8], at: usize, bytes: &[u8]) {
    let (len, end) = (record.len(), at + bytes.len());
    let Some(place) = record.get_mut(at..end) else {
        panic!("a log record of {len} bytes has no field at {at}..{end}")
    };
    place.copy_from_slice(bytes);
}

impl Itx {
    /// True if the log can hold the record: its length field is right, and a WRITE without data has exactly the length of such a
    /// record.
    pub(crate) fn is_sound(&self) -> bool {
        let Ok(header) = RecordHeader::decode(&self.record, Endian::Little) else { return false };
        let len = self.record.len() as u64;
        let bare = header.kind() == Some(TxType::Write) && self.record.len() == WRITE_RECORD_SIZE;
        header.reclen == len
            && len.is_multiple_of(WORD)
            && (self.data == ItxData::InRecord || bare && self.object.is_some())
    }

    /// Returns the bytes that it brings to the devices, in the log or beside it.
    pub(crate) fn bytes(&self) -> u64 {
        match self.data {
            ItxData::InRecord => self.record.len() as u64,
            ItxData::NeedCopy { len, .. } | ItxData::Indirect { len, .. } => len,
        }
    }

    /// Returns the bytes that it takes in the log (OpenZFS: `zil_itx_full_size`).
    pub(crate) fn full_size(&self) -> u64 {
        self.record.len() as u64 + self.data_size()
    }

    /// Returns the bytes of data that are later copied after the record (OpenZFS: `zil_itx_data_size`).
    pub(crate) fn data_size(&self) -> u64 {
        match self.data {
            ItxData::NeedCopy { len, .. } => len.next_multiple_of(WORD),
            _ => 0,
        }
    }
}
