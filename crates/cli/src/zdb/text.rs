//! Formats of numbers, times and histograms in zdb's output.

use std::io::{self, Write};

use jiff::Timestamp;
use pool::prop::{nicebytes, nicenum};

use super::options::Options;
use crate::console;
use crate::error::{Failure, failed};

/// The widest bar of a histogram.
const BAR: u64 = 40;

/// An error of the pool as a failure.
pub(super) fn trouble(e: pool::Error) -> Failure {
    failed(format!("zdb: {e}"))
}

/// `n` in at most five characters, or as it is with `-P`.
pub(super) fn number(options: &Options, n: u64) -> String {
    if options.has('P') { n.to_string() } else { nicenum(n) }
}

/// Bytes in at most five characters, or as they are with `-P`.
pub(super) fn bytes(options: &Options, n: u64) -> String {
    if options.has('P') { n.to_string() } else { nicebytes(n) }
}

/// `a / b` as C prints it, where 0/0 is `-nan` on the machines that matter.
pub(super) fn quotient(a: f64, b: f64, width: usize, decimals: usize) -> String {
    let text = match a / b {
        q if q.is_nan() => "-nan".to_owned(),
        q if q.is_infinite() => "inf".to_owned(),
        q => format!("{q:.decimals$}"),
    };
    format!("{text:>width$}")
}

/// Seconds since 1970 in local time as `ctime(3)` prints them, without the line's end.
pub(super) fn ctime(seconds: i64) -> String {
    strftime(seconds, "%a %b %e %H:%M:%S %Y")
}

/// Seconds since 1970 in local time, for the history.
pub(super) fn stamp(seconds: i64) -> String {
    strftime(seconds, "%Y-%m-%d.%H:%M:%S")
}

fn strftime(seconds: i64, layout: &str) -> String {
    match Timestamp::from_second(seconds) {
        Ok(stamp) => stamp.to_zoned(console::time_zone()).strftime(layout).to_string(),
        Err(_) => seconds.to_string(),
    }
}

/// Prints a histogram: a line for each bucket from the first that is not empty to the last, with a bar. Bucket 0 is
/// labelled `offset`.
pub(super) fn histogram(out: &mut dyn Write, buckets: &[u64], offset: u32) -> io::Result<()> {
    let filled = |n: &u64| *n != 0;
    let first = buckets.iter().position(filled).unwrap_or(buckets.len().saturating_sub(1));
    let last = buckets.iter().rposition(filled).unwrap_or(0);
    let max = buckets.iter().copied().max().unwrap_or(0).max(BAR);
    for (n, count) in buckets.iter().enumerate().take(last + 1).skip(first) {
        let missing = u128::from(max - count) * u128::from(BAR) / u128::from(max);
        let stars = "*".repeat(BAR as usize - missing as usize);
        writeln!(out, "\t\t\t{:3}: {count:6} {stars}", n as u64 + u64::from(offset))?;
    }
    Ok(())
}

/// Bytes that a list takes as labels pack it.
pub(super) fn packed_len(list: &nvlist::NvList) -> usize {
    list.pack(nvlist::Encoding::Xdr, base::Endian::Big).map_or(0, |bytes| bytes.len())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_quotient_is_printed_as_c_does() {
        assert_eq!(quotient(0.0, 0.0, 5, 2), " -nan");
        assert_eq!(quotient(1.0, 0.0, 5, 2), "  inf");
        assert_eq!(quotient(25.0, 2.0, 6, 2), " 12.50");
    }

    #[test]
    fn a_histogram_goes_from_the_first_to_the_last_bucket() {
        let mut out = Vec::new();
        histogram(&mut out, &[0, 0, 3, 0, 80, 0], 9).unwrap();
        let text = String::from_utf8(out).unwrap();
        let stars = "*".repeat(40);
        assert_eq!(text, format!("\t\t\t 11:      3 **\n\t\t\t 12:      0 \n\t\t\t 13:     80 {stars}\n"));
        let mut none = Vec::new();
        histogram(&mut none, &[0; 4], 0).unwrap();
        assert!(none.is_empty());
    }
}
