//! The bodies of frames: packed name-value lists (XDR), with these names.
//!
//! | frame | body |
//! |---|---|
//! | `Hello` | `version` (string): of the program; `process` (uint64): its number |
//! | `Call` | `ioc` (string): the name of the request ([`Ioc::name`]); `name` (string): what it is about; `input` (nvlist) |
//! | `Answer` | `errno` (int32): 0 if it was done; `error` (string): why not; `out` (nvlist): also of a request that failed |
//! | `Cancel` | none |
//! | `Run` | `args` (string array): the words of the command line, the name of the program first; `environment` (nvlist of strings); `umask` (uint32) |
//! | `Signal` | `signal` (int32) |
//! | `End` | none |
//!
//! The numbers `fd` and `input_fd` in an `input` are places among the descriptors of the frame, from 0 on. The answer to a `Run` has `status` (uint64), the exit status, in its `out`. What is
//! not named here is passed over.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use base::{Endian, Errno};
use codec::crypt::Zeroizing;
use control::Ioc;
use nvlist::{Encoding, Limits, NvList, NvString, Value};

use crate::wire::Body;

/// What a peer may send.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of a body.
    pub body: u32,
    /// The list that is decoded from it.
    pub list: Limits,
}

/// Lists in a list: as many as OpenZFS's kernel takes.
const DEPTH: usize = 20;

impl Bounds {
    /// For the owner of the pools and root. OpenZFS takes a quarter of the memory (`zfs_max_nvlist_src_size`); a list of a million snapshots has 64 MiB.
    pub const OWNER: Bounds =
        Bounds { body: 64 << 20, list: Limits { depth: DEPTH, pairs: 4 << 20, bytes: 512 << 20 } };
    /// For other users, many of whom may ask at once.
    pub const OTHERS: Bounds = Bounds { body: 1 << 20, list: Limits { depth: DEPTH, pairs: 16 << 10, bytes: 8 << 20 } };
    /// For the answers of a server, which the client trusts.
    pub const SERVER: Bounds = Bounds { body: 1 << 30, list: Limits { depth: 100, pairs: 64 << 20, bytes: 8 << 30 } };
}

/// Why the bytes of a body are not what the frame should have.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadBody {
    /// No list, or a larger one than this peer may send.
    #[error("body of the frame: {0}")]
    List(#[from] nvlist::Error),
    /// A name that is missing, or has another type.
    #[error("body of the frame: '{0}' is missing or of the wrong type")]
    Missing(&'static str),
    /// No such request.
    #[error("there is no request '{0}'")]
    NoSuchRequest(String),
}

impl BadBody {
    /// The errno that is answered.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            BadBody::NoSuchRequest(_) => Errno::ZFS_ERR_IOC_CMD_UNAVAIL,
            BadBody::List(_) | BadBody::Missing(_) => Errno::EINVAL,
        }
    }
}

fn unpack(body: &[u8], bounds: &Bounds) -> Result<NvList, BadBody> {
    Ok(NvList::unpack_with(body, &bounds.list)?.0)
}

/// As much larger than the list itself a packed one is with a key in it: an octet takes four.
const KEY_ROOM: usize = 4 << 10;

/// Packs a list. A buffer that grew would leave copies of a key.
fn pack(list: &NvList) -> Result<Body, nvlist::Error> {
    let mut packed = Zeroizing::new(Vec::with_capacity(list.heap_size() + KEY_ROOM));
    list.pack_into(Encoding::Xdr, Endian::Big, &mut packed)?;
    Ok(packed)
}

fn text(list: &NvList, key: &'static str) -> Result<String, BadBody> {
    list.get_str(key).map(str::to_owned).ok_or(BadBody::Missing(key))
}

/// Takes a list out of another one.
fn take_list(list: &mut NvList, key: &'static str) -> Result<NvList, BadBody> {
    match list.remove(key) {
        Some(Value::NvList(list)) => Ok(*list),
        _ => Err(BadBody::Missing(key)),
    }
}

/// What a server says first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The version of its program.
    pub version: String,
    /// Its process.
    pub process: u64,
}

