//! Intent-log blocks. The first byte is the layout and byte order, then a block.

use base::Endian;
use ondisk::zil::{ChainBlock, Record, Records};

/// Decodes bytes as a log block, and as bare records.
///
/// # Panics
/// On a bug in the library: records overlap or extend beyond their block.
pub fn fuzz_zil(data: &[u8]) {
    let Some((how, block)) = data.split_first() else { return };
    let endian = if how & 1 == 0 { Endian::Little } else { Endian::Big };
    let checksum = if how & 2 == 0 { 9 } else { 5 };
    if let Ok(chain) = ChainBlock::decode(block, checksum, endian) {
        assert!(chain.records.len() < block.len());
        records(chain.records, endian);
    }
    records(block, endian);
}

fn records(buf: &[u8], endian: Endian) {
    let mut seen = 0;
    for record in Records::new(buf, endian) {
        let Ok(record) = record else { break };
        seen += record.bytes.len();
        assert!(seen <= buf.len() && record.bytes.len() as u64 == record.header.reclen);
        let pointers = record.clear_blkptrs().map_or(0, |bps| bps.len());
        match record.decode() {
            Ok(Record::CloneRange { bps, .. }) => assert_eq!(bps.len(), pointers),
            Ok(Record::Write(write)) => assert!(write.data.is_none_or(|data| data.len() as u64 == write.length)),
            _ => {}
        }
    }
}
