//! The part of writing that needs no order: each block by itself, on any core. Holes, embedding, compression, encryption,
//! checksum.

use std::sync::Arc;

use base::{Endian, ObjectId, Txg, tunable};
use codec::crypt::{self, DatasetKey};
use codec::{ChecksumKind, Compress};
use ondisk::{BlkPtr, EmbeddedType, ObjectType, SPA_MAXBLOCKSIZE};

use super::pointer::{self, EMBEDDED_MAX, Shape};
use super::{CryptParams, DedupTable, Payload, WriteCx, WriteProps, WriteReq};
use crate::checksum::uses_mac;
use crate::{Bookmark, Buf, Error, KeySource, Zio};

/// The first pass of a sync that overwrites in place, at the earliest and at the latest.
const REWRITE_EARLIEST: u64 = 2;
const REWRITE_LATEST: u64 = 16;

/// The granularity of allocation (OpenZFS: `spa_min_alloc`, `spa_gcd_alloc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grain {
    pub(crate) min: usize,
    pub(crate) gcd: usize,
}

impl Grain {
    /// The allocated size of `size` bytes (OpenZFS: `zio_roundup_alloc_size`).
    pub(crate) fn round_up(self, size: usize) -> usize {
        if size > self.min { size.next_multiple_of(self.gcd) } else { self.min }
    }

    /// Compressed blocks larger than this are not worth it: at least an eighth must be saved
    /// (OpenZFS: `zio_get_compression_max_size`).
    fn limit(self, compress: Compress, lsize: usize) -> usize {
        let limit = lsize - (lsize >> 3);
        if compress == Compress::Zle {
            // its compressor cannot fill the last bytes
            return limit;
        }
        let limit = limit - limit % self.gcd;
        if limit < self.min { EMBEDDED_MAX } else { limit }
    }
}

/// A block that only needs its addresses.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) bm: Bookmark,
    pub(crate) props: WriteProps,
    pub(crate) orig: BlkPtr,
    /// Complete but for the addresses.
    pub(crate) bp: BlkPtr,
    pub(crate) stored: Buf,
    /// The data to insert in the cache.
    pub(crate) logical: Option<Buf>,
}

/// The result of preparing a block.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// A hole, an embedded block, a clone: needs no address.
    Done(BlkPtr),
    /// A block that needs addresses.
    Place(Box<Prepared>),
}

/// The key and fresh random numbers for a block that is to be encrypted here.
#[derive(Clone, Default)]
pub(crate) struct Secrets {
    pub(crate) key: Option<Arc<DatasetKey>>,
    pub(crate) salt: u64,
    pub(crate) iv: [u8; 12],
}

/// The state shared by all blocks of a batch.
pub(crate) struct Batch<'a> {
    pub(crate) zio: &'a Zio,
    pub(crate) cx: WriteCx,
    pub(crate) grain: Grain,
    pub(crate) dedup: Option<Arc<dyn DedupTable>>,
    pub(crate) hole_birth: bool,
}

/// A block in preparation: the bytes to be stored, and how they were made.
struct Body {
    stored: Buf,
    logical: Option<Buf>,
    lsize: usize,
    compress: Compress,
    endian: Endian,
    crypt: Option<CryptParams>,
}

