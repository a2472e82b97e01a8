//! Authentication without encryption: block pointers, indirect blocks, object sets.

use base::{Endian, bytes};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha512};

use super::dnode::{self, RawDnode};
use super::pointer::{BLKPTR, BpAuth};
use super::{KEY_VERSION, same_mac};
use crate::Error;

pub(super) type HmacSha512 = Hmac<Sha512>;

/// The MAC of an indirect block: `block` is its decompressed content, block pointers of order `endian`. Needs no key.
/// OpenZFS: `zio_crypt_do_indirect_mac_checksum`.
#[must_use]
pub fn indirect_mac(version: u64, block: &[u8], endian: Endian) -> [u8; 16] {
    let mut h = Sha512::new();
    for bp in block.as_chunks::<BLKPTR>().0 {
        h.update(BpAuth::new(bp, version, endian).bytes());
    }
    let digest: [u8; 64] = h.finalize().into();
    bytes::array(&digest, 0).unwrap_or([0; 16])
}

/// Checks the MAC of an indirect block, for the key format `version` of its dataset.
///
/// # Errors
/// [`Error::Authentication`].
pub fn verify_indirect_mac(version: u64, block: &[u8], endian: Endian, mac: [u8; 16]) -> Result<(), Error> {
    same_mac(&indirect_mac(version, block, endian), &mac, "indirect block")
}

/// Checks the MAC of an indirect block of a dataset whose key format is not known, as OpenZFS does: first today's format, then the old one.
///
/// # Errors
/// [`Error::Authentication`].
pub fn verify_indirect_mac_any(block: &[u8], endian: Endian, mac: [u8; 16]) -> Result<(), Error> {
    verify_indirect_mac(KEY_VERSION, block, endian, mac).or_else(|_| verify_indirect_mac(0, block, endian, mac))
}

/// The parts of an object set's block that its MACs need.
mod layout {
    pub(super) const TYPE: usize = 704;
    pub(super) const FLAGS: usize = 712;
    pub(super) const FLAG_USER_ACCOUNTED: u64 = 1;
    pub(super) const PORTABLE_MAC: usize = 720;
    pub(super) const LOCAL_MAC: usize = 752;
    /// Offsets of the user, group and project accounting dnodes.
    pub(super) const USED_DNODES: [usize; 3] = [1024, 1536, 2048];
    /// Sizes of the block: without accounting; with users and groups; with projects too.
    pub(super) const SIZES: [usize; 3] = [1024, 2048, 4096];
}

/// The two MACs of an object set: (portable, local). OpenZFS: `zio_crypt_do_objset_hmacs`.
pub(super) fn objset_macs(
    hmac: &HmacSha512,
    version: u64,
    objset: &[u8],
    endian: Endian,
) -> Result<([u8; 32], [u8; 32]), Error> {
    let short = || Error::Length { what: "objset", len: objset.len() };
    if !layout::SIZES.contains(&objset.len()) {
        return Err(short());
    }
    let flags = bytes::u64(objset, layout::FLAGS, endian).ok_or_else(short)?;
    let kind = bytes::u64(objset, layout::TYPE, endian).ok_or_else(short)?;

    let mut h = hmac.clone();
    // Only the type is big-endian; none of the flags is portable.
    h.update(&kind.to_be_bytes());
    h.update(&[0; 8]);
    update_dnode(&mut h, version, objset, 0, endian)?;
    let portable = first_half(h);

    let used = |n: usize| -> Result<Option<usize>, Error> {
        let at = *layout::USED_DNODES.get(n).ok_or_else(short)?;
        Ok(bytes::u8(objset, at).filter(|t| *t != 0).map(|_| at))
    };
    let (user, group, project) = (used(0)?, used(1)?, used(2)?);
    if flags & layout::FLAG_USER_ACCOUNTED == 0 || (user.is_none() && group.is_none()) {
        return Ok((portable, [0; 32]));
    }
    let mut h = hmac.clone();
    h.update(&flags.to_le_bytes());
    for at in [user, group, project].into_iter().flatten() {
        update_dnode(&mut h, version, objset, at, endian)?;
    }
    Ok((portable, first_half(h)))
}

/// Checks both MACs of an object set against those in it.
pub(super) fn verify_objset(hmac: &HmacSha512, version: u64, objset: &[u8], endian: Endian) -> Result<(), Error> {
    let (portable, local) = objset_macs(hmac, version, objset, endian)?;
    let stored = |at| bytes::array::<32>(objset, at).ok_or(Error::Length { what: "objset", len: objset.len() });
    same_mac(&portable, &stored(layout::PORTABLE_MAC)?, "objset (portable MAC)")?;
    // Without complete accounting there is nothing to protect, and the stored MAC does not matter.
    if local == [0; 32] {
        return Ok(());
    }
    same_mac(&local, &stored(layout::LOCAL_MAC)?, "objset (local MAC)")
}

/// Adds the dnode at `at` to a MAC, in little-endian form whatever the block's order: core, then block pointers. OpenZFS:
/// `zio_crypt_do_dnode_hmac_updates`.
fn update_dnode(h: &mut HmacSha512, version: u64, objset: &[u8], at: usize, endian: Endian) -> Result<(), Error> {
    let bad = Error::Malformed { what: "objset", why: "one of its dnodes is malformed" };
    let raw = objset.get(at..at + dnode::SLOT).ok_or(bad.clone())?;
    let dnode = RawDnode::parse(raw).ok_or(bad)?;
    let mut core = dnode.core();
    if endian == Endian::Big {
        // data block size, bonus length; last block id; (space used is zeroed)
        for swapped in [8..10, 10..12, 16..24] {
            if let Some(field) = core.get_mut(swapped) {
                field.reverse();
            }
        }
    }
    dnode::mask_core(&mut core);
    h.update(&core);
    for bp in dnode.blkptrs() {
        h.update(BpAuth::new(bp, version, endian).bytes());
    }
    Ok(())
}

fn first_half(h: HmacSha512) -> [u8; 32] {
    let digest: [u8; 64] = h.finalize().into_bytes().into();
    bytes::array(&digest, 0).unwrap_or([0; 32])
}
