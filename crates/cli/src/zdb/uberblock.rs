//! `-u`: an uberblock as text and as JSON.

use std::io::{self, Write};

use base::bytes::bits;
use nvlist::NvList;
use ondisk::{UBERBLOCK_MAGIC, Uberblock};
use zuse::zil::ShowBlkPtr;

use super::text::ctime;

/// The magic number of valid multihost fields.
const MMP_MAGIC: u64 = 0xa11c_ea11;

/// Prints an uberblock between `header` and `footer`; `verbosity` is the count of `-u`.
pub(super) fn print(out: &mut dyn Write, ub: &Uberblock, verbosity: u32, header: &str, footer: &str) -> io::Result<()> {
    write!(out, "{header}")?;
    writeln!(out, "\tmagic = {UBERBLOCK_MAGIC:016x}")?;
    writeln!(out, "\tversion = {}", ub.version)?;
    writeln!(out, "\ttxg = {}", ub.txg)?;
    writeln!(out, "\tguid_sum = {}", ub.guid_sum)?;
    writeln!(out, "\ttimestamp = {} UTC = {}", ub.timestamp, ctime(ub.timestamp as i64))?;
    writeln!(out, "\tbp = {}", ShowBlkPtr(&ub.rootbp))?;
    writeln!(out, "\tmmp_magic = {:016x}", if ub.mmp.is_some() { MMP_MAGIC } else { 0 })?;
    if let Some(mmp) = &ub.mmp {
        writeln!(out, "\tmmp_delay = {}", mmp.delay_ns)?;
        if let Some(seq) = mmp.seq() {
            writeln!(out, "\tmmp_seq = {seq}")?;
        }
        if let Some(fail) = mmp.fail_intervals() {
            writeln!(out, "\tmmp_fail = {fail}")?;
        }
        if let Some(interval) = mmp.interval_ms() {
            writeln!(out, "\tmmp_write = {interval}")?;
        }
        writeln!(out, "\tmmp_valid = {:x}", bits(mmp.config, 0, 8))?;
    }
    if verbosity >= 4 {
        writeln!(out, "\trootbp = {}", ShowBlkPtr(&ub.rootbp))?;
    }
    writeln!(out, "\tcheckpoint_txg = {}", ub.checkpoint_txg)?;
    writeln!(out, "\traidz_reflow state={} off={}", ub.reflow_scratch_state(), ub.reflow_offset())?;
    write!(out, "{footer}")
}

/// An uberblock as a list.
pub(super) fn list(ub: &Uberblock) -> NvList {
    let mut list = NvList::new();
    list.insert("version", ub.version);
    list.insert("txg", ub.txg.0);
    list.insert("guid_sum", ub.guid_sum.0);
    list.insert("timestamp", ub.timestamp);
    list.insert("bp", ShowBlkPtr(&ub.rootbp).to_string());
    if let Some(mmp) = &ub.mmp {
        list.insert("mmp_delay", mmp.delay_ns);
        list.insert("mmp_config", mmp.config);
    }
    list.insert("checkpoint_txg", ub.checkpoint_txg.0);
    list.insert("raidz_reflow_state", ub.reflow_scratch_state());
    list.insert("raidz_reflow_offset", ub.reflow_offset());
    list
}
