//! The write properties of a block, by its type and level (OpenZFS: `dmu_write_policy`).

use codec::{ChecksumKind, Compress};
use ondisk::{DnodePhys, ObjectType};
use zio::WriteProps;

/// The metadata that gets one extra copy (property `redundant_metadata`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RedundantMetadata {
    /// All of it.
    #[default]
    All,
    /// All but the lowest indirect blocks.
    Most,
    /// Only the metadata without which a dataset is lost.
    Some,
    /// None.
    None,
}

/// The blocks of a dataset that the cache keeps (property `primarycache`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PrimaryCache {
    /// All of it.
    #[default]
    All,
    /// All but the contents of files and volumes.
    Metadata,
    /// Nothing.
    None,
}

impl PrimaryCache {
    /// Returns whether a block of `level` of an object of type `object_type` is cached.
    #[must_use]
    pub fn keeps(self, object_type: ObjectType, level: u8) -> bool {
        match self {
            PrimaryCache::All => true,
            PrimaryCache::Metadata => level > 0 || object_type.is_metadata(),
            PrimaryCache::None => false,
        }
    }
}

/// Indirect blocks from this level on get one extra copy under `redundant_metadata=most` (OpenZFS:
/// `zfs_redundant_metadata_most_ditto_level`).
const MOST_DITTO_LEVEL: u8 = 2;
/// Addresses in a block pointer.
const DVAS: u8 = 3;

/// The rules of an object set: its properties, resolved, and what the pool's features allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WritePolicy {
    /// Checksum of data.
    pub checksum: ChecksumKind,
    /// Compression of data.
    pub compress: Compress,
    /// Level of zstd.
    pub complevel: Option<i16>,
    /// Copies of data: 1 to 3.
    pub copies: u8,
    /// Checksum of deduplicated data and whether blocks are compared; `None` without dedup.
    pub dedup: Option<(ChecksumKind, bool)>,
    /// True if a block that equals the one it replaces is not written (needs a strong checksum and compression).
    pub nopwrite: bool,
    /// The metadata that gets one extra copy.
    pub redundant_metadata: RedundantMetadata,
    /// Compression of metadata: LZ4, or LZJB without feature `lz4_compress`.
    pub metadata_compress: Compress,
    /// Most copies in this pool: 3, 1 in pools of version 1 (OpenZFS: `spa_max_replication`).
    pub max_copies: u8,
    /// True if the dataset is encrypted.
    pub encrypt: bool,
    /// Feature `embedded_data`.
    pub embed: bool,
    /// Feature `hole_birth`.
    pub hole_birth: bool,
    /// Data blocks up to this many bytes go to the special class; 0 for none (property `special_small_blocks`).
    pub special_small: u64,
    /// The blocks kept in the cache after they are written or read.
    pub primary_cache: PrimaryCache,
    /// Data bypasses the cache in any case: no reader is expected soon (OpenZFS: `DMU_UNCACHEDIO`, and its *lightweight*
    /// writes).
    pub uncached: bool,
}

impl WritePolicy {
    /// The rules of the MOS: three copies of everything.
    #[must_use]
    pub fn mos() -> WritePolicy {
        WritePolicy { copies: DVAS, ..WritePolicy::default() }
    }

    /// The write properties of a block of `level` of the object under `dn`; without `dn`, of the object set's root block.
    #[must_use]
    pub fn props(&self, dn: Option<&DnodePhys>, level: u8, spill: bool) -> WriteProps {
        let object_type = dn.map_or(ObjectType::OBJSET, |dn| dn.object_type);
        let metadata = level > 0 || object_type.is_metadata() || spill;
        let mut props = WriteProps {
            object_type: match dn {
                Some(dn) if spill => dn.bonus_type,
                _ => object_type,
            },
            level,
            copies: self.copies,
            gang_copies: self.copies,
            encrypt: self.encrypt,
            embed: self.embed
                && !self.encrypt
                && level == 0
                && !matches!(object_type, ObjectType::DNODE | ObjectType::OBJSET),
            special_small: self.special_small,
            ..WriteProps::default()
        };
        match dn {
            Some(dn) if !metadata => self.data(dn, &mut props),
            _ => self.metadata(object_type, level, spill, &mut props),
        }
        let keeps = self.primary_cache;
        props.cache = if metadata { keeps != PrimaryCache::None } else { keeps == PrimaryCache::All && !self.uncached };
        if self.encrypt {
            if object_type.is_encrypted() {
                props.copies = props.copies.min(DVAS - 1);
                props.gang_copies = props.gang_copies.min(DVAS - 1);
                props.nopwrite = false;
            } else {
                props.dedup = None;
            }
            if level == 0 && matches!(object_type, ObjectType::DNODE | ObjectType::OBJSET) {
                props.compress = Compress::Empty;
            }
        }
        props.gang_copies = props.gang_copies.max(props.copies).min(self.max_copies);
        props.copies = props.copies.min(self.max_copies);
        props
    }

