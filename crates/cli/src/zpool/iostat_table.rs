//! The table of `zpool iostat`: its headings, and how its figures are written.
//!
//! OpenZFS: `print_iostat_labels`, `print_iostat_dashes`, `print_one_stat`, `single_histo_average`.

use pool::prop::nicenum;
use vdev::{IoFigures, LATENCY_BUCKETS};

use super::vdevs::Vdev;
use crate::iostats::Io;

/// A group of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Capacity, operations, bandwidth.
    Default,
    /// Average times.
    Latency,
    /// How many operations took how long.
    Histogram,
}

/// A heading, and how many columns it stands over.
type Label = (&'static str, usize);

impl Kind {
    const fn top(self) -> &'static [Label] {
        match self {
            Kind::Default => &[("capacity", 2), ("operations", 2), ("bandwidth", 2)],
            Kind::Latency => &[
                ("total_wait", 2),
                ("disk_wait", 2),
                ("syncq_wait", 2),
                ("asyncq_wait", 2),
                ("scrub", 1),
                ("trim", 1),
                ("rebuild", 1),
            ],
            Kind::Histogram => &[("total_wait", 2), ("disk_wait", 2), ("syncq_wait", 2), ("asyncq_wait", 2)],
        }
    }

    const fn bottom(self) -> &'static [&'static str] {
        match self {
            Kind::Default => &["alloc", "free", "read", "write", "read", "write"],
            Kind::Latency => {
                &["read", "write", "read", "write", "read", "write", "read", "write", "wait", "wait", "wait"]
            }
            Kind::Histogram => {
                &["read", "write", "read", "write", "read", "write", "read", "write", "scrub", "trim", "rebuild"]
            }
        }
    }
}

/// How figures are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// `-H`: tabs, no headings.
    pub(super) scripted: bool,
    /// `-p`: exact numbers.
    pub(super) parsable: bool,
    /// Room for names.
    pub(super) name_width: usize,
}

impl Layout {
    /// Room for a figure.
    pub(super) const fn width(&self, kind: Kind) -> usize {
        match (self.parsable, kind) {
            (false, _) => 5,
            (true, Kind::Default) => 15,
            (true, _) => 10,
        }
    }

    /// The three lines above the figures, with what `-c` adds to the second and third.
    pub(super) fn header(&self, title: &str, kinds: &[Kind], more: (&str, &str)) -> String {
        self.header_of("", title, kinds, |kind| self.width(kind), more)
    }

    fn header_of(
        &self,
        name: &str,
        title: &str,
        kinds: &[Kind],
        width: impl Fn(Kind) -> usize,
        (titles, dashes): (&str, &str),
    ) -> String {
        let room = self.name_width.max(title.len()).max(name.len());
        let mut lines = [format!("{name:<room$}"), format!("{title:<room$}"), "-".repeat(room)];
        for kind in kinds {
            let width = width(*kind);
            let [top, bottom, below] = &mut lines;
            for (label, columns) in kind.top() {
                let whole = width * columns + 2 * (columns - 1);
                let before = (whole / columns).saturating_sub(label.len() / columns);
                let text = format!("{:before$}{label}", "");
                top.push_str(&format!("  {text:<whole$}"));
            }
            for label in kind.bottom() {
                bottom.push_str(&format!("  {label:>width$}"));
                below.push_str(&format!("  {:-<width$}", ""));
            }
        }
        let [top, bottom, below] = lines;
        format!("{top}\n{bottom}{titles}\n{below}{dashes}\n")
    }

    /// A line of dashes.
    pub(super) fn separator(&self, title: &str, kinds: &[Kind], more: &str) -> String {
        let room = self.name_width.max(title.len());
        let columns = kinds.iter().flat_map(|kind| kind.bottom().iter().map(|_| self.width(*kind)));
        let columns: String = columns.map(|width| format!("  {:-<width$}", "")).collect();
        format!("{}{columns}{more}\n", "-".repeat(room))
    }

    /// The heading of a section: a dash in each column.
    pub(super) fn section(&self, name: &str, title: &str, kinds: &[Kind]) -> String {
        let room = self.name_width.max(title.len()).max(name.len());
        let columns = kinds.iter().flat_map(|kind| kind.bottom().iter().map(|_| self.width(*kind)));
        let columns: String = columns.map(|width| format!("  {:>width$}", "-")).collect();
        format!("{name:<room$}{columns}\n")
    }

    fn cell(&self, width: usize, text: &str) -> String {
        if self.scripted { format!("\t{text}") } else { format!("  {text:>width$}") }
    }

    fn number(&self, width: usize, n: u64) -> String {
        self.cell(width, &if self.parsable { n.to_string() } else { nicenum(n) })
    }

    /// The name of a vdev at the front of its line.
    pub(super) fn name(&self, name: &str, depth: usize) -> String {
        match self.scripted {
            true => name.to_owned(),
            false => format!("{:depth$}{name:<room$}", "", room = self.name_width.saturating_sub(depth)),
        }
    }

    /// Capacity, and operations and bytes a second.
    pub(super) fn default_cells(&self, space: Option<(u64, u64)>, io: &Io, scale: f64) -> String {
        let width = self.width(Kind::Default);
        let mut text = match space.filter(|(size, _)| *size > 0) {
            Some((size, allocated)) => {
                [allocated, size.saturating_sub(allocated)].map(|n| self.number(width, n)).concat()
            }
            None => self.cell(width, if self.parsable { "0" } else { "-" }).repeat(2),
        };
        for n in [io.read.operations, io.write.operations, io.read.bytes, io.write.bytes] {
            text.push_str(&self.number(width, (n as f64 * scale) as u64));
        }
        text
    }

