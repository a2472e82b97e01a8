//! The pool of a long run, its devices, and the threads' common end.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oracle::judge;
use parking_lot::{Mutex, RwLock};
use tempfile::TempDir;
use zuse::base::{Env, tunable};
use zuse::pool::{CreateOptions, Hooks, ImportOptions, Spa};
use zuse::vdev::create::{LayoutOptions, VdevSpec, layout};
use zuse::vdev::{Device, FileDevice};
use zuse::zpl::UsedByBonus;
use zuse::zpl::create::{FsProps, create_fs};
use zuse::zpl::live::{Volume, Zfs};
use zuse::{Pool, zpl};

use crate::content::Content;
use crate::devices::Faulty;
use crate::files::{Dir, compare};
use crate::watch::Figures;

/// The name of the pool.
pub const POOL: &str = "long";
/// Its vdevs; a mirror and a raidz1, each of which works without one of its devices.
const VDEVS: &str = "mirror d0 d1 raidz1 d2 d3 d4";
/// Bytes of each device.
const SIZE: u64 = 2 << 30;
/// Bytes of the ARC.
pub const ARC_BYTES: u64 = 64 << 20;
/// File systems that the writers share.
pub const FILE_SYSTEMS: usize = 4;
/// Bytes of the volume.
pub const VOLUME_BYTES: u64 = 64 << 20;

/// Dirty data at most.
pub const DIRTY_BYTES: u64 = 128 << 20;

/// A file system and the expected contents of its directories. Each operation on it holds `quiet` for reading; a thread that holds it for
/// writing sees file system and model agree.
pub struct Fs {
    pub name: String,
    /// Where it is mounted, if this user may mount.
    pub mount: Option<fuse::Mount>,
    pub zfs: Arc<Zfs>,
    pub quiet: RwLock<()>,
    /// Expected contents by the name of the directory.
    pub dirs: Mutex<BTreeMap<String, Arc<Mutex<Dir>>>>,
}

/// A run.
pub struct World {
    dir: TempDir,
    pub pool: Pool,
    pub devices: Vec<Faulty>,
    pub file_systems: Vec<Fs>,
    pub volume: Volume,
    /// Expected contents of the volume, by the offset of a writer's range.
    pub volume_ranges: Mutex<BTreeMap<u64, Arc<Mutex<Content>>>>,
    pub figures: Figures,
    began: Instant,
    end: Instant,
    failed: AtomicBool,
    failures: Mutex<Vec<String>>,
    steps: Mutex<BTreeMap<&'static str, u64>>,
    serial: AtomicU64,
}

/// One step of a thread's work; an error ends the run.
pub trait Work {
    fn step(&mut self) -> Result<(), String>;
}

impl<F: FnMut() -> Result<(), String>> Work for F {
    fn step(&mut self) -> Result<(), String> {
        self()
    }
}

/// Adds what was done to an error.
pub fn failed<E: Display>(what: impl Display) -> impl FnOnce(E) -> String {
    move |error| format!("{what}: {error}")
}

pub fn hooks() -> Hooks {
    Hooks { env: Env::system(), used_by: Some(Arc::new(UsedByBonus)), ..Hooks::default() }
}

