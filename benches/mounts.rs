//! `cargo bench -p zuse-benches --bench mounts [-- mib=512 ops=20000 files=10000 tree=/usr/share/doc seconds=3 rounds=3 only=fsync]`: what programs do in mounted
//! file systems: Zuse's, beside zfs-fuse's and beside one that passes everything through to a directory of the host (`peer/build-mounts target/mounts`). For root.
//!
//! All three lie on the same disk and are mounted at once; in each round each does each task, in turn. Told are the medians. *Per CPU second* counts what the
//! whole machine did, program, kernel and server, so the machine must be idle otherwise. Each task that writes ends with an fsync of what it wrote. Both pools
//! have records of 128 KiB, but for the random reads and writes (8 KiB), no compression, and 2 GiB of cache.
//!
//! *Cached* reads are of the server's cache: what the kernel has of the mounted file is dropped before; what the pass-through reads is in the kernel's cache of
//! the host's file.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use benches::mounted::Mounted;
use benches::{machine_cpu_seconds, median, mix, number, text};
use rustix::fs::{Advice, fadvise};

const MIB: usize = 1 << 20;
/// Bytes of a random read or write.
const PAGE: usize = 8 << 10;
/// Bytes of a write that is made safe.
const RECORD: usize = 4 << 10;
/// How long the machine has to write what a task left.
const SETTLE: Duration = Duration::from_secs(2);

/// Does a task in a directory, and returns how much was done.
type Run = Box<dyn Fn(&Path) -> io::Result<f64>>;

/// One thing that programs do.
struct Task {
    name: String,
    unit: &'static str,
    /// The dataset in which it is done.
    within: &'static str,
    prepare: fn(&Path) -> io::Result<()>,
    run: Run,
}

/// What a file system did of one task in one round.
#[derive(Clone, Copy)]
struct Rate {
    wall: f64,
    cpu: f64,
}

fn main() {
    let dir = PathBuf::from(text("dir", &std::env::var("ZUSE_BENCH_DIR").unwrap_or_else(|_| "/tmp".into())))
        .join("zuse-mounts");
    let peer = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/mounts");
    let made = std::fs::create_dir_all(&dir);
    let of = |name: &str| dir.join(name);
    let world: Vec<Mounted> = [
        Mounted::zuse(&of("zuse")),
        Mounted::zfs_fuse(&peer, &of("zfs-fuse")),
        Mounted::passthrough(&peer, &of("passthrough")),
    ]
    .into_iter()
    .flatten()
    .collect();
    match made.and_then(|()| measure(&world, &dir)) {
        Ok(()) => {}
        Err(error) => eprintln!("{error}"),
    }
    drop(world);
    let _ = std::fs::remove_dir_all(&dir);
}

fn measure(world: &[Mounted], dir: &Path) -> io::Result<()> {
    let archive = dir.join("tree.tar");
    let tree = text("tree", "/usr/share/doc");
    let tar = Command::new("tar").args(["-C", &tree, "-cf"]).arg(&archive).arg(".").stderr(Stdio::null()).status()?;
    if !tar.success() {
        return Err(io::Error::other(format!("{tree} cannot be packed")));
    }
    println!("| task | who | per s | per CPU s | beside zfs-fuse | beside the pass-through |");
    println!("|---|---|---|---|---|---|");
    let only = text("only", "");
    for task in tasks(&archive).iter().filter(|task| task.name.contains(&only)) {
        let mut rates = vec![Vec::new(); world.len()];
        for _ in 0..number("rounds", 3) {
            for (fs, rates) in world.iter().zip(&mut rates) {
                rates.push(once(task, fs)?);
            }
        }
        let medians: Vec<Rate> = rates.iter().map(|rates| typical(rates)).collect();
        let of = |name: &str| world.iter().zip(&medians).find(|(fs, _)| fs.name == name).map(|(_, rate)| rate.cpu);
        for (fs, rate) in world.iter().zip(&medians) {
            let beside = |other: Option<f64>| match other.filter(|_| fs.name == "Zuse") {
                Some(other) => format!("{:.2}", rate.cpu / other),
                None => String::new(),
            };
            let beside = [beside(of("zfs-fuse")), beside(of("pass-through"))];
            let (name, unit) = (&task.name, task.unit);
            println!(
                "| {name} ({unit}) | {} | {:.0} | {:.0} | {} | {} |",
                fs.name, rate.wall, rate.cpu, beside[0], beside[1]
            );
        }
    }
    Ok(())
}

