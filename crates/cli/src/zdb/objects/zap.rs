//! ZAPs: their shape and their entries.

use std::io::{self, Write};

use base::{ObjectId, bytes};
use dmu::{FatStats, Object, Zap, ZapEntry, ZapStats, ZapValue};
use ondisk::sa::SaRegistration;
use ondisk::zap::{ZAP_MAGIC, ZBT_HEADER};

use super::super::text::histogram;
use super::Cx;

/// Entries that are shown as digits: keys, and what belongs to them.
const SECRETS: [&[u8]; 5] = [
    b"DSL_CRYPTO_MASTER_KEY_1",
    b"DSL_CRYPTO_HMAC_KEY_1",
    b"DSL_CRYPTO_IV",
    b"DSL_CRYPTO_MAC",
    b"org.illumos:checksum_salt",
];

/// Types of files in directories.
const FILE_TYPES: [&str; 16] = [
    "not specified",
    "FIFO",
    "Character Device",
    "3 (invalid)",
    "Directory",
    "5 (invalid)",
    "Block Device",
    "7 (invalid)",
    "Regular File",
    "9 (invalid)",
    "Symbolic Link",
    "11 (invalid)",
    "Socket",
    "Door",
    "Event Port",
    "15 (invalid)",
];

/// The names in the ZAP of the MOS in object `id`, in its order; none for 0. `None` after reporting an error.
pub(super) fn names(cx: &mut Cx<'_>, id: ObjectId) -> Option<Vec<String>> {
    if id.is_none() {
        return Some(Vec::new());
    }
    let zap = cx.told(cx.pool.mos().object(id).and_then(Zap::open_any))?;
    let mut names = Vec::new();
    for entry in cx.told(zap.entries())? {
        names.push(cx.told(entry)?.name_lossy().into_owned());
    }
    Some(names)
}

/// Prints the shape of a ZAP, then `entry` for each of its entries.
fn each(
    cx: &mut Cx<'_>,
    object: &Object,
    entry: impl Fn(&mut dyn Write, &Zap, &ZapEntry) -> io::Result<()>,
) -> io::Result<()> {
    let zap = cx.told(Zap::open_any(object.clone()));
    if let Some(zap) = &zap {
        shape(cx.out, &zap.stats())?;
    }
    writeln!(cx.out)?;
    let Some(zap) = zap else { return Ok(()) };
    let Some(entries) = cx.told(zap.entries()) else { return Ok(()) };
    for found in entries {
        match found {
            Ok(found) => entry(cx.out, &zap, &found)?,
            Err(e) => cx.complain(&e),
        }
    }
    Ok(())
}

/// Prints a ZAP of any kind.
pub(super) fn show(cx: &mut Cx<'_>, object: &Object) -> io::Result<()> {
    each(cx, object, |out, zap, entry| {
        let word_keys = zap.has_word_keys();
        out.write_all(b"\t\t")?;
        if word_keys {
            write!(out, "0x{:010}x = ", entry.key().first().copied().unwrap_or(0))?;
        } else {
            out.write_all(&entry.name)?;
            out.write_all(b" = ")?;
        }
        // zdb looks up keys of one word only
        let lost = word_keys && entry.key().len() > 1;
        let zeros = ZapValue { int_size: entry.value.int_size, bytes: vec![0; entry.value.bytes.len()] };
        value(out, entry, if lost { &zeros } else { &entry.value }, word_keys)?;
        writeln!(out)
    })
}

fn value(out: &mut dyn Write, entry: &ZapEntry, value: &ZapValue, word_keys: bool) -> io::Result<()> {
    match value.int_size {
        1 if word_keys => value.iter().try_for_each(|n| write!(out, "{n} ")),
        1 if SECRETS.contains(&entry.name.as_slice()) => value.iter().try_for_each(|n| write!(out, "{n:02x}")),
        1 => out.write_all(bytes::until_nul(&value.bytes)),
        8 => value.iter().try_for_each(|n| write!(out, "{} ", n.cast_signed())),
        _ => value.iter().try_for_each(|n| write!(out, "{n} ")),
    }
}

