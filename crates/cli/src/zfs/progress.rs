//! Progress of a send or receive: lines on standard error, each second or on SIGUSR1 (OpenZFS:
//! `send_progress_thread`); on a terminal, a bar.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use pool::prop::{nicebytes, nicenum};
use stream::send::Progress;

use crate::console::{self, Questions, Signals};

/// Interval between lines.
const EVERY: Duration = Duration::from_secs(1);
/// Interval between updates of the bar.
const MOVES: Duration = Duration::from_millis(100);

/// The format of lines, and what else is shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Style {
    /// `-v`: each second.
    pub(super) lines: bool,
    /// `-V`: the process's name shows the progress.
    pub(super) title: bool,
    /// Tabs and plain numbers.
    pub(super) parsable: bool,
    /// From 2 on, blocks are shown too.
    pub(super) verbosity: usize,
    /// The estimated bytes of the stream; 0 if it was not asked for.
    pub(super) size: u64,
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

    /// Returns whether a line is printed each second: with numbers for programs, and with blocks, also beside a title.
    fn every_second(self) -> bool {
        self.lines || (self.title && (self.parsable || self.verbosity >= 2))
    }

    /// The name of the process, of which at most 15 bytes are kept.
    fn name(self, bytes: u64) -> String {
        let percent = bytes.checked_div(self.size / 100).unwrap_or(100).min(100);
        format!("zfs send {percent}%")
    }

    fn has_bar(self) -> bool {
        self.lines && self.verbosity < 2 && !self.parsable && console::stderr_is_terminal()
    }
}

/// Does `work`, and shows its progress meanwhile.
pub(super) fn shown<R>(style: Style, name: &str, progress: &Progress, work: impl FnOnce() -> R) -> R {
    let bar = style.has_bar().then(|| crate::progress::bar(style.size, false));
    if style.lines && !style.parsable && bar.is_none() {
        eprintln!("{}", style.heading(name));
    }
    let (ask, asked) = channel::<()>();
    // without the signal there are still the lines
    let (questions, no_more) = Questions::new(&console::signals()).unzip();
    let console = console::current();
    std::thread::scope(|scope| {
        if let Some(questions) = questions {
            let ask = ask.clone();
            scope.spawn(move || questions.each(|| ask.send(()).is_ok()));
        }
        let watch = Watch { style, name, progress, bar };
        scope.spawn(move || console.enter(|| watch.run(&asked)));
        let result = work();
        // both threads end once no sender is left
        drop(ask);
        if let Some(no_more) = no_more {
            no_more.close();
        }
        result
    })
}

/// The thread that shows the progress of a send.
struct Watch<'a> {
    style: Style,
    name: &'a str,
    progress: &'a Progress,
    bar: Option<ProgressBar>,
}

impl Watch<'_> {
    fn run(&self, asked: &Receiver<()>) {
        let step = if self.bar.is_some() { MOVES } else { EVERY };
        let mut next = Instant::now() + step;
        loop {
            match asked.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(()) => self.tell(),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    next += step;
                    self.step();
                }
            }
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn step(&self) {
        let bytes = self.progress.bytes.load(Ordering::Relaxed);
        // the name of a server is not the command's
        if self.style.title && matches!(console::signals(), Signals::OfProcess) {
            // best effort
            let _ = fs::write("/proc/self/comm", self.style.name(bytes));
        }
        match &self.bar {
            Some(bar) => bar.set_position(bytes),
            None if self.style.every_second() => self.tell(),
            None => {}
        }
    }

    fn tell(&self) {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let time = console::now().strftime("%H:%M:%S").to_string();
        let line = self.style.line(&time, read(&self.progress.bytes), read(&self.progress.blocks), self.name);
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }
}

/// Does `work`, and meanwhile, if `wanted` and on a terminal, draws how many bytes have come.
pub(super) fn drawn<R>(wanted: bool, name: &str, bytes: &AtomicU64, work: impl FnOnce() -> R) -> R {
    if !wanted || !console::stderr_is_terminal() {
        return work();
    }
    let bar = crate::progress::bar(0, false);
    bar.set_message(name.to_owned());
    let (done, end) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while end.recv_timeout(MOVES) == Err(RecvTimeoutError::Timeout) {
                bar.set_position(bytes.load(Ordering::Relaxed));
            }
            bar.finish_and_clear();
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
        let plain = Style { verbosity: 1, ..Style::default() };
        assert_eq!(plain.heading("a@s"), "TIME        SENT   SNAPSHOT a@s");
        assert_eq!(plain.line("01:02:03", 1 << 20, 9, "a@s"), "01:02:03      1M   a@s");
        let blocks = Style { verbosity: 2, ..Style::default() };
        assert_eq!(blocks.heading("a@s"), "TIME        SENT      BLOCKS    SNAPSHOT a@s");
        assert_eq!(blocks.line("01:02:03", 1536, 9, "a@s"), "01:02:03   1.50K           9    a@s");
        let tabs = Style { parsable: true, verbosity: 1, ..Style::default() };
        assert_eq!(tabs.line("01:02:03", 1536, 9, "a@s"), "01:02:03\t1536\ta@s");
    }

    #[test]
    fn the_name_of_the_process_tells_percents() {
        let style = Style { title: true, size: 1000, ..Style::default() };
        assert_eq!(style.name(455), "zfs send 45%");
        assert_eq!(style.name(2000), "zfs send 100%");
        // an unknown size counts as done
        assert_eq!(Style { size: 0, ..style }.name(455), "zfs send 100%");
        assert!(!style.every_second() && Style { parsable: true, ..style }.every_second());
    }
}
