//! Resumed sends within one pool, where the source and the received copy have the same guids; and of datasets that
//! were received redacted.
#![allow(clippy::unwrap_used)]

#[path = "support/lab.rs"]
mod lab;
mod support;

use base::Endian;
use codec::fletcher::fletcher4;
use codec::{Compress, compress};
use lab::{Lab, records, streams};
use nvlist::{Encoding, NvList};

/// A dataset with two snapshots, one file in each of them alone.
fn two_snapshots(lab: &Lab, name: &str) {
    lab.ok(&format!("zfs create {name}"), b"");
    lab.ok(&format!("put {name}:/first"), &[1; 100_000]);
    lab.ok(&format!("zfs snapshot {name}@1"), b"");
}

fn token(lab: &Lab, name: &str) -> String {
    lab.text(&format!("zfs get -H -o value receive_resume_token {name}")).trim_end().to_owned()
}

/// Receives the start of a stream, up to `per_mille` of it, and the rest by its token.
fn received_in_two(lab: &Lab, stream: &[u8], per_mille: usize, into: &str) {
    lab.fails(&format!("zfs receive -s -u {into}"), &stream[..stream.len() * per_mille / 1000], "zfs send -t 1-");
    let rest = lab.ok(&format!("zfs send -t {}", token(lab, into)), b"");
    lab.ok(&format!("zfs receive -s -u {into}"), &rest);
}

/// The copy also has a snapshot with the base's guid, born later: an increment from it would miss what was written
/// between.
#[test]
fn an_increment_goes_on_from_its_own_base_and_not_from_a_copy_of_it() {
    let lab = Lab::new("tank");
    for (from, copy) in [("tank/a", "tank/z"), ("tank/y", "tank/b")] {
        two_snapshots(&lab, from);
        let full = lab.ok(&format!("zfs send {from}@1"), b"");
        lab.ok(&format!("put {from}:/between"), &[7; 300_000]);
        lab.ok("zpool sync tank", b"");
        lab.ok(&format!("zfs receive -u {copy}"), &full);
        lab.ok(&format!("put {from}:/last"), &[2; 400_000]);
        lab.ok(&format!("zfs snapshot {from}@2"), b"");
        let increment = lab.ok(&format!("zfs send -i @1 {from}@2"), b"");
        received_in_two(&lab, &increment, 100, copy);
        assert!(lab.ok(&format!("cat {copy}@2:/between"), b"") == [7; 300_000], "{from} {copy}");
        let (ours, theirs) = (lab.ok(&format!("zfs send -i @1 {copy}@2"), b""), increment);
        assert_eq!(records(&lab, &ours).len(), records(&lab, &theirs).len());
    }
    lab.judge("tank");
}

/// A dataset that was received redacted is sent on, also resumed, and the stream says that it is redacted.
#[test]
fn a_redacted_dataset_is_sent_on_in_pieces() {
    let lab = Lab::new("tank");
    let all = streams("stredact-a");
    lab.ok("zfs receive -u tank/a", &all["redacted.zstream"]);
    let snaps = |name: &str| lab.text(&format!("zfs get -H -o value redact_snaps {name}"));
    assert_ne!(snaps("tank/a"), "-\n");
    let whole = lab.ok("zfs send tank/a@base", b"");
    received_in_two(&lab, &whole, 500, "tank/b");
    assert_eq!(snaps("tank/b"), snaps("tank/a"));
    assert_eq!(records(&lab, &lab.ok("zfs send tank/b@base", b"")), records(&lab, &whole));
    // the received part of it can be sent before it is complete
    lab.fails("zfs receive -s -u tank/c", &whole[..whole.len() / 2], "zfs send -t 1-");
    let part = lab.ok("zfs send -S tank/c", b"");
    lab.fails("zfs receive -s -u tank/d", &part, "zfs send -t 1-");
    assert_eq!(snaps("tank/d"), snaps("tank/a"));

    // from a bookmark of the redacted snapshot
    lab.ok("zfs bookmark tank/a@base #mark", b"");
    lab.ok("zfs receive -u tank/a", &all["incr-from-redact-bookmark.zstream"]);
    let increment = lab.ok("zfs send -i #mark tank/a@next", b"");
    received_in_two(&lab, &increment, 600, "tank/b");
    assert_eq!(records(&lab, &lab.ok("zfs send -i @base tank/b@next", b"")).len(), records(&lab, &increment).len());
    // from the bookmark to its own snapshot: the redacted blocks, which a bookmark of a redacted snapshot does not
    // know
    let none = lab.ok("zfs send -i #mark tank/a@base", b"");
    assert!(none.len() < 2000, "{}", none.len());
    // no accounting gives the size: it is counted
    let told = lab.text("zfs send -nP -i #mark tank/a@next");
    assert!(told.ends_with(&format!("\nsize\t{}\n", increment.len())), "{told} {}", increment.len());
    lab.judge("tank");
}

