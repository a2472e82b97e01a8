//! An import takes a state of a pool only if what was written last is there; going back, it passes over those that lack something.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use base::{Env, ObjectId, Txg, tunable};
use dmu::NewObject;
use ondisk::{BlkPtr, ObjectType};
use pool::testing::noise;
use pool::{CreateOptions, Error, Hooks, ImportOptions, LoadErrors, LoadPolicy, OpenOptions, Spa};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, MemoryDevice};

const SIZE: u64 = 64 << 20;
/// Labels and boot area in front of what a DVA counts from.
const FRONT: u64 = 4 << 20;

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() }
}

/// A device after a crash, the object that was changed in its newest txg, and that change's block.
struct Crashed {
    bytes: Vec<u8>,
    newest: Txg,
    object: ObjectId,
    old: Vec<u8>,
    changed: BlkPtr,
}

impl Crashed {
    /// The object is of this type, so it is data or metadata.
    fn new(object_type: ObjectType) -> Crashed {
        let device = Arc::new(MemoryDevice::writable(SIZE).named("d".to_string()));
        let open = |_: &str| -> Option<Arc<dyn Device>> { Some(device.clone()) };
        let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
        let new = layout(&VdevSpec::parse(&["d".to_string()]).unwrap(), &open, options, &hooks().env).unwrap();
        let spa = Spa::create(new, CreateOptions::new("t"), hooks()).unwrap();
        let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
        let new = NewObject { object_type, block_size: 128 << 10, ..NewObject::default() };
        let object = objset.alloc_object(&spa.tx(1 << 20).unwrap(), &new).unwrap();
        let (old, new) = (noise(1, 1), noise(1, 2));
        // some txgs between, in which nothing of this changes
        for data in [&old, &old, &new] {
            object.write(&spa.tx(1 << 20).unwrap(), 0, data).unwrap();
            spa.sync().unwrap();
        }
        let view = spa.view().unwrap();
        let changed = view.dataset("t").unwrap().objset().unwrap().object(object.id()).unwrap().blkptr(0, 0).unwrap();
        let (changed, newest) = (changed.unwrap(), view.uberblock().txg);
        assert_eq!(changed.birth(), newest);
        Crashed { bytes: device.snapshot(), newest, object: object.id(), old, changed }
    }

    /// All copies of the block were overwritten.
    fn lose(&mut self) {
        for dva in self.changed.dvas() {
            let at = (FRONT + dva.offset()) as usize;
            self.bytes[at..at + 4096].fill(0xa5);
        }
    }

    fn import(&self, rewind: bool, verify: Option<LoadPolicy>) -> Result<Arc<Spa>, Error> {
        let device = Arc::new(MemoryDevice::writable(SIZE).named("d".to_string()));
        device.write_at(0, &self.bytes).unwrap();
        let found = vdev::import::scan_devices(vec![("d".into(), device as Arc<dyn Device>)]);
        let open = OpenOptions { verify, ..OpenOptions::default() };
        Spa::import(&found[0], &ImportOptions { open, rewind, force: true, ..ImportOptions::default() }, hooks())
    }

    /// The state that an import takes, the newest or the one before, and the errors that it found.
    fn taken(&self, rewind: bool, verify: Option<LoadPolicy>) -> (Txg, LoadErrors) {
        let spa = self.import(rewind, verify).unwrap();
        let object = spa.view().unwrap().dataset("t").unwrap().objset().unwrap().object(self.object).unwrap();
        let info = spa.view().unwrap().load_info().clone();
        let txg = match info.skipped.first() {
            None => self.newest,
            Some((txg, why)) => {
                assert_eq!(*txg, self.newest);
                assert!(why.contains("cannot be read"), "{why}");
                assert!(object.read_vec(0, self.old.len()).unwrap() == self.old, "the state before");
                Txg(self.newest.0 - 1)
            }
        };
        spa.export().unwrap();
        (txg, info.errors)
    }
}

