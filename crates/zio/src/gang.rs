//! Gang blocks: a block for which no contiguous space was found is stored in pieces, and a header points at them.
//!
//! All DVAs of a gang pointer lead to copies of one header: up to three pointers and a trailer with the header's own
//! checksum in 512 bytes, or, with feature `dynamic_gang_header`, as many as fit in the smallest allocation of the devices.
//! (With the feature on, older headers of 512 bytes are met as well: the checksum tells.) The pieces, in order, are the
//! parent's physical block. A piece may be a gang block again.
//!
//! A hostile header could point anywhere, itself included. So a piece that is a gang must be smaller than its parent, the
//! pieces must add up to the parent exactly, and nesting ends at [`MAX_DEPTH`] (the writer splits in three, so 16 MiB in
//! sectors takes ten levels). OpenZFS: `zio_gang_tree_assemble`, `zio_gang_tree_issue`.

use base::Endian;
use codec::{ChecksumKind, Checksummer, embedded};
use ondisk::gang::{GANG_HEADER_SIZE, GangHeader};
use ondisk::{BlkPtr, Dva, SPA_MAXBLOCKSIZE};
use vdev::{ReadReport, TopVdev, VdevType};

use crate::checksum::{Check, uses_mac};
use crate::error::{CopyFailure, CopyFailures, Fault};
use crate::physical::Source;

/// The levels of gang headers that are followed.
pub const MAX_DEPTH: u32 = 16;

/// Fills `buf` (psize bytes) with the pieces of the gang block of `bp`, and checks the whole.
pub(crate) fn read(source: &Source<'_>, bp: &BlkPtr, buf: &mut [u8]) -> Result<(), CopyFailures> {
    assemble(source, bp, buf, 0)?;
    check_whole(source.sums, bp, buf)
}

/// The checksum of the parent is over the re-assembled block.
pub(crate) fn check_whole(sums: &Checksummer, bp: &BlkPtr, data: &[u8]) -> Result<(), CopyFailures> {
    let verdict = match Check::of(bp, sums) {
        None => Err(Fault::Checksum { kind: "unknown", device: None }),
        Some(check) => match check.test(data) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Fault::Checksum { kind: check.name(), device: None }),
            Err(e) => Err(Fault::Codec(e)),
        },
    };
    verdict.map_err(|fault| failure(bp.dva(0), fault))
}

fn failure(dva: Dva, fault: Fault) -> CopyFailures {
    CopyFailures(vec![CopyFailure { dva, fault }])
}

fn assemble(source: &Source<'_>, bp: &BlkPtr, buf: &mut [u8], depth: u32) -> Result<(), CopyFailures> {
    if depth >= MAX_DEPTH {
        return Err(failure(bp.dva(0), Fault::Gang("headers are nested too deeply")));
    }
    let mut header = None;
    let mut scratch = vec![0; header_size(source, bp)];
    source.first_good(bp, |dva| {
        let (report, found) = read_header(source, bp, dva, &mut scratch)?;
        header = Some(found);
        Ok(report)
    })?;
    let header = header.ok_or_else(|| failure(bp.dva(0), Fault::Gang(UNREAD)))?;
    for_each_piece(bp, &header, buf, |member, piece, part| {
        let read = if piece.is_gang() {
            assemble(source, piece, part, depth + 1)
        } else {
            source.first_good(piece, |dva| source.read_copy(piece, dva, part))
        };
        read.map_err(|cause| Fault::GangMember { member, cause: Box::new(cause) })
    })
    .map_err(|fault| failure(bp.dva(0), fault))
}

/// All pointers in the headers of the gang block of `bp`, nested ones included, each before those below it.
pub(crate) fn members(
    source: &Source<'_>,
    bp: &BlkPtr,
    depth: u32,
    into: &mut Vec<BlkPtr>,
) -> Result<(), CopyFailures> {
    if depth >= MAX_DEPTH {
        return Err(failure(bp.dva(0), Fault::Gang("headers are nested too deeply")));
    }
    let mut header = None;
    let mut scratch = vec![0; header_size(source, bp)];
    source.first_good(bp, |dva| {
        let (report, found) = read_header(source, bp, dva, &mut scratch)?;
        header = Some(found);
        Ok(report)
    })?;
    let header = header.ok_or_else(|| failure(bp.dva(0), Fault::Gang(UNREAD)))?;
    // the sizes are checked as when the block is read
    let mut whole = vec![0; usize::try_from(bp.psize()).unwrap_or(0)];
    for_each_piece(bp, &header, &mut whole, |member, piece, _| {
        into.push(*piece);
        let below = if piece.is_gang() { members(source, piece, depth + 1, into) } else { Ok(()) };
        below.map_err(|cause| Fault::GangMember { member, cause: Box::new(cause) })
    })
    .map_err(|fault| failure(bp.dva(0), fault))
}

/// A header was found good, and is not there: a bug.
pub(crate) const UNREAD: &str = "its header was found good and not read";

