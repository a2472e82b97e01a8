//! The client side: requests to the server of a state folder.
//!
//! A thread reads the answers and hands each to whoever waits for it, so that several threads can make requests over one connection. When the server ends, all of them are told so: it is
//! not known whether a request was carried out whose answer has not come.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use control::{Failed, Ioc};
use nvlist::NvList;
use parking_lot::Mutex;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::frame::{BadHeader, DESCRIPTORS_MAX, Kind, VERSION};
use crate::message::{self, Answer, Bounds, Call, Hello, Run};
use crate::wire;

/// The time that a server has to say hello.
const HELLO_TIME: Duration = Duration::from_secs(10);

/// The interval at which it is looked whether a server has ended.
const LOOK: Duration = Duration::from_millis(10);

/// Why there is no answer, or no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request failed, or was refused.
    #[error(transparent)]
    Failed(#[from] Failed),
    /// The server has ended, or closed the connection.
    #[error("the server ended before it answered; whether the request was carried out is not known: {0}")]
    Gone(String),
    /// What is to be sent cannot be.
    #[error("the request cannot be sent: {0}")]
    Unsendable(String),
    /// The system's error.
    #[error("no connection to the server: {0}")]
    Connect(io::Error),
    /// It speaks another protocol.
    #[error("the server is not understood: {0}")]
    Protocol(String),
    /// It speaks another version of this protocol.
    #[error(
        "the server of this state folder (process {process}) speaks version {theirs} of its protocol, and zuse {} speaks version {VERSION}; \
         end it with the 'zuse serve --stop' of its own version, or by SIGTERM",
        env!("CARGO_PKG_VERSION")
    )]
    OtherVersion {
        /// Its process.
        process: i32,
        /// The version of its protocol.
        theirs: u8,
        /// Whether it is this user's own.
        of_this_user: bool,
    },
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    open: Arc<Open>,
    hello: Hello,
}

/// The half of a connection that requests use.
#[derive(Debug)]
struct Link {
    stream: UnixStream,
    /// Locked while a frame is sent.
    sending: Mutex<()>,
    next: AtomicU64,
    waiting: Mutex<Waiting>,
}

/// Who waits for answers.
#[derive(Debug)]
enum Waiting {
    /// By the number of the request.
    For(HashMap<u64, Sender<Answer>>),
    /// No answer comes any more, and why.
    Over(String),
}

impl Client {
    /// Connects to the server of the state folder; `None` if there is none.
    ///
    /// # Errors
    /// When it is not trusted, refuses, or is not understood.
    pub fn connect() -> Result<Option<Client>, Error> {
        match site::seat::connect().map_err(Error::Connect)? {
            Some(stream) => Client::over(stream),
            None => Ok(None),
        }
    }

    /// As [`Client::connect`], over a connection. A server that ends just now is none.
    fn over(stream: UnixStream) -> Result<Option<Client>, Error> {
        let frame = match wire::receive(&stream, Bounds::SERVER.body, Some(HELLO_TIME)) {
            Ok(frame) => frame,
            Err(wire::Error::Closed) => return Ok(None),
            Err(wire::Error::Io(e)) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(wire::Error::Io(e)) => return Err(Error::Connect(e)),
            Err(wire::Error::Header(BadHeader::Version(theirs))) => {
                let process = socket_peercred(&stream).map_or(0, |server| server.pid.as_raw_nonzero().get());
                return Err(Error::OtherVersion { process, theirs, of_this_user: is_of_this_user(&stream) });
            }
            Err(other) => return Err(Error::Protocol(other.to_string())),
        };
        let unclear = |what: &dyn std::fmt::Display| Error::Protocol(what.to_string());
        let hello = match Kind::of(frame.header.kind) {
            Some(Kind::Hello) => Hello::decode(&frame.body, &Bounds::SERVER).map_err(|e| unclear(&e))?,
            Some(Kind::Answer) => {
                let answer = Answer::decode(&frame.body, &Bounds::SERVER).map_err(|e| unclear(&e))?;
                return Err(failed(answer).into());
            }
            _ => return Err(unclear(&"it does not say hello")),
        };
        let waiting = Mutex::new(Waiting::For(HashMap::new()));
        let link = Arc::new(Link { stream, sending: Mutex::default(), next: AtomicU64::new(1), waiting });
        let reader = link.clone();
        let spawned = thread::Builder::new().name("serve-answers".to_owned()).spawn(move || reader.read());
        spawned.map_err(Error::Connect)?;
        Ok(Some(Client { open: Arc::new(Open(link)), hello }))
    }

