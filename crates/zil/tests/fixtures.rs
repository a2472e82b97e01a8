//! Logs of pools that were cut off in the middle of writes, against `zdb -iiiiii`.
#![allow(clippy::unwrap_used, missing_docs)]

use std::ops::ControlFlow;
use std::sync::Arc;

use base::Txg;
use codec::crypt::WrappingKey;
use ondisk::zil::{Record, TxType};
use oracle::fixtures;
use pool::{OpenOptions, Pool};
use zil::list::{Options, ctime_utc, write_log};
use zil::{ChainEnd, Step};

fn open(name: &str) -> (Arc<Pool>, fixtures::Unpacked) {
    let images = fixtures::unpack(name);
    let found = vdev::import::scan(std::slice::from_ref(&images.dir)).unwrap();
    (Pool::open(&found[0], &OpenOptions::default()).unwrap(), images)
}

/// Returns zdb's output for one dataset, without its heading.
fn section<'a>(text: &'a [u8], dataset: &str) -> &'a [u8] {
    let find = |text: &[u8], what: &[u8]| text.windows(what.len()).position(|w| w == what);
    let start = find(text, format!("Dataset {dataset} [").as_bytes()).unwrap();
    let text = &text[start..];
    let text = &text[find(text, b"\n").unwrap() + 1..];
    let end = ["\nDataset ", "\nVerified "].iter().filter_map(|mark| find(text, mark.as_bytes())).min().unwrap();
    // the empty line before the next heading is the last line of this listing
    &text[..end]
}

#[test]
fn lists_as_zdb_does() {
    for fixture in ["zil-a", "zilslog-a"] {
        let (pool, _images) = open(fixture);
        let text = fixtures::read_zst(&fixtures::dir(fixture).join("zdb-zil.txt.zst"));
        for short in ["a", "b", "enc", "vol"] {
            let dataset = format!("{}/{short}", pool.name());
            let objset = pool.dataset(&dataset).unwrap().objset().unwrap();
            let options = Options {
                verbosity: 6,
                min_claim_txg: Txg(pool.uberblock().txg.0 + 1),
                checkpoint_txg: Txg(0),
                ctime: &ctime_utc,
            };
            let mut ours = Vec::new();
            write_log(&mut ours, &objset, &options).unwrap();
            compare(&dataset, &ours, section(&text, &dataset));
        }
    }
}

fn compare(dataset: &str, ours: &[u8], zdb: &[u8]) {
    let split = |text: &[u8]| text.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let trim = |mut lines: Vec<Vec<u8>>| {
        while lines.last().is_some_and(Vec::is_empty) {
            lines.pop();
        }
        lines
    };
    let (ours, zdb) = (trim(split(ours)), trim(split(zdb)));
    for (n, (a, b)) in ours.iter().zip(&zdb).enumerate() {
        // zdb reads the names of this record from the wrong offset
        if a.starts_with(b"\t\t\tsrc ") && ours[n - 2].starts_with(b"\t\tTX_RENAME_WHITEOUT") {
            continue;
        }
        assert_eq!(String::from_utf8_lossy(a), String::from_utf8_lossy(b), "{dataset}, line {n}");
    }
    assert_eq!(ours.len(), zdb.len(), "{dataset}");
}

#[test]
fn an_encrypted_log_gives_its_records_with_the_key() {
    let (pool, _images) = open("zil-a");
    let dataset = pool.dataset("zila/enc").unwrap();
    let walk = |expect_sealed: bool| {
        let mut names = Vec::new();
        let summary = zil::walk(&dataset.objset().unwrap(), &mut |step| {
            if let Step::Record { record, sealed } = step {
                assert_eq!(sealed, expect_sealed);
                if let (false, Record::Create(c)) = (sealed, record.decode().unwrap_or(Record::Commit)) {
                    names.push(String::from_utf8(c.name.to_vec()).unwrap());
                }
            }
            ControlFlow::Continue(())
        });
        assert!(matches!(summary.end, ChainEnd::NotWritten(_)), "{:?}", summary.end);
        (summary.records, summary.blocks, names)
    };
    let (records, blocks, _) = walk(true);
    load_key(&pool);
    let (again, blocks_again, names) = walk(false);
    assert_eq!((records, blocks), (again, blocks_again));
    assert!(names.iter().any(|n| n == "z-last") && names.len() > 30, "{names:?}");
}

fn load_key(pool: &Arc<Pool>) {
    let secret = std::fs::read(fixtures::dir("zil-a").join("keys/pass.txt")).unwrap();
    let (_, info) = pool.encryption_root("zila/enc").unwrap();
    let key = WrappingKey::from_passphrase(secret.trim_ascii_end(), info.pbkdf2_salt, info.pbkdf2_iters);
    pool.load_key("zila/enc", &key.unwrap()).unwrap();
}

#[test]
fn a_log_in_memory_is_the_walked_one() {
    let (pool, _images) = open("zil-a");
    let objset = pool.dataset("zila/a").unwrap().objset().unwrap();
    let log = zil::read_log(&objset);
    assert_eq!(log.records().count() as u64, log.summary.records);
    assert_eq!(log.records().last().unwrap().header.seq, log.summary.max_lr_seq);
    assert_eq!(log.blocks.len() as u64, log.summary.blocks);
    let kinds: std::collections::HashSet<_> = log.records().filter_map(|r| r.header.kind()).collect();
    for kind in [TxType::Create, TxType::Write, TxType::RenameWhiteout, TxType::CloneRange, TxType::Setsaxattr] {
        assert!(kinds.contains(&kind), "{kind:?}");
    }
    for record in log.records() {
        if let Record::Write(write) = record.decode().unwrap() {
            let data = zil::data_of(&objset, &write).unwrap();
            assert!(data.len() as u64 >= write.length);
        }
    }
}
