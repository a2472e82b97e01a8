//! A connection of a client: frames are read by one thread, each request is done by one of its own.
//!
//! A request is in flight from its frame to its answer. A frame `Cancel` with its number, and the end of the connection, end what it waits for: an activity, an event, a stream that stalls. What it has
//! begun to change it carries out: a txg has no way back. An answer that the client does not take in time ends the connection.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;

use base::Errno;
use control::{CancelToken, Canceller};
use nvlist::NvList;
use parking_lot::Mutex;
use site::Session;

use crate::bounds::Permit;
use crate::core::Core;
use crate::frame::Kind;
use crate::message::{Answer, BadBody, Bounds, Hello, decode_signal};
use crate::peer::Peer;
use crate::wire::{self, Frame};
use crate::{calls, run};

/// Requests of one connection that may run at once.
const REQUESTS_MAX: usize = 16;
/// Signals that wait for a command line.
const SIGNALS_MAX: usize = 64;

/// The work of a request, to be done in a thread of its own.
pub(crate) type Work = Box<dyn FnOnce(&CancelToken) -> Answer + Send>;

/// A connection.
pub(crate) struct Connection {
    core: Arc<Core>,
    stream: UnixStream,
    /// Locked while a frame is sent.
    sending: Mutex<()>,
    peer: Peer,
    bounds: Bounds,
    session: Session,
    requests: Mutex<HashMap<u64, Request>>,
    /// The next number of a file of the session.
    files: AtomicI32,
}

/// A request that is in flight. Dropping it cancels it.
struct Request {
    canceller: Canceller,
    /// Takes the signals of a command line.
    signals: Option<SyncSender<i32>>,
}

