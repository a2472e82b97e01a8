//! The BEGIN record: the features that the stream requires of its receiver, and the dataset's keys.

use base::{Guid, ObjectId};
use nvlist::{Encoding, NvList};
use ondisk::ObjsetType;
use ondisk::dsl::DslDatasetPhys;
use ondisk::send::{
    Begin, DMU_BACKUP_MAGIC, DRR_FLAG_CI_DATA, DRR_FLAG_CLONE, DRR_FLAG_FREERECORDS, DRR_FLAG_SPILL_BLOCK, feature,
};
use pool::{Dataset, KeyFormat};

use super::{Base, Error, OURS, SendFlags};

/// Header type of a stream of one dataset (OpenZFS: `DMU_SUBSTREAM`).
const SUBSTREAM: u64 = 1;
/// File systems from this version on have system attributes (OpenZFS: `ZPL_VERSION_SA`).
const ZPL_VERSION_SA: u64 = 5;
/// The version of wrapped keys that raw streams carry (OpenZFS: `ZIO_CRYPT_KEY_CURRENT_VERSION`).
const KEY_VERSION: u64 = 1;

/// Returns the feature flags of a stream of `to` (OpenZFS: `setup_featureflags`).
pub(super) fn features(to: &Dataset, flags: &SendFlags) -> Result<u64, Error> {
    let pool = to.pool();
    let encrypted = to.is_encrypted()?;
    let uses = |name: &str| to.feature_active(name).map_err(Error::from);
    let raw = flags.raw && encrypted;
    let mut features = 0;
    let mut set = |flag: u64, on: bool| features |= if on { flag } else { 0 };
    set(feature::SA_SPILL, has_attributes(to)?);
    let large = (flags.raw || flags.large_block) && uses("large_blocks")?;
    set(feature::LARGE_BLOCKS, large);
    let embed = (flags.embed || flags.raw) && !encrypted && pool.feature_active("embedded_data");
    set(feature::EMBED_DATA, embed);
    let compressed = flags.compress || flags.raw;
    set(feature::COMPRESSED, compressed);
    set(feature::RAW, raw);
    set(feature::LZ4, (embed || compressed) && pool.feature_active("lz4_compress"));
    set(feature::ZSTD, compressed && uses("zstd_compress")?);
    set(feature::RESUMING, flags.resume.is_some());
    set(feature::REDACTED, to.is_redacted()?);
    set(feature::LARGE_DNODE, uses("large_dnode")?);
    set(feature::LONGNAME, uses("longname")?);
    if uses("large_microzap")? {
        // such a block must not be split
        if !large {
            return Err(Error::LargeMicrozap { name: to.name().to_owned() });
        }
        set(feature::LARGE_MICROZAP, true);
    }
    Ok(features)
}

fn has_attributes(to: &Dataset) -> Result<bool, Error> {
    let objset = to.objset()?;
    if objset.phys().os_type != ObjsetType::Zfs {
        return Ok(false);
    }
    let master = dmu::Zap::open(objset.object(ObjectId::MASTER_NODE)?)?;
    Ok(master.lookup_u64("VERSION")?.unwrap_or(0) >= ZPL_VERSION_SA)
}

/// Returns the record and its payload, padded to 8 bytes.
pub(super) fn begin(
    to: &Dataset,
    base: Option<&Base>,
    flags: &SendFlags,
    features: u64,
) -> Result<(Begin, Vec<u8>), Error> {
    let phys = to.phys();
    let objset = to.objset()?;
    let name = if to.is_snapshot() { to.name().to_owned() } else { format!("{}@--head--", to.name()) };
    let (toguid, name) = match &flags.saved {
        Some(saved) => (saved.guid, saved.name.clone()),
        None => (phys.guid, name),
    };
    let mut toname = Box::new([0; 256]);
    toname.iter_mut().zip(name.as_bytes().iter().take(255)).for_each(|(to, from)| *to = *from);
    let flag = |flag, on| if on { flag } else { 0 };
    let record = Begin {
        magic: DMU_BACKUP_MAGIC,
        versioninfo: SUBSTREAM | features << 2,
        creation_time: phys.creation_time,
        objset_type: u64::from(objset.phys().os_type) as u32,
        flags: DRR_FLAG_FREERECORDS
            | DRR_FLAG_SPILL_BLOCK
            | flag(DRR_FLAG_CLONE, base.is_some_and(|base| base.is_clone))
            | flag(DRR_FLAG_CI_DATA, phys.flags & DslDatasetPhys::FLAG_CI_DATASET != 0),
        toguid,
        fromguid: base.map_or(base::Guid(0), |base| base.guid),
        toname,
    };
    let list = payload(to, base, flags, features)?;
    if list.is_empty() {
        return Ok((record, Vec::new()));
    }
    let mut packed = list.pack(Encoding::Xdr, OURS)?;
    packed.resize(packed.len().next_multiple_of(8), 0);
    Ok((record, packed))
}

