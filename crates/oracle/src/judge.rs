//! OpenZFS's own tools, which judge Zuse's output and pools.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{fs, io};

use crate::watchdog;

/// The smallest device of a pool (OpenZFS: `SPA_MINDEVSIZE`).
const DEVICE_BYTES_MIN: u64 = 64 << 20;

/// The command of one of OpenZFS's tools (`zdb`, `zstream`, `ztest`), or `None` if they are not installed.
///
/// # Panics
/// In CI, where missing tools are a failure and never a skip.
#[must_use]
pub fn tool(name: &str) -> Option<Command> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.judge/bin");
    let dir = std::env::var_os("ZUSE_JUDGE").map_or_else(|| PathBuf::from(default), PathBuf::from);
    let path = dir.join(name);
    if path.exists() {
        return Some(Command::new(path));
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "the judge ({}) is missing; scripts/get-judge fetches it",
        path.display()
    );
    eprintln!("no judge at {}: skipped", path.display());
    None
}

/// Runs one of OpenZFS's tools to completion; `None` if they are not installed.
///
/// # Panics
/// If the tool does not start, hangs (it is then killed), or (in CI) is missing.
#[must_use]
pub fn run(name: &str, args: &[&str]) -> Option<Output> {
    let mut command = tool(name)?;
    command.args(args);
    let output = watchdog::output(command, watchdog::PATIENCE);
    Some(output.unwrap_or_else(|e| panic!("{name} {}: {e}", args.join(" "))))
}

/// zdb's verdict on the blocks of a pool (`-bcc`).
pub struct Blocks {
    /// Every block was found exactly once, and no space is leaked.
    pub none_lost: bool,
    /// zdb could read all of them, and reported no other problem.
    pub all_read: bool,
    /// zdb's output.
    pub said: String,
}

impl Blocks {
    /// True if zdb found no problem.
    #[must_use]
    pub fn are_good(&self) -> bool {
        self.none_lost && self.all_read
    }
}

/// Lets zdb check all blocks of the exported pool `pool` on the devices in `dir`; `None` if zdb is not installed.
///
/// # Panics
/// As [`run`].
#[must_use]
pub fn blocks(dir: &Path, pool: &str) -> Option<Blocks> {
    let out = run("zdb", &["-e", "-p", &dir.display().to_string(), "-bcc", pool])?;
    let (text, trouble) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let told: Vec<&str> = text.lines().chain(trouble.lines()).filter(|line| !line.contains("loading")).collect();
    let said = format!("{pool}: zdb: {}\n{}", out.status, told.join("\n"));
    Some(Blocks { none_lost: text.contains("No leaks"), all_read: out.status.success(), said })
}

/// Asserts that zdb, on the exported pool `pool` on the devices in `dir`, finds and reads every block and no leaked space, and that OpenZFS
/// [imports it](imports) for writing.
///
/// # Panics
/// If zdb or the import finds a problem; as [`run`].
pub fn no_leaks(dir: &Path, pool: &str) {
    if let Some(blocks) = blocks(dir, pool) {
        assert!(blocks.are_good(), "{}", blocks.said);
        imports(dir, pool).unwrap_or_else(|said| panic!("{said}"));
    }
}

/// Lets OpenZFS's own engine [import](imports_in_place) a copy of pool `pool`, whose devices are in `dir`.
///
/// # Errors
/// What the engine or zdb said, if they object.
///
/// # Panics
/// If the tools do not start or hang, or (in CI) are missing.
pub fn imports(dir: &Path, pool: &str) -> Result<(), String> {
    let copy = tempfile::tempdir().map_err(|e| format!("no space for a copy: {e}"))?;
    copy_devices(dir, copy.path()).map_err(|e| format!("copying {}: {e}", dir.display()))?;
    imports_in_place(copy.path(), pool)
}

/// Lets OpenZFS's own engine, with all of its assertions enabled, import pool `pool` for writing: it loads every metaslab, claims logs,
/// syncs some txgs and exports the pool. Then zdb must find no leak in the result. The pool may be in the state after a crash.
///
/// # Errors
/// What the engine or zdb said, if they object.
///
/// # Panics
/// If the tools do not start or hang, or (in CI) are missing.
pub fn imports_in_place(dir: &Path, pool: &str) -> Result<(), String> {
    let place = dir.display().to_string();
    let args = ["-d", &place, "-o", "metaslab_debug_load=1", "action", "idle", "-t", "1", pool];
    let Some(out) = run("zhack", &args) else { return Ok(()) };
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    // zhack refuses pools from before feature flags; OpenZFS's engine itself does write them
    if said.contains("features not enabled") {
        return Ok(());
    }
    if !out.status.success() {
        return Err(format!("{pool}: zhack: {}\n{said}", out.status));
    }
    match blocks(dir, pool) {
        Some(blocks) if !blocks.are_good() => Err(format!("after an import by zhack: {}", blocks.said)),
        _ => Ok(()),
    }
}

/// Copies the files of `from` that are large enough for a device, keeping holes.
fn copy_devices(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let (path, kind) = entry.and_then(|e| Ok((e.path(), e.file_type()?)))?;
        let Some(name) = path.file_name().filter(|_| kind.is_file()) else { continue };
        if fs::metadata(&path)?.len() < DEVICE_BYTES_MIN {
            continue;
        }
        let copied =
            Command::new("cp").args(["--sparse=auto", "--reflink=auto"]).arg(&path).arg(to.join(name)).status()?;
        if !copied.success() {
            return Err(io::Error::other(format!("cp {}: {copied}", path.display())));
        }
    }
    Ok(())
}
