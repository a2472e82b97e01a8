//! The cache device of a pool (OpenZFS: persistent L2ARC, `l2arc_dev_hdr_phys_t` and friends).
//!
//! The data area of a cache device begins at 4 MiB with a header of 512 bytes. The header points to the newest two log blocks; each log
//! block points to the one two before it (two interleaved chains, so that one can be read while the other is decoded). A log block lists up
//! to 1022 buffers that precede it in the ring. Magic numbers identify the byte order. The header's checksum is embedded and the log
//! blocks' is in the pointer; the reader checks both.

use base::{Endian, Guid, Txg, bytes};

use crate::{Dva, Error};

/// Magic number of a device header: "ZFSCACHE".
pub const L2ARC_DEV_HDR_MAGIC: u64 = 0x5a46_5343_4143_4845;
/// Magic number of a log block: "LOGBLKHD".
pub const L2ARC_LOG_BLK_MAGIC: u64 = 0x4c4f_4742_4c4b_4844;
/// Bytes of the header, including its checksum trailer.
pub const DEV_HDR_SIZE: usize = 512;
/// Bytes of a decompressed log block.
pub const LOG_BLK_SIZE: usize = 64 << 10;
/// Entries that a log block can hold.
pub const LOG_BLK_MAX_ENTRIES: usize = 1022;

/// The logical size that a property word encodes.
fn lsize(prop: u64) -> u64 {
    (bytes::bits(prop, 0, 16) + 1) << 9
}

fn psize(prop: u64) -> u64 {
    (bytes::bits(prop, 16, 16) + 1) << 9
}

fn magic(what: &'static str, buf: &[u8], need: usize, magic: u64) -> Result<Endian, Error> {
    if buf.len() < need {
        return Err(Error::short(what, need, buf.len()));
    }
    match bytes::u64(buf, 0, Endian::Little).unwrap_or(0) {
        n if n == magic => Ok(Endian::Little),
        n if n == magic.swap_bytes() => Ok(Endian::Big),
        found => Err(Error::BadMagic { what, found }),
    }
}

/// The pointer to a log block (OpenZFS: `l2arc_log_blkptr_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogBlkPtr {
    /// Byte offset on the device.
    pub daddr: u64,
    /// Bytes of the buffers that the log block lists, including alignment.
    pub payload_asize: u64,
    /// Byte offset of the first of these buffers.
    pub payload_start: u64,
    /// Sizes, compression, checksum, as stored.
    pub prop: u64,
    /// Checksum of the log block as stored on the device.
    pub cksum: [u64; 4],
}

impl LogBlkPtr {
    /// Bytes on the device.
    pub const SIZE: usize = 64;

    fn decode(buf: &[u8], at: usize, e: Endian) -> Option<Self> {
        let word = |n: usize| bytes::u64(buf, at + n * 8, e);
        Some(LogBlkPtr {
            daddr: word(0)?,
            payload_asize: word(1)?,
            payload_start: word(2)?,
            prop: word(3)?,
            cksum: [word(4)?, word(5)?, word(6)?, word(7)?],
        })
    }

    /// Decompressed size in bytes.
    #[must_use]
    pub fn lsize(&self) -> u64 {
        lsize(self.prop)
    }

    /// Size on the device in bytes, aligned (OpenZFS: the `asize` of the log block).
    #[must_use]
    pub fn asize(&self) -> u64 {
        psize(self.prop)
    }

    /// Number of the compression algorithm.
    #[must_use]
    pub const fn compress(&self) -> u8 {
        bytes::bits(self.prop, 32, 7) as u8
    }

    /// Number of the checksum algorithm.
    #[must_use]
    pub const fn checksum(&self) -> u8 {
        bytes::bits(self.prop, 40, 8) as u8
    }
}