/// Does a task once in a file system.
fn once(task: &Task, fs: &Mounted) -> io::Result<Rate> {
    let place = fs.root.join(task.within);
    (task.prepare)(&place)?;
    rustix::fs::sync();
    std::thread::sleep(SETTLE);
    let (cpu, begun) = (machine_cpu_seconds(), Instant::now());
    let done = (task.run)(&place)?;
    let (wall, cpu) = (begun.elapsed().as_secs_f64(), machine_cpu_seconds() - cpu);
    // the clock of the processors has steps of 10 ms
    Ok(Rate { wall: done / wall, cpu: done / cpu.max(0.01) })
}

fn typical(rates: &[Rate]) -> Rate {
    Rate {
        wall: median(rates.iter().map(|rate| rate.wall).collect()),
        cpu: median(rates.iter().map(|rate| rate.cpu).collect()),
    }
}

fn tasks(archive: &Path) -> Vec<Task> {
    let nothing = |_: &Path| Ok(());
    let task = |name: &str, unit, within, prepare, run: fn(&Path) -> io::Result<f64>| Task {
        name: name.to_owned(),
        unit,
        within,
        prepare,
        run: Box::new(run),
    };
    let mut tasks = vec![
        task("write 1 MiB", "MiB", "big", nothing, write_in_order),
        task("read 1 MiB, cached", "MiB", "big", forget, read_in_order),
        task("read 1 MiB, in the kernel", "MiB", "big", |dir| read_in_order(dir).map(drop), read_in_order),
        task("write 8 KiB at random", "ops", "small", |dir| write_in_order(dir).map(drop), write_at_random),
        task("read 8 KiB at random, cached", "ops", "small", forget, read_at_random),
        task("create", "files", "big", remove_files, create_files),
        task("stat", "files", "big", |_| std::fs::write("/proc/sys/vm/drop_caches", "2"), stat_files),
        task("unlink", "files", "big", fresh_files, unlink_files),
        task("tar, pack", "MiB", "big", nothing, pack),
    ];
    let archive = archive.to_owned();
    tasks.insert(
        8,
        Task {
            name: "tar, unpack".to_owned(),
            unit: "MiB",
            within: "big",
            prepare: remove_tree,
            run: Box::new(move |dir| unpack(dir, &archive)),
        },
    );
    tasks.extend([1, 8, 64].map(|writers| Task {
        name: format!("fsync, {writers} writers"),
        unit: "ops",
        within: "big",
        prepare: nothing,
        run: Box::new(move |dir| sync_each(dir, writers)),
    }));
    tasks
}

/// The file that is read and written.
fn file_of(dir: &Path) -> PathBuf {
    dir.join("file")
}

fn size() -> usize {
    number("mib", 512) as usize * MIB
}

/// Bytes that differ from block to block.
fn block(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|n| mix(seed << 32 | n).to_le_bytes()).collect()
}

fn write_in_order(dir: &Path) -> io::Result<f64> {
    let (mut file, data) = (File::create(file_of(dir))?, block(MIB, 1));
    for _ in 0..size() / MIB {
        file.write_all(&data)?;
    }
    file.sync_all()?;
    Ok((size() / MIB) as f64)
}

/// Drops what the kernel has of the mounted file.
fn forget(dir: &Path) -> io::Result<()> {
    read_in_order(dir)?;
    Ok(fadvise(File::open(file_of(dir))?, 0, None, Advice::DontNeed)?)
}

fn read_in_order(dir: &Path) -> io::Result<f64> {
    let (mut file, mut data) = (File::open(file_of(dir))?, vec![0; MIB]);
    for _ in 0..size() / MIB {
        file.read_exact(&mut data)?;
    }
    Ok((size() / MIB) as f64)
}

