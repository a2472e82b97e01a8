//! `zpool set`.

use control::Ioc;
use control::stats::FEATURE_STATS;
use nvlist::NvList;
use ondisk::label::key;
use pool::feature::{self, FEATURES};
use site::Imported;

use super::vdevs::whole_stats;
use crate::command::Call;
use crate::console::here;
use crate::error::{Failure, Outcome, failed, usage};
use crate::props::compat::Compat;
use crate::props::pool::{self as pool_props, When};
use crate::props::values;
use crate::{pools, writable};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let operands = call.args.names();
    let (said, name, vdev) = match operands.as_slice() {
        [] => return Err(usage("missing property=value argument")),
        [_] => return Err(usage("missing pool name")),
        [said, name] => (said, name, None),
        [said, name, vdev] => (said, name, Some(vdev)),
        _ => return Err(usage("too many pool names")),
    };
    let (property, value) = said.split_once('=').ok_or_else(|| usage("missing value in property=value argument"))?;
    let record = here().find(name)?.ok_or_else(|| failed(format!("cannot open '{name}': is not a pool")))?;
    match vdev {
        None => set(&record, property, value)?,
        Some(vdev) => super::vdev_props::set(&record, vdev, property, value)?,
    }
    Ok(0)
}

fn set(record: &Imported, property: &str, text: &str) -> Result<(), Failure> {
    let config = whole_stats(&pools::query(record)?)?;
    check_compatibility(&record.name, &config, property, text).map_err(failed)?;
    let doing = format!("cannot set property for '{}'", record.name);
    let list = [(property.to_owned(), text.to_owned())];
    let checked = pool_props::check(&list, When::Set, &record.name, config.get_u64(key::VERSION).unwrap_or(0));
    let checked = checked.map_err(|why| failed(format!("{doing}: {why}")))?;
    // a property that applies only while the pool is open is not stored in it
    let kept = checked.into_iter().filter(|(name, _)| name == "version" || !pool_props::is_transient(name));
    let mut props = NvList::new();
    kept.for_each(|(name, value)| props.insert(name, values::value_of(value)));
    if props.is_empty() {
        return Ok(());
    }
    let mut input = NvList::new();
    input.insert("props", props);
    writable::request(record, &doing, Ioc::PoolSetProps, &input).map(drop)
}

/// Checks that a feature is in the set that the pool's `compatibility` allows.
fn check_compatibility(pool: &str, config: &NvList, property: &str, text: &str) -> Result<(), String> {
    if property == "compatibility" {
        let compat = Compat::load_and_tell(text)?;
        let enabled = config.get_nvlist(FEATURE_STATS);
        let mut used = FEATURES.iter().filter(|def| enabled.is_some_and(|enabled| enabled.contains(def.guid)));
        if used.any(|def| !compat.allows(def)) {
            eprintln!(
                "Warning: one or more features already enabled on pool '{pool}'\n\
                 are not present in this compatibility set."
            );
        }
        return Ok(());
    }
    let Some(name) = property.strip_prefix("feature@").filter(|_| text == "enabled") else { return Ok(()) };
    let Some(def) = feature::by_name(name) else { return Ok(()) };
    let cannot = format!("Error: cannot enable feature '{name}' on pool '{pool}'\n");
    let own = config.get_str(key::COMPATIBILITY).unwrap_or("off");
    let compat = Compat::load_and_tell(own)
        .map_err(|why| format!("{why}\n{cannot}because the pool's 'compatibility' property cannot be parsed."))?;
    if !compat.allows(def) {
        return Err(format!(
            "{cannot}as it is not specified in this pool's current compatibility set.\n\
             Consider setting 'compatibility' to a less restrictive set, or to 'off'."
        ));
    }
    Ok(())
}
