//! A progress bar on standard error if that is a terminal, and the losses, one per line.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use zuse::Report;

use crate::console::Screen;
use crate::shown;

/// How often a bar is drawn in a second.
const DRAWN_HZ: u8 = 20;

/// A bar over bytes, or a count of them if `total` is 0 (not known); nothing is drawn if standard error is not a
/// terminal.
pub(crate) fn bar(total: u64, quiet: bool) -> ProgressBar {
    let screen = if quiet { None } else { Screen::new() };
    let hidden = ProgressDrawTarget::hidden();
    let target = screen.map_or(hidden, |screen| ProgressDrawTarget::term_like_with_hz(Box::new(screen), DRAWN_HZ));
    let bar = ProgressBar::with_draw_target(Some(total), target);
    let template = match total {
        0 => "{bytes:>10} {bytes_per_sec:>12}  {wide_msg}",
        _ => "{bytes:>10} / ~{total_bytes} {bar:24} {bytes_per_sec:>12} {eta} left  {wide_msg}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// A bar over a number of things; nothing is drawn if standard error is not a terminal.
pub(crate) fn count(total: u64, what: &'static str, quiet: bool) -> ProgressBar {
    let bar = bar(total, quiet);
    if let Ok(style) = ProgressStyle::with_template("{msg}: ({pos}/{len})") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// Draws progress and prints what is lost.
pub(super) struct Narrator {
    bar: ProgressBar,
    /// attributes that the destination did not take, counted by text
    not_kept: std::collections::BTreeMap<String, u64>,
    pub(super) lost: u64,
}

impl Narrator {
    pub(super) fn new(total: u64, quiet: bool) -> Self {
        Narrator { bar: bar(total, quiet), not_kept: Default::default(), lost: 0 }
    }

    /// Ends the bar and reports what was not kept. Returns whether everything was.
    pub(super) fn finish(self) -> bool {
        self.bar.finish_and_clear();
        for (what, count) in &self.not_kept {
            eprintln!("not kept ({count} file{}): {what}", if *count == 1 { "" } else { "s" });
        }
        self.not_kept.is_empty()
    }
}

impl Report for Narrator {
    fn file(&mut self, path: &[u8]) {
        if !self.bar.is_hidden() {
            self.bar.set_message(shown::name(path));
        }
    }

    fn bytes(&mut self, n: u64) {
        self.bar.inc(n);
    }

    fn lost(&mut self, path: &[u8], what: &str) {
        self.lost += 1;
        let shown = if path.is_empty() { "/".to_owned() } else { shown::name(path) };
        self.bar.suspend(|| eprintln!("lost: {shown}: {what}"));
    }

    fn failed(&mut self, path: &[u8], what: &str) {
        let shown = if path.is_empty() { "/".to_owned() } else { shown::name(path) };
        self.bar.suspend(|| eprintln!("not copied: {shown}: {what}"));
    }

    fn not_kept(&mut self, _path: &[u8], what: &str) {
        *self.not_kept.entry(what.to_owned()).or_default() += 1;
    }
}
