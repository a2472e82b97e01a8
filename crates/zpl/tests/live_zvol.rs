//! Writes to volumes, compared with a vector of bytes.
#![allow(clippy::unwrap_used)]

mod scratch;

use base::Errno;
use ondisk::ObjsetType;
use pool::{NewDataset, Value};
use scratch::Scratch;
use zpl::create::create_volume;
use zpl::live::Volume;

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
    assert!(read(&volume) == model);
    volume.resize(size / 2).unwrap();
    assert_eq!(volume.size(), size / 2);
    assert_eq!(volume.resize(1000).unwrap_err().errno(), Errno::EINVAL);
    volume.resize(size).unwrap();
    let mut back = vec![1; model.len()];
    volume.read(0, &mut back).unwrap();
    model[size as usize / 2..].fill(0);
    assert!(back == model);
    drop(volume);
    scratch.close();
}
