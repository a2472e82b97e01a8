//! OpenZFS's own tools, as judges of what Zuse says.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::watchdog;

/// The command of one of the judge's tools (`zdb`, `zstream`, `ztest`), or `None` where the judge is not installed.
///
/// # Panics
/// In CI, where a missing judge is a failure and never a skip.
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

/// Runs one of the judge's tools to its end; `None` where the judge is not installed.
///
/// # Panics
/// If the tool does not start, hangs (it is killed then), or (in CI) is missing.
#[must_use]
pub fn run(name: &str, args: &[&str]) -> Option<Output> {
    let mut command = tool(name)?;
    command.args(args);
    let output = watchdog::output(command, watchdog::PATIENCE);
    Some(output.unwrap_or_else(|e| panic!("{name} {}: {e}", args.join(" "))))
}

/// What zdb says of the blocks of a pool (`-bcc`).
pub struct Blocks {
    /// Every block was found once, and no space is lost.
    pub none_lost: bool,
    /// zdb could read all of them, and had nothing else to complain of.
    pub all_read: bool,
    /// What it printed.
    pub said: String,
}

impl Blocks {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn are_good(&self) -> bool {
        self.none_lost && self.all_read
    }
}

/// Has zdb look at all blocks of the exported pool `pool` on the devices in `dir`; `None` where the judge is not installed.
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

/// Has zdb look at the exported pool `pool` on the devices in `dir`: every block is found and can be read, no space is lost.
///
/// # Panics
/// If that is not so; as [`run`].
pub fn no_leaks(dir: &Path, pool: &str) {
    if let Some(blocks) = blocks(dir, pool) {
        assert!(blocks.are_good(), "{}", blocks.said);
    }
}
