//! Bulk operations: creating a ZAP with another's names, and reading all numbers of a ZAP in no particular order.
//!
//! They exist for deadlists. The deadlist of the n-th snapshot has the n keys of the one before it and one more, nearly
//! all with the same value. So a new one is made by copying the old one's blocks and setting the value; and a reader of
//! thousands of deadlists needs neither order nor copies of names.

use std::collections::HashMap;

use ondisk::zap::{FatHeader, Leaf, LeafEntry, PointerTable};
use ondisk::zap_edit::{self, LeafMut};

use super::fat::{Fat, LeafBlock};
use super::fat_write::Target;
use super::micro::Micro;
use super::{Body, NewZap, Zap, live};
use crate::{Error, NewObject, Object, Tx};

/// A ZAP with a deeper pointer table (16 MiB) is not used as a model: it is broken, or has an enormous number of
/// colliding entries.
const TABLE_SHIFT_MAX: u16 = 21;

impl Zap {
    /// Creates a ZAP in a new object, with the type and bonus buffer of `new` and with the names of this one, each with
    /// `value`. All else (normalisation, flags, salt, block size) is as in this one, whose values must be 64-bit numbers.
    ///
    /// # Errors
    /// When this one cannot be read or is broken, or the object cannot be created.
    pub fn create_like(&self, tx: &Tx, new: &NewZap, value: u64) -> Result<Zap, Error> {
        let body = self.body();
        let block_size = match &*body {
            Body::Micro(micro) => micro.block_size(),
            Body::Fat(fat) => fat.header.block_size as u64,
        };
        let what = NewObject {
            object_type: new.object_type,
            block_size,
            indirect_shift: new.indirect_shift,
            bonus_type: new.bonus_type,
            bonus_len: new.bonus_len,
            slots: new.slots,
            ..NewObject::default()
        };
        let object = self.object().objset().alloc_object(tx, &what)?;
        let to = Target { object: &object, tx };
        let made = match &*body {
            Body::Micro(micro) => micro.write_like(&to, value).map(Body::Micro),
            Body::Fat(fat) => fat.write_like(self.object(), &to, value).map(Body::Fat),
        };
        match made {
            Ok(made) => Ok(live::made(object, made)),
            Err(error) => object.objset().free_object(tx, object.id()).and(Err(error)),
        }
    }

    /// Calls `visit` with every name and the first integer of its value, in no particular order.
    ///
    /// # Errors
    /// When a block cannot be read or is broken; any error of `visit`.
    pub fn for_each_number<E: From<Error>>(&self, mut visit: impl FnMut(&[u8], u64) -> Result<(), E>) -> Result<(), E> {
        let (object, mut name) = (self.object(), Vec::new());
        match &*self.body() {
            Body::Micro(micro) => micro.in_use().try_for_each(|(_, entry)| visit(entry.name, entry.value)),
            Body::Fat(fat) => fat.for_each_leaf(object, |block| {
                let leaf = block.view(object)?;
                for found in entries(object, leaf) {
                    let (_, entry) = found?;
                    leaf.name_into(&entry, fat.word_keys(), &mut name).map_err(|source| object.format(source))?;
                    visit(&name, leaf.first_int(&entry).map_err(|source| object.format(source))?)?;
                }
                Ok(())
            }),
        }
    }
}

impl Micro {
    fn write_like(&self, to: &Target<'_>, value: u64) -> Result<Micro, Error> {
        let mut block = self.block.to_vec();
        zap_edit::to_little(&mut block);
        zap_edit::fill_micro(&mut block, value);
        to.write(0, block.clone())?;
        Ok(Micro::fresh(block, self.salt, self.normflags))
    }
}

impl Fat {
    /// Copies all leaves; they get new block ids and a table as large as they need.
    fn write_like(&self, object: &Object, to: &Target<'_>, value: u64) -> Result<Fat, Error> {
        let (mut entries, mut leaves) = (0, Vec::new());
        self.for_each_leaf(object, |block| {
            let header = block.view(object)?.header;
            let mut copy = block.buf.to_vec();
            let filled = LeafMut::new(&mut copy).and_then(|mut leaf| leaf.fill(value));
            entries += filled.map_err(|source| object.format(source))?;
            leaves.push((header.prefix, header.prefix_len));
            to.write(leaves.len() as u64, copy)
        })?;
        let table = table_for(object, self.header.block_shift(), &leaves)?;
        let mut fat = Fat::fresh(
            FatHeader {
                freeblk: 1 + leaves.len() as u64 + table.numblks,
                ptrtbl: table,
                num_leafs: leaves.len() as u64,
                num_entries: entries,
                ..self.header
            },
            Vec::new(),
        );
        fat.write_table(object, to, &leaves)?;
        Ok(fat)
    }

