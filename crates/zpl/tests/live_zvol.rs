//! Writes to volumes, compared with a vector of bytes.
#![allow(clippy::unwrap_used)]

mod scratch;

use std::ops::Range;

use base::Errno;
use ondisk::ObjsetType;
use pool::{NewDataset, Value};
use scratch::Scratch;
use zpl::create::create_volume;
use zpl::live::Volume;
use zpl::{Extent, Zvol};

/// Checks that extents cover what is asked for, in order, and that holes are zeros.
fn check_extents(extents: &dyn Fn(Range<u64>, usize) -> Vec<Extent>, model: &[u8]) {
    for range in [0..model.len() as u64, 12_345..700_001] {
        let all = extents(range.clone(), usize::MAX);
        let mut at = range.start;
        for extent in &all {
            assert!(extent.range.start == at && extent.range.end > at);
            at = extent.range.end;
            let part = &model[extent.range.start as usize..at as usize];
            assert!(!extent.is_hole || part.iter().all(|byte| *byte == 0), "{extent:?}");
        }
        assert_eq!(at, range.end);
        assert!(all.windows(2).all(|pair| pair[0].is_hole != pair[1].is_hole));
        assert_eq!(extents(range, 1)[..], all[..1]);
    }
}

#[test]
fn a_volume_is_a_vector_of_bytes() {
    let mut scratch = Scratch::new();
    let (size, block) = (1u64 << 20, 8u64 << 10);
    let new = NewDataset {
        props: vec![("volsize".to_string(), Value::Number(size)), ("volblocksize".to_string(), Value::Number(block))],
        ..NewDataset::inheriting("t/vol", ObjsetType::Zvol)
    };
    let init = Box::new(move |objset: &_, tx: &_| create_volume(objset, tx, size, block));
    scratch.spa().create_dataset(new, init).unwrap();
    let volume = Volume::open(scratch.spa(), "t/vol").unwrap();
    let mut model = vec![0u8; size as usize];
    let mut at = 7u64;
    for n in 0..60usize {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let len = (at >> 40) as usize % 40_000 + 1;
        let offset = (at >> 13) as usize % (model.len() - len);
        let range = offset..offset + len;
        if n % 5 == 4 {
            volume.discard(offset as u64, len as u64).unwrap();
            model[range].fill(0);
        } else {
            let data: Vec<u8> = (0..len).map(|i| (i * n + (at >> 50) as usize) as u8).collect();
            volume.write(offset as u64, &data).unwrap();
            model[range].copy_from_slice(&data);
        }
        if n % 20 == 19 {
            volume.flush().unwrap();
        }
        check_extents(&|range, max| volume.extents(range, max).unwrap(), &model);
    }
    let read = |volume: &Volume| {
        let mut all = vec![1; model.len() + 1];
        assert_eq!(volume.read(0, &mut all).unwrap(), model.len());
        all.truncate(model.len());
        all
    };
    assert!(read(&volume) == model);
    assert_eq!(volume.write(size - 1, &[1, 2]).unwrap_err().errno(), Errno::ENXIO);
    drop(volume);
    scratch.again();
    let volume = Volume::open(scratch.spa(), "t/vol").unwrap();
    assert_eq!((volume.size(), volume.block_size()), (size, block));
    check_extents(&|range, max| volume.extents(range, max).unwrap(), &model);
    let view = scratch.spa().view().unwrap();
    let still = Zvol::open(&view.dataset("t/vol").unwrap()).unwrap();
    check_extents(&|range, max| still.extents(range, max).unwrap(), &model);
    volume.discard(0, size).unwrap();
    assert_eq!(volume.extents(0..size, 9).unwrap(), [Extent { range: 0..size, is_hole: true }]);
    volume.write(0, &model).unwrap();
    assert!(read(&volume) == model);
    volume.resize(size / 2).unwrap();
    assert_eq!(volume.size(), size / 2);
    assert_eq!(volume.resize(1000).unwrap_err().errno(), Errno::EINVAL);
    volume.resize(size).unwrap();
    let mut back = vec![1; model.len()];
    volume.read(0, &mut back).unwrap();
    model[size as usize / 2..].fill(0);
    assert!(back == model);
    // by somebody else
    for new in [size / 4, size] {
        let value = [("volsize".to_string(), Value::Number(new))];
        scratch.spa().set_props("t/vol", &value, pool::PropSource::Local).unwrap();
        assert_eq!(volume.size(), new);
        assert_eq!(volume.write(new - 1, &[1, 2]).unwrap_err().errno(), Errno::ENXIO);
    }
    drop(volume);
    scratch.close();
}
