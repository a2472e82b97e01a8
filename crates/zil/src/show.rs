//! Block pointers as `zdb` prints them (OpenZFS: `snprintf_blkptr`).

use std::fmt;

use codec::{ChecksumKind, Compress};
use ondisk::{BlkPtr, ObjectType};

/// Displays a block pointer in `zdb`'s format.
#[derive(Clone, Copy, Debug)]
pub struct ShowBlkPtr<'a>(pub &'a BlkPtr);

impl fmt::Display for ShowBlkPtr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bp = self.0;
        let (level, kind, birth) = (bp.level(), type_name(bp.object_type()), bp.birth_logical());
        let (lsize, psize) = (bp.lsize(), bp.psize());
        let compress = match bp.compression() {
            0 => "inherit",
            1 => "on",
            n => Compress::from_u8(n).map_or("unknown", Compress::name),
        };
        if bp.is_hole() {
            // an all-zero pointer counts as one sector
            let lsize = lsize.max(1 << ondisk::SECTOR_SHIFT);
            return write!(f, "HOLE [L{level} {kind}] size={lsize:x}L birth={birth}L");
        }
        if bp.is_embedded() {
            let etype = base::bytes::bits(bp.words[6], 40, 8);
            return write!(
                f,
                "EMBEDDED [L{level} {kind}] et={etype} {compress} size={lsize:x}L/{psize:x}P birth={birth}L"
            );
        }
        let dvas: Vec<_> = bp.dvas().collect();
        for (n, dva) in dvas.iter().enumerate() {
            write!(f, "DVA[{n}]=<{dva}> ")?;
        }
        if bp.is_encrypted() {
            let iv = bp.iv();
            let iv2 = u32::from_le_bytes([iv[8], iv[9], iv[10], iv[11]]);
            write!(f, "salt={:x} iv={:x}:{iv2:x} ", bp.words[4], bp.words[5])?;
        }
        let checksum = match bp.checksum() {
            0 => "inherit",
            1 => "on",
            n => ChecksumKind::from_u8(n).map_or("unknown", ChecksumKind::name),
        };
        let crypt = match () {
            () if bp.is_encrypted() => "encrypted",
            () if bp.is_authenticated() => "authenticated",
            () if bp.has_indirect_mac() => "indirect-MAC",
            () => "unencrypted",
        };
        let order = if bp.endian() == base::Endian::Big { "BE" } else { "LE" };
        let gang = if bp.is_gang() { "gang" } else { "contiguous" };
        let dedup = if bp.is_dedup() { "dedup" } else { "unique" };
        let copies = ["zero", "single", "double", "triple"].get(dvas.len()).copied().unwrap_or("triple");
        let (physical, fill, [a, b, c, d]) = (bp.birth_physical(), bp.fill(), bp.cksum());
        write!(f, "[L{level} {kind}] {checksum} {compress} {crypt} {order} {gang} {dedup} {copies} ")?;
        write!(
            f,
            "size={lsize:x}L/{psize:x}P birth={birth}L/{physical}P fill={fill} cksum={a:016x}:{b:016x}:{c:016x}:{d:016x}"
        )
    }
}

/// Returns the type's name. For a self-describing type the content name comes before the byteswap class, the reverse of the order
/// used in object listings.
fn type_name(kind: ObjectType) -> String {
    let name = kind.name();
    let words: Vec<&str> = name.split(' ').collect();
    match (kind.is_self_describing(), words.as_slice()) {
        (true, [first, class, what]) => format!("{first} {what} {class}"),
        _ => name,
    }
}
