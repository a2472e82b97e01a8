//! A server in this process, or in one of its own, and clients of it.

use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use base::Errno;
use control::{Failed, Ioc, NewVdevs};
use nvlist::{NvList, Value};
use serve::{Client, Error, Options, Server, Stop, Watched};
use site::{Silent, Site};
use vdev::create::VdevSpec;

pub(crate) use crate::state::list;

/// No wait of these tests is as long.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A server in a thread of this process.
pub(crate) struct Serving {
    pub(crate) site: Site,
    watched: Watched,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<Result<(), Failed>>>,
}

impl Serving {
    pub(crate) fn begin(options: Options) -> Serving {
        let site = Site::new(Arc::new(Silent));
        let server = Server::new(site.clone(), options).unwrap();
        let watched = server.watched();
        let stop = Arc::new(Stop::new().unwrap());
        let told = stop.clone();
        let thread = thread::Builder::new().spawn(move || server.run(&told)).unwrap();
        Serving { site, watched, stop, thread: Some(thread) }
    }

    /// Waits until it has so many requests under way.
    pub(crate) fn has_requests(&self, number: usize) {
        until("it has as many requests", || self.watched.traffic().requests == number);
    }

    /// Ends it, and waits until it has.
    pub(crate) fn end(mut self) {
        self.stop.stop();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }

