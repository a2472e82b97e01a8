//! The endpoint: HTTP/1.1 with one request a connection.
//!
//! It answers `GET` and `HEAD` of `/metrics`; of `/` with a page that names that; all else with 404, 405 or 400. A client has a time for its request and a time to take the answer, whatever it does
//! meanwhile. There are so many clients at once, each with a thread; one more is refused with 503. The text is made before any of it is sent, by one thread at a time.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use base::Stop;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use crate::Address;

/// Clients at once.
const CLIENTS_MAX: usize = 16;
/// The longest request, in bytes, and the most lines of its head.
const REQUEST_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// The time for a request, and the time to take the answer.
const REQUEST_TIME: Duration = Duration::from_secs(10);
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// The pause after a connection that could not be accepted, as there are no descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// The mode of a Unix socket: its user may connect, and root.
const MODE: u32 = 0o600;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// The type of a text in OpenMetrics, and that of the older format of Prometheus.
const OPEN_METRICS: &str = "application/openmetrics-text";
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const HTML_TYPE: &str = "text/html; charset=utf-8";
const PAGE: &str = "<html><head><title>Zuse</title></head><body><a href=\"/metrics\">Metrics</a></body></html>\n";

/// What makes the metrics, in OpenMetrics' text.
pub(crate) type Source = dyn Fn() -> String + Send + Sync;

/// An endpoint that answers. It ends when it is dropped; clients that are being answered have their time.
pub struct Endpoint {
    address: String,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    socket: Option<Named>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "endpoint {}", self.address)
    }
}

/// The name of a Unix socket, with its device and inode: another one that has taken the name since stays.
struct Named {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for Named {
    fn drop(&mut self) {
        if self.path.symlink_metadata().is_ok_and(|now| (now.dev(), now.ino()) == self.identity) {
            // what cannot be removed is replaced by the next one
            let _removed = std::fs::remove_file(&self.path);
        }
    }
}

/// What it listens to.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

impl Endpoint {
    /// Begins to answer at an address.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if another program listens there; what the system says.
    pub fn new(address: &Address, source: Arc<dyn Fn() -> String + Send + Sync>) -> io::Result<Endpoint> {
        let (listener, address, socket) = match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let address = format!("http://{}/metrics", listener.local_addr()?);
                (Listener::Tcp(listener), address, None)
            }
            Address::Unix(path) => {
                let (listener, named) = listen_at(path)?;
                (Listener::Unix(listener), format!("unix:{}", path.display()), Some(named))
            }
        };
        let stop = Arc::new(Stop::new()?);
        let told = stop.clone();
        let serving = Arc::new(Serving { source, making: Mutex::new(()), clients: AtomicUsize::new(0) });
        let accept = move || accept(&listener, &told, &serving);
        let thread = thread::Builder::new().name("metrics".to_owned()).spawn(accept)?;
        tracing::info!(target: "zuse::monitor", address, "metrics are answered");
        Ok(Endpoint { address, stop, thread: Some(thread), socket })
    }

    /// Returns the URL of the metrics, or `unix:` and the path of the socket.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.stop();
        drop(self.socket.take());
        if let Some(thread) = self.thread.take() {
            // a panic in it has been printed
            let _ended = thread.join();
        }
    }
}

/// Listens at a path. A socket that a killed process has left is replaced; one that somebody listens to, or what is no socket, is not.
fn listen_at(path: &Path) -> io::Result<(UnixListener, Named)> {
    match path.symlink_metadata() {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "there is something that is no socket"));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => return Err(io::ErrorKind::AddrInUse.into()),
        Ok(_) => std::fs::remove_file(path)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // the name gets the mode of the socket
    fchmod(&socket, Mode::from_raw_mode(MODE))?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    let made = path.symlink_metadata()?;
    let listener = UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok((listener, Named { path: path.to_owned(), identity: (made.dev(), made.ino()) }))
}

/// What the threads share.
struct Serving {
    source: Arc<Source>,
    /// Held while the text is made.
    making: Mutex<()>,
    clients: AtomicUsize,
}

/// One of the clients that there may be.
struct Permit(Arc<Serving>);

