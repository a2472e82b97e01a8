//! `zfs receive`.
//!
//! Receives a stream, or a package of them, from standard input ([`one`], [`package`]); properties from the command
//! line ([`props`]); renames and the like that a package records ([`renames`]); messages for failures ([`words`]).

mod one;
mod package;
mod props;
mod renames;
mod words;

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use control::{Ioc, Source};
use nvlist::NvList;
use ondisk::send::{Begin, feature};
use stream::{Reader, Record};

use super::ancestors;
use super::mounting::changes::{Change, Changes};
use super::select::{self, told};
use super::session::Session;
use crate::command::Call;
use crate::console;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::Types;
use props::Said;

/// A package of streams (OpenZFS: `DMU_COMPOUNDSTREAM`).
const COMPOUND: u8 = 2;

/// The options of the command (OpenZFS: `recvflags_t`).
#[derive(Clone, Debug, Default)]
struct Options {
    verbose: bool,
    dry: bool,
    force: bool,
    resumable: bool,
    skip_holds: bool,
    /// `-u`: what is received is not mounted.
    no_mount: bool,
    /// `-M`: what is in the way is unmounted by force.
    force_unmount: bool,
    /// `-d` or `-e`: names below the target are those of the stream.
    prefix: bool,
    /// `-e`: the last part only.
    tail: bool,
    /// `-o origin=`.
    origin: Option<String>,
    said: Said,
}

/// The streams of the command's input.
type Input = Source;

/// The number of the file that a stream is received from.
const INPUT: i32 = 0;

/// A receive in progress.
struct Receive<'a> {
    session: &'a Session,
    options: &'a Options,
    /// The target that the user named.
    target: String,
    /// The first file system that was received.
    top: Option<String>,
    /// Set if the package has holds.
    holds: bool,
    /// Set once something was received that is to be mounted.
    mounts: bool,
    /// The first failure to mount again what was renamed or received. The rest is done before it counts.
    not_mounted: RefCell<Result<(), Failure>>,
}

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    if args.has('d') && args.has('e') {
        return Err(usage("invalid option combination: -d and -e are mutually exclusive"));
    }
    let mut said = Said::new(args)?;
    let options = Options {
        verbose: args.has('v'),
        dry: args.has('n'),
        force: args.has('F'),
        resumable: args.has('s'),
        skip_holds: args.has('h'),
        no_mount: args.has('u'),
        force_unmount: args.has('M'),
        prefix: args.has('d') || args.has('e'),
        tail: args.has('e'),
        origin: said.take_origin(),
        said,
    };
    let target = match args.names().as_slice() {
        [] => return Err(usage("missing snapshot argument")),
        [target] => target.clone(),
        _ => return Err(usage("too many arguments")),
    };
    if args.has('A') {
        if options.prefix || options.dry || options.resumable || args.has('u') {
            return Err(usage("invalid option"));
        }
        return Session::run(|session| discard(session, &target));
    }
    if args.has('c') {
        return Err(failed("cannot receive: corrective receive is not in this version of Zuse"));
    }
    if console::stdin_is_terminal() {
        return Err(failed("Error: Backup stream can not be read from a terminal.\nYou must redirect standard input."));
    }
    options.said.check()?;
    Session::run(|session| {
        let receive = Receive {
            session,
            options: &options,
            target: target.clone(),
            top: None,
            holds: false,
            mounts: false,
            not_mounted: RefCell::new(Ok(())),
        };
        receive.run()
    })
}

/// `zfs receive -A`.
fn discard(session: &Session, name: &str) -> Outcome {
    let head = session.dataset(name, Types::HEADS).map_err(|failure| match failure {
        Failure::Failed(why) => usage(why),
        other => other,
    })?;
    if head.text("receive_resume_token").map_err(|e| failed(told(&e, name)))?.is_none() {
        return Err(failed(format!("'{name}' does not have any resumable receive state to abort")));
    }
    let done = session.control(name)?.call(Ioc::Destroy, &format!("{name}/%recv"), &NvList::new());
    done.map_err(|e| failed(format!("cannot destroy '{name}': {}", super::words::standard(&e))))?;
    Ok(0)
}

/// A BEGIN record and what follows it.
struct Opening {
    begin: Begin,
    payload: Vec<u8>,
}

impl Opening {
    /// The snapshot's name at its sender.
    fn name(&self) -> String {
        String::from_utf8_lossy(self.begin.name()).into_owned()
    }

    /// The file system's name at its sender.
    fn fs(&self) -> String {
        self.name().split('@').next().unwrap_or("").to_owned()
    }
}

