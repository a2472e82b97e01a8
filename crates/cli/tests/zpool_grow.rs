//! `zpool online -e`, `autoexpand` and `expandsize`: pools whose devices grow. OpenZFS's `zdb` and `zhack` judge what is on them.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/devices.rs"]
mod devices;
mod support;

use std::io::Write;

use devices::Lab;
use oracle::judge;

impl Lab {
    fn grow(&self, names: &[&str], mib: u64) {
        for name in names {
            let file = std::fs::OpenOptions::new().write(true).open(self.path(name)).unwrap();
            file.set_len(mib << 20).unwrap();
        }
    }

    /// Size and growth of the pool in MiB.
    fn sizes(&self) -> (u64, u64) {
        let shown = self.ok("zpool list -Hpo size,expandsize tank");
        let mut fields = shown.trim().split('\t').map(|field| field.parse::<u64>().unwrap_or(0) >> 20);
        (fields.next().unwrap(), fields.next().unwrap())
    }

    /// Writes a file of so many MiB that do not compress.
    fn fill(&self, name: &str, mib: usize) {
        let mut file = std::fs::File::create(self.dir.path().join("source")).unwrap();
        file.write_all(&base::Env::noise(mib as u64, mib << 20)).unwrap();
        let copied = self.session.run(&["cp", &self.path("source"), &format!("tank:/{name}")]);
        assert_eq!(copied.code, 0, "{copied:?}");
        std::fs::remove_file(self.dir.path().join("source")).unwrap();
    }
}

#[test]
fn pools_of_every_shape_grow_with_their_devices() {
    for (ashift, vdevs, names, before, after) in [
        (9, "/a", &["a"][..], 112, 368),
        (12, "mirror /a /b", &["a", "b"], 112, 368),
        (12, "raidz /a /b /c", &["a", "b", "c"], 352, 1120),
        (9, "draid1:2d:4c:1s /a /b /c /d", &["a", "b", "c", "d"], 240, 1008),
    ] {
        let lab = Lab::new();
        lab.ok(&format!("zpool create -m none -o ashift={ashift} --size 128M tank {vdevs}"));
        lab.fill("first", 20);
        // of a dRAID the first metaslab may be smaller
        let (first, none) = lab.sizes();
        assert!(first.abs_diff(before) <= 1 && none == 0, "{vdevs}: {first}");
        lab.grow(names, 384);
        let (size, growth) = lab.sizes();
        assert_eq!(size, first, "{vdevs}");
        // the two may differ by what is left over at the end of a dRAID
        assert!(growth.abs_diff(after - before) <= 16, "{vdevs}: {growth}");
        for _ in 0..2 {
            assert_eq!(lab.ok("zpool online -e tank /a"), "", "{vdevs}");
            assert!(lab.sizes().0.abs_diff(after) <= 1, "{vdevs}: {:?}", lab.sizes());
            assert_eq!(lab.sizes().1, 0, "{vdevs}");
        }
        lab.fill("second", 100);
        assert_eq!(lab.ok("zpool history -i tank").matches("vdev online pool 'tank' size: ").count(), 1);
        lab.ok("zpool export tank");
        judge::no_leaks(lab.dir.path(), "tank");
        if judge::tool("zhack").is_some() {
            judge::imports_in_place(lab.dir.path(), "tank").unwrap_or_else(|e| panic!("{vdevs}: {e}"));
        }
    }
}

#[test]
fn a_pool_grows_by_itself_with_autoexpand_alone() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 128M tank mirror /a /b");
    lab.file("c", 384);
    lab.file("d", 384);
    // the first of the two small devices is replaced, then the last
    lab.ok("zpool replace -w tank /a /c");
    assert_eq!(lab.sizes(), (112, 0));
    lab.ok("zpool set autoexpand=on tank");
    lab.ok("zpool replace -w tank /b /d");
    lab.ok("zpool sync tank");
    assert_eq!(lab.sizes(), (368, 0));
    lab.export_and_judge("tank");

    let lab = Lab::new();
    lab.ok("zpool create -m none --size 128M -o autoexpand=on tank /a");
    lab.file("b", 384);
    lab.ok("zpool attach -w tank /a /b");
    assert_eq!(lab.sizes(), (112, 0));
    lab.ok("zpool detach tank /a");
    lab.ok("zpool sync tank");
    assert_eq!(lab.sizes(), (368, 0));
    lab.export_and_judge("tank");
}

#[test]
fn what_cannot_be_expanded_is_refused() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 128M tank mirror /a /b cache /c spare /d");
    lab.fails("zpool online -e tank /c", 1, "cannot expand DIR/c: cannot expand cache devices");
    lab.fails("zpool online -e tank /d", 1, "cannot expand DIR/d: device is reserved as a hot spare");
    lab.fails("zpool online -e tank /x", 1, "couldn't find device \"DIR/x\" in pool \"tank\"");
    lab.grow(&["a", "b"], 384);
    // where nobody looks
    std::fs::create_dir(lab.path("aside")).unwrap();
    std::fs::rename(lab.path("b"), lab.path("aside/b")).unwrap();
    assert_eq!(
        lab.session.run(&["zpool", "online", "-e", "tank", &lab.path("b")]).out.lines().last().unwrap(),
        format!("warning: failed to expand usable space on unhealthy device '{}'", lab.path("b")),
    );
    assert_eq!(lab.sizes().0, 112, "not without the other side");
    std::fs::rename(lab.path("aside/b"), lab.path("b")).unwrap();
    lab.ok("zpool online -e tank /b");
    assert_eq!(lab.sizes(), (368, 0));
    lab.export_and_judge("tank");
}
