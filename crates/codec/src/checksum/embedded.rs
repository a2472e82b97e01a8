//! Embedded checksums: labels, gang headers, intent-log blocks.
//!
//! A trailer of 40 bytes, {magic, four words}, is at the end of the block (in a `zilog2` block, in the chain structure at its front).
//! Before the checksum is computed, the words are set to a *verifier* that identifies the block's position, so that a stale or misplaced
//! block with an intact checksum is still detected; then the checksum replaces the verifier. The trailer is in the writer's byte order,
//! which its magic number shows. OpenZFS: `zio_eck_t`, `zio_checksum_error_impl`.

use base::{Endian, bytes};
use sha2::{Digest, Sha256};

use super::fletcher::{Fletcher2, Fletcher4};
use super::{ChecksumKind, Cksum, words};
use crate::Error;

/// First word of a trailer. OpenZFS: `ZEC_MAGIC`.
pub const MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// Length of a trailer in bytes: the magic number and four words.
pub const TRAILER: usize = 40;

/// Length of the chain structure of an intent-log block. OpenZFS: `zil_chain_t`.
pub const ZIL_CHAIN: usize = 184;
/// Offset of the count of bytes in use within the chain structure.
const ZIL_NUSED: usize = 136;
/// Offset of the trailer within the chain structure.
const ZIL_TRAILER: usize = 144;
/// The bytes in use are rounded up to a multiple of this before they are summed. OpenZFS: `ZIL_MIN_BLKSZ`.
const ZIL_ROUND: u64 = 4096;

/// Checks an area of a label (an nvlist, a boot block, an uberblock) that is at byte `offset` of its device.
///
/// Returns the writer's byte order.
///
/// # Errors
/// [`Error::NoTrailer`], [`Error::Checksum`].
pub fn verify_label(area: &[u8], offset: u64) -> Result<Endian, Error> {
    verify_sha256(area, [offset, 0, 0, 0], "label", ChecksumKind::Label)
}

/// Writes the trailer of a label area that will be at byte `offset` of its device. An area too short for a trailer is left unchanged.
pub fn seal_label(area: &mut [u8], offset: u64, endian: Endian) {
    seal_sha256(area, [offset, 0, 0, 0], endian);
}

/// Checks a gang header that was read through a pointer with this device, byte offset and physical birth.
///
/// # Errors
/// [`Error::NoTrailer`], [`Error::Checksum`].
pub fn verify_gang(header: &[u8], vdev: u64, offset: u64, birth: u64) -> Result<Endian, Error> {
    verify_sha256(header, [vdev, offset, birth, 0], "gang header", ChecksumKind::GangHeader)
}

/// Writes the trailer of a gang header.
pub fn seal_gang(header: &mut [u8], vdev: u64, offset: u64, birth: u64, endian: Endian) {
    seal_sha256(header, [vdev, offset, birth, 0], endian);
}

/// Checks an intent-log block against the checksum words of the pointer to it (its identity: two guids, the object set, the sequence
/// number), and returns its byte order.
///
/// If `encrypted`, the upper half of the stored checksum is the MAC, and only the lower half is checked.
///
/// # Errors
/// [`Error::NoTrailer`], [`Error::Checksum`], [`Error::Length`]; [`Error::Embedded`] if `kind` is not one of an intent log.
pub fn verify_zil(block: &[u8], kind: ChecksumKind, verifier: &Cksum, encrypted: bool) -> Result<Endian, Error> {
    let what = "intent log block";
    let (at, end, endian) = zil_trailer(block, kind)?;
    let (Some(stored), Some(actual)) = (stored(block, at, endian), zil_sum(block, kind, at, end, verifier, endian))
    else {
        return Err(Error::Length { what, len: block.len() });
    };
    let same = if encrypted {
        let ([a, b, ..], [c, d, ..]) = (kind.truncate(actual), stored);
        a == c && b == d
    } else {
        actual == stored
    };
    if same { Ok(endian) } else { Err(Error::Checksum { what, kind }) }
}

/// Writes the trailer of an intent-log block, whose count of bytes in use must be set; with `mac`, that of an encrypted block, whose words
/// 2 and 3 are the MAC.
///
/// # Errors
/// [`Error::Length`] if the block is too short for its count of bytes in use; [`Error::Embedded`] for another kind.
pub fn seal_zil(
    block: &mut [u8],
    kind: ChecksumKind,
    verifier: &Cksum,
    mac: Option<[u8; 16]>,
    endian: Endian,
) -> Result<(), Error> {
    let what = "intent log block";
    let short = Error::Length { what, len: block.len() };
    let at = match kind {
        ChecksumKind::Zilog2 => ZIL_TRAILER,
        ChecksumKind::Zilog => block.len().checked_sub(TRAILER).ok_or(short.clone())?,
        other => return Err(Error::Embedded(other)),
    };
    put(block, at, &endian.put_u64(MAGIC)).ok_or(short.clone())?;
    let (at, end, _) = zil_trailer(block, kind)?;
    let sum = zil_sum(block, kind, at, end, verifier, endian).ok_or(short.clone())?;
    let mut sum = encode(if mac.is_some() { kind.truncate(sum) } else { sum }, endian);
    if let (Some(mac), Some(half)) = (mac, sum.last_chunk_mut::<16>()) {
        *half = mac;
    }
    put(block, at + 8, &sum).ok_or(short)
}

