//! Scripts that are run on each device: `zpool status -c`, `zpool iostat -c`.
//!
//! A script is called by its name alone, and is found in a folder of `$ZPOOL_SCRIPTS_PATH`, else in `~/.zpool.d` or
//! `/etc/zfs/zpool.d`. Environment variables describe its device, and it has no others; it prints lines
//! `COLUMN=VALUE`; or a line without a column, which is the last one that is read. A script that fails adds nothing.
//!
//! OpenZFS: `all_pools_for_each_vdev_run`, `vdev_run_cmd`, `vdev_process_cmd_output`.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::tasks;
use nvlist::NvList;

use super::vdevs::{Vdev, Vdevs};
use crate::args::Parsed;
use crate::console;
use crate::error::{Failure, Outcome, failed};
use crate::pools;

/// The default folder of scripts.
const FOLDER: &str = "/etc/zfs/zpool.d";
/// The `PATH` of scripts.
const PATH: &str = "/bin:/sbin:/usr/bin:/usr/sbin";
/// The user who has all rights.
const ROOT: u32 = 0;
/// Limit on the output of a script that is read.
const OUTPUT_MAX: u64 = 1 << 20;

/// The output of scripts for all devices.
pub(super) struct Scripts {
    /// The columns that any device has, with their widths.
    columns: Vec<(String, usize)>,
    answers: Vec<Answer>,
}

/// The output of scripts for one device.
struct Answer {
    pool: String,
    path: String,
    columns: Vec<(String, String)>,
    /// Values without a column.
    others: Vec<String>,
}

/// The scripts of option `-c`, if it was given and scripts may be run.
pub(super) fn wanted(args: &Parsed) -> Result<Option<String>, Failure> {
    let set = |name: &str| {
        let value = console::var(name).and_then(|value| value.into_string().ok()).unwrap_or_default();
        value.parse::<u64>().is_ok_and(|n| n > 0) || ["yes", "on"].contains(&value.to_ascii_lowercase().as_str())
    };
    let Some(scripts) = args.text('c') else { return Ok(None) };
    if args.count('c') > 1 {
        return Err(failed("Can't set -c flag twice"));
    }
    if console::var("ZPOOL_SCRIPTS_ENABLED").is_some() && !set("ZPOOL_SCRIPTS_ENABLED") {
        return Err(failed("Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED."));
    }
    let user = console::user();
    let is_root = user.real_uid == ROOT || user.uid == ROOT;
    if is_root && !set("ZPOOL_SCRIPTS_AS_ROOT") {
        return Err(failed("Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set."));
    }
    Ok(Some(scripts))
}

/// Prints the available scripts, with the description that each gives of itself.
pub(crate) fn list(verb: &str) -> Outcome {
    let mut out = pools::stdout();
    writeln!(out, "Available 'zpool {verb} -c' commands:")?;
    for folder in folders() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        let mut names: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
        names.sort();
        for name in names {
            let path = folder.join(&name);
            let runs = std::fs::metadata(&path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o100 != 0);
            let lines = if runs { run(Command::new(&path).arg("-h")) } else { None };
            for line in lines.unwrap_or_default().iter().filter(|line| !is_blank(line)) {
                writeln!(out, "  {:<14}  {line}", name.to_string_lossy())?;
            }
        }
    }
    out.flush()?;
    Ok(0)
}

impl Scripts {
    /// Runs scripts on the devices of pools, only on those that are `chosen`.
    pub(super) fn run(names: &str, pools: &[(String, Vdevs)], chosen: &dyn Fn(&Vdev) -> bool) -> Scripts {
        let found: Vec<PathBuf> = names.split(',').filter(|name| !name.is_empty()).filter_map(find).collect();
        let mut devices: Vec<(String, String)> = Vec::new();
        for (pool, vdevs) in pools {
            let leaves = vdevs.root.leaves().into_iter().chain(&vdevs.l2cache).chain(&vdevs.spares);
            for path in leaves.filter(|vdev| chosen(vdev)).filter_map(|vdev| vdev.path.clone()) {
                let device = (pool.clone(), path);
                if !devices.contains(&device) {
                    devices.push(device);
                }
            }
        }
        let console = console::current();
        let answers = tasks::map(devices, |(pool, path)| console.enter(|| ask(&found, pool, path)));
        let mut columns: Vec<(String, usize)> = Vec::new();
        for (name, value) in answers.iter().flat_map(|answer| &answer.columns) {
            match columns.iter_mut().find(|(column, _)| column == name) {
                Some((_, width)) => *width = value.len().max(*width),
                None => columns.push((name.clone(), name.len().max(value.len()))),
            }
        }
        Scripts { columns, answers }
    }

    /// The titles of the columns.
    pub(super) fn titles(&self) -> String {
        self.columns.iter().map(|(name, width)| format!("  {name:>width$}")).collect()
    }

    /// The dashes below the titles.
    pub(super) fn dashes(&self) -> String {
        self.columns.iter().map(|(_, width)| format!("  {:-<width$}", "")).collect()
    }

    fn answer(&self, pool: &str, vdev: &Vdev) -> Option<&Answer> {
        self.answers.iter().find(|answer| answer.pool == pool && vdev.path.as_ref() == Some(&answer.path))
    }

