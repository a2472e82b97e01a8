//! How a dataset's blocks are written, by its properties (OpenZFS: `checksum_changed_cb` and the like).

use base::ObjectId;
use codec::{ChecksumKind, Compress};
use dmu::{PrimaryCache, RedundantMetadata, WritePolicy};
use ondisk::dsl::dir_keys;

use crate::spa::Spa;
use crate::spa::mos::Mos;
use crate::spa::prop::{self, PropDef};
use crate::{Error, Value};

/// The value `on` of checksum, compression and dedup.
const ON: u64 = 1;
const OFF: u64 = 2;
/// The bit in the value of `dedup` that has blocks compared (OpenZFS: `ZIO_CHECKSUM_VERIFY`).
const VERIFY: u64 = 1 << 8;
/// Position of the level of zstd in the value of `compression` (OpenZFS: `SPA_COMPRESSBITS`).
const LEVEL_SHIFT: u32 = 7;

impl Spa {
    /// Returns the rules of the dataset in directory `dir`, as its properties are now.
    pub(in crate::dsl) fn policy_of(&self, mos: &Mos, dir: ObjectId) -> Result<WritePolicy, Error> {
        // a stored value that no property can have counts as unset
        let number = |name: &str| -> Result<u64, Error> {
            let def = prop::find(name);
            let n = mos.prop_number(dir, name)?;
            let known = def.is_none_or(|def| prop::check_kind(def, &Value::Number(n)).is_ok());
            Ok(if known { n } else { def.map_or(0, PropDef::default_number) })
        };
        let plain = self.plain_policy(mos, WritePolicy::default())?;
        let default_compress = plain.metadata_compress;
        let (compress, complevel) = match number("compression")? {
            ON => (default_compress, None),
            value => {
                let level = (value >> LEVEL_SHIFT) as i16;
                let kind = Compress::from_u8((value & ((1 << LEVEL_SHIFT) - 1)) as u8).unwrap_or(default_compress);
                (kind, (level != 0).then_some(level))
            }
        };
        let dedup = match number("dedup")? {
            0 | OFF => None,
            value if value & !VERIFY == ON => Some((ChecksumKind::Sha256, value & VERIFY != 0)),
            value => ChecksumKind::from_u8((value & !VERIFY) as u8).map(|kind| (kind, value & VERIFY != 0)),
        };
        Ok(WritePolicy {
            checksum: match number("checksum")? {
                ON => ChecksumKind::Fletcher4,
                value => ChecksumKind::from_u8(value as u8).unwrap_or(ChecksumKind::Fletcher4),
            },
            compress,
            complevel,
            copies: number("copies")?.clamp(1, 3) as u8,
            dedup,
            redundant_metadata: match number("redundant_metadata")? {
                1 => RedundantMetadata::Most,
                2 => RedundantMetadata::Some,
                3 => RedundantMetadata::None,
                _ => RedundantMetadata::All,
            },
            encrypt: mos.extra_id(dir, dir_keys::CRYPTO_KEY_OBJ)?.is_some(),
            special_small: number("special_small_blocks")?,
            primary_cache: primary_cache(number("primarycache")?),
            ..plain
        })
    }
}

/// Decodes a value of property `primarycache`.
pub(in crate::dsl) fn primary_cache(value: u64) -> PrimaryCache {
    match value {
        0 => PrimaryCache::None,
        1 => PrimaryCache::Metadata,
        _ => PrimaryCache::All,
    }
}
