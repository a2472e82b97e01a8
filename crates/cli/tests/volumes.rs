//! Images into volumes and from volume to volume, with `zuse put` and `cp`.
#![allow(clippy::unwrap_used)]

mod support;

use oracle::judge;
use support::Session;

#[test]
fn images_become_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let s = Session::empty();
    let device = dir.path().join("a");
    std::fs::File::create(&device).unwrap().set_len(128 << 20).unwrap();
    s.ok(&["zpool", "create", "-m", "none", "t", device.to_str().unwrap()]);
    for (name, size) in [("t/v", "9M"), ("t/w", "9M"), ("t/small", "1M")] {
        s.ok(&["zfs", "create", "-s", "-V", size, name]);
    }
    let image: Vec<u8> = (0..(9 << 20) / 8u32).flat_map(|n| format!("{n:07}\n").into_bytes()).collect();
    assert_eq!(s.feed(&["put", "t/v"], &image).code, 0);
    assert!(s.ok(&["cat", "t/v"]).as_bytes() == image);
    // the data past the end stays
    assert_eq!(s.feed(&["put", "t/v:/"], b"boot").code, 0);
    assert!(s.ok(&["cat", "t/v"]).as_bytes()[..9] == *b"boot000\n0");

    s.ok(&["cp", "-q", "t/v:/", "t/w:/"]);
    assert!(s.ok(&["cat", "t/w"]).as_bytes()[4..] == image[4..]);
    let host = dir.path().join("image");
    std::fs::write(&host, &image).unwrap();
    s.ok(&["cp", "-q", host.to_str().unwrap(), "t/w:/"]);
    assert!(s.ok(&["cat", "t/w"]).as_bytes() == image);
    s.ok(&["cp", "-q", host.to_str().unwrap(), "t:/image"]);
    s.ok(&["cp", "-q", "t:/image", "t/v:/"]);
    assert!(s.ok(&["cat", "t/v"]).as_bytes() == image);

    s.fails(&["cp", "-q", host.to_str().unwrap(), "t/small:/"], 1, "the volume has 1048576 bytes");
    assert!(s.ok(&["cat", "t/small"]).bytes().all(|b| b == 0), "what does not fit is not begun");
    s.fails(&["put", "t/v:/file"], 1, "a volume has no files");
    s.fails(&["put", "t"], 2, "names no file");
    s.ok(&["zfs", "snapshot", "t/v@s"]);
    s.fails(&["put", "t/v@s"], 1, "a snapshot cannot be changed");

    s.ok(&["zpool", "export", "t"]);
    judge::no_leaks(dir.path(), "t");
}