    /// Waits until it ends by itself.
    pub(crate) fn ended(mut self) {
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

/// A server, and a client of it that has made the pool `t`.
pub(crate) fn with_pool(options: Options, dir: &Path) -> (Serving, Client) {
    let (serving, one) = (Serving::begin(options), client());
    create(&one, dir, "t");
    (serving, one)
}

/// As [`with_pool`], with the stream of a snapshot `t/src@s` of a megabyte.
pub(crate) fn with_stream(dir: &Path) -> (Serving, Client, Vec<u8>) {
    let (serving, one) = with_pool(Options::default(), dir);
    new_fs(&one, "t/src").unwrap();
    fill(&serving.site, "t/src");
    snapshot(&one, "t/src@s").unwrap();
    let stream = sent(&one, "t/src@s");
    (serving, one, stream)
}

/// A client of the server of this state folder.
pub(crate) fn client() -> Client {
    Client::connect().unwrap().expect("no server")
}

/// A connection to it whose frames the test makes itself. Its hello has been read.
pub(crate) fn bare() -> UnixStream {
    let stream = site::seat::connect().unwrap().expect("no server");
    let hello = serve::wire::receive(&stream, 1 << 20, Some(LONG)).unwrap();
    assert_eq!(hello.header.kind, serve::frame::Kind::Hello as u8);
    stream
}

/// The errno of a request that the server did not do.
pub(crate) fn errno<T>(done: Result<T, Error>) -> Result<T, Errno> {
    done.map_err(|e| match e {
        Error::Failed(failed) => failed.errno,
        other => panic!("{other}"),
    })
}

/// A request without descriptors.
pub(crate) fn call(client: &Client, ioc: Ioc, name: &str, pairs: &[(&str, Value)]) -> Result<NvList, Errno> {
    errno(client.call(ioc, name, &list(pairs), &[]))
}

/// The request to make a pool of two mirrored files.
pub(crate) fn create(client: &Client, dir: &Path, name: &str) {
    let paths = ["a", "b"].map(|file| dir.join(format!("{name}-{file}")).display().to_string());
    for path in &paths {
        std::fs::File::create(path).unwrap().set_len(96 << 20).unwrap();
    }
    let spec = VdevSpec::parse(&["mirror".to_owned(), paths[0].clone(), paths[1].clone()]).unwrap();
    let config = NewVdevs { spec, ..NewVdevs::default() }.to_list();
    let mut props = NvList::new();
    let features = ["async_destroy", "extensible_dataset", "bookmarks", "bookmark_v2", "encryption"];
    features.iter().for_each(|feature| props.insert(format!("feature@{feature}"), 0u64));
    call(client, Ioc::PoolCreate, name, &[("config", config.into()), ("props", props.into())]).unwrap();
}

pub(crate) fn new_fs(client: &Client, name: &str) -> Result<NvList, Errno> {
    call(client, Ioc::Create, name, &[("type", 2i32.into())])
}

pub(crate) fn snapshot(client: &Client, name: &str) -> Result<NvList, Errno> {
    let pool = name.split(['/', '@']).next().unwrap();
    call(client, Ioc::Snapshot, pool, &[("snaps", list(&[(name, ().into())]).into())])
}

/// The names of what is below a dataset.
pub(crate) fn below(client: &Client, ioc: Ioc, name: &str) -> Vec<String> {
    call(client, ioc, name, &[]).unwrap().iter().map(|(name, _)| name.to_owned()).collect()
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Begins a scrub that does not go on, and returns the request to wait for it.
pub(crate) fn endless_scrub(client: &Client, pool: &str) -> NvList {
    base::tunable::ZFS_SCAN_SUSPEND_PROGRESS.set(1);
    call(client, Ioc::PoolScrub, pool, &[("scan_type", 1u64.into()), ("scan_command", 0u64.into())]).unwrap();
    list(&[("wait_activity", 6i32.into())])
}

/// The stream of a snapshot.
pub(crate) fn sent(client: &Client, snapshot: &str) -> Vec<u8> {
    let mut file = tempfile::tempfile().unwrap();
    client.call(Ioc::SendNew, snapshot, &list(&[("fd", 0i32.into())]), &[file.as_fd()]).unwrap();
    let mut bytes = Vec::new();
    std::io::Seek::rewind(&mut file).unwrap();
    std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
    bytes
}

/// The request to receive a stream, and what of it is read from the descriptor.
pub(crate) fn receive(target: &str, stream: &[u8]) -> (NvList, Vec<u8>) {
    let (begin, rest) = stream.split_at(312);
    let begin = Value::ByteArray(begin.to_vec());
    (list(&[("snapname", target.into()), ("begin_record", begin), ("input_fd", 0i32.into())]), rest.to_vec())
}

/// Writes a file of a megabyte into a file system.
pub(crate) fn fill(site: &Site, name: &str) {
    use zpl::live::{Cred, NewFile, Zfs};
    let pool = name.split('/').next().unwrap();
    let spa = site.changing(&site.find(pool).unwrap().unwrap()).unwrap();
    let fs = Zfs::open(&spa, name).unwrap();
    let file = fs.create(&Cred::ROOT, fs.fs().root(), b"f", &NewFile::new(zpl::Kind::File, 0o644)).unwrap().0;
    fs.write(&Cred::ROOT, file, 0, &base::Env::noise(7, 1 << 20)).unwrap();
    drop(fs);
    spa.sync().unwrap();
}

/// Set in the process that is a server: how it serves.
const SERVER: &str = "ZUSE_TEST_SERVER";

/// Serves, if this process was started for it; the test of this name calls it and does nothing else.
pub(crate) fn serve_if_asked() {
    if std::env::var_os(SERVER).is_some() {
        let server = Server::new(Site::new(Arc::new(Silent)), Options::default()).unwrap();
        println!("serving");
        std::io::stdout().flush().unwrap();
        server.run(&Stop::new().unwrap()).unwrap();
    }
}

/// A server that does not outlive its test.
pub(crate) struct ServerProcess(Child);

impl Deref for ServerProcess {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for ServerProcess {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // it has ended, perhaps
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Another process that serves this state folder, until it is killed; `test` calls [`serve_if_asked`].
pub(crate) fn server_process(test: &str) -> ServerProcess {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(SERVER, "1").stdout(Stdio::null());
    let child = ServerProcess(command.spawn().unwrap());
    until("it does not serve", || Client::connect().is_ok_and(|client| client.is_some()));
    child
}
