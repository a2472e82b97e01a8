//! A log as `zdb -i` lists it, byte for byte, except where zdb is wrong: it reads the names in records with an ACL and in
//! RENAME_WHITEOUT from the wrong offset.

use std::io::Write as Out;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::Txg;
use dmu::Objset;
use ondisk::BlkPtr;
use ondisk::zil::{Create, RawRecord, Record, Rename, SetAttr, TxType, WRITE_RECORD_SIZE, Write, block_seq};

use crate::chain::{Step, walk_as};
use crate::{Error, ShowBlkPtr, data_of};

const TAB: &str = "\t\t\t";

/// Options of the listing.
pub struct Options<'a> {
    /// The number of `-i`: 1 header, 2 records, 3 their contents, 4 blocks, 5 block pointers and the first data, 6 all data.
    pub verbosity: u32,
    /// The first txg that would be claimed: the uberblock's and one (OpenZFS: `spa_min_claim_txg`).
    pub min_claim_txg: Txg,
    /// The uberblock's checkpoint txg, 0 for none. After a rewind to the checkpoint, a log that was not claimed is not listed.
    pub checkpoint_txg: Txg,
    /// Formats a time as `ctime` does, without the newline: seconds since 1970 in the caller's time zone ([`ctime_utc`]).
    pub ctime: &'a dyn Fn(i64) -> String,
}

/// Writes the listing of the log of `objset`; writes nothing if it has no log.
///
/// # Errors
/// If writing to `out` fails.
pub fn write_log(out: &mut dyn Out, objset: &Arc<Objset>, options: &Options<'_>) -> Result<(), Error> {
    let h = objset.phys().zil_header.clone();
    if h.log.is_hole() || options.verbosity < 1 {
        return Ok(());
    }
    write!(
        out,
        "\n    ZIL header: claim_txg {}, claim_blk_seq {}, claim_lr_seq {}",
        h.claim_txg, h.claim_blk_seq, h.claim_lr_seq
    )?;
    writeln!(out, " replay_seq {}, flags 0x{:x}", h.replay_seq, h.flags)?;
    if (options.checkpoint_txg.0 != 0 && h.claim_txg.0 == 0) || options.verbosity < 2 {
        return Ok(());
    }
    writeln!(out)?;
    let mut lister =
        Lister { out, objset, options, encrypted: objset.rootbp().uses_crypt(), counts: [0; TxType::ALL.len()] };
    let mut failed = None;
    walk_as(
        objset,
        true,
        &mut |step| match lister.step(&step) {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                failed = Some(e);
                ControlFlow::Break(())
            }
        },
        &mut |_, _, _| {},
    );
    match failed {
        Some(e) => Err(e),
        None => lister.totals(),
    }
}

struct Lister<'a> {
    out: &'a mut dyn Out,
    objset: &'a Arc<Objset>,
    options: &'a Options<'a>,
    encrypted: bool,
    counts: [u64; TxType::ALL.len()],
}

