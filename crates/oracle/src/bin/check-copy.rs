//! `check-copy FIXTURE DATASET DIR`: compares a copied-out dataset with the recorded truth of its fixture: every file's type, mode, size,
//! link target and SHA-256, and that there are no extra files. Prints a summary; exit status 1 on any difference.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;
use sha2::{Digest, Sha256};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [fixture, dataset, dir] = args.as_slice() else {
        eprintln!("usage: check-copy FIXTURE DATASET DIR");
        return ExitCode::from(2);
    };
    let dir = Path::new(dir);
    let mut wrong = Vec::new();
    let mut expected = BTreeSet::new();
    let (mut files, mut bytes) = (0u64, 0u64);
    for line in oracle::fixtures::files(fixture) {
        if line["dataset"] != dataset.as_str() {
            continue;
        }
        let Some(path) = line["path"].as_str() else { continue };
        // for the root of a snapshot, the record describes its control directory
        if path == "." && dataset.contains('@') {
            continue;
        }
        let place = if path == "." { dir.to_owned() } else { dir.join(path) };
        match compare(&place, &line) {
            Ok(n) => {
                files += 1;
                bytes += n;
            }
            Err(why) => wrong.push(format!("{path}: {why}")),
        }
        expected.insert(place);
    }
    if files == 0 {
        wrong.push("nothing of this dataset was found".to_owned());
    }
    let mut found = Vec::new();
    list(dir, &mut found);
    wrong.extend(
        found.iter().filter(|p| !expected.contains(*p)).map(|p| format!("{}: should not be there", p.display())),
    );
    for line in &wrong {
        println!("  DIFFERENT {line}");
    }
    println!(
        "  {dataset}: {files} entries as they should be, {bytes} bytes of content with the right SHA-256, {} different",
        wrong.len()
    );
    ExitCode::from(u8::from(!wrong.is_empty()))
}

/// The number of bytes compared, or the difference.
fn compare(place: &Path, truth: &Value) -> Result<u64, String> {
    let meta = fs::symlink_metadata(place).map_err(|e| e.to_string())?;
    let kind = meta.file_type();
    let letter = match () {
        () if kind.is_dir() => "d",
        () if kind.is_file() => "f",
        () if kind.is_symlink() => "l",
        () if kind.is_char_device() => "c",
        () if kind.is_block_device() => "b",
        () if kind.is_fifo() => "p",
        () => "s",
    };
    let differs = |what: &str, found: &str, should: &Value| Err(format!("{what} is {found}, should be {should}"));
    if truth["type"] != letter {
        return differs("type", letter, &truth["type"]);
    }
    if letter == "l" {
        let target = fs::read_link(place).map_err(|e| e.to_string())?;
        let target = target.to_string_lossy();
        return if truth["target"] == *target { Ok(0) } else { differs("target", &target, &truth["target"]) };
    }
    let mode = format!("{:04o}", meta.permissions().mode() & 0o7777);
    if truth["mode"] != mode.as_str() {
        return differs("mode", &mode, &truth["mode"]);
    }
    if letter != "f" {
        return Ok(0);
    }
    if truth["size"] != meta.len() {
        return differs("size", &meta.len().to_string(), &truth["size"]);
    }
    let Some(should) = truth["sha256"].as_str() else { return Ok(0) };
    let digest = digest(place).map_err(|e| e.to_string())?;
    if digest == should { Ok(meta.len()) } else { differs("SHA-256", &digest, &truth["sha256"]) }
}

fn digest(place: &Path) -> std::io::Result<String> {
    let mut file = fs::File::open(place)?;
    let mut hash = Sha256::new();
    let mut buf = vec![0; 1 << 20];
    loop {
        match file.read(&mut buf)? {
            0 => return Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect()),
            n => hash.update(buf.get(..n).unwrap_or_default()),
        }
    }
}

fn list(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            list(&path, into);
        }
        into.push(path);
    }
}
