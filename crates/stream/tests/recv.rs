//! Receiving streams of the OpenZFS kernel module: the files are those that the kernel module received, and zdb finds every
//! block.
#![allow(clippy::unwrap_used)]

mod support;
mod target;

use oracle::fixtures;
use stream::recv::RecvArgs;
use support::streams;
use target::Target;

/// Receives the streams of a fixture in order, as far as `wanted`, and compares everything received.
fn receive_all(fixture: &str, wanted: &dyn Fn(&str) -> bool, truth_of: &dyn Fn(&str) -> Option<String>) {
    let mut target = Target::new();
    let bytes: std::collections::HashMap<_, _> = streams(fixture).into_iter().collect();
    let mut into = std::collections::HashSet::new();
    for line in fixtures::json(fixture, "streams.json").as_array().unwrap() {
        let text = |key: &str| line[key].as_str().unwrap_or("").to_owned();
        let name = text("stream").strip_suffix(".zstream").unwrap().to_owned();
        if !wanted(&name) {
            continue;
        }
        let options = text("recv_opts");
        let args = RecvArgs {
            origin: options.strip_prefix("-o origin=").map(str::to_owned),
            force: options.contains("-F"),
            ..RecvArgs::default()
        };
        let fs = text("received_as");
        target.receive(&bytes[&name], &fs, &args).unwrap_or_else(|e| panic!("{fixture}/{name}: {e}"));
        into.insert(fs);
    }
    let received = |name: &str| into.contains(name.split('@').next().unwrap());
    let files = target.compare(fixture, &received, truth_of);
    target.again();
    assert_eq!(target.compare(fixture, &received, truth_of), files);
    for (name, volume) in fixtures::json(fixture, "recv/manifest.json")["zvols"].as_object().unwrap() {
        if received(name) {
            assert_eq!(target.volume_sum(name), volume["sha256"].as_str().unwrap(), "{name}");
        }
    }
    target.close();
}

#[test]
fn plain_streams_full_and_incremental() {
    receive_all("stbasic-a", &|_| true, &|_| None);
}

#[test]
fn streams_of_clones_and_of_file_systems_that_changed() {
    receive_all("stclone-a", &|_| true, &|_| None);
}

#[test]
fn compressed_embedded_and_large_blocks() {
    receive_all("stcomp-a", &|_| true, &|_| None);
}

#[test]
fn many_small_files() {
    receive_all("stmany-a", &|_| true, &|_| None);
}

#[test]
fn files_that_change_their_kind_between_streams() {
    // from @3 on `b` has the contents of `a`. The kernel module lost those of its spill blocks that were sent embedded, and could
    // not read its files
    let truth_of = |name: &str| match name.strip_prefix("recva/b") {
        Some("") => Some("recva/a".to_owned()),
        snapshot => Some(format!("recva/a{}", snapshot?)),
    };
    receive_all("stspecial-a", &|_| true, &truth_of);
}

#[test]
fn redacted_streams() {
    receive_all("stredact-a", &|_| true, &|_| None);
}

#[test]
fn volumes() {
    receive_all("stzvol-a", &|_| true, &|_| None);
}

#[test]
fn encrypted_file_systems_sent_in_the_clear() {
    receive_all("stenc-a", &|name| name == "e-plain", &|_| None);
}
