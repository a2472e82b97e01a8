//! The replay of a pool's intent logs, with its progress on a terminal.

use std::sync::Arc;

use pool::Spa;
use zpl::live::ReplayProgress;

use crate::console::here;
use crate::error::{Failure, failed};
use crate::{messages, progress};

/// Replays all logs of a pool whose datasets have their keys. Returns whether all could be opened; those that could
/// not are reported on standard error.
pub(crate) fn all(spa: &Arc<Spa>) -> Result<bool, Failure> {
    let bar = progress::bar(0, false);
    let mut watch = |progress: &ReplayProgress| {
        bar.set_position(progress.bytes_done);
        bar.set_message(line(progress));
    };
    let done = here().replay(spa, &mut watch);
    bar.finish_and_clear();
    done.map_err(|e| failed(format!("cannot replay the intent logs: {}", messages::why_failed(&e))))
}

fn line(progress: &ReplayProgress) -> String {
    let ReplayProgress { logs, logs_done, records, records_done, left, .. } = progress;
    let left = left.map_or(String::new(), |left| format!(", {} s left", left.as_secs()));
    format!("intent logs: {logs_done} of {logs}, {records_done} of {records} records{left}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_line_tells_the_time_only_when_it_is_known() {
        let mut progress =
            ReplayProgress { logs: 3, logs_done: 1, records: 700, records_done: 20, ..Default::default() };
        assert_eq!(line(&progress), "intent logs: 1 of 3, 20 of 700 records");
        progress.left = Some(Duration::from_millis(4200));
        assert_eq!(line(&progress), "intent logs: 1 of 3, 20 of 700 records, 4 s left");
    }
}