impl Hello {
    /// The body.
    ///
    /// # Errors
    /// When it cannot be packed.
    pub fn encode(&self) -> Result<Body, nvlist::Error> {
        let mut list = NvList::new();
        list.insert("version", self.version.as_str());
        list.insert("process", self.process);
        pack(&list)
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// As [`BadBody`] says.
    pub fn decode(body: &[u8], bounds: &Bounds) -> Result<Hello, BadBody> {
        let list = unpack(body, bounds)?;
        let process = list.get_u64("process").ok_or(BadBody::Missing("process"))?;
        Ok(Hello { version: text(&list, "version")?, process })
    }
}

/// A request of `control`.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// The request.
    pub ioc: Ioc,
    /// The pool or dataset that it is about.
    pub name: String,
    /// Its list.
    pub input: NvList,
}

impl Call {
    /// The body of a request.
    ///
    /// # Errors
    /// When it cannot be packed.
    pub fn encode(ioc: Ioc, name: &str, input: &NvList) -> Result<Body, nvlist::Error> {
        let mut list = NvList::new();
        list.insert("ioc", ioc.name());
        list.insert("name", name);
        list.insert("input", input.clone());
        let packed = pack(&list);
        if let Some(copy) = list.get_nvlist_mut("input") {
            wipe(copy);
        }
        packed
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// As [`BadBody`] says.
    pub fn decode(body: &[u8], bounds: &Bounds) -> Result<Call, BadBody> {
        let mut list = unpack(body, bounds)?;
        let call = Call::take(&mut list);
        if let Some(input) = list.get_nvlist_mut("input") {
            wipe(input);
        }
        call
    }

    fn take(list: &mut NvList) -> Result<Call, BadBody> {
        let named = text(list, "ioc")?;
        let ioc = Ioc::ALL.into_iter().find(|ioc| ioc.name() == named).ok_or(BadBody::NoSuchRequest(named))?;
        Ok(Call { ioc, name: text(list, "name")?, input: take_list(list, "input")? })
    }
}

/// Wipes the keys out of a request.
pub(crate) fn wipe(input: &mut NvList) {
    site::keys::wipe(input);
    if let Some(props) = input.get_nvlist_mut("props") {
        site::keys::wipe(props);
    }
}

/// The end of a request.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// 0 if it was done.
    pub errno: Errno,
    /// Why it was not.
    pub error: String,
    /// What it answers, also if it failed.
    pub out: NvList,
}

impl Answer {
    /// No error.
    pub const DONE: Errno = Errno::from_raw(0);

    /// Of a request that was done.
    #[must_use]
    pub fn done(out: NvList) -> Answer {
        Answer { errno: Answer::DONE, error: String::new(), out }
    }

    /// Of one that failed.
    #[must_use]
    pub fn failed(errno: Errno, error: impl Into<String>) -> Answer {
        Answer { errno, error: error.into(), out: NvList::new() }
    }

    /// The body.
    ///
    /// # Errors
    /// When it cannot be packed.
    pub fn encode(self) -> Result<Body, nvlist::Error> {
        let mut list = NvList::new();
        list.insert("errno", self.errno);
        list.insert("error", self.error.replace('\0', "").as_str());
        list.insert("out", self.out);
        pack(&list)
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// As [`BadBody`] says.
    pub fn decode(body: &[u8], bounds: &Bounds) -> Result<Answer, BadBody> {
        let mut list = unpack(body, bounds)?;
        let errno = list.get_i32("errno").map(Errno::from_raw).ok_or(BadBody::Missing("errno"))?;
        Ok(Answer { errno, error: text(&list, "error")?, out: take_list(&mut list, "out")? })
    }
}

/// A command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Its words.
    pub args: Vec<OsString>,
    /// Variables of the environment, not only those that are taken.
    pub environment: Vec<(OsString, OsString)>,
    /// The permissions that new files lack.
    pub umask: u32,
}

/// The umask of a client that does not tell its own.
const UMASK: u32 = 0o077;

