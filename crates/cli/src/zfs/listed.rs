//! Datasets, snapshots and bookmarks as requests list them, with the properties that a command shows.
//!
//! One request answers for everything below a dataset, with the properties that are wanted of each. Where one of these cannot be read, everything is listed
//! without, and each is asked by itself when it is shown: then it is known which one it was.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::cmp::Ordering;
use std::sync::Arc;

use base::Guid;
use control::{Failed, Ioc};
use mounts::Flag;
use nvlist::{NvList, Value as Nv};
use pool::prop::{self, BOOK, DATASET, PropDef, Source};
use pool::{KeyStatus, Kind, Value};
use site::Query;

use crate::answers::{self, cannot_get, named_source};
use crate::columns::{Cell, Column, number_or_text};
use crate::console;
use crate::error::{Failure, failed};
use crate::names::Types;
use crate::props::valid::Existing;
use crate::users;

/// The type of a dataset (OpenZFS: `dmu_objset_type_t`), as far as the words of `type` are known for it.
const OST_ZFS: i32 = 2;
const OST_ZVOL: i32 = 3;
/// Property `encryption`: off.
const CRYPT_OFF: u64 = 2;

/// What is wanted of each dataset beside its name.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// These properties.
    props: Vec<String>,
    /// All of them.
    all: bool,
    /// Its type.
    types: bool,
}

impl Wanted {
    /// The properties in these columns; all for `None`.
    pub(super) fn of(columns: Option<&[Column]>) -> Wanted {
        let mut wanted = Wanted { all: columns.is_none(), ..Wanted::default() };
        wanted.add(columns.unwrap_or(&[]));
        wanted
    }

    /// These properties.
    pub(super) fn props(names: &[&str]) -> Wanted {
        Wanted { props: names.iter().map(|name| (*name).to_owned()).collect(), ..Wanted::default() }
    }

    /// Whether types are wanted.
    pub(super) fn has_types(&self) -> bool {
        self.types
    }

    /// The same, with the types of datasets or without.
    pub(super) fn typed(self, types: bool) -> Wanted {
        Wanted { types, ..self }
    }

    /// Adds the properties in these columns.
    pub(super) fn add<'a>(&mut self, columns: impl IntoIterator<Item = &'a Column>) {
        for column in columns.into_iter().filter(|column| column.name != "name") {
            let name = stored_name(&column.name).into_owned();
            if !self.props.contains(&name) {
                self.props.push(name);
            }
        }
    }

    /// The keys of what is wanted of bookmarks, and of what orders them; none for all there is.
    fn of_bookmarks(&self) -> NvList {
        let mut keys = NvList::new();
        if !self.all {
            self.props.iter().map(String::as_str).chain(["createtxg"]).for_each(|name| keys.insert(name, ()));
        }
        keys
    }

    fn put(&self, input: &mut NvList) {
        if self.all {
            input.insert("props", answers::names([]));
        } else if !self.props.is_empty() {
            input.insert("props", answers::names(self.props.iter().map(String::as_str)));
        }
    }
}

/// The name by which a property is stored: users by their ids.
fn stored_name(name: &str) -> Cow<'_, str> {
    users::by_id(name).map_or(Cow::Borrowed(name), Cow::Owned)
}

/// A dataset, snapshot or bookmark.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    source: Arc<Query>,
    name: String,
    /// The txg in which it was made, if that is known.
    txg: Option<u64>,
    /// Its guid, if that is known.
    guid: Option<u64>,
    /// The word of its type, if that is known.
    kind: Option<&'static str>,
    /// What is wanted of it.
    wanted: Arc<Wanted>,
    /// That, once it is known.
    props: OnceCell<NvList>,
}

