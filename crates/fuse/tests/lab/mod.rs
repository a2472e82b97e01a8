//! A pool in a file of a temporary directory, with its root file system mounted.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use base::{Env, Errno};
use fuse::{Mount, Options, Unmount};
use oracle::judge;
use pool::{CreateOptions, Hooks, Spa, Value};
use tempfile::TempDir;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};
use zpl::create::{FsProps, create_fs};
use zpl::live::{Vfs, Zfs};

const SIZE: u64 = 128 << 20;
/// A user without rights.
#[allow(dead_code, reason = "not all tests have users")]
pub(crate) const USER: u32 = 61_234;

pub(crate) struct Lab {
    dir: TempDir,
    spa: Option<Arc<Spa>>,
    mount: Option<Mount>,
}

/// Returns whether file systems can be mounted here; says so if not.
///
/// # Panics
/// If they cannot, and `ZUSE_FUSE=require`.
pub(crate) fn can_mount() -> bool {
    let why = match std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        Err(error) => format!("/dev/fuse: {error}"),
        Ok(_) if !rustix::process::geteuid().is_root() => "only root can mount for other users".to_owned(),
        Ok(_) if !may_administer() => "root has no CAP_SYS_ADMIN here".to_owned(),
        Ok(_) => return true,
    };
    assert!(std::env::var_os("ZUSE_FUSE").is_none_or(|word| word != "require"), "{why}");
    eprintln!("{why}: skipped (ZUSE_FUSE=require makes this a failure)");
    false
}

/// Whether this process has `CAP_SYS_ADMIN`, without which nobody mounts: root of a container may lack it.
fn may_administer() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(capabilities.trim(), 16).unwrap() >> 21 & 1 != 0
}

/// Does what fails while something is in use that nobody uses: a child of another test has the descriptors of this process until it runs its program, also
/// of files that are closed here by now. That may take long where the machine is busy.
///
/// # Panics
/// If it is in use for a minute.
#[allow(dead_code, reason = "not all tests need it")]
pub(crate) fn when_idle<T: std::fmt::Debug>(mut work: impl FnMut() -> T, is_busy: impl Fn(&T) -> bool) -> T {
    let begun = std::time::Instant::now();
    loop {
        let done = work();
        if !is_busy(&done) {
            return done;
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it stays in use: {done:?}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Unmounts what nobody uses.
#[allow(dead_code, reason = "not all tests need it")]
pub(crate) fn unmount(mount: &Mount) {
    when_idle(|| mount.unmount(Unmount::Idle), |done| done.as_ref().is_err_and(|e| e.errno() == Errno::EBUSY)).unwrap();
}

/// Unmounts what nobody uses, by the command.
#[allow(dead_code, reason = "not all tests need it")]
pub(crate) fn umount(path: &Path) {
    when_idle(|| Command::new("umount").arg(path).output().unwrap(), |done| !done.status.success());
}

/// Runs a file as a program.
#[allow(dead_code, reason = "not all tests need it")]
pub(crate) fn execute(path: &Path) -> std::io::Result<std::process::ExitStatus> {
    when_idle(
        || Command::new(path).status(),
        |done| done.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ExecutableFileBusy),
    )
}

impl Lab {
    /// Makes and mounts a pool `t`; `None` where nothing can be mounted.
    pub(crate) fn new(props: &[(&str, u64)]) -> Option<Lab> {
        let mut lab = Lab::unmounted(props)?;
        lab.mount(&Options::new("t"));
        Some(lab)
    }

    pub(crate) fn unmounted(props: &[(&str, u64)]) -> Option<Lab> {
        Lab::with(FsProps::default(), props)
    }

    /// Makes a pool `t` whose root file system has these properties.
    pub(crate) fn with(fixed: FsProps, props: &[(&str, u64)]) -> Option<Lab> {
        if !can_mount() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("mnt")).unwrap();
        std::fs::create_dir(dir.path().join("pool")).unwrap();
        // other users pass
        rustix::fs::chmod(dir.path(), 0o755.into()).unwrap();
        let hooks = Hooks { env: Env::system(), used_by: Some(Arc::new(zpl::UsedByBonus)), ..Hooks::default() };
        let spec = VdevSpec::parse(&[dir.path().join("pool/a").display().to_string()]).unwrap();
        let open = |path: &str| -> Option<Arc<dyn Device>> {
            Some(Arc::new(FileDevice::create(Path::new(path), SIZE).unwrap()))
        };
        let options = LayoutOptions { ashift: Some(9), ..LayoutOptions::default() };
        let new = layout(&spec, &open, options, &hooks.env).unwrap();
        let mut create = CreateOptions::new("t");
        create.fs_props = props.iter().map(|(name, value)| ((*name).to_string(), Value::Number(*value))).collect();
        create.populate = Some(Box::new(move |objset, tx| create_fs(objset, tx, &fixed)));
        let spa = Spa::create(new, create, hooks).unwrap();
        Some(Lab { dir, spa: Some(spa), mount: None })
    }

    pub(crate) fn spa(&self) -> &Arc<Spa> {
        self.spa.as_ref().unwrap()
    }

    /// Opens the root file system beside the mount.
    pub(crate) fn zfs(&self) -> Zfs {
        Zfs::open(self.spa(), "t").unwrap()
    }

    pub(crate) fn mount(&mut self, options: &Options) {
        self.mount_vfs(Arc::new(self.zfs()), options);
    }

    pub(crate) fn mount_vfs(&mut self, vfs: Arc<dyn Vfs>, options: &Options) {
        self.mount = Some(Mount::new(vfs, &self.path(""), options).unwrap());
    }

    #[allow(dead_code, reason = "not all tests need it")]
    pub(crate) fn mounted(&self) -> &Mount {
        self.mount.as_ref().unwrap()
    }

    #[allow(dead_code, reason = "not all tests need it")]
    pub(crate) fn unmount(&mut self) {
        unmount(&self.mount.take().unwrap());
    }

    /// Returns the path of a file below the mount point.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let root = self.dir.path().join("mnt");
        if name.is_empty() { root } else { root.join(name) }
    }

    /// Runs a shell command in the mount as a user, who is in these groups.
    #[allow(dead_code, reason = "not all tests have users")]
    pub(crate) fn run_as(&self, user: u32, groups: &[u32], command: &str) -> Output {
        let (id, groups) = (user.to_string(), groups.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid", &id, "--regid", &id]);
        if groups.is_empty() {
            setpriv.arg("--clear-groups");
        } else {
            setpriv.args(["--groups", &groups]);
        }
        setpriv.args(["sh", "-c", command]).current_dir(self.path("")).output().unwrap()
    }

    /// Runs a command that must succeed, and returns its output.
    #[allow(dead_code, reason = "not all tests have users")]
    pub(crate) fn run(&self, user: u32, command: &str) -> String {
        let out = self.run_as(user, &[], command);
        assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }

    /// Unmounts, exports the pool, and lets zdb check it.
    pub(crate) fn close(mut self) {
        if let Some(mount) = self.mount.take() {
            unmount(&mount);
        }
        let spa = self.spa.take().unwrap();
        spa.export().unwrap();
        drop(spa);
        judge::no_leaks(&self.dir.path().join("pool"), "t");
    }
}