impl Connection {
    pub(crate) fn new(core: Arc<Core>, stream: UnixStream, peer: Peer) -> Connection {
        let bounds = if peer.is_owner(core.owner) { Bounds::OWNER } else { Bounds::OTHERS };
        let session = core.machine.session(peer.caller());
        let requests = Mutex::default();
        Connection {
            core,
            stream,
            sending: Mutex::default(),
            peer,
            bounds,
            session,
            requests,
            files: AtomicI32::new(0),
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }

    pub(crate) fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// A number for a file that no request of this connection uses.
    pub(crate) fn new_file(&self) -> i32 {
        self.files.fetch_add(1, Ordering::Relaxed) & i32::MAX
    }

    /// Serves it until it is closed.
    pub(crate) fn serve(self: &Arc<Connection>) {
        let hello = Hello { version: env!("CARGO_PKG_VERSION").to_owned(), process: std::process::id().into() };
        if hello.encode().is_ok_and(|hello| self.send(Kind::Hello, 0, &hello)) {
            self.take_all();
        }
    }

    /// Takes frames until the connection is closed, or one comes after which nothing can be understood.
    fn take_all(self: &Arc<Connection>) {
        loop {
            // no request of a stranger takes a stream
            let received = match self.core.stranger(self.peer) {
                Some(_) => wire::receive_without_descriptors(&self.stream, self.bounds.body, None),
                None => wire::receive(&self.stream, self.bounds.body, None),
            };
            let taken = match received {
                Ok(frame) => self.take(frame),
                Err(wire::Error::Closed) => break,
                Err(why) => Err(why.to_string()),
            };
            if let Err(why) = taken {
                self.answer(0, Answer::failed(Errno::EINVAL, why));
                break;
            }
        }
    }

    /// Ends what its requests wait for.
    pub(crate) fn cancel(&self) {
        self.requests.lock().values().for_each(|request| request.canceller.cancel());
    }

    /// Closes it. Its requests end by that, and are not answered.
    pub(crate) fn close(&self) {
        // it may be closed already
        let _closed = self.stream.shutdown(Shutdown::Both);
        self.requests.lock().clear();
    }

    fn take(self: &Arc<Connection>, frame: Frame) -> Result<(), String> {
        let id = frame.header.id;
        match Kind::of(frame.header.kind) {
            Some(Kind::Cancel) => {
                if let Some(request) = self.requests.lock().get(&id) {
                    request.canceller.cancel();
                }
            }
            Some(Kind::Signal) => self.signal(id, &frame.body),
            // an answer to it would be one to another request
            _ if id == 0 || self.requests.lock().contains_key(&id) => {
                return Err(format!("{id} is no number for a request, or is in use"));
            }
            Some(Kind::Call) => {
                self.core.calls.add(1);
                self.begin(id, None, |connection| calls::prepare(connection, &frame.body, frame.descriptors));
            }
            Some(Kind::Run) => {
                self.core.commands.add(1);
                let (signals, received) = std::sync::mpsc::sync_channel(SIGNALS_MAX);
                self.begin(id, Some(signals), |connection| {
                    run::prepare(connection, &frame.body, frame.descriptors, received)
                });
            }
            Some(Kind::End) => {
                let is_owner = self.peer.is_owner(self.core.owner);
                let answer = match is_owner {
                    true => Answer::done(NvList::new()),
                    false => Answer::failed(Errno::EPERM, "permission denied"),
                };
                self.answer(id, answer);
                if is_owner {
                    self.core.told.stop();
                }
            }
            Some(Kind::Hello | Kind::Answer) | None => {
                self.answer(id, Answer::failed(Errno::ZFS_ERR_IOC_CMD_UNAVAIL, "a frame of this kind is no request"));
            }
        }
        Ok(())
    }

    /// Hands a signal to a command line. A frame that is no signal for one is passed over: it has no answer.
    fn signal(&self, id: u64, body: &[u8]) {
        let signal = decode_signal(body, &self.bounds).ok().filter(|signal| run::SIGNALS.contains(signal));
        let requests = self.requests.lock();
        if let Some(signals) = requests.get(&id).and_then(|request| request.signals.as_ref()) {
            // it ends just now, or has more to do than it can
            let _sent = signal.map(|signal| signals.try_send(signal));
        }
    }

    /// Begins a request, in a thread of its own, if there may be one more.
    fn begin(
        self: &Arc<Connection>,
        id: u64,
        signals: Option<SyncSender<i32>>,
        prepare: impl FnOnce(&Arc<Connection>) -> Result<Work, BadBody>,
    ) {
        let begun = self.reserve(id, signals).and_then(|(permit, token)| {
            let work = match prepare(self) {
                Ok(work) => work,
                Err(bad) => Box::new(move |_: &CancelToken| Answer::failed(bad.errno(), bad.to_string())),
            };
            let connection = self.clone();
            let thread = thread::Builder::new().name("serve-request".to_owned());
            let spawned = thread.spawn(move || connection.finish(id, permit, || work(&token)));
            spawned.map(drop).map_err(|e| {
                self.requests.lock().remove(&id);
                Answer::failed(Errno::EAGAIN, format!("no thread for the request: {e}"))
            })
        });
        if let Err(refused) = begun {
            self.core.refused.add(1);
            self.answer(id, refused);
        }
    }

    fn reserve(&self, id: u64, signals: Option<SyncSender<i32>>) -> Result<(Permit, CancelToken), Answer> {
        let mut requests = self.requests.lock();
        let permit = self.core.requests.take(self.core.stranger(self.peer)).filter(|_| requests.len() < REQUESTS_MAX);
        let permit = permit.ok_or_else(|| Answer::failed(Errno::EAGAIN, "too many requests at once"))?;
        // whoever ends the server cancels all that are here after he has said so
        if self.core.is_ending() {
            return Err(Answer::failed(Errno::ECANCELED, "the server is ending"));
        }
        let canceller = Canceller::default();
        let token = canceller.token();
        requests.insert(id, Request { canceller, signals });
        Ok((permit, token))
    }

    /// Does the work of a request, and answers it.
    fn finish(&self, id: u64, permit: Permit, work: impl FnOnce() -> Answer) {
        // the engine commits nothing of a change that is broken off, and suspends its pool
        let failed = |_| Answer::failed(Errno::EIO, "the server has failed at this request, which is a bug of it");
        let answer = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(failed);
        // its number may be used again once it is answered
        self.requests.lock().remove(&id);
        self.answer(id, answer);
        drop(permit);
    }

    fn answer(&self, id: u64, answer: Answer) {
        let too_long = || Answer::failed(Errno::E2BIG, "the answer is too long to be sent");
        let fits = |body: &wire::Body| body.len() <= Bounds::SERVER.body as usize;
        match answer.encode().ok().filter(fits).map_or_else(|| too_long().encode(), Ok) {
            Ok(body) => drop(self.send(Kind::Answer, id, &body)),
            Err(_) => self.close(),
        }
    }

    /// Sends a frame. Returns whether the connection is of any use still.
    fn send(&self, kind: Kind, id: u64, body: &[u8]) -> bool {
        let _alone = self.sending.lock();
        let sent = wire::send(&self.stream, kind, id, body, &[]).is_ok();
        if !sent {
            let _closed = self.stream.shutdown(Shutdown::Both);
        }
        sent
    }
}

/// Descriptors of a frame, each of which is taken once.
pub(crate) struct Given(Vec<Option<OwnedFd>>);

impl Given {
    pub(crate) fn new(descriptors: Vec<OwnedFd>) -> Given {
        Given(descriptors.into_iter().map(Some).collect())
    }

    /// The descriptor in this place.
    pub(crate) fn take(&mut self, place: i32) -> Option<OwnedFd> {
        usize::try_from(place).ok().and_then(|place| self.0.get_mut(place)).and_then(Option::take)
    }
}
