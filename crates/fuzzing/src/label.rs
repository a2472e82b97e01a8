//! Labels: bytes as the configuration of a properly sealed label, on a device that has nothing else; and as a ring of uberblocks.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use base::Endian;
use codec::embedded::seal_label;
use ondisk::label as layout;
use vdev::{Device, import, label};

/// A device of 1 MiB with one label; the rest is zero.
#[derive(Debug)]
struct OneLabel(Vec<u8>);

impl Device for OneLabel {
    fn size(&self) -> u64 {
        1 << 20
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.fill(0);
        let end = offset.saturating_add(buf.len() as u64);
        let start = layout::CONFIG_OFFSET;
        let (from, to) = (offset.max(start), end.min(start + self.0.len() as u64));
        if from < to {
            let source = self.0.get((from - start) as usize..(to - start) as usize).unwrap_or_default();
            let target = buf.get_mut((from - offset) as usize..(to - offset) as usize).unwrap_or_default();
            target.copy_from_slice(source);
        }
        Ok(())
    }

    fn name(&self) -> String {
        "one label".to_owned()
    }
}

/// Scans for a pool on a device with this configuration, and reads uberblocks and labels from it.
///
/// # Panics
/// On a bug in the library: the result is inconsistent.
pub fn fuzz_label(data: &[u8]) {
    let endian = if data.len().is_multiple_of(2) { Endian::Little } else { Endian::Big };
    // a short area tests as much as a whole one, and its checksum costs less
    let mut area = data.to_vec();
    area.resize(data.len() + layout::TRAILER_SIZE, 0);
    seal_label(&mut area, 0x4000, endian);
    let decoded = label::decode_label(&area, 0x4000, 0, "fuzz");
    seal_label(&mut area, 0x2_0000, endian);
    if let Some(ub) = label::decode_uberblock(&area, 0x2_0000) {
        assert!(ub.reflow_offset().is_multiple_of(512));
    }
    if decoded.is_err() || data.len() > layout::CONFIG_SIZE - layout::TRAILER_SIZE {
        return;
    }
    let mut whole = data.to_vec();
    whole.resize(layout::CONFIG_SIZE, 0);
    seal_label(&mut whole, layout::CONFIG_OFFSET, endian);
    let device: Arc<dyn Device> = Arc::new(OneLabel(whole));
    assert!(label::read_uberblocks(&*device, 9).is_empty());
    let found = import::scan_devices(vec![(PathBuf::from("a"), Arc::clone(&device)), (PathBuf::from("b"), device)]);
    for pool in found {
        let config = pool.vdev_config().expect("a candidate pool has a vdev tree");
        assert_eq!(pool.devices.len() + pool.stale.len(), 1, "one leaf, found twice");
        // a hostile tree may repeat a guid
        let present = config.leaves().filter(|leaf| pool.devices.iter().any(|d| d.guid == leaf.guid)).count();
        assert_eq!(config.leaves().count(), pool.missing.len() + present);
    }
}
