//! The last debug messages of the process (OpenZFS: `zfs_dbgmsg`, the kstat `zfs/dbgmsg`).
//!
//! Crates emit events of the crate `tracing`, with targets `zuse::…`. A program that installs [`layer`] keeps those of levels up to `debug` in a
//! ring of `zfs_dbgmsg_maxsize` bytes, from which [`messages`] and the kstat read. Without it nothing is formatted.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};

use base::{Env, tunable};
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

static RING: Mutex<Ring> = Mutex::new(Ring { kept: VecDeque::new(), bytes: 0 });

/// A message of the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugMessage {
    /// Seconds since 1970.
    pub time: u64,
    /// Target, message and fields, with the spans that it was emitted in, on one line.
    pub text: String,
}

#[derive(Default)]
struct Ring {
    kept: VecDeque<DebugMessage>,
    /// The length of all texts.
    bytes: u64,
}

impl Ring {
    fn push(&mut self, message: DebugMessage, max: u64) {
        self.bytes += message.text.len() as u64;
        self.kept.push_back(message);
        while self.bytes > max
            && let Some(oldest) = self.kept.pop_front()
        {
            self.bytes -= oldest.text.len() as u64;
        }
    }
}

/// Returns a layer that keeps the process's messages, for the subscriber that the program installs.
pub fn layer<S>() -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let ours = filter_fn(|metadata| metadata.target().starts_with("zuse::")).with_max_level_hint(LevelFilter::DEBUG);
    Keep.with_filter(ours)
}

/// Returns the messages that are kept, oldest first.
#[must_use]
pub fn messages() -> Vec<DebugMessage> {
    RING.lock().kept.iter().cloned().collect()
}

struct Keep;

/// The fields of a span, as they stand in a line.
struct SpanFields(String);

impl<S> Layer<S> for Keep
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut line = Line(span.name().to_owned());
        attributes.record(&mut line);
        span.extensions_mut().insert(SpanFields(line.0));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if tunable::ZFS_DBGMSG_ENABLE.get() == 0 {
            return;
        }
        let mut line = Line(event.metadata().target().to_owned());
        for span in context.event_scope(event).into_iter().flatten().collect::<Vec<_>>().into_iter().rev() {
            if let Some(SpanFields(fields)) = span.extensions().get() {
                line.word(format_args!("{{{fields}}}"));
            }
        }
        event.record(&mut line);
        let time = Env::system().now_s();
        let text = line.0.replace(['\n', '\r'], " ");
        RING.lock().push(DebugMessage { time, text }, tunable::ZFS_DBGMSG_MAXSIZE.get());
    }
}

struct Line(String);

impl Line {
    fn word(&mut self, word: fmt::Arguments<'_>) {
        // a `String` takes everything
        let _written = write!(self.0, " {word}");
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.word(format_args!("{value:?}")),
            name => self.word(format_args!("{name}={value:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn messages_of_ours_are_kept_with_their_spans() {
        let subscriber = tracing_subscriber::registry().with(layer());
        tracing::subscriber::with_default(subscriber, || {
            let _span = tracing::info_span!(target: "zuse::test", "sync", txg = 7).entered();
            tracing::debug!(target: "zuse::test", name = "two\nlines", "hello");
            tracing::trace!(target: "zuse::test", "too much");
            tracing::error!(target: "another::crate", "not ours");
        });
        let ours: Vec<String> =
            messages().into_iter().map(|m| m.text).filter(|text| !text.starts_with("zuse::txg")).collect();
        assert_eq!(ours, ["zuse::test {sync txg=7} hello name=\"two\\nlines\""]);
    }

    #[test]
    fn the_oldest_make_room() {
        let mut ring = Ring::default();
        for n in 0..100 {
            ring.push(DebugMessage { time: n, text: "0123456789".to_owned() }, 55);
        }
        assert_eq!(ring.kept.iter().map(|m| m.time).collect::<Vec<_>>(), [95, 96, 97, 98, 99]);
        assert_eq!(ring.bytes, 50);
    }
}
