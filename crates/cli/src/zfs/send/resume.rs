//! `zfs send -t`: the rest of a stream; `zfs send -S`: the part of a stream that was received (OpenZFS:
//! `zfs_send_resume`, `zfs_send_saved`).

use base::{Guid, ObjectId};
use nvlist::NvList;
use pool::Dataset;
use stream::send::{ResumeAt, Saved, SendFlags};

use super::stream::{Options, Start, Stream, held, line, looking, open, output, stream_to, tell, total};
use crate::error::{Failure, Outcome, failed};
use crate::names::Types;
use crate::pools;

/// The name of the clone that a parent dataset receives into.
const RECEIVE_CLONE: &str = "%recv";

pub(super) fn run(options: &Options, token: &str) -> Outcome {
    let list = stream::token::decode(token).map_err(|e| failed(format!("cannot resume send: {e}")))?;
    contents(options, &list)?;
    let at = Token::new(&list).ok_or_else(|| failed("cannot resume send: resume token is corrupt"))?;
    let looking = looking(options, &at.to_name);
    let to = find(&at)?;
    let _held = looking.and_then(|looking| looking.hold([to.id()]));
    rest(options, &list, &at, &to, at.flags(&options.stream, &list))
}

pub(super) fn saved(options: &Options, name: &str, token: Option<&str>) -> Outcome {
    let cannot = |why: &str| failed(format!("saved send failed: {why}"));
    let looking = looking(options, name);
    let head = open(name, Types::HEADS)?;
    let receiving = receiving(&head).map_err(|e| cannot(&e.to_string()))?;
    let (_held, receiving) = held(looking, receiving)?;
    let state = receiving.resume_state().map_err(|e| cannot(&e.to_string()))?;
    let Some(mut list) = state else { return Err(failed("")) };
    let (mut object, mut offset, mut bytes) = (ObjectId::NONE, 0, 0);
    if let Some(token) = token {
        let given = stream::token::decode(token).map_err(|e| cannot(&e.to_string()))?;
        let at = Token::new(&given).ok_or_else(|| cannot("provided resume token is corrupt"))?;
        if Some(at.to_guid.0) != list.get_u64("toguid") {
            return Err(cannot("provided resume token does not match dataset"));
        }
        (object, offset, bytes) = (at.object, at.offset, at.bytes);
    }
    let sender_name = list.get_str("toname").unwrap_or(name).to_owned();
    for (key, value) in [("object", object.0), ("offset", offset), ("bytes", bytes)] {
        list.insert(key, value);
    }
    list.insert("toname", name);
    contents(options, &list)?;
    let at = Token::new(&list).ok_or_else(|| cannot("dataset's resume token is corrupt"))?;
    let mut flags = at.flags(&options.stream, &list);
    flags.saved = Some(Saved { guid: at.to_guid, name: sender_name });
    flags.resume = flags.resume.filter(|at| at.object.is_some() || at.offset != 0);
    rest(options, &list, &at, &receiving, flags)
}

/// The dataset that holds the received part: the clone, or the dataset itself.
fn receiving(head: &Dataset) -> Result<Dataset, pool::Error> {
    let clone = head.dir().child(RECEIVE_CLONE)?.map(|dir| dir.head()).transpose()?.flatten();
    Ok(clone.unwrap_or_else(|| head.clone()))
}

/// The contents of a token.
struct Token {
    to_name: String,
    to_guid: Guid,
    from_guid: Guid,
    object: ObjectId,
    offset: u64,
    bytes: u64,
}

impl Token {
    fn new(list: &NvList) -> Option<Token> {
        Some(Token {
            to_name: list.get_str("toname")?.to_owned(),
            to_guid: Guid(list.get_u64("toguid")?),
            from_guid: Guid(list.get_u64("fromguid").unwrap_or(0)),
            object: ObjectId(list.get_u64("object")?),
            offset: list.get_u64("offset")?,
            bytes: list.get_u64("bytes")?,
        })
    }

    /// The flags of the resumed stream: as it began.
    fn flags(&self, given: &SendFlags, list: &NvList) -> SendFlags {
        SendFlags {
            embed: given.embed || list.contains("embedok"),
            large_block: given.large_block || list.contains("largeblockok"),
            compress: given.compress || list.contains("compressok"),
            raw: given.raw || list.contains("rawok"),
            resume: Some(ResumeAt { object: self.object, offset: self.offset }),
            saved: None,
        }
    }
}

fn contents(options: &Options, list: &NvList) -> Result<(), Failure> {
    if options.verbosity > 0 {
        tell(options, "resume token contents:\n")?;
        let mut text = Vec::new();
        stream::print_nvlist(&mut text, list)?;
        tell(options, &String::from_utf8_lossy(&text))?;
    }
    Ok(())
}

