//! Encryption roots whose keys are not loaded.

use control::{Failed, Ioc};
use nvlist::NvList;
use site::Query;

use crate::answers;

/// Property `keystatus`: unavailable.
const UNAVAILABLE: u64 = 1;

/// An encryption root.
pub(crate) struct Root {
    pub(crate) name: String,
    /// Its property `keylocation`; empty if it has none.
    pub(crate) location: String,
}

/// The encryption roots of a pool that have no key, in the order of their names.
pub(crate) fn without_key(query: &Query) -> Result<Vec<Root>, Failed> {
    let mut input = NvList::new();
    input.insert("props", answers::names(["encryptionroot", "keystatus", "keylocation"]));
    let top = query.call(Ioc::ObjsetStats, query.name(), &input)?;
    input.insert("depth", u64::from(u32::MAX));
    input.insert("simple", ());
    let below = query.call(Ioc::DatasetListNext, query.name(), &input)?;
    let below = below.iter().filter_map(|(name, list)| Some((name, list.as_nvlist()?.get_nvlist("props")?)));
    let all = std::iter::once((query.name(), &top)).chain(below);
    Ok(all.filter_map(|(name, props)| locked_root(name, props)).collect())
}

/// The dataset with these properties, if it is an encryption root without a key.
fn locked_root(name: &str, props: &NvList) -> Option<Root> {
    let value = |prop: &str| props.get_nvlist(prop).and_then(|prop| answers::value(prop, "value"));
    let is_root = value("encryptionroot")?.text() == Some(name);
    let is_locked = value("keystatus")?.number() == Some(UNAVAILABLE);
    let location = value("keylocation").map_or_else(String::new, |location| location.to_string());
    (is_root && is_locked).then(|| Root { name: name.to_owned(), location })
}
