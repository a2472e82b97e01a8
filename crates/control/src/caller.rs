//! The caller of requests, and the files that he has open for them.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stream::{Reader, recv, send};

use crate::cancel::{self, Slot};

/// A stream that is received, read through its reader. A stream that follows in the same input is read through the same one.
pub type Source = Arc<Mutex<Reader<Box<dyn Read + Send>>>>;

/// The place that streams are sent to.
type Output = Arc<Mutex<Box<dyn Write + Send>>>;

/// The user and process that a request comes from (OpenZFS: `cred_t`). The default is root, who may make all requests: for programs that take none of others.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The user that acts: new file systems belong to him.
    pub uid: u32,
    /// His group.
    pub gid: u32,
    /// His other groups.
    pub groups: Vec<u32>,
    /// The user that the process runs for, which the history names.
    pub real_uid: u32,
    /// The process.
    pub process: u32,
    /// The files that requests name by number.
    pub files: Files,
}

/// The open files of a caller, by the numbers that `fd` and `input_fd` in its requests have. They are a table, and not the process's own
/// descriptors, as the caller may be a client of another process, or a thread with a stream of its own.
#[derive(Clone, Default)]
pub struct Files(Arc<Mutex<BTreeMap<i32, File>>>);

#[derive(Clone)]
enum File {
    Out(Output, Arc<send::Progress>),
    In(Input),
}

/// A stream to be received.
#[derive(Clone)]
pub(crate) struct Input {
    pub(crate) source: Source,
    /// The payload of the BEGIN record, if that was read already.
    pub(crate) begun: Option<Vec<u8>>,
    pub(crate) progress: Arc<recv::Progress>,
    /// Ends the request that reads from it; nothing does where the reader is the caller's own.
    pub(crate) cancel: Option<Slot>,
}

impl Files {
    /// Opens `number` for streams that are sent; the progress of the current one is counted.
    pub fn output(&self, number: i32, output: Box<dyn Write + Send>, progress: Arc<send::Progress>) {
        self.table().insert(number, File::Out(Arc::new(Mutex::new(output)), progress));
    }

    /// Opens `number` for streams that are received: their BEGIN records are in the requests, and what follows is read from here, and no more of it than
    /// the stream has.
    pub fn input(&self, number: i32, input: Box<dyn Read + Send>, progress: Arc<recv::Progress>) {
        let cancel = Slot::default();
        let input: Box<dyn Read + Send> = Box::new(cancel::Source::new(input, cancel.clone()));
        let source = Arc::new(Mutex::new(Reader::exact(input)));
        self.table().insert(number, File::In(Input { source, begun: None, progress, cancel: Some(cancel) }));
    }

    /// Opens `number` for a stream whose BEGIN record `source` has given, with this payload.
    pub fn begun(&self, number: i32, source: &Source, payload: Vec<u8>, progress: Arc<recv::Progress>) {
        let input = Input { source: source.clone(), begun: Some(payload), progress, cancel: None };
        self.table().insert(number, File::In(input));
    }

    /// The bytes that were sent to `number` so far; `None` if no stream can be sent to it.
    #[must_use]
    pub fn sent(&self, number: i32) -> Option<u64> {
        self.out(number).map(|(_, progress)| progress.bytes.load(Ordering::Relaxed))
    }

    /// Closes `number`.
    pub fn close(&self, number: i32) {
        self.table().remove(&number);
    }

    pub(crate) fn out(&self, number: i32) -> Option<(Output, Arc<send::Progress>)> {
        match self.table().get(&number) {
            Some(File::Out(output, progress)) => Some((output.clone(), progress.clone())),
            _ => None,
        }
    }

    pub(crate) fn source(&self, number: i32) -> Option<Input> {
        match self.table().get(&number) {
            Some(File::In(input)) => Some(input.clone()),
            _ => None,
        }
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<i32, File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.table().keys()).finish()
    }
}
