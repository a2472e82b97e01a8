//! `zpool add`.

use std::sync::Arc;

use control::Ioc;
use nvlist::NvList;
use ondisk::label::key;
use site::{Imported, Query};

use super::create::of_device;
use super::newdevs::{NewVdevs, Section};
use super::vdevs::{Class, NameFlags, Vdev, Vdevs, brief_stats};
use crate::args::{ALLOW_ASHIFT, ALLOW_IN_USE, ALLOW_REPLICATION, Parsed};
use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, failed, usage};
use crate::props::Said;
use crate::props::pool::{self as pool_props, When};
use crate::{answers, messages, pools, writable};

/// The checks that are overridden.
struct Allowed {
    in_use: bool,
    ashift: bool,
}

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    let said = asked_ashift(args)?;
    let operands = args.names();
    let Some((name, words)) = operands.split_first() else { return Err(usage("missing pool name argument")) };
    if words.is_empty() {
        return Err(usage("missing vdev specification"));
    }
    let force = args.has('f');
    if force && [ALLOW_IN_USE, ALLOW_REPLICATION, ALLOW_ASHIFT].into_iter().any(|flag| args.has(flag)) {
        return Err(usage(
            "'-f' option is not allowed with '--allow-replication-mismatch', '--allow-ashift-mismatch', or \
             '--allow-in-use'",
        ));
    }
    let allowed = Allowed { in_use: force || args.has(ALLOW_IN_USE), ashift: force || args.has(ALLOW_ASHIFT) };
    let record = pools::find(name)?;
    let query = pools::query(&record)?;
    let config = brief_stats(&query)?;
    let doing = format!("cannot add to '{name}'");
    let ashift = ashift(&query, &config, &said).map_err(|why| failed(format!("{doing}: {why}")))?;
    let new = NewVdevs::find(words, None)?;
    // OpenZFS asks both in one question: what either option allows is allowed
    new.check(config.get_nvlist(key::VDEV_TREE), allowed.in_use || args.has(ALLOW_REPLICATION))?;
    if args.has('n') {
        print!("would update '{name}' to the following configuration:\n\n{}", show(&query, &new, NameFlags::of(args))?);
        return Ok(0);
    }
    add(record, &new, ashift, &allowed, &doing)?;
    Ok(0)
}

/// The sector size of `-o`, the only property that new devices take.
pub(super) fn asked_ashift(args: &Parsed) -> Result<Vec<Said>, Failure> {
    let mut said: Vec<Said> = Vec::new();
    for text in args.values('o').map(|text| text.to_string_lossy().into_owned()) {
        let (name, value) = text.split_once('=').ok_or_else(|| usage("missing '=' for -o option"))?;
        if name != "ashift" {
            return Err(usage(""));
        }
        pool_props::add(&mut said, name, value).map_err(usage)?;
    }
    Ok(said)
}

/// The sector size that was asked for, else that of the pool's property.
pub(super) fn ashift(query: &Query, config: &NvList, said: &[Said]) -> Result<Option<u64>, String> {
    let version = config.get_u64(key::VERSION).unwrap_or(0);
    let values = pool_props::check(said, When::Create, query.name(), version)?;
    let own = || {
        let mut input = NvList::new();
        input.insert("get_props_names", answers::names(["ashift"]));
        let props = query.call(Ioc::PoolGetProps, query.name(), &input).map_err(|e| e.to_string())?;
        Ok::<_, String>(props.get_nvlist("ashift").and_then(|prop| prop.get_u64("value")))
    };
    let asked = values.iter().find_map(|(_, value)| value.number());
    let ashift = if asked.is_some() { asked } else { own()? };
    Ok(ashift.filter(|ashift| *ashift != 0))
}

fn add(record: Imported, new: &NewVdevs, ashift: Option<u64>, allowed: &Allowed, doing: &str) -> Result<(), Failure> {
    let cannot = |why: String| failed(format!("{doing}: {why}"));
    let shared = new.shared_spares();
    if new.has_duplicates() || shared.iter().any(|spare| spare.pools.contains(&record.name)) {
        return Err(cannot("one or more vdevs refer to the same device".to_owned()));
    }
    let spa = writable::open(&record, doing)?;
    let made = new.create_files().map_err(|e| cannot(of_device(&e)))?;
    let mut input = new.request(ashift, &shared);
    input.insert("check_ashift", !allowed.ashift);
    let control = console::control(spa).on(Arc::new(here()));
    here().change_vdevs(&control, Ioc::VdevAdd, &input).map_err(|e| cannot(why(&e)))?;
    made.keep();
    writable::close(control.spa(), doing)
}

/// The error in OpenZFS's words.
pub(super) fn why(e: &control::Failed) -> String {
    match &*e.error {
        control::Error::Pool(pool::Error::Refused { why: pool::Refusal::Busy, .. }) => "pool is busy".to_owned(),
        control::Error::Pool(e) => messages::why(e),
        control::Error::Device(e) => of_device(e),
        other => other.to_string(),
    }
}

/// The layout that the pool would have.
fn show(query: &Query, new: &NewVdevs, flags: NameFlags) -> Result<String, Failure> {
    let vdevs = Vdevs::ask(query)?;
    let line = |vdev: &Vdev, depth: usize| format!("\t{:depth$}{}\n", "", vdev.name(query.name(), flags));
    fn below(vdev: &Vdev, depth: usize, line: &dyn Fn(&Vdev, usize) -> String) -> String {
        let children = vdev.children.iter().map(|child| below(child, depth + 2, line));
        line(vdev, depth) + &children.collect::<String>()
    }
    let tops = |class: Class| -> String {
        let tops = vdevs.root.of_class(class).filter(|top| !top.is_hidden());
        tops.map(|top| below(top, 2, &line)).collect()
    };
    let there = |section| match section {
        Section::Tops(class) => tops(class),
        Section::Cache => vdevs.l2cache.iter().map(|vdev| line(vdev, 2)).collect(),
        Section::Spares => vdevs.spares.iter().map(|vdev| line(vdev, 2)).collect(),
    };
    Ok(new.show_beside(query.name(), &there))
}
