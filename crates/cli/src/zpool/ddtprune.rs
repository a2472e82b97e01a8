//! `zpool ddtprune` removes old entries of dedup tables; `zpool prefetch` reads tables.

use control::{Ioc, ReadOnlyControl};
use nvlist::NvList;

use crate::command::Call;
use crate::console;
use crate::error::{Outcome, failed, usage};
use crate::{messages, pools, writable};

const DAY_S: u64 = 86_400;
/// Units of a request.
const AGE: i32 = 1;
const PERCENTAGE: i32 = 2;
/// The tables that can be prefetched.
const PREFETCH_TYPES: [&str; 2] = ["ddt", "brt"];

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    let (unit, amount) = match (args.text('d'), args.text('p')) {
        (Some(_), Some(_)) => return Err(usage("-p cannot be combined with -d option")),
        (Some(days), None) => {
            let days = number(&days).and_then(|days| days.checked_mul(DAY_S));
            (AGE, days.ok_or_else(|| usage("invalid days value"))?)
        }
        (None, Some(percent)) => {
            let percent = number(&percent).filter(|percent| *percent <= 100);
            (PERCENTAGE, percent.ok_or_else(|| usage("invalid percentage value"))?)
        }
        (None, None) => return Err(usage("missing amount option (-d|-p <value>)")),
    };
    let names = args.names();
    let name = match names.as_slice() {
        [] => return Err(usage("missing pool argument")),
        [name] => name.clone(),
        _ => return Err(usage("too many arguments")),
    };
    let (status, _) = pools::for_each_record(&[name], |record| {
        let doing = format!("cannot prune dedup table on '{}'", record.name);
        let control = console::control(writable::open(record, &doing)?);
        let mut input = NvList::new();
        input.insert("ddt_prune_unit", unit);
        input.insert("ddt_prune_amount", amount);
        let done = control.call(Ioc::DdtPrune, &record.name, &input);
        done.map_err(|e| failed(format!("{doing}: {}", messages::why_failed(&e))))?;
        writable::close(control.spa(), &doing)
    })?;
    Ok(status)
}

/// A number above 0, in one of the ways that C writes numbers.
fn number(text: &str) -> Option<u64> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8),
        None => text.parse(),
    };
    parsed.ok().filter(|number| *number > 0)
}

/// Reads the tables, and reports one that cannot be read: no cache outlives a command, so there is no other effect.
pub(super) fn prefetch(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    let names = args.names();
    let name = match names.as_slice() {
        [] => return Err(usage("missing pool name argument")),
        [name] => name.clone(),
        _ => return Err(usage("too many arguments")),
    };
    let wanted = args.text('t');
    if wanted.as_ref().is_some_and(|kind| !PREFETCH_TYPES.contains(&kind.as_str())) {
        return Err(usage("unsupported prefetch type"));
    }
    let is_wanted = |kind: &str| wanted.as_deref().is_none_or(|wanted| wanted == kind);
    let (status, _) = pools::for_each_record(&[name], |record| {
        let look = ReadOnlyControl::new(pools::open(record)?);
        for (number, kind) in (1i32..).zip(PREFETCH_TYPES).filter(|(_, kind)| is_wanted(kind)) {
            let mut input = NvList::new();
            input.insert("prefetch_type", number);
            let done = look.call(Ioc::PoolPrefetch, &record.name, &input);
            done.map_err(|e| failed(format!("cannot prefetch {kind} in '{}': {e}", record.name)))?;
        }
        Ok(())
    })?;
    Ok(status)
}
