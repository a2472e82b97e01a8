//! Reads straight into the caller's memory, past the cache: for callers that read much data once, such as a send.

use ondisk::{BlkPtr, ObjectType};
use vdev::ReadCx;

use crate::read::{Caching, size, validate};
use crate::transform::Transform;
use crate::{ArcKey, Bookmark, Buf, Error, Zio};

/// The stage to which the stored bytes are decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// As stored: psize bytes, compressed and encrypted.
    Stored,
    /// Decrypted, still compressed: psize bytes.
    Opened,
    /// Decompressed: lsize bytes.
    Logical,
}

impl Stage {
    /// The size of a block at this stage, in bytes.
    #[must_use]
    pub fn size(self, bp: &BlkPtr) -> u64 {
        if self == Stage::Logical { bp.lsize() } else { bp.psize() }
    }
}

impl Zio {
    /// Fills `buf`, whose length is [`Stage::size`], with a block that is not a hole. For logical data a cached copy is
    /// used without moving it in its list; nothing is inserted in the cache. `cx` may bring a window
    /// ([`vdev::WindowSource`]): blocks requested in the order of their addresses are then read in few large reads.
    ///
    /// # Errors
    /// As [`Zio::read`]; [`Error::BadPointer`] if `buf` has another length.
    pub fn read_into(
        &self,
        bp: &BlkPtr,
        bm: &Bookmark,
        stage: Stage,
        cx: &ReadCx<'_>,
        buf: &mut [u8],
    ) -> Result<(), Error> {
        validate(bp, bm)?;
        if bp.is_embedded() || bp.is_hole() || buf.len() as u64 != stage.size(bp) {
            // rare: take the result of the general path, if it fits
            let data = if stage == Stage::Logical { self.read_uncached(bp, bm)? } else { self.read_raw(bp, bm)? };
            return fill(buf, &data, bp, bm);
        }
        let uncompressed = bp.psize() == bp.lsize();
        if stage == Stage::Logical || (stage == Stage::Opened && uncompressed) {
            let key = ArcKey::of(bp).filter(|_| bp.object_type() != ObjectType::INTENT_LOG);
            let cached = key.and_then(|key| self.arc().peek(&key)).filter(|data| data.len() == buf.len());
            if let Some(data) = cached {
                return fill(buf, &data, bp, bm);
            }
        }
        let read = self.read_stage(bp, bm, stage, cx, buf);
        if cx.counts { self.noted(bp, bm, read) } else { read }
    }

    fn read_stage(
        &self,
        bp: &BlkPtr,
        bm: &Bookmark,
        stage: Stage,
        cx: &ReadCx<'_>,
        buf: &mut [u8],
    ) -> Result<(), Error> {
        if stage == Stage::Stored {
            return self.read_stored(bp, bm, cx, buf).map(drop);
        }
        let key = self.key_of(bp, bm);
        let transform = Transform::new(bp, bm, key.as_deref(), false)?;
        if stage == Stage::Opened {
            self.read_stored(bp, bm, cx, buf)?;
            return transform.open(buf);
        }
        if transform.in_place() {
            self.read_stored(bp, bm, cx, buf)?;
            return transform.apply_in_place(buf);
        }
        crate::read::with_stored(size(bp.psize()), |stored| {
            self.read_stored(bp, bm, cx, stored)?;
            transform.apply(stored, buf)
        })
    }

    /// As [`Zio::read_noauth`], but uses a cached copy without moving it in its list, and inserts none.
    ///
    /// # Errors
    /// As [`Zio::read_noauth`].
    pub fn read_noauth_uncached(&self, bp: &BlkPtr, bm: &Bookmark) -> Result<Buf, Error> {
        self.read_logical(bp, bm, (Caching::Bypass, &ReadCx::NORMAL), bp.is_encrypted())
    }
}

fn fill(buf: &mut [u8], data: &[u8], bp: &BlkPtr, bm: &Bookmark) -> Result<(), Error> {
    if buf.len() != data.len() {
        let source = ondisk::Error::Invalid { what: "buffer of a block", field: "size", value: bp.lsize() };
        return Err(Error::BadPointer { bm: *bm, source });
    }
    buf.copy_from_slice(data);
    Ok(())
}
