//! `zpool reguid`: another identity for a pool.

use base::Errno;
use control::Failed;
use nvlist::NvList;

use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Outcome, failed, usage};
use crate::{messages, pools, writable};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let mut input = NvList::new();
    if let Some(text) = call.args.text('g') {
        input.insert("guid", guid(&text).ok_or_else(|| usage(format!("invalid GUID: {text}")))?);
    }
    let names = call.args.names();
    let name = match names.as_slice() {
        [] => return Err(usage("missing pool name")),
        [name] => name,
        _ => return Err(usage("too many arguments")),
    };
    let record = pools::find(name)?;
    input.insert("message", writable::command_line().as_str());
    let done = here().reguid(&record, &input, console::user());
    done.map_err(|e| failed(format!("cannot reguid '{name}': {}", why(&e))))?;
    Ok(0)
}

/// A number as `strtoull` reads it: with blanks and a sign before it; nothing at all is 0.
fn guid(text: &str) -> Option<u64> {
    if text.is_empty() {
        return Some(0);
    }
    let text = text.trim_start();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    // a second sign is none
    let number = digits.parse::<u64>().ok().filter(|_| digits.starts_with(|c: char| c.is_ascii_digit()))?;
    Some(if negative { number.wrapping_neg() } else { number })
}

/// The reason in OpenZFS's words (`zpool_standard_error`).
fn why(e: &Failed) -> String {
    match e.errno {
        Errno::EINVAL => "invalid argument for this pool operation".to_owned(),
        Errno::EBUSY => "pool is busy".to_owned(),
        _ => messages::why_failed(e),
    }
}
