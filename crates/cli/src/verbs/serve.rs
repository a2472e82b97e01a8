//! `zuse serve`.

use std::sync::Arc;
use std::time::Duration;

use serve::{Options, Server, Stop};

use super::flags::DELEGATION;
use super::signals::at_signal;
use crate::args::Parsed;
use crate::console::here;
use crate::error::{Failure, Outcome, cause, failed, usage};

pub(super) fn run(parsed: &Parsed) -> Outcome {
    if let Some(name) = parsed.names().first() {
        return Err(usage(format!("'{name}': no operand is expected")));
    }
    let idle = parsed.text('i').map(|text| seconds(&text)).transpose()?;
    let options = Options { delegation: parsed.has(DELEGATION), idle, ..Options::default() };
    // a signal that comes from now on ends it in order
    let stop = Arc::new(Stop::new().map_err(|e| failed(cause(&e)))?);
    let told = stop.clone();
    at_signal(move || told.stop()).map_err(|e| failed(cause(&e)))?;
    let server = Server::new(here().clone(), options).map_err(|e| failed(cause(&e)))?;
    server.run(&stop).map_err(|e| failed(format!("a pool could not be closed: {e}")))?;
    Ok(0)
}

fn seconds(text: &str) -> Result<Duration, Failure> {
    let number = text.parse().ok().filter(|seconds| *seconds > 0);
    number.map(Duration::from_secs).ok_or_else(|| usage(format!("--idle {text}: a number of seconds is expected")))
}
