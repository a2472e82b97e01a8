//! `zpool status -j`.

use control::stats::Activity;
use nvlist::{NvList, NvString};
use ondisk::ddt::DdtStat;
use ondisk::scan::{ScanFunc, ScanPhys, ScanState};
use vdev::{VdevAux, VdevType};

use super::describe::{describe, json_key};
use super::leaf_work::Work;
use super::repeat::timestamp;
use super::scripts::Scripts;
use super::status_facts::{Facts, Options, damaged};
use super::unavailable::{Seen, each};
use super::vdev_json::{Numbers, aux, describe_vdev, spare_state};
use super::vdevs::{Class, Vdev};
use crate::args::{JSON_FLAT_VDEVS, JSON_INT, JSON_POOL_KEY_GUID};
use crate::columns::number_or_text;
use crate::command::Call;
use crate::error::{Failure, Outcome};
use crate::json;

pub(super) fn print(call: &Call<'_>, names: &[String], options: &Options, scripts: Option<&Scripts>) -> Outcome {
    let args = &call.args;
    let numbers = Numbers { parsable: options.parsable, as_int: args.has(JSON_INT) };
    let mut all = NvList::new();
    let by_guid = args.has(JSON_POOL_KEY_GUID);
    let status = each(names, |pool| {
        match pool {
            Seen::Open(query) => {
                let facts = Facts::of(*query)?;
                if !(options.explain && facts.reason.is_healthy()) {
                    let item = pool_json(&facts, options, numbers, args.has(JSON_FLAT_VDEVS), scripts)?;
                    all.insert(json_key(&facts.config, by_guid), item);
                }
            }
            Seen::Unavailable(pool) => all.insert(pool.key(by_guid), pool.json(options.names, numbers)),
        }
        Ok(())
    })?;
    if status != 0 { Ok(status) } else { print_pools(call, all, numbers.as_int) }
}

/// Prints the facts about pools, with the time if it was asked for.
pub(super) fn print_pools(call: &Call<'_>, pools: NvList, as_int: bool) -> Outcome {
    let mut schema = json::schema(call);
    schema.insert("pools", pools);
    if let Some(stamp) = timestamp(call)? {
        schema.insert("time", number_or_text(&stamp, as_int));
    }
    json::print(&schema)
}

fn pool_json(
    facts: &Facts,
    options: &Options,
    numbers: Numbers,
    flat: bool,
    scripts: Option<&Scripts>,
) -> Result<NvList, Failure> {
    let mut item = describe(&facts.config, false, numbers.as_int);
    let (status, action) = facts.reason.status();
    for (key, text) in [("status", status), ("action", action)].iter().filter(|(_, text)| !text.is_empty()) {
        item.insert(key, *text);
    }
    if let Some(id) = facts.reason.message_id() {
        item.insert("msgid", id);
        item.insert("moreinfo", format!("https://openzfs.github.io/openzfs-docs/msg/{id}"));
    }
    activity(&mut item, facts, options, numbers);

    let writer = Writer { pool: facts.name(), options, numbers, flat, scripts };
    let mut vdevs = NvList::new();
    writer.vdev(&mut vdevs, &facts.vdevs.root, 0, None, false);
    let mut sections = NvList::new();
    for class in Class::SECTIONS {
        writer.section(&mut sections, class.title(), facts.vdevs.root.of_class(class).collect(), false);
    }
    writer.section(&mut sections, "l2cache", facts.vdevs.l2cache.iter().collect(), false);
    writer.section(&mut sections, "spares", facts.vdevs.spares.iter().collect(), true);
    if flat {
        vdevs.merge(&sections);
        item.insert("vdevs", vdevs);
    } else {
        item.insert("vdevs", vdevs);
        item.merge(&sections);
    }
    if options.dedup {
        item.insert("dedup_stats", dedup(facts, numbers)?);
    }
    if let Some(errors) = facts.errors {
        numbers.count(&mut item, "error_count", errors);
    }
    if options.verbose && facts.errors.is_some_and(|errors| errors > 0) {
        let paths: Vec<NvString> = damaged(facts)?.iter().map(|path| NvString::from(path.as_str())).collect();
        item.insert("errlist", nvlist::Value::StringArray(paths));
    }
    Ok(item)
}