/// The token in the form of OpenZFS's `nvlist_print`, which programs that drive sends read.
#[test]
fn a_token_is_told_as_openzfs_tells_it() {
    let told = std::fs::read_to_string(oracle::fixtures::dir("stresume-a").join("token-1-decoded.txt")).unwrap();
    let theirs: Vec<&str> = told.lines().take_while(|line| !line.starts_with("full send")).collect();
    let shape = |lines: &[&str]| -> Vec<String> {
        lines.iter().map(|line| line.split_once(" = ").map_or(*line, |(name, _)| name).to_owned()).collect()
    };
    let lab = Lab::new("tank");
    two_snapshots(&lab, "tank/a");
    let whole = lab.ok("zfs send tank/a@1", b"");
    lab.fails("zfs receive -s -u tank/b", &whole[..whole.len() / 2], "zfs send -t 1-");
    let token = token(&lab, "tank/b");
    let ours = lab.text(&format!("zfs send -nvt {token}"));
    let ours: Vec<&str> = ours.lines().take_while(|line| !line.starts_with("full send")).collect();
    assert_eq!(shape(&ours), shape(&theirs));
    let list = stream::token::decode(&token).unwrap();
    let number = |name: &str| format!("\t{name} = {:#x}", list.get_u64(name).unwrap());
    assert_eq!(ours[2..5], [number("object"), number("offset"), number("bytes")]);
    assert_eq!(ours.last(), Some(&"\ttoname = tank/a@1"));
}

/// A token with changed contents.
fn changed(token: &str, change: impl FnOnce(&mut NvList)) -> String {
    let mut list = stream::token::decode(token).unwrap();
    change(&mut list);
    let packed = list.pack(Encoding::Native, Endian::NATIVE).unwrap();
    let deflated = compress(Compress::Gzip6, None, &packed, packed.len() + 128).unwrap();
    let hex: String = deflated.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("1-{:x}-{:x}-{hex}", fletcher4(&deflated, Endian::NATIVE)[0], packed.len())
}

/// A stream that began at a redaction bookmark is not resumed from a snapshot of the same guid: the blocks that were
/// redacted would be missing.
#[test]
fn a_redacted_start_is_found_again_or_nothing() {
    let lab = Lab::new("tank");
    two_snapshots(&lab, "tank/a");
    lab.ok("zfs receive -u tank/b", &lab.ok("zfs send tank/a@1", b""));
    lab.ok("put tank/a:/last", &[2; 400_000]);
    lab.ok("zfs snapshot tank/a@2", b"");
    let increment = lab.ok("zfs send -i @1 tank/a@2", b"");
    lab.fails("zfs receive -s -u tank/b", &increment[..increment.len() / 2], "zfs send -t 1-");
    let token = token(&lab, "tank/b");
    let from = changed(&token, |list| list.insert("book_redact_snaps", vec![77u64]));
    let guid: u64 = lab.text("zfs get -Hp -o value guid tank/a@1").trim_end().parse().unwrap();
    lab.fails(&format!("zfs send -t {from}"), b"", &format!("incremental source {guid:#x} no longer exists"));
    let to = changed(&token, |list| list.insert("redact_snaps", vec![77u64]));
    lab.fails(&format!("zfs send -t {to}"), b"", "cannot resume send: making redacted streams is not in this version");
    lab.ok(&format!("zfs send -t {token}"), b"");
}

