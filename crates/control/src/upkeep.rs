//! Requests that keep a pool in order: scrubs, logs of space changes, old entries of dedup tables.

use base::{Errno, Guid};
use nvlist::NvList;
use pool::ddt::Prune;
use pool::{Activity, Nearest, ScrubRange};

use crate::decode::require_str;
use crate::{Control, Error, Failed};

/// OpenZFS: `pool_scan_func_t`.
const SCAN_NONE: u64 = 0;
const SCAN_SCRUB: u64 = 1;
const SCAN_RESILVER: u64 = 2;
const SCAN_ERRORSCRUB: u64 = 3;
/// OpenZFS: `pool_scrub_cmd_t`.
const NORMAL: u64 = 0;
const PAUSE: u64 = 1;
const FROM_LAST_TXG: u64 = 2;
/// OpenZFS: `zpool_ddt_prune_unit_t`.
const PRUNE_AGE: i32 = 1;
const PRUNE_PERCENTAGE: i32 = 2;
/// The only thing that can be condensed (OpenZFS: `POOL_CONDENSE_LOG_SPACEMAP`).
const LOG_SPACEMAP: &str = "log_spacemap";

/// What a scrub is asked to do, all checked.
struct Scan {
    kind: u64,
    command: u64,
    start: u64,
    end: u64,
}

impl Scan {
    /// OpenZFS: `zfs_scan_ioc_validate`.
    fn decode(input: &NvList) -> Result<Scan, Error> {
        let number = |key| input.get_u64(key).unwrap_or(0);
        let scan = Scan {
            kind: number("scan_type"),
            command: number("scan_command"),
            start: number("scan_date_start"),
            end: number("scan_date_end"),
        };
        let (dated, flags) = (scan.start != 0 || scan.end != 0, number("scan_flags"));
        let sound = scan.kind <= SCAN_ERRORSCRUB
            && scan.command <= FROM_LAST_TXG
            && flags == 0
            && (!dated || (scan.kind == SCAN_SCRUB && scan.command == NORMAL))
            && (scan.command != FROM_LAST_TXG || scan.kind == SCAN_SCRUB)
            && (scan.kind != SCAN_NONE || scan.command == NORMAL)
            && (scan.kind != SCAN_RESILVER || scan.command == NORMAL);
        if sound { Ok(scan) } else { Err(Error::Invalid("a scan that makes no sense".to_owned())) }
    }
}

impl Control {
    /// Begins or resumes a scrub, a resilver or an error scrub, which then runs in the background; pauses or cancels a scrub.
    pub(crate) fn pool_scrub(&self, input: &NvList) -> Result<NvList, Failed> {
        let scan = Scan::decode(input)?;
        match scan {
            Scan { command: PAUSE, .. } => under_way(self.spa.scrub_pause()?),
            Scan { kind: SCAN_NONE, .. } => under_way(self.spa.scrub_cancel()?),
            Scan { kind: SCAN_ERRORSCRUB, .. } => match self.spa.error_scrub()? {
                true => Ok(NvList::new()),
                false => Err(nothing(Errno::ECANCELED, "no errors are known")),
            },
            Scan { kind: SCAN_SCRUB, .. } => {
                let view = self.spa.view()?;
                self.done(self.spa.scrub(range(&view, &scan)?))
            }
            _ => {
                self.spa.resilver(true)?;
                Ok(NvList::new())
            }
        }
    }

    /// Begins to flush what the log of space changes holds, over as many txgs as it takes in the background; or cancels that.
    pub(crate) fn pool_condense(&self, input: &NvList) -> Result<NvList, Failed> {
        let start = match require_str(input, "condense_command")? {
            "start" => true,
            "cancel" => false,
            other => return Err(Error::Invalid(format!("'{other}' is neither 'start' nor 'cancel'")).into()),
        };
        if require_str(input, "condense_type")? != LOG_SPACEMAP {
            return Err(Error::Invalid("no such condense type".to_owned()).into());
        }
        if !self.spa.view()?.feature_active(LOG_SPACEMAP) {
            return Err(Error::NotSupported(LOG_SPACEMAP.to_owned()).into());
        }
        if !start {
            self.spa.cancel_condense();
            return Ok(NvList::new());
        }
        self.spa.condense_logs();
        Ok(NvList::new())
    }

    /// Waits for the end of an activity (OpenZFS: `zfs_ioc_wait`), or until its caller ends the wait.
    pub(crate) fn wait(&self, input: &NvList) -> Result<NvList, Failed> {
        let number = input.get_i32("wait_activity").and_then(|number| usize::try_from(number).ok());
        let activity = number.and_then(|number| Activity::ALL.get(number)).copied();
        let activity = activity.ok_or_else(|| Error::Invalid("no such activity".to_owned()))?;
        if input.contains("wait_tag") && !matches!(activity, Activity::Initialize | Activity::Trim) {
            return Err(Error::Invalid("only the activities of single devices have tags".to_owned()).into());
        }
        let goes_on = || !self.cancel.is_cancelled();
        let waited = match input.get_u64("wait_tag").map(Guid) {
            Some(leaf) => self.spa.wait_leaf_while(activity, leaf, &goes_on)?,
            None if self.cancel.can_be_cancelled() => self.spa.wait_activity_while(activity, &goes_on)?,
            None => self.spa.wait_activity(activity)?,
        };
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled.into());
        }
        let mut out = NvList::new();
        out.insert("wait_waited", waited);
        Ok(out)
    }

    /// Forgets old entries of dedup tables.
    pub(crate) fn ddt_prune(&self, input: &NvList) -> Result<NvList, Failed> {
        let amount = input.get_u64("ddt_prune_amount").unwrap_or(0);
        let what = match input.get_i32("ddt_prune_unit") {
            Some(PRUNE_AGE) if amount < self.spa.env().now_s() => Prune::Age(amount),
            Some(PRUNE_PERCENTAGE) if (1..=100).contains(&amount) => Prune::Percent(amount),
            _ => return Err(Error::Invalid("unit and amount make no sense".to_owned()).into()),
        };
        self.done(self.spa.prune_dedup(what).map(drop))
    }
}

/// The txgs that blocks were written in, as far as times were noted: rather too many than too few.
fn range(view: &pool::Pool, scan: &Scan) -> Result<ScrubRange, pool::Error> {
    let at = |time: u64, nearest| match time {
        0 => Ok(None),
        time => view.txg_at(time, nearest),
    };
    if scan.command == FROM_LAST_TXG {
        return Ok(ScrubRange { after: view.last_scrubbed_txg()?, upto: None });
    }
    Ok(ScrubRange { after: at(scan.start, Nearest::Before)?.unwrap_or_default(), upto: at(scan.end, Nearest::After)? })
}

fn under_way(was: bool) -> Result<NvList, Failed> {
    if was { Ok(NvList::new()) } else { Err(nothing(Errno::ENOENT, "there is no active scrub")) }
}

fn nothing(errno: Errno, why: &str) -> Failed {
    Failed { errno, out: Box::default(), error: Box::new(Error::Invalid(why.to_owned())) }
}
