//! Requests in the messages for debugging.

use nvlist::NvList;
use tracing::field::Empty;

use crate::{Failed, Ioc};

/// Does a request within a span of the target `zuse::call`, which knows its name, the pool, the caller's uid, and at the end the errno; 0 if it succeeded.
///
/// # Errors
/// As `work`.
pub fn traced(
    ioc: Ioc,
    pool: &str,
    uid: Option<u32>,
    work: impl FnOnce() -> Result<NvList, Failed>,
) -> Result<NvList, Failed> {
    let span = tracing::trace_span!(target: "zuse::call", "call", request = ioc.name(), pool, uid, errno = Empty);
    if span.is_disabled() {
        return work();
    }
    let _within = span.enter();
    let out = work();
    span.record("errno", out.as_ref().err().map_or(0, |failed| failed.errno.raw()));
    tracing::trace!(target: "zuse::call", "done");
    out
}
