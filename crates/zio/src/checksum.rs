//! Verification of a block's bytes against its pointer's checksum.

use base::Endian;
use codec::{ChecksumKind, Checksummer, Cksum, embedded};
use ondisk::{BlkPtr, ObjectType};

/// The checksum test that a block's physical bytes must pass, made once per pointer.
///
/// Pointers of encrypted datasets keep a MAC in words 2 and 3 (except those to object sets, whose MACs are inside): then only
/// words 0 and 1 of the truncated checksum count. OpenZFS: `zio_checksum_error_impl`.
pub(crate) struct Check<'a> {
    sums: &'a Checksummer,
    kind: ChecksumKind,
    expected: Cksum,
    truncated: bool,
    endian: Endian,
}

impl<'a> Check<'a> {
    /// The test for `bp`; `None` if its checksum number is not valid for a block.
    pub(crate) fn of(bp: &BlkPtr, sums: &'a Checksummer) -> Option<Self> {
        let kind = ChecksumKind::from_u8(bp.checksum())?;
        if matches!(kind, ChecksumKind::Label | ChecksumKind::GangHeader) {
            return None;
        }
        let truncated = uses_mac(bp);
        Some(Check { sums, kind, expected: bp.cksum(), truncated, endian: bp.endian() })
    }

    /// The name of the function.
    pub(crate) fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Returns whether the test can detect damage: not where checksums are off.
    pub(crate) fn tells(&self) -> bool {
        !matches!(self.kind, ChecksumKind::Off | ChecksumKind::Noparity)
    }

    /// Tests `data`.
    ///
    /// # Errors
    /// The checksum cannot be computed (no salt).
    pub(crate) fn test(&self, data: &[u8]) -> Result<bool, codec::Error> {
        match self.kind {
            ChecksumKind::Off | ChecksumKind::Noparity => Ok(true),
            ChecksumKind::Zilog | ChecksumKind::Zilog2 => {
                Ok(embedded::verify_zil(data, self.kind, &self.expected, self.truncated).is_ok())
            }
            kind => {
                let found = self.sums.compute(kind, data, self.endian)?;
                if !self.truncated {
                    return Ok(found == self.expected);
                }
                let [a, b, ..] = kind.truncate(found);
                Ok([a, b] == [self.expected[0], self.expected[1]])
            }
        }
    }
}

/// Returns whether half of the pointer's checksum is a MAC.
pub(crate) fn uses_mac(bp: &BlkPtr) -> bool {
    bp.uses_crypt() && bp.object_type() != ObjectType::OBJSET
}
