//! `zpool reguid`: pools that get another identity. OpenZFS's `zdb` and `zhack` judge what is on the devices.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/devices.rs"]
mod devices;
mod support;

use devices::Lab;
use oracle::judge;

impl Lab {
    fn guid(&self) -> String {
        self.ok("zpool get -Hpo value guid tank").trim().to_owned()
    }

    /// The files of the state that have this guid in their names.
    fn files_of(&self, guid: &str) -> Vec<String> {
        let names = std::fs::read_dir(self.session.state()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.retain(|name| name.starts_with(guid));
        names.sort();
        names
    }
}

#[test]
fn a_pool_gets_another_identity_and_keeps_what_is_known_of_it() {
    for vdevs in ["/a", "mirror /a /b", "raidz /a /b /c"] {
        let lab = Lab::new();
        lab.ok(&format!("zpool create -m none --size 64M tank {vdevs}"));
        lab.ok("zfs create tank/fs");
        let first = lab.guid();
        let known = lab.files_of(&first);
        assert!(known.contains(&format!("{first}.json")), "{known:?}");
        assert_eq!(lab.ok("zpool reguid tank"), "");
        let second = lab.guid();
        assert!(second != first && lab.files_of(&first).is_empty(), "{:?}", lab.files_of(&first));
        assert_eq!(lab.files_of(&second), known.iter().map(|name| name.replace(&first, &second)).collect::<Vec<_>>());
        lab.ok("zpool reguid -g 4711 tank");
        assert_eq!(lab.guid(), "4711");
        lab.ok("zfs create tank/more");
        let history = lab.ok("zpool history -i tank");
        assert!(history.contains(&format!("guid change old={first} new={second}")), "{history}");
        assert!(history.contains(&format!("guid change old={second} new=4711")), "{history}");
        assert!(history.contains(" zpool reguid -g 4711 tank"), "{history}");
        lab.ok("zpool export tank");
        judge::no_leaks(lab.dir.path(), "tank");
        if judge::tool("zhack").is_some() {
            judge::imports_in_place(lab.dir.path(), "tank").unwrap_or_else(|e| panic!("{vdevs}: {e}"));
        }
        lab.ok("zpool import -d /. 4711");
        assert_eq!(lab.ok("zfs list -Ho name -r tank"), "tank\ntank/fs\ntank/more\n");
        lab.export_and_judge("tank");
    }
}

#[test]
fn a_copy_of_a_pool_is_imported_beside_it() {
    let lab = Lab::new();
    std::fs::create_dir(lab.path("copy")).unwrap();
    lab.ok("zpool create -m none --size 64M tank /a");
    lab.ok("zpool sync tank");
    std::fs::copy(lab.path("a"), lab.path("copy/a")).unwrap();
    lab.ok("zpool reguid tank");
    lab.ok("zpool import -f -d /copy tank other");
    assert_eq!(lab.ok("zpool list -Ho name"), "other\ntank\n");
    let other = lab.ok("zpool get -Hpo value guid other");
    lab.fails(&format!("zpool reguid -g {} tank", other.trim()), 1, "cannot reguid 'tank': pool already exists");
}

#[test]
fn an_identity_is_refused_where_openzfs_refuses_it() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank mirror /a /b");
    let guid = lab.guid();
    lab.fails("zpool reguid", 2, "missing pool name");
    lab.fails("zpool reguid tank more", 2, "too many arguments");
    lab.fails("zpool reguid -g 12x tank", 2, "invalid GUID: 12x");
    lab.fails("zpool reguid -g 0 tank", 1, "cannot reguid 'tank': invalid argument for this pool operation");
    lab.fails(&format!("zpool reguid -g {guid} tank"), 1, "cannot reguid 'tank': pool already exists");
    lab.fails("zpool reguid none", 1, "cannot open 'none': no such pool");
    lab.ok("zpool checkpoint tank");
    lab.fails("zpool reguid tank", 1, "cannot reguid 'tank': checkpoint exists");
    lab.ok("zpool checkpoint -d -w tank");
    lab.ok("zpool offline tank /a");
    lab.fails("zpool reguid tank", 1, "cannot reguid 'tank': one or more devices is currently unavailable");
    assert_eq!(lab.guid(), guid);
    lab.ok("zpool online tank /a");
    lab.ok("zpool reguid tank");
    assert_ne!(lab.guid(), guid);
    lab.export_and_judge("tank");
}

#[test]
fn a_command_that_was_killed_leaves_a_pool_that_is_found() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank /a");
    let (first, record) = (lab.guid(), |guid: &str| lab.session.state().join(format!("{guid}.json")));
    let before = std::fs::read_to_string(record(&first)).unwrap();
    let killed = |next: &str| before.replace("\"next_guid\": null", &format!("\"next_guid\": \"{next}\""));
    // before anything was on the devices
    std::fs::write(record(&first), killed("4711")).unwrap();
    assert_eq!(lab.guid(), first);
    // before the record followed
    lab.ok("zpool reguid -g 4711 tank");
    std::fs::remove_file(record("4711")).unwrap();
    std::fs::write(record(&first), killed("4711")).unwrap();
    assert_eq!(lab.guid(), "4711");
    assert!(record("4711").exists() && !record(&first).exists());
    lab.ok("zfs create tank/fs");
    lab.export_and_judge("tank");
}
