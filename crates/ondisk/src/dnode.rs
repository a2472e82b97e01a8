//! The dnode (OpenZFS: `dnode_phys_t`).

use base::{Endian, bytes};

use crate::{BLKPTR_SIZE, BlkPtr, Error, ObjectType, byteswap};

/// log2 of the smallest dnode.
pub const DNODE_SHIFT: u32 = 9;
/// The smallest dnode, and the unit ("slot") of larger ones.
pub const DNODE_SIZE: usize = 512;
const CORE: usize = 64;

/// A dnode: 512 to 16 384 bytes, in units of 512.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DnodePhys {
    /// Type of the object; [`ObjectType::NONE`] for a free slot.
    pub object_type: ObjectType,
    /// log2 of the size of its indirect blocks.
    pub indblkshift: u8,
    /// 1 when the pointers point at data, n+1 when at indirect blocks of level n.
    pub nlevels: u8,
    /// Type of the bonus buffer.
    pub bonus_type: ObjectType,
    /// Checksum for new blocks, 0 inherits.
    pub checksum: u8,
    /// Compression for new blocks, 0 inherits.
    pub compress: u8,
    /// See the `FLAG_` constants.
    pub flags: u8,
    /// Data block size in sectors of 512 bytes.
    pub datablkszsec: u16,
    /// Slots beyond the first.
    pub extra_slots: u8,
    /// Highest block id ever written at level 0.
    pub maxblkid: u64,
    /// Space used: bytes, or sectors without [`DnodePhys::FLAG_USED_BYTES`].
    pub used: u64,
    /// 1 to 3 block pointers.
    pub blkptr: Vec<BlkPtr>,
    /// The bonus buffer, in the writer's byte order.
    pub bonus: Vec<u8>,
    /// The spill block, if any.
    pub spill: Option<BlkPtr>,
    /// The pad bytes 13–15 and 32–63, which MACs cover.
    pub pad: [u8; 35],
    /// The byte order in which the dnode was written, and so that of `bonus`.
    pub endian: Endian,
}

impl DnodePhys {
    /// `used` counts bytes.
    pub const FLAG_USED_BYTES: u8 = 1;
    /// The space is in the user and group accounting.
    pub const FLAG_USERUSED_ACCOUNTED: u8 = 2;
    /// The last 128 bytes hold a spill block pointer.
    pub const FLAG_SPILL_BLKPTR: u8 = 4;
    /// The object is in the per-user object counts.
    pub const FLAG_USEROBJUSED_ACCOUNTED: u8 = 8;

    /// Decodes the dnode at the front of `buf`, which may hold more dnodes behind it.
    ///
    /// # Errors
    /// [`Error::Truncated`] if its slots extend beyond `buf`; [`Error::Invalid`] for impossible levels, pointer counts, block sizes or
    /// bonus lengths. A free slot decodes (type NONE, no pointers).
    pub fn decode(buf: &[u8], endian: Endian) -> Result<Self, Error> {
        let what = "dnode";
        let bad = |field, value: u64| Error::Invalid { what, field, value };
        let head: [u8; CORE] = bytes::array(buf, 0).ok_or(Error::short(what, DNODE_SIZE, buf.len()))?;
        let byte = |n: usize| head.get(n).copied().unwrap_or(0);
        let mut pad = [0; 35];
        pad[..3].copy_from_slice(&head[13..16]);
        pad[3..].copy_from_slice(&head[32..64]);
        let mut dn = DnodePhys {
            object_type: ObjectType(byte(0)),
            indblkshift: byte(1),
            nlevels: byte(2),
            bonus_type: ObjectType(byte(4)),
            checksum: byte(5),
            compress: byte(6),
            flags: byte(7),
            datablkszsec: endian.u16([head[8], head[9]]),
            extra_slots: byte(12),
            maxblkid: bytes::u64(&head, 16, endian).unwrap_or(0),
            used: bytes::u64(&head, 24, endian).unwrap_or(0),
            blkptr: Vec::new(),
            bonus: Vec::new(),
            spill: None,
            pad,
            endian,
        };
        if dn.object_type == ObjectType::NONE {
            return Ok(dn);
        }
        let size = dn.size();
        let buf = buf.get(..size).ok_or(Error::short(what, size, buf.len()))?;
        let nblkptr = usize::from(byte(3));
        if !(1..=3).contains(&nblkptr) {
            return Err(bad("number of block pointers", nblkptr as u64));
        }
        if dn.nlevels == 0 || dn.nlevels > 16 {
            return Err(bad("number of levels", dn.nlevels.into()));
        }
        // checked even if there are no indirect blocks yet: the object may grow
        if !(10..=17).contains(&dn.indblkshift) {
            return Err(bad("indirect block shift", dn.indblkshift.into()));
        }
        if u64::from(dn.datablkszsec) << 9 > crate::SPA_MAXBLOCKSIZE {
            return Err(bad("data block size", dn.datablkszsec.into()));
        }
        for n in 0..nblkptr {
            dn.blkptr.push(BlkPtr::decode(buf.get(CORE + n * BLKPTR_SIZE..).unwrap_or(&[]), endian)?);
        }
        let has_spill = dn.flags & Self::FLAG_SPILL_BLKPTR != 0;
        let bonus_end = if has_spill { size - BLKPTR_SIZE } else { size };
        let bonus_start = CORE + nblkptr * BLKPTR_SIZE;
        let bonus_len = usize::from(endian.u16([head[10], head[11]]));
        let bonus = buf.get(bonus_start..bonus_end).and_then(|b| b.get(..bonus_len));
        dn.bonus = bonus.ok_or(bad("bonus length", bonus_len as u64))?.to_vec();
        if has_spill {
            dn.spill = Some(BlkPtr::decode(buf.get(bonus_end..).unwrap_or(&[]), endian)?);
        }
        Ok(dn)
    }

