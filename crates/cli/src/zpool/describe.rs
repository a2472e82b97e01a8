//! The facts about an open pool that several commands show.

use control::Ioc;
use control::stats::{SUSPENDED, VdevStats};
use nvlist::NvList;
use ondisk::label::key;
use pool::prop::format_pool;
use site::Query;

use crate::answers::{self, cannot_get, numbered_source};
use crate::columns::{Cell, Column, number_or_text};
use crate::error::{Failure, failed};

/// The properties of an open pool: all, and those of these columns.
pub(super) fn props(query: &Query, columns: &[Column]) -> Result<NvList, Failure> {
    let mut input = NvList::new();
    let wanted = columns.iter().map(|column| column.name.as_str()).filter(|name| *name != "name");
    input.insert("get_props_names", answers::names(wanted));
    let answer = query.call(Ioc::PoolGetProps, query.name(), &input);
    answer.map_err(|e| failed(cannot_get(&e, query.name())))
}

/// A property as it is printed; `None` if the pool does not have it.
pub(super) fn cell(props: &NvList, name: &str, parsable: bool) -> Option<Cell> {
    let prop = props.get_nvlist(name)?;
    let text = format_pool(name, &answers::value(prop, "value")?, parsable);
    Some(Cell { text, source: numbered_source(prop), received: None })
}

/// The JSON fields of each pool (OpenZFS: `fill_pool_info`).
pub(super) fn describe(config: &NvList, with_type: bool, as_int: bool) -> NvList {
    let number = |n: u64| number_or_text(&n.to_string(), as_int);
    let mut list = NvList::new();
    list.insert("name", config.get_str(key::POOL_NAME).unwrap_or_default());
    if with_type {
        list.insert("type", "POOL");
    }
    let root = config.get_nvlist(key::VDEV_TREE).map(VdevStats::of).unwrap_or_default();
    list.insert("state", if config.contains(SUSPENDED) { "SUSPENDED" } else { root.health().0.name() });
    list.insert("pool_guid", number(config.get_u64(key::POOL_GUID).unwrap_or(0)));
    list.insert("txg", number(config.get_u64(key::POOL_TXG).unwrap_or(0)));
    list.insert("spa_version", number(5000));
    list.insert("zpl_version", number(5));
    list
}

/// The key of a pool in JSON.
pub(super) fn json_key(config: &NvList, by_guid: bool) -> String {
    match by_guid {
        true => config.get_u64(key::POOL_GUID).unwrap_or(0).to_string(),
        false => config.get_str(key::POOL_NAME).unwrap_or_default().to_owned(),
    }
}
