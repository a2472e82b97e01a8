//! The facts about an open pool that several commands show.

use std::sync::Arc;

use nvlist::NvList;
use pool::Pool;
use pool::prop::{PropValue, Source, Value};

use crate::columns::number_or_text;
use crate::here::here;

/// A property of an open pool.
pub(super) fn prop(pool: &Arc<Pool>, name: &str) -> Result<Option<PropValue>, pool::Error> {
    Ok(pool.prop(name)?.map(|value| as_imported(pool, name, value)))
}

/// All properties of an open pool.
pub(super) fn props(pool: &Arc<Pool>) -> Result<Vec<(String, PropValue)>, pool::Error> {
    let each = |(name, value): (String, PropValue)| {
        let value = as_imported(pool, &name, value);
        (name, value)
    };
    Ok(pool.props()?.into_iter().map(each).collect())
}

/// Adjusts properties of the import: commands open a pool for reading however it was imported, and how it was is in
/// its record.
fn as_imported(pool: &Pool, name: &str, value: PropValue) -> PropValue {
    let (writable, load_guid) =
        here().opened_as(pool).map(|record| (!record.readonly, record.load_guid)).unwrap_or_default();
    match name {
        "readonly" if writable => PropValue { value: Value::Number(0), source: Source::Default, received: None },
        "health" if site::suspended::of(pool.guid()).is_some() => PropValue::text("SUSPENDED"),
        "load_guid" if load_guid != 0 => PropValue::computed(load_guid),
        _ => value,
    }
}

/// The JSON fields of each pool (OpenZFS: `fill_pool_info`).
pub(super) fn describe(pool: &Arc<Pool>, with_type: bool, as_int: bool) -> NvList {
    let number = |n: u64| number_or_text(&n.to_string(), as_int);
    let mut list = NvList::new();
    list.insert("name", pool.name());
    if with_type {
        list.insert("type", "POOL");
    }
    let state = pool.tree().status().state.name();
    list.insert("state", if site::suspended::of(pool.guid()).is_some() { "SUSPENDED" } else { state });
    list.insert("pool_guid", number(pool.guid().0));
    list.insert("txg", number(pool.uberblock().txg.0));
    list.insert("spa_version", number(5000));
    list.insert("zpl_version", number(5));
    list
}

/// The key of a pool in JSON.
pub(super) fn json_key(pool: &Pool, by_guid: bool) -> String {
    if by_guid { pool.guid().to_string() } else { pool.name().to_owned() }
}
