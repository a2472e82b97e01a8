//! The uberblock (OpenZFS: `uberblock_t`).

use base::{Endian, Guid, Txg, bytes};

use crate::{BlkPtr, Error};

/// Magic number of an uberblock ("oo-ba-bloc!"), which identifies its byte order.
pub const UBERBLOCK_MAGIC: u64 = 0x00ba_b10c;
/// Magic number of valid multihost fields.
const MMP_MAGIC: u64 = 0xa11c_ea11;

/// The multihost (MMP) fields of an uberblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MmpConfig {
    /// Nanoseconds between the last multihost writes.
    pub delay_ns: u64,
    /// The configuration word as stored.
    pub config: u64,
}

impl MmpConfig {
    /// Multihost is off.
    pub const OFF: MmpConfig = MmpConfig { delay_ns: 0, config: 0 };

    /// Multihost is on: the time between the last writes, the expected interval and tolerated failures, and the sequence number of this
    /// write (bits beyond the width of a field are dropped).
    #[must_use]
    pub const fn on(delay_ns: u64, interval_ms: u64, fail_intervals: u64, seq: u16) -> MmpConfig {
        let config = 0b111 | (interval_ms & 0xff_ffff) << 8 | (seq as u64) << 32 | (fail_intervals & 0xffff) << 48;
        MmpConfig { delay_ns, config }
    }

    /// The same with another sequence number.
    #[must_use]
    pub const fn with_seq(self, seq: u16) -> MmpConfig {
        MmpConfig { config: self.config & !(0xffff << 32) | 0b10 | (seq as u64) << 32, ..self }
    }

    /// Milliseconds between multihost writes, if recorded.
    #[must_use]
    pub fn interval_ms(&self) -> Option<u64> {
        (self.config & 1 != 0).then(|| bytes::bits(self.config, 8, 24))
    }

    /// The sequence number of the write within its txg, if recorded.
    #[must_use]
    pub fn seq(&self) -> Option<u64> {
        (self.config & 2 != 0).then(|| bytes::bits(self.config, 32, 16))
    }

    /// The number of missed intervals after which the pool is suspended, if recorded.
    #[must_use]
    pub fn fail_intervals(&self) -> Option<u64> {
        (self.config & 4 != 0).then(|| bytes::bits(self.config, 48, 16))
    }
}

/// The root of a pool at one txg.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uberblock {
    /// 1 to 28, or 5000 (features).
    pub version: u64,
    /// The txg that this uberblock completes.
    pub txg: Txg,
    /// Sum of the guids of all vdevs, modulo 2^64.
    pub guid_sum: Guid,
    /// Seconds since 1970.
    pub timestamp: u64,
    /// The MOS.
    pub rootbp: BlkPtr,
    /// Highest pool version that the writer supported.
    pub software_version: u64,
    /// Multihost fields, if the writer recorded them.
    pub mmp: Option<MmpConfig>,
    /// Not zero in the uberblock of a checkpoint.
    pub checkpoint_txg: Txg,
    /// RAID-Z reflow: offset 55@0 in sectors, scratch state 9@55.
    pub raidz_reflow_info: u64,
    /// The byte order in which it was written.
    pub endian: Endian,
}

impl Uberblock {
    /// Bytes of the fields.
    pub const SIZE: usize = 216;

    /// Decodes an uberblock; its magic identifies the byte order. The caller checks the checksum of the slot.
    ///
    /// # Errors
    /// [`Error::BadMagic`] (an empty slot), [`Error::Truncated`].
    pub fn decode(buf: &[u8]) -> Result<Self, Error> {
        let what = "uberblock";
        let short = || Error::short(what, Self::SIZE, buf.len());
        let first = bytes::u64(buf, 0, Endian::Little).ok_or_else(short)?;
        let e = match first {
            UBERBLOCK_MAGIC => Endian::Little,
            n if n == UBERBLOCK_MAGIC.swap_bytes() => Endian::Big,
            found => return Err(Error::BadMagic { what, found }),
        };
        let word = |off| bytes::u64(buf, off, e).ok_or_else(short);
        let mmp = (word(176)? == MMP_MAGIC).then_some(MmpConfig { delay_ns: word(184)?, config: word(192)? });
        Ok(Uberblock {
            version: word(8)?,
            txg: Txg(word(16)?),
            guid_sum: Guid(word(24)?),
            timestamp: word(32)?,
            rootbp: BlkPtr::decode(buf.get(40..).unwrap_or(&[]), e)?,
            software_version: word(168)?,
            mmp,
            checkpoint_txg: Txg(word(200)?),
            raidz_reflow_info: word(208)?,
            endian: e,
        })
    }

    /// The fields as on disk, in the byte order of `self.endian`; zeros up to the slot's trailer follow.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let e = self.endian;
        let mut buf = [0; Self::SIZE];
        let mut put = |off: usize, word: u64| {
            if let Some(place) = buf.get_mut(off..off + 8) {
                place.copy_from_slice(&e.put_u64(word));
            }
        };
        put(0, UBERBLOCK_MAGIC);
        put(8, self.version);
        put(16, self.txg.0);
        put(24, self.guid_sum.0);
        put(32, self.timestamp);
        put(168, self.software_version);
        if let Some(mmp) = self.mmp {
            put(176, MMP_MAGIC);
            put(184, mmp.delay_ns);
            put(192, mmp.config);
        }
        put(200, self.checkpoint_txg.0);
        put(208, self.raidz_reflow_info);
        if let Some(place) = buf.get_mut(40..40 + crate::BLKPTR_SIZE) {
            place.copy_from_slice(&self.rootbp.encode(e));
        }
        buf
    }

    /// The order of preference among uberblocks: txg, then timestamp, then multihost sequence.
    #[must_use]
    pub fn rank(&self) -> (Txg, u64, u64) {
        (self.txg, self.timestamp, self.mmp.and_then(|m| m.seq()).unwrap_or(0))
    }

    /// Bytes that the RAID-Z reflow has completed (counted over the whole expanding vdev), 0 if none is running.
    #[must_use]
    pub const fn reflow_offset(&self) -> u64 {
        bytes::bits(self.raidz_reflow_info, 0, 55) << 9
    }

    /// The state of the reflow's scratch area: 0 unused, 1 valid, 2 invalid and synced, 3 and 4 invalid.
    #[must_use]
    pub const fn reflow_scratch_state(&self) -> u64 {
        bytes::bits(self.raidz_reflow_info, 55, 9)
    }
}