/// Prints the shape alone.
pub(super) fn show_shape(cx: &mut Cx<'_>, object: &Object) -> io::Result<()> {
    match cx.told(Zap::open_any(object.clone())) {
        Some(zap) => shape(cx.out, &zap.stats()),
        None => Ok(()),
    }
}

/// Prints a directory of files.
pub(super) fn directory(cx: &mut Cx<'_>, object: &Object) -> io::Result<()> {
    each(cx, object, |out, _, entry| {
        let word = entry.value.first();
        let kind = FILE_TYPES.get((word >> 60) as usize).copied().unwrap_or_default();
        out.write_all(b"\t\t")?;
        out.write_all(&entry.name)?;
        writeln!(out, " = {} (type: {kind})", ObjectId::of_entry(word))
    })
}

/// Prints a registry of system attributes.
pub(super) fn registry(cx: &mut Cx<'_>, object: &Object) -> io::Result<()> {
    each(cx, object, |out, _, entry| {
        out.write_all(b"\t\t")?;
        out.write_all(&entry.name)?;
        if entry.value.is_empty() {
            return writeln!(out, " = ");
        }
        let word = entry.value.first();
        let SaRegistration { number, length, swap } = SaRegistration::from(word);
        writeln!(out, " =  {word:x} : [{length}:{swap}:{number}]")
    })
}

/// Prints layouts of system attributes.
pub(super) fn layouts(cx: &mut Cx<'_>, object: &Object) -> io::Result<()> {
    each(cx, object, |out, _, entry| {
        out.write_all(b"\t\t")?;
        out.write_all(&entry.name)?;
        write!(out, " = [")?;
        if entry.value.is_empty() {
            return writeln!(out);
        }
        entry.value.iter().try_for_each(|n| write!(out, " {n} "))?;
        writeln!(out, "]")
    })
}

fn shape(out: &mut dyn Write, stats: &ZapStats) -> io::Result<()> {
    let Some(fat) = &stats.fat else {
        return writeln!(out, "\tmicrozap: {} bytes, {} entries", stats.blocksize, stats.num_entries);
    };
    let FatStats { header, .. } = fat;
    let table = &header.ptrtbl;
    let elements = u32::try_from(table.shift).ok().and_then(|shift| 1u64.checked_shl(shift)).unwrap_or(0);
    writeln!(out, "\tFat ZAP stats:\n\t\tPointer table:\n\t\t\t{elements} elements")?;
    let lines = [
        ("zt_blk", table.blk),
        ("zt_numblks", table.numblks),
        ("zt_shift", table.shift),
        ("zt_blks_copied", table.blks_copied),
        ("zt_nextblk", table.nextblk),
    ];
    lines.iter().try_for_each(|(name, n)| writeln!(out, "\t\t\t{name}: {n}"))?;
    writeln!(out, "\t\tZAP entries: {}", stats.num_entries)?;
    writeln!(out, "\t\tLeaf blocks: {}", header.num_leafs)?;
    writeln!(out, "\t\tTotal blocks: {}", stats.num_blocks)?;
    let words = [("zap_block_type", ZBT_HEADER), ("zap_magic", ZAP_MAGIC), ("zap_salt", header.salt)];
    words.iter().try_for_each(|(name, n)| writeln!(out, "\t\t{name}: {n:#x}"))?;
    let histograms = [
        ("Leafs with 2^n pointers", &fat.leafs_with_2n_pointers),
        ("Blocks with n*5 entries", &fat.blocks_with_n5_entries),
        ("Blocks n/10 full", &fat.blocks_n_tenths_full),
        ("Entries with n chunks", &fat.entries_using_n_chunks),
        ("Buckets with n entries", &fat.buckets_with_n_entries),
    ];
    for (title, buckets) in histograms {
        writeln!(out, "\t\t{title}:")?;
        histogram(out, buckets, 0)?;
    }
    Ok(())
}