impl Batch<'_> {
    /// Draws salts and initialisation vectors for those of `reqs` that are encrypted here, each kind in one draw.
    ///
    /// # Errors
    /// [`Error::Bug`] rather than a block without an initialisation vector of its own: one used twice reveals the
    /// contents of both blocks.
    pub(crate) fn secrets(&self, reqs: Vec<WriteReq>) -> Result<Vec<(WriteReq, Secrets)>, Error> {
        let drawn = reqs.iter().filter(|req| draws_iv(req)).count();
        let mut random = vec![0; drawn * 12];
        if drawn > 0 {
            self.zio.write.env().fill_random(&mut random);
        }
        let mut ivs = random.as_chunks::<12>().0.iter();
        let mut last: Option<(ObjectId, Secrets)> = None;
        let total = reqs.len() as u64;
        let with = |req: WriteReq| {
            if !req.props.encrypt {
                return Ok((req, Secrets::default()));
            }
            let objset = req.bm.objset;
            if last.as_ref().is_none_or(|(of, _)| *of != objset) {
                let key = self.zio.keys().key(objset);
                let salt = key.as_ref().map_or(0, |key| self.zio.write.salt(key.guid(), total));
                last = Some((objset, Secrets { key, salt, iv: [0; 12] }));
            }
            let mut secrets = last.as_ref().map(|(_, s)| s.clone()).unwrap_or_default();
            if draws_iv(&req) {
                let drawn = ivs.next().filter(|iv| **iv != [0; 12]);
                secrets.iv =
                    *drawn.ok_or(Error::Bug { bm: req.bm, what: "no initialisation vector was drawn for it" })?;
            }
            Ok((req, secrets))
        };
        reqs.into_iter().map(with).collect()
    }

    /// Prepares one block.
    pub(crate) fn prepare(&self, req: WriteReq, secrets: &Secrets) -> Result<Outcome, Error> {
        let WriteReq { bm, props, payload, orig, fill } = req;
        let body = match payload {
            Payload::Clone(bp) => {
                if !bp.is_hole() && !bp.is_embedded() {
                    let table = self.zio.write.clones();
                    let table = table.ok_or(Error::Bug { bm, what: "it is a clone, and none are counted" })?;
                    table.add(self.cx.txg, &bp);
                }
                return Ok(Outcome::Done(self.clone_of(bp)));
            }
            Payload::Embedded { bytes, lsize, compress, kind, byteorder } => {
                let lsize = bounded(&bm, lsize)?;
                if bytes.is_empty() || bytes.len() > EMBEDDED_MAX {
                    return Err(Error::BadRequest { bm, what: "an embedded block has 1 to 112 bytes" });
                }
                let what = pointer::Embedded { payload: &bytes, lsize, compress, kind, byteorder };
                return Ok(Outcome::Done(pointer::embedded(&props, &what, self.cx.txg)));
            }
            Payload::Logical(data) => {
                let size = bounded(&bm, data.len() as u64)?;
                if !size.is_multiple_of(512) {
                    return Err(Error::BadRequest { bm, what: "its size is no multiple of 512" });
                }
                match self.squeeze(&props, &orig, data) {
                    Squeezed::Zero => return Ok(Outcome::Done(self.hole(&props, &orig, size))),
                    Squeezed::Embed(bytes) => {
                        let (compress, kind) = (props.compress, EmbeddedType::Data);
                        let byteorder = Endian::Little;
                        let what = pointer::Embedded { payload: &bytes, lsize: size, compress, kind, byteorder };
                        return Ok(Outcome::Done(pointer::embedded(&props, &what, self.cx.txg)));
                    }
                    Squeezed::Body(body) => body,
                }
            }
            Payload::Stored { bytes, lsize, compress, crypt, byteorder } => {
                let lsize = bounded(&bm, lsize)?;
                bounded(&bm, bytes.len() as u64)?;
                if crypt.is_some() && props.object_type == ObjectType::DNODE && is_zero(&bytes) {
                    return Ok(Outcome::Done(self.hole(&props, &orig, lsize)));
                }
                let stored = if crypt.is_some() { bytes } else { self.pad(bytes, lsize) };
                if !stored.len().is_multiple_of(512) || !lsize.is_multiple_of(512) {
                    return Err(Error::BadRequest { bm, what: "its size is no multiple of 512" });
                }
                Body { stored, logical: None, lsize, compress, endian: byteorder, crypt }
            }
        };
        self.finish(bm, props, orig, fill, body, secrets)
    }

    /// A reference to an existing block: logical birth now, physical birth unchanged.
    fn clone_of(&self, mut bp: BlkPtr) -> BlkPtr {
        let txg = self.cx.txg;
        if bp.is_embedded() {
            bp.words[10] = txg.0;
        } else if !bp.is_hole() {
            let physical = bp.birth_physical();
            pointer::set_birth(&mut bp, txg, physical);
            pointer::set_rewritten(&mut bp, false);
        } else if bp.birth_logical() != Txg(0) {
            bp.words[10] = txg.0;
        }
        bp
    }

    fn hole(&self, props: &WriteProps, orig: &BlkPtr, lsize: usize) -> BlkPtr {
        let told = self.hole_birth && orig.birth_logical() != Txg(0);
        pointer::hole(props.object_type, props.level, lsize, told.then_some(self.cx.txg))
    }

    /// Returns whether a block of this very txg is written again, by a later pass of its sync.
    pub(crate) fn is_rewrite(&self, orig: &BlkPtr) -> bool {
        !orig.is_hole() && orig.birth() == self.cx.txg
    }

    /// Returns whether this pass overwrites blocks of the txg in place. The first never does, as a snapshot may have been
    /// taken since they were written; late passes must, or a sync would not converge.
    pub(crate) fn stays_in_place(&self) -> bool {
        u64::from(self.cx.pass) >= tunable::ZFS_SYNC_PASS_REWRITE.get().clamp(REWRITE_EARLIEST, REWRITE_LATEST)
    }

    /// The psize of the block of an earlier pass, whose space is kept if the new contents still fit. (The same salt and
    /// initialisation vector must not be used twice.)
    fn home(&self, props: &WriteProps, orig: &BlkPtr) -> Option<usize> {
        let stays = self.stays_in_place()
            && self.is_rewrite(orig)
            && !(orig.is_embedded() || orig.is_dedup() || props.encrypt || props.dedup.is_some());
        usize::try_from(orig.psize()).ok().filter(|_| stays)
    }

    fn squeeze(&self, props: &WriteProps, orig: &BlkPtr, data: Buf) -> Squeezed {
        let lsize = data.len();
        let as_is = |data: Buf| {
            let logical = Some(data.clone());
            let (compress, endian) = (Compress::Off, Endian::Little);
            Squeezed::Body(Body { stored: data, logical, lsize, compress, endian, crypt: None })
        };
        // otherwise the sync of a txg would not converge: a block that compresses to another size moves
        let home = self.home(props, orig).filter(|psize| *psize <= lsize);
        let late = u64::from(self.cx.pass) >= tunable::ZFS_SYNC_PASS_DONT_COMPRESS.get() && self.is_rewrite(orig);
        if props.compress == Compress::Off || (late && home.is_none()) {
            return as_is(data);
        }
        let has_fill = matches!(props.object_type, ObjectType::DNODE | ObjectType::OBJSET);
        // the unencrypted parts of such a block must stay where they are
        let sealed = props.encrypt && props.level == 0 && has_fill;
        if is_zero(&data) {
            return Squeezed::Zero;
        }
        if props.compress == Compress::Empty || sealed {
            return as_is(data);
        }
        let limit = self.grain.limit(props.compress, lsize);
        let Some(mut packed) = codec::compress(props.compress, props.complevel, &data, limit) else {
            return as_is(data);
        };
        if packed.is_empty() || packed.len() >= lsize {
            return as_is(data);
        }
        if packed.len() <= EMBEDDED_MAX && props.embed && !props.encrypt && props.level == 0 && !has_fill {
            return Squeezed::Embed(packed);
        }
        let rounded = self.grain.round_up(packed.len());
        let rounded = match home {
            Some(psize) if rounded <= psize => psize,
            _ if late => return as_is(data),
            _ => rounded,
        };
        if rounded >= lsize {
            return as_is(data);
        }
        packed.resize(rounded, 0);
        let (compress, endian) = (props.compress, Endian::Little);
        let (stored, logical) = (Buf::from(packed), Some(data));
        Squeezed::Body(Body { stored, logical, lsize, compress, endian, crypt: None })
    }

    /// Pads bytes that arrived compressed to the allocated size.
    fn pad(&self, bytes: Buf, lsize: usize) -> Buf {
        let rounded = self.grain.round_up(bytes.len()).min(lsize);
        if rounded <= bytes.len() {
            return bytes;
        }
        let mut padded = bytes.into_vec();
        padded.resize(rounded, 0);
        Buf::from(padded)
    }

    /// Encrypts, computes the checksum, and makes the pointer.
    fn finish(
        &self,
        bm: Bookmark,
        props: WriteProps,
        orig: BlkPtr,
        fill: u64,
        mut body: Body,
        secrets: &Secrets,
    ) -> Result<Outcome, Error> {
        if props.checksum.is_embedded() {
            return Err(Error::BadRequest { bm, what: "its checksum would stand within it" });
        }
        let shape = Shape {
            object_type: props.object_type,
            level: props.level,
            lsize: body.lsize,
            psize: body.stored.len(),
            compress: body.compress,
            checksum: checksum_of(&props),
            endian: body.endian,
        };
        let mut bp = shape.pointer(fill);
        if props.rewrite && !orig.is_hole() {
            pointer::set_birth(&mut bp, orig.birth_logical(), self.cx.txg);
            pointer::set_rewritten(&mut bp, true);
        } else {
            pointer::set_birth(&mut bp, self.cx.txg, self.cx.txg);
        }
        let may_dedup = props.level == 0 && (!props.encrypt || props.object_type.is_encrypted());
        let dedup = self.dedup.as_ref().filter(|_| props.dedup.is_some() && may_dedup);
        pointer::set_dedup(&mut bp, dedup.is_some());
        if props.encrypt || body.crypt.is_some() {
            seal(&mut bp, &mut body, secrets).map_err(|e| e.or(bm))?;
        }
        let encode = |source| Error::Encode { bm, source };
        let sum = self.zio.sums().compute(shape.checksum, &body.stored, body.endian).map_err(encode)?;
        let truncated = uses_mac(&bp);
        pointer::set_cksum(&mut bp, shape.checksum, sum, truncated);
        // if the table cannot be read, the block is written as an ordinary one
        if dedup.is_some_and(|table| table.load(&bp).is_err()) {
            pointer::set_dedup(&mut bp, false);
        }
        let Body { stored, logical, .. } = body;
        Ok(Outcome::Place(Box::new(Prepared { bm, props, orig, bp, stored, logical })))
    }
}

