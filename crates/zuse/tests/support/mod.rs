//! Fixtures opened as pools, with all keys.
#![allow(dead_code, clippy::unwrap_used)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use codec::crypt::WrappingKey;
use oracle::fixtures::{self, Unpacked};
use pool::{ListOptions, OpenOptions, Pool};
use zuse::{codec, pool, vdev};

/// Opens a fixture read-only with all keys that it comes with.
pub(crate) fn open(name: &str) -> (Unpacked, Arc<Pool>) {
    let images = fixtures::unpack(name);
    let pool = open_at(name, &images);
    (images, pool)
}

/// Opens the pool in `images` with the keys of fixture `name`.
pub(crate) fn open_at(name: &str, images: &Unpacked) -> Arc<Pool> {
    let found = vdev::import::scan(std::slice::from_ref(&images.dir)).unwrap();
    let [candidate] = found.as_slice() else { panic!("{name}: {} pools", found.len()) };
    let pool = Pool::open(candidate, &OpenOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    load_keys(name, &pool);
    pool
}

fn load_keys(name: &str, pool: &Arc<Pool>) {
    let Ok(files) = fs::read_dir(fixtures::dir(name).join("keys")) else { return };
    let files: Vec<Vec<u8>> = files.map(|f| fs::read(f.unwrap().path()).unwrap()).collect();
    for entry in pool.list(pool.name(), &ListOptions::DATASETS).unwrap() {
        let dataset = entry.dataset().unwrap();
        if dataset.encryption_root().unwrap().as_deref() != Some(dataset.name()) {
            continue;
        }
        let info = dataset.crypto().unwrap().unwrap();
        let fits = |bytes: &Vec<u8>| {
            let text = String::from_utf8_lossy(bytes);
            let text = text.trim_end_matches('\n');
            let keys = [
                WrappingKey::from_raw(bytes),
                WrappingKey::from_hex(text),
                WrappingKey::from_passphrase(text.as_bytes(), info.pbkdf2_salt, info.pbkdf2_iters),
            ];
            keys.into_iter().flatten().any(|key| pool.load_key(dataset.name(), &key).is_ok())
        };
        assert!(files.iter().any(fits), "{name}: no key fits {}", dataset.name());
    }
}

/// Runs `test` on every fixture, two at a time; says which ones failed.
pub(crate) fn each_fixture(test: &(dyn Fn(&str) + Sync)) {
    let names = fixtures::names();
    assert!(names.len() > 30, "the fixtures are not there");
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if catch_unwind(AssertUnwindSafe(|| test(name))).is_err() {
                        failed.lock().unwrap().push(name.clone());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "failed: {failed:?}");
}
