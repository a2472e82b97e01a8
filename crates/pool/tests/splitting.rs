//! Pools that are made of one device of each mirror of another one. OpenZFS's `zdb` and `zhack` judge both.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use base::{Guid, ObjectId};
use oracle::judge;
use pool::testing::{BLOCK, hooks, noise, object, write};
use pool::{CreateOptions, Error, ImportOptions, Spa, Value, VdevRefusal};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::import::Candidate;
use vdev::{Access, Device, FileDevice, VdevType};

/// The pool `t` of these words, on files of 128 MiB in a folder.
fn pool(dir: &Path, words: &str) -> Arc<Spa> {
    let in_dir = |word: &str| if word.len() == 1 { dir.join(word).display().to_string() } else { word.to_owned() };
    let words: Vec<String> = words.split(' ').map(in_dir).collect();
    let open = |path: &str| -> Option<Arc<dyn Device>> {
        Some(Arc::new(FileDevice::create(Path::new(path), 128 << 20).unwrap()))
    };
    let (hooks, options) = (hooks(), LayoutOptions { ashift: Some(12), ..LayoutOptions::default() });
    let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &hooks.env).unwrap();
    Spa::create(new, CreateOptions::new("t"), hooks).unwrap()
}

/// The last device of each mirror.
fn last_of_each(spa: &Spa) -> Vec<Guid> {
    let tree = spa.tree();
    let of = |top: &vdev::TopVdev| match (top.config().is_log, top.config().kind) {
        (false, VdevType::Mirror) => top.config().children.last().unwrap().guid,
        _ => Guid(0),
    };
    let mut all: Vec<Guid> = tree.tops().iter().map(of).collect();
    while all.last() == Some(&Guid(0)) {
        all.pop();
    }
    all
}

fn import(dir: &Path, name: &str) -> Arc<Spa> {
    let found: Candidate =
        vdev::import::scan(&[dir.to_owned()]).unwrap().into_iter().find(|pool| pool.name == name).unwrap();
    assert!(found.missing.is_empty(), "{:?}", found.missing);
    let mut found = found;
    for device in &mut found.devices {
        device.device = vdev::device::open(&device.path, Access::Write).unwrap();
    }
    Spa::import_own(found, &ImportOptions::default(), hooks()).unwrap()
}

fn reads(spa: &Arc<Spa>, id: ObjectId, name: &str, blocks: usize, seed: u64) {
    let mut bytes = vec![0; blocks * BLOCK];
    let dataset = spa.view().unwrap().dataset(name).unwrap();
    spa.objset(&dataset).unwrap().object(id).unwrap().read(0, &mut bytes).unwrap();
    assert!(bytes == noise(blocks, seed));
}

#[test]
fn one_device_of_each_mirror_becomes_a_pool() {
    for words in ["mirror a b", "mirror a b c mirror d e", "mirror a b log c mirror d e log f"] {
        let dir = tempfile::tempdir().unwrap();
        let spa = pool(dir.path(), words);
        let file = object(&spa);
        write(&spa, &file, 40, 1).unwrap();
        let chosen = last_of_each(&spa);
        let guid =
            spa.split("half", &chosen, vec![("comment".to_owned(), Value::String("split off".to_owned()))]).unwrap();
        assert!(guid != spa.guid(), "{words}");
        // the old one goes on
        write(&spa, &file, 40, 2).unwrap();
        assert!(spa.tree().config().leaves().all(|leaf| !chosen.contains(&leaf.guid)), "{words}");
        let id = file.id();
        drop(file);
        spa.export().unwrap();
        drop(spa);
        for (name, seed) in [("t", 2), ("half", 1)] {
            judge::no_leaks(dir.path(), name);
            let spa = import(dir.path(), name);
            reads(&spa, id, name, 40, seed);
            if name == "half" {
                assert_eq!(spa.view().unwrap().config().get_str("comment"), Some("split off"), "{words}");
            }
            let more = object(&spa);
            drop(more);
            spa.export().unwrap();
        }
        if judge::tool("zhack").is_some() {
            for name in ["t", "half"] {
                judge::imports_in_place(dir.path(), name).unwrap_or_else(|e| panic!("{words}, {name}: {e}"));
            }
        }
    }
}

#[test]
fn what_cannot_be_split_stays_whole() {
    let refused = |spa: &Arc<Spa>, chosen: &[Guid]| match spa.split("half", chosen, Vec::new()) {
        Err(Error::Vdevs(why)) => why,
        other => panic!("{other:?}"),
    };
    let dir = tempfile::tempdir().unwrap();
    let spa = pool(dir.path(), "mirror a b mirror c d");
    let chosen = last_of_each(&spa);
    assert_eq!(refused(&spa, &chosen[..1]), VdevRefusal::BadValue);
    assert_eq!(refused(&spa, &[chosen[0], Guid(4711)]), VdevRefusal::NoVdev);
    assert_eq!(refused(&spa, &[chosen[1], chosen[0]]), VdevRefusal::BadValue);
    spa.checkpoint().unwrap();
    assert_eq!(refused(&spa, &chosen), VdevRefusal::Checkpoint);
    spa.discard_checkpoint().unwrap();
    spa.export().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let spa = pool(dir.path(), "raidz a b c");
    let leaf = spa.tree().config().leaves().next().unwrap().guid;
    assert_eq!(refused(&spa, &[leaf]), VdevRefusal::BadValue);
    spa.export().unwrap();
}
