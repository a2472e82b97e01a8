//! The bytes of a block as they are stored, read from any good copy.

use std::cell::Cell;

use codec::Checksummer;
use ondisk::{BlkPtr, Dva};
use vdev::{BlockWrite, ReadCx, ReadReport, TreeRef};

use crate::checksum::Check;
use crate::error::{CopyFailure, CopyFailures, Fault};
use crate::{Stats, gang};

/// The context for reading physical blocks.
pub(crate) struct Source<'a> {
    pub(crate) tree: TreeRef,
    pub(crate) sums: &'a Checksummer,
    pub(crate) dynamic_gang: bool,
    pub(crate) stats: &'a Stats,
    pub(crate) cx: &'a ReadCx<'a>,
    /// Set when a copy was bad while another was good.
    pub(crate) damaged: Cell<bool>,
}

impl Source<'_> {
    /// Fills `buf`, whose length is the pointer's psize, from the first copy that is good; gang blocks are assembled. The
    /// pointer has been validated.
    pub(crate) fn read(&self, bp: &BlkPtr, buf: &mut [u8]) -> Result<(), CopyFailures> {
        if bp.is_gang() {
            return gang::read(self, bp, buf);
        }
        let bad = self.first_good_and_bad(bp, |dva| self.read_copy(bp, dva, buf))?;
        if !bad.0.is_empty() && self.cx.heal {
            self.heal(bp, &bad.0, buf);
        }
        Ok(())
    }

    /// Overwrites copies that were found wrong, or whose devices could not read them, with good data. Returns the number
    /// of copies that are now good.
    pub(crate) fn heal(&self, bp: &BlkPtr, bad: &[CopyFailure], right: &[u8]) -> u32 {
        if !self.cx.heal {
            return 0;
        }
        let concrete = |dva: &Dva| self.tree.top(dva.vdev()).is_some_and(vdev::TopVdev::is_concrete);
        let mut healed = 0;
        for dva in bad.iter().map(|copy| copy.dva).filter(concrete) {
            // a failed repair needs no report: the read has reported the copy as bad
            if self.tree.rewrite(bp.birth_physical(), &BlockWrite { dva, data: right }) {
                healed += 1;
            }
        }
        self.stats.healed.add(healed.into());
        healed
    }

    /// Tries the copies of `bp` with `attempt`, those on available devices first.
    pub(crate) fn first_good(
        &self,
        bp: &BlkPtr,
        attempt: impl FnMut(Dva) -> Result<ReadReport, Fault>,
    ) -> Result<(), CopyFailures> {
        self.first_good_and_bad(bp, attempt).map(drop)
    }

    /// As [`Source::first_good`]; also returns the bad copies tried before.
    fn first_good_and_bad(
        &self,
        bp: &BlkPtr,
        mut attempt: impl FnMut(Dva) -> Result<ReadReport, Fault>,
    ) -> Result<CopyFailures, CopyFailures> {
        let mut failures = CopyFailures::default();
        for wanted in [true, false] {
            for dva in bp.dvas().filter(|dva| self.is_there(*dva) == wanted) {
                match attempt(dva) {
                    Ok(report) => {
                        self.stats.record(&report.repaired);
                        if !report.repaired.is_empty() || !failures.0.is_empty() {
                            self.stats.recovered.add(1);
                            self.damaged.set(true);
                        }
                        self.stats.healed.add(report.healed.len() as u64);
                        return Ok(failures);
                    }
                    Err(fault) => {
                        if self.cx.counts {
                            self.stats.record(fault.leaves());
                        }
                        failures.0.push(CopyFailure { dva, fault });
                    }
                }
            }
        }
        if self.cx.counts {
            self.stats.lost.add(1);
        }
        Err(failures)
    }

    /// Returns whether the top-level vdev of `dva` is expected to respond.
    fn is_there(&self, dva: Dva) -> bool {
        self.tree.top(dva.vdev()).is_some_and(|top| top.is_concrete() || top.is_indirect())
    }

    /// Reads the copy of an ordinary block at `dva`.
    pub(crate) fn read_copy(&self, bp: &BlkPtr, dva: Dva, buf: &mut [u8]) -> Result<ReadReport, Fault> {
        let check = Check::of(bp, self.sums).ok_or(Fault::Checksum { kind: "unknown", device: None })?;
        if dva.is_gang() {
            return Err(Fault::Gang("a copy is a gang block where the first is none"));
        }
        let (mut wrong, mut unable) = (false, None);
        let psize = buf.len() as u64;
        // without a checksum stale bytes cannot be told from good ones, so stale devices are not read
        let cx = ReadCx { stale: self.cx.stale && check.tells(), ..*self.cx };
        let read = self.tree.read(dva, psize, bp.birth_physical(), &cx, buf, &mut |data| match check.test(data) {
            Ok(good) => {
                wrong |= !good;
                good
            }
            Err(e) => {
                unable = Some(e);
                false
            }
        });
        self.stats.blocks.add(1);
        self.stats.bytes.add(psize);
        read.map_err(|e| match unable {
            Some(e) => Fault::Codec(e),
            None if wrong => Fault::Checksum { kind: check.name(), device: Some(Box::new(e)) },
            None => Fault::Device(Box::new(e)),
        })
    }
}
