//! Durability of commands: what a command reports as done exists after a crash of the machine: the names of new files
//! are synced, not only their contents.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

/// The system calls of a command that change or sync names, in order; `None` if they cannot be traced.
fn calls(dir: &Path, state: &Path, args: &[&str]) -> Option<Vec<String>> {
    let log = dir.join("calls");
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "-y",
        "-e",
        "trace=openat,rename,renameat,renameat2,unlink,unlinkat,mkdir,fsync,fdatasync",
        "-o",
    ]);
    strace.arg(&log).arg(env!("CARGO_BIN_EXE_zuse")).args(args).env("ZUSE_STATE", state);
    let Ok(out) = strace.output() else {
        eprintln!("skipped: there is no strace");
        return None;
    };
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    Some(std::fs::read_to_string(log).unwrap().lines().map(str::to_owned).collect())
}

/// Returns whether the directory of `name` is synced after the last call that contains `what` and the name.
fn is_synced(calls: &[String], what: &str, name: &Path) -> bool {
    let (parent, last_name) = (name.parent().unwrap().display(), name.file_name().unwrap().display());
    // by its path, or in a directory that is open
    let named = [format!("{}\"", name.display()), format!("<{parent}>, \"{last_name}\"")];
    let of_name = |call: &String| call.contains(what) && named.iter().any(|named| call.contains(named));
    let last = calls.iter().rposition(of_name).expect(what);
    let synced = format!("<{parent}>)");
    calls[last..].iter().any(|call| call.contains("fsync(") && call.contains(&synced))
}

#[test]
fn new_names_are_synced() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let (image, state) = (dir.join("images/a"), dir.join("deep/state"));
    std::fs::create_dir(dir.join("images")).unwrap();
    let path = image.to_str().unwrap();
    let Some(create) = calls(&dir, &state, &["zpool", "create", "-m", "none", "--size", "128M", "t", path]) else {
        return;
    };
    assert!(is_synced(&create, "O_CREAT", &image), "the image");
    assert!(is_synced(&create, "mkdir", &state) && is_synced(&create, "mkdir", state.parent().unwrap()), "the state");
    let record = std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path());
    let record = record.into_iter().find(|path| path.extension().is_some_and(|e| e == "json")).unwrap();
    assert!(is_synced(&create, "rename", &record), "the record of the import");
    let export = calls(&dir, &state, &["zpool", "export", "t"]).unwrap();
    assert!(is_synced(&export, "unlink", &record), "that it is gone");
}
