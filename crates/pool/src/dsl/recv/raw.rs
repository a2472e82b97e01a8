//! Raw streams: their keys, and the object set as a whole (OpenZFS: `dsl_crypto_recv_raw`, its checks and its syncs).
//!
//! A new dataset becomes an encryption root, whose wrapped keys are those of the sender; the receiver does not need the key. An existing dataset
//! must have the same master key, and its blocks must be encrypted with the same IVs as the stream's base: each snapshot has a number for its set
//! of IVs, which a raw stream carries. The wrapped keys of the stream are stored at the end, since the sender's user key may have changed.

use std::sync::Arc;

use base::{Guid, ObjectId, tunable};
use codec::crypt::{KEY_VERSION, Suite, WrappedKey};
use dmu::{Objset, RawObjset};
use nvlist::NvList;
use ondisk::ObjectType;
use ondisk::dsl::{dataset_keys, dir_keys};

use crate::dsl::Refusal;
use crate::dsl::crypt::write::{KEY_REFCOUNT, KeyForm};
use crate::dsl::props::write::Put;
use crate::dsl::recv::RecvBegin;
use crate::spa::mos::Mos;
use crate::spa::{Spa, TaskCx};
use crate::{Error, Value};

/// The contents of the list `crypt_keydata` of a raw stream.
#[derive(Clone, Debug)]
pub(in crate::dsl) struct RawHead {
    keys: WrappedKey,
    form: KeyForm,
    pub(in crate::dsl) objset: RawObjset,
    /// The set of IVs of the snapshot to be made; 0 if the sender is too old to know.
    to_ivset: Guid,
    from_ivset: Guid,
}

/// Numbers of compressions and checksums are below these.
const COMPRESS_FUNCTIONS: u64 = 17;
const CHECKSUM_FUNCTIONS: u64 = 15;
/// Suites have numbers below this.
const CRYPT_FUNCTIONS: u64 = 9;
const PASSPHRASE: u64 = 3;
const KEY_FORMATS: u64 = 4;
/// Bytes of a block of dnodes; there are no others (OpenZFS: `DNODE_BLOCK_SIZE`).
const DNODE_BLOCK: u64 = 16 << 10;

impl RecvBegin {
    /// The keys and object set described by a raw stream; `None` for any other stream.
    pub(in crate::dsl) fn raw_head(&self) -> Result<Option<RawHead>, Error> {
        if !self.is_raw() {
            return Ok(None);
        }
        let Some(list) = self.list.get_nvlist("crypt_keydata") else {
            return self.refuse(Refusal::Invalid("a raw stream without its keys"));
        };
        let keys = self.raw_keys(list)?;
        let objset = self.raw_objset(list)?;
        let number = |name: &str| list.get_u64(name).unwrap_or(0);
        let form = KeyForm { format: number("keyformat"), iters: number("pbkdf2iters"), salt: number("pbkdf2salt") };
        let passphrase = form.format == PASSPHRASE;
        if !(1..KEY_FORMATS).contains(&form.format) || passphrase == (form.iters == 0) || passphrase == (form.salt == 0)
        {
            return self.refuse(Refusal::Invalid("a raw stream whose keys are not described as they must be"));
        }
        let (to_ivset, from_ivset) = (Guid(number("to_ivset_guid")), Guid(number("from_ivset_guid")));
        Ok(Some(RawHead { keys, form, objset, to_ivset, from_ivset }))
    }

    /// OpenZFS: `dsl_crypto_recv_raw_key_check`.
    fn raw_keys(&self, list: &NvList) -> Result<WrappedKey, Error> {
        let broken = || self.broken_keys();
        let suite = list.get_u64("DSL_CRYPTO_SUITE").ok_or_else(broken)?;
        if suite >= CRYPT_FUNCTIONS {
            return self.refuse(Refusal::CryptoUnsupported);
        }
        let version = list.get_u64("DSL_CRYPTO_VERSION");
        if version != Some(KEY_VERSION) {
            return self.refuse(Refusal::Unsupported);
        }
        Ok(WrappedKey {
            suite: Suite::from_u64(suite).ok_or_else(broken)?,
            guid: Guid(list.get_u64("DSL_CRYPTO_GUID").ok_or_else(broken)?),
            version: KEY_VERSION,
            iv: bytes(list, "DSL_CRYPTO_IV").ok_or_else(broken)?,
            mac: bytes(list, "DSL_CRYPTO_MAC").ok_or_else(broken)?,
            master: bytes(list, "DSL_CRYPTO_MASTER_KEY_1").ok_or_else(broken)?,
            hmac: bytes(list, "DSL_CRYPTO_HMAC_KEY_1").ok_or_else(broken)?,
        })
    }

    /// OpenZFS: `dsl_crypto_recv_raw_objset_check`.
    fn raw_objset(&self, list: &NvList) -> Result<RawObjset, Error> {
        let broken = || self.broken_keys();
        let below = |name: &str, end: u64| list.get_u64(name).filter(|n| *n < end).ok_or_else(broken);
        let block_size = below("mdn_blksz", u64::MAX)?;
        let indirect_shift = below("mdn_indblkshift", u64::MAX)?;
        if block_size < 512 {
            return Err(broken());
        }
        let pointers = list.get_u64("mdn_nblkptr");
        if block_size != DNODE_BLOCK || !(12..=17).contains(&indirect_shift) || pointers != Some(3) {
            return self.refuse(Refusal::Unsupported);
        }
        let nlevels = below("mdn_nlevels", 17)?;
        if nlevels == 0 {
            return Err(broken());
        }
        Ok(RawObjset {
            portable_mac: bytes(list, "portable_mac").ok_or_else(broken)?,
            compress: below("mdn_compress", COMPRESS_FUNCTIONS)? as u8,
            checksum: below("mdn_checksum", CHECKSUM_FUNCTIONS)? as u8,
            nlevels: nlevels as u8,
            block_size,
            indirect_shift: indirect_shift as u8,
            // an object has a number below 2^48
            maxblkid: below("mdn_maxblkid", 1 << 43)?,
        })
    }

