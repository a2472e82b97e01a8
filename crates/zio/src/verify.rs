//! Scrubbing one block: every copy, every gang header and member, every parity.

use std::mem;

use ondisk::{BlkPtr, Dva};
use vdev::{LeafFault, ReadCx, ReadReport};

use crate::error::{CopyFailure, CopyFailures, Fault};
use crate::gang;
use crate::physical::Source;
use crate::read::{size, validate};
use crate::transform::Transform;
use crate::{Bookmark, Error, Zio};

/// The memory that a scrubbing thread keeps: a block as stored, and the block decompressed.
#[derive(Debug, Default)]
pub struct Scratch {
    stored: Vec<u8>,
    logical: Vec<u8>,
}

/// The findings about a block that can still be read. The usual report is [`VerifyReport::is_clean`] and owns no memory.
#[derive(Debug, Default)]
pub struct VerifyReport {
    /// Copies that were read and are good (gang members count separately).
    pub copies: u32,
    /// Bytes of these.
    pub bytes: u64,
    /// Copies that cannot be used although another one can.
    pub bad_copies: Vec<CopyFailure>,
    /// Leaf devices whose part was wrong or missing and was recovered through redundancy.
    pub faults: Vec<LeafFault>,
    /// Copies, or parts of copies, that were overwritten with good data.
    pub healed: u32,
    /// True if a MAC was checked.
    pub authenticated: bool,
}

impl VerifyReport {
    /// Returns whether no fault was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.bad_copies.is_empty() && self.faults.is_empty()
    }

    fn good(&mut self, report: ReadReport, bytes: usize) {
        self.copies += 1;
        self.bytes += bytes as u64;
        if !report.repaired.is_empty() {
            self.faults.extend(report.repaired);
            self.healed += report.healed.len() as u32;
        }
    }
}

impl Zio {
    /// Reads and checks every copy of a block, as a scrub does, bypassing the cache. `cx` should say
    /// [`Scrub`](vdev::ReadMode::Scrub), else redundancy within a DVA goes unchecked; with a
    /// [`WindowSource`](vdev::WindowSource) and blocks sorted by address, reads are few and large. MACs are checked where
    /// the key is loaded, those of indirect blocks always. With [`heal`](ReadCx::heal), bad data is overwritten with good
    /// data on devices that are open for writing. A compressed block is decompressed as well, unless its key is missing:
    /// a good checksum shows only that the block is as it was written. Allocates nothing unless something is wrong or the
    /// block is a gang.
    ///
    /// # Errors
    /// [`Error::Checksum`], [`Error::Io`]: no copy is good. [`Error::Auth`], [`Error::Decompress`]: the checksum is right
    /// and the content is still wrong. [`Error::BadPointer`], [`Error::Unsupported`].
    pub fn verify_block(
        &self,
        bp: &BlkPtr,
        bm: &Bookmark,
        cx: &ReadCx<'_>,
        scratch: &mut Scratch,
    ) -> Result<VerifyReport, Error> {
        self.verify_as(bp, bm, cx, scratch, true)
    }

    /// As [`Zio::verify_block`], but decompresses only if the MAC requires it.
    ///
    /// # Errors
    /// As [`Zio::verify_block`].
    pub fn verify_sums(
        &self,
        bp: &BlkPtr,
        bm: &Bookmark,
        cx: &ReadCx<'_>,
        scratch: &mut Scratch,
    ) -> Result<VerifyReport, Error> {
        self.verify_as(bp, bm, cx, scratch, false)
    }

