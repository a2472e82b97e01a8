//! The table of `zpool iostat`: its headings, and how its figures are written.
//!
//! OpenZFS: `print_iostat_labels`, `print_iostat_dashes`, `print_one_stat`, `single_histo_average`.

use std::ops::Range;

use pool::prop::nicenum;
use vdev::{Direction, IoFigures, LATENCY_BUCKETS, QueueDepths, SIZE_BUCKETS};

use super::vdevs::Vdev;

/// A group of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Capacity, operations, bandwidth.
    Default,
    /// Average times.
    Latency,
    /// I/Os that wait and that are active.
    Queues,
    /// How many operations took how long.
    Histogram,
    /// How many operations had which size.
    Sizes,
}

/// The smallest size that is told apart: no operation is smaller.
const SIZE_FIRST: usize = 9;

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
            Kind::Queues => &[
                ("syncq_read", 2),
                ("syncq_write", 2),
                ("asyncq_read", 2),
                ("asyncq_write", 2),
                ("scrubq_read", 2),
                ("trimq_write", 2),
                ("rebuildq_write", 2),
            ],
            Kind::Sizes => &[
                ("sync_read", 2),
                ("sync_write", 2),
                ("async_read", 2),
                ("async_write", 2),
                ("scrub", 2),
                ("trim", 2),
                ("rebuild", 2),
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
            Kind::Queues => &[
                "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ",
                "pend", "activ",
            ],
            Kind::Histogram => {
                &["read", "write", "read", "write", "read", "write", "read", "write", "scrub", "trim", "rebuild"]
            }
            Kind::Sizes => {
                &["ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg"]
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
            (true, Kind::Queues | Kind::Sizes) => 6,
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
    pub(super) fn default_cells(&self, space: Option<(u64, u64)>, io: &IoFigures, scale: f64) -> String {
        let width = self.width(Kind::Default);
        let mut text = match space.filter(|(size, _)| *size > 0) {
            Some((size, allocated)) => {
                [allocated, size.saturating_sub(allocated)].map(|n| self.number(width, n)).concat()
            }
            None => self.cell(width, if self.parsable { "0" } else { "-" }).repeat(2),
        };
        let [read, write] = [Direction::Read, Direction::Write];
        for n in [io.operations(read), io.operations(write), io.bytes(read), io.bytes(write)] {
            text.push_str(&self.number(width, (n as f64 * scale) as u64));
        }
        text
    }

    /// Average times.
    pub(super) fn latency_cells(&self, io: &IoFigures) -> String {
        let text = |time: u64| match time {
            0 => "-".to_owned(),
            time if self.parsable => time.to_string(),
            time => nicetime(time),
        };
        let cells = latency_columns(io).map(|column| self.cell(self.width(Kind::Latency), &text(average(column))));
        cells.collect()
    }

    /// I/Os that wait and that are active.
    pub(super) fn queue_cells(&self, queue: &QueueDepths) -> String {
        queue.0.as_flattened().iter().map(|n| self.number(self.width(Kind::Queues), *n)).collect()
    }

    /// A table of how many operations each bucket has.
    pub(super) fn histogram(&self, name: &str, histogram: &Histogram<'_>, scale: f64) -> String {
        let Histogram { kind, title, columns, .. } = histogram;
        let most = columns.iter().flat_map(|column| column.iter()).max().copied().unwrap_or(0);
        let width = if self.parsable { most.to_string().len().max(5) } else { 5 };
        let room = self.name_width.max(title.len());
        let mut text = match self.scripted {
            true => format!("\n{name}\n"),
            false => format!("\n{}", self.header_of(name, title, &[*kind], |_| width, ("", ""))),
        };
        for bucket in histogram.buckets.clone() {
            let label = (histogram.label)(bucket);
            match self.scripted {
                true => text.push_str(&label.to_string()),
                false => text.push_str(&format!("{:<room$}", (histogram.nice)(label))),
            }
            for column in columns {
                let count = column.get(bucket).copied().unwrap_or(0);
                text.push_str(&self.number(width, (count as f64 * scale) as u64));
            }
            text.push('\n');
        }
        if !self.scripted {
            text.push_str(&"-".repeat(room + (width + 2) * kind.bottom().len()));
            text.push('\n');
        }
        text
    }
}

/// Histograms that stand side by side.
pub(super) struct Histogram<'a> {
    kind: Kind,
    title: &'static str,
    columns: Vec<&'a [u64]>,
    buckets: Range<usize>,
    /// Returns the label of a bucket.
    label: fn(usize) -> u64,
    /// How that is written for people.
    nice: fn(u64) -> String,
}

