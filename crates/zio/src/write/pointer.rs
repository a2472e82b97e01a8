//! Construction of pointers: the fields that do not depend on the block's addresses.

use base::bytes::with_bits;
use base::{Endian, Txg};
use codec::{ChecksumKind, Cksum, Compress};
use ondisk::{BlkPtr, Dva, EmbeddedType, ObjectType, SECTOR_SHIFT};

use super::{CryptParams, WriteProps};

/// Payload of an embedded pointer, at most (OpenZFS: `BPE_PAYLOAD_SIZE`).
pub(crate) const EMBEDDED_MAX: usize = 112;

const PROP: usize = 6;
const PROP2: usize = 7;
const BIRTH_PHYSICAL: usize = 9;
const BIRTH_LOGICAL: usize = 10;
const FILL: usize = 11;

fn prop(fields: &[(u32, u32, u64)]) -> u64 {
    fields.iter().fold(0, |word, (low, width, value)| with_bits(word, *low, *width, *value))
}

fn sectors(bytes: usize) -> u64 {
    (bytes as u64 >> SECTOR_SHIFT).wrapping_sub(1)
}

/// A hole, with its birth txg if `birth` is given.
pub(crate) fn hole(object_type: ObjectType, level: u8, lsize: usize, birth: Option<Txg>) -> BlkPtr {
    let mut bp = BlkPtr::HOLE;
    if let Some(Txg(txg)) = birth {
        bp.words[PROP] = prop(&[(0, 16, sectors(lsize)), (48, 8, u64::from(object_type.0)), (56, 5, u64::from(level))]);
        bp.words[BIRTH_LOGICAL] = txg;
    }
    bp
}

/// The payload of an embedded pointer.
pub(crate) struct Embedded<'a> {
    /// As stored.
    pub(crate) payload: &'a [u8],
    pub(crate) lsize: usize,
    pub(crate) compress: Compress,
    pub(crate) kind: EmbeddedType,
    pub(crate) byteorder: Endian,
}

/// A pointer that holds `payload`, at most [`EMBEDDED_MAX`] bytes.
pub(crate) fn embedded(props: &WriteProps, what: &Embedded<'_>, txg: Txg) -> BlkPtr {
    let Embedded { payload, lsize, compress, kind, byteorder } = *what;
    let number = match kind {
        EmbeddedType::Data => 0,
        EmbeddedType::Reserved => 1,
        EmbeddedType::Redacted => 2,
        EmbeddedType::Unknown(n) => n,
    };
    let mut bp = BlkPtr::HOLE;
    let mut padded = [0; EMBEDDED_MAX];
    padded.iter_mut().zip(payload).for_each(|(to, from)| *to = *from);
    let places = (0..16).filter(|n| *n != PROP && *n != BIRTH_LOGICAL);
    for (n, chunk) in places.zip(padded.as_chunks::<8>().0) {
        bp.words[n] = u64::from_le_bytes(*chunk);
    }
    bp.words[PROP] = prop(&[
        (0, 25, (lsize as u64).wrapping_sub(1)),
        (25, 7, (payload.len() as u64).wrapping_sub(1)),
        (32, 7, compress as u64),
        (39, 1, 1),
        (40, 8, number.into()),
        (48, 8, props.object_type.0.into()),
        (56, 5, props.level.into()),
        (63, 1, u64::from(byteorder == Endian::Little)),
    ]);
    bp.words[BIRTH_LOGICAL] = txg.0;
    bp
}

/// The properties of a stored block that its pointer records.
pub(crate) struct Shape {
    pub(crate) object_type: ObjectType,
    pub(crate) level: u8,
    pub(crate) lsize: usize,
    pub(crate) psize: usize,
    pub(crate) compress: Compress,
    pub(crate) checksum: ChecksumKind,
    pub(crate) endian: Endian,
}

impl Shape {
    /// The pointer without addresses, checksum and births.
    pub(crate) fn pointer(&self, fill: u64) -> BlkPtr {
        let mut bp = BlkPtr::HOLE;
        bp.words[PROP] = prop(&[
            (0, 16, sectors(self.lsize)),
            (16, 16, sectors(self.psize)),
            (32, 7, self.compress as u64),
            (40, 8, self.checksum as u64),
            (48, 8, self.object_type.0.into()),
            (56, 5, self.level.into()),
            (63, 1, u64::from(self.endian == Endian::Little)),
        ]);
        bp.words[FILL] = fill;
        bp
    }
}

/// Sets the births; a physical one that is the same is not stored (OpenZFS: `BP_SET_BIRTH`).
pub(crate) fn set_birth(bp: &mut BlkPtr, logical: Txg, physical: Txg) {
    bp.words[BIRTH_LOGICAL] = logical.0;
    bp.words[BIRTH_PHYSICAL] = if logical == physical { 0 } else { physical.0 };
}

/// Sets whether the block was moved without a change.
pub(crate) fn set_rewritten(bp: &mut BlkPtr, rewritten: bool) {
    bp.words[PROP2] = with_bits(bp.words[PROP2], 63, 1, rewritten.into());
}

/// Sets whether the block is in the dedup table.
pub(crate) fn set_dedup(bp: &mut BlkPtr, dedup: bool) {
    bp.words[PROP] = with_bits(bp.words[PROP], 62, 1, dedup.into());
}

/// Marks the block as encrypted or authenticated.
pub(crate) fn set_crypt(bp: &mut BlkPtr) {
    bp.words[PROP] = with_bits(bp.words[PROP], 61, 1, 1);
}

/// Sets checksum words 2 and 3, in the order of the pointer's writer.
pub(crate) fn set_mac(bp: &mut BlkPtr, mac: &[u8; 16]) {
    let endian = bp.endian();
    for (word, bytes) in [14, 15].into_iter().zip(mac.as_chunks::<8>().0) {
        bp.words[word] = endian.u64(*bytes);
    }
}

/// Stores salt and initialisation vector in the third address and the upper half of the fill count.
pub(crate) fn set_crypt_params(bp: &mut BlkPtr, params: &CryptParams) {
    let endian = bp.endian();
    bp.words[4] = endian.u64(params.salt.to_le_bytes());
    let [a, b, c, d, e, f, g, h, rest @ ..] = params.iv;
    bp.words[5] = endian.u64([a, b, c, d, e, f, g, h]);
    bp.words[FILL] = (bp.words[FILL] & u64::from(u32::MAX)) | u64::from(endian.u32(rest)) << 32;
}

/// Sets the checksum; with `mac` in place only its lower half.
pub(crate) fn set_cksum(bp: &mut BlkPtr, kind: ChecksumKind, sum: Cksum, truncated: bool) {
    let [a, b, c, d] = if truncated { kind.truncate(sum) } else { sum };
    (bp.words[12], bp.words[13]) = (a, b);
    if !truncated {
        (bp.words[14], bp.words[15]) = (c, d);
    }
}

/// Sets address `n`, of three.
pub(crate) fn set_dva(bp: &mut BlkPtr, n: usize, dva: Dva) {
    let Some(pair) = bp.words.as_chunks_mut::<2>().0.get_mut(..3).and_then(|dvas| dvas.get_mut(n)) else {
        panic!("address {n} of a block");
    };
    *pair = [dva.word0, dva.word1];
}
