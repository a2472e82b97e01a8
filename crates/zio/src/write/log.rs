//! Blocks of the intent log: allocated before their contents are known, because the previous block names them; written
//! once, in open context (OpenZFS: `zio_alloc_zil`, `zil_lwb_write_issue`).

use base::{Endian, Txg};
use codec::{ChecksumKind, Cksum, Compress, embedded};
use ondisk::{BlkPtr, ObjectType, SPA_MAXBLOCKSIZE};
use vdev::{BlockWrite, IoClass};

use super::pointer::{self, Shape};
use super::{AllocError, AllocRequest, CryptParams};
use crate::{Bookmark, Error, KeySource, Zio};

/// Sizes of log blocks are multiples of this (OpenZFS: `ZIL_MIN_BLKSZ`).
const UNIT: u64 = 4096;

impl Zio {
    /// Allocates a block of the intent log. `bm` names the dataset; `identity` takes the place of the pointer's checksum:
    /// two guids of the chain, the object set, the sequence number. The block of an encrypted dataset gets salt and
    /// initialisation vector now.
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

    /// Writes blocks of one intent log, all at once: each has the chain structure, which names the next block and says how many bytes are in
    /// use, and the records. It may be shorter than its place, as long as what is in use is there. Blocks are encrypted if their pointers
    /// say so, and sealed. With the devices when this returns, not flushed.
    ///
    /// # Errors
    /// [`Error::Write`]; [`Error::Encode`] if a block is none of an intent log; [`Error::KeyNotLoaded`]; [`Error::BadRequest`] for a length that does
    /// not fit the pointer.
    pub fn write_log(&self, bm: &Bookmark, mut blocks: Vec<(BlkPtr, Vec<u8>)>) -> Result<(), Error> {
        let bm = *bm;
        for (bp, block) in &mut blocks {
            self.seal_log(bp, &bm, block)?;
        }
        // a block that misses a device is noted under the txg in which it was allocated
        for run in blocks.chunk_by(|(a, _), (b, _)| a.birth_physical() == b.birth_physical()) {
            let birth = run.first().map_or(Txg(0), |(bp, _)| bp.birth_physical());
            let mut writes = Vec::with_capacity(run.len());
            for (bp, block) in run {
                writes.extend(bp.dvas().map(|dva| BlockWrite { dva, data: block }));
            }
            let written = self.tree().write_as(IoClass::SyncWrite, birth, &writes);
            written.map_err(|source| Error::Write { bm, source: Box::new(source) })?;
        }
        Ok(())
    }

    fn seal_log(&self, bp: &BlkPtr, bm: &Bookmark, block: &mut Vec<u8>) -> Result<(), Error> {
        let bm = *bm;
        let len = block.len() as u64;
        if len > bp.psize() || len == 0 || !len.is_multiple_of(UNIT) {
            return Err(Error::BadRequest {
                bm,
                what: "a block of the intent log has another size than its pointer says",
            });
        }
        let encode = |source| Error::Encode { bm, source };
        let mut mac = None;
        if bp.uses_crypt() {
            let key = self.keys().key(bm.objset).ok_or(Error::KeyNotLoaded { bm })?;
            let sealed = key.encrypt_zil_block(bp.salt(), bp.iv(), block, bp.endian());
            mac = Some(sealed.map_err(encode)?);
        }
        let kind = ChecksumKind::from_u8(bp.checksum());
        let kind =
            kind.ok_or(Error::Bug { bm, what: "a block of the intent log was placed with an unknown checksum" })?;
        embedded::seal_zil(block, kind, &bp.cksum(), mac, bp.endian()).map_err(encode)?;
        // with parity the whole block is read, and must fit together
        if bp.dvas().any(|dva| dva.asize() > bp.psize()) {
            block.resize(usize::try_from(bp.psize()).unwrap_or(0), 0);
        }
        Ok(())
    }
}
