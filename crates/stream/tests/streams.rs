//! Streams of the OpenZFS kernel module: the dump equals OpenZFS's byte for byte, and all damage is detected.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::io::Write;
use std::process::Stdio;

use base::Endian;
use codec::fletcher::Fletcher4;
use ondisk::send::{CHECKSUM_OFFSET, RECORD_SIZE};
use oracle::fixtures;
use stream::dump::{Dumper, Options, Outcome};
use stream::{Error, Header, Reader, Record};
use support::{stream_of, streams};

fn dump(bytes: &[u8], options: &Options) -> (String, Result<Outcome, Error>) {
    let mut out = Vec::new();
    let outcome = Dumper::new(&mut out, Vec::new(), options).run(bytes);
    (String::from_utf8_lossy(&out).into_owned(), outcome)
}

const VERBOSE: Options = Options { verbose: true, checksums: false, data: false, ignore_checksums: false };

#[test]
fn every_dump_is_the_text_that_openzfs_printed() {
    let mut seen = 0;
    for entry in std::fs::read_dir(fixtures::fixture_root()).unwrap() {
        let fixture = entry.unwrap().file_name().to_string_lossy().into_owned();
        if !fixtures::dir(&fixture).join("streams.tar.zst").exists() {
            continue;
        }
        for (name, bytes) in streams(&fixture) {
            let truth = format!("streams/{name}-dump.txt.zst");
            if !fixtures::dir(&fixture).join(&truth).exists() {
                continue;
            }
            let (text, outcome) = dump(&bytes, &VERBOSE);
            assert!(text == fixtures::text(&fixture, &truth), "{fixture}/{name}");
            let cut = name.contains("truncated") || name == "saved-partial";
            let want = if cut { Outcome::CutOff } else { Outcome::Complete };
            assert_eq!(outcome.unwrap(), want, "{fixture}/{name}");
            seen += 1;
        }
    }
    assert!(seen >= 80, "{seen} streams");
}

/// Returns the output of OpenZFS's `zstream dump` for a stream.
fn judged(bytes: &[u8], flags: &[&str]) -> Option<String> {
    let mut command = oracle::judge::tool("zstream")?;
    command.arg("dump").args(flags).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&bytes)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn broken_streams_are_shown_as_the_judge_shows_them() {
    let whole = stream_of("stbasic-a", "incr-1-2");
    let mut broken = vec![Vec::new(), whole.clone()];
    for len in [100, 279, 280, 311, 312, 313, 700, 1000, 5000, whole.len() - 1, whole.len() - 312] {
        broken.push(whole[..len].to_vec());
    }
    for at in [320, 700, 1000, 5000, 9000] {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x40;
        broken.push(flipped);
    }
    let mut typed = whole.clone();
    typed[RECORD_SIZE] = 0x77;
    broken.push(typed);
    broken.push([whole.clone(), whole].concat());

    let sets: [(&[&str], Options); 4] = [
        (&[], Options::default()),
        (&["-vv"], Options { checksums: true, ..VERBOSE }),
        (&["-d"], Options { checksums: true, data: true, ..VERBOSE }),
        (&["-vC"], Options { ignore_checksums: true, ..VERBOSE }),
    ];
    for (n, bytes) in broken.iter().enumerate() {
        for (flags, options) in &sets {
            let Some(want) = judged(bytes, flags) else { return };
            assert!(dump(bytes, options).0 == want, "stream {n}, {flags:?}");
        }
    }
}

/// Returns the stream as a machine of the other byte order would have written its records.
fn other_order(bytes: &[u8]) -> Vec<u8> {
    let mut reader = Reader::new(bytes);
    let mut out: Vec<u8> = Vec::new();
    let mut sum = Fletcher4::new();
    while let Some(entry) = reader.next_record().unwrap() {
        let Header { payloadlen, checksum, mut record } = entry.header;
        if let Record::End(end) = &mut record
            && end.checksum != [0; 4]
        {
            end.checksum = sum.value();
        }
        let mut header = Header { payloadlen, checksum, record };
        let fields = header.encode(Endian::Big);
        sum.update(&fields[..CHECKSUM_OFFSET], Endian::Big);
        if header.checksum != [0; 4] {
            header.checksum = sum.value();
        }
        let fields = header.encode(Endian::Big);
        sum.update(&fields[CHECKSUM_OFFSET..], Endian::Big);
        sum.update(entry.payload, Endian::Big);
        out.extend_from_slice(&fields);
        out.extend_from_slice(entry.payload);
        if matches!(header.record, Record::End(_)) {
            sum = Fletcher4::new();
        }
    }
    out
}

#[test]
fn a_stream_of_the_other_byte_order_reads_the_same() {
    for (fixture, name) in [("strepl-a", "R-full"), ("stenc-a", "e-w"), ("stredact-a", "redacted")] {
        let little = stream_of(fixture, name);
        let big = other_order(&little);
        let lines = |bytes: &[u8]| {
            let (text, outcome) = dump(bytes, &VERBOSE);
            assert_eq!(outcome.unwrap(), Outcome::Complete, "{fixture}/{name}");
            text.lines().filter(|l| !l.starts_with("END checksum")).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines(&little), lines(&big), "{fixture}/{name}");
        if let Some(want) = judged(&big, &["-vC"]) {
            assert!(dump(&big, &Options { ignore_checksums: true, ..VERBOSE }).0 == want, "{fixture}/{name}");
        }
    }
}

fn read_all(bytes: &[u8]) -> Result<usize, Error> {
    let mut reader = Reader::new(bytes);
    let mut records = 0;
    while reader.next_record()?.is_some() {
        records += 1;
    }
    Ok(records)
}

#[test]
fn no_flipped_bit_and_no_cut_passes_the_strict_reader() {
    let whole = stream_of("stbasic-a", "empty-incr");
    assert!(read_all(&whole).unwrap() >= 2);
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        // the end of the name in BEGIN is where other records hold their checksum
        assert!(read_all(&flipped).is_err(), "byte {at}");
        assert!(at == 0 || read_all(&whole[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn a_claimed_length_is_not_believed() {
    let mut bytes = stream_of("stbasic-a", "empty-full");
    bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(read_all(&bytes), Err(Error::TooLarge { claimed: 0xffff_ffff, .. })));
    // within the limit, but not present: memory grows with the bytes that arrive, not with the claim
    bytes[4..8].copy_from_slice(&(200_u32 << 20).to_le_bytes());
    assert!(matches!(read_all(&bytes), Err(Error::Truncated { .. })));
    assert!(matches!(read_all(&[0x5a; 4096]), Err(Error::BadMagic { .. })));
}