impl<'a> Histogram<'a> {
    /// How many operations took how long: each bucket by its end.
    pub(super) fn latencies(io: &'a IoFigures) -> Histogram<'a> {
        Histogram {
            kind: Kind::Histogram,
            title: "latency",
            columns: latency_columns(io).collect(),
            buckets: 0..LATENCY_BUCKETS,
            label: |bucket| (1 << (bucket + 1)) - 1,
            nice: nicetime,
        }
    }

    /// How many operations had which size: each bucket by its beginning.
    pub(super) fn sizes(io: &'a IoFigures) -> Histogram<'a> {
        Histogram {
            kind: Kind::Sizes,
            title: "req_size",
            columns: io.sizes().flat_map(|(individual, aggregated)| [individual, aggregated]).collect(),
            buckets: SIZE_FIRST..SIZE_BUCKETS,
            label: |bucket| 1 << bucket,
            nice: nicenum,
        }
    }
}

/// The histograms of times, in the order of their columns.
fn latency_columns(io: &IoFigures) -> impl Iterator<Item = &[u64]> {
    let [read, write] = [Direction::Read, Direction::Write];
    let of_device = [io.total_wait(read), io.total_wait(write), io.disk_wait(read), io.disk_wait(write)];
    of_device.into_iter().chain(io.queue_wait())
}

/// The average of what a histogram has: each bucket counts by its middle.
fn average(histogram: &[u64]) -> u64 {
    let (mut count, mut total) = (0u128, 0u128);
    for (bucket, n) in histogram.iter().enumerate() {
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

    /// Twenty reads of 3 MiB in all; of two of them it is known that they took 1 us, half of it in the queue.
    fn figures() -> IoFigures {
        let (total, disk, wait, sizes) =
            (6, 6 + 2 * LATENCY_BUCKETS, 6 + 4 * LATENCY_BUCKETS, 6 + 11 * LATENCY_BUCKETS);
        let words = [(0, 20), (1, 3 << 20), (total + 10, 2), (disk + 9, 2), (wait + 9, 2), (sizes + 12, 5)];
        let sparse: Vec<u64> = words.iter().flat_map(|(at, n)| [*at as u64, *n]).collect();
        IoFigures::from_sparse(&sparse).unwrap_or_default()
    }

    #[test]
    fn figures_are_per_second_and_times_are_averages() {
        let io = figures();
        let cells = LAYOUT.default_cells(Some((100, 30)), &io, 0.5);
        assert_eq!(cells, "     30     70     10      0  1.50M      0");
        assert_eq!(LAYOUT.default_cells(None, &io, 1.0), "      -      -     20      0     3M      0");
        assert_eq!(
            LAYOUT.latency_cells(&io),
            "    1us      -  768ns      -  768ns      -      -      -      -      -      -"
        );
        let exact = Layout { scripted: true, parsable: true, ..LAYOUT };
        assert_eq!(exact.latency_cells(&io), "\t1536\t-\t768\t-\t768\t-\t-\t-\t-\t-\t-");
        assert_eq!(exact.default_cells(None, &io, 1.0), "\t0\t0\t20\t0\t3145728\t0");
        let lines = LAYOUT.histogram("tank", &Histogram::latencies(&io), 1.0);
        assert!(lines.contains("\n2us             2      0      0      0      0"), "{lines}");
        assert_eq!(lines.lines().count(), 1 + 3 + LATENCY_BUCKETS + 1);
    }

    #[test]
    fn sizes_and_queues_are_written_as_openzfs_writes_them() {
        let lines = LAYOUT.histogram("tank", &Histogram::sizes(&figures()), 1.0);
        let wanted = concat!(
            "\n",
            "tank          sync_read    sync_write    async_read    async_write      scrub         trim         rebuild  \n",
            "req_size      ind    agg    ind    agg    ind    agg    ind    agg    ind    agg    ind    agg    ind    agg\n",
        );
        assert!(lines.starts_with(wanted), "{lines}");
        assert!(lines.contains("\n4K              5      0      0"), "{lines}");
        assert_eq!(lines.lines().count(), 1 + 3 + (SIZE_BUCKETS - SIZE_FIRST) + 1);
        let queue = QueueDepths([[1, 2], [0; 2], [0; 2], [3, 2000], [0; 2], [0; 2], [0; 2]]);
        let cells = LAYOUT.queue_cells(&queue);
        assert!(cells.starts_with("      1      2      0      0      0      0      3  1.95K      0"), "{cells}");
        let header = LAYOUT.header("pool", &[Kind::Queues], ("", ""));
        assert!(header.contains("syncq_read    syncq_write   asyncq_read  asyncq_write   scrubq_read"), "{header}");
        assert_eq!(header.lines().nth(1).map(|line| line.split_whitespace().count()), Some(15));
    }

    #[test]
    fn times_have_whole_units() {
        assert_eq!([1, 999, 1_500, 2_999_999, 137_000_000_000].map(nicetime), ["1ns", "999ns", "1us", "2ms", "137s"]);
    }
}
