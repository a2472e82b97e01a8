//! `-R POOL VDEV:OFFSET:[LSIZE/]PSIZE[:FLAGS]`: a block, straight from a device.

use std::io::Write;
use std::sync::Arc;

use base::{Endian, Errno, Txg};
use nvlist::NvList;
use ondisk::{BLKPTR_SIZE, BlkPtr, Dva, SPA_MAXBLOCKSIZE};
use pool::Pool;
use vdev::{ReadCx, VdevConfig};
use zuse::codec::{ChecksumKind, Checksummer, Compress, decompress};

use crate::console;
use crate::error::{Failure, cause};

use super::bytes;
use super::stats::found_at;

/// The first txg of a pool: as of it, no block had been moved by a raidz expansion.
const INITIAL: Txg = Txg(4);
/// Bytes before the data of a leaf.
const LABEL_START: u64 = 4 << 20;
const SECTOR: u64 = 512;

/// A block to be read, and how it is shown.
#[derive(Default)]
struct Request<'a> {
    vdev: &'a str,
    offset: u64,
    lsize: u64,
    psize: u64,
    flags: Flags,
}

#[derive(Default)]
struct Flags {
    /// `b`: shows a block pointer, at this offset of the block.
    pointer: Option<u64>,
    checksums: bool,
    decompress: bool,
    swap: bool,
    gang: bool,
    indirect: bool,
    raw: bool,
    verbose: bool,
}

/// Reads and shows a block; errors in it or in the request are part of the output.
pub(super) fn show(out: &mut dyn Write, pool: &Arc<Pool>, thing: &str) -> Result<(), Failure> {
    let Some(request) = parse(out, thing)? else { return Ok(()) };
    let Some(vdev) = find(pool.tree().config(), request.vdev) else {
        return Ok(writeln!(out, "***Invalid vdev: {}", request.vdev)?);
    };
    out.flush()?;
    match &vdev.path {
        Some(_) => eprintln!("Found vdev: {}", found_at(pool, vdev)),
        None => eprintln!("Found vdev type: {}", vdev.kind.name()),
    }
    let block = match read(pool, vdev, &request) {
        Ok(block) => block,
        Err(errno) => return Ok(writeln!(out, "Read of {thing} failed, error: {errno}")?),
    };
    let Some(data) = contents(out, pool, thing, &request, &block)? else { return Ok(()) };
    let flags = &request.flags;
    let swap = flags.swap;
    if let Some(at) = flags.pointer {
        let rest = usize::try_from(at).ok().and_then(|at| data.get(at..)).unwrap_or(&[]);
        bytes::pointers(out, rest, 1, swap)?;
    } else if flags.raw {
        bytes::raw(out, &data, swap)?;
    } else if flags.indirect {
        bytes::pointers(out, &data, request.lsize as usize / BLKPTR_SIZE, swap)?;
    } else if flags.gang {
        bytes::pointers(out, &data, ondisk::gang::GangHeader::capacity(data.len()), swap)?;
    } else {
        bytes::hex(out, thing, &data, swap)?;
    }
    if flags.checksums && !flags.raw && !flags.gang {
        checksums(out, pool, &block)?;
    }
    Ok(())
}

/// A block as `-j` shows it: its bytes in hexadecimal digits, or the error.
pub(super) fn list(pool: &Arc<Pool>, thing: &str) -> Result<NvList, Failure> {
    let mut list = NvList::new();
    list.insert("block", thing);
    let mut said = Vec::new();
    let data = match parse(&mut said, thing)? {
        Some(request) => match find(pool.tree().config(), request.vdev) {
            Some(vdev) => match read(pool, vdev, &request) {
                Ok(block) => contents(&mut said, pool, thing, &request, &block)?,
                Err(errno) => {
                    writeln!(said, "Read of {thing} failed, error: {errno}")?;
                    None
                }
            },
            None => {
                writeln!(said, "***Invalid vdev: {}", request.vdev)?;
                None
            }
        },
        None => None,
    };
    match data {
        Some(data) => {
            list.insert("size", data.len() as u64);
            list.insert("data", data.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        }
        None => list.insert("error", String::from_utf8_lossy(&said).trim().to_owned()),
    }
    Ok(list)
}

/// Parses a request; `None` after an error, which is printed.
fn parse<'a>(out: &mut dyn Write, thing: &'a str) -> Result<Option<Request<'a>>, Failure> {
    let mut parts = thing.split(':').filter(|part| !part.is_empty());
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16);
    let vdev = parts.next().unwrap_or("");
    let offset = parts.next().map_or(Ok(0), hex).unwrap_or(0);
    let sizes = parts.next().unwrap_or("");
    let (lsize, psize) = sizes.split_once('/').unwrap_or((sizes, sizes));
    let (lsize, psize) = (hex(lsize).unwrap_or(0), hex(psize).unwrap_or(0));
    let wrong = match () {
        () if !offset.is_multiple_of(SECTOR) => Some("offset must be a multiple of sector size"),
        () if !psize.is_multiple_of(SECTOR) || !lsize.is_multiple_of(SECTOR) => {
            Some("size must be a multiple of sector size")
        }
        () if psize == 0 || lsize < psize || lsize > SPA_MAXBLOCKSIZE => Some("invalid size(s)"),
        () => None,
    };
    if let Some(wrong) = wrong {
        writeln!(out, "Invalid block specifier: {thing}  - {wrong}")?;
        return Ok(None);
    }
    let Some(flags) = parse_flags(out, parts.next().unwrap_or(""))? else { return Ok(None) };
    Ok(Some(Request { vdev, offset, lsize, psize, flags }))
}

