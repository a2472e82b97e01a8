//! The part of `-l` about a cache device: its header, and with `-ll` and `-lll` the log of what it holds.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use base::Endian;
use ondisk::l2arc::{DEV_HDR_SIZE, DevHdr, L2ARC_DEV_HDR_MAGIC, L2ARC_LOG_BLK_MAGIC, LOG_BLK_SIZE, LogBlk, LogBlkPtr};
use zuse::codec::{Compress, decompress, fletcher::fletcher4};

use super::options::Options;

const RULE: &str = "------------------------------------";
/// The offset of the header: after the labels and the boot region.
const HEADER_OFFSET: u64 = 4 << 20;
/// Log blocks that are followed; a device of 16 TiB with blocks of 4 KiB has fewer.
const BLOCKS_MAX: u64 = 1 << 24;

/// Shows the header and the log. Returns whether the log holds what the header says.
pub(super) fn show(out: &mut dyn Write, options: &Options, file: &File) -> io::Result<bool> {
    let mut raw = [0; DEV_HDR_SIZE];
    let header = file.read_exact_at(&mut raw, HEADER_OFFSET).ok().and_then(|()| DevHdr::decode(&raw).ok());
    let Some(header) = header else {
        writeln!(out, "L2ARC device header not found\n")?;
        return Ok(true);
    };
    if !options.has('q') {
        writeln!(out, "{RULE}\nL2ARC device header\n{RULE}")?;
        let [first, second] = &header.start_lbps;
        let lines = [
            ("magic", L2ARC_DEV_HDR_MAGIC),
            ("version", header.version),
            ("pool_guid", header.spa_guid.0),
            ("flags", header.flags),
            ("start_lbps[0]", first.daddr),
            ("start_lbps[1]", second.daddr),
            ("log_blk_ent", header.log_entries),
            ("start", header.start),
            ("end", header.end),
            ("evict", header.evict),
            ("lb_asize_refcount", header.lb_asize),
            ("lb_count_refcount", header.lb_count),
            ("trim_action_time", header.trim_action_time),
            ("trim_state", header.trim_state),
        ];
        for (name, value) in lines {
            writeln!(out, "    {name}: {value}")?;
        }
        writeln!(out)?;
        writeln!(out, "{RULE}\nL2ARC device log blocks\n{RULE}")?;
    }
    let (count, asize) = show_log(out, options, file, &header)?;
    Ok(header.lb_asize <= asize && header.lb_count <= count)
}

/// Follows the log from its newest block; returns the number of valid blocks and their bytes.
fn show_log(out: &mut dyn Write, options: &Options, file: &File, header: &DevHdr) -> io::Result<(u64, u64)> {
    let quiet = options.has('q');
    let [mut this, mut next] = header.start_lbps;
    if this.daddr == 0 {
        if !quiet {
            writeln!(out, "No log blocks to read\n")?;
        }
        return Ok((0, 0));
    }
    let (mut count, mut asize, mut bad) = (0, 0, 0);
    while is_valid(header, &this) && count < BLOCKS_MAX {
        let mut raw = vec![0; this.asize() as usize];
        if file.read_exact_at(&mut raw, this.daddr).is_err() {
            if !quiet {
                writeln!(out, "Error while reading next log block\n")?;
            }
            break;
        }
        if fletcher4(&raw, Endian::Little) != this.cksum {
            bad += 1;
            if !quiet {
                writeln!(out, "Invalid cksum")?;
                show_pointer(out, &this)?;
            }
            break;
        }
        let plain = match Compress::from_u8(this.compress()) {
            Some(Compress::Off) => Some(raw),
            Some(kind) => {
                let mut plain = vec![0; LOG_BLK_SIZE];
                decompress(kind, &raw, &mut plain).is_ok().then_some(plain)
            }
            None => None,
        };
        let Some(plain) = plain else {
            writeln!(out, "L2ARC block decompression failed")?;
            break;
        };
        let Ok(block) = LogBlk::decode(&plain, header.log_entries) else {
            if !quiet {
                writeln!(out, "Invalid log block magic\n")?;
            }
            break;
        };
        count += 1;
        asize += this.asize();
        if options.level('l') > 1 && !quiet {
            writeln!(out, "lb[{count:4}]\tmagic: {L2ARC_LOG_BLK_MAGIC}")?;
            show_pointer(out, &this)?;
        }
        if options.level('l') > 2 && !quiet {
            show_entries(out, &block, count)?;
        }
        // the ring has been overwritten from here on
        if overlaps(next.payload_start, this.payload_start, header.evict) && header.flags & 1 == 0 {
            break;
        }
        (this, next) = (next, block.prev_lbp);
    }
    if !quiet {
        writeln!(out, "log_blk_count:\t {count} with valid cksum\n\t\t {bad} with invalid cksum")?;
        writeln!(out, "log_blk_asize:\t {asize}\n")?;
    }
    Ok((count, asize))
}

/// Returns whether a pointer to a log block is plausible (OpenZFS: `l2arc_log_blkptr_valid`).
fn is_valid(header: &DevHdr, lbp: &LogBlkPtr) -> bool {
    let size = lbp.asize();
    let (start, Some(end)) = (lbp.payload_start, lbp.daddr.checked_add(size)) else { return false };
    let within = start >= header.start && end - 1 < header.end && lbp.daddr != 0 && size <= LOG_BLK_SIZE as u64;
    let evicted = header.flags & 1 == 0 && overlaps(start, end - 1, header.evict);
    within && !evicted
}

/// Returns whether `check` is between `bottom` and `top` on the ring (OpenZFS: `l2arc_range_check_overlap`).
fn overlaps(bottom: u64, top: u64, check: u64) -> bool {
    match bottom.cmp(&top) {
        std::cmp::Ordering::Less => bottom <= check && check <= top,
        std::cmp::Ordering::Greater => check <= top || bottom <= check,
        std::cmp::Ordering::Equal => check == top,
    }
}

fn show_pointer(out: &mut dyn Write, lbp: &LogBlkPtr) -> io::Result<()> {
    let lines = [
        ("daddr", lbp.daddr),
        ("payload_asize", lbp.payload_asize),
        ("payload_start", lbp.payload_start),
        ("lsize", lbp.lsize()),
        ("asize", lbp.asize()),
        ("compralgo", lbp.compress().into()),
        ("cksumalgo", lbp.checksum().into()),
    ];
    for (name, value) in lines {
        writeln!(out, "|\t\t{name}: {value}")?;
    }
    writeln!(out, "|\n")
}

fn show_entries(out: &mut dyn Write, block: &LogBlk, number: u64) -> io::Result<()> {
    for (n, entry) in block.entries.iter().enumerate() {
        let dva = &entry.dva;
        writeln!(
            out,
            "lb[{number:4}]\tle[{:4}]\tDVA asize: {}, vdev: {}, offset: {}",
            n + 1,
            dva.asize(),
            dva.vdev(),
            dva.offset()
        )?;
        let lines = [
            ("birth", entry.birth.0),
            ("lsize", entry.lsize()),
            ("psize", entry.psize()),
            ("compr", entry.compress().into()),
            ("complevel", entry.complevel),
            ("type", entry.contents().map_or(0, |c| u64::from(c) + 1)),
            ("protected", entry.protected().into()),
            ("prefetch", entry.prefetch().into()),
            ("address", entry.daddr),
            ("ARC state", entry.arc_state().into()),
        ];
        for (name, value) in lines {
            writeln!(out, "|\t\t\t\t{name}: {value}")?;
        }
        writeln!(out, "|")?;
    }
    writeln!(out)
}
