//! Changes that a program did not sync are there when the last handle of the pool is gone.
#![allow(clippy::unwrap_used)]

use zuse::Pool;

#[test]
fn the_last_handle_writes_what_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.img").display().to_string();
    let pool = Pool::create_new("t", &[&path], 128 << 20).unwrap();
    pool.create_volume("t/v", 1 << 20, &[]).unwrap();
    let files = pool.files("t").unwrap();
    files.write(b"of the pool", b"1").unwrap();
    drop(files);
    drop(pool);

    let pool = Pool::open_writable(&[&path], None).unwrap();
    assert_eq!(pool.file_system("t").unwrap().resolve(b"of the pool").unwrap().size(), 1);
    // the pool goes first
    let files = pool.files("t").unwrap();
    drop(pool);
    files.write(b"of files", b"22").unwrap();
    drop(files);

    let pool = Pool::open_writable(&[&path], None).unwrap();
    assert_eq!(pool.file_system("t").unwrap().resolve(b"of files").unwrap().size(), 2);
    let objects = pool.objects("t").unwrap();
    drop(pool);
    objects.change(1 << 20, |tx| objects.table().add_u64(tx, "n", 7)).unwrap();
    drop(objects);

    let pool = Pool::open(&[&path], None).unwrap();
    assert_eq!(pool.objects_at("t").unwrap().table().lookup_u64("n").unwrap(), Some(7));
    drop(pool);
    // after an export there is nothing to write, and nothing to wait for
    let pool = Pool::open_writable(&[&path], None).unwrap();
    pool.export().unwrap();
    drop(pool);
    oracle::judge::no_leaks(dir.path(), "t");
}