impl Lister<'_> {
    fn step(&mut self, step: &Step<'_>) -> Result<(), Error> {
        match step {
            Step::Block(bp) => self.block(bp),
            Step::Record { record, .. } => self.record(record),
        }
    }

    fn block(&mut self, bp: &BlkPtr) -> Result<(), Error> {
        if self.options.verbosity <= 3 {
            return Ok(());
        }
        let claim = match self.objset.phys().zil_header.claim_txg.0 {
            0 if bp.birth() >= self.options.min_claim_txg => "will claim",
            0 => "won't claim",
            _ => "already claimed",
        };
        write!(self.out, "\tBlock seqno {}, {claim}", block_seq(bp))?;
        if self.options.verbosity >= 5 {
            write!(self.out, ", {}", ShowBlkPtr(bp))?;
        }
        Ok(writeln!(self.out)?)
    }

    fn record(&mut self, record: &RawRecord<'_>) -> Result<(), Error> {
        let h = &record.header;
        let ci = if h.ignores_case() { "CI-" } else { "" };
        let Some(kind) = h.kind() else {
            writeln!(self.out, "\t\t{ci}unknown type {} len {:6}, txg {}, seq {}", h.txtype, h.reclen, h.txg, h.seq)?;
            return Ok(());
        };
        writeln!(self.out, "\t\t{ci}{:<19} len {:6}, txg {}, seq {}", kind.name(), h.reclen, h.txg, h.seq)?;
        if let Some(count) = self.counts.get_mut(kind as usize) {
            *count += 1;
        }
        if self.options.verbosity < 3 {
            return Ok(());
        }
        if self.encrypted {
            return self.sealed(record, kind);
        }
        match record.decode() {
            Ok(decoded) => self.body(kind, &decoded),
            Err(e) => Ok(writeln!(self.out, "{TAB}<{e}>")?),
        }
    }

    /// Prints what is readable of an encrypted record.
    fn sealed(&mut self, record: &RawRecord<'_>, kind: TxType) -> Result<(), Error> {
        writeln!(self.out, "{TAB}(encrypted)")?;
        if self.options.verbosity < 4 {
            return Ok(());
        }
        let Ok(bps) = record.clear_blkptrs() else { return Ok(()) };
        match (kind, bps.as_slice()) {
            (TxType::Write, [bp]) if record.bytes.len() == WRITE_RECORD_SIZE => self.pointer(bp),
            (TxType::CloneRange, bps) => self.pointers(bps),
            _ => Ok(()),
        }
    }

    fn body(&mut self, kind: TxType, record: &Record<'_>) -> Result<(), Error> {
        match record {
            Record::Commit => {}
            Record::Create(c) => self.create(kind, c)?,
            Record::Remove { doid, name } => {
                write!(self.out, "{TAB}doid {doid}, name ")?;
                self.line(name)?;
            }
            Record::Link { doid, link_obj, name } => {
                write!(self.out, "{TAB}doid {doid}, link_obj {link_obj}, name ")?;
                self.line(name)?;
            }
            Record::Rename(r) => self.rename(kind, r)?,
            Record::Write(w) => self.write(kind, w)?,
            Record::Truncate { foid, offset, length } => {
                writeln!(self.out, "{TAB}foid {foid}, offset 0x{offset:x}, length 0x{length:x}")?;
            }
            Record::SetAttr(s) => self.setattr(s)?,
            Record::AclV0 { foid, count, .. } => writeln!(self.out, "{TAB}foid {foid}, aclcnt {count}")?,
            Record::Acl { foid, acl } => writeln!(self.out, "{TAB}foid {foid}, aclcnt {}", acl.count)?,
            Record::SetSaXattr { foid, name, value } => {
                write!(self.out, "{TAB}foid {foid}\n{TAB}XAT_NAME  ")?;
                self.line(name)?;
                match value {
                    None => writeln!(self.out, "{TAB}XAT_VALUE  NULL")?,
                    // zdb does not end the line here
                    Some(value) => {
                        write!(self.out, "{TAB}XAT_VALUE  ")?;
                        self.out.write_all(value)?;
                    }
                }
            }
            Record::CloneRange { foid, offset, length, blksz, bps } => {
                writeln!(self.out, "{TAB}foid {foid}, offset {offset:x}, length {length:x}, blksize {blksz:x}")?;
                if self.options.verbosity >= 4 {
                    self.pointers(bps)?;
                }
            }
        }
        Ok(())
    }

    fn create(&mut self, kind: TxType, c: &Create<'_>) -> Result<(), Error> {
        if kind != TxType::Mkxattr {
            write!(self.out, "{TAB}")?;
            self.out.write_all(c.name)?;
            if let Some(link) = c.link {
                write!(self.out, " -> ")?;
                self.out.write_all(link)?;
            }
            writeln!(self.out)?;
        }
        writeln!(self.out, "{TAB}{}", (self.options.ctime)(c.crtime[0] as i64))?;
        writeln!(self.out, "{TAB}doid {}, foid {}, slots {}, mode {:o}", c.doid, c.foid, c.slots, c.mode)?;
        writeln!(self.out, "{TAB}uid {}, gid {}, gen {}, rdev 0x{:x}", c.uid, c.gid, c.generation, c.rdev)?;
        Ok(())
    }

    fn rename(&mut self, kind: TxType, r: &Rename<'_>) -> Result<(), Error> {
        write!(self.out, "{TAB}sdoid {}, tdoid {}\n{TAB}src ", r.sdoid, r.tdoid)?;
        self.out.write_all(r.src)?;
        write!(self.out, " tgt ")?;
        self.line(r.dst)?;
        match kind {
            TxType::RenameExchange => writeln!(self.out, "{TAB}flags RENAME_EXCHANGE")?,
            TxType::RenameWhiteout => writeln!(self.out, "{TAB}flags RENAME_WHITEOUT")?,
            _ => {}
        }
        Ok(())
    }

    fn write(&mut self, kind: TxType, w: &Write<'_>) -> Result<(), Error> {
        let verbosity = self.options.verbosity;
        writeln!(self.out, "{TAB}foid {}, offset {:x}, length {:x}", w.foid, w.offset, w.length)?;
        if kind == TxType::Write2 || verbosity < 4 {
            return Ok(());
        }
        if w.data.is_none() {
            self.pointer(&w.blkptr)?;
        }
        if verbosity < 5 {
            return Ok(());
        }
        if w.data.is_none() {
            if w.blkptr.is_hole() {
                return Ok(writeln!(self.out, "{TAB}LSIZE 0x{:x}\n{TAB}<hole>", w.blkptr.lsize())?);
            }
            if w.blkptr.birth() < self.objset.phys().zil_header.claim_txg {
                return Ok(writeln!(self.out, "{TAB}<block already committed>")?);
            }
        }
        let Ok(data) = data_of(self.objset, w) else { return Ok(()) };
        let most = w.length.min(if verbosity < 6 { 20 } else { u64::MAX });
        write!(self.out, "{TAB}")?;
        for byte in data.iter().take(usize::try_from(most).unwrap_or(usize::MAX)) {
            match byte {
                b' '..=b'~' => write!(self.out, "{} ", char::from(*byte))?,
                // a signed char, widened
                _ => write!(self.out, "{:2X}", i32::from(*byte as i8))?,
            }
        }
        Ok(writeln!(self.out)?)
    }

    /// Prints a SETATTR. The mask bits are those of the writer's operating system; zdb reads them as Solaris does.
    fn setattr(&mut self, s: &SetAttr<'_>) -> Result<(), Error> {
        let [mode, uid, gid, size, atime, mtime] = [0x2, 0x4, 0x8, 0x80, 0x100, 0x200];
        writeln!(self.out, "{TAB}foid {}, mask 0x{:x}", s.foid, s.mask)?;
        if s.mask & mode != 0 {
            writeln!(self.out, "{TAB}AT_MODE  {:o}", s.mode)?;
        }
        for (bit, name, value) in [(uid, "UID ", s.uid), (gid, "GID ", s.gid), (size, "SIZE", s.size)] {
            if s.mask & bit != 0 {
                writeln!(self.out, "{TAB}AT_{name}  {value}")?;
            }
        }
        for (bit, name, [sec, nsec]) in [(atime, "ATIME", s.atime), (mtime, "MTIME", s.mtime)] {
            if s.mask & bit != 0 {
                writeln!(self.out, "{TAB}AT_{name} {sec}.{nsec:09} {}", (self.options.ctime)(sec as i64))?;
            }
        }
        Ok(())
    }

    fn pointer(&mut self, bp: &BlkPtr) -> Result<(), Error> {
        let claim =
            if !bp.is_hole() && bp.birth() >= self.options.min_claim_txg { "will claim" } else { "won't claim" };
        Ok(writeln!(self.out, "{TAB}has blkptr, {claim}\n{TAB}{}", ShowBlkPtr(bp))?)
    }

    fn pointers(&mut self, bps: &[BlkPtr]) -> Result<(), Error> {
        for (n, bp) in bps.iter().enumerate() {
            writeln!(self.out, "{TAB}[{}/{}] {}", n + 1, bps.len(), ShowBlkPtr(bp))?;
        }
        Ok(())
    }

    fn line(&mut self, text: &[u8]) -> Result<(), Error> {
        self.out.write_all(text)?;
        Ok(writeln!(self.out)?)
    }

    fn totals(&mut self) -> Result<(), Error> {
        if self.options.verbosity > 3 {
            writeln!(self.out)?;
        }
        let total: u64 = self.counts.iter().sum();
        if total == 0 {
            return Ok(());
        }
        let width = total.to_string().len();
        let rows = TxType::ALL.iter().zip(self.counts).skip(1).map(|(kind, count)| (kind.name(), count));
        for (name, count) in [("Total", total)].into_iter().chain(rows) {
            if count != 0 || self.options.verbosity >= 3 {
                writeln!(self.out, "\t\t{name:<19} {count:width$}")?;
            }
        }
        Ok(writeln!(self.out)?)
    }
}

