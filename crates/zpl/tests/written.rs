//! Pools of the OpenZFS kernel module, written to by Zuse: zdb finds no errors, and the old files are unchanged.
#![allow(clippy::unwrap_used, dead_code)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use dmu::NewObject;
use ondisk::ObjectType;
use oracle::{fixtures, judge};
use pool::{Hooks, ImportOptions, Kind, ListOptions, OpenOptions, Spa};
use support::{Fixture, compare_replayed, touched_in};
use vdev::{Device, FileDevice};
use zpl::live::Zfs;

/// The fixtures that cannot be imported for writing, and the reasons.
fn refused(name: &str) -> Option<&'static str> {
    match name {
        "raidzexp-b" => Some("an expansion under way"),
        _ => None,
    }
}

fn import(images: &fixtures::Unpacked, wanted: &str) -> Result<Arc<Spa>, pool::Error> {
    let open = |path: std::path::PathBuf| -> (std::path::PathBuf, Arc<dyn Device>) {
        let device = FileDevice::open_read_write(&path).unwrap();
        (path, Arc::new(device))
    };
    let found = vdev::import::scan_devices(images.images().into_iter().map(open).collect());
    let candidate = found.iter().find(|c| c.name == wanted).unwrap();
    let open = OpenOptions { missing_log_ok: true, ..OpenOptions::default() };
    Spa::import(candidate, &ImportOptions { open, force: true, ..ImportOptions::default() }, Hooks::default())
}

/// Creates an object in each file system, and writes some text to the history.
fn write(spa: &Arc<Spa>) {
    let view = spa.view().unwrap();
    let data: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    for entry in view.list(view.name(), &ListOptions::ALL).unwrap() {
        let Some(dataset) = entry.dataset() else { continue };
        if dataset.kind().unwrap() != Kind::Filesystem || dataset.is_inconsistent() {
            continue;
        }
        // this replays its log first, if there is one
        let _zfs = Zfs::open(spa, dataset.name());
        let objset = spa.objset(dataset).unwrap();
        let tx = spa.tx(2 << 20).unwrap();
        let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 8192, ..NewObject::default() };
        let object = objset.alloc_object(&tx, &new).unwrap();
        object.write(&tx, 5000, &data).unwrap();
    }
    spa.sync().unwrap();
    spa.log_history(0, "zuse was here").unwrap();
}

fn one(name: &str) -> Result<(), String> {
    let images = fixtures::unpack_private(name);
    let pool = fixtures::manifest(name)["pool"].as_str().unwrap().to_owned();
    let touched = if name.starts_with("zil") { touched_in(name, &images) } else { BTreeMap::new() };
    {
        let spa = import(&images, &pool).map_err(|e| format!("import: {e}"))?;
        support::load_keys(name, &spa.view().unwrap());
        write(&spa);
        spa.export().map_err(|e| format!("export: {e}"))?;
    }
    let damaged = name.starts_with("deg") || name == "lost-a";
    if let Some(blocks) = judge::blocks(&images.dir, &pool)
        && !(blocks.none_lost && (blocks.all_read || damaged))
    {
        return Err(blocks.said);
    }
    if !damaged {
        judge::imports(&images.dir, &pool)?;
    }
    let dir = images.dir.display().to_string();
    // livelists match the blocks of clones, and the maps and logs of metaslabs agree
    if let Some(out) = judge::run("zdb", &["-e", "-p", &dir, "-y", &pool]) {
        let text = String::from_utf8_lossy(&out.stderr);
        if !out.status.success() {
            return Err(format!("zdb -y: {text}"));
        }
    }
    let compared = compare_replayed(&Fixture::of(name, images), &touched);
    if compared.differences.is_empty() {
        Ok(())
    } else {
        Err(format!("{compared}: {:?}", compared.differences.first()))
    }
}

/// Returns half of the fixtures: the even ones, or the odd ones.
fn every_second(rest: usize) {
    let only = std::env::var("ZUSE_FIXTURE").ok();
    let mut failed = Vec::new();
    for (_, name) in fixtures::names().into_iter().enumerate().filter(|(n, _)| n % 2 == rest) {
        let has_pool = fixtures::dir(&name).join("manifest.json").exists();
        if !has_pool || refused(&name).is_some() || only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        let text = |e: Box<dyn std::any::Any + Send>| e.downcast_ref::<String>().cloned().unwrap_or_default();
        match std::panic::catch_unwind(|| one(&name)).unwrap_or_else(|e| Err(text(e))) {
            Ok(()) => println!("{name}: good"),
            Err(why) => {
                println!("{name}: {why}");
                failed.push(name);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn the_first_half_is_written_to() {
    every_second(0);
}

#[test]
fn the_second_half_is_written_to() {
    every_second(1);
}