impl Listed {
    /// Asks for one of them by its name.
    pub(super) fn ask(source: &Arc<Query>, name: &str, wanted: &Wanted) -> Result<Listed, Failed> {
        if name.contains('#') {
            let mark = source.call(Ioc::GetBookmarkProps, name, &NvList::new())?;
            return Listed::of_bookmark(source, name, &mark);
        }
        let mut input = NvList::new();
        input.insert("props", answers::names(["type", "createtxg", "guid"]));
        let own = source.call(Ioc::ObjsetStats, name, &input)?;
        let value = |name: &str| own.get_nvlist(name).and_then(|prop| answers::value(prop, "value"));
        let number = |name: &str| value(name).and_then(|value| value.number());
        Ok(Listed {
            txg: Some(told_number(name, "createtxg", number("createtxg"))?),
            guid: number("guid"),
            kind: value("type").map(|word| kind_word(&word.to_string())),
            wanted: Arc::new(wanted.clone()),
            ..Listed::named(source, name.to_owned())
        })
    }

    /// Asks for one of them by its name, and takes the name that it has on disk: a snapshot of a file system that ignores case is found by others too.
    pub(super) fn find(source: &Arc<Query>, name: &str) -> Result<Listed, Failed> {
        let mut found = Listed::ask(source, name, &Wanted::default())?;
        if name.contains('@')
            && let Some(own) = found.text("name")?
        {
            found.name = own;
        }
        Ok(found)
    }

    /// A dataset or snapshot that exists, of which nothing else is known.
    pub(super) fn named(source: &Arc<Query>, name: String) -> Listed {
        let (source, wanted) = (source.clone(), Arc::default());
        Listed { source, name, txg: None, guid: None, kind: None, wanted, props: OnceCell::new() }
    }

    /// The topmost dataset of a pool, which is a file system. Nothing is read of it that is not asked for: the rest can be listed though its root block is lost.
    pub(super) fn top(source: &Arc<Query>, wanted: &Wanted) -> Result<Listed, Failed> {
        let mut input = NvList::new();
        input.insert("props", answers::names(["createtxg"]));
        let own = source.call(Ioc::ObjsetStats, source.name(), &input)?;
        let txg = own.get_nvlist("createtxg").and_then(|prop| prop.get_u64("value"));
        Ok(Listed {
            txg: Some(told_number(source.name(), "createtxg", txg)?),
            kind: Some("filesystem"),
            wanted: Arc::new(wanted.clone()),
            ..Listed::named(source, source.name().to_owned())
        })
    }

    /// One of an answer that lists them.
    fn of_answer(
        source: &Arc<Query>,
        name: String,
        answer: &mut NvList,
        wanted: &Arc<Wanted>,
    ) -> Result<Listed, Failed> {
        let kind = match answer.get_i32("dds_type") {
            _ if name.contains('@') => Some("snapshot"),
            Some(OST_ZFS) => Some("filesystem"),
            Some(OST_ZVOL) => Some("volume"),
            Some(_) => Some(""),
            None => None,
        };
        let props = match answer.remove("props") {
            Some(Nv::NvList(props)) => OnceCell::from(*props),
            _ => OnceCell::new(),
        };
        let number = |key: &'static str| told_number(&name, key, answer.get_u64(key)).map(Some);
        let (txg, guid) = (number("dds_creation_txg")?, number("dds_guid")?);
        Ok(Listed { source: source.clone(), name, txg, guid, kind, wanted: wanted.clone(), props })
    }

    /// A bookmark with the answer about it.
    fn of_bookmark(source: &Arc<Query>, name: &str, mark: &NvList) -> Result<Listed, Failed> {
        let number = |name: &str| mark.get_nvlist(name).and_then(|prop| prop.get_u64("value"));
        let mut props = NvList::new();
        for def in DATASET.iter().filter(|def| def.is_valid_for(BOOK)) {
            if let Some(value) = bookmark_value(def, name, mark) {
                let mut prop = NvList::new();
                prop.insert("value", value);
                props.insert(def.name, prop);
            }
        }
        Ok(Listed {
            txg: Some(told_number(name, "createtxg", number("createtxg"))?),
            guid: number("guid"),
            kind: Some("bookmark"),
            props: OnceCell::from(props),
            ..Listed::named(source, name.to_owned())
        })
    }

    /// Its full name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The pool that it is in.
    pub(super) fn source(&self) -> &Arc<Query> {
        &self.source
    }

    /// Returns whether it is a bookmark.
    pub(super) fn is_bookmark(&self) -> bool {
        self.name.contains('#')
    }

