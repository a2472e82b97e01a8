//! Counters on disk that do not add up.
//!
//! Sums of space and numbers of references come from disk. Where one would fall below zero it is wrong, by a bug of this program, by one of
//! another implementation that wrote the pool, or because the pool's maker meant it so. What it should be is not known. It is held at zero,
//! so that a pool whose data is all there stays usable, and recorded: the pool's history says which counter of which object it was.

use std::collections::BTreeSet;

use base::ObjectId;
use dmu::Tx;
use parking_lot::Mutex;

use crate::Error;
use crate::spa::Spa;
use crate::spa::mos::Mos;

/// The event in the pool's history.
const EVENT: &str = "miscount";
/// The most counters that are recorded while a pool is open.
const RECORDED_MAX: usize = 64;

/// A counter that was too small.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Miscount {
    object: ObjectId,
    what: &'static str,
    value: u64,
    by: i64,
}

/// The wrong counters that were met with a [`Mos`].
#[derive(Default)]
pub(crate) struct Miscounts(Mutex<Vec<Miscount>>);

/// The counters that are in the history.
#[derive(Default)]
pub(crate) struct Recorded(Mutex<BTreeSet<(ObjectId, &'static str)>>);

impl Mos {
    /// Changes the counter `what` of an object. OpenZFS lets counters wrap, so that one that fell below zero is a number near 2^64 on disk.
    pub(crate) fn count(&self, object: ObjectId, what: &'static str, value: &mut u64, by: i64) {
        add(value, by, |value| self.miscounts.0.lock().push(Miscount { object, what, value, by }));
    }
}

/// Changes a counter; one that is wrong before or after that is told to `wrong`.
fn add(value: &mut u64, by: i64, wrong: impl FnOnce(u64)) {
    let before = value.cast_signed();
    let now = before.wrapping_add(by);
    if before < 0 || now < 0 {
        wrong(*value);
    }
    *value = now.max(0).cast_unsigned();
}

impl Spa {
    /// Records the wrong counters that were met with `mos`.
    pub(crate) fn record_miscounts(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        for Miscount { object, what, value, by } in std::mem::take(&mut *mos.miscounts.0.lock()) {
            let mut recorded = self.recorded_miscounts.0.lock();
            if recorded.len() >= RECORDED_MAX || !recorded.insert((object, what)) {
                continue;
            }
            drop(recorded);
            tracing::error!(target: "zuse::space", pool = self.name(), object = object.0, what, value, by, "wrong counter");
            self.log_internal(mos, tx, EVENT, &format!("object {object}: {what} is {value} and changes by {by}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_that_wrapped_below_zero_comes_back() {
        // (stored, change, the sum, whether it is recorded)
        for (stored, by, sum, recorded) in [
            (8192, -4096, 4096, false),
            (4096, -8192, 0, true),
            ((-4096i64).cast_unsigned(), 8192, 4096, true),
            ((-4096i64).cast_unsigned(), 1024, 0, true),
            (i64::MAX.cast_unsigned(), 1, 0, true),
        ] {
            let (mut value, mut miscounts) = (stored, Vec::new());
            add(&mut value, by, |value| miscounts.push(value));
            assert_eq!((value, miscounts), (sum, if recorded { vec![stored] } else { Vec::new() }), "{stored} {by}");
        }
    }
}