/// Writes vdevs.
struct Writer<'a> {
    pool: &'a str,
    options: &'a Options,
    numbers: Numbers,
    flat: bool,
    scripts: Option<&'a Scripts>,
}

impl Writer<'_> {
    fn section(&self, into: &mut NvList, key: &str, members: Vec<&Vdev>, spare: bool) {
        let mut inner = NvList::new();
        for vdev in members {
            self.vdev(&mut inner, vdev, 2, None, spare);
        }
        match self.flat {
            true => into.merge(&inner),
            false if !inner.is_empty() => into.insert(key, inner),
            false => {}
        }
    }

    fn vdev(&self, into: &mut NvList, vdev: &Vdev, depth: usize, parent: Option<&str>, spare: bool) {
        if self.options.unhealthy && depth > 0 && vdev.is_well() {
            return;
        }
        let name = vdev.name(self.pool, self.options.names);
        let class = if spare { Some("spare") } else { None };
        let mut list = describe_vdev(self.pool, vdev, self.options.names, self.numbers.as_int, class);
        if let Some(parent) = parent.filter(|_| self.flat) {
            list.insert("parent", parent);
        }
        let leaf = vdev.children.is_empty() && vdev.kind != VdevType::Root;
        if spare {
            if let Some(state) = spare_state(vdev) {
                list.insert("state", state);
            }
        } else {
            self.amounts(&mut list, vdev, leaf);
        }
        self.remarks(&mut list, vdev, leaf);
        if let Some(scripts) = self.scripts {
            scripts.describe(self.pool, vdev, &mut list);
        }

        let mut children = NvList::new();
        for child in vdev.children.iter().filter(|c| !c.is_hidden() && (depth > 0 || c.class == Class::Normal)) {
            if self.flat {
                self.vdev(into, child, depth + 2, Some(&name), spare);
            }
            self.vdev(&mut children, child, depth + 2, Some(&name), spare);
        }
        if !children.is_empty() {
            list.insert("vdevs", children);
        }
        into.insert(name, list);
    }

    fn amounts(&self, list: &mut NvList, vdev: &Vdev, leaf: bool) {
        let space = vdev.space.as_ref();
        let amounts = [
            ("alloc_space", space.map_or(0, |s| s.allocated)),
            ("total_space", space.map_or(0, |s| s.size)),
            ("phys_space", vdev.device_size.unwrap_or(0)),
        ];
        for (key, n) in amounts.into_iter().filter(|(_, n)| *n > 0) {
            self.numbers.bytes(list, key, n);
        }
        self.numbers.count(list, "read_errors", vdev.errors.read);
        self.numbers.count(list, "write_errors", vdev.errors.write);
        self.numbers.count(list, "checksum_errors", vdev.errors.checksum);
        if let Some(n) = space.map(|s| s.checkpoint).filter(|n| *n > 0) {
            self.numbers.bytes(list, "checkpoint_space", n);
        }
        if vdev.stale {
            self.numbers.count(list, "resilver_deferred", 1);
        }
        if leaf {
            self.numbers.count(list, "slow_ios", vdev.slow);
        }
        if self.options.power {
            list.insert("power_state", "-");
        }
    }

    fn remarks(&self, list: &mut NvList, vdev: &Vdev, leaf: bool) {
        if self.options.direct {
            self.numbers.count(list, "dio_verify_errors", 0);
        }
        if vdev.not_present {
            self.numbers.plain(list, "not_present", 1);
            list.insert("was", vdev.path.as_deref().unwrap_or(""));
        } else if vdev.aux != VdevAux::None {
            list.insert("aux", aux(vdev.aux));
        }
        if vdev.removing {
            self.numbers.plain(list, "removing", 1);
        } else if vdev.non_allocating {
            self.numbers.plain(list, "noalloc", 1);
        }
        for (_, work) in self.options.work().into_iter().filter(|(asked, _)| *asked && leaf) {
            self.work(list, vdev, work);
        }
    }
}

