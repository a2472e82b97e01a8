//! The history of the fixtures' pools, as `zpool history -il` printed it.

#![allow(clippy::unwrap_used)]

mod common;

use common::{open, truth_options};
use oracle::fixtures;

#[test]
fn records_are_as_many_as_openzfs_printed_and_say_the_same() {
    for fixture in fixtures::names() {
        if !fixtures::dir(&fixture).join("history.txt").exists() {
            continue;
        }
        let printed = fixtures::text(&fixture, "history.txt");
        let pool = open(&fixtures::unpack(&fixture).dir, &truth_options());
        let ours = pool.history().unwrap();
        // a record begins with its date; what a command was given and gave follows on lines of its own
        let lines: Vec<&str> =
            printed.lines().filter(|l| l.starts_with("20") && l.as_bytes().get(10) == Some(&b'.')).collect();
        let shown =
            ours.iter().filter(|r| r.command().is_some() || r.txg().is_some() || r.list.get_str("ioctl").is_some());
        let shown: Vec<_> = shown.collect();
        // the text was made before the pool's last commands, which were recorded too
        assert!(shown.len().abs_diff(lines.len()) <= 8, "{fixture}: {} records, {} lines", shown.len(), lines.len());
        for (record, line) in shown.iter().zip(&lines) {
            let word = record.txg().map(|txg| format!("[txg:{txg}]"));
            let word = word
                .or(record.command().map(str::to_string))
                .or(record.list.get_str("ioctl").map(str::to_string))
                .unwrap();
            assert!(line.contains(&word), "{fixture}: '{word}' is not in '{line}'");
        }
        println!("{fixture}: {} records", shown.len());
    }
}