/// Calls `visit` with each pointer of the header of `bp` and its part of `buf`.
pub(crate) fn for_each_piece(
    bp: &BlkPtr,
    header: &GangHeader,
    buf: &mut [u8],
    mut visit: impl FnMut(usize, &BlkPtr, &mut [u8]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let (mut rest, whole) = (buf, bp.psize());
    for (member, piece) in header.blkptrs.iter().enumerate().filter(|(_, piece)| !piece.is_hole()) {
        if piece.is_embedded() || piece.validate().is_err() {
            return Err(Fault::Gang("a member's pointer is impossible"));
        }
        if piece.is_gang() && piece.psize() >= whole {
            return Err(Fault::Gang("a nested gang block is as large as its parent"));
        }
        let len = usize::try_from(piece.psize()).unwrap_or(usize::MAX);
        let (part, tail) = std::mem::take(&mut rest)
            .split_at_mut_checked(len)
            .ok_or(Fault::Gang("its members are larger than the block"))?;
        visit(member, piece, part)?;
        rest = tail;
    }
    if rest.is_empty() { Ok(()) } else { Err(Fault::Gang("its members are smaller than the block")) }
}

/// The size of headers of `bp` as they would be written now, in bytes.
pub(crate) fn header_size(source: &Source<'_>, bp: &BlkPtr) -> usize {
    if source.dynamic_gang { largest_header(source, bp) } else { GANG_HEADER_SIZE }
}

/// The largest possible headers of `bp`: all the bytes that are allocated for them.
pub(crate) fn largest_header(source: &Source<'_>, bp: &BlkPtr) -> usize {
    let smallest = bp.dvas().filter_map(|dva| source.tree.top(dva.vdev()).map(min_alloc)).min();
    let size = smallest.filter(|n| *n <= SPA_MAXBLOCKSIZE && n.is_multiple_of(512));
    size.and_then(|n| usize::try_from(n).ok()).unwrap_or(0).max(GANG_HEADER_SIZE)
}

/// The smallest allocation on a vdev (OpenZFS: `vdev_get_min_alloc`).
fn min_alloc(top: &TopVdev) -> u64 {
    let sector = 1 << top.ashift();
    if top.config().kind == VdevType::Draid { top.config().draid_ndata.saturating_mul(sector) } else { sector }
}

/// Reads one copy of the header of `bp`, as long as `buf` or as long as they were of old.
pub(crate) fn read_header(
    source: &Source<'_>,
    bp: &BlkPtr,
    dva: Dva,
    buf: &mut [u8],
) -> Result<(ReadReport, GangHeader), Fault> {
    if !dva.is_gang() {
        return Err(Fault::Gang("a copy is no gang block where the first is one"));
    }
    let (mut wrong, mut found) = (false, None);
    let report = source.tree.read(dva, buf.len() as u64, bp.birth_physical(), source.cx, buf, &mut |data| {
        found = verify_header(source.sums, bp, data);
        wrong |= found.is_none();
        found.is_some()
    });
    source.stats.gangs.add(1);
    let report = report.map_err(|e| match wrong {
        true => Fault::Checksum { kind: "gang_header", device: Some(Box::new(e)) },
        false => Fault::Device(Box::new(e)),
    })?;
    let (size, endian) = found.ok_or(Fault::Gang("its header was not checked"))?;
    let header = buf.get(..size).and_then(|raw| GangHeader::decode(raw, endian).ok());
    Ok((report, header.ok_or(Fault::Gang("its header is too short"))?))
}

/// The size of the header at the front of `data` and its byte order, if its checksum is right.
fn verify_header(sums: &Checksummer, bp: &BlkPtr, data: &[u8]) -> Option<(usize, Endian)> {
    // All copies are sealed with the place of the first.
    let (vdev, offset, birth) = (bp.dva(0).vdev(), bp.dva(0).offset(), bp.birth_physical().0);
    [data.len(), GANG_HEADER_SIZE].into_iter().find_map(|size| {
        let header = data.get(..size)?;
        let endian = match embedded::verify_gang(header, vdev, offset, birth) {
            Ok(endian) => endian,
            Err(_) if uses_mac(bp) => verify_truncated(sums, header, [vdev, offset, birth, 0])?,
            Err(_) => return None,
        };
        Some((size, endian))
    })
}

/// The header of an encrypted block has, as all its checksums, only half of one.
fn verify_truncated(sums: &Checksummer, header: &[u8], verifier: [u64; 4]) -> Option<Endian> {
    let (body, trailer) = header.split_at_checked(header.len().checked_sub(embedded::TRAILER)?)?;
    let endian = match base::bytes::u64(trailer, 0, Endian::Little)? {
        embedded::MAGIC => Endian::Little,
        other if other.swap_bytes() == embedded::MAGIC => Endian::Big,
        _ => return None,
    };
    let mut seeded = body.to_vec();
    seeded.extend(endian.put_u64(embedded::MAGIC));
    seeded.extend(verifier.into_iter().flat_map(|word| endian.put_u64(word)));
    let sum = ChecksumKind::GangHeader.truncate(sums.compute(ChecksumKind::Sha256, &seeded, endian).ok()?);
    let stored = [base::bytes::u64(trailer, 8, endian)?, base::bytes::u64(trailer, 16, endian)?];
    (sum.get(..2) == Some(&stored)).then_some(endian)
}

/// Bytes that a header of these pointers took: it may be of the old size though new ones have `now` bytes.
pub(crate) fn size_of(header: &GangHeader, now: usize) -> usize {
    if header.blkptrs.len() <= GangHeader::capacity(GANG_HEADER_SIZE) { GANG_HEADER_SIZE } else { now }
}