impl Permit {
    fn take(serving: &Arc<Serving>) -> Option<Permit> {
        let add = |clients: usize| (clients < CLIENTS_MAX).then_some(clients + 1);
        let taken = serving.clients.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        taken.is_ok().then(|| Permit(serving.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

fn accept(listener: &Listener, stop: &Stop, serving: &Arc<Serving>) {
    loop {
        let wanted = [listener.as_fd(), stop.as_fd()];
        let mut fds = wanted.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
        let _ready = poll(&mut fds, None);
        if !fds[1].revents().is_empty() {
            return;
        }
        let accepted = match listener {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        };
        match accepted {
            Ok(stream) => welcome(stream, serving),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // one that has gone by now, or no descriptor is left
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Answers a client in a thread of its own, if there may be one more.
fn welcome(mut stream: Stream, serving: &Arc<Serving>) {
    if stream.set_nonblocking(false).is_err() {
        return;
    }
    let Some(permit) = Permit::take(serving) else {
        // what it does not take at once is left out
        let refused = answer(&Reply::error(503, "Service Unavailable"), true);
        let _sent = stream.set_nonblocking(true).and_then(|()| stream.write(&refused));
        return;
    };
    let serve = move || serve(stream, &permit.0);
    // the client sees that it is closed
    let _spawned = thread::Builder::new().name("metrics-client".to_owned()).spawn(serve);
}

fn serve(mut stream: Stream, serving: &Serving) {
    // a client that is too slow, or gone, gets no answer
    let Ok(request) = receive(&mut stream) else { return };
    let (reply, with_body) = match request {
        Some(request) => (reply(&request, serving), request.method != "HEAD"),
        None => (Reply::error(400, "Bad Request"), true),
    };
    let _sent = send(&mut stream, &answer(&reply, with_body));
}

/// A request, as far as it counts.
struct Request {
    method: String,
    path: String,
    open_metrics: bool,
}

/// Reads the head of a request; `None` if it is none.
///
/// # Errors
/// When it does not come in time.
fn receive(stream: &mut Stream) -> io::Result<Option<Request>> {
    let begun = Instant::now();
    let (mut bytes, mut buf) = (Vec::new(), [0; 1024]);
    loop {
        let left = REQUEST_TIME.checked_sub(begun.elapsed()).filter(|left| !left.is_zero());
        stream.set_read_timeout(left.ok_or(io::ErrorKind::TimedOut)?)?;
        let n = match stream.read(&mut buf) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(buf.get(..n).unwrap_or_default());
        match parse(&bytes) {
            Ok(None) if bytes.len() < REQUEST_MAX => {}
            Ok(Some(request)) => return Ok(Some(request)),
            _ => return Ok(None),
        }
    }
}

/// Parses the head of a request; `None` if it is not complete yet.
fn parse(bytes: &[u8]) -> Result<Option<Request>, httparse::Error> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    if request.parse(bytes)?.is_partial() {
        return Ok(None);
    }
    let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    let accepts = |header: &&mut httparse::Header<'_>| header.name.eq_ignore_ascii_case("accept");
    let is_open = |header: &httparse::Header<'_>| String::from_utf8_lossy(header.value).contains(OPEN_METRICS);
    let open_metrics = request.headers.iter_mut().filter(accepts).any(|header| is_open(header));
    let path = target.split(['?', '#']).next().unwrap_or_default();
    Ok(Some(Request { method: method.to_owned(), path: path.to_owned(), open_metrics }))
}

/// An answer.
struct Reply {
    status: u16,
    reason: &'static str,
    kind: &'static str,
    body: String,
}

impl Reply {
    fn error(status: u16, reason: &'static str) -> Reply {
        Reply { status, reason, kind: "text/plain; charset=utf-8", body: format!("{reason}\n") }
    }

    fn ok(kind: &'static str, body: String) -> Reply {
        Reply { status: 200, reason: "OK", kind, body }
    }
}

fn reply(request: &Request, serving: &Serving) -> Reply {
    if !matches!(request.method.as_str(), "GET" | "HEAD") {
        return Reply::error(405, "Method Not Allowed");
    }
    match request.path.as_str() {
        "/metrics" => {
            let text = {
                let _alone = serving.making.lock();
                (serving.source)()
            };
            if request.open_metrics { Reply::ok(OPEN_METRICS_TYPE, text) } else { Reply::ok(PLAIN_TYPE, plain(&text)) }
        }
        "/" => Reply::ok(HTML_TYPE, PAGE.to_owned()),
        _ => Reply::error(404, "Not Found"),
    }
}

/// OpenMetrics' text in the older format of Prometheus: there the name of a counter in its description ends with `_total` as well.
fn plain(text: &str) -> String {
    let mut counters = std::collections::HashSet::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter")) {
            counters.insert(name);
        }
    }
    let mut out = String::with_capacity(text.len() + 1024);
    for line in text.lines().filter(|line| *line != "# EOF") {
        let described = ["# HELP ", "# TYPE "].into_iter().find_map(|word| Some((word, line.strip_prefix(word)?)));
        match described.and_then(|(word, rest)| Some((word, rest.split_once(' ')?))) {
            Some((word, (name, rest))) if counters.contains(name) => {
                out += word;
                out += name;
                out += "_total ";
                out += rest;
            }
            _ => out += line,
        }
        out.push('\n');
    }
    out
}

fn answer(reply: &Reply, with_body: bool) -> Vec<u8> {
    let Reply { status, reason, kind, body } = reply;
    let allow = if *status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n"
    );
    let mut bytes = head.into_bytes();
    if with_body {
        bytes.extend_from_slice(body.as_bytes());
    }
    bytes
}

fn send(stream: &mut Stream, mut bytes: &[u8]) -> io::Result<()> {
    let begun = Instant::now();
    while !bytes.is_empty() {
        let left = ANSWER_TIME.checked_sub(begun.elapsed()).filter(|left| !left.is_zero());
        stream.set_write_timeout(left.ok_or(io::ErrorKind::TimedOut)?)?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A connection.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nonblocking(on),
            Stream::Unix(stream) => stream.set_nonblocking(on),
        }
    }

    fn set_read_timeout(&self, time: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(time)),
            Stream::Unix(stream) => stream.set_read_timeout(Some(time)),
        }
    }