/// The offset of the trailer of an intent-log block, the end of the summed bytes, and the byte order.
fn zil_trailer(block: &[u8], kind: ChecksumKind) -> Result<(usize, usize, Endian), Error> {
    let what = "intent log block";
    let short = Error::Length { what, len: block.len() };
    match kind {
        ChecksumKind::Zilog2 => {
            let endian = magic(block, ZIL_TRAILER).ok_or(Error::NoTrailer { what })?;
            let used = bytes::u64(block, ZIL_NUSED, endian).ok_or(short.clone())?;
            let end = used.checked_next_multiple_of(ZIL_ROUND).and_then(|n| usize::try_from(n).ok());
            match end {
                Some(end) if end <= block.len() && end >= ZIL_CHAIN => Ok((ZIL_TRAILER, end, endian)),
                _ => Err(short),
            }
        }
        ChecksumKind::Zilog => {
            let at = block.len().checked_sub(TRAILER).ok_or(short)?;
            Ok((at, block.len(), magic(block, at).ok_or(Error::NoTrailer { what })?))
        }
        other => Err(Error::Embedded(other)),
    }
}

/// The checksum of an intent-log block, with the verifier in place of the stored words.
fn zil_sum(block: &[u8], kind: ChecksumKind, at: usize, end: usize, verifier: &Cksum, endian: Endian) -> Option<Cksum> {
    let verifier = encode(*verifier, endian);
    let front = block.get(..at + 8)?;
    let back = block.get(at + TRAILER..end)?;
    if kind == ChecksumKind::Zilog {
        let mut f = Fletcher2::default();
        f.update(front, endian);
        f.update(&verifier, endian);
        f.update(back, endian);
        Some(f.value())
    } else {
        let mut f = Fletcher4::new();
        f.update(front, endian);
        f.update(&verifier, endian);
        f.update(back, endian);
        Some(f.value())
    }
}

fn verify_sha256(area: &[u8], verifier: Cksum, what: &'static str, kind: ChecksumKind) -> Result<Endian, Error> {
    let at = area.len().checked_sub(TRAILER).ok_or(Error::Length { what, len: area.len() })?;
    let endian = magic(area, at).ok_or(Error::NoTrailer { what })?;
    let expected = stored(area, at, endian);
    if expected.is_some() && expected == sum_sha256(area, at, verifier, endian) {
        Ok(endian)
    } else {
        Err(Error::Checksum { what, kind })
    }
}

fn seal_sha256(area: &mut [u8], verifier: Cksum, endian: Endian) {
    let Some(at) = area.len().checked_sub(TRAILER) else { return };
    let sealed = put(area, at, &endian.put_u64(MAGIC));
    let sum = sum_sha256(area, at, verifier, endian);
    if let (Some(()), Some(sum)) = (sealed, sum) {
        let done = put(area, at + 8, &encode(sum, endian));
        debug_assert!(done.is_some());
    }
}

fn sum_sha256(area: &[u8], at: usize, verifier: Cksum, endian: Endian) -> Option<Cksum> {
    let mut h = Sha256::new();
    h.update(area.get(..at + 8)?);
    h.update(encode(verifier, endian));
    Some(words(&h.finalize().into(), Endian::Big))
}

/// The byte order of the trailer at `at`, if there is one.
fn magic(block: &[u8], at: usize) -> Option<Endian> {
    let found = bytes::u64(block, at, Endian::Little)?;
    if found == MAGIC {
        Some(Endian::Little)
    } else if found == MAGIC.swap_bytes() {
        Some(Endian::Big)
    } else {
        None
    }
}

fn stored(block: &[u8], at: usize, endian: Endian) -> Option<Cksum> {
    let raw = bytes::array::<32>(block, at + 8)?;
    Some(words(&raw, endian))
}

fn encode(c: Cksum, endian: Endian) -> [u8; 32] {
    let mut out = [0; 32];
    for (o, w) in out.as_chunks_mut::<8>().0.iter_mut().zip(c) {
        *o = endian.put_u64(w);
    }
    out
}

fn put(block: &mut [u8], at: usize, bytes: &[u8]) -> Option<()> {
    block.get_mut(at..at.checked_add(bytes.len())?)?.copy_from_slice(bytes);
    Some(())
}