    /// Writes the header and the pointer table for leaves in blocks 1, 2, …, in the order of their prefixes.
    fn write_table(&mut self, object: &Object, to: &Target<'_>, leaves: &[(u64, u16)]) -> Result<(), Error> {
        let PointerTable { blk, numblks, shift, .. } = self.header.ptrtbl;
        let mut pointers: Vec<u64> = Vec::with_capacity(1 << shift);
        for (n, (prefix, len)) in (1..).zip(leaves) {
            let below = shift - u64::from(*len);
            if pointers.len() as u64 != prefix << below {
                return Err(object.corrupt("prefix of a ZAP leaf", *prefix));
            }
            pointers.extend(std::iter::repeat_n(n, 1 << below));
        }
        if pointers.len() as u64 != 1 << shift {
            return Err(object.corrupt("number of pointers to leaves of a ZAP", pointers.len() as u64));
        }
        let size = self.header.block_size;
        let mut head = vec![0; size];
        self.header.encode_into(&mut head);
        if numblks == 0 {
            head.truncate(size / 2);
            head.extend(pointers.iter().flat_map(|pointer| pointer.to_le_bytes()));
        }
        to.write(0, head)?;
        for (n, words) in (0..numblks).zip(pointers.chunks(size / 8)) {
            to.write(blk + n, words.iter().flat_map(|word| word.to_le_bytes()).collect())?;
        }
        let per_block = if numblks == 0 { pointers.len() } else { size / 8 };
        self.table = Some((0..).zip(pointers.chunks(per_block).map(<[u64]>::to_vec)).collect::<HashMap<_, _>>());
        Ok(())
    }

    /// Visits all leaves in the order of their prefixes, which together must cover all hashes.
    fn for_each_leaf<E: From<Error>>(
        &self,
        object: &Object,
        mut visit: impl FnMut(&LeafBlock) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = Some(0);
        while let Some(hash) = at {
            // an empty pointer stands for an emptied ZAP, as for the cursor
            let Some(block) = self.leaf(object, hash)? else { return Ok(()) };
            at = block.view(object)?.behind();
            visit(&block)?;
        }
        Ok(())
    }
}

/// All entries of a leaf, with their chunks, in the order of its chains. An entry that does not belong there is an error.
pub(super) fn entries<'a>(
    object: &'a Object,
    leaf: Leaf<'a>,
) -> impl Iterator<Item = Result<(u16, LeafEntry), Error>> + 'a {
    let of_chain = move |chain| {
        leaf.chain(chain).map(move |found| {
            let (chunk, entry) = found.map_err(|source| object.format(source))?;
            match leaf.holds(entry.hash) && leaf.chain_of(entry.hash) == chain {
                true => Ok((chunk, entry)),
                false => Err(object.corrupt("hash of a ZAP entry", entry.hash)),
            }
        })
    };
    (0..leaf.hash_entries()).flat_map(of_chain)
}

/// The location of the pointer table of these leaves: in the header if there is room, else after the leaves.
fn table_for(object: &Object, block_shift: u32, leaves: &[(u64, u16)]) -> Result<PointerTable, Error> {
    let deepest = leaves.iter().map(|(_, len)| *len).max().unwrap_or(0);
    if deepest > TABLE_SHIFT_MAX {
        return Err(object.corrupt("prefix length of a ZAP leaf", deepest.into()));
    }
    let (in_header, in_block, deepest) = (u64::from(block_shift) - 4, u64::from(block_shift) - 3, u64::from(deepest));
    if deepest <= in_header {
        return Ok(PointerTable { shift: in_header, ..PointerTable::default() });
    }
    let blk = 1 + leaves.len() as u64;
    let shift = deepest.max(in_block);
    Ok(PointerTable { blk, numblks: 1 << (shift - in_block), shift, ..PointerTable::default() })
}