impl Writer<'_> {
    fn work(&self, list: &mut NvList, vdev: &Vdev, work: Work) {
        let progress = vdev.progress(work);
        let ([state, done, whole, time, errors], none) = match work {
            Work::Initialize => {
                (["init_state", "initialized", "to_initialize", "init_time", "init_errors"], "UNINITIALIZED")
            }
            Work::Trim => (["trim_state", "trimmed", "to_trim", "trim_time", "trim_errors"], "UNTRIMMED"),
        };
        list.insert(state, progress.state_name().unwrap_or(none));
        if progress.state_name().is_some() {
            self.numbers.bytes(list, done, progress.done);
            self.numbers.bytes(list, whole, progress.size);
            self.numbers.time(list, time, progress.time);
            self.numbers.count(list, errors, 0);
        }
        if work == Work::Trim {
            self.numbers.plain(list, "trim_notsup", progress.unsupported.into());
        }
    }
}

fn activity(item: &mut NvList, facts: &Facts, options: &Options, numbers: Numbers) {
    let scan = scan(&facts.activity, facts, options, numbers);
    if !scan.is_empty() {
        item.insert("scan_stats", scan);
    }
    let top = |n: u64| {
        let vdev = usize::try_from(n).ok().and_then(|n| facts.vdevs.root.children.get(n));
        vdev.map(|v| describe_vdev(facts.name(), v, options.names, numbers.as_int, None)).unwrap_or_default()
    };
    if let Some(removal) = &facts.activity.removal {
        let mut list = top(removal.vdev);
        list.insert("state", state_word(removal.state));
        numbers.plain(&mut list, "removing_vdev", removal.vdev);
        numbers.time(&mut list, "start_time", removal.start);
        numbers.time(&mut list, "end_time", removal.end);
        numbers.bytes(&mut list, "to_copy", removal.to_copy);
        numbers.bytes(&mut list, "copied", removal.copied);
        numbers.bytes(&mut list, "mapping_memory", removal.mapping_memory);
        item.insert("removal_stats", list);
    }
    if let Some(checkpoint) = &facts.activity.checkpoint {
        let mut list = NvList::new();
        list.insert("state", if checkpoint.discarding { "DISCARDING" } else { "EXISTS" });
        numbers.time(&mut list, "start_time", checkpoint.time);
        numbers.bytes(&mut list, "space", checkpoint.space);
        item.insert("checkpoint_stats", list);
    }
    if let Some(expansion) = &facts.activity.expansion {
        let mut list = top(expansion.vdev);
        list.insert("state", state_word(expansion.state));
        numbers.plain(&mut list, "expanding_vdev", expansion.vdev);
        numbers.time(&mut list, "start_time", expansion.start);
        numbers.time(&mut list, "end_time", expansion.end);
        numbers.bytes(&mut list, "to_reflow", expansion.to_reflow);
        numbers.bytes(&mut list, "reflowed", expansion.reflowed);
        numbers.plain(&mut list, "waiting_for_resilver", 0);
        item.insert("raidz_expand_stats", list);
    }
}

fn func_word(func: ScanFunc) -> &'static str {
    match func {
        ScanFunc::Scrub => "SCRUB",
        ScanFunc::Resilver => "RESILVER",
        ScanFunc::ErrorScrub => "ERRORSCRUB",
        _ => "NONE",
    }
}

fn state_word(state: ScanState) -> &'static str {
    match state {
        ScanState::Scanning => "SCANNING",
        ScanState::Finished => "FINISHED",
        ScanState::Canceled => "CANCELED",
        ScanState::ErrorScrubbing => "ERRORSCRUBBING",
        _ => "NONE",
    }
}

