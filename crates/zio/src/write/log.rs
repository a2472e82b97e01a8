//! Blocks of the intent log: allocated before it is known what they will hold, for the block before names them; written once, in open
//! context (OpenZFS: `zio_alloc_zil`, `zil_lwb_write_issue`).

use base::{Endian, Txg};
use codec::{ChecksumKind, Cksum, Compress, embedded};
use ondisk::{BlkPtr, ObjectType, SPA_MAXBLOCKSIZE};
use vdev::BlockWrite;

use super::pointer::{self, Shape};
use super::{AllocError, AllocRequest, CryptParams};
use crate::{Bookmark, Error, KeySource, Zio};

/// Sizes of log blocks are multiples of this (OpenZFS: `ZIL_MIN_BLKSZ`).
const UNIT: u64 = 4096;

impl Zio {
    /// Allocates a block of the intent log. `bm` names the dataset; `identity` is what the pointer has for a checksum: two guids of the chain, the
    /// object set, the sequence number. The block of an encrypted dataset gets salt and initialisation vector now.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::BadRequest`] for a size that is no multiple of 4 KiB; [`Error::KeyNotLoaded`]; [`Error::ReadOnly`].
    pub fn allocate_log(
        &self,
        txg: Txg,
        bm: &Bookmark,
        size: u64,
        identity: Cksum,
        encrypt: bool,
    ) -> Result<BlkPtr, Error> {
        let bm = *bm;
        let space = self.write.space().ok_or(Error::ReadOnly { bm })?;
        if size == 0 || size > SPA_MAXBLOCKSIZE || !size.is_multiple_of(UNIT) {
            return Err(Error::BadRequest { bm, what: "a block of the intent log has a multiple of 4096 bytes" });
        }
        let bytes = usize::try_from(size).unwrap_or(0);
        let shape = Shape {
            object_type: ObjectType::INTENT_LOG,
            level: 0,
            lsize: bytes,
            psize: bytes,
            compress: Compress::Off,
            checksum: ChecksumKind::Zilog2,
            endian: Endian::Little,
        };
        let mut bp = shape.pointer(0);
        pointer::set_birth(&mut bp, txg, txg);
        pointer::set_cksum(&mut bp, ChecksumKind::Zilog2, identity, false);
        if encrypt {
            let key = self.keys().key(bm.objset).ok_or(Error::KeyNotLoaded { bm })?;
            let mut iv = [0; 12];
            self.write.env().fill_random(&mut iv);
            let salt = self.write.salt(key.guid(), 1);
            pointer::set_crypt(&mut bp);
            pointer::set_crypt_params(&mut bp, &CryptParams { salt, iv, mac: [0; 16] });
        }
        let request = AllocRequest {
            object_type: ObjectType::INTENT_LOG,
            level: 0,
            psize: size,
            lsize: size,
            copies_index: 0,
            txg,
            bm,
            avoid: &[],
            gang_child: false,
            gang_header: false,
            slog: true,
            special_small: 0,
        };
        let dva = space.allocate(&request).map_err(|e| match e {
            AllocError::NoSpace => Error::NoSpace { bm, psize: size },
            AllocError::Failed(reason) => Error::Space { bm, reason },
        })?;
        pointer::set_dva(&mut bp, 0, dva);
        Ok(bp)
    }

    /// Writes a block of the intent log: `block` has the chain structure, which names the next block and says how many bytes are in use, and the
    /// records. It is encrypted if its pointer says so, and sealed. With the devices when this returns, not flushed.
    ///
    /// # Errors
    /// [`Error::Write`]; [`Error::Encode`] if the block is none of an intent log; [`Error::KeyNotLoaded`]; [`Error::BadRequest`] for a length that is
    /// not the pointer's.
    pub fn write_log(&self, bp: &BlkPtr, bm: &Bookmark, mut block: Vec<u8>) -> Result<(), Error> {
        let bm = *bm;
        if block.len() as u64 != bp.psize() {
            return Err(Error::BadRequest {
                bm,
                what: "a block of the intent log has another size than its pointer says",
            });
        }
        let encode = |source| Error::Encode { bm, source };
        let mut mac = None;
        if bp.uses_crypt() {
            let key = self.keys().key(bm.objset).ok_or(Error::KeyNotLoaded { bm })?;
            let sealed = key.encrypt_zil_block(bp.salt(), bp.iv(), &mut block, bp.endian());
            mac = Some(sealed.map_err(encode)?);
        }
        let kind = ChecksumKind::from_u8(bp.checksum()).unwrap_or(ChecksumKind::Zilog2);
        embedded::seal_zil(&mut block, kind, &bp.cksum(), mac, bp.endian()).map_err(encode)?;
        let writes: Vec<BlockWrite<'_>> = bp.dvas().map(|dva| BlockWrite { dva, data: &block }).collect();
        let written = self.tree().write(bp.birth_physical(), &writes);
        written.map(drop).map_err(|source| Error::Write { bm, source: Box::new(source) })
    }
}
