//! Blocks that arrive in stored form: how they are held until their sync, and how a run of them is written.

use base::Endian;
use codec::Compress;
use zio::{Buf, Payload};

use super::Tx;
use super::dnode::Block;
use crate::{Error, Object};

/// A compressed block, held compactly: during a receive hundreds of thousands of them wait.
#[derive(Clone)]
pub(crate) struct Packed {
    bytes: Buf,
    lsize: u32,
    compress: Compress,
    byteorder: Endian,
}

impl From<Payload> for Block {
    fn from(payload: Payload) -> Block {
        match payload {
            Payload::Stored { bytes, lsize, compress, crypt: None, byteorder } if lsize <= u64::from(u32::MAX) => {
                Block::Packed(Packed { bytes, lsize: lsize as u32, compress, byteorder })
            }
            Payload::Logical(data) => Block::Data(data),
            other => Block::Stored(Box::new(other)),
        }
    }
}

impl From<Packed> for Payload {
    fn from(block: Packed) -> Payload {
        let Packed { bytes, lsize, compress, byteorder } = block;
        Payload::Stored { bytes, lsize: lsize.into(), compress, crypt: None, byteorder }
    }
}

impl From<Block> for Payload {
    fn from(block: Block) -> Payload {
        match block {
            Block::Data(buf) => Payload::Logical(buf),
            Block::Packed(packed) => packed.into(),
            Block::Stored(payload) => *payload,
        }
    }
}

impl Object {
    /// Writes blocks in stored form, each as [`Object::write_stored`] does, in one step: less work for each.
    ///
    /// # Errors
    /// [`Error::Refused`] if the logical size of one is not the block size, with the number of blocks written before it.
    pub fn write_stored_run(&self, tx: &Tx, blocks: Vec<(u64, Payload)>) -> Result<(), (usize, Error)> {
        let dnode = self.live().ok_or((0, Error::ReadOnly { objset: self.objset().id(), object: self.id() }))?;
        for run in blocks.chunk_by(|(a, _), (b, _)| a.checked_add(1) == Some(*b)) {
            if let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) {
                self.check_above(*first..last.saturating_add(1)).map_err(|error| (0, error))?;
            }
        }
        let (mut done, mut bytes, mut refused) = (0, 0, None);
        let changed = self.objset().change(tx, dnode, |state| {
            let size = state.newest.datablksz();
            for (blkid, payload) in blocks {
                let put = match payload.lsize() == size {
                    true => self.put_block(state, tx, blkid, Block::from(payload)),
                    false => Err(self.refused("length of a block", payload.lsize())),
                };
                match put {
                    Ok(fresh) => bytes += if fresh { size } else { 0 },
                    Err(error) => {
                        refused = Some((done, error));
                        break;
                    }
                }
                done += 1;
            }
            Ok(())
        });
        changed.map_err(|error| (0, error))?;
        tx.dirtied(bytes);
        refused.map_or(Ok(()), Err)
    }
}