fn scan(activity: &Activity, facts: &Facts, options: &Options, numbers: Numbers) -> NvList {
    let mut list = NvList::new();
    let none = activity.error_scrub.as_ref().map(|_| ScanPhys::default());
    if let Some(scan) = activity.scan.as_ref().or(none.as_ref()) {
        list.insert("function", func_word(scan.func));
        list.insert("state", state_word(scan.state));
        numbers.time(&mut list, "start_time", scan.start_time);
        numbers.time(&mut list, "end_time", scan.end_time);
        let amounts = [
            ("to_examine", scan.to_examine),
            ("examined", scan.examined),
            ("skipped", scan.skipped),
            ("processed", scan.processed),
        ];
        for (key, n) in amounts {
            numbers.bytes(&mut list, key, n);
        }
        numbers.count(&mut list, "errors", scan.errors);
        numbers.bytes(&mut list, "bytes_per_scan", 0);
        numbers.plain(&mut list, "pass_start", scan.start_time);
        numbers.put(&mut list, "scrub_pause", 0, |_| "-".to_owned());
        numbers.plain(&mut list, "scrub_spent_paused", 0);
        numbers.bytes(&mut list, "issued_bytes_per_scan", 0);
        numbers.bytes(&mut list, "issued", scan.examined);
        if let Some(errors) = activity.error_scrub.as_ref().filter(|errors| errors.start_time > scan.start_time) {
            list.insert("err_scrub_func", func_word(errors.func));
            list.insert("err_scrub_state", state_word(errors.state));
            numbers.time(&mut list, "err_scrub_start_time", errors.start_time);
            numbers.time(&mut list, "err_scrub_end_time", errors.end_time);
            numbers.count(&mut list, "err_scrub_examined", errors.examined);
            numbers.count(&mut list, "err_scrub_to_examine", errors.to_examine);
            // the time of the pause is not recorded: the scrub has been paused since it was started
            numbers.plain(&mut list, "err_scrub_pause", if errors.paused { errors.start_time } else { 0 });
        }
    }
    let mut rebuilds = NvList::new();
    for (top, rebuild) in &activity.rebuilds {
        let vdev = usize::try_from(*top).ok().and_then(|n| facts.vdevs.root.children.get(n));
        let Some(vdev) = vdev else { continue };
        let mut one = describe_vdev(facts.name(), vdev, options.names, numbers.as_int, None);
        let states = ["NONE", "ACTIVE", "CANCELED", "COMPLETE"];
        let state = usize::try_from(rebuild.state).ok().and_then(|n| states.get(n)).copied();
        one.insert("state", state.unwrap_or("NONE"));
        numbers.time(&mut one, "start_time", rebuild.start_time);
        numbers.time(&mut one, "end_time", rebuild.end_time);
        numbers.plain(&mut one, "scan_time", rebuild.scan_time_ms.saturating_mul(1_000_000));
        numbers.bytes(&mut one, "scanned", rebuild.bytes_scanned);
        numbers.bytes(&mut one, "issued", rebuild.bytes_issued);
        numbers.bytes(&mut one, "rebuilt", rebuild.bytes_rebuilt);
        rebuilds.insert(vdev.name(facts.name(), options.names), one);
    }
    if !rebuilds.is_empty() {
        list.insert("rebuild_stats", rebuilds);
    }
    list
}

fn dedup(facts: &Facts, numbers: Numbers) -> Result<NvList, Failure> {
    let dedup = facts.dedup()?;
    let mut list = NvList::new();
    numbers.count(&mut list, "obj_count", dedup.count);
    if dedup.count == 0 {
        list.insert("ddt_object_stats", NvList::new());
        return Ok(list);
    }
    numbers.count(&mut list, "dspace", dedup.dspace);
    numbers.count(&mut list, "mspace", dedup.mspace);
    numbers.count(&mut list, "cspace", 0);
    let mut histogram = NvList::new();
    for (n, bucket) in dedup.histogram.buckets.iter().enumerate().filter(|(_, b)| b.blocks > 0) {
        histogram.insert(n.to_string(), ddt_stat(bucket, numbers));
    }
    let mut stats = NvList::new();
    stats.insert("total", ddt_stat(&dedup.total, numbers));
    stats.insert("histogram", histogram);
    list.insert("ddt_stats", stats);
    Ok(list)
}

fn ddt_stat(stat: &DdtStat, numbers: Numbers) -> NvList {
    let mut list = NvList::new();
    numbers.count(&mut list, "blocks", stat.blocks);
    numbers.bytes(&mut list, "logical_size", stat.lsize);
    numbers.bytes(&mut list, "physical_size", stat.psize);
    numbers.bytes(&mut list, "deflated_size", stat.dsize);
    numbers.count(&mut list, "ref_blocks", stat.ref_blocks);
    numbers.bytes(&mut list, "ref_lsize", stat.ref_lsize);
    numbers.bytes(&mut list, "ref_psize", stat.ref_psize);
    numbers.bytes(&mut list, "ref_dsize", stat.ref_dsize);
    list
}
