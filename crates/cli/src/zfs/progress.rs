//! How far a send is, a line a second (OpenZFS: `send_progress_thread`).

use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use jiff::Zoned;
use pool::prop::{nicebytes, nicenum};
use stream::send::Progress;

/// How often a line comes.
const EVERY: Duration = Duration::from_secs(1);

/// How lines look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    /// Tabs and plain numbers.
    pub(super) parsable: bool,
    /// From 2 on, blocks too.
    pub(super) verbosity: usize,
}

impl Style {
    fn heading(self, name: &str) -> String {
        let blocks = if self.verbosity >= 2 { "   BLOCKS    " } else { "" };
        format!("TIME        SENT   {blocks}SNAPSHOT {name}")
    }

    fn line(self, time: &str, bytes: u64, blocks: u64, name: &str) -> String {
        match (self.parsable, self.verbosity >= 2) {
            (true, true) => format!("{time}\t{bytes}\t{blocks}\t{name}"),
            (true, false) => format!("{time}\t{bytes}\t{name}"),
            (false, true) => format!("{time}   {:>5}    {blocks:>8}    {name}", nicenum(bytes)),
            (false, false) => format!("{time}   {:>5}   {name}", nicebytes(bytes)),
        }
    }
}

/// Does `work`, and meanwhile tells on standard error how far it is.
pub(super) fn shown<R>(style: Option<Style>, name: &str, progress: &Progress, work: impl FnOnce() -> R) -> R {
    let Some(style) = style else { return work() };
    if !style.parsable {
        eprintln!("{}", style.heading(name));
    }
    let (done, end) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while end.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let (bytes, blocks) = (progress.bytes.load(Ordering::Relaxed), progress.blocks.load(Ordering::Relaxed));
                let time = Zoned::now().strftime("%H:%M:%S").to_string();
                eprintln!("{}", style.line(&time, bytes, blocks, name));
            }
        });
        let result = work();
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_openzfs() {
        let plain = Style { parsable: false, verbosity: 1 };
        assert_eq!(plain.heading("a@s"), "TIME        SENT   SNAPSHOT a@s");
        assert_eq!(plain.line("01:02:03", 1 << 20, 9, "a@s"), "01:02:03      1M   a@s");
        let blocks = Style { parsable: false, verbosity: 2 };
        assert_eq!(blocks.heading("a@s"), "TIME        SENT      BLOCKS    SNAPSHOT a@s");
        assert_eq!(blocks.line("01:02:03", 1536, 9, "a@s"), "01:02:03   1.50K           9    a@s");
        let tabs = Style { parsable: true, verbosity: 1 };
        assert_eq!(tabs.line("01:02:03", 1536, 9, "a@s"), "01:02:03\t1536\ta@s");
    }
}
