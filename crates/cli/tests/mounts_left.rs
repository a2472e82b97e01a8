//! Mounts that a server which was killed has left, beside others that do not answer.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod mounted;

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;

use mounted::World;
use rustix::mount::{MountFlags, UnmountFlags};

/// Mounts that wait for half a second each, one after the other, are more than a client waits for a server (ten seconds).
const SILENT: usize = 25;

/// A mount of a pool of the same name, whose process answers nothing.
struct Silent {
    path: std::path::PathBuf,
    _device: File,
}

impl Silent {
    fn new(world: &World, n: usize) -> Silent {
        let path = world.path(&format!("silent{n}"));
        fs::create_dir(&path).unwrap();
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let source = format!("t/silent{n}");
        let data = CString::new(data).unwrap();
        rustix::mount::mount(source.as_str(), &path, "fuse.zfs", MountFlags::empty(), Some(data.as_c_str())).unwrap();
        Silent { path, _device: device }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _gone = rustix::mount::unmount(&self.path, UnmountFlags::DETACH);
    }
}

#[test]
fn mounts_that_do_not_answer_do_not_hold_up_the_next_server() {
    let Some(mut world) = World::new() else { return };
    world.ok("zfs create -p t/a/b && echo x > $R/t/a/b/f && zpool sync");
    let silent: Vec<Silent> = (0..SILENT).map(|n| Silent::new(&world, n)).collect();
    world.kill();
    // the one that is started on demand unmounts what is dead, and leaves what may live
    world.ok("zfs mount -a");
    assert_eq!(world.mounted(), ["t ROOT/t", "t/a ROOT/t/a", "t/a/b ROOT/t/a/b"]);
    assert_eq!(world.ok("cat $R/t/a/b/f"), "x\n");
    assert_eq!(world.in_kernel().len(), SILENT + 3);
    drop(silent);
    world.check();
}