enum Squeezed {
    Zero,
    Embed(Vec<u8>),
    Body(Body),
}

/// Returns whether a block needs a random initialisation vector.
fn draws_iv(req: &WriteReq) -> bool {
    let sealed = matches!(&req.payload, Payload::Stored { crypt: Some(_), .. } | Payload::Clone(_));
    req.props.encrypt && req.props.level == 0 && req.props.object_type.is_encrypted() && !sealed
}

/// The checksum of a block; metadata is never without one.
fn checksum_of(props: &WriteProps) -> ChecksumKind {
    let metadata = props.level > 0 || props.object_type.is_metadata();
    match props.checksum {
        ChecksumKind::Off | ChecksumKind::Noparity | ChecksumKind::Fletcher2 if metadata => ChecksumKind::Fletcher4,
        kind => kind,
    }
}

/// The reason why a block cannot be encrypted or authenticated.
enum SealError {
    NoKey,
    Codec(codec::Error),
}

impl SealError {
    fn or(self, bm: Bookmark) -> Error {
        match self {
            SealError::NoKey => Error::KeyNotLoaded { bm },
            SealError::Codec(source) => Error::Encode { bm, source },
        }
    }
}

impl From<codec::Error> for SealError {
    fn from(e: codec::Error) -> Self {
        SealError::Codec(e)
    }
}