/// The header of a cache device (OpenZFS: `l2arc_dev_hdr_phys_t`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DevHdr {
    /// The byte order of the writer.
    pub endian: Endian,
    /// Always 1.
    pub version: u64,
    /// The pool.
    pub spa_guid: Guid,
    /// The cache device.
    pub vdev_guid: Guid,
    /// Entries that each log block holds.
    pub log_entries: u64,
    /// The byte offset up to which the ring has been evicted.
    pub evict: u64,
    /// Bit 0: the first sweep over the device is not finished.
    pub flags: u64,
    /// First byte of the ring.
    pub start: u64,
    /// End of the ring.
    pub end: u64,
    /// The newest log block and the one before it.
    pub start_lbps: [LogBlkPtr; 2],
    /// Bytes of all log blocks, aligned.
    pub lb_asize: u64,
    /// Number of log blocks.
    pub lb_count: u64,
    /// Time of the last trim of the device, seconds since 1970.
    pub trim_action_time: u64,
    /// State of that trim (0 none, 1 active, 2 cancelled, 3 suspended, 4 complete).
    pub trim_state: u64,
}

impl DevHdr {
    /// Decodes the first 512 bytes of the data area; the magic number identifies the byte order.
    ///
    /// # Errors
    /// [`Error::BadMagic`] if there is no header, [`Error::Truncated`].
    pub fn decode(buf: &[u8]) -> Result<Self, Error> {
        let what = "L2ARC device header";
        let e = magic(what, buf, DEV_HDR_SIZE, L2ARC_DEV_HDR_MAGIC)?;
        let short = || Error::short(what, DEV_HDR_SIZE, buf.len());
        let word = |off| bytes::u64(buf, off, e).ok_or_else(short);
        let lbp = |off| LogBlkPtr::decode(buf, off, e).ok_or_else(short);
        Ok(DevHdr {
            endian: e,
            version: word(8)?,
            spa_guid: Guid(word(16)?),
            vdev_guid: Guid(word(24)?),
            log_entries: word(32)?,
            evict: word(40)?,
            flags: word(48)?,
            start: word(56)?,
            end: word(64)?,
            start_lbps: [lbp(72)?, lbp(72 + LogBlkPtr::SIZE)?],
            lb_asize: word(200)?,
            lb_count: word(208)?,
            trim_action_time: word(216)?,
            trim_state: word(224)?,
        })
    }
}

/// One buffer on the cache device (OpenZFS: `l2arc_log_ent_phys_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogEntry {
    /// The block in the pool.
    pub dva: Dva,
    /// Its birth.
    pub birth: Txg,
    /// Sizes, compression, kind, as stored.
    pub prop: u64,
    /// Byte offset of the buffer on the cache device.
    pub daddr: u64,
    /// Compression level.
    pub complevel: u64,
}

impl LogEntry {
    /// Bytes on the device.
    pub const SIZE: usize = 64;

    fn decode(buf: &[u8], at: usize, e: Endian) -> Result<Self, Error> {
        let what = "L2ARC log entry";
        let word =
            |n: usize| bytes::u64(buf, at + n * 8, e).ok_or_else(|| Error::short(what, at + Self::SIZE, buf.len()));
        Ok(LogEntry {
            dva: Dva { word0: word(0)?, word1: word(1)? },
            birth: Txg(word(2)?),
            prop: word(3)?,
            daddr: word(4)?,
            complevel: word(5)?,
        })
    }

    /// Decompressed size in bytes.
    #[must_use]
    pub fn lsize(&self) -> u64 {
        lsize(self.prop)
    }

    /// Stored size in bytes.
    #[must_use]
    pub fn psize(&self) -> u64 {
        psize(self.prop)
    }

    /// Number of the compression algorithm.
    #[must_use]
    pub const fn compress(&self) -> u8 {
        bytes::bits(self.prop, 32, 7) as u8
    }

    /// True if the buffer was prefetched.
    #[must_use]
    pub const fn prefetch(&self) -> bool {
        bytes::bits(self.prop, 39, 1) != 0
    }

    /// The kind of contents: 0 data, 1 metadata (the word holds it plus one, and old writers other values).
    #[must_use]
    pub const fn contents(&self) -> Option<u8> {
        (bytes::bits(self.prop, 48, 8) as u8).checked_sub(1)
    }

