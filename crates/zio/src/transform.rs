//! From stored bytes to logical ones: MACs, ciphers, decompression, in OpenZFS's order.
//!
//! * An indirect block's MAC is over its *decompressed* pointers and needs no key: it is always checked.
//! * An object set's MACs are inside it; an authenticated-only block's MAC is over its *stored* bytes. Both are checked
//!   if the key is loaded, and not checked otherwise.
//! * All other blocks with the bit are decrypted as stored, then decompressed. Dnode blocks stay readable without the
//!   key.
//!
//! OpenZFS: `zio_decrypt`, `zio_decompress`, `arc_hdr_authenticate`.

use codec::crypt::{self, DatasetKey};
use codec::{Compress, decompress};
use ondisk::{BlkPtr, ObjectType};

use crate::{Bookmark, Error};

/// The transformation of the bytes that were read.
pub(crate) struct Transform<'a> {
    pub(crate) bp: &'a BlkPtr,
    pub(crate) bm: &'a Bookmark,
    compress: Compress,
    key: Option<&'a DatasetKey>,
    noauth: bool,
}

impl<'a> Transform<'a> {
    /// Refuses pointers that cannot be read whatever the devices hold. `noauth`: leave ciphertext as it is and do not
    /// check MACs.
    pub(crate) fn new(
        bp: &'a BlkPtr,
        bm: &'a Bookmark,
        key: Option<&'a DatasetKey>,
        noauth: bool,
    ) -> Result<Self, Error> {
        let number = bp.compression();
        let compress = Compress::from_u8(number).ok_or(Error::Unsupported {
            bm: *bm,
            what: "compression",
            value: number.into(),
        })?;
        if compress == Compress::Off && bp.psize() != bp.lsize() {
            let source =
                ondisk::Error::Invalid { what: "uncompressed block", field: "physical size", value: bp.psize() };
            return Err(Error::BadPointer { bm: *bm, source });
        }
        if bp.is_encrypted() && key.is_none() && !noauth {
            return Err(Error::KeyNotLoaded { bm: *bm });
        }
        Ok(Transform { bp, bm, compress, key, noauth })
    }

    /// Returns whether stored and logical bytes have the same size and can share a buffer.
    pub(crate) fn in_place(&self) -> bool {
        self.compress == Compress::Off
    }

    /// Turns an uncompressed block into logical data in place.
    pub(crate) fn apply_in_place(&self, data: &mut [u8]) -> Result<(), Error> {
        self.open(data)?;
        self.check_indirect(data)?;
        #[cfg(debug_assertions)]
        crate::tamper::block(self.bp, data);
        Ok(())
    }

    /// Turns a compressed block into logical data: `stored` is decrypted in place, `out` has the logical size.
    pub(crate) fn apply(&self, stored: &mut [u8], out: &mut [u8]) -> Result<(), Error> {
        self.open(stored)?;
        decompress(self.compress, stored, out).map_err(|source| Error::Decompress { bm: *self.bm, source })?;
        self.check_indirect(out)?;
        #[cfg(debug_assertions)]
        crate::tamper::block(self.bp, out);
        Ok(())
    }

    /// Decrypts or authenticates level-0 blocks, as stored.
    pub(crate) fn open(&self, stored: &mut [u8]) -> Result<(), Error> {
        let Some(key) = self.key.filter(|_| self.bp.uses_crypt() && self.bp.level() == 0 && !self.noauth) else {
            return Ok(());
        };
        let (bp, endian) = (self.bp, self.bp.endian());
        let opened = match bp.object_type() {
            ObjectType::OBJSET => key.verify_objset(stored, endian),
            _ if bp.is_authenticated() => key.verify_authenticated(bp.mac(), stored),
            ObjectType::DNODE => key.decrypt_dnode_block(bp.salt(), bp.iv(), bp.mac(), stored, endian),
            ObjectType::INTENT_LOG => match DatasetKey::zil_mac(stored) {
                Some(mac) => key.decrypt_zil_block(bp.salt(), bp.iv(), mac, stored, endian),
                None => Err(codec::Error::Length { what: "intent log block", len: stored.len() }),
            },
            _ => key.decrypt_data(bp.salt(), bp.iv(), bp.mac(), stored),
        };
        opened.map_err(|source| Error::Auth { bm: *self.bm, source })
    }

    fn check_indirect(&self, data: &[u8]) -> Result<(), Error> {
        if !self.bp.has_indirect_mac() {
            return Ok(());
        }
        crypt::verify_indirect_mac_any(data, self.bp.endian(), self.bp.mac())
            .map_err(|source| Error::Auth { bm: *self.bm, source })
    }
}
