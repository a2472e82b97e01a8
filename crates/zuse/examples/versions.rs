//! Versions of a folder: each commit makes a file system of a pool what the folder is, and keeps that as a snapshot.
//!
//! ```text
//! versions /tmp/v.img commit FOLDER first    keep FOLDER as version "first"
//! versions /tmp/v.img log
//! versions /tmp/v.img show first a/file      write a file of that version to standard output
//! versions /tmp/v.img restore first DEST     the whole version as a folder
//! ```

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use zuse::{Copier, CopyIn, Error, Pool, Report};

/// The pool, and the file system in it.
const POOL: &str = "versions";
const TREE: &str = "versions/tree";
/// Bytes of a new pool's file: sparse, it takes what is stored.
const SIZE: u64 = 1 << 30;

/// Tells what is not kept.
struct Told;

impl Report for Told {
    fn lost(&mut self, path: &[u8], what: &str) {
        eprintln!("versions: {}: {what}", String::from_utf8_lossy(path));
    }
}

fn open(path: &str) -> Result<Pool, Error> {
    if Path::new(path).exists() {
        return Pool::open_writable(&[path], Some(POOL));
    }
    let pool = Pool::create_new(POOL, &[path], SIZE)?;
    pool.create(TREE, &[])?;
    Ok(pool)
}

/// Makes the file system what the folder is, and keeps that as a snapshot.
fn commit(pool: &Pool, folder: &str, version: &str) -> Result<(), Error> {
    let files = pool.files(TREE)?;
    for old in files.read_dir(b"")? {
        files.remove_all(&old.name)?;
    }
    let mut report = Told;
    let mut copy_in = CopyIn::new(files.zfs(), files.fs().root(), &mut report);
    copy_in.host(Path::new(folder), b"")?;
    let done = copy_in.finish()?;
    whole(done.failed)?;
    pool.snapshot(&format!("{TREE}@{version}"))?;
    println!("{version}: {} files, {} bytes", done.files, done.bytes);
    Ok(())
}

/// A version without some of its files is none.
fn whole(missing: u64) -> Result<(), Error> {
    match missing {
        0 => Ok(()),
        n => Err(std::io::Error::other(format!("{n} files are incomplete or missing")).into()),
    }
}

/// The versions, the oldest first, with what only they hold.
fn log(pool: &Pool) -> Result<(), Error> {
    for snapshot in pool.dataset(TREE)?.snapshots()? {
        let (phys, name) = (snapshot.phys(), snapshot.short_name());
        println!("{name:16} {:>12} bytes, {:>12} its own", phys.referenced_bytes, phys.unique_bytes);
    }
    Ok(())
}

fn show(pool: &Pool, version: &str, path: &str) -> Result<(), Error> {
    let node = pool.file_system(&format!("{TREE}@{version}"))?.resolve(path.as_bytes())?;
    let mut data = vec![0; node.size() as usize];
    node.read(0, &mut data)?;
    Ok(std::io::stdout().write_all(&data)?)
}

fn restore(pool: &Pool, version: &str, to: &str) -> Result<(), Error> {
    let root = pool.file_system(&format!("{TREE}@{version}"))?.root_node()?;
    let done = Copier::new(&mut Told).copy_tree(root, Path::new(to))?;
    println!("{} files, {} bytes", done.files, done.bytes);
    whole(done.damaged)
}

fn run(args: &[&str]) -> Result<bool, Error> {
    let [path, verb, rest @ ..] = args else { return Ok(false) };
    let pool = open(path)?;
    match (*verb, rest) {
        ("commit", [folder, version]) => commit(&pool, folder, version)?,
        ("log", []) => log(&pool)?,
        ("show", [version, file]) => show(&pool, version, file)?,
        ("restore", [version, to]) => restore(&pool, version, to)?,
        _ => return Ok(false),
    }
    pool.export()?;
    Ok(true)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("usage: versions FILE commit FOLDER NAME | log | show NAME PATH | restore NAME FOLDER");
            ExitCode::from(2)
        }
        Err(e) => {
            eprintln!("versions: {e}");
            ExitCode::FAILURE
        }
    }
}