/// Formats seconds since 1970 as `ctime` does in UTC, without the newline.
#[must_use]
pub fn ctime_utc(seconds: i64) -> String {
    const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, time) = (seconds.div_euclid(86400), seconds.rem_euclid(86400));
    // days since 1 March of year 0, in eras of 400 years
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12;
    let year = year_of_era + era * 400 + i64::from(month < 2);
    let weekday = (days + 4).rem_euclid(7);
    let name = |names: &[&'static str], n: i64| names.get(n as usize).copied().unwrap_or("???");
    let (h, m, s) = (time / 3600, time / 60 % 60, time % 60);
    format!("{} {} {day:2} {h:02}:{m:02}:{s:02} {year}", name(&DAYS, weekday), name(&MONTHS, month))
}

#[cfg(test)]
mod tests {
    use super::ctime_utc;

    #[test]
    fn ctime_prints_dates() {
        for (seconds, text) in [
            (0, "Thu Jan  1 00:00:00 1970"),
            (1_795_252_588, "Sat Nov 21 09:16:28 2026"),
            (951_782_400, "Tue Feb 29 00:00:00 2000"),
            (-1, "Wed Dec 31 23:59:59 1969"),
            (4_107_542_399, "Sun Feb 28 23:59:59 2100"),
        ] {
            assert_eq!(ctime_utc(seconds), text);
        }
    }
}
