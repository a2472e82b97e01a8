//! The metrics: names and help as Prometheus wants them (`zuse_…`, base units, `_total` for what only grows), values from memory and from [`asked`](crate::asked).

mod pools;
mod vdevs;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, GaugeValueEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serve::Watched;

use crate::asked::Asked;
use crate::files;

/// How long a scrape waits for requests to pools.
const WAIT: Duration = Duration::from_secs(2);

/// The labels of a sample.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// The value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sample {
    Number(u64),
    Float(f64),
    /// The upper bounds of buckets in base units with the number in each, and about what all together have.
    Histogram {
        sum: f64,
        buckets: Vec<(f64, u64)>,
    },
}

impl From<u64> for Sample {
    fn from(number: u64) -> Sample {
        Sample::Number(number)
    }
}

/// A metric with its samples.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Metric {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    samples: Vec<(Labels, Sample)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Metric {
    /// What only grows; `_total` is added to its name.
    pub(crate) fn counter(name: &'static str, help: &'static str) -> Metric {
        Metric { name, help, kind: Kind::Counter, samples: Vec::new() }
    }

    /// What grows and shrinks.
    pub(crate) fn gauge(name: &'static str, help: &'static str) -> Metric {
        Metric { name, help, kind: Kind::Gauge, samples: Vec::new() }
    }

    pub(crate) fn histogram(name: &'static str, help: &'static str) -> Metric {
        Metric { name, help, kind: Kind::Histogram, samples: Vec::new() }
    }

    /// Adds a sample.
    pub(crate) fn add(&mut self, labels: &[(&'static str, &str)], sample: impl Into<Sample>) {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.samples.push((labels, sample.into()));
    }

    pub(crate) fn add_float(&mut self, labels: &[(&'static str, &str)], value: f64) {
        self.add(labels, Sample::Float(value));
    }

    /// With one sample without labels.
    fn of(mut self, sample: impl Into<Sample>) -> Metric {
        self.add(&[], sample);
        self
    }
}

impl From<f64> for Sample {
    fn from(value: f64) -> Sample {
        Sample::Float(value)
    }
}

/// Metrics that were read, for the encoder.
#[derive(Debug)]
struct Snapshot(Vec<Metric>);

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for metric in self.0.iter().filter(|metric| !metric.samples.is_empty()) {
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let help = format!("{}.", metric.help);
            let mut family = encoder.encode_descriptor(metric.name, &help, None, kind)?;
            for (labels, sample) in &metric.samples {
                let mut encoder = family.encode_family(labels)?;
                match (metric.kind, sample) {
                    (Kind::Counter, Sample::Number(n)) => encoder.encode_counter::<NoLabelSet, _, u64>(n, None)?,
                    (Kind::Counter, Sample::Float(n)) => encoder.encode_counter::<NoLabelSet, _, u64>(n, None)?,
                    (Kind::Gauge, Sample::Number(n)) => encoder.encode_gauge(&Exact(*n))?,
                    (Kind::Gauge, Sample::Float(n)) => encoder.encode_gauge(n)?,
                    (_, Sample::Histogram { sum, buckets }) => {
                        let count = buckets.iter().map(|(_, n)| n).sum();
                        encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)?;
                    }
                    (Kind::Histogram, _) => {}
                }
            }
        }
        Ok(())
    }
}

/// A gauge with all its digits.
struct Exact(u64);

impl EncodeGaugeValue for Exact {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> Result<(), fmt::Error> {
        match i64::try_from(self.0) {
            Ok(number) => EncodeGaugeValue::encode(&number, encoder),
            Err(_) => EncodeGaugeValue::encode(&(self.0 as f64), encoder),
        }
    }
}

/// Metrics in OpenMetrics' text.
pub(crate) fn encode(metrics: Vec<Metric>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot(metrics)));
    let mut text = String::new();
    // a string takes all
    let _ = text::encode(&mut text, &registry);
    text
}

/// Reads the metrics of a server.
pub(crate) struct Metrics {
    server: Watched,
    asked: Asked,
    /// When the server began, in seconds since 1970.
    begun: f64,
}

impl Metrics {
    pub(crate) fn new(server: Watched) -> Metrics {
        let asked = Asked::new(server.machine().clone());
        Metrics { asked, begun: base::Env::system().now().as_secs_f64(), server }
    }

    /// All of them, in OpenMetrics' text.
    pub(crate) fn text(&self) -> String {
        let pools = self.server.machine().live_pools();
        let facts = self.asked.of(&pools, Instant::now() + WAIT);
        let mut all = self.of_server();
        all.extend(of_process());
        all.extend(pools::of_memory(&pools));
        all.extend(pools::of_facts(&pools, &facts));
        all.extend(vdevs::of_facts(&pools, &facts));
        drop(pools);
        encode(all)
    }

