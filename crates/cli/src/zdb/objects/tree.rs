//! Block pointers in short, and the tree of an object's indirect blocks.

use std::io;

use dmu::Object;
use ondisk::{BLKPTR_SIZE, BlkPtr, DnodePhys};
use zuse::zil::ShowBlkPtr;
use zuse::zio::Bookmark;

use super::Cx;

/// A block pointer in short: one address, or all of them from `-dddddd` on.
pub(super) fn compact(cx: &Cx<'_>, bp: &BlkPtr, freed: bool) -> String {
    if cx.options.level('b') >= 6 {
        return format!("{}{}", ShowBlkPtr(bp), if freed { " FREE" } else { "" });
    }
    let birth = bp.birth_logical();
    if bp.is_embedded() {
        let kind = bytes_of_kind(bp);
        return format!("EMBEDDED et={kind} {:x}L/{:x}P B={birth}", bp.lsize(), bp.psize());
    }
    let copies = if cx.level > 5 { bp.dvas().filter(|dva| dva.asize() != 0).count() } else { 1 };
    let mut text = String::new();
    for dva in (0..copies).map(|n| bp.dva(n)) {
        text += &format!("{dva}{} ", if dva.is_gang() { "G" } else { "" });
    }
    if bp.is_hole() {
        // a pointer of zeros counts as one sector
        return text + &format!("{:x}L B={birth}", bp.lsize().max(1 << ondisk::SECTOR_SHIFT));
    }
    text += &format!("{:x}L/{:x}P F={} B={birth}/{}", bp.lsize(), bp.psize(), bp.fill(), bp.birth_physical());
    let [a, b, c, d] = bp.cksum();
    text + &format!("{} cksum={a:016x}:{b:016x}:{c:016x}:{d:016x}", if freed { " FREE" } else { "" })
}

fn bytes_of_kind(bp: &BlkPtr) -> u64 {
    base::bytes::bits(bp.words[6], 40, 8)
}

/// Prints all block pointers of an object except holes that were never written, parents first.
pub(super) fn show(cx: &mut Cx<'_>, object: &Object) -> io::Result<()> {
    writeln!(cx.out, "Indirect blocks:")?;
    let dn = object.phys();
    let mut walk = Walk { object, dn, left: cx.most_blocks() };
    let top = dn.nlevels.saturating_sub(1);
    for (n, bp) in dn.blkptr.iter().enumerate() {
        walk.visit(cx, bp, top, n as u64)?;
    }
    writeln!(cx.out)
}

struct Walk<'a> {
    object: &'a Object,
    dn: &'a DnodePhys,
    /// Limit on the indirect blocks that can still follow.
    left: u64,
}

impl Walk<'_> {
    /// Prints a pointer and everything below it. Returns whether all below could be read: if not, the blocks beside it
    /// are left out, too.
    fn visit(&mut self, cx: &mut Cx<'_>, bp: &BlkPtr, level: u8, blkid: u64) -> io::Result<bool> {
        if bp.birth().0 == 0 {
            return Ok(true);
        }
        let offset = self.offset(level, blkid);
        write!(cx.out, "{offset:16x} ")?;
        for l in (-1..i16::from(self.dn.nlevels)).rev() {
            if l == i16::from(level) { write!(cx.out, "L{level:x}")? } else { write!(cx.out, " ")? }
        }
        write!(cx.out, "{}", compact(cx, bp, false))?;
        if !bp.is_embedded() {
            let (found, wanted) = (bp.object_type().0, self.dn.object_type.0);
            if found != wanted {
                write!(cx.out, " (ERROR: Block pointer type ({found}) does not match dnode type ({wanted}))")?;
                cx.trouble = true;
            }
            if bp.level() != level {
                write!(
                    cx.out,
                    " (ERROR: Block pointer level ({}) does not match bookmark level ({level}))",
                    bp.level()
                )?;
                cx.trouble = true;
            }
        }
        writeln!(cx.out)?;
        // a pointer with a wrong level could lead in circles
        if level == 0 || bp.level() != level || bp.is_hole() || bp.is_embedded() {
            return Ok(true);
        }
        self.below(cx, bp, level, blkid, offset)
    }

    fn below(&mut self, cx: &mut Cx<'_>, bp: &BlkPtr, level: u8, blkid: u64, offset: u64) -> io::Result<bool> {
        let objset = self.object.objset();
        let bookmark = Bookmark::new(objset.id(), self.object.id(), level, blkid);
        if self.left == 0 {
            cx.complain(&format_args!("{bookmark}: more indirect blocks than the pool has room for"));
            return Ok(false);
        }
        self.left -= 1;
        let Some(block) = cx.told(objset.zio().read(bp, &bookmark)) else { return Ok(false) };
        let pointers = block.as_chunks::<BLKPTR_SIZE>().0;
        let first = blkid.wrapping_mul(pointers.len() as u64);
        let mut fill = 0u64;
        for (n, raw) in pointers.iter().enumerate() {
            let child = BlkPtr::from_bytes(raw, bp.endian());
            if !self.visit(cx, &child, level - 1, first.wrapping_add(n as u64))? {
                return Ok(false);
            }
            fill = fill.wrapping_add(child.fill());
        }
        if fill != bp.fill() {
            let claimed = bp.fill();
            writeln!(cx.out, "{offset:16x}: Block pointer fill ({claimed}) does not match calculated value ({fill})")?;
            cx.trouble = true;
        }
        Ok(true)
    }

    /// The first byte of the object that is below a block.
    fn offset(&self, level: u8, blkid: u64) -> u64 {
        let shift = u32::from(level) * self.dn.fanout_shift();
        blkid.checked_shl(shift).unwrap_or(0).wrapping_mul(self.dn.datablksz())
    }
}