impl Receive<'_> {
    fn run(mut self) -> Outcome {
        let input: Input = Arc::new(Mutex::new(Reader::new(Box::new(console::raw_stdin()))));
        self.check_target()?;
        let Some(opening) = next(&input)? else {
            return Err(failed("cannot receive: failed to read from stream"));
        };
        check(&opening.begin)?;
        self.holds = opening.begin.features() & feature::HOLDS != 0;
        if opening.begin.hdrtype() == COMPOUND {
            return self.package(&input, &opening);
        }
        let sent = opening.fs();
        self.one(&input, &opening, &sent, None)?;
        self.finish()?;
        Ok(0)
    }

    /// Notes whether something is mounted again after it was renamed, or received.
    fn remounted(&self, done: Result<(), Failure>) {
        let mut noted = self.not_mounted.borrow_mut();
        *noted = std::mem::replace(&mut *noted, Ok(())).and(done);
    }

    /// Mounts what was received. Fails if that cannot be, or could not be mounted again before.
    fn finish(self) -> Result<(), Failure> {
        let mounted = self.mount();
        self.not_mounted.into_inner().and(mounted)
    }

    /// Mounts the file systems that were received, and those below that take their mount points from them.
    fn mount(&self) -> Result<(), Failure> {
        let Some(top) = self.top.as_deref().filter(|_| self.mounts && !self.options.no_mount) else { return Ok(()) };
        let dataset = select::find(top, Types::HEADS)?;
        Changes::gather(self.session, &dataset, Change::Received, self.options.force_unmount)?.postfix()
    }

    fn check_target(&self) -> Result<(), Failure> {
        let target = &self.target;
        let pool = target.split(['/', '@']).next().unwrap_or("");
        if self.session.find(pool)?.is_none() || (self.options.prefix && !ancestors::exists(target)?) {
            return Err(failed(match self.options.prefix {
                true => format!("cannot receive: specified fs ({target}) does not exist"),
                false => format!("cannot open '{pool}': no such pool"),
            }));
        }
        match &self.options.origin {
            Some(origin) if !ancestors::exists(origin)? => {
                Err(failed(format!("cannot receive: specified origin fs ({origin}) does not exist")))
            }
            _ => Ok(()),
        }
    }
}

/// The next BEGIN; none at the END of a package.
fn next(input: &Input) -> Result<Option<Opening>, Failure> {
    let cannot = |why: &str| failed(format!("cannot receive: {why}"));
    let mut input = input.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = input.next_record().map_err(|e| match e {
        stream::Error::BadMagic { .. } => cannot("invalid stream (bad magic number)"),
        stream::Error::Truncated { .. } => cannot("failed to read from stream"),
        other => cannot(&format!("invalid backup stream ({other})")),
    })?;
    match entry {
        None => Err(cannot("failed to read from stream")),
        Some(entry) => match entry.header.record {
            Record::Begin(begin) => Ok(Some(Opening { begin, payload: entry.payload.to_vec() })),
            Record::End(_) => Ok(None),
            _ => Err(cannot("invalid stream (bad magic number)")),
        },
    }
}

/// Skips the rest of a stream.
fn skip(input: &Input) -> Result<(), Failure> {
    let mut input = input.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let entry = input.next_record().map_err(|e| failed(format!("cannot receive: invalid backup stream ({e})")))?;
        match entry {
            Some(entry) if matches!(entry.header.record, Record::End(_)) => return Ok(()),
            Some(_) => {}
            None => return Err(failed("cannot receive: failed to read from stream")),
        }
    }
}

/// Checks that a stream of this kind can be received.
fn check(begin: &Begin) -> Result<(), Failure> {
    let (features, unknown) = (begin.features(), begin.features() & !feature::KNOWN);
    if unknown != 0 || !matches!(begin.hdrtype(), 1 | COMPOUND) {
        return Err(failed(match features & feature::DEDUP != 0 {
            true => "cannot receive: stream has deprecated feature: dedup, try 'zstream redup [send in a file] | zfs \
                     recv [...]'"
                .to_owned(),
            false => format!(
                "cannot receive: stream has unsupported feature, feature flags = {features:x} (unknown flags = {unknown:x})"
            ),
        }));
    }
    if !begin.name().contains(&b'@') || std::str::from_utf8(begin.name()).is_err() {
        return Err(failed("cannot receive: invalid stream (bad snapshot name)"));
    }
    Ok(())
}

/// The package's record of a snapshot: that of its dataset, and the snapshot's name there.
fn find_by_guid(fss: &NvList, guid: u64) -> Option<(&NvList, &str)> {
    fss.iter().find_map(|(_, value)| {
        let nvlist::Value::NvList(fs) = value else { return None };
        let (name, _) = fs.get_nvlist("snaps")?.iter().find(|(_, value)| **value == nvlist::Value::Uint64(guid))?;
        Some((&**fs, name))
    })
}
