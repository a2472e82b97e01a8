//! The part of `-m` about a removed vdev: where its blocks are now.

use std::io::Write;
use std::sync::Arc;

use base::{Endian, ObjectId, bytes};
use ondisk::indirect::{BIRTH_ENTRY_SIZE, BirthEntry, MappingPhys};
use pool::Pool;
use vdev::TopVdev;

use crate::error::{Failure, failed};

use super::options::Options;
use super::spacemaps::{Geometry, Map};
use super::top::top_zap_number;

/// Prints births and mapping; entry by entry with `-mmmm`. Prints nothing for a vdev that was not removed.
pub(super) fn show(out: &mut dyn Write, options: &Options, pool: &Arc<Pool>, top: &TopVdev) -> Result<(), Failure> {
    let Some(mapping) = top.mapping() else { return Ok(()) };
    let config = top.config();
    let births = births(pool, config.indirect_births)?;
    writeln!(out, "indirect births obj {}:\n    vib_count = {}", config.indirect_births, births.len())?;
    for birth in &births {
        writeln!(out, "\toffset {:x} -> txg {}", birth.offset, birth.phys_birth)?;
    }
    let phys = phys(pool, config.indirect_object)?;
    writeln!(out, "\nindirect mapping obj {}:", config.indirect_object)?;
    writeln!(out, "    vim_max_offset = {:#x}", phys.max_offset)?;
    writeln!(out, "    vim_bytes_mapped = {:#x}", phys.bytes_mapped)?;
    writeln!(out, "    vim_count = {}", phys.num_entries)?;
    if options.level('d') <= 5 && options.level('m') <= 3 {
        return Ok(());
    }
    let counts = obsolete_counts(pool, &phys)?;
    for (n, entry) in mapping.entries().iter().enumerate() {
        let (dst, unused) = (&entry.dst, counts.get(n).copied().unwrap_or(0));
        let size = dst.asize();
        writeln!(
            out,
            "\t<{:x}:{:x}:{size:x}> -> <{:x}:{:x}:{size:x}> ({unused:x} obsolete)",
            top.id(),
            entry.src(),
            dst.vdev(),
            dst.offset()
        )?;
    }
    writeln!(out)?;
    let obsolete = top_zap_number(pool, top, "com.delphix:indirect_obsolete_sm")?;
    if obsolete.is_some() {
        writeln!(out, "obsolete space map object {obsolete}:")?;
        Map::open(pool, obsolete)?.show(out, Geometry { start: 0, shift: 0 }, true, None)?;
        writeln!(out)?;
    }
    Ok(())
}

fn broken(id: ObjectId, why: &dyn std::fmt::Display) -> Failure {
    failed(format!("zdb: object {id} of a removed vdev: {why}"))
}

fn phys(pool: &Arc<Pool>, id: ObjectId) -> Result<MappingPhys, Failure> {
    let object = pool.mos().object(id).map_err(|e| broken(id, &e))?;
    MappingPhys::decode(object.bonus(), object.endian()).map_err(|e| broken(id, &e))
}

fn births(pool: &Arc<Pool>, id: ObjectId) -> Result<Vec<BirthEntry>, Failure> {
    let object = pool.mos().object(id).map_err(|e| broken(id, &e))?;
    let count = bytes::u64(object.bonus(), 0, object.endian()).unwrap_or(0);
    let stored = object.most_bytes() / BIRTH_ENTRY_SIZE as u64;
    if count > stored {
        return Err(broken(id, &format!("claims {count} births")));
    }
    let words = object.read_u64s(0, count as usize * 2).map_err(|e| broken(id, &e))?;
    let raw: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    BirthEntry::decode_all(&raw, count, Endian::Little).map_err(|e| broken(id, &e))
}

/// The bytes of each mapping entry that no block needs any more; empty if they are not counted.
fn obsolete_counts(pool: &Arc<Pool>, phys: &MappingPhys) -> Result<Vec<u32>, Failure> {
    let id = phys.counts_object;
    if id.is_none() {
        return Ok(Vec::new());
    }
    let object = pool.mos().object(id).map_err(|e| broken(id, &e))?;
    let stored = object.most_bytes() / 4;
    let len = phys.num_entries.min(stored) as usize * 4;
    let raw = object.read_vec(0, len).map_err(|e| broken(id, &e))?;
    let order = object.endian();
    Ok(raw.chunks_exact(4).map(|word| bytes::u32(word, 0, order).unwrap_or(0)).collect())
}