    /// Average times. Nothing waits in a queue before it goes to a device: all of the wait is the disk's.
    pub(super) fn latency_cells(&self, io: &Io) -> String {
        let (read, write) = (average(&io.read), average(&io.write));
        let cells = [read, write, read, write, 0, 0, 0, 0, 0, 0, 0];
        let text = |time: u64| match time {
            0 => "-".to_owned(),
            time if self.parsable => time.to_string(),
            time => nicetime(time),
        };
        cells.map(|time| self.cell(self.width(Kind::Latency), &text(time))).concat()
    }

    /// How many operations took how long.
    pub(super) fn histogram(&self, name: &str, io: &Io, scale: f64) -> String {
        const TITLE: &str = "latency";
        let most = io.read.latency.iter().chain(&io.write.latency).max().copied().unwrap_or(0);
        let width = if self.parsable { most.to_string().len().max(5) } else { 5 };
        let room = self.name_width.max(TITLE.len());
        let mut text = match self.scripted {
            true => format!("\n{name}\n"),
            false => format!("\n{}", self.header_of(name, TITLE, &[Kind::Histogram], |_| width, ("", ""))),
        };
        for bucket in 0..LATENCY_BUCKETS {
            let ends = (1u64 << (bucket + 1)) - 1;
            match self.scripted {
                true => text.push_str(&ends.to_string()),
                false => text.push_str(&format!("{:<room$}", nicetime(ends))),
            }
            let count = |io: &IoFigures| (io.latency.get(bucket).copied().unwrap_or(0) as f64 * scale) as u64;
            let (read, write) = (count(&io.read), count(&io.write));
            for n in [read, write, read, write, 0, 0, 0, 0, 0, 0, 0] {
                text.push_str(&self.number(width, n));
            }
            text.push('\n');
        }
        if !self.scripted {
            text.push_str(&"-".repeat(room + (width + 2) * Kind::Histogram.bottom().len()));
            text.push('\n');
        }
        text
    }
}

/// The average of what a histogram has: each bucket counts by its middle.
fn average(io: &IoFigures) -> u64 {
    let (mut count, mut total) = (0u128, 0u128);
    for (bucket, n) in io.latency.iter().enumerate() {
        let middle = (1u128 << bucket) + (1u128 << bucket) / 2;
        count += u128::from(*n);
        total += u128::from(*n) * middle;
    }
    total.checked_div(count).and_then(|average| u64::try_from(average).ok()).unwrap_or(0)
}

/// A time in whole units (OpenZFS: `zfs_nicetime`).
fn nicetime(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{}us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{}ms", ns / 1_000_000),
        _ => format!("{}s", ns / 1_000_000_000),
    }
}

/// The size of a vdev and what is allocated of it, where it has a capacity of its own.
pub(super) fn space(vdev: &Vdev) -> Option<(u64, u64)> {
    vdev.space.map(|space| (space.size, space.allocated))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { scripted: false, parsable: false, name_width: 10 };

    #[test]
    fn the_headings_are_those_of_openzfs() {
        let wanted = concat!(
            "              capacity     operations     bandwidth \n",
            "pool        alloc   free   read  write   read  write\n",
            "----------  -----  -----  -----  -----  -----  -----\n",
        );
        assert_eq!(LAYOUT.header("pool", &[Kind::Default], ("", "")), wanted);
        let wanted = "logs            -      -      -      -      -      -\n";
        assert_eq!(LAYOUT.section("logs", "pool", &[Kind::Default]), wanted);
        let latency = LAYOUT.header("pool", &[Kind::Latency], ("", ""));
        assert!(
            latency.starts_with(
                "             total_wait     disk_wait    syncq_wait    asyncq_wait  scrub   trim  rebuild\n"
            ),
            "{latency}"
        );
    }

    #[test]
    fn figures_are_per_second_and_times_are_averages() {
        let latency = vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
        let read = IoFigures { operations: 20, bytes: 3 << 20, slow: 0, latency };
        let io = Io { read, write: IoFigures::default() };
        let cells = LAYOUT.default_cells(Some((100, 30)), &io, 0.5);
        assert_eq!(cells, "     30     70     10      0  1.50M      0");
        assert_eq!(LAYOUT.default_cells(None, &io, 1.0), "      -      -     20      0     3M      0");
        assert_eq!(
            LAYOUT.latency_cells(&io),
            "    1us      -    1us      -      -      -      -      -      -      -      -"
        );
        let exact = Layout { scripted: true, parsable: true, ..LAYOUT };
        assert_eq!(exact.latency_cells(&io), "\t1536\t-\t1536\t-\t-\t-\t-\t-\t-\t-\t-");
        assert_eq!(exact.default_cells(None, &io, 1.0), "\t0\t0\t20\t0\t3145728\t0");
        let lines = LAYOUT.histogram("tank", &io, 1.0);
        assert!(lines.contains("\n2us             2      0      2      0      0"), "{lines}");
        assert_eq!(lines.lines().count(), 1 + 3 + LATENCY_BUCKETS + 1);
    }

    #[test]
    fn times_have_whole_units() {
        assert_eq!([1, 999, 1_500, 2_999_999, 137_000_000_000].map(nicetime), ["1ns", "999ns", "1us", "2ms", "137s"]);
    }
}