/// A partly received volume is shown as in OpenZFS: its contents are not read, so its size is that of a dataset that
/// is no volume yet (`zfs_ioc_objset_stats`, `get_numeric_property`), and it has none of the properties of a file
/// system.
#[test]
fn half_a_volume_is_told_as_openzfs_tells_it() {
    let lab = Lab::new("tank");
    lab.ok("zfs create -s -V 8M -b 32768 tank/v", b"");
    let noise: Vec<u8> = (0..1_500_000u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    lab.ok("put tank/v", &noise);
    lab.ok("zfs snapshot tank/v@1", b"");
    let full = lab.ok("zfs send tank/v@1", b"");
    lab.ok("put tank/v", &noise[1..]);
    lab.ok("zfs snapshot tank/v@2", b"");
    let increment = lab.ok("zfs send -i @1 tank/v@2", b"");
    let half = |stream: &[u8], into: &str| {
        lab.fails(&format!("zfs receive -s {into}"), &stream[..stream.len() / 2], "zfs send -t 1-");
    };
    let told = |name: &str| {
        let what = "type,volsize,volblocksize,mounted,mountpoint,canmount,recordsize,version";
        lab.text(&format!("zfs get -Hp -o property,value,source {what} {name}"))
    };
    let no_files = "mounted\t-\t-\nmountpoint\t-\t-\ncanmount\t-\t-\nrecordsize\t-\t-\nversion\t-\t-\n";
    let sized =
        |size: &str, block: &str| format!("type\tvolume\t-\nvolsize\t{size}\nvolblocksize\t{block}\n{no_files}");
    let (whole, begun) = (sized("8388608\tlocal", "32768\t-"), sized("0\tdefault", "16384\tdefault"));

    half(&full, "tank/new");
    assert_eq!(told("tank/new"), begun);
    assert_eq!(lab.text("zfs list -Hpo name,type,volsize tank/new"), "tank/new\tvolume\t0\n");
    let all = lab.text("zfs get -H -o property,value all tank/new");
    assert!(
        all.contains("volsize\t0\n") && all.contains("receive_resume_token\t1-") && !all.contains("mount"),
        "{all}"
    );
    assert_ne!(token(&lab, "tank/new"), "-");
    // a volume that exists already is unchanged, and has the token of the interrupted receive
    lab.ok("zfs receive tank/old", &full);
    half(&increment, "tank/old");
    assert_eq!(told("tank/old"), whole);
    assert_eq!(told("tank/old/%recv"), begun);
    assert!(token(&lab, "tank/old") == token(&lab, "tank/old/%recv") && token(&lab, "tank/old").starts_with("1-"));

    for name in ["tank/new", "tank/old"] {
        let rest = lab.ok(&format!("zfs send -t {}", token(&lab, name)), b"");
        lab.ok(&format!("zfs receive -s {name}"), &rest);
        assert_eq!((told(name), token(&lab, name)), (whole.clone(), "-".to_owned()));
    }
    lab.judge("tank");
}

/// A copy in the same pool has its guid as well.
#[test]
fn a_renamed_snapshot_is_looked_for_near_its_old_name() {
    let lab = Lab::new("tank");
    two_snapshots(&lab, "tank/a");
    let full = lab.ok("zfs send tank/a@1", b"");
    lab.fails("zfs receive -s -u tank/half", &full[..full.len() / 2], "zfs send -t 1-");
    let token = token(&lab, "tank/half");
    lab.ok("zfs receive -u tank/z", &full);
    lab.ok("zfs rename tank/a@1 tank/a@renamed", b"");
    let shown = lab.text(&format!("zfs send -n -v -t {token}"));
    assert!(shown.contains("full send of tank/a@renamed"), "{shown}");
    lab.ok("zfs rename tank/a tank/b", b"");
    let shown = lab.text(&format!("zfs send -n -v -t {token}"));
    assert!(shown.contains("full send of tank/"), "{shown}");
}

/// The clone that receives for such a head has a name that cannot be asked for.
#[test]
fn half_a_stream_into_a_head_with_a_long_name_is_sent() {
    let lab = Lab::new("tank");
    two_snapshots(&lab, "tank/a");
    let full = lab.ok("zfs send tank/a@1", b"");
    lab.ok("put tank/a:/second", &[2; 400_000]);
    lab.ok("zfs snapshot tank/a@2", b"");
    let increment = lab.ok("zfs send -i @1 tank/a@2", b"");
    let sent = |name: &str| {
        lab.ok(&format!("zfs receive -u {name}"), &full);
        lab.fails(&format!("zfs receive -s -u {name}"), &increment[..increment.len() / 2], "zfs send -t 1-");
        records(&lab, &lab.ok(&format!("zfs send -S {name}"), b"")).len()
    };
    let long = format!("tank/{}", "n".repeat(248));
    assert_eq!(long.len(), 253);
    assert_eq!(sent(&long), sent("tank/short"));
}
