//! Pools of versions 1 to 15, and of the other byte order, from OpenZFS's own test suite (they are not in this repository:
//! `tests/zfs-tests/tests/functional/cli_root/zpool_upgrade/blockfiles` and `functional/history` there). `ZUSE_OLD_POOLS`
//! names the folder with the unpacked images.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use base::{Errno, ObjectId, Txg};
use codec::crypt::WrappingKey;
use ondisk::Uberblock;
use ondisk::zil::{Record, TxType};
use oracle::{fixtures, judge};
use pool::{Entry, Hooks, ImportOptions, ListOptions, OpenOptions, Pool, Spa};
use vdev::{Device, FileDevice};
use zil::write::{Itx, ItxData};

#[test]
fn old_and_foreign_pools_open_and_list_what_zdb_lists() {
    let Some(dir) = std::env::var_os("ZUSE_OLD_POOLS") else { return };
    let mut by_version: BTreeMap<u64, usize> = BTreeMap::new();
    for candidate in vdev::import::scan(&[dir.clone().into()]).unwrap() {
        let pool = match Pool::open(&candidate, &OpenOptions::default()) {
            Ok(pool) => pool,
            Err(e) => {
                println!("{} version {}: {e}", candidate.name, candidate.version);
                continue;
            }
        };
        let all = pool.list(pool.name(), &ListOptions::ALL).unwrap();
        let endian = pool.uberblock().endian;
        println!(
            "{} version {} {endian:?} txg {}: {} datasets",
            pool.name(),
            pool.version(),
            pool.uberblock().txg,
            all.len()
        );
        *by_version.entry(pool.version()).or_default() += 1;
        for entry in &all {
            if let Entry::Dataset(ds) = entry {
                let props = ds.props().unwrap();
                assert!(!props.is_empty());
                println!(
                    "  {} used {} refer {} written {:?}",
                    ds.name(),
                    ds.used(),
                    ds.referenced(),
                    ds.written().unwrap()
                );
            }
        }
        // the passphrase of that test suite's pools; read a block of each kind with it
        for ds in all.iter().filter_map(Entry::dataset).filter(|ds| !ds.is_snapshot() && ds.is_encrypted().unwrap()) {
            if ds.encryption_root().unwrap().as_deref() == Some(ds.name()) {
                let info = ds.crypto().unwrap().unwrap();
                let key = WrappingKey::from_passphrase(b"password", info.pbkdf2_salt, info.pbkdf2_iters).unwrap();
                println!(
                    "  key of {} (version {}) opens {} datasets",
                    ds.name(),
                    info.wrapped.version,
                    pool.load_key(ds.name(), &key).unwrap()
                );
            }
            let objset = ds.objset().unwrap();
            for object in objset.objects() {
                let object = object.unwrap();
                object.block(0).unwrap();
            }
        }
        for top in pool.tree().tops() {
            let space = pool.load_space(top.id()).unwrap();
            println!("  vdev {}: {} allocated", top.id(), space.total());
        }
        println!("  {} history records, size {}", pool.history().unwrap().len(), pool.space().unwrap().size);
        let out = judge::run("zdb", &["-e", "-p", dir.to_str().unwrap(), "-d", &pool.guid().to_string()]);
        let Some(out) = out.filter(|o| o.status.success()) else { continue };
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let mut theirs: Vec<&str> = text
            .lines()
            .filter_map(|l| l.strip_prefix("Dataset "))
            .filter(|l| !l.starts_with("mos "))
            .map(|l| l.split_whitespace().next().unwrap())
            .filter(|n| !n.contains('$'))
            .collect();
        // asked by number, zdb shows the number for the pool's name
        let renamed = |name: &str| name.replacen(pool.name(), &pool.guid().to_string(), 1);
        let mut ours: Vec<String> = all.iter().filter_map(Entry::dataset).map(|ds| renamed(ds.name())).collect();
        theirs.sort_unstable();
        ours.sort_unstable();
        assert_eq!(ours, theirs);
    }
    println!("{by_version:?}");
}

