//! Pools whose devices grow while they are written.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::Guid;
use pool::testing::{BLOCK, hooks, noise, object, write};
use pool::{CreateOptions, ImportOptions, Spa, Value};
use vdev::Device;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::testing::Growing;

const MIB: u64 = 1 << 20;

/// The pool `t` of these words, over devices `a`, `b` and so on of these sizes in MiB.
fn pool(words: &str, sizes: &[u64]) -> (Arc<Spa>, Vec<Arc<Growing>>) {
    let disks: Vec<_> =
        ["a", "b", "c", "d"].iter().zip(sizes).map(|(name, size)| Arc::new(Growing::new(name, size * MIB))).collect();
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let open = |path: &str| disks.iter().find(|disk| disk.name() == path).map(|disk| disk.clone() as Arc<dyn Device>);
    let (hooks, options) = (hooks(), LayoutOptions { ashift: Some(12), ..LayoutOptions::default() });
    let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &hooks.env).unwrap();
    (Spa::create(new, CreateOptions::new("t"), hooks).unwrap(), disks)
}

fn size(spa: &Arc<Spa>) -> u64 {
    spa.view().unwrap().space().unwrap().size / MIB
}

fn leaves(spa: &Spa) -> Vec<Guid> {
    spa.tree().config().leaves().map(|leaf| leaf.guid).collect()
}

fn found(disks: &[Arc<Growing>]) -> vdev::import::Candidate {
    let all = disks.iter().map(|disk| (disk.name().into(), disk.clone() as Arc<dyn Device>)).collect();
    vdev::import::scan_devices(all).into_iter().next().unwrap()
}

#[test]
fn a_pool_grows_while_it_is_written() {
    for (words, before, after) in [("a", 112, 496), ("mirror a b", 112, 496), ("raidz a b c", 352, 1504)] {
        let (spa, disks) = pool(words, &[128, 128, 128]);
        let file = object(&spa);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut rounds = 0;
                while !done.load(Ordering::Relaxed) || rounds < 3 {
                    write(&spa, &file, 16, rounds).unwrap();
                    rounds += 1;
                }
                rounds
            });
            assert_eq!(size(&spa), before, "{words}");
            disks.iter().for_each(|disk| disk.grow(512 * MIB));
            let tops: Vec<Guid> = spa.tree().tops().iter().map(|top| top.guid()).collect();
            for top in tops {
                spa.expand_vdev(top).unwrap();
            }
            assert_eq!(size(&spa), after, "{words}");
            done.store(true, Ordering::Relaxed);
            assert!(writer.join().unwrap() >= 3);
        });
        // more than there was room for before
        for n in 0..8 {
            write(&spa, &object(&spa), 256, n).unwrap();
        }
        let labels = disks.iter().take(leaves(&spa).len()).flat_map(|disk| vdev::label::read_labels(&**disk));
        assert!(labels.into_iter().all(|label| label.is_ok()), "{words}");
        drop(file);
        spa.export().unwrap();
        let spa = Spa::import(&found(&disks), &ImportOptions::default(), hooks()).unwrap();
        assert_eq!(size(&spa), after, "{words}");
        spa.export().unwrap();
    }
}

#[test]
fn a_device_that_grows_has_all_uberblocks_at_its_new_end() {
    let (spa, disks) = pool("a", &[128]);
    for _ in 0..4 {
        let file = object(&spa);
        write(&spa, &file, 1, 1).unwrap();
    }
    let slots = |label: usize| {
        let all = vdev::label::read_uberblock_slots(&**disks.first().unwrap(), 12);
        all.into_iter().filter(|slot| slot.label == label).map(|slot| (slot.slot, slot.ub.txg)).collect::<Vec<_>>()
    };
    assert!(slots(0).len() > 3 && slots(0) == slots(3));
    disks.first().unwrap().grow(200 * MIB);
    spa.reopen(true).unwrap();
    spa.sync().unwrap();
    assert_eq!(slots(0), slots(2));
    assert_eq!(slots(0), slots(3));
    assert_eq!(size(&spa), 112, "nobody wants the pool to grow");
    spa.export().unwrap();
}

#[test]
fn a_pool_grows_by_itself_if_it_may() {
    let (spa, disks) = pool("mirror a b", &[128, 256]);
    let [small, _] = <[Guid; 2]>::try_from(leaves(&spa)).unwrap();
    write(&spa, &object(&spa), 8, 1).unwrap();
    assert_eq!(size(&spa), 112);
    spa.set_prop("autoexpand", Value::Number(1)).unwrap();
    spa.sync().unwrap();
    assert_eq!(size(&spa), 112, "one is as small as it was");
    spa.detach_vdev(small).unwrap();
    write(&spa, &object(&spa), 8, 2).unwrap();
    assert_eq!(size(&spa), 240, "the smallest has gone");
    disks.get(1).unwrap().grow(512 * MIB);
    for n in 0..2 {
        write(&spa, &object(&spa), 8, n).unwrap();
    }
    assert_eq!(size(&spa), 496);
    spa.set_prop("autoexpand", Value::Number(0)).unwrap();
    disks.get(1).unwrap().grow(1024 * MIB);
    for n in 0..2 {
        write(&spa, &object(&spa), 8, n).unwrap();
    }
    assert_eq!(size(&spa), 496);
    spa.export().unwrap();
}

#[test]
fn a_growth_that_ends_with_the_process_is_made_again() {
    let (spa, disks) = pool("a", &[128]);
    let file = object(&spa);
    write(&spa, &file, 8, 1).unwrap();
    let (id, top) = (file.id(), spa.tree().tops().first().unwrap().guid());
    disks.first().unwrap().grow(512 * MIB);
    spa.reopen(true).unwrap();
    drop(file);
    drop(spa);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let spa = Spa::import(&found(&disks), &options, hooks()).unwrap();
    assert_eq!(size(&spa), 112);
    spa.expand_vdev(top).unwrap();
    spa.expand_vdev(top).unwrap();
    assert_eq!(size(&spa), 496, "the second time nothing was left to do");
    let mut bytes = vec![0; 8 * BLOCK];
    let dataset = spa.view().unwrap().dataset("t").unwrap();
    let file = spa.objset(&dataset).unwrap().object(id).unwrap();
    file.read(0, &mut bytes).unwrap();
    assert!(bytes == noise(8, 1));
    drop(file);
    spa.export().unwrap();
}