    fn metadata(&self, object_type: ObjectType, level: u8, spill: bool, props: &mut WriteProps) {
        props.compress = self.metadata_compress;
        props.complevel = None;
        props.checksum = if for_metadata(self.checksum) { self.checksum } else { ChecksumKind::Fletcher4 };
        let (more, gang_more) = match self.redundant_metadata {
            RedundantMetadata::All => (true, true),
            RedundantMetadata::Most => {
                let always = object_type.is_metadata() || spill;
                (always || level >= MOST_DITTO_LEVEL, always || level + 1 >= MOST_DITTO_LEVEL)
            }
            RedundantMetadata::Some => {
                let critical = is_critical(object_type, level);
                (critical, critical || object_type.is_metadata())
            }
            RedundantMetadata::None => (false, false),
        };
        props.copies += u8::from(more);
        props.gang_copies += u8::from(gang_more);
    }

    fn data(&self, dn: &DnodePhys, props: &mut WriteProps) {
        props.compress = match dn.compress {
            0 => self.compress,
            1 => self.metadata_compress,
            n => Compress::from_u8(n).unwrap_or(self.compress),
        };
        props.complevel = self.complevel.filter(|_| props.compress == Compress::Zstd);
        if props.compress == Compress::Off && self.dedup.is_some() {
            props.compress = Compress::Empty;
        }
        props.checksum = match (self.dedup, dn.checksum) {
            (Some((kind, _)), _) => kind,
            (None, 0) => self.checksum,
            (None, 1) => ChecksumKind::Fletcher4,
            (None, n) => ChecksumKind::from_u8(n).unwrap_or(self.checksum),
        };
        props.dedup = self.dedup.map(|(kind, verify)| verify || !kind.is_dedup());
        props.nopwrite =
            self.nopwrite && props.dedup.is_none() && for_nopwrite(props.checksum) && props.compress != Compress::Off;
        props.gang_copies += u8::from(self.redundant_metadata == RedundantMetadata::All);
    }
}

impl Default for WritePolicy {
    /// The rules of a dataset with default properties in a pool with all features.
    fn default() -> Self {
        WritePolicy {
            checksum: ChecksumKind::Fletcher4,
            compress: Compress::Lz4,
            complevel: None,
            copies: 1,
            dedup: None,
            nopwrite: true,
            redundant_metadata: RedundantMetadata::All,
            metadata_compress: Compress::Lz4,
            max_copies: DVAS,
            encrypt: false,
            embed: true,
            hole_birth: true,
            special_small: 0,
            primary_cache: PrimaryCache::All,
            uncached: false,
        }
    }
}

/// True for types without which a dataset is lost (OpenZFS: `DMU_OT_IS_CRITICAL`).
fn is_critical(object_type: ObjectType, level: u8) -> bool {
    object_type.is_metadata()
        && !matches!(object_type, ObjectType::DIRECTORY_CONTENTS | ObjectType::SA)
        && (object_type != ObjectType::DNODE || level > 0)
}

/// True if metadata may have this checksum (OpenZFS: `ZCHECKSUM_FLAG_METADATA`).
fn for_metadata(kind: ChecksumKind) -> bool {
    use ChecksumKind as K;
    matches!(kind, K::Fletcher4 | K::Sha256 | K::Sha512 | K::Skein | K::Edonr | K::Blake3)
}

/// True if equal checksums mean equal blocks (OpenZFS: `ZCHECKSUM_FLAG_NOPWRITE`).
fn for_nopwrite(kind: ChecksumKind) -> bool {
    use ChecksumKind as K;
    matches!(kind, K::Sha256 | K::Sha512 | K::Skein | K::Edonr | K::Blake3)
}
