//! A pool whose devices hang does not hold up another one in the same process.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use base::Env;
use dmu::{NewObject, Object};
use ondisk::ObjectType;
use pool::{CreateOptions, Hooks, Spa};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, MemoryDevice};

/// Operations of a kind hang while the gate is shut.
#[derive(Debug, Default)]
struct Gate {
    shut: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.changed.notify_all();
    }

    fn pass(&self) {
        drop(self.changed.wait_while(self.shut.lock().unwrap(), |shut| *shut).unwrap());
    }
}

#[derive(Debug)]
struct Hanging {
    memory: MemoryDevice,
    gate: Arc<Gate>,
}

impl Device for Hanging {
    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.memory.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.memory.write_at(offset, data)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.gate.pass();
        Ok(())
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.memory.name()
    }
}

/// A pool on stripes of disks, more than there are cores.
fn pool(name: &str, gate: &Arc<Gate>) -> (Arc<Spa>, Object) {
    let names: Vec<String> = (0..base::tasks::width() + 4).map(|n| format!("{name}{n}")).collect();
    let open = |path: &str| -> Option<Arc<dyn Device>> {
        let memory = MemoryDevice::writable(64 << 20).named(path);
        Some(Arc::new(Hanging { memory, gate: gate.clone() }))
    };
    let hooks = Hooks { env: Env::system(), ..Hooks::default() };
    let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
    let new = layout(&VdevSpec::parse(&names).unwrap(), &open, options, &hooks.env).unwrap();
    let spa = Spa::create(new, CreateOptions::new(name), hooks).unwrap();
    let dataset = spa.view().unwrap().dataset(name).unwrap();
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 128 << 10, ..NewObject::default() };
    let object = spa.objset(&dataset).unwrap().alloc_object(&spa.tx(1 << 20).unwrap(), &new).unwrap();
    spa.sync().unwrap();
    (spa, object)
}

fn write(spa: &Arc<Spa>, object: &Object, seed: u64) {
    let data = pool::testing::noise(64, seed);
    object.write(&spa.tx(data.len() as u64).unwrap(), 0, &data).unwrap();
    spa.sync().unwrap();
}

#[test]
fn a_pool_whose_flushes_hang_leaves_the_threads_to_others() {
    let (gate, open) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    let (hung, fine) = (pool("hung", &gate), pool("fine", &open));
    gate.set(true);
    let (end, ended) = channel();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| write(&hung.0, &hung.1, 1));
        std::thread::sleep(Duration::from_millis(500));
        assert!(!waiting.is_finished());
        scope.spawn(|| {
            (2..6).for_each(|seed| write(&fine.0, &fine.1, seed));
            end.send(()).unwrap();
        });
        let told = ended.recv_timeout(Duration::from_secs(20));
        assert!(!waiting.is_finished());
        // also if it failed, so that it ends
        gate.set(false);
        told.unwrap();
    });
}