    /// Returns whether it is of one of these kinds, as far as its kind is known.
    pub(super) fn fits(&self, types: Types) -> bool {
        match self.kind {
            Some("filesystem") => types.filesystems,
            Some("volume") => types.volumes,
            Some("snapshot") => types.snapshots,
            Some("bookmark") => types.bookmarks,
            _ => false,
        }
    }

    /// Returns whether it is a snapshot.
    pub(super) fn is_snapshot(&self) -> bool {
        self.name.contains('@')
    }

    /// The name of a snapshot within its dataset.
    pub(super) fn short_name(&self) -> &str {
        self.name.split_once('@').map_or("", |(_, short)| short)
    }

    /// The txg in which it was made.
    pub(super) fn txg(&self) -> Result<u64, Failed> {
        match self.txg {
            Some(txg) => Ok(txg),
            None => told_number(&self.name, "createtxg", self.number("createtxg")?),
        }
    }

    /// Its kind.
    pub(super) fn kind(&self) -> Result<Kind, Failed> {
        let word = match self.kind {
            _ if self.is_snapshot() => "snapshot",
            Some(word) => word,
            None => self.text("type")?.map_or("", |word| kind_word(&word)),
        };
        Ok(match word {
            "filesystem" => Kind::Filesystem,
            "volume" => Kind::Volume,
            "snapshot" => Kind::Snapshot,
            _ => Kind::Other,
        })
    }

    /// Its kind, or that of the dataset that it is a snapshot of.
    pub(super) fn head_kind(&self) -> Result<Kind, Failed> {
        match self.name.split_once('@') {
            Some((head, _)) => Listed::named(&self.source, head.to_owned()).kind(),
            None => self.kind(),
        }
    }

    /// Its guid.
    pub(super) fn guid(&self) -> Result<u64, Failed> {
        match self.guid {
            Some(guid) => Ok(guid),
            None => told_number(&self.name, "guid", self.number("guid")?),
        }
    }

    /// The value of a property, wanted or not; `None` if it does not have it.
    pub(super) fn prop(&self, name: &str) -> Result<Option<Value>, Failed> {
        if self.wanted.all || self.wanted.props.iter().any(|wanted| wanted == name) {
            return self.value(name);
        }
        answers::prop(&self.source, &self.name, name)
    }