#[test]
fn a_pool_older_than_version_26_is_read_and_not_written() {
    let unpacked = fixtures::unpack_private("legacy-a");
    let scan = || {
        let images = std::fs::read_dir(&unpacked.dir).unwrap().map(|entry| entry.unwrap().path());
        let open = |path: PathBuf| -> (PathBuf, Arc<dyn Device>) {
            let device = FileDevice::open_read_write(&path).unwrap();
            (path, Arc::new(device))
        };
        vdev::import::scan_devices(images.map(open).collect()).remove(0)
    };
    for (version, written) in [(25, false), (26, true)] {
        let candidate = scan();
        let pool = Pool::open(&candidate, &OpenOptions::default()).unwrap();
        let older = Uberblock { version, txg: Txg(pool.uberblock().txg.0 + 1), ..pool.uberblock().clone() };
        vdev::label::commit(pool.tree(), None, &older).unwrap();
        drop((pool, candidate));
        let candidate = scan();
        let pool = Pool::open(&candidate, &OpenOptions::default()).unwrap();
        assert_eq!(pool.version(), version);
        assert!(pool.list(pool.name(), &ListOptions::ALL).unwrap().len() > 3);
        drop(pool);
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        match Spa::import(&candidate, &options, Hooks::default()) {
            Ok(spa) => spa.export().unwrap(),
            Err(error) => {
                assert!(
                    error.to_string().ends_with("it is of version 25, and those from version 26 on are written"),
                    "{error}"
                );
                assert!(!written);
                continue;
            }
        }
        assert!(written);
    }
}

/// Pools before version 27 have no snapshots of a dataset with a log (OpenZFS: `SPA_VERSION_FAST_SNAP`): one that is in use is ended, one that nobody has replayed
/// makes the dataset busy. Later ones take the snapshot in any case.
#[test]
fn a_snapshot_beside_a_log() {
    for version in [26, 27] {
        let unpacked = fixtures::unpack_private("legacy-a");
        let crashed = tempfile::tempdir().unwrap();
        let scan = |dir: &std::path::Path| {
            let images = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
            let open = |path: PathBuf| -> (PathBuf, Arc<dyn Device>) {
                let device = FileDevice::open_read_write(&path).unwrap();
                (path, Arc::new(device))
            };
            vdev::import::scan_devices(images.map(open).collect()).remove(0)
        };
        let import = |dir: &std::path::Path| {
            let options = ImportOptions { force: true, ..ImportOptions::default() };
            Spa::import(&scan(dir), &options, Hooks::default()).unwrap()
        };
        let pool = Pool::open(&scan(&unpacked.dir), &OpenOptions::default()).unwrap();
        let older = Uberblock { version, txg: Txg(pool.uberblock().txg.0 + 1), ..pool.uberblock().clone() };
        vdev::label::commit(pool.tree(), None, &older).unwrap();
        drop(pool);

        let spa = import(&unpacked.dir);
        let view = spa.view().unwrap();
        let fs = view.list(view.name(), &ListOptions::DATASETS).unwrap().into_iter().find_map(|entry| {
            let dataset = entry.dataset()?;
            (dataset.kind().unwrap() == pool::Kind::Filesystem && dataset.name().contains('/')).then(|| dataset.clone())
        });
        let fs = fs.unwrap();
        let objset = spa.objset(&fs).unwrap();
        let log = || {
            let record = Record::Truncate { foid: ObjectId(1 << 40), offset: 0, length: 1 }.encode(TxType::Truncate);
            let zil = spa.zil(&objset);
            let itx = Itx { record, object: None, sync: true, data: ItxData::InRecord };
            zil.assign(&spa.tx(1 << 10).unwrap(), itx);
            zil.commit(None).unwrap();
        };
        log();
        let in_use = |spa: &Arc<Spa>, name: &str| {
            let objset = spa.view().unwrap().dataset(name).unwrap().objset().unwrap();
            !objset.phys().zil_header.log.is_hole()
        };
        assert!(in_use(&spa, fs.name()));
        let snap = format!("{}@while-in-use", fs.name());
        spa.snapshot(std::slice::from_ref(&snap), &[]).unwrap();
        assert_eq!(in_use(&spa, &snap), version > 26, "version {version}");
        log();
        log();
        for entry in std::fs::read_dir(&unpacked.dir).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, crashed.path().join(path.file_name().unwrap())).unwrap();
        }
        drop((view, objset));
        spa.export().unwrap();
        drop(spa);
        judge::no_leaks(&unpacked.dir, fs.name().split('/').next().unwrap());

        let spa = import(crashed.path());
        assert!(spa.objset(&fs).is_err(), "it waits for its replay");
        let snap = format!("{}@unreplayed", fs.name());
        let taken = spa.snapshot(std::slice::from_ref(&snap), &[]);
        match (version, taken) {
            (26, Err(e)) => assert_eq!(e.errno(), Errno::EBUSY, "{e}"),
            (27, Ok(())) => assert!(in_use(&spa, &snap)),
            (_, taken) => panic!("version {version}: {taken:?}"),
        }
        spa.export().unwrap();
        drop(spa);
        judge::no_leaks(crashed.path(), fs.name().split('/').next().unwrap());
    }
}
