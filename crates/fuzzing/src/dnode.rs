//! Blocks of dnodes, and the objects under them. The first byte is the byte order, then the block, which is the pool's data as well.

use base::{Endian, ObjectId};
use dmu::{Object, Walk};
use ondisk::{DNODE_SIZE, DnodePhys, ObjectType};

use crate::blocks;

/// Maximum number of visits of a walk.
const VISITS: usize = 2000;

/// Decodes every slot; a dnode that decodes is encoded again, read, searched and walked.
///
/// # Panics
/// On a bug in the library: a dnode does not survive encoding.
pub fn fuzz_dnode(data: &[u8]) {
    let Some((how, block)) = data.split_first() else { return };
    let endian = if how & 1 == 0 { Endian::Little } else { Endian::Big };
    let os = blocks::objset(block.to_vec());
    for slot in block.chunks(DNODE_SIZE).enumerate().map(|(n, _)| n).take(32) {
        let Ok(dn) = DnodePhys::decode(&block[slot * DNODE_SIZE..], endian) else { continue };
        if dn.object_type == ObjectType::NONE {
            continue;
        }
        assert_eq!(DnodePhys::decode(&dn.encode(), endian).as_ref(), Ok(&dn));
        exercise(&Object::new(os.clone(), ObjectId(slot as u64), dn));
    }
}

fn exercise(object: &Object) {
    let _ = object.read_vec(77, 3000);
    let _ = object.read_u64s(3, 100);
    for at in [0, 1, 9, object.phys().maxblkid, u64::MAX] {
        let _ = object.block(at);
        let _ = object.blkptr(1, at);
        let _ = object.next_data(at);
    }
    let _ = object.next_hole(0);
    let _ = object.spill();
    let mut left = VISITS;
    object.walk(&mut |_| {
        left -= 1;
        if left == 0 { Walk::Stop } else { Walk::Into }
    });
}
