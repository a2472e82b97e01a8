//! Transmission: requests are read by one thread, and carried out and answered by others.

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use crate::budget::Budget;
use crate::negotiate::{Chosen, Error};
use crate::proto::{PAYLOAD_MAX, cmd, error, skip, take};
use crate::reply::Sender;
use crate::request::{Command, HEADER, Header};
use crate::workers::Workers;
use crate::{Failed, Stopped};

/// Extents of a reply to a question for the block status. Clients ask again for the rest.
const EXTENTS_MAX: usize = 4096;

/// How much of one connection may be in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Threads that carry out requests. Without any, the thread that reads them does.
    pub threads: usize,
    /// Requests that wait or are carried out.
    pub requests: usize,
    /// Bytes of their data.
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { threads: 16, requests: 128, bytes: 2 * PAYLOAD_MAX as usize }
    }
}

/// What is asked about a connection while it is served.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// No more requests are to be read.
    pub is_ending: &'a dyn Fn() -> bool,
    /// Nobody can be answered any more.
    pub is_gone: &'a (dyn Fn() -> bool + Sync),
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// Serves a client that has chosen an export, until it leaves or is to be left between two requests. All requests that were taken are answered then, unless nobody can be answered.
///
/// # Errors
/// As [`Error`] says.
pub fn transmit(
    input: &mut impl Read,
    output: impl Write + Send,
    chosen: &Chosen,
    (bounds, budget): (Bounds, &Arc<Budget>),
    watch: Watch<'_>,
) -> Result<(), Error> {
    let (sender, workers) = (Sender::new(output, chosen.structured), Workers::new(bounds, budget.clone()));
    let Watch { is_ending, is_gone } = watch;
    let is_stopped = || sender.is_broken() || is_gone();
    let run = |job: Job| job.run(chosen, &sender, &is_stopped);
    thread::scope(|scope| {
        let _closing = workers.closing();
        while !is_ending() && !sender.is_broken() {
            let Some(header) = next(input)? else { break };
            if header.kind == cmd::DISC {
                break;
            }
            if header.payload() > PAYLOAD_MAX {
                return Err(Error::Violation("the payload of a write is too long"));
            }
            match header.check(chosen) {
                Ok(command) => {
                    let cost = header.cost();
                    workers.reserve(cost);
                    let payload = take(input, header.payload() as usize)?;
                    workers.submit(scope, (Job { cookie: header.cookie, command, payload }, cost), &run);
                }
                Err((number, why)) => {
                    skip(input, header.payload().into())?;
                    sender.failed(header.cookie, number, why);
                }
            }
        }
        Ok(())
    })
}

/// Reads the header of the next request; `None` if the client has closed the connection before.
fn next(input: &mut impl Read) -> Result<Option<Header>, Error> {
    let mut bytes = [0; HEADER];
    let first = loop {
        match input.read(&mut bytes) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    input.read_exact(bytes.get_mut(first..).unwrap_or_default())?;
    Header::decode(&bytes).map(Some).ok_or(Error::Violation("a request begins with another magic number"))
}

/// A request that was taken.
struct Job {
    cookie: u64,
    command: Command,
    /// What a write writes.
    payload: Vec<u8>,
}

impl Job {
    /// Carries it out, and answers it. It is dropped if nobody can be answered.
    fn run<W: Write>(self, chosen: &Chosen, sender: &Sender<W>, stopped: Stopped<'_>) {
        if stopped() {
            return;
        }
        let cookie = self.cookie;
        // what is broken in one request is no reason for not answering the others
        let done = catch_unwind(AssertUnwindSafe(|| self.perform(chosen, sender, stopped)));
        match done {
            Ok(Ok(())) => {}
            Ok(Err(failed)) => sender.failed(cookie, failed.number(), &failed.why),
            Err(_) => sender.failed(cookie, error::EIO, "the server has failed at this request, which is a bug of it"),
        }
    }

    fn perform<W: Write>(&self, chosen: &Chosen, sender: &Sender<W>, stopped: Stopped<'_>) -> Result<(), Failed> {
        let (cookie, export) = (self.cookie, &*chosen.export);
        match self.command {
            Command::Read { offset, len, whole } => {
                let mut data = vec![0; len as usize];
                export.read(offset, &mut data)?;
                sender.data(cookie, offset, &data, whole);
                return Ok(());
            }
            Command::Status { offset, len, one } => {
                let extents = export.extents(offset, len.into(), if one { 1 } else { EXTENTS_MAX }, stopped)?;
                sender.status(cookie, &extents);
                return Ok(());
            }
            Command::Write { offset, durable } => export.write(offset, &self.payload, durable)?,
            Command::Flush => export.flush()?,
            Command::Trim { offset, len, durable } => export.trim(offset, len.into(), durable, stopped)?,
            Command::Zero { offset, len, how, durable } => export.zero(offset, len.into(), how, durable, stopped)?,
            Command::Cache { offset, len } => export.cache(offset, len.into(), stopped)?,
        }
        sender.done(cookie);
        Ok(())
    }
}