    /// The same as text.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, Failed> {
        Ok(self.prop(name)?.map(|value| value.to_string()))
    }

    /// The same as a number: a word by its number.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, Failed> {
        Ok(self.prop(name)?.and_then(|value| match value {
            Value::Number(number) => Some(number),
            Value::String(word) => prop::find(name)?.index_value(&word),
        }))
    }

    /// Whether a property that is a number is set, and not 0.
    pub(super) fn is(&self, name: &str) -> Result<bool, Failed> {
        Ok(self.number(name)?.is_some_and(|number| number != 0))
    }

    /// Whether it is encrypted.
    pub(super) fn is_encrypted(&self) -> Result<bool, Failed> {
        Ok(self.number("encryption")?.is_some_and(|cipher| cipher != CRYPT_OFF))
    }

    /// Whether its own key opens it.
    pub(super) fn is_encryption_root(&self) -> Result<bool, Failed> {
        Ok(self.text("encryptionroot")?.is_some_and(|root| root == self.name))
    }

    /// Whether it is encrypted, and its key is not loaded now.
    pub(super) fn lacks_key(&self) -> Result<bool, Failed> {
        Ok(self.number("keystatus")? == Some(KeyStatus::Unavailable.number()))
    }

    /// Whether it is encrypted, and its key is loaded now.
    pub(super) fn has_key(&self) -> Result<bool, Failed> {
        Ok(self.number("keystatus")? == Some(KeyStatus::Available.number()))
    }

    /// The datasets directly below, by name; of a snapshot, none.
    pub(super) fn children(&self) -> Result<Vec<Listed>, Failed> {
        if self.is_snapshot() {
            return Ok(Vec::new());
        }
        let mut children = below(&self.source, (&self.name, 1), false, &Wanted::default())?;
        children.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(children)
    }

    /// Its snapshots, oldest first; of a snapshot, none.
    pub(super) fn snapshots(&self, wanted: &Wanted) -> Result<Vec<Listed>, Failed> {
        if self.is_snapshot() {
            return Ok(Vec::new());
        }
        let mut all = snapshots(&self.source, (&self.name, 1), wanted)?;
        all.sort_by(|a, b| (a.txg, &a.name).cmp(&(b.txg, &b.name)));
        Ok(all)
    }

    /// The guids of its snapshots, oldest first.
    pub(super) fn snapshot_guids(&self) -> Result<Vec<u64>, Failed> {
        self.snapshots(&Wanted::default())?.iter().map(Listed::guid).collect()
    }

    /// Its snapshot of this name, by the name that it has on disk.
    pub(super) fn snapshot(&self, short: &str) -> Result<Option<Listed>, Failed> {
        match Listed::find(&self.source, &format!("{}@{short}", self.name)) {
            Ok(found) => Ok(Some(found)),
            Err(failed) if is_missing(&failed) => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    /// The clones of a snapshot.
    pub(super) fn clones(&self) -> Result<Vec<Listed>, Failed> {
        let names = self.text("clones")?.unwrap_or_default();
        let names = names.split(',').filter(|name| !name.is_empty());
        Ok(names.map(|name| Listed::named(&self.source, name.to_owned())).collect())
    }

    /// The order of `zfs list`: by name of the dataset, the dataset before its snapshots, these by age.
    pub(super) fn list_order(&self, other: &Listed) -> Ordering {
        let head = |name: &str| name.find('@').unwrap_or(name.len());
        let txg = |one: &Listed| one.txg.filter(|_| one.name.contains('@'));
        let (a, b) = (self.name(), other.name());
        let (a_head, b_head) = (a.get(..head(a)), b.get(..head(b)));
        a_head.cmp(&b_head).then_with(|| txg(self).cmp(&txg(other))).then_with(|| a.cmp(b))
    }

    /// The properties that are wanted of it.
    fn props(&self) -> Result<&NvList, Failed> {
        if let Some(props) = self.props.get() {
            return Ok(props);
        }
        let mut input = NvList::new();
        if !self.wanted.all {
            self.wanted.put(&mut input);
        }
        let props = if self.wanted.all || !self.wanted.props.is_empty() {
            self.source.call(Ioc::ObjsetStats, &self.name, &input)?
        } else {
            NvList::new()
        };
        Ok(self.props.get_or_init(|| props))
    }

    /// The value of a property that is wanted; `None` if it does not have it.
    pub(super) fn value(&self, name: &str) -> Result<Option<Value>, Failed> {
        Ok(self.props()?.get_nvlist(stored_name(name).as_bytes()).and_then(|prop| answers::value(prop, "value")))
    }

    /// The value of a column as it is printed; `None` if it does not have it.
    pub(super) fn cell(&self, column: &Column, parsable: bool) -> Result<Option<Cell>, Failure> {
        if column.name == "name" {
            return Ok(Some(Cell { text: self.name.clone(), ..Cell::none() }));
        }
        let props = self.props().map_err(|e| failed(cannot_get(&e, &self.name)))?;
        Ok(props
            .get_nvlist(stored_name(&column.name).as_bytes())
            .and_then(|prop| self.shown(&column.name, prop, parsable)))
    }

    /// All visible properties that it has, user properties last.
    pub(super) fn cells(&self, parsable: bool) -> Result<Vec<(Column, Cell)>, Failure> {
        let props = self.props().map_err(|e| failed(cannot_get(&e, &self.name)))?;
        let mut cells = Vec::with_capacity(props.len());
        for (name, value) in props {
            let def = prop::find(name);
            let cell = value.as_nvlist().and_then(|prop| self.shown(name, prop, parsable));
            if let Some(cell) = cell.filter(|_| def.is_none_or(|def| def.visible)) {
                cells.push((def.map_or_else(|| Column::other(name), Column::native), cell));
            }
        }
        Ok(cells)
    }

    fn shown(&self, name: &str, prop: &NvList, parsable: bool) -> Option<Cell> {
        let show = |value: &Value| prop::format(name, value, parsable);
        let value = answers::value(prop, "value")?;
        let received = answers::value(prop, "received").as_ref().map(show);
        let source = named_source(prop, &self.name);
        let (value, source) = match self.mounted_value(name) {
            Some(mounted) => mounted,
            None => (value, source),
        };
        Some(Cell { text: show(&value), source, received })
    }

    /// The value that the mount of a file system gives a property, if that is another one (OpenZFS: `get_numeric_property`).
    fn mounted_value(&self, name: &str) -> Option<(Value, Source)> {
        if name == "mounted" {
            return console::shown_mount(&self.name).map(|_| (Value::Number(1), Source::None));
        }
        let flag = Flag::of_property(name)?;
        let value = console::shown_mount(&self.name)?.temporary(flag)?;
        Some((Value::Number(u64::from(value)), Source::Temporary))
    }

    /// The JSON fields of each dataset besides its properties (OpenZFS: `fill_dataset_info`).
    pub(super) fn describe(&self, as_int: bool) -> Result<NvList, Failure> {
        let txg = self.txg().map_err(|e| failed(cannot_get(&e, &self.name)))?;
        let mut list = NvList::new();
        list.insert("name", self.name.as_str());
        list.insert("type", self.kind.unwrap_or_default().to_ascii_uppercase());
        list.insert("pool", self.name.split(['/', '@', '#']).next().unwrap_or(""));
        list.insert("createtxg", number_or_text(&txg.to_string(), as_int));
        if let Some((of, snapshot)) = self.name.split_once('@') {
            list.insert("dataset", of);
            list.insert("snapshot_name", snapshot);
        }
        Ok(list)
    }
}

impl Existing for Listed {
    fn number(&self, name: &str) -> Option<u64> {
        Listed::number(self, name).ok().flatten()
    }
}

/// A number that an answer about `name` must have: what is destroyed and what stays is decided by it.
fn told_number(name: &str, what: &'static str, number: Option<u64>) -> Result<u64, Failed> {
    number.ok_or_else(|| control::Error::Damaged(format!("the answer about '{name}' has no {what}")).into())
}

/// The word of a type, among those that are known.
fn kind_word(word: &str) -> &'static str {
    ["filesystem", "volume", "snapshot"].into_iter().find(|known| *known == word).unwrap_or("")
}