/// The snapshot of a token, by its current name in its pool.
fn find(at: &Token) -> Result<Dataset, Failure> {
    let cannot = |why: String| failed(format!("cannot resume send: {why}"));
    let gone = || cannot(format!("'{}' used in the initial send no longer exists", at.to_name));
    let source = pools::of_dataset(&at.to_name)?.ok_or_else(gone)?;
    let pool = source.pool();
    // a copy that was received into the same pool has the same guid
    let named = pool.dataset(&at.to_name).ok();
    if let Some(to) = named.as_ref().filter(|to| to.guid() == at.to_guid) {
        return Ok(to.clone());
    }
    match pool.dataset_by_guid(at.to_guid).map_err(|e| cannot(e.to_string()))? {
        Some(to) => Ok(to),
        None if named.is_some() => {
            Err(cannot(format!("'{}' is no longer the same snapshot used in the initial send", at.to_name)))
        }
        None => Err(gone()),
    }
}

/// The start of the stream: in the history of the snapshot that is sent, for a copy of it elsewhere in the pool has
/// the same guid, but was born in another txg. `redacted` lists the snapshots with respect to which the start must be
/// redacted.
fn from(at: &Token, to: &Dataset, redacted: Option<&[u64]>) -> Result<Start, Failure> {
    if at.from_guid.0 == 0 {
        return Ok(Start::Nothing);
    }
    let cannot = |why: String| failed(format!("cannot resume send: {why}"));
    let found = start(at, to, redacted).map_err(|e| cannot(e.to_string()))?;
    found.ok_or_else(|| cannot(format!("incremental source {:#x} no longer exists", at.from_guid)))
}

fn start(at: &Token, to: &Dataset, redacted: Option<&[u64]>) -> Result<Option<Start>, pool::Error> {
    let (mut head, mut limit) = (to.head()?, u64::MAX);
    loop {
        if let Some(start) = start_in(&head, at, to, redacted)? {
            return Ok(Some(start));
        }
        // origins get older
        let origin = head.origin()?.filter(|origin| origin.phys().creation_txg.0 < limit);
        let Some(origin) = origin else { return Ok(None) };
        limit = origin.phys().creation_txg.0;
        head = origin.head()?;
    }
}

/// The start among the snapshots and bookmarks of `head`: with `redacted`, one with the same redaction; without, a
/// snapshot is preferred to a bookmark.
fn start_in(head: &Dataset, at: &Token, to: &Dataset, redacted: Option<&[u64]>) -> Result<Option<Start>, pool::Error> {
    let snapshot = head.snapshots()?.into_iter().find(|snapshot| snapshot.guid() == at.from_guid);
    let snapshot = match snapshot {
        Some(snapshot) if !to.is_later_than(&snapshot)? => None,
        snapshot => snapshot,
    };
    let mut marks = head.bookmarks()?;
    marks.retain(|mark| mark.phys().guid == at.from_guid);
    let Some(wanted) = redacted else {
        marks.sort_by_key(|mark| mark.phys().redaction_obj.is_some());
        return Ok(snapshot.map(Start::Snapshot).or_else(|| marks.into_iter().next().map(Start::Mark)));
    };
    for mark in marks {
        if mark.redaction_header()?.is_some_and(|header| same(&header.snaps, wanted)) {
            return Ok(Some(Start::Mark(mark)));
        }
    }
    let Some(snapshot) = snapshot else { return Ok(None) };
    Ok(snapshot.redact_snaps()?.is_some_and(|snaps| same(&snaps, wanted)).then_some(Start::Snapshot(snapshot)))
}

/// Returns whether two lists name the same snapshots.
fn same(some: &[Guid], words: &[u64]) -> bool {
    some.len() == words.len() && some.iter().all(|guid| words.contains(&guid.0))
}

fn rest(options: &Options, list: &NvList, at: &Token, to: &Dataset, flags: SendFlags) -> Outcome {
    if let Some(wanted) = list.get_u64_array("redact_snaps") {
        // a dataset that was received redacted is sent on as it is
        let own = to.redact_snaps().map_err(|e| failed(format!("cannot resume send: {e}")))?;
        if !own.is_some_and(|own| same(&own, wanted)) {
            return Err(failed("cannot resume send: making redacted streams is not in this version of Zuse"));
        }
    }
    let start = from(at, to, list.get_u64_array("book_redact_snaps"))?;
    let mut size = 0;
    if options.verbosity > 0 {
        size = start.estimate(to, &flags, at.bytes)?;
        let from = match &start {
            Start::Nothing => None,
            Start::Snapshot(from) => Some(from.name()),
            Start::Mark(from) => Some(from.name()),
        };
        if options.progress || options.parsable {
            tell(options, &line(to.name(), from, size, options.parsable))?;
            tell(options, &total(size, options.parsable, false))?;
        }
    }
    if options.dry {
        return Ok(0);
    }
    let stream = Stream { to, start: &start, flags: &flags, size, key: "source key must be loaded" };
    stream_to(&mut output()?, &stream, options)?;
    Ok(0)
}