fn parse_flags(out: &mut dyn Write, text: &str) -> Result<Option<Flags>, Failure> {
    let mut flags = Flags::default();
    let mut any = false;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            'b' => {
                let mut digits = String::new();
                while let Some(digit) = letters.next_if(|c| !"bcdegirv".contains(*c)) {
                    digits.push(digit);
                }
                flags.pointer = Some(u64::from_str_radix(&digits, 16).unwrap_or(0));
            }
            'c' => flags.checksums = true,
            'd' => flags.decompress = true,
            'e' => flags.swap = true,
            'g' => flags.gang = true,
            'i' => flags.indirect = true,
            'r' => flags.raw = true,
            'v' => flags.verbose = true,
            other => {
                writeln!(out, "***Ignoring flag: {other}")?;
                continue;
            }
        }
        any = true;
    }
    if let Some(at) = flags.pointer.filter(|at| !at.is_multiple_of(BLKPTR_SIZE as u64)) {
        writeln!(out, "Block pointer offset {at:#x} must be divisible by {BLKPTR_SIZE:#x}")?;
        return Ok(None);
    }
    if !any && !text.is_empty() {
        writeln!(out, "Invalid flag arg: '{text}'")?;
        return Ok(None);
    }
    Ok(Some(flags))
}

/// The vdev of a path of numbers (`0.1`), or of a device's name.
fn find<'a>(root: &'a VdevConfig, text: &str) -> Option<&'a VdevConfig> {
    let numbers: Result<Vec<usize>, _> = text.split('.').map(str::parse).collect();
    if let Ok(numbers) = numbers {
        return numbers.iter().try_fold(root, |vdev, n| vdev.children.get(*n));
    }
    let named = |vdev: &&VdevConfig| {
        let path = vdev.path.as_deref().unwrap_or("");
        path == text || path.rsplit('/').next() == Some(text)
    };
    root.walk().find(|vdev| vdev.path.is_some() && named(vdev))
}

/// Reads the physical bytes; an error number if they cannot be read.
fn read(pool: &Arc<Pool>, vdev: &VdevConfig, request: &Request<'_>) -> Result<Vec<u8>, Errno> {
    let mut block = vec![0; request.psize as usize];
    let tree = pool.tree();
    let top = tree.tops().iter().find(|top| top.guid() == vdev.guid);
    if let Some(top) = top {
        let dva = Dva::new(top.id(), request.offset, top.psize_to_asize(request.psize), false);
        let read = tree.read(dva, request.psize, INITIAL, &ReadCx::NORMAL, &mut block, &mut |_| true);
        return read.map(|_| block).map_err(|e| e.errno());
    }
    // below a top-level vdev, the first device that is available
    let leaf = vdev.walk().filter_map(|v| tree.leaf(v.guid)).find_map(|leaf| leaf.device());
    let device = leaf.ok_or(Errno::ENXIO)?;
    let read = device.read_at(request.offset.saturating_add(LABEL_START), &mut block);
    read.map(|()| block).map_err(|e| {
        eprintln!("{}: {}", device.name(), cause(&e));
        Errno::of_io(&e, Errno::EIO)
    })
}