/// Whether a request failed because its dataset does not exist.
pub(super) fn is_missing(failed: &Failed) -> bool {
    matches!(&*failed.error, control::Error::Pool(e) if e.is_not_found())
}

/// What `ioc` lists up to `depth` levels below a dataset, with what these keys ask for.
fn list(
    source: &Arc<Query>,
    ioc: Ioc,
    (name, depth): (&str, u64),
    keys: &[&str],
    wanted: &Wanted,
) -> Result<Vec<Listed>, Failed> {
    let mut input = NvList::new();
    input.insert("depth", depth);
    keys.iter().for_each(|key| input.insert(*key, ()));
    if !wanted.types {
        input.insert("simple", ());
    }
    wanted.put(&mut input);
    let mut answer = source.call(ioc, name, &input).or_else(|failed| match input.remove("props") {
        Some(_) => source.call(ioc, name, &input),
        None => Err(failed),
    })?;
    let wanted = Arc::new(wanted.clone());
    let mut all = Vec::with_capacity(answer.len());
    for (name, value) in answer.iter_mut() {
        if let Nv::NvList(list) = value {
            all.push(Listed::of_answer(source, name.to_owned(), list, &wanted)?);
        }
    }
    Ok(all)
}

/// The datasets up to `depth` levels below one, and the snapshots if they are wanted.
pub(super) fn below(
    source: &Arc<Query>,
    (name, depth): (&str, u64),
    snapshots: bool,
    wanted: &Wanted,
) -> Result<Vec<Listed>, Failed> {
    let keys: &[&str] = if snapshots { &["snapshots"] } else { &[] };
    list(source, Ioc::DatasetListNext, (name, depth), keys, wanted)
}

/// The snapshots of a dataset and of those below it, up to `depth` levels below.
pub(super) fn snapshots(
    source: &Arc<Query>,
    (name, depth): (&str, u64),
    wanted: &Wanted,
) -> Result<Vec<Listed>, Failed> {
    list(source, Ioc::SnapshotListNext, (name, depth), &[], wanted)
}

