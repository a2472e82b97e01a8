//! The hook of tests that changes blocks behind their checksums.
#![allow(clippy::unwrap_used)]
#![cfg(debug_assertions)]

mod common;

use std::sync::Arc;

use codec::Compress;
use common::*;
use zio::tamper;

#[test]
fn a_block_changes_behind_its_checksum_while_the_hook_is_set() {
    let mut pool = Pool::new(1, 1, 9);
    let data = text(8192);
    let kinds = [PLAIN, Kind { compress: Compress::Lz4, ..PLAIN }];
    let written = kinds.map(|kind| pool.write(&data, kind, &[0]));
    let zio = pool.open(&[]);
    tamper::set(Some(Arc::new(|bp, block| block[7] = bp.compression())));
    for bp in &written {
        let read = zio.read_uncached(bp, &BM).unwrap();
        assert_eq!((read[7], &read[8..]), (bp.compression(), &data[8..]));
    }
    tamper::set(None);
    for bp in &written {
        assert_eq!(&*zio.read_uncached(bp, &BM).unwrap(), &data);
    }
}