    fn set_write_timeout(&self, time: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_write_timeout(Some(time)),
            Stream::Unix(stream) => stream.set_write_timeout(Some(time)),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buf),
            Stream::Unix(stream) => stream.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(buf),
            Stream::Unix(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP zuse_x_bytes Bytes.\n# TYPE zuse_x_bytes counter\nzuse_x_bytes_total 7\n\
                        # HELP zuse_y A gauge of zuse_x_bytes .\n# TYPE zuse_y gauge\nzuse_y{a=\"b c\"} 1\n# EOF\n";

    fn endpoint(dir: &tempfile::TempDir) -> (Endpoint, PathBuf) {
        let path = dir.path().join("m.sock");
        (Endpoint::new(&Address::Unix(path.clone()), Arc::new(|| TEXT.to_owned())).unwrap(), path)
    }

    fn ask(path: &Path, request: &str) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn requests_get_the_answer_of_their_kind() {
        let dir = tempfile::tempdir().unwrap();
        let (endpoint, path) = endpoint(&dir);
        let open = ask(
            &path,
            "GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\naccept: text/plain, application/openmetrics-text;q=0.5\r\n\r\n",
        );
        assert!(open.starts_with("HTTP/1.1 200 OK\r\n") && open.ends_with(&format!("\r\n\r\n{TEXT}")), "{open}");
        assert!(
            open.contains(&format!("Content-Type: {OPEN_METRICS_TYPE}\r\nContent-Length: {}\r\n", TEXT.len())),
            "{open}"
        );
        let old = ask(&path, "GET /metrics HTTP/1.0\r\n\r\n");
        assert!(old.contains(PLAIN_TYPE) && old.ends_with(&plain(TEXT)), "{old}");
        let head = ask(&path, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: ") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(ask(&path, "GET / HTTP/1.1\r\n\r\n").contains("/metrics"));
        for (request, status) in [
            ("GET /x HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("nonsense\r\n\r\n", "400"),
            ("\u{1}\r\n\r\n", "400"),
        ] {
            assert!(ask(&path, request).starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}");
        }
        drop(endpoint);
        assert!(!path.exists());
    }

    #[test]
    fn a_request_that_is_too_long_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let (_endpoint, path) = endpoint(&dir);
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        let line = format!("x: {}\r\n", "y".repeat(1000));
        for _ in 0..8 {
            // it may have its answer already
            let _sent = stream.write_all(line.as_bytes());
        }
        let mut text = Vec::new();
        // what it has not read resets the connection, maybe before the answer is read
        let _read = stream.read_to_end(&mut text);
        assert!(text.is_empty() || text.starts_with(b"HTTP/1.1 400 "));
    }

    #[test]
    fn silent_clients_leave_no_room_for_others_and_others_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let (_endpoint, path) = endpoint(&dir);
        let silent: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| UnixStream::connect(&path).unwrap()).collect();
        // they are accepted one after the other
        assert!(ask(&path, "").starts_with("HTTP/1.1 503 "));
        drop(silent);
        let asked = || {
            let mut stream = UnixStream::connect(&path).ok()?;
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).ok()?;
            text.starts_with("HTTP/1.1 200 ").then_some(())
        };
        while asked().is_none() {
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_socket_in_use_or_another_file_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (endpoint, path) = endpoint(&dir);
        let again = Endpoint::new(&Address::Unix(path.clone()), Arc::new(String::new));
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(path.symlink_metadata().unwrap().mode() & 0o777, MODE);
        drop(endpoint);
        // one that was left by a process that was killed
        drop(UnixListener::bind(&path).unwrap());
        drop(Endpoint::new(&Address::Unix(path.clone()), Arc::new(String::new)).unwrap());
        std::fs::write(&path, "mine").unwrap();
        assert!(Endpoint::new(&Address::Unix(path.clone()), Arc::new(String::new)).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn the_older_format_names_counters_in_full() {
        let wanted = "# HELP zuse_x_bytes_total Bytes.\n# TYPE zuse_x_bytes_total counter\nzuse_x_bytes_total 7\n\
                      # HELP zuse_y A gauge of zuse_x_bytes .\n# TYPE zuse_y gauge\nzuse_y{a=\"b c\"} 1\n";
        assert_eq!(plain(TEXT), wanted);
    }
}