/// The name of the dataset or snapshot with this guid, also if it is one that only OpenZFS gives: the nearest to what was called `near`, for which ever more is looked through
/// (OpenZFS: `guid_to_name`).
pub(super) fn with_guid(source: &Arc<Query>, near: &str, guid: Guid) -> Result<Option<String>, Failed> {
    let head = near.split('@').next().unwrap_or(near);
    for above in std::iter::successors(Some(head), |name| name.rsplit_once('/').map(|(above, _)| above)) {
        match with_guid_below(source, above, guid) {
            // it has another name by now
            Err(failed) if is_missing(&failed) => {}
            Ok(None) => {}
            found => return found,
        }
    }
    Ok(None)
}

/// The one with this guid at or below a dataset. Of several, as of a snapshot that was received into its own pool again, the one that comes first where a dataset comes before those
/// below it, and of these the last name.
fn with_guid_below(source: &Arc<Query>, top: &str, guid: Guid) -> Result<Option<String>, Failed> {
    let top = Listed::named(source, top.to_owned());
    if top.guid()? == guid.0 {
        return Ok(Some(top.name));
    }
    let (below, keys) = ((top.name.as_str(), u64::from(u32::MAX)), ["snapshots", "special"]);
    let all = list(source, Ioc::DatasetListNext, below, &keys, &Wanted::default())?;
    let head = |name: &str| name.split('@').next().unwrap_or(name).to_owned();
    let order = |a: &Listed, b: &Listed| {
        let (a, b) = (head(&a.name), head(&b.name));
        let differing = a.split('/').zip(b.split('/')).find(|(a, b)| a != b);
        differing.map_or_else(|| a.len().cmp(&b.len()), |(a, b)| b.cmp(a))
    };
    Ok(all.into_iter().filter(|one| one.guid == Some(guid.0)).min_by(order).map(|one| one.name))
}

/// The bookmarks of a dataset and of all below: those of `depth` levels. Only what is wanted is read of them: a redaction list may be damaged.
pub(super) fn bookmarks(
    source: &Arc<Query>,
    (name, depth): (&str, u64),
    wanted: &Wanted,
) -> Result<Vec<Listed>, Failed> {
    let Some(above) = depth.checked_sub(1) else { return Ok(Vec::new()) };
    let mut heads = vec![name.to_owned()];
    if above > 0 {
        let below = below(source, (name, above), false, &Wanted::default())?;
        heads.extend(below.into_iter().map(|head| head.name));
    }
    let (mut all, keys) = (Vec::new(), wanted.of_bookmarks());
    for head in heads {
        let marks = source.call(Ioc::GetBookmarks, &head, &keys)?;
        for (short, mark) in marks.iter().filter_map(|(short, mark)| Some((short, mark.as_nvlist()?))) {
            if mark.contains("errno") {
                return Err(control::Error::Damaged(format!("the bookmark '{head}#{short}' cannot be read")).into());
            }
            all.push(Listed::of_bookmark(source, &format!("{head}#{short}"), mark)?);
        }
    }
    Ok(all)
}

/// A property of a bookmark, as the answer about it has it; its name and its type are not in there.
fn bookmark_value(def: &PropDef, name: &str, mark: &NvList) -> Option<Nv> {
    let value = || mark.get_nvlist(def.name)?.get("value");
    match def.name {
        "type" => Some("bookmark".into()),
        "name" => Some(name.into()),
        "guid" | "createtxg" | "creation" | "referenced" | "logicalreferenced" => value().cloned(),
        "ivsetguid" => value().filter(|value| value.as_u64() != Some(0)).cloned(),
        "redact_snaps" => match value()? {
            Nv::Uint64Array(guids) if guids.is_empty() => Some("none".into()),
            Nv::Uint64Array(guids) => {
                let texts: Vec<String> = guids.iter().map(u64::to_string).collect();
                Some(texts.join(",").into())
            }
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_lacks_a_number_is_an_error() {
        assert_eq!(told_number("t@a", "createtxg", Some(0)).ok(), Some(0));
        let failed = told_number("t@a", "createtxg", None).map_err(|e| (e.errno, e.to_string()));
        assert_eq!(failed, Err((base::Errno::EIO, "the answer about 't@a' has no createtxg".to_owned())));
    }
}
