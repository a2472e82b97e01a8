//! Space maps as `-m` shows them, with `-mmmm` entry by entry.

use std::io::{self, Write};
use std::sync::Arc;

use base::ObjectId;
use dmu::Object;
use ondisk::spacemap::{Action, Entry, SpaceMapHeader};
use pool::Pool;

use crate::error::{Failure, failed};

/// The offset at which the units of a space map begin, and their size.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    pub(super) start: u64,
    pub(super) shift: u32,
}

/// A space map object.
pub(super) struct Map {
    object: Object,
    pub(super) header: SpaceMapHeader,
}

impl Map {
    /// Opens the space map in object `id` of the MOS.
    pub(super) fn open(pool: &Arc<Pool>, id: ObjectId) -> Result<Map, Failure> {
        let broken = |why: String| failed(format!("zdb: space map {id}: {why}"));
        let object = pool.mos().object(id).map_err(|e| broken(e.to_string()))?;
        let header = SpaceMapHeader::decode(object.bonus(), object.endian()).map_err(|e| broken(e.to_string()))?;
        Ok(Map { object, header })
    }

    /// Prints the header, and with `entries` the logged entries; those that name a vdev other than `only` are left
    /// out.
    pub(super) fn show(
        &self,
        out: &mut dyn Write,
        geometry: Geometry,
        entries: bool,
        only: Option<u64>,
    ) -> Result<(), Failure> {
        writeln!(out, "space map object {}:", self.object.id())?;
        writeln!(out, "  smp_length = {:#x}", self.header.length)?;
        writeln!(out, "  smp_alloc = {:#x}", self.header.alloc)?;
        if !entries {
            return Ok(());
        }
        let mut sum = 0i64;
        let mut number = 0u64;
        self.for_each(&mut |entry| {
            let shown = show_entry(out, number, &entry, geometry, only);
            number += 1;
            if let Entry::Run { action, run, .. } = entry {
                let bytes = run.wrapping_shl(geometry.shift) as i64;
                sum = if action == Action::Alloc { sum.wrapping_add(bytes) } else { sum.wrapping_sub(bytes) };
            }
            shown
        })?;
        if sum != self.header.alloc {
            writeln!(
                out,
                "space_map_object alloc ({}) INCONSISTENT with space map summary ({sum})",
                self.header.alloc
            )?;
        }
        Ok(())
    }

    /// Visits all entries in order.
    pub(super) fn for_each(&self, visit: &mut dyn FnMut(Entry) -> io::Result<()>) -> Result<(), Failure> {
        let broken = |why: &str| failed(format!("zdb: space map {}: {why}", self.object.id()));
        let words_in_all = self.header.length / 8;
        let per_block = (self.object.block_size() / 8).max(1);
        let mut at = 0;
        while at < words_in_all {
            let count = per_block.min(words_in_all - at) as usize;
            if at / per_block >= self.object.most_blocks() {
                return Err(broken("is shorter than its header says"));
            }
            let words = self.object.read_u64s(at, count).map_err(|e| broken(&e.to_string()))?;
            let mut rest = words.as_slice();
            while !rest.is_empty() {
                let (entry, used) = Entry::decode(rest).ok_or_else(|| broken("an entry is cut off"))?;
                visit(entry)?;
                rest = rest.get(used..).unwrap_or(&[]);
            }
            at += count as u64;
        }
        Ok(())
    }
}

fn show_entry(
    out: &mut dyn Write,
    number: u64,
    entry: &Entry,
    geometry: Geometry,
    only: Option<u64>,
) -> io::Result<()> {
    match *entry {
        Entry::Debug { txg, .. } if txg.0 == 0 => writeln!(out, "\t    [{number:6}] PADDING"),
        Entry::Debug { action, pass, txg } => {
            let action = if action == Action::Alloc { "ALLOC" } else { "FREE" };
            writeln!(out, "\t    [{number:6}] {action}: txg {txg} pass {pass}")
        }
        Entry::Run { action, offset, run, vdev, .. } => {
            let letter = if action == Action::Alloc { 'A' } else { 'F' };
            let start = offset.wrapping_shl(geometry.shift).wrapping_add(geometry.start);
            let size = run.wrapping_shl(geometry.shift);
            let last = start.wrapping_add(size).wrapping_sub(1);
            let vdev = match (vdev, only) {
                (Some(vdev), Some(only)) if u64::from(vdev) != only => return Ok(()),
                (Some(vdev), _) => format!(" vdev: {vdev}"),
                (None, _) => String::new(),
            };
            writeln!(out, "\t    [{number:6}] {letter} range: {start:012x}-{last:012x} size: {size:08x}{vdev}")
        }
    }
}
