//! `cargo bench -p zuse-benches --bench cold [-- rounds=5]`: how long `zuse` takes to answer on a pool that it has never seen, a real
//! one of a 64 MiB image, with nothing in memory. Where this runs as root the page cache is dropped before each run (and the
//! program read again).
//!
//! Prints milliseconds of wall time, medians. Nothing is remembered between runs: each finds the pool, opens it, walks to the file.

use std::path::Path;

use benches::{median, timed, zuse};

const FIXTURE: &str = "basic-a";
const DATASET: &str = "basica/rs128K";

fn main() {
    let rounds = std::env::args().find_map(|a| a.strip_prefix("rounds=")?.parse().ok()).unwrap_or(5);
    let Some(zuse) = zuse() else {
        println!("cold: skipped; it needs target/release/zuse");
        return;
    };
    let images = oracle::fixtures::unpack(FIXTURE);
    let dir = images.dir.display().to_string();
    let files = oracle::fixtures::files(FIXTURE);
    let text = |file: &serde_json::Value, key: &str| file.get(key).and_then(|v| v.as_str()).map(str::to_owned);
    let regular = |file: &&serde_json::Value| {
        // of a dataset without others mounted below
        text(file, "type").as_deref() == Some("f") && text(file, "dataset").as_deref() == Some(DATASET)
    };
    let first = files.iter().find(regular).and_then(|f| Some((text(f, "dataset")?, text(f, "path")?)));
    let Some((dataset, path)) = first else {
        println!("cold: {FIXTURE} has no file");
        return;
    };
    let file = format!("{dataset}:/{}", path.trim_start_matches('/'));
    let whole = format!("{dataset}:/");
    println!(
        "milliseconds on a cold image of 64 MiB, median of {rounds}{}",
        if drop_caches() { "" } else { " (warm: no root)" }
    );
    for (command, target) in [("ls", &whole), ("cat", &file), ("tar", &whole)] {
        let mut wall = Vec::new();
        for _ in 0..rounds {
            drop_caches();
            // the program itself is warm: what counts is the pool
            let _ = timed(&zuse, &["help"]);
            let Some(time) = timed(&zuse, &[command, "-d", &dir, target]) else {
                println!("cold: zuse {command} {target} fails");
                return;
            };
            wall.push(time.wall * 1e3);
        }
        println!("{command:<6}{:>8.1}", median(wall));
    }
}

/// Drops the page cache; false where that is not allowed.
fn drop_caches() -> bool {
    let synced = std::process::Command::new("sync").status().is_ok_and(|s| s.success());
    synced && std::fs::write(Path::new("/proc/sys/vm/drop_caches"), "3").is_ok()
}