/// Guids as a list has them.
fn words(guids: &[Guid]) -> Vec<u64> {
    guids.iter().map(|guid| guid.0).collect()
}

fn payload(to: &Dataset, base: Option<&Base>, flags: &SendFlags, features: u64) -> Result<NvList, Error> {
    let mut list = NvList::new();
    if let Some(guids) = to.redact_snaps()? {
        list.insert("redact_snaps", words(&guids));
    }
    if let Some(guids) = base.and_then(|base| base.redact_snaps.clone()) {
        list.insert("redact_from_snaps", words(&guids));
    }
    if let Some(at) = flags.resume {
        list.insert("resume_object", at.object.0);
        list.insert("resume_offset", at.offset);
    }
    if features & feature::RAW != 0 {
        list.insert("crypt_keydata", keys(to, base.map(|base| base.ivset_guid).unwrap_or_default())?);
    }
    Ok(list)
}

/// Returns the wrapped keys of an encrypted dataset, and the layout of its dnodes (OpenZFS: `dsl_crypto_populate_key_nvlist`).
fn keys(to: &Dataset, from_ivset_guid: Guid) -> Result<NvList, Error> {
    let old = || Error::OldKeys { name: to.name().to_owned() };
    let info = to.crypto()?.ok_or_else(old)?;
    if info.wrapped.version != KEY_VERSION {
        return Err(old());
    }
    let root = to.pool().dir_by_id(info.root_dir)?.crypto()?.ok_or_else(old)?;
    let phys = to.objset()?.phys();
    let mdn = &phys.meta_dnode;
    let wrapped = &info.wrapped;
    let mut list = NvList::new();
    list.insert("DSL_CRYPTO_SUITE", wrapped.suite as u64);
    list.insert("DSL_CRYPTO_GUID", wrapped.guid.0);
    list.insert("DSL_CRYPTO_VERSION", wrapped.version);
    list.insert("DSL_CRYPTO_MASTER_KEY_1", nvlist::Value::Uint8Array(wrapped.master.to_vec()));
    list.insert("DSL_CRYPTO_HMAC_KEY_1", nvlist::Value::Uint8Array(wrapped.hmac.to_vec()));
    list.insert("DSL_CRYPTO_IV", nvlist::Value::Uint8Array(wrapped.iv.to_vec()));
    list.insert("DSL_CRYPTO_MAC", nvlist::Value::Uint8Array(wrapped.mac.to_vec()));
    list.insert("portable_mac", nvlist::Value::Uint8Array(phys.portable_mac.to_vec()));
    let format = match root.keyformat {
        None => 0,
        Some(KeyFormat::Raw) => 1,
        Some(KeyFormat::Hex) => 2,
        Some(KeyFormat::Passphrase) => 3u64,
    };
    list.insert("keyformat", format);
    list.insert("pbkdf2iters", root.pbkdf2_iters);
    list.insert("pbkdf2salt", root.pbkdf2_salt);
    list.insert("mdn_checksum", u64::from(mdn.checksum));
    list.insert("mdn_compress", u64::from(mdn.compress));
    list.insert("mdn_nlevels", u64::from(mdn.nlevels));
    list.insert("mdn_blksz", mdn.datablksz());
    list.insert("mdn_indblkshift", u64::from(mdn.indblkshift));
    list.insert("mdn_nblkptr", mdn.blkptr.len() as u64);
    list.insert("mdn_maxblkid", mdn.maxblkid);
    list.insert("to_ivset_guid", to.ivset_guid()?.unwrap_or_default().0);
    list.insert("from_ivset_guid", from_ivset_guid.0);
    Ok(list)
}
