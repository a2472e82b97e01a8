//! Dnode blocks: cores and block pointers stay clear, bonus buffers of encrypted types do not.
//!
//! These parts of each dnode are authenticated: its core of 64 bytes as on disk (flags masked to the portable one, space used zeroed), the
//! [`BpAuth`] of each block pointer including the spill pointer, and the bonus area if it is not encrypted. The bonus area extends to the
//! end of the dnode, or to the spill pointer; the slots of a large dnode belong to it. OpenZFS: `zio_crypt_init_uios_dnode`.

use base::{Endian, bytes};

use super::is_encrypted_type;
use super::parts::Parts;
use super::pointer::{BLKPTR, BpAuth};
use crate::Error;

/// Length of a dnode slot.
pub(super) const SLOT: usize = 512;
/// Length of a dnode's core; the block pointers follow.
pub(super) const CORE: usize = 64;
/// The only flag that is authenticated: the dnode has a spill pointer. OpenZFS: `DNODE_CRYPT_PORTABLE_FLAGS_MASK`.
pub(super) const FLAG_SPILL: u8 = 4;

const TYPE: usize = 0;
const NBLKPTR: usize = 3;
const BONUS_TYPE: usize = 4;
pub(super) const FLAGS: usize = 7;
const BONUS_LEN: usize = 10;
const EXTRA_SLOTS: usize = 12;
pub(super) const USED: usize = 24;

/// A dnode as stored in a block, with its parts.
pub(super) struct RawDnode<'a> {
    /// The bytes of all its slots.
    raw: &'a [u8],
    /// The range of the bonus area.
    bonus: std::ops::Range<usize>,
}

impl<'a> RawDnode<'a> {
    /// The dnode at the start of `raw`; `None` if it does not fit in `raw`, or its parts do not fit in it.
    pub(super) fn parse(raw: &'a [u8]) -> Option<RawDnode<'a>> {
        let slots = usize::from(bytes::u8(raw, EXTRA_SLOTS)?) + 1;
        let raw = raw.get(..slots * SLOT)?;
        let start = CORE + usize::from(bytes::u8(raw, NBLKPTR)?) * BLKPTR;
        let spill = bytes::u8(raw, FLAGS)? & FLAG_SPILL != 0;
        let end = if spill { raw.len() - BLKPTR } else { raw.len() };
        (start <= end).then_some(RawDnode { raw, bonus: start..end })
    }

    fn byte(&self, at: usize) -> u8 {
        bytes::u8(self.raw, at).unwrap_or(0)
    }

    /// Length in bytes, of all slots.
    pub(super) fn len(&self) -> usize {
        self.raw.len()
    }

    pub(super) fn is_free(&self) -> bool {
        self.byte(TYPE) == 0
    }

    /// The core's 64 bytes.
    pub(super) fn core(&self) -> [u8; CORE] {
        bytes::array(self.raw, 0).unwrap_or([0; CORE])
    }

    /// The block pointers, then the spill pointer if there is one.
    pub(super) fn blkptrs(&self) -> impl Iterator<Item = &'a [u8; BLKPTR]> {
        let direct = self.raw.get(CORE..self.bonus.start).unwrap_or_default();
        let spill = self.raw.get(self.bonus.end..).unwrap_or_default();
        direct.as_chunks().0.iter().chain(spill.as_chunks().0)
    }

    fn has_encrypted_bonus(&self) -> bool {
        // Zero is the same in either byte order.
        let empty = bytes::u16(self.raw, BONUS_LEN, Endian::NATIVE).unwrap_or(0) == 0;
        !self.is_free() && !empty && is_encrypted_type(self.byte(BONUS_TYPE))
    }
}

/// Splits a dnode block into its parts.
pub(super) fn parse(block: &[u8], version: u64, endian: Endian, parts: &mut Parts) -> Result<(), Error> {
    let mut at = 0;
    // A tail of less than a slot is not a dnode; blocks have none.
    while let Some(rest) = block.get(at..).filter(|r| r.len() >= SLOT) {
        let dnode = RawDnode::parse(rest)
            .ok_or(Error::Malformed { what: "encrypted dnode block", why: "a dnode extends beyond its end" })?;
        let mut core = dnode.core();
        mask_core(&mut core);
        parts.aad.extend(core);
        for bp in dnode.blkptrs() {
            parts.aad.extend(BpAuth::new(bp, version, endian).bytes());
        }
        let bonus = at + dnode.bonus.start..at + dnode.bonus.end;
        if dnode.has_encrypted_bonus() {
            parts.encrypted.push(bonus);
        } else {
            parts.aad.extend(block.get(bonus).unwrap_or_default());
        }
        at += dnode.len();
    }
    Ok(())
}

/// Clears the fields of a core that may differ between pools.
pub(super) fn mask_core(core: &mut [u8; CORE]) {
    if let Some(flags) = core.get_mut(FLAGS) {
        *flags &= FLAG_SPILL;
    }
    if let Some(used) = core.get_mut(USED..USED + 8) {
        used.fill(0);
    }
}
