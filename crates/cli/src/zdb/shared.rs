//! Blocks that several pointers lead to: decides which visit is the first, by the tables of dedup and of cloned
//! blocks.
//!
//! Space is claimed once for such a block, and each further visit uses up one reference of its entry. Entries that
//! were visited and not used up are leaked.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use ondisk::BlkPtr;
use ondisk::ddt::{DdtKey, DdtPhys};
use pool::Pool;
use zuse::zil::ShowBlkPtr;

use crate::error::Failure;

use super::ddt;
use super::text::trouble;

/// An entry of a dedup table, with the references that were not used up yet.
struct Dedup {
    slots: Vec<DdtPhys>,
    flat: bool,
    /// The visited slots.
    seen: Vec<bool>,
    met: bool,
}

/// An entry of a table of cloned blocks.
struct Clone {
    left: u64,
    met: bool,
}

/// The tables, and sums of the space they save.
#[derive(Default)]
pub(super) struct Shared {
    dedup: HashMap<(u8, DdtKey), Dedup>,
    clones: HashMap<(u64, u64), Clone>,
    pub(super) dedup_asize: u64,
    pub(super) dedup_blocks: u64,
    pub(super) clone_asize: u64,
    pub(super) clone_blocks: u64,
}

impl Shared {
    /// Loads the tables of a pool.
    pub(super) fn load(pool: &Arc<Pool>) -> Result<Shared, Failure> {
        let mut shared = Shared::default();
        for table in pool.ddts().map_err(trouble)? {
            let checksum = table.checksum as u8;
            let mut add = |entry: &pool::ddt::Entry| {
                let slots = entry.value.slots.clone();
                let seen = vec![false; slots.len()];
                let value = Dedup { slots, flat: entry.value.flat, seen, met: false };
                shared.dedup.insert((checksum, entry.key), value);
                Ok(())
            };
            table.for_each(&mut add).map_err(trouble)?;
        }
        for table in pool.brts().map_err(trouble)? {
            for entry in table.entries().map_err(trouble)? {
                let (offset, left) = entry.map_err(trouble)?;
                shared.clones.insert((table.vdev, offset), Clone { left, met: false });
            }
        }
        Ok(shared)
    }

    /// Notes a visit, and returns the pointer with all copies of the block: a table may know more of them.
    pub(super) fn visit(&mut self, bp: &BlkPtr) -> BlkPtr {
        let mut whole = *bp;
        if bp.is_dedup() && self.visit_dedup(&mut whole) {
            return whole;
        }
        let dva = bp.dva(0);
        let clone = self.clones.get_mut(&(dva.vdev(), dva.offset())).filter(|_| !bp.is_embedded());
        if let Some(clone) = clone
            && std::mem::replace(&mut clone.met, true)
            && clone.left > 0
        {
            clone.left -= 1;
            self.clone_asize += whole.asize();
            self.clone_blocks += 1;
        }
        whole
    }

    /// Notes a visit in the dedup tables; returns whether it is not the first.
    fn visit_dedup(&mut self, bp: &mut BlkPtr) -> bool {
        let Some(entry) = self.dedup.get_mut(&(bp.checksum(), DdtKey::of(bp))) else { return false };
        entry.met = true;
        let fits = |slot: &DdtPhys| slot.dva.first() == Some(&bp.dva(0)) && slot.phys_birth == bp.birth_physical();
        let Some(n) = entry.slots.iter().position(fits) else { return false };
        let (Some(slot), Some(seen)) = (entry.slots.get_mut(n), entry.seen.get_mut(n)) else { return false };
        let again = std::mem::replace(seen, true);
        let exhausted = slot.refcnt == 0;
        slot.refcnt = slot.refcnt.saturating_sub(1);
        if entry.flat {
            for (d, dva) in slot.dva.iter().enumerate() {
                if let Some([a, b]) = bp.words.get_mut(2 * d..2 * d + 2) {
                    (*a, *b) = (dva.word0, dva.word1);
                }
            }
        }
        if !again || exhausted {
            return false;
        }
        self.dedup_asize += bp.asize();
        self.dedup_blocks += 1;
        true
    }

    /// Reports the visited entries that have references left. Returns whether there is any.
    pub(super) fn leaks(&self, out: &mut dyn Write) -> io::Result<bool> {
        let mut any = false;
        for ((vdev, offset), clone) in self.clones.iter().filter(|(_, clone)| clone.met && clone.left > 0) {
            writeln!(out, "BRT leak: vdev {vdev}, offset {offset:#x}, refcount {}", clone.left)?;
            any = true;
        }
        for ((checksum, key), entry) in self.dedup.iter().filter(|(_, entry)| entry.met) {
            for slot in entry.slots.iter().filter(|slot| slot.refcnt != 0) {
                let bp = ddt::pointer(*checksum, key, slot);
                writeln!(out, "DDT leak: refcount {} {}", slot.refcnt, ShowBlkPtr(&bp))?;
                any = true;
            }
        }
        Ok(any)
    }
}