    /// The process of the server.
    #[must_use]
    pub fn server_process(&self) -> u64 {
        self.hello.process
    }

    /// Whether the server is this user's own.
    #[must_use]
    pub fn is_of_this_user(&self) -> bool {
        is_of_this_user(&self.open.0.stream)
    }

    /// The version of the server.
    #[must_use]
    pub fn server_version(&self) -> &str {
        &self.hello.version
    }

    /// The version of the server, if it is not that of this program.
    #[must_use]
    pub fn other_version(&self) -> Option<&str> {
        Some(self.server_version()).filter(|version| *version != env!("CARGO_PKG_VERSION"))
    }

    /// Makes a request of `control`, and waits for its answer. `fd` and `input_fd` in `input` are places in `files`.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn call(&self, ioc: Ioc, name: &str, input: &NvList, files: &[BorrowedFd<'_>]) -> Result<NvList, Error> {
        self.begin_call(ioc, name, input, files)?.wait()
    }

    /// Begins a request of `control`, as [`Client::call`].
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn begin_call(&self, ioc: Ioc, name: &str, input: &NvList, files: &[BorrowedFd<'_>]) -> Result<Request, Error> {
        let body = Call::encode(ioc, name, input).map_err(|e| Error::Unsendable(e.to_string()))?;
        self.begin(Kind::Call, &body, files)
    }

    /// Begins a command line, with these as standard input, output and error, in this directory, with this umask. Its answer has `status`.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn begin_run(
        &self,
        args: Vec<OsString>,
        stdio: [BorrowedFd<'_>; 3],
        directory: impl AsFd,
        umask: u32,
    ) -> Result<Request, Error> {
        let environment = std::env::vars_os().filter(|(name, _)| crate::run::is_taken(name)).collect();
        let body = Run { args, environment, umask }.encode().map_err(|e| Error::Unsendable(e.to_string()))?;
        let [input, output, error] = stdio;
        self.begin(Kind::Run, &body, &[input, output, error, directory.as_fd()])
    }

    /// Has the server end, and waits until it has: no pool is open there any more.
    ///
    /// # Errors
    /// When it refuses.
    pub fn end_server(&self) -> Result<(), Error> {
        self.begin(Kind::End, &[], &[])?.wait()?;
        while site::seat::is_taken() {
            thread::sleep(LOOK);
        }
        Ok(())
    }

    fn begin(&self, kind: Kind, body: &[u8], files: &[BorrowedFd<'_>]) -> Result<Request, Error> {
        let max = Bounds::OWNER.body as usize;
        if body.len() > max {
            return Err(Error::Unsendable(format!("it has {} bytes, more than {max}", body.len())));
        }
        if files.len() > DESCRIPTORS_MAX {
            return Err(Error::Unsendable(format!("it has {} files, more than {DESCRIPTORS_MAX}", files.len())));
        }
        let link = &self.open.0;
        let id = link.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = channel();
        match &mut *link.waiting.lock() {
            Waiting::For(all) => drop(all.insert(id, sender)),
            Waiting::Over(why) => return Err(Error::Gone(why.clone())),
        }
        let request = Request { to: Signals { open: self.open.clone(), id }, answer };
        match link.send(kind, id, body, files) {
            Ok(()) => Ok(request),
            // the answer may say why
            Err(_) => match request.answer.recv_timeout(Duration::from_secs(1)) {
                Ok(answer) => Err(failed(answer).into()),
                Err(_) => Err(Error::Gone(link.why())),
            },
        }
    }
}

/// What keeps a connection open: the client, and requests that it has begun.
#[derive(Debug)]
struct Open(Arc<Link>);

impl Drop for Open {
    fn drop(&mut self) {
        let _closed = self.0.stream.shutdown(Shutdown::Both);
    }
}

impl Link {
    fn send(&self, kind: Kind, id: u64, body: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let _alone = self.sending.lock();
        let sent = wire::send(&self.stream, kind, id, body, files);
        if sent.is_err() {
            let _closed = self.stream.shutdown(Shutdown::Write);
        }
        sent
    }

    /// Hands out answers until there are no more.
    fn read(&self) {
        let why = loop {
            let frame = match wire::receive(&self.stream, Bounds::SERVER.body, None) {
                Ok(frame) => frame,
                Err(why) => break why.to_string(),
            };
            let answer = match (Kind::of(frame.header.kind), Answer::decode(&frame.body, &Bounds::SERVER)) {
                (Some(Kind::Answer), Ok(answer)) => answer,
                (_, Err(bad)) => break bad.to_string(),
                _ => break "a frame that is no answer".to_owned(),
            };
            // what is about no request tells why there are no more
            if frame.header.id == 0 {
                break answer.error;
            }
            let waiting = match &mut *self.waiting.lock() {
                Waiting::For(all) => all.remove(&frame.header.id),
                Waiting::Over(_) => None,
            };
            // one that was given up
            let _taken = waiting.map(|waiting| waiting.send(answer));
        };
        let _closed = self.stream.shutdown(Shutdown::Both);
        *self.waiting.lock() = Waiting::Over(why);
    }

    fn why(&self) -> String {
        match &*self.waiting.lock() {
            Waiting::Over(why) => why.clone(),
            Waiting::For(_) => "the connection is broken".to_owned(),
        }
    }
}

/// A request that was begun. Dropping it cancels it.
#[derive(Debug)]
pub struct Request {
    to: Signals,
    answer: Receiver<Answer>,
}

/// Passes signals on to a command line, from any thread.
#[derive(Clone, Debug)]
pub struct Signals {
    open: Arc<Open>,
    id: u64,
}

impl Signals {
    /// Passes one on.
    pub fn pass(&self, signal: i32) {
        if let Ok(body) = message::encode_signal(signal) {
            // without a connection it has ended
            let _sent = self.open.0.send(Kind::Signal, self.id, &body, &[]);
        }
    }
}

impl Request {
    /// Waits for the answer.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn wait(&self) -> Result<NvList, Error> {
        self.answer.recv().map_or_else(|_| Err(self.gone()), of_answer)
    }

    /// As [`Request::wait`], no longer than that; `None` if there is no answer yet.
    pub fn wait_for(&self, time: Duration) -> Option<Result<NvList, Error>> {
        match self.answer.recv_timeout(time) {
            Ok(answer) => Some(of_answer(answer)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(self.gone())),
        }
    }

    fn gone(&self) -> Error {
        Error::Gone(self.to.open.0.why())
    }

    /// Has it end, if it waits for something. Its answer comes nevertheless.
    pub fn cancel(&self) {
        // without a connection it has ended
        let _sent = self.to.open.0.send(Kind::Cancel, self.to.id, &[], &[]);
    }

    /// What passes signals on to it, if it is a command line.
    #[must_use]
    pub fn signals(&self) -> Signals {
        self.to.clone()
    }
}

/// Whether the process at the other end is this user's own.
fn is_of_this_user(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|server| server.uid == geteuid())
}

fn of_answer(answer: Answer) -> Result<NvList, Error> {
    if answer.errno == Answer::DONE { Ok(answer.out) } else { Err(failed(answer).into()) }
}

impl Drop for Request {
    fn drop(&mut self) {
        let is_answered = match &mut *self.to.open.0.waiting.lock() {
            Waiting::For(all) => all.remove(&self.to.id).is_none(),
            Waiting::Over(_) => true,
        };
        if !is_answered {
            self.cancel();
        }
    }
}

/// A request that the server did not do.
fn failed(answer: Answer) -> Failed {
    let error = Box::new(control::Error::Opening(answer.errno, answer.error.into()));
    Failed { errno: answer.errno, out: Box::new(answer.out), error }
}