impl Run {
    /// The body.
    ///
    /// # Errors
    /// When it cannot be packed: a word has a zero byte.
    pub fn encode(&self) -> Result<Body, nvlist::Error> {
        let (mut list, mut environment) = (NvList::new(), NvList::new());
        let words = self.args.iter().map(|arg| NvString::from(arg.as_bytes())).collect();
        list.insert("args", Value::StringArray(words));
        for (name, value) in &self.environment {
            environment.insert(name.as_bytes(), Value::String(NvString::from(value.as_bytes())));
        }
        list.insert("environment", environment);
        list.insert("umask", self.umask);
        pack(&list)
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// As [`BadBody`] says.
    pub fn decode(body: &[u8], bounds: &Bounds) -> Result<Run, BadBody> {
        let mut list = unpack(body, bounds)?;
        let Some(Value::StringArray(words)) = list.remove("args") else { return Err(BadBody::Missing("args")) };
        let environment = take_list(&mut list, "environment")?;
        let variable = |(name, value): (&[u8], &Value)| match value {
            Value::String(value) => {
                Some((OsStr::from_bytes(name).to_owned(), OsStr::from_bytes(value.as_bytes()).to_owned()))
            }
            _ => None,
        };
        Ok(Run {
            args: words.into_iter().map(|word| OsString::from_vec(word.into_bytes())).collect(),
            environment: environment.iter_bytes().filter_map(variable).collect(),
            umask: list.get_u32("umask").unwrap_or(UMASK),
        })
    }
}

/// The body of a signal.
///
/// # Errors
/// When it cannot be packed.
pub fn encode_signal(signal: i32) -> Result<Body, nvlist::Error> {
    let mut list = NvList::new();
    list.insert("signal", signal);
    pack(&list)
}

/// Decodes the body of a signal.
///
/// # Errors
/// As [`BadBody`] says.
pub fn decode_signal(body: &[u8], bounds: &Bounds) -> Result<i32, BadBody> {
    unpack(body, bounds)?.get_i32("signal").ok_or(BadBody::Missing("signal"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_what_they_were() {
        let mut input = NvList::new();
        input.insert("snaps", NvList::new());
        for ioc in Ioc::ALL {
            let body = Call::encode(ioc, "t", &input).unwrap();
            let call = Call::decode(&body, &Bounds::OTHERS).unwrap();
            assert_eq!((call.ioc, call.name.as_str(), &call.input), (ioc, "t", &input), "names of requests are unique");
        }
        let answer = Answer { errno: Errno::EBUSY, error: "pool is busy".into(), out: input };
        assert_eq!(Answer::decode(&answer.clone().encode().unwrap(), &Bounds::SERVER).unwrap(), answer);
        let hello = Hello { version: "0.2.0".into(), process: 7 };
        assert_eq!(Hello::decode(&hello.encode().unwrap(), &Bounds::SERVER).unwrap(), hello);
        let words: Vec<OsString> = vec!["zfs".into(), "list".into(), OsString::from_vec(vec![b'a', 0xff])];
        let run = Run { args: words, environment: vec![("LANG".into(), "C".into())], umask: 0o22 };
        assert_eq!(Run::decode(&run.encode().unwrap(), &Bounds::OWNER).unwrap(), run);
        assert_eq!(decode_signal(&encode_signal(2).unwrap(), &Bounds::OTHERS).unwrap(), 2);
    }

    #[test]
    fn what_is_missing_or_unknown_is_told() {
        let errno = |list: &NvList| Call::decode(&pack(list).unwrap(), &Bounds::OWNER).unwrap_err().errno();
        let mut list = NvList::new();
        assert_eq!(errno(&list), Errno::EINVAL);
        list.insert("ioc", "none");
        assert_eq!(errno(&list), Errno::ZFS_ERR_IOC_CMD_UNAVAIL);
        list.insert("ioc", "snapshot");
        list.insert("name", 1u64);
        assert_eq!(errno(&list), Errno::EINVAL);
        assert_eq!(Call::decode(&[1, 2, 3], &Bounds::OWNER).unwrap_err().errno(), Errno::EINVAL);
    }

    #[test]
    fn a_list_of_a_stranger_is_short() {
        let mut input = NvList::new();
        (0..17u64 << 10).for_each(|n| input.insert(n.to_string(), ()));
        let body = Call::encode(Ioc::Snapshot, "t", &input).unwrap();
        assert!(Call::decode(&body, &Bounds::OTHERS).is_err() && Call::decode(&body, &Bounds::OWNER).is_ok());
    }
}
