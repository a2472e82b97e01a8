//! `zfs send -t`: the rest of a stream; `zfs send -S`: the part of a stream that was received (OpenZFS:
//! `zfs_send_resume`, `zfs_send_saved`).

use std::sync::Arc;

use base::{Guid, ObjectId, Txg};
use control::{Failed, Ioc};
use nvlist::NvList;
use site::Query;
use stream::package::Snap;
use stream::send::{ResumeAt, Saved, SendFlags};

use super::facts;
use super::stream::{Options, Stream, held, line, looking, open, tell, total};
use crate::console;
use crate::error::{Failure, Outcome, failed};
use crate::names::Types;
use crate::zfs::listed;
use crate::{answers, pools};

/// The name of the clone that a parent dataset receives into.
const RECEIVE_CLONE: &str = "%recv";

pub(super) fn run(options: &Options, token: &str) -> Outcome {
    let list = stream::token::decode(token).map_err(|e| failed(format!("cannot resume send: {e}")))?;
    contents(options, &list)?;
    let at = Token::new(&list).ok_or_else(|| failed("cannot resume send: resume token is corrupt"))?;
    let looking = looking(options, &at.to_name);
    // no other state of the pool is kept than the one that is sent
    let (source, to) = find(&at).and_then(|(source, to)| held(looking, &source, to))?;
    let flags = at.flags(&options.stream, &list);
    rest(options, &list, &at, (&source, &to), &flags)
}

pub(super) fn saved(options: &Options, name: &str, token: Option<&str>) -> Outcome {
    let cannot = |why: &str| failed(format!("saved send failed: {why}"));
    let looking = looking(options, name);
    let head = open(name, Types::HEADS)?;
    let receiving = receiving(head.source(), name).map_err(|e| cannot(&e.to_string()))?;
    let (source, receiving) = &held(looking, head.source(), receiving)?;
    drop(head);
    let state = answers::prop(source, &receiving.name, "receive_resume_token").map_err(|e| cannot(&e.to_string()))?;
    let Some(state) = state else { return Err(failed("")) };
    let mut list = stream::token::decode(&state.to_string()).map_err(|e| cannot(&e.to_string()))?;
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
    rest(options, &list, &at, (source, receiving), &flags)
}

