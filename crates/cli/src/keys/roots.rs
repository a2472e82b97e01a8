//! Encryption roots whose keys are not loaded.

use control::{Failed, Ioc};
use nvlist::NvList;
use pool::KeyStatus;
use site::Query;

use crate::answers;

/// An encryption root.
pub(crate) struct Root {
    pub(crate) name: String,
    /// Its property `keylocation`; empty if it has none.
    pub(crate) location: String,
}

/// The properties that tell of one.
const PROPS: [&str; 3] = ["encryptionroot", "keystatus", "keylocation"];

/// The encryption roots of a pool that have no key, in the order of their names. Where all cannot be asked about at once, each is by itself: then it is known
/// which dataset cannot be read.
pub(crate) fn without_key(query: &Query) -> Result<Vec<Result<Root, Failed>>, Failed> {
    let mut input = NvList::new();
    input.insert("props", answers::names(PROPS));
    input.insert("depth", u64::from(u32::MAX));
    input.insert("simple", ());
    let below = query.call(Ioc::DatasetListNext, query.name(), &input).or_else(|_| {
        input.remove("props");
        query.call(Ioc::DatasetListNext, query.name(), &input)
    })?;
    let below = below.iter().map(|(name, list)| (name, list.as_nvlist().and_then(|list| list.get_nvlist("props"))));
    let all = std::iter::once((query.name(), None)).chain(below);
    let root = |(name, props): (&str, Option<&NvList>)| match props {
        Some(props) => Ok(locked_root(name, props)),
        None => ask(query, name),
    };
    Ok(all.filter_map(|one| root(one).transpose()).collect())
}

/// The dataset of this name, if it is an encryption root without a key.
fn ask(query: &Query, name: &str) -> Result<Option<Root>, Failed> {
    let mut input = NvList::new();
    input.insert("props", answers::names(PROPS));
    Ok(locked_root(name, &query.call(Ioc::ObjsetStats, name, &input)?))
}

/// The dataset with these properties, if it is an encryption root without a key.
fn locked_root(name: &str, props: &NvList) -> Option<Root> {
    let value = |prop: &str| props.get_nvlist(prop).and_then(|prop| answers::value(prop, "value"));
    let is_root = value("encryptionroot")?.text() == Some(name);
    let is_locked = value("keystatus")?.number() == Some(KeyStatus::Unavailable.number());
    let location = value("keylocation").map_or_else(String::new, |location| location.to_string());
    (is_root && is_locked).then(|| Root { name: name.to_owned(), location })
}