/// The places of random reads or writes.
fn places(seed: u64) -> impl Iterator<Item = u64> {
    let pages = (size() / PAGE) as u64;
    (0..number("ops", 20_000)).map(move |n| mix(seed << 32 | n) % pages * PAGE as u64)
}

fn write_at_random(dir: &Path) -> io::Result<f64> {
    let (file, data) = (File::options().write(true).open(file_of(dir))?, block(PAGE, 2));
    places(3).try_for_each(|at| file.write_all_at(&data, at))?;
    file.sync_all()?;
    Ok(places(3).count() as f64)
}

fn read_at_random(dir: &Path) -> io::Result<f64> {
    let (file, mut data) = (File::open(file_of(dir))?, vec![0; PAGE]);
    fadvise(&file, 0, None, Advice::Random)?;
    places(4).try_for_each(|at| file.read_exact_at(&mut data, at))?;
    Ok(places(4).count() as f64)
}

/// The files that are made, looked at and removed.
fn names(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let dir = dir.join("files");
    (0..number("files", 10_000)).map(move |n| dir.join(format!("file-{n}")))
}

fn remove_files(dir: &Path) -> io::Result<()> {
    let _ = std::fs::remove_dir_all(dir.join("files"));
    std::fs::create_dir(dir.join("files"))
}

fn sync_files(dir: &Path) -> io::Result<f64> {
    File::open(dir.join("files"))?.sync_all()?;
    Ok(number("files", 10_000) as f64)
}

fn create_files(dir: &Path) -> io::Result<f64> {
    names(dir).try_for_each(|name| File::create(name).map(drop))?;
    sync_files(dir)
}

fn fresh_files(dir: &Path) -> io::Result<()> {
    remove_files(dir)?;
    create_files(dir).map(drop)
}

fn stat_files(dir: &Path) -> io::Result<f64> {
    names(dir).try_for_each(|name| std::fs::metadata(name).map(drop))?;
    Ok(number("files", 10_000) as f64)
}

fn unlink_files(dir: &Path) -> io::Result<f64> {
    names(dir).try_for_each(std::fs::remove_file)?;
    sync_files(dir)
}

fn remove_tree(dir: &Path) -> io::Result<()> {
    let _ = std::fs::remove_dir_all(dir.join("tree"));
    std::fs::create_dir(dir.join("tree"))
}

fn unpack(dir: &Path, archive: &Path) -> io::Result<f64> {
    let tree = dir.join("tree");
    succeed(Command::new("tar").arg("-C").arg(&tree).arg("-xf").arg(archive))?;
    File::open(&tree)?.sync_all()?;
    Ok(std::fs::metadata(archive)?.len() as f64 / MIB as f64)
}

fn pack(dir: &Path) -> io::Result<f64> {
    // tar does not read what goes to /dev/null
    let mut tar =
        Command::new("tar").arg("-C").arg(dir.join("tree")).args(["-cf", "-", "."]).stdout(Stdio::piped()).spawn()?;
    let read = tar.stdout.take().map(|mut out| io::copy(&mut out, &mut io::sink()));
    if !tar.wait()?.success() {
        return Err(io::Error::other("tar failed"));
    }
    Ok(read.transpose()?.unwrap_or(0) as f64 / MIB as f64)
}

fn succeed(command: &mut Command) -> io::Result<()> {
    let status = command.stdin(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {status}"))) }
}

/// Threads that write records to files of their own, each of which is safe before the next begins.
fn sync_each(dir: &Path, writers: u64) -> io::Result<f64> {
    let until = Instant::now() + Duration::from_secs(number("seconds", 3));
    let write = |n: u64| -> io::Result<u64> {
        let (file, data) = (File::create(dir.join(format!("log-{n}")))?, block(RECORD, n));
        let mut done = 0;
        while Instant::now() < until {
            file.write_all_at(&data, done % 4096 * RECORD as u64)?;
            file.sync_data()?;
            done += 1;
        }
        Ok(done)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers).map(|n| scope.spawn(move || write(n))).collect();
        let done = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a writer panicked"))));
        done.sum::<io::Result<u64>>().map(|done| done as f64)
    })
}