    fn verify_as(
        &self,
        bp: &BlkPtr,
        bm: &Bookmark,
        cx: &ReadCx<'_>,
        scratch: &mut Scratch,
        expand: bool,
    ) -> Result<VerifyReport, Error> {
        let mut report = VerifyReport::default();
        validate(bp, bm)?;
        if bp.is_hole() || bp.is_embedded() {
            return Ok(report);
        }
        let mut stored = mem::take(&mut scratch.stored);
        let psize = size(bp.psize());
        if stored.len() < psize {
            stored.resize(psize, 0);
        }
        let buf = stored.get_mut(..psize).unwrap_or_default();
        let read = |cx: &ReadCx<'_>| {
            report = VerifyReport::default();
            self.verify_stored(bp, cx, buf, &mut report).map(|()| report.is_clean())
        };
        let verdict = self
            .guarded(bp, bm, cx, read, |clean| *clean)
            .and_then(|_| self.verify_content(bp, bm, buf, (expand, &mut scratch.logical), &mut report));
        scratch.stored = stored;
        self.stats().record(&report.faults);
        report.bad_copies.iter().for_each(|copy| self.stats().record(copy.fault.leaves()));
        if !report.is_clean() {
            self.stats().recovered.add(1);
        }
        verdict.map(|()| report)
    }

    /// The pointers in the headers of a gang block, nested ones included: the space that it takes besides its headers.
    /// Empty for any other block.
    ///
    /// # Errors
    /// [`Error::Checksum`], [`Error::Io`], [`Error::Overtaken`] if a header cannot be read; [`Error::BadPointer`].
    pub fn gang_members(&self, bp: &BlkPtr, bm: &Bookmark) -> Result<Vec<BlkPtr>, Error> {
        let mut all = Vec::new();
        validate(bp, bm)?;
        if bp.is_gang() {
            let read = |cx: &ReadCx<'_>| {
                all.clear();
                gang::members(&self.source(cx), bp, 0, &mut all)
            };
            self.guarded(bp, bm, &ReadCx::NORMAL, read, |()| true)?;
        }
        Ok(all)
    }

    fn verify_stored(
        &self,
        bp: &BlkPtr,
        cx: &ReadCx<'_>,
        buf: &mut [u8],
        report: &mut VerifyReport,
    ) -> Result<(), CopyFailures> {
        let source = self.source(cx);
        if bp.is_gang() {
            verify_gang(&source, bp, buf, 0, report)?;
            return gang::check_whole(self.sums(), bp, buf);
        }
        verify_copies(&source, bp, buf, report)
    }

    /// Checks the content of the stored bytes: the MAC if the key is loaded and, with `expand`, that they decompress.
    fn verify_content(
        &self,
        bp: &BlkPtr,
        bm: &Bookmark,
        buf: &mut [u8],
        (expand, logical): (bool, &mut Vec<u8>),
        report: &mut VerifyReport,
    ) -> Result<(), Error> {
        let key = self.key_of(bp, bm);
        if bp.is_encrypted() && key.is_none() {
            return Ok(());
        }
        let mac = bp.uses_crypt() && (key.is_some() || bp.has_indirect_mac());
        if !mac && !expand {
            return Ok(());
        }
        let transform = Transform::new(bp, bm, key.as_deref(), false)?;
        report.authenticated = mac;
        if transform.in_place() {
            return transform.apply_in_place(buf);
        }
        if !expand && !bp.has_indirect_mac() {
            return transform.open(buf);
        }
        let lsize = size(bp.lsize());
        if logical.len() < lsize {
            logical.resize(lsize, 0);
        }
        transform.apply(buf, logical.get_mut(..lsize).unwrap_or_default())
    }
}

/// Reads every copy with `attempt`, and a good one last, so that its data remains in the buffer. Fails if none is good.
fn every_copy(
    bp: &BlkPtr,
    bytes: usize,
    report: &mut VerifyReport,
    mut attempt: impl FnMut(Dva) -> Result<ReadReport, Fault>,
) -> Result<(), CopyFailures> {
    let (mut good, mut last_is_good, mut bad) = (None, false, Vec::new());
    for dva in bp.dvas() {
        match attempt(dva) {
            Ok(read) => {
                report.good(read, bytes);
                (good, last_is_good) = (Some(dva), true);
            }
            Err(fault) => {
                bad.push(CopyFailure { dva, fault });
                last_is_good = false;
            }
        }
    }
    let Some(dva) = good else { return Err(CopyFailures(bad)) };
    if !last_is_good && let Err(fault) = attempt(dva) {
        bad.push(CopyFailure { dva, fault });
        return Err(CopyFailures(bad));
    }
    if !bad.is_empty() {
        report.bad_copies.append(&mut bad);
    }
    Ok(())
}

fn verify_copies(
    source: &Source<'_>,
    bp: &BlkPtr,
    buf: &mut [u8],
    report: &mut VerifyReport,
) -> Result<(), CopyFailures> {
    let known = report.bad_copies.len();
    every_copy(bp, buf.len(), report, |dva| source.read_copy(bp, dva, buf))?;
    heal_new(source, bp, buf, known, report);
    Ok(())
}

/// Overwrites the copies found bad after the first `known` ones.
fn heal_new(source: &Source<'_>, bp: &BlkPtr, right: &[u8], known: usize, report: &mut VerifyReport) {
    let bad = report.bad_copies.get(known..).unwrap_or_default();
    if !bad.is_empty() {
        report.healed += source.heal(bp, bad, right);
    }
}

fn verify_gang(
    source: &Source<'_>,
    bp: &BlkPtr,
    buf: &mut [u8],
    depth: u32,
    report: &mut VerifyReport,
) -> Result<(), CopyFailures> {
    let failure = |fault| CopyFailures(vec![CopyFailure { dva: bp.dva(0), fault }]);
    if depth >= gang::MAX_DEPTH {
        return Err(failure(Fault::Gang("headers are nested too deeply")));
    }
    let mut raw = vec![0; gang::header_size(source, bp)];
    let mut header = None;
    let known = report.bad_copies.len();
    every_copy(bp, raw.len(), report, |dva| {
        let (read, found) = gang::read_header(source, bp, dva, &mut raw)?;
        header = Some(found);
        Ok(read)
    })?;
    let header = header.ok_or_else(|| failure(Fault::Gang(gang::UNREAD)))?;
    heal_new(source, bp, raw.get(..gang::size_of(&header, raw.len())).unwrap_or_default(), known, report);
    gang::for_each_piece(bp, &header, buf, |member, piece, part| {
        let verdict = if piece.is_gang() {
            verify_gang(source, piece, part, depth + 1, report)
        } else {
            verify_copies(source, piece, part, report)
        };
        verdict.map_err(|cause| Fault::GangMember { member, cause: Box::new(cause) })
    })
    .map_err(failure)
}
