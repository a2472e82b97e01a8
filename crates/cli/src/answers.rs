//! Properties as answers of requests hold them: lists with `value` and `source` (OpenZFS: `zfs_prop_get`, `zpool_get_prop`).

use control::{Failed, Ioc};
use nvlist::{NvList, NvString, Value as Nv};
use pool::Value;
use pool::prop::Source;
use site::Query;

/// The source of a value that came with a stream.
const RECEIVED: &str = "$recvd";

/// Names in a request.
pub(crate) fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> Nv {
    Nv::StringArray(names.into_iter().map(NvString::from).collect())
}

/// Asks for one property of a dataset; `None` if it does not have it.
pub(crate) fn prop(source: &Query, dataset: &str, name: &str) -> Result<Option<Value>, Failed> {
    let mut input = NvList::new();
    input.insert("props", names([name]));
    let answer = source.call(Ioc::ObjsetStats, dataset, &input)?;
    Ok(answer.get_nvlist(name).and_then(|prop| value(prop, "value")))
}

/// A value in the list of a property: `value`, or `received`.
pub(crate) fn value(prop: &NvList, key: &str) -> Option<Value> {
    match prop.get(key)? {
        Nv::Uint64(number) => Some(Value::Number(*number)),
        Nv::String(text) => Some(Value::String(text.to_string_lossy().into_owned())),
        _ => None,
    }
}

/// Where a property of a pool or vdev is set, by the number of OpenZFS's `zprop_source_t`.
pub(crate) fn numbered_source(prop: &NvList) -> Source {
    prop.get_u64("source").map_or(Source::None, Source::of_number)
}

/// Where a property of `dataset` is set: by the name of the dataset.
pub(crate) fn named_source(prop: &NvList, dataset: &str) -> Source {
    match prop.get_str("source") {
        None => Source::None,
        Some("") => Source::Default,
        Some(RECEIVED) => Source::Received,
        Some(name) if name == dataset => Source::Local,
        Some(name) => Source::Inherited(name.to_owned()),
    }
}

/// The message of a request that failed: about one property, where the answer names it, else about all of `of`.
pub(crate) fn cannot_get(failed: &Failed, of: &str) -> String {
    match failed.out.iter().next() {
        Some((name, _)) => format!("cannot get property '{name}' of '{of}': {failed}"),
        None => format!("cannot get properties of '{of}': {failed}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_named_or_numbered() {
        let prop = |source: Nv| {
            let mut prop = NvList::new();
            prop.insert("source", source);
            prop
        };
        let named = |name: &str| named_source(&prop(name.into()), "t/a");
        assert_eq!([named(""), named("$recvd"), named("t/a")], [Source::Default, Source::Received, Source::Local]);
        assert_eq!(named("t"), Source::Inherited("t".to_owned()));
        assert_eq!(named_source(&NvList::new(), "t/a"), Source::None);
        let numbered = |number: u64| numbered_source(&prop(number.into()));
        assert_eq!([1, 2, 8].map(numbered), [Source::None, Source::Default, Source::Local]);
    }
}
