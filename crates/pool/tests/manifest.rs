//! The output of OpenZFS's kernel module about the fixtures' pools, and ours.
//!
//! Each manifest was made from a read-only import with the altroot `/m/truth`. Three things in it are of that import, not of the pool:
//! the mount option `ro` (readonly is on, temporarily), what is mounted, and that nothing counts as allocated.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use base::Errno;
use common::{load_keys, open, text, truth_options};
use oracle::fixtures;
use pool::prop::{format, format_pool};
use pool::{Dataset, Entry, ListOptions, OpenOptions, Pool, SpaceKind};
use serde_json::Value;

/// The pools whose manifest was made after a read-write import of a copy, which replayed the intent log.
const REPLAYED: [&str; 2] = ["zil-a", "zilslog-a"];
/// The properties that a read-write import changes though nothing is replayed.
const CHANGED_BY_IMPORT: [&str; 4] = ["used", "available", "logicalused", "usedbychildren"];

struct Check {
    fixture: String,
    wrong: Vec<String>,
    compared: usize,
}

impl Check {
    fn same(&mut self, what: &str, ours: &str, truth: &str) {
        let last = what.rsplit(' ').next().unwrap();
        let imported = self.fixture == "logsm-a" && (CHANGED_BY_IMPORT.contains(&last) || what.starts_with("pool "));
        // the manifests of damaged pools are of the time before the damage
        let healthy = what == "pool health" && self.fixture.starts_with("deg");
        if imported || healthy {
            return;
        }
        self.compared += 1;
        if ours != truth {
            self.wrong.push(format!("{}: {what}: ours {ours:?}, OpenZFS {truth:?}", self.fixture));
        }
    }
}

fn prop_text(ds: &Dataset, name: &str) -> (String, String, String) {
    match ds.prop(name).unwrap_or_else(|e| panic!("{} {name}: {e}", ds.name())) {
        None => ("-".into(), "-".into(), "-".into()),
        Some(p) => (
            format(name, &p.value, true),
            p.source.to_string(),
            p.received.map_or("-".into(), |v| format(name, &v, true)),
        ),
    }
}

fn check_list(check: &mut Check, pool: &Arc<Pool>, manifest: &Value) {
    let entries = pool.list(pool.name(), &ListOptions::ALL).unwrap();
    let ours: Vec<&str> = entries.iter().map(Entry::name).collect();
    let truth: Vec<&str> = manifest["list"].as_array().unwrap().iter().map(|l| text(&l["name"])).collect();
    check.same("names", &ours.join(" "), &truth.join(" "));
    for line in manifest["list"].as_array().unwrap() {
        let name = text(&line["name"]);
        for (prop, truth) in line.as_object().unwrap() {
            if prop == "mounted" {
                continue;
            }
            let ours = match name.contains('#') {
                true => pool
                    .bookmark(name)
                    .unwrap()
                    .prop(prop)
                    .unwrap()
                    .map_or("-".to_string(), |p| format(prop, &p.value, true)),
                false => prop_text(&pool.dataset(name).unwrap(), prop).0,
            };
            check.same(&format!("{name} {prop}"), &ours, text(truth));
        }
    }
}

fn check_properties(check: &mut Check, pool: &Arc<Pool>, manifest: &Value) {
    for (name, props) in manifest["properties"].as_object().unwrap() {
        if name.contains('#') {
            let mark = pool.bookmark(name).unwrap();
            for (prop, truth) in props.as_object().unwrap() {
                let ours = mark.prop(prop).unwrap().map_or("-".to_string(), |p| format(prop, &p.value, true));
                check.same(&format!("{name} {prop}"), &ours, text(&truth[0]));
            }
            continue;
        }
        let ds = pool.dataset(name).unwrap();
        for (prop, truth) in props.as_object().unwrap() {
            if prop == "mounted" || text(&truth[1]) == "temporary" {
                continue;
            }
            let (value, source, received) = prop_text(&ds, prop);
            check.same(&format!("{name} {prop}"), &value, text(&truth[0]));
            check.same(&format!("source of {name} {prop}"), &source, text(&truth[1]));
            check.same(&format!("received {name} {prop}"), &received, text(&truth[2]));
        }
        // user properties: all of them, and no more
        let ours: Vec<String> = ds.user_props().unwrap().into_iter().map(|(n, _)| n).collect();
        let mut truth: Vec<&str> =
            props.as_object().unwrap().keys().map(String::as_str).filter(|n| n.contains(':')).collect();
        let mut sorted = ours.clone();
        sorted.sort();
        truth.sort_unstable();
        check.same(&format!("{name} user properties"), &sorted.join(" "), &truth.join(" "));
    }
}

fn check_pool(check: &mut Check, pool: &Arc<Pool>, manifest: &Value) {
    let props = pool.props().unwrap();
    let ours: BTreeMap<&str, String> =
        props.iter().map(|(name, p)| (name.as_str(), format_pool(name, &p.value, true))).collect();
    for (name, truth) in manifest["zpool_get"].as_object().unwrap() {
        if name == "load_guid" {
            continue;
        }
        check.same(&format!("pool {name}"), ours.get(name.as_str()).map_or("", String::as_str), text(truth));
    }
    let order: Vec<&str> =
        props.iter().map(|(n, _)| n.as_str()).filter(|n| *n != "feature@draid_failure_domains").collect();
    let truth: Vec<&str> = manifest["zpool_get"].as_object().unwrap().keys().map(String::as_str).collect();
    check.same("order of pool properties", &order.join(" "), &truth.join(" "));
}

