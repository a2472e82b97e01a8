//! Pools of old versions: changed, and brought to newer ones. OpenZFS's `zdb` judges what is on the devices.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oracle::judge::no_leaks;
use support::Session;

/// Changes the images of a pool to an older version: nothing in it may be newer.
fn make_older(images: &str, version: u64) {
    let paths = std::fs::read_dir(images).unwrap().map(|entry| entry.unwrap().path());
    let open = |path: PathBuf| -> (PathBuf, Arc<dyn vdev::Device>) {
        let device = vdev::FileDevice::open_read_write(&path).unwrap();
        (path, Arc::new(device))
    };
    let candidate = vdev::import::scan_devices(paths.map(open).collect()).remove(0);
    let pool = pool::Pool::open(&candidate, &pool::OpenOptions::default()).unwrap();
    let newest = pool.uberblock();
    let older = ondisk::Uberblock { version, txg: base::Txg(newest.txg.0 + 1), ..newest.clone() };
    vdev::label::commit(pool.tree(), None, &older).unwrap();
}

#[test]
fn an_old_pool_is_upgraded_from_version_to_version() {
    let session = Session::on_copy("legacy-a");
    let (images, pool) = (session.images(), session.pool());
    make_older(&images, 26);
    session.ok(&["zpool", "import", "-d", &images, "-f", &pool]);
    let version = || session.ok(&["zpool", "get", "-Hpo", "value", "version", &pool]);
    let upgrade = |to: &str| {
        let text = session.ok(&["zpool", "upgrade", "-V", to, &pool]);
        text.strip_prefix("This system supports ZFS pool feature flags.\n\n").unwrap().to_owned()
    };
    let judged_and_back = || {
        session.ok(&["zpool", "export", &pool]);
        no_leaks(Path::new(&images), &pool);
        session.ok(&["zpool", "import", "-d", &images, &pool]);
    };
    assert_eq!(version(), "26\n");
    assert_eq!(upgrade("25"), format!("Pool '{pool}' is already formatted using more current version '26'.\n\n"));
    assert_eq!(upgrade("26"), format!("Pool '{pool}' is already formatted using version 26.\n\n"));
    session.ok(&["zpool", "set", "compatibility=legacy", &pool]);
    let refused = session.run(&["zpool", "upgrade", "-V", "27", &pool]);
    assert_eq!(refused.err, "Upgrade not performed because 'compatibility' property set to 'legacy'.\n");
    session.ok(&["zpool", "set", "compatibility=off", &pool]);
    assert_eq!(upgrade("27"), format!("Successfully upgraded '{pool}' from version 26 to version 27.\n\n"));
    assert_eq!(version(), "27\n");
    judged_and_back();
    let listed = session.ok(&["zpool", "upgrade"]);
    assert!(listed.contains(&format!("VER  POOL\n---  ------------\n27   {pool}\n")), "{listed}");

    session.fails(&["zpool", "set", "version=26", &pool], 1, "property 'version' number 26 is invalid.");
    session.fails(&["zpool", "set", "version=5000", &pool], 1, "Invalid argument");
    session.ok(&["zpool", "set", "version=28", &pool]);
    assert_eq!(version(), "28\n");
    let all = session.ok(&["zpool", "upgrade", "-a", "-V", "28"]);
    assert!(all.ends_with("All pools are already formatted with version 28 or higher.\n"), "{all}");
    session.ok(&["zfs", "create", &format!("{pool}/of-28")]);
    judged_and_back();
    assert_eq!(version(), "28\n");

    // the first feature brings the rest of the version
    session.ok(&["zpool", "set", "feature@edonr=enabled", &pool]);
    assert_eq!(
        session.ok(&["zpool", "get", "-Ho", "value", "version,feature@edonr,feature@blake3", &pool]),
        "-\nenabled\ndisabled\n"
    );
    judged_and_back();
    let upgraded = upgrade("5000");
    assert!(
        upgraded.starts_with(&format!("Enabled the following features on '{pool}':\n  async_destroy\n")),
        "{upgraded}"
    );
    assert_eq!(upgrade("28"), format!("Pool '{pool}' is already formatted using more current version '5000'.\n\n"));
    judged_and_back();
    let history = session.ok(&["zpool", "history", "-i", &pool]);
    for said in ["set version=27", "set version=28", "set version=5000", "zpool upgrade -V 27"] {
        assert!(history.contains(said), "{said}: {history}");
    }
}

#[test]
fn a_pool_of_version_28_is_changed_and_then_gets_features() {
    let session = Session::on_copy("legacy-a");
    let (images, pool) = (session.images(), session.pool());
    let judged_and_back = || {
        session.ok(&["zpool", "export", &pool]);
        no_leaks(Path::new(&images), &pool);
        session.ok(&["zpool", "import", "-d", &images, &pool]);
    };
    session.ok(&["zpool", "import", "-d", &images, "-f", &pool]);
    session.ok(&["zfs", "create", &format!("{pool}/new")]);
    for name in ["a", "b", "c"] {
        session.ok(&["mkdir", &format!("{pool}/new:/{name}")]);
        session.ok(&["zfs", "snapshot", &format!("{pool}/new@{name}")]);
    }
    session.ok(&["zfs", "destroy", &format!("{pool}/new@b")]);
    session.ok(&["zfs", "clone", &format!("{pool}/new@c"), &format!("{pool}/clone")]);
    session.ok(&["zfs", "promote", &format!("{pool}/clone")]);
    judged_and_back();
    assert_eq!(session.ok(&["zpool", "get", "-H", "-o", "value", "version", &pool]), "28\n");

    session.ok(&["zpool", "set", "compatibility=legacy", &pool]);
    let refused = session.run(&["zpool", "upgrade", &pool]);
    assert_eq!(refused.err, "Upgrade not performed because 'compatibility' property set to 'legacy'.\n");
    session.ok(&["zpool", "set", "compatibility=off", &pool]);
    let upgraded = session.ok(&["zpool", "upgrade", &pool]);
    let first = format!(
        "This system supports ZFS pool feature flags.\n\n\
         Successfully upgraded '{pool}' from version 28 to feature flags.\n\
         Enabled the following features on '{pool}':\n  async_destroy\n"
    );
    assert!(upgraded.starts_with(&first), "{upgraded}");
    assert_eq!(session.ok(&["zpool", "get", "-H", "-o", "value", "version", &pool]), "-\n");
    session.ok(&["zfs", "create", "-o", "compression=zstd", "-o", "checksum=blake3", &format!("{pool}/newer")]);
    session.ok(&["mkdir", &format!("{pool}/newer:/d")]);
    session.ok(&["zfs", "destroy", "-R", &format!("{pool}/clone@c")]);
    judged_and_back();
    assert_eq!(session.ok(&["zpool", "get", "-H", "-o", "value", "feature@blake3", &pool]), "active\n");
    assert!(session.ok(&["zpool", "history", "-i", &pool]).contains("set version=5000"));
}
