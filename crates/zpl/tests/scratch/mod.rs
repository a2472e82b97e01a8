//! A small pool in a temporary directory, with its root file system open for writing.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use base::Env;
use oracle::judge;
use pool::{CreateOptions, Hooks, ImportOptions, Spa, Value};
use tempfile::TempDir;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};
use zpl::create::{FsProps, create_fs};
use zpl::live::Zfs;

const SIZE: u64 = 96 << 20;

pub(crate) struct Scratch {
    dir: TempDir,
    spa: Option<Arc<Spa>>,
}

fn hooks() -> Hooks {
    Hooks { env: Env::system(), used_by: Some(Arc::new(zpl::UsedByBonus)), ..Hooks::default() }
}

impl Scratch {
    #[allow(dead_code, reason = "not all tests use it")]
    pub(crate) fn new() -> Scratch {
        Scratch::with(FsProps::default(), &[])
    }

    /// Creates a pool `t` whose root file system has these properties.
    pub(crate) fn with(fixed: FsProps, props: &[(&str, u64)]) -> Scratch {
        Scratch::tuned(fixed, props, |_| {})
    }

    /// As [`Scratch::new`], with a given size in bytes.
    #[allow(dead_code, reason = "not all tests use it")]
    pub(crate) fn sized(size: u64) -> Scratch {
        Scratch::make(size, FsProps::default(), &[], |_| {})
    }

    /// As [`Scratch::with`], for a pool whose options `tune` changes.
    pub(crate) fn tuned(fixed: FsProps, props: &[(&str, u64)], tune: impl FnOnce(&mut CreateOptions)) -> Scratch {
        Scratch::make(SIZE, fixed, props, tune)
    }

    fn make(size: u64, fixed: FsProps, props: &[(&str, u64)], tune: impl FnOnce(&mut CreateOptions)) -> Scratch {
        let dir = tempfile::tempdir().unwrap();
        let spec = VdevSpec::parse(&[dir.path().join("a").display().to_string()]).unwrap();
        let open = |path: &str| -> Option<Arc<dyn Device>> {
            Some(Arc::new(FileDevice::create(Path::new(path), size).unwrap()))
        };
        let options = LayoutOptions { ashift: Some(9), ..LayoutOptions::default() };
        let new = layout(&spec, &open, options, &hooks().env).unwrap();
        let mut create = CreateOptions::new("t");
        create.fs_props = props.iter().map(|(name, value)| ((*name).to_string(), Value::Number(*value))).collect();
        create.populate = Some(Box::new(move |objset, tx| create_fs(objset, tx, &fixed)));
        tune(&mut create);
        let spa = Spa::create(new, create, hooks()).unwrap();
        Scratch { dir, spa: Some(spa) }
    }

    pub(crate) fn spa(&self) -> &Arc<Spa> {
        self.spa.as_ref().unwrap()
    }

    #[allow(dead_code, reason = "not all tests use it")]
    pub(crate) fn zfs(&self) -> Zfs {
        Zfs::open(self.spa(), "t").unwrap()
    }

    #[allow(dead_code, reason = "not all tests use it")]
    /// Exports the pool, checks it with zdb, and imports it again.
    pub(crate) fn again(&mut self) {
        self.close();
        let path = self.dir.path().join("a");
        let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(&path).unwrap());
        let found = vdev::import::scan_devices(vec![(path, device)]);
        self.spa = Some(Spa::import(found.first().unwrap(), &ImportOptions::default(), hooks()).unwrap());
    }

    /// Inverts the bytes of sectors at these offsets of the device's space, behind the pool's back. A second time restores them.
    #[allow(dead_code, reason = "not all tests damage anything")]
    pub(crate) fn invert(&self, offsets: &[u64]) {
        const LABELS: u64 = 4 << 20;
        let file = std::fs::File::options().read(true).write(true).open(self.dir.path().join("a")).unwrap();
        for offset in offsets {
            let mut sector = [0; 512];
            file.read_exact_at(&mut sector, LABELS + offset).unwrap();
            sector.iter_mut().for_each(|byte| *byte = !*byte);
            file.write_all_at(&sector, LABELS + offset).unwrap();
        }
    }

    /// Exports the pool and checks it with zdb: every block is found, none is leaked, every object can be read.
    pub(crate) fn close(&mut self) {
        let spa = self.spa.take().unwrap();
        spa.export().unwrap();
        drop(spa);
        judge::no_leaks(self.dir.path(), "t");
    }

    /// Returns zdb's output for all objects of the root file system. The pool must be closed.
    #[allow(dead_code, reason = "not all tests look at objects")]
    pub(crate) fn objects(&self) -> Option<String> {
        let dir = self.dir.path().display().to_string();
        let out = judge::run("zdb", &["-e", "-p", &dir, "-dddd", "t/"])?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
        Some(text)
    }
}