    /// Encodes the dnode into [`DnodePhys::size`] bytes, in its own byte order. Bytes between the bonus and the end are zero.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let e = self.endian;
        let mut out = vec![0; self.size()];
        let mut put = |at: usize, b: &[u8]| {
            if let Some(place) = out.get_mut(at..at + b.len()) {
                place.copy_from_slice(b);
            }
        };
        put(
            0,
            &[
                self.object_type.0,
                self.indblkshift,
                self.nlevels,
                self.blkptr.len() as u8,
                self.bonus_type.0,
                self.checksum,
                self.compress,
                self.flags,
            ],
        );
        put(8, &e.put_u16(self.datablkszsec));
        put(10, &e.put_u16(self.bonus.len() as u16));
        put(12, &[self.extra_slots]);
        put(13, &self.pad[..3]);
        put(16, &e.put_u64(self.maxblkid));
        put(24, &e.put_u64(self.used));
        put(32, &self.pad[3..]);
        for (n, bp) in self.blkptr.iter().enumerate() {
            put(CORE + n * BLKPTR_SIZE, &bp.encode(e));
        }
        put(CORE + self.blkptr.len() * BLKPTR_SIZE, &self.bonus);
        if let Some(spill) = &self.spill {
            put(self.size() - BLKPTR_SIZE, &spill.encode(e));
        }
        out
    }

    /// The dnode in the form for a little-endian block: its bonus buffer is converted if it is big-endian.
    ///
    /// # Errors
    /// As [`byteswap::to_little`].
    pub fn into_little(mut self) -> Result<Self, Error> {
        byteswap::to_little(self.bonus_type, self.endian, &mut self.bonus)?;
        self.endian = Endian::Little;
        Ok(self)
    }

    /// Slots of 512 bytes that the dnode takes.
    #[must_use]
    pub fn slots(&self) -> usize {
        usize::from(self.extra_slots) + 1
    }

    /// Bytes that the dnode takes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.slots() * DNODE_SIZE
    }

    /// Bytes that the bonus buffer may have, with or without a spill block (OpenZFS: `DN_MAX_BONUS_LEN`).
    #[must_use]
    pub fn max_bonus(&self, spill: bool) -> usize {
        self.size().saturating_sub(CORE + (self.blkptr.len() + usize::from(spill)) * BLKPTR_SIZE)
    }

    /// True if pointers and bonus buffer leave space for a spill block pointer.
    #[must_use]
    pub fn fits_spill(&self) -> bool {
        CORE + (self.blkptr.len() + 1) * BLKPTR_SIZE + self.bonus.len() <= self.size()
    }

    /// Size of a data block in bytes.
    #[must_use]
    pub fn datablksz(&self) -> u64 {
        u64::from(self.datablkszsec) << 9
    }

    /// log2 of the number of pointers in an indirect block of this object.
    #[must_use]
    pub fn fanout_shift(&self) -> u32 {
        u32::from(self.indblkshift).saturating_sub(7)
    }

    /// Space used in bytes.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        if self.flags & Self::FLAG_USED_BYTES != 0 { self.used } else { self.used.saturating_mul(512) }
    }
}
