//! Requests in the messages for debugging.
#![allow(clippy::unwrap_used)]

mod support;

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use control::Ioc;
use nvlist::NvList;
use support::pool;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The fields of all spans, in the order in which they became known.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<String>>);

impl Visit for Spans {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0.lock().unwrap(), "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "zuse::call" && metadata.is_span()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut self.clone());
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, values: &Record<'_>) {
        values.record(&mut self.clone());
    }

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn event(&self, _event: &Event<'_>) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

#[test]
fn a_span_tells_the_request_its_pool_its_caller_and_its_errno() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let spans = Spans::default();
    tracing::subscriber::with_default(spans.clone(), || {
        control.call(Ioc::GetHolds, "t@none", &NvList::new()).unwrap_err();
        control.call(Ioc::PoolGetProps, "t", &NvList::new()).unwrap();
    });
    assert_eq!(
        *spans.0.lock().unwrap(),
        "request=\"get_holds\" pool=\"t\" uid=0 errno=2 request=\"get_props\" pool=\"t\" uid=0 errno=0 "
    );
}