impl World {
    pub fn new(seed: u64, seconds: u64) -> World {
        println!("seed {seed}, {seconds} s");
        tunable::set("zfs_dirty_data_max", &DIRTY_BYTES.to_string()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let words: Vec<String> = VDEVS.split(' ').map(str::to_owned).collect();
        let spec = VdevSpec::parse(&words).unwrap();
        let open = |(name, _): (&str, bool)| Faulty::new(FileDevice::create(&dir.path().join(name), SIZE).unwrap());
        let devices: Vec<Faulty> = spec.paths().map(open).collect();
        let find = |name: &str| -> Option<Arc<dyn Device>> {
            let is = |device: &&Faulty| Path::new(&device.device().name()).ends_with(name);
            Some(devices.iter().find(is)?.device().clone())
        };
        let new = layout(&spec, &find, LayoutOptions::default(), &Env::system()).unwrap();
        let mut create = CreateOptions { arc_bytes: ARC_BYTES, ..CreateOptions::new(POOL) };
        create.populate = Some(Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default())));
        let spa = Spa::create(new, create, hooks()).unwrap();
        let pool = Pool::of_spa(spa.clone());
        let open_fs = |n: usize| {
            let name = format!("{POOL}/fs{n}");
            pool.create(&name, &[]).unwrap();
            let zfs = Arc::new(Zfs::open(&spa, &name).unwrap());
            let mount = can_mount().then(|| mount(&zfs, &name, &dir.path().join(format!("mnt{n}"))));
            Fs { name, mount, zfs, quiet: RwLock::new(()), dirs: Mutex::default() }
        };
        let file_systems = (0..FILE_SYSTEMS).map(open_fs).collect();
        pool.create_volume(&format!("{POOL}/volume"), VOLUME_BYTES, &[]).unwrap();
        let volume = Volume::open(&spa, &format!("{POOL}/volume")).unwrap();
        let began = Instant::now();
        World {
            dir,
            pool,
            devices,
            file_systems,
            volume,
            volume_ranges: Mutex::default(),
            figures: Figures::default(),
            began,
            end: began + Duration::from_secs(seconds),
            failed: AtomicBool::new(false),
            failures: Mutex::default(),
            steps: Mutex::default(),
            serial: AtomicU64::new(0),
        }
    }

    pub fn spa(&self) -> &Arc<Spa> {
        self.pool.spa().unwrap()
    }

    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// A number that nobody else got.
    pub fn serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    pub fn is_over(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || Instant::now() >= self.end
    }

    /// The share of the run that has passed, in percent.
    pub fn passed_pct(&self) -> u64 {
        let whole = (self.end - self.began).as_millis().max(1);
        u64::try_from(self.began.elapsed().as_millis() * 100 / whole).unwrap_or(100)
    }

    /// Waits, at most until the run is over.
    pub fn rest(&self, time: Duration) {
        let until = (Instant::now() + time).min(self.end);
        while Instant::now() < until && !self.is_over() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Works until the run is over, or a step fails.
    pub fn run(&self, name: &'static str, mut work: impl Work) {
        let mut steps = 0;
        while !self.is_over() {
            if let Err(error) = work.step() {
                self.failed.store(true, Ordering::Relaxed);
                self.failures.lock().push(format!("{name}, step {steps}: {error}"));
                break;
            }
            steps += 1;
        }
        *self.steps.lock().entry(name).or_default() += steps;
    }

    /// Checks everything: as it is, after an export and import, and by OpenZFS's own tools.
    pub fn finish(self, strict: bool) {
        let failures = self.failures.lock().join("\n");
        assert!(failures.is_empty(), "{failures}");
        println!("steps: {:?}", self.steps.lock());
        self.figures.report(self.spa(), strict);
        for device in &self.devices {
            device.set_down(false);
        }
        crate::devices::bring_back(&self).unwrap();
        self.check(&self.pool, "as it was left");
        let World { dir, pool, devices, file_systems, volume, volume_ranges, .. } = self;
        let end = |fs: Fs| {
            fs.mount.iter().for_each(|mount| mount.unmount(fuse::Unmount::Idle).unwrap());
            (fs.name, fs.dirs)
        };
        let expected: Vec<_> = file_systems.into_iter().map(end).collect();
        drop(volume);
        pool.export().unwrap();
        drop((pool, devices));
        judge::no_leaks(dir.path(), POOL);
        let again = reopen(dir.path());
        check_all(&again, &expected, &volume_ranges, "after an import");
        again.export().unwrap();
    }

    fn check(&self, pool: &Pool, when: &str) {
        pool.sync().unwrap();
        for fs in &self.file_systems {
            check_fs(pool, &fs.name, &fs.dirs, when);
        }
        check_volume(&self.volume, &self.volume_ranges, when);
    }
}

/// True if file systems are mounted: root's run with `/dev/fuse` does, unless `ZUSE_MOUNTED=0`.
fn can_mount() -> bool {
    let may = fuse::is_available() && rustix::process::geteuid().is_root();
    assert!(may || std::env::var_os("ZUSE_FUSE").is_none_or(|word| word != "require"), "nothing can be mounted here");
    may && crash::number_from_env("ZUSE_MOUNTED", 1) != 0
}

fn mount(zfs: &Arc<Zfs>, name: &str, point: &Path) -> fuse::Mount {
    std::fs::create_dir(point).unwrap();
    fuse::Mount::new(zfs.clone(), point, &fuse::Options::new(name)).unwrap()
}

fn reopen(dir: &Path) -> Pool {
    let candidate = zuse::vdev::import::scan(&[dir.to_owned()]).unwrap().into_iter().find(|pool| pool.name == POOL);
    let candidate = candidate.unwrap().lock().unwrap();
    Pool::of_spa(Spa::import(&candidate, &ImportOptions::default(), hooks()).unwrap())
}

type Dirs = Mutex<BTreeMap<String, Arc<Mutex<Dir>>>>;
type Ranges = Mutex<BTreeMap<u64, Arc<Mutex<Content>>>>;

fn check_fs(pool: &Pool, name: &str, dirs: &Dirs, when: &str) {
    let expected: BTreeMap<String, Dir> =
        dirs.lock().iter().map(|(name, dir)| (name.clone(), dir.lock().clone())).collect();
    let found: zpl::FileSystem = pool.file_system(name).unwrap();
    compare(&found, &expected).unwrap_or_else(|error| panic!("{when}: {name}: {error}"));
}

fn check_volume(volume: &Volume, ranges: &Ranges, when: &str) {
    for (offset, expected) in ranges.lock().iter() {
        let expected = expected.lock();
        let mut found = vec![0; expected.len()];
        volume.read(*offset, &mut found).unwrap();
        assert!(found == **expected, "{when}: the volume differs in the range at {offset}");
    }
}

fn check_all(pool: &Pool, file_systems: &[(String, Dirs)], ranges: &Ranges, when: &str) {
    for (name, dirs) in file_systems {
        check_fs(pool, name, dirs, when);
    }
    let volume = Volume::open(pool.spa().unwrap(), &format!("{POOL}/volume")).unwrap();
    check_volume(&volume, ranges, when);
}