const NONE: LoadErrors = LoadErrors { metadata: 0, data: 0 };
/// An import that may go back, and takes no loss of data.
const STRICT: LoadPolicy = LoadPolicy { rewind: true, extreme: false, max_meta_errors: 0, max_data_errors: 0 };

#[test]
fn a_state_without_its_last_blocks_is_passed_over() {
    // metadata counts in every import
    let mut crashed = Crashed::new(ObjectType::SPA_HISTORY);
    let (newest, before) = (crashed.newest, Txg(crashed.newest.0 - 1));
    assert_eq!(crashed.taken(false, None), (newest, NONE));
    assert_eq!(crashed.taken(true, None), (newest, NONE));
    crashed.lose();
    match crashed.import(false, None) {
        Err(Error::NeedsRewind { txg, back, why }) => {
            assert_eq!((txg, back), (newest, before));
            assert!(why.contains("1 metadata blocks and 0 data blocks"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(crashed.taken(true, None), (before, NONE));
    let one = LoadErrors { metadata: 1, data: 0 };
    assert_eq!(crashed.taken(true, Some(LoadPolicy { max_meta_errors: 1, ..STRICT })), (newest, one));
    tunable::SPA_LOAD_VERIFY_METADATA.set(0);
    assert_eq!(crashed.taken(false, None), (newest, NONE), "nothing is looked at");
    tunable::SPA_LOAD_VERIFY_METADATA.set(1);

    // data is looked at where an older state may be taken, and refuses it only with a limit
    let mut crashed = Crashed::new(ObjectType::PLAIN_FILE_CONTENTS);
    let (newest, before) = (crashed.newest, Txg(crashed.newest.0 - 1));
    assert_eq!(crashed.taken(true, Some(STRICT)), (newest, NONE));
    crashed.lose();
    let one = LoadErrors { metadata: 0, data: 1 };
    assert_eq!(crashed.taken(false, None), (newest, NONE));
    assert_eq!(crashed.taken(true, None), (newest, one));
    assert_eq!(crashed.taken(true, Some(STRICT)), (before, NONE));
    assert_eq!(crashed.taken(true, Some(LoadPolicy { max_data_errors: 1, ..STRICT })), (newest, one));
    tunable::SPA_LOAD_VERIFY_DATA.set(0);
    assert_eq!(crashed.taken(true, Some(STRICT)), (newest, NONE), "data is not looked at");
    tunable::SPA_LOAD_VERIFY_DATA.set(1);
    // each block by itself, and all of them at once
    for shift in [0, 64] {
        tunable::SPA_LOAD_VERIFY_SHIFT.set(shift);
        assert_eq!(crashed.taken(true, None), (newest, one));
    }
    tunable::SPA_LOAD_VERIFY_SHIFT.set(4);
    let spa = crashed.import(false, None).unwrap();
    let errors = spa.tree().status();
    assert!(errors.children.iter().all(|child| child.state == vdev::VdevState::Healthy));
    spa.export().unwrap();
    an_import_of_a_txg_reads_all_of_the_pool();
    a_rewind_goes_to_the_state_before_those_of_the_last_txgs();
}

/// A state that the caller names may lie far back: all of it is read. (The tunables are those of all tests.)
fn an_import_of_a_txg_reads_all_of_the_pool() {
    let mut crashed = Crashed::new(ObjectType::SPA_HISTORY);
    crashed.lose();
    let device = Arc::new(MemoryDevice::writable(SIZE).named("d".to_string()));
    device.write_at(0, &crashed.bytes).unwrap();
    let found = vdev::import::scan_devices(vec![("d".into(), device as Arc<dyn Device>)]);
    let open = OpenOptions { txg: Some(crashed.newest), ..OpenOptions::default() };
    let spa =
        Spa::import(&found[0], &ImportOptions { open, force: true, ..ImportOptions::default() }, hooks()).unwrap();
    assert_eq!(spa.view().unwrap().load_info().skipped.len(), 1);
    spa.export().unwrap();
}

/// A device after states at some txgs, each of which has one block of metadata of its own.
struct States {
    bytes: Vec<u8>,
    states: Vec<(Txg, BlkPtr)>,
}

impl States {
    /// `idle` txgs without a change are between two states.
    fn new(states: usize, idle: usize) -> States {
        let device = Arc::new(MemoryDevice::writable(SIZE).named("d".to_string()));
        let open = |_: &str| -> Option<Arc<dyn Device>> { Some(device.clone()) };
        let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
        let new = layout(&VdevSpec::parse(&["d".to_string()]).unwrap(), &open, options, &hooks().env).unwrap();
        let spa = Spa::create(new, CreateOptions::new("t"), hooks()).unwrap();
        let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
        let new = NewObject { object_type: ObjectType::SPA_HISTORY, block_size: 128 << 10, ..NewObject::default() };
        let object = objset.alloc_object(&spa.tx(1 << 20).unwrap(), &new).unwrap();
        let state = |n: usize| {
            object.write(&spa.tx(1 << 20).unwrap(), 0, &noise(1, n as u64)).unwrap();
            spa.sync().unwrap();
            let view = spa.view().unwrap();
            let now = view.dataset("t").unwrap().objset().unwrap().object(object.id()).unwrap();
            let found = (view.uberblock().txg, now.blkptr(0, 0).unwrap().unwrap());
            (0..idle).for_each(|_| spa.sync().unwrap());
            found
        };
        let states = (0..states).map(state).collect();
        States { bytes: device.snapshot(), states }
    }

    /// Destroys what the `n` newest states have of their own.
    fn lose(&mut self, n: usize) -> &States {
        for (_, block) in self.states.iter().rev().take(n) {
            for dva in block.dvas() {
                let at = (FRONT + dva.offset()) as usize;
                self.bytes[at..at + 4096].fill(0xa5);
            }
        }
        self
    }

    /// The place, from the newest, of the state that an import takes.
    fn taken(&self, extreme: bool) -> Result<usize, Error> {
        let device = Arc::new(MemoryDevice::writable(SIZE).named("d".to_string()));
        device.write_at(0, &self.bytes).unwrap();
        let found = vdev::import::scan_devices(vec![("d".into(), device as Arc<dyn Device>)]);
        let options = ImportOptions { rewind: true, extreme, force: true, ..ImportOptions::default() };
        let pool = pool::Pool::open(
            &found[0],
            &OpenOptions { verify: Some(options.load_policy()), ..OpenOptions::default() },
        )?;
        let txg = pool.uberblock().txg;
        let spa = Spa::import(&found[0], &options, hooks())?;
        // it is written on, above all that was there
        let newest = self.states.last().unwrap().0;
        assert!(spa.view().unwrap().uberblock().txg > newest || txg == newest);
        spa.sync().unwrap();
        spa.export().unwrap();
        Ok(self.states.iter().rev().position(|(at, _)| *at == txg).unwrap())
    }
}

/// From a state of the last three txgs it goes on to the one before, whenever that was; with `-X` from any.
fn a_rewind_goes_to_the_state_before_those_of_the_last_txgs() {
    assert_eq!(States::new(6, 0).taken(false).unwrap(), 0);
    assert_eq!(States::new(6, 0).lose(1).taken(false).unwrap(), 1);
    assert_eq!(States::new(6, 0).lose(3).taken(false).unwrap(), 3);
    assert!(matches!(States::new(6, 0).lose(4).taken(false), Err(Error::Unreadable { .. })));
    assert_eq!(States::new(6, 0).lose(4).taken(true).unwrap(), 4);
    assert_eq!(States::new(6, 5).lose(1).taken(false).unwrap(), 1);
    assert!(matches!(States::new(6, 5).lose(2).taken(false), Err(Error::Unreadable { .. })));
    assert_eq!(States::new(6, 5).lose(2).taken(true).unwrap(), 2);
}