    /// True if the buffer is encrypted or authenticated.
    #[must_use]
    pub const fn protected(&self) -> bool {
        bytes::bits(self.prop, 56, 1) != 0
    }

    /// The ARC state that the buffer was in.
    #[must_use]
    pub const fn arc_state(&self) -> u8 {
        bytes::bits(self.prop, 57, 4) as u8
    }
}

/// A log block (OpenZFS: `l2arc_log_blk_phys_t`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogBlk {
    /// The byte order of the writer.
    pub endian: Endian,
    /// The block before this one in its chain.
    pub prev_lbp: LogBlkPtr,
    /// The buffers; those with a zero DVA word are unused slots.
    pub entries: Vec<LogEntry>,
}

impl LogBlk {
    /// Decodes a decompressed log block of `entries` entries (from [`DevHdr::log_entries`]).
    ///
    /// # Errors
    /// [`Error::BadMagic`], [`Error::Truncated`], [`Error::Invalid`] for a number of entries that no block holds.
    pub fn decode(buf: &[u8], entries: u64) -> Result<Self, Error> {
        let what = "L2ARC log block";
        let e = magic(what, buf, 128, L2ARC_LOG_BLK_MAGIC)?;
        let count = usize::try_from(entries).ok().filter(|n| *n <= LOG_BLK_MAX_ENTRIES).ok_or(Error::Invalid {
            what,
            field: "entries",
            value: entries,
        })?;
        let need = 128 + count * LogEntry::SIZE;
        if buf.len() < need {
            return Err(Error::short(what, need, buf.len()));
        }
        let prev_lbp = LogBlkPtr::decode(buf, 8, e).ok_or_else(|| Error::short(what, need, buf.len()))?;
        let entries =
            (0..count).map(|n| LogEntry::decode(buf, 128 + n * LogEntry::SIZE, e)).collect::<Result<_, _>>()?;
        Ok(LogBlk { endian: e, prev_lbp, entries })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn words(e: Endian, len: usize, at: &[(usize, u64)]) -> Vec<u8> {
        let mut buf = vec![0; len];
        for (off, w) in at {
            buf[*off..off + 8].copy_from_slice(&e.put_u64(*w));
        }
        buf
    }

    #[test]
    fn a_header_reads_alike_in_both_byte_orders() {
        let fields = [
            (0, L2ARC_DEV_HDR_MAGIC),
            (8, 1),
            (16, 7),
            (32, 1022),
            (72, 0x40_0200),
            (96, 0x7f | 3 << 16 | 15 << 32 | 7 << 40),
        ];
        let le = DevHdr::decode(&words(Endian::Little, 512, &fields)).unwrap();
        let be = DevHdr::decode(&words(Endian::Big, 512, &fields)).unwrap();
        assert_eq!((be.endian, le.endian), (Endian::Big, Endian::Little));
        assert_eq!(DevHdr { endian: Endian::Little, ..be }, le);
        let lbp = le.start_lbps[0];
        assert_eq!(
            (lbp.daddr, lbp.lsize(), lbp.asize(), lbp.compress(), lbp.checksum()),
            (0x40_0200, 64 << 10, 2048, 15, 7)
        );
        assert!(matches!(DevHdr::decode(&[0; 512]), Err(Error::BadMagic { .. })));
        assert!(matches!(DevHdr::decode(&[0; 100]), Err(Error::Truncated { .. })));
    }

    #[test]
    fn a_log_block_gives_no_more_entries_than_it_has_bytes_for() {
        let buf = words(Endian::Big, 128 + 64, &[(0, L2ARC_LOG_BLK_MAGIC), (8, 0x1000), (128 + 16, 99)]);
        let blk = LogBlk::decode(&buf, 1).unwrap();
        assert_eq!((blk.prev_lbp.daddr, blk.entries[0].birth), (0x1000, Txg(99)));
        assert!(matches!(LogBlk::decode(&buf, 2), Err(Error::Truncated { .. })));
        assert!(matches!(LogBlk::decode(&buf, 1 << 60), Err(Error::Invalid { .. })));
    }
}