fn check_holds(check: &mut Check, pool: &Arc<Pool>, manifest: &Value) {
    let mut ours = Vec::new();
    for entry in pool.list(pool.name(), &ListOptions::ALL).unwrap() {
        if let Some(ds) = entry.dataset() {
            ours.extend(ds.holds().unwrap().into_iter().map(|h| format!("{} {}", ds.name(), h.tag)));
        }
    }
    let rows = manifest["holds"].as_array().unwrap().iter();
    let mut truth: Vec<String> = rows.map(|row| format!("{} {}", text(&row[0]), text(&row[1]))).collect();
    ours.sort();
    truth.sort();
    check.same("holds", &ours.join("; "), &truth.join("; "));
}

fn check_space(check: &mut Check, pool: &Arc<Pool>, manifest: &Value) {
    use SpaceKind as K;
    let kinds = [
        ("userspace", [K::UserUsed, K::UserQuota, K::UserObjUsed, K::UserObjQuota]),
        ("groupspace", [K::GroupUsed, K::GroupQuota, K::GroupObjUsed, K::GroupObjQuota]),
        ("projectspace", [K::ProjectUsed, K::ProjectQuota, K::ProjectObjUsed, K::ProjectObjQuota]),
    ];
    for (name, tables) in manifest["space"].as_object().unwrap() {
        let ds = pool.dataset(name).unwrap();
        for (table, kinds) in kinds {
            let Some(rows) = tables[table].as_array() else { continue };
            // the manifests' projectspace is a usage message where the option was not known
            if rows.iter().any(|row| row.as_array().is_none_or(|r| r.len() < 6)) {
                continue;
            }
            let mut ours: BTreeMap<u64, [u64; 4]> = BTreeMap::new();
            let mut readable = true;
            for (n, kind) in kinds.into_iter().enumerate() {
                match ds.userspace(kind) {
                    Ok(all) => all.into_iter().for_each(|(id, value)| ours.entry(id.rid).or_default()[n] = value),
                    Err(e) => {
                        assert_eq!(e.errno(), Errno::EACCES, "{name}: {e}");
                        readable = false;
                    }
                }
            }
            if !readable {
                continue;
            }
            let none = |n: u64| if n == 0 { "0".to_string() } else { n.to_string() };
            let ours: Vec<String> = ours
                .iter()
                .map(|(id, [u, q, o, oq])| format!("{id} {} {} {} {}", none(*u), none(*q), none(*o), none(*oq)))
                .collect();
            let mut truth: Vec<(u64, String)> = rows
                .iter()
                .map(|row| {
                    let cell =
                        |n: usize| if text(&row[n]) == "none" || text(&row[n]) == "-" { "0" } else { text(&row[n]) };
                    (
                        text(&row[1]).parse().unwrap_or(u64::MAX),
                        format!("{} {} {} {} {}", cell(1), cell(2), cell(3), cell(4), cell(5)),
                    )
                })
                .collect();
            truth.sort();
            let truth: Vec<String> = truth.into_iter().map(|(_, t)| t).collect();
            check.same(&format!("{name} {table}"), &ours.join("; "), &truth.join("; "));
        }
    }
}

fn compare(fixture: &str, options: &OpenOptions, manifest: &Value) -> Check {
    let unpacked = fixtures::unpack(fixture);
    let pool = open(&unpacked.dir, options);
    load_keys(&pool, fixture, manifest);
    let mut check = Check { fixture: fixture.to_string(), wrong: Vec::new(), compared: 0 };
    check_list(&mut check, &pool, manifest);
    check_properties(&mut check, &pool, manifest);
    check_pool(&mut check, &pool, manifest);
    check_holds(&mut check, &pool, manifest);
    check_space(&mut check, &pool, manifest);
    check
}

#[test]
fn every_fixture_is_as_openzfs_says() {
    let mut wrong = Vec::new();
    let only = std::env::var("FIXTURE").ok();
    for fixture in fixtures::names() {
        if only.as_ref().is_some_and(|o| *o != fixture) || REPLAYED.contains(&fixture.as_str()) {
            continue;
        }
        let check = compare(&fixture, &truth_options(), &fixtures::manifest(&fixture));
        println!("{fixture}: {} compared, {} wrong", check.compared, check.wrong.len());
        wrong.extend(check.wrong);
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_rewind_to_the_checkpoint_is_as_openzfs_says() {
    let options = OpenOptions { checkpoint: true, altroot: Some("/m/rw".to_string()), ..truth_options() };
    let check = compare("checkpoint-a", &options, &fixtures::json("checkpoint-a", "rewound/manifest.json"));
    assert!(check.wrong.is_empty(), "{} differences:\n{}", check.wrong.len(), check.wrong.join("\n"));
    assert!(check.compared > 400, "{}", check.compared);
}