/// The bytes to be shown: decompressed if asked for, or if they cannot be pointers otherwise.
fn contents(
    out: &mut dyn Write,
    pool: &Arc<Pool>,
    thing: &str,
    request: &Request<'_>,
    block: &[u8],
) -> Result<Option<Vec<u8>>, Failure> {
    let flags = &request.flags;
    if flags.decompress {
        let plain = expand(out, block, request)?;
        if plain.is_none() {
            writeln!(out, "Decompress of {thing} failed")?;
        }
        return Ok(plain);
    }
    let mut plain = block.to_vec();
    plain.resize(request.lsize as usize, 0);
    if flags.pointer.is_none() && !flags.indirect {
        return Ok(Some(plain));
    }
    let at = flags.pointer.unwrap_or(0);
    if is_pointer(pool, &plain, at) {
        return Ok(Some(plain));
    }
    let plain = expand(out, block, request)?.filter(|plain| is_pointer(pool, plain, at));
    if plain.is_none() {
        writeln!(out, "invalid block pointer at this DVA")?;
    }
    Ok(plain)
}

/// Returns whether there may be a block pointer at `at`.
fn is_pointer(pool: &Pool, data: &[u8], at: u64) -> bool {
    let raw = usize::try_from(at).ok().and_then(|at| data.get(at..)).unwrap_or(&[]);
    let Ok(bp) = BlkPtr::decode(raw, Endian::NATIVE) else { return false };
    let on_vdev = |dva: Dva| {
        let top = pool.tree().top(dva.vdev());
        top.is_some_and(|top| dva.offset().checked_add(dva.asize()).is_some_and(|end| end <= top.config().asize))
    };
    let known = bp.object_type().is_valid()
        && (bp.compression() < 2 || Compress::from_u8(bp.compression()).is_some())
        && (bp.checksum() < 2 || ChecksumKind::from_u8(bp.checksum()).is_some());
    known && bp.validate().is_ok() && bp.dvas().all(on_vdev)
}

/// Decompresses with every algorithm until one works, at the size given or at the first that fits.
fn expand(out: &mut dyn Write, block: &[u8], request: &Request<'_>) -> Result<Option<Vec<u8>>, Failure> {
    const KINDS: [Compress; 4] = [Compress::Lz4, Compress::Lzjb, Compress::Gzip1, Compress::Zstd];
    let sizes = |first: u64| {
        let last = if request.lsize == request.psize { SPA_MAXBLOCKSIZE } else { request.lsize };
        (first..=last).step_by(SECTOR as usize)
    };
    let first = if request.lsize == request.psize { request.lsize + SECTOR } else { request.lsize };
    let mut buffer = Vec::new();
    let mut fits = |kind: Compress, size: u64| {
        if request.flags.verbose {
            eprintln!("Trying {:05x} -> {size:05x} ({})", request.psize, kind.name());
        }
        buffer.resize(buffer.len().max(size as usize), 0);
        let room = buffer.get_mut(..size as usize)?;
        decompress(kind, block, room).ok().map(|()| room.to_vec())
    };
    for size in sizes(first) {
        if let Some(plain) = KINDS.iter().find_map(|kind| fits(*kind, size)) {
            return Ok(Some(plain));
        }
    }
    if console::var("ZDB_NO_ZLE").is_some() {
        return Ok(None);
    }
    // this algorithm accepts almost any input
    let plain = sizes(request.lsize).find_map(|size| fits(Compress::Zle, size));
    if plain.is_some() {
        writeln!(
            out,
            "\nZLE decompression was selected. If you suspect the results are wrong,\n\
             try avoiding ZLE by setting and exporting ZDB_NO_ZLE=\"true\""
        )?;
    }
    Ok(plain)
}

/// The block's checksum by every algorithm.
fn checksums(out: &mut dyn Write, pool: &Arc<Pool>, block: &[u8]) -> Result<(), Failure> {
    let salt = pool.mos_words("org.illumos:checksum_salt").ok().flatten();
    let salt: Vec<u8> = salt.unwrap_or_default().iter().map(|b| *b as u8).collect();
    let summer = Checksummer::new(Some(salt.try_into().unwrap_or([0; 32])));
    writeln!(out)?;
    for kind in (0..=u8::MAX).filter_map(ChecksumKind::from_u8) {
        if kind.is_embedded() || matches!(kind, ChecksumKind::Off | ChecksumKind::Noparity) {
            continue;
        }
        if let Ok([a, b, c, d]) = summer.compute(kind, block, Endian::NATIVE) {
            writeln!(out, "{:>12}\tcksum={a:016x}:{b:016x}:{c:016x}:{d:016x}", kind.name())?;
        }
    }
    Ok(())
}