    /// The cells after the line of a vdev.
    pub(super) fn cells(&self, pool: &str, vdev: &Vdev) -> String {
        if vdev.path.is_none() {
            return String::new();
        }
        let Some(answer) = self.answer(pool, vdev) else { return "  ".to_owned() };
        let cells: Vec<String> =
            self.columns.iter().map(|(name, width)| format!("{:>width$}", answer.value(name))).collect();
        let mut text = format!("  {}", cells.join("  "));
        for other in &answer.others {
            text.push_str(if self.columns.is_empty() { "" } else { "  " });
            text.push_str(other);
        }
        text
    }

    /// Adds the same to the JSON fields of a vdev.
    pub(super) fn describe(&self, pool: &str, vdev: &Vdev, list: &mut NvList) {
        let Some(answer) = self.answer(pool, vdev) else { return };
        for (name, _) in &self.columns {
            list.insert(name, answer.value(name));
        }
        for (n, other) in answer.others.iter().enumerate() {
            list.insert(format!("extra_{}", n + 1), other.as_str());
        }
    }
}

impl Answer {
    /// The value in a column; a dash if there is none, so that all lines have as many words.
    fn value(&self, column: &str) -> &str {
        let value = self.columns.iter().find(|(name, _)| name == column).map(|(_, value)| value.as_str());
        value.filter(|value| !is_blank(value)).unwrap_or("-")
    }

    /// Takes a line; returns whether further lines of the script are read.
    fn take(&mut self, line: String) -> bool {
        match line.split_once('=') {
            Some((name, value)) => {
                if !self.columns.iter().any(|(column, _)| column == name) {
                    self.columns.push((name.to_owned(), value.to_owned()));
                }
                true
            }
            None => {
                self.others.push(line);
                false
            }
        }
    }
}

fn is_blank(text: &str) -> bool {
    text.bytes().all(|byte| byte == b' ' || byte == b'\t')
}

/// The folders in which scripts are looked for.
fn folders() -> Vec<PathBuf> {
    if let Some(path) = console::var("ZPOOL_SCRIPTS_PATH") {
        return std::env::split_paths(&path)
            .filter(|folder| !folder.as_os_str().is_empty())
            .map(console::path)
            .collect();
    }
    let own = console::var("HOME").map(|home| console::path(home).join(".zpool.d"));
    own.into_iter().chain([PathBuf::from(FOLDER)]).collect()
}

/// The script of that name. A path is not a name.
fn find(name: &str) -> Option<PathBuf> {
    let runs = |path: &PathBuf| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    if name.contains('/') {
        return None;
    }
    folders().into_iter().map(|folder| folder.join(name)).find(runs)
}

fn ask(scripts: &[PathBuf], pool: String, path: String) -> Answer {
    let below = underlying(Path::new(&path));
    let enclosure = below.as_deref().and_then(enclosure).unwrap_or_default();
    let mut answer = Answer { pool, path, columns: Vec::new(), others: Vec::new() };
    for script in scripts {
        let mut command = Command::new(script);
        command.env_clear().env("PATH", PATH).env("POOL_NAME", &answer.pool).env("VDEV_PATH", &answer.path);
        command.env("VDEV_UPATH", below.as_deref().unwrap_or(Path::new(""))).env("VDEV_ENC_SYSFS_PATH", &enclosure);
        for line in run(&mut command).unwrap_or_default() {
            if !answer.take(line) {
                break;
            }
        }
    }
    answer
}

/// The lines that a program prints, if it succeeds.
fn run(command: &mut Command) -> Option<Vec<String>> {
    console::place(command);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.ok()?;
    let mut output = Vec::new();
    let mut pipe = child.stdout.take()?;
    let read = pipe.by_ref().take(OUTPUT_MAX).read_to_end(&mut output);
    // a program that prints more than the limit must not block on a full pipe
    drop(pipe);
    let ended = child.wait().ok()?;
    read.ok()?;
    ended.success().then(|| String::from_utf8_lossy(&output).lines().map(str::to_owned).collect())
}

/// The device itself, with links resolved; for a device mapper's, one of those below it (OpenZFS:
/// `zfs_get_underlying_path`).
fn underlying(path: &Path) -> Option<PathBuf> {
    let real = std::fs::canonicalize(path).ok()?;
    if std::fs::metadata(&real).map(|m| m.rdev()).unwrap_or(0) == 0 {
        return Some(real);
    }
    let slaves = Path::new("/sys/block").join(real.file_name()?).join("slaves");
    let names = std::fs::read_dir(slaves).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.file_name()));
    let mut below: Vec<PathBuf> = names.map(|name| Path::new("/dev").join(name)).collect();
    below.sort();
    let best = below.iter().find(|device| enclosure(device).is_some()).or(below.first());
    let device = best.cloned().unwrap_or(real);
    Some(PathBuf::from(super::vdevs::strip_partition(device.to_str()?)))
}

/// The slot of an enclosure that a disk is in (OpenZFS: `zfs_get_enclosure_sysfs_path`).
fn enclosure(device: &Path) -> Option<String> {
    let folder = Path::new("/sys/block").join(device.file_name()?).join("device");
    let link = std::fs::read_dir(folder).ok()?.find_map(|entry| {
        let entry = entry.ok()?;
        entry.file_name().to_str()?.contains("enclosure_device").then(|| entry.path())
    })?;
    let target = std::fs::read_link(link).ok()?;
    let target = target.to_str()?;
    Some(format!("/sys/class/{}", target.get(target.find("enclosure")?..)?))
}