    fn of_server(&self) -> Vec<Metric> {
        let traffic = self.server.traffic();
        let mut info = Metric::gauge("zuse_server_info", "The version of the server, as a label");
        info.add(&[("version", env!("CARGO_PKG_VERSION"))], 1u64);
        let mut requests =
            Metric::counter("zuse_server_requests", "Requests that clients made: calls, and command lines");
        requests.add(&[("kind", "call")], traffic.calls);
        requests.add(&[("kind", "command")], traffic.commands);
        let count = |n: usize| n as u64;
        vec![
            info,
            Metric::gauge("zuse_server_start_time_seconds", "When the server began, in seconds since 1970")
                .of(self.begun),
            Metric::gauge("zuse_server_connections", "Connections of clients").of(count(traffic.connections)),
            Metric::gauge("zuse_server_requests_in_flight", "Requests that are under way").of(count(traffic.requests)),
            requests,
            Metric::counter(
                "zuse_server_requests_refused",
                "Requests that were refused, as there were too many at once",
            )
            .of(traffic.refused),
        ]
    }
}

/// The cache, and transactions, of all pools together.
fn of_process() -> Vec<Metric> {
    let kept = files::arcstats();
    let get = |name: &str| kept.get(name).copied().unwrap_or(0);
    let mut lookups =
        Metric::counter("zuse_arc_lookups", "Look-ups of blocks in the ARC, by what was looked for and by whom");
    for (by, of, hits, misses) in [
        ("demand", "data", "demand_data_hits", "demand_data_misses"),
        ("demand", "metadata", "demand_metadata_hits", "demand_metadata_misses"),
        ("prefetch", "data", "prefetch_data_hits", "prefetch_data_misses"),
        ("prefetch", "metadata", "prefetch_metadata_hits", "prefetch_metadata_misses"),
    ] {
        lookups.add(&[("by", by), ("of", of), ("result", "hit")], get(hits));
        lookups.add(&[("by", by), ("of", of), ("result", "miss")], get(misses));
    }
    let mut cached = Metric::gauge("zuse_arc_cached_bytes", "Blocks in the ARC, by what they are and by list");
    for (list, data, metadata) in [
        ("mru", "mru_data", "mru_metadata"),
        ("mfu", "mfu_data", "mfu_metadata"),
        ("uncached", "uncached_data", "uncached_metadata"),
    ] {
        cached.add(&[("list", list), ("of", "data")], get(data));
        cached.add(&[("list", list), ("of", "metadata")], get(metadata));
    }
    vec![
        Metric::gauge("zuse_arc_size_bytes", "Memory of the ARC, its book-keeping included").of(get("size")),
        Metric::gauge("zuse_arc_size_max_bytes", "Upper limit of the ARC").of(get("c_max")),
        cached,
        lookups,
        Metric::counter("zuse_arc_evictions", "Blocks evicted from the ARC").of(get("deleted")),
    ]
}

/// What an endpoint answers with: the metrics of this server.
#[must_use]
pub fn source(server: Watched) -> Arc<dyn Fn() -> String + Send + Sync> {
    let metrics = Metrics::new(server);
    Arc::new(move || metrics.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_encoded_as_openmetrics() {
        let mut gauge = Metric::gauge("zuse_x_bytes", "Some bytes");
        gauge.add(&[("pool", "a\"b\\c")], 9_007_199_254_740_993u64);
        gauge.add(&[("pool", "d")], u64::MAX);
        let mut histogram = Metric::histogram("zuse_y_seconds", "Some times");
        histogram.add(&[("op", "read")], Sample::Histogram { sum: 1.5, buckets: vec![(0.5, 2), (f64::INFINITY, 1)] });
        let all = vec![
            gauge,
            Metric::counter("zuse_z", "Counted").of(7u64),
            histogram,
            Metric::gauge("zuse_none", "Without samples"),
        ];
        let text = encode(all);
        for line in [
            "# TYPE zuse_x_bytes gauge",
            "zuse_x_bytes{pool=\"a\\\"b\\\\c\"} 9007199254740993",
            "# HELP zuse_z Counted.",
            "# TYPE zuse_z counter",
            "zuse_z_total 7",
            "# TYPE zuse_y_seconds histogram",
            "zuse_y_seconds_sum{op=\"read\"} 1.5",
            "zuse_y_seconds_count{op=\"read\"} 3",
            "zuse_y_seconds_bucket{le=\"0.5\",op=\"read\"} 2",
            "zuse_y_seconds_bucket{le=\"+Inf\",op=\"read\"} 3",
        ] {
            assert!(text.lines().any(|known| known == line), "{line}: {text}");
        }
        assert!(text.ends_with("# EOF\n") && !text.contains("zuse_none"), "{text}");
    }
}
