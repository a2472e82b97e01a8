//! Decodes the lists of requests.

use nvlist::{NvList, Value as Nv};
use pool::prop::{BadValue, check_value};
use pool::{Refusal, Value};

use crate::Error;

/// Bytes that the name of a property, and its value, may have (OpenZFS: `ZAP_MAXNAMELEN`, `ZAP_MAXVALUELEN`, each with an end).
const NAME_MAX: usize = 255;
const VALUE_MAX: usize = 8191;

/// Quotas of users and their like: families with their numbers (OpenZFS: `zfs_userquota_prop_t`).
pub(crate) const QUOTA_FAMILIES: [(u64, &str); 6] = [
    (1, "userquota"),
    (3, "groupquota"),
    (5, "userobjquota"),
    (7, "groupobjquota"),
    (9, "projectquota"),
    (11, "projectobjquota"),
];

/// The quota of a user, group or project.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Quota {
    /// `userquota`, `groupobjquota`, …
    pub(crate) family: &'static str,
    /// The domain of a Windows identity, else empty.
    pub(crate) domain: String,
    /// User, group or project; in a domain, the last part of the identity.
    pub(crate) id: u64,
    /// Bytes or objects; 0 for none.
    pub(crate) value: u64,
}

/// A list of properties.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Props {
    /// Names and values.
    pub(crate) values: Vec<(String, Value)>,
    /// Quotas of users and their like.
    pub(crate) quotas: Vec<Quota>,
}

impl Props {
    /// Decodes a list from name to number or text. Quotas of users are arrays of family, id and value.
    pub(crate) fn decode(list: Option<&NvList>) -> Result<Props, Error> {
        let mut props = Props::default();
        for (name, value) in list.into_iter().flatten() {
            if name.len() > NAME_MAX {
                return Err(Error::NameTooLong(name.to_owned()));
            }
            match value {
                Nv::Uint64(n) => props.values.push((name.to_owned(), Value::Number(*n))),
                Nv::String(text) => {
                    let text = text.to_str().ok_or_else(|| Error::Invalid(format!("value of '{name}' is no text")))?;
                    if text.len() > VALUE_MAX {
                        return Err(Error::ValueTooLong(name.to_owned()));
                    }
                    props.values.push((name.to_owned(), Value::String(text.to_owned())));
                }
                Nv::Uint64Array(array) => props.quotas.push(quota(name, array)?),
                _ => return Err(Error::Invalid(format!("value of '{name}' is neither a number nor text"))),
            }
        }
        Ok(props)
    }

    /// As [`Props::decode`], of a dataset: each value is one that its property can have.
    pub(crate) fn of_dataset(list: Option<&NvList>) -> Result<Props, Error> {
        let props = Props::decode(list)?;
        for (name, value) in &props.values {
            let refused = |bad: BadValue| pool::Error::Refused { name: name.clone(), why: Refusal::Invalid(bad.why()) };
            check_value(name, value).map_err(refused)?;
        }
        Ok(props)
    }

    /// Takes a number out.
    pub(crate) fn take_number(&mut self, name: &str) -> Option<u64> {
        self.take(name)?.number()
    }

    /// Takes a text out.
    pub(crate) fn take_text(&mut self, name: &str) -> Option<String> {
        self.take(name)?.text().map(str::to_owned)
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        let place = self.values.iter().position(|(n, _)| n == name)?;
        Some(self.values.remove(place).1)
    }
}

/// `userquota@<hexadecimal id>-<domain>`, with an array of family, id, value.
fn quota(name: &str, array: &[u64]) -> Result<Quota, Error> {
    let broken = || Error::Invalid(format!("'{name}' is not a quota"));
    let &[number, id, value] = array else { return Err(broken()) };
    let (_, family) = QUOTA_FAMILIES.iter().find(|(n, _)| *n == number).ok_or_else(broken)?;
    let of = name.strip_prefix(family).and_then(|rest| rest.strip_prefix('@')).ok_or_else(broken)?;
    let (hex, domain) = of.split_once('-').ok_or_else(broken)?;
    if u64::from_str_radix(hex, 16) != Ok(id) {
        return Err(broken());
    }
    Ok(Quota { family, domain: domain.to_owned(), id, value })
}

/// The names in a list.
pub(crate) fn names(list: &NvList) -> Vec<String> {
    list.iter().map(|(name, _)| name.to_owned()).collect()
}

/// A text that must be there.
pub(crate) fn require_str<'a>(list: &'a NvList, key: &'static str) -> Result<&'a str, Error> {
    list.require_str(key).map_err(|e| Error::Invalid(e.to_string()))
}

/// A number that must be there.
pub(crate) fn require_u64(list: &NvList, key: &'static str) -> Result<u64, Error> {
    list.require_u64(key).map_err(|e| Error::Invalid(e.to_string()))
}

/// A list that must be there.
pub(crate) fn require_list<'a>(list: &'a NvList, key: &'static str) -> Result<&'a NvList, Error> {
    list.require_nvlist(key).map_err(|e| Error::Invalid(e.to_string()))
}

#[cfg(test)]
mod tests {
    use base::Errno;

    use super::*;

    #[test]
    fn quotas_name_their_family_twice() {
        let good = Quota { family: "groupobjquota", domain: String::new(), id: 26, value: 5 };
        assert_eq!(quota("groupobjquota@1a-", &[7, 26, 5]).ok(), Some(good));
        for (name, array) in [
            ("groupquota@1a-", [7u64, 26, 5].as_slice()),
            ("groupobjquota@1b-", &[7, 26, 5]),
            ("groupobjquota@1a", &[7, 26, 5]),
            ("groupobjquota@1a-", &[6, 26, 5]),
            ("groupobjquota@1a-", &[7, 26]),
        ] {
            assert_eq!(quota(name, array).map_err(|e| e.errno()), Err(Errno::EINVAL), "{name} {array:?}");
        }
    }

    #[test]
    fn properties_are_numbers_or_text() {
        let mut list = NvList::new();
        list.insert("compression", 15u64);
        list.insert("a:b", "c");
        let mut props = Props::decode(Some(&list)).unwrap_or_default();
        assert_eq!(props.take_text("a:b").as_deref(), Some("c"));
        assert_eq!(props.take_number("compression"), Some(15));
        assert_eq!(props, Props::default());
        list.insert("bad", true);
        assert!(Props::decode(Some(&list)).is_err());
    }
}