    fn broken_keys(&self) -> Error {
        crate::dsl::refused(&self.fs, Refusal::Invalid("a raw stream whose keys or whose object set cannot be"))
    }
}

fn bytes<const N: usize>(list: &NvList, name: &str) -> Option<[u8; N]> {
    match list.get(name) {
        Some(nvlist::Value::Uint8Array(bytes)) => bytes.as_slice().try_into().ok(),
        _ => None,
    }
}

impl Spa {
    /// Checks that a raw stream fits the dataset whose directory is `dir`, and its base, if it has one.
    pub(in crate::dsl) fn check_raw(
        &self,
        mos: &Mos,
        req: &RecvBegin,
        raw: &RawHead,
        dir: ObjectId,
        base: Option<ObjectId>,
    ) -> Result<(), Error> {
        let Some(info) = mos.key_info(dir)? else {
            return req.refuse(Refusal::Invalid("a raw stream cannot be received on top of what is not encrypted"));
        };
        if info.wrapped.guid != raw.keys.guid {
            return req.refuse(Refusal::OtherKey);
        }
        let Some(base) = base.filter(|_| tunable::ZFS_DISABLE_IVSET_GUID_CHECK.get() == 0) else { return Ok(()) };
        let own = mos.extra(base, dataset_keys::IVSET_GUID)?.map(Guid).unwrap_or_default();
        if own.0 == 0 || raw.from_ivset.0 == 0 {
            return req.refuse(Refusal::IvsetMissing);
        }
        if own != raw.from_ivset {
            return req.refuse(Refusal::IvsetMismatch);
        }
        Ok(())
    }

    /// The object set that a raw stream goes into, opened without a key.
    pub(in crate::dsl) fn open_raw(&self, id: ObjectId, raw: &RawHead) -> Result<Arc<Objset>, Error> {
        let objset = match self.dsl.open_datasets.objset(id) {
            Some(objset) => objset,
            None => {
                let mos = self.live_mos()?;
                let phys = mos.dataset_phys(id)?;
                let objset = Objset::open_writable(self.zio().clone(), id, &phys.bp)?;
                self.add_open_dataset(&mos, objset, phys.dir_obj)?
            }
        };
        let tx = self.tx(0)?;
        objset.receive_raw(&tx, &raw.objset)?;
        Ok(objset)
    }
}

impl TaskCx<'_> {
    /// The wrapped keys of a raw stream, stored for directory `dir`, whose head is `id`: a new key object makes an encryption root (OpenZFS:
    /// `dsl_crypto_recv_raw_key_sync`).
    pub(in crate::dsl) fn put_raw_keys(&self, dir: ObjectId, id: ObjectId, raw: &RawHead) -> Result<(), Error> {
        let (spa, mos, tx) = (self.spa, self.mos, self.tx);
        if let Some(info) = mos.key_info(dir)? {
            return mos.put_wrapped(tx, info.object, &raw.keys, raw.form, info.root_dir);
        }
        let object = mos.new_zap(tx, ObjectType::OTN_ZAP_METADATA)?;
        mos.put_wrapped(tx, object, &raw.keys, raw.form, dir)?;
        let zap = mos.zap(object)?;
        zap.add_u64(tx, KEY_REFCOUNT, 1)?;
        zap.add_u64(tx, "DSL_CRYPTO_VERSION", KEY_VERSION)?;
        spa.zapify(mos, tx, dir)?.add_id(tx, dir_keys::CRYPTO_KEY_OBJ, object)?;
        spa.activate_dataset_feature(mos, tx, id, "encryption")?;
        // what the user says about it is set afterwards
        spa.store_prop(mos, tx, &mos.live(id)?, "keylocation", Put::Local(&Value::String("prompt".to_string())))
    }

    /// The empty object set of a new dataset that is received raw.
    pub(in crate::dsl) fn fill_raw(
        &self,
        req: &RecvBegin,
        id: ObjectId,
        dir: ObjectId,
        raw: &RawHead,
    ) -> Result<(), Error> {
        let (spa, mos) = (self.spa, self.mos);
        let objset = Objset::create_raw(spa.zio().clone(), id, req.os_type(), &raw.objset, self.tx)?;
        spa.add_open_dataset(mos, objset, dir).map(drop)
    }

    /// The snapshot that was made: it has the set of IVs of the sender's.
    pub(in crate::dsl) fn mark_raw(&self, snap: ObjectId, raw: &RawHead) -> Result<(), Error> {
        let zap = self.spa.zapify(self.mos, self.tx, snap)?;
        if raw.to_ivset.0 != 0 {
            zap.update_u64(self.tx, dataset_keys::IVSET_GUID, raw.to_ivset.0)?;
        }
        Ok(zap.update_u64(self.tx, dataset_keys::RAW_RECEIVED, 1)?)
    }
}