/// The dataset that holds the received part: the clone, or the dataset itself. A clone whose name is too long to be asked for is sent by that of its head.
fn receiving(source: &Query, head: &str) -> Result<Snap, Failed> {
    match facts::if_any(source, &format!("{head}/{RECEIVE_CLONE}"))? {
        Some(clone) => Ok(clone),
        None => facts::one(source, head),
    }
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
fn find(at: &Token) -> Result<(Arc<Query>, Snap), Failure> {
    let cannot = |why: String| failed(format!("cannot resume send: {why}"));
    let gone = || cannot(format!("'{}' used in the initial send no longer exists", at.to_name));
    let source = pools::of_dataset(&at.to_name)?.ok_or_else(gone)?;
    // a copy that was received into the same pool has the same guid
    let named = facts::one(&source, &at.to_name).ok();
    if let Some(to) = named.as_ref().filter(|to| to.guid == at.to_guid) {
        return Ok((source, to.clone()));
    }
    let moved = listed::with_guid(&source, &at.to_name, at.to_guid);
    let moved = moved.and_then(|name| name.map(|name| facts::one(&source, &name)).transpose());
    match moved.map_err(|e| cannot(e.to_string()))? {
        Some(to) => Ok((source, to)),
        None if named.is_some() => {
            Err(cannot(format!("'{}' is no longer the same snapshot used in the initial send", at.to_name)))
        }
        None => Err(gone()),
    }
}

/// The start of the stream: in the history of the snapshot that is sent, for a copy of it elsewhere in the pool has
/// the same guid, but was born in another txg. `redacted` lists the snapshots with respect to which the start must be
/// redacted.
fn from(at: &Token, source: &Query, to: &Snap, redacted: Option<&[u64]>) -> Result<Option<String>, Failure> {
    if at.from_guid.0 == 0 {
        return Ok(None);
    }
    let cannot = |why: String| failed(format!("cannot resume send: {why}"));
    let found = start(at, source, to, redacted).map_err(|e| cannot(e.to_string()))?;
    found.map(Some).ok_or_else(|| cannot(format!("incremental source {:#x} no longer exists", at.from_guid)))
}

fn start(at: &Token, source: &Query, to: &Snap, redacted: Option<&[u64]>) -> Result<Option<String>, Failed> {
    let head = |name: &str| name.split('@').next().unwrap_or_default().to_owned();
    let (mut dir, mut limit) = (head(&to.name), Txg(u64::MAX));
    loop {
        if let Some(start) = start_in(source, &dir, at, to, redacted)? {
            return Ok(Some(start));
        }
        // origins get older
        let Some(origin) = facts::origin(source, &dir)?.filter(|origin| origin.txg < limit) else { return Ok(None) };
        (dir, limit) = (head(&origin.name), origin.txg);
    }
}

/// The start among the snapshots and bookmarks of `head`: with `redacted`, one with the same redaction; without, a
/// snapshot is preferred to a bookmark.
fn start_in(
    source: &Query,
    head: &str,
    at: &Token,
    to: &Snap,
    redacted: Option<&[u64]>,
) -> Result<Option<String>, Failed> {
    let snapshot = facts::snapshots(source, head)?.into_iter().find(|snapshot| snapshot.guid == at.from_guid);
    let snapshot = match snapshot {
        Some(snapshot) if !facts::is_before(source, (head, snapshot.txg), to)? => None,
        snapshot => snapshot,
    };
    let mut marks = marks(source, head, at.from_guid)?;
    let Some(wanted) = redacted else {
        if snapshot.is_none() && marks.len() > 1 {
            marks.sort_by_key(|mark| facts::is_redaction(source, mark));
        }
        return Ok(snapshot.map(|snapshot| snapshot.name).or_else(|| marks.into_iter().next()));
    };
    for mark in marks {
        let props = source.call(Ioc::GetBookmarkProps, &mark, &NvList::new())?;
        let snaps = props.get_nvlist("redact_snaps").and_then(|prop| prop.get_u64_array("value"));
        let snaps = snaps.map(|snaps| snaps.iter().copied().map(Guid).collect::<Vec<_>>());
        if snaps.is_some_and(|snaps| same(&snaps, wanted)) {
            return Ok(Some(mark));
        }
    }
    let Some(snapshot) = snapshot else { return Ok(None) };
    let snaps = facts::redact_snaps(source, &snapshot.name)?;
    Ok(snaps.is_some_and(|snaps| same(&snaps, wanted)).then_some(snapshot.name))
}

/// The bookmarks of the snapshot with this guid. Their redaction lists are not read, which may be damaged.
fn marks(source: &Query, head: &str, guid: Guid) -> Result<Vec<String>, Failed> {
    let mut keys = NvList::new();
    keys.insert("guid", ());
    let answer = source.call(Ioc::GetBookmarks, head, &keys)?;
    let own = |mark: &NvList| mark.get_nvlist("guid").and_then(|prop| prop.get_u64("value")).map(Guid);
    let all = answer.iter().filter(|(_, mark)| mark.as_nvlist().and_then(own) == Some(guid));
    Ok(all.map(|(short, _)| format!("{head}#{short}")).collect())
}

/// Returns whether two lists name the same snapshots.
fn same(some: &[Guid], words: &[u64]) -> bool {
    some.len() == words.len() && some.iter().all(|guid| words.contains(&guid.0))
}

fn rest(options: &Options, list: &NvList, at: &Token, (source, to): (&Query, &Snap), flags: &SendFlags) -> Outcome {
    if let Some(wanted) = list.get_u64_array("redact_snaps") {
        // a dataset that was received redacted is sent on as it is
        let own = facts::redact_snaps(source, &to.name).map_err(|e| failed(format!("cannot resume send: {e}")))?;
        if !own.is_some_and(|own| same(&own, wanted)) {
            return Err(failed("cannot resume send: making redacted streams is not in this version of Zuse"));
        }
    }
    let from = from(at, source, to, list.get_u64_array("book_redact_snaps"))?;
    let stream = Stream { source, to: &to.name, from: from.as_deref(), flags };
    let mut size = 0;
    if options.verbosity > 0 {
        size = stream.estimate(at.bytes)?;
        if options.progress || options.parsable {
            tell(options, &line(&to.name, from.as_deref(), size, options.parsable))?;
            tell(options, &total(size, options.parsable, false))?;
        }
    }
    if options.dry {
        return Ok(0);
    }
    stream.send(&console::raw_stdout(), options, size, "source key must be loaded")?;
    Ok(0)
}