/// Encrypts or authenticates a block of an encrypted object set (OpenZFS: `zio_encrypt`).
fn seal(bp: &mut BlkPtr, body: &mut Body, secrets: &Secrets) -> Result<(), SealError> {
    pointer::set_crypt(bp);
    let object_type = bp.object_type();
    if let Some(given) = body.crypt {
        if object_type != ObjectType::OBJSET {
            pointer::set_mac(bp, &given.mac);
        }
        if bp.is_encrypted() {
            pointer::set_crypt_params(bp, &given);
        }
        return Ok(());
    }
    if bp.level() > 0 {
        // needs no key: over the pointers, as they are before compression
        let plain = body.logical.as_ref().unwrap_or(&body.stored);
        pointer::set_mac(bp, &crypt::indirect_mac(crypt::KEY_VERSION, plain, body.endian));
        return Ok(());
    }
    let key = secrets.key.as_ref().ok_or(SealError::NoKey)?;
    if object_type == ObjectType::OBJSET {
        return seal_objset(key, body);
    }
    if !object_type.is_encrypted() {
        pointer::set_mac(bp, &key.authenticate(&body.stored));
        return Ok(());
    }
    // the last holder of the bytes encrypts them in place
    let mut bytes = std::mem::replace(&mut body.stored, Buf::zeros(0)).into_vec();
    let (salt, iv) = if bp.is_dedup() { key.dedup_salt_iv(&bytes) } else { (secrets.salt, secrets.iv) };
    let mac = match object_type {
        ObjectType::DNODE => key.encrypt_dnode_block(salt, iv, &mut bytes, body.endian)?,
        _ => key.encrypt_data(salt, iv, &mut bytes)?,
    };
    body.stored = Buf::from(bytes);
    pointer::set_crypt_params(bp, &CryptParams { salt, iv, mac });
    pointer::set_mac(bp, &mac);
    Ok(())
}

/// Computes the MACs of an object set, which are stored inside its block.
fn seal_objset(key: &DatasetKey, body: &mut Body) -> Result<(), SealError> {
    /// Portable, then local.
    const MACS: [usize; 2] = [720, 752];
    let (portable, local) = key.objset_macs(&body.stored, body.endian)?;
    body.logical = None;
    let mut bytes = std::mem::replace(&mut body.stored, Buf::zeros(0)).into_vec();
    for (at, mac) in MACS.into_iter().zip([portable, local]) {
        let len = bytes.len();
        let Some(place) = bytes.get_mut(at..at + mac.len()) else {
            panic!("an object set of {len} bytes has no place for a MAC at {at}");
        };
        place.copy_from_slice(&mac);
    }
    body.stored = Buf::from(bytes);
    body.logical = Some(body.stored.clone());
    Ok(())
}

/// A size, checked to be valid for a block.
fn bounded(bm: &Bookmark, size: u64) -> Result<usize, Error> {
    match usize::try_from(size) {
        Ok(n) if size > 0 && size <= SPA_MAXBLOCKSIZE => Ok(n),
        _ => Err(Error::BadRequest { bm: *bm, what: "its size is none that a block can have" }),
    }
}

/// Returns whether all bytes are zero.
pub(crate) fn is_zero(data: &[u8]) -> bool {
    let (lines, rest) = data.as_chunks::<64>();
    lines.iter().all(|line| line.iter().fold(0, |a, b| a | b) == 0) && rest.iter().all(|b| *b == 0)
}
