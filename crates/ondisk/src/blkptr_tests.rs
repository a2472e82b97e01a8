use base::Endian;

use super::*;

#[test]
fn an_indirect_block_is_decoded_and_encoded_as_its_pointers_are() {
    // a hole with a birth is not all zeros
    let mut born = BlkPtr::HOLE;
    (born.words[6], born.words[BIRTH_LOGICAL]) = (with_bits(0, 0, 16, 255), 7);
    let mut last = BlkPtr::HOLE;
    last.words[15] = 1 << 63;
    let filled = BlkPtr { words: std::array::from_fn(|n| 0x0123_4567_89ab_cdef_u64.rotate_left(n as u32)) };
    let pointers = [BlkPtr::HOLE, born, BlkPtr::HOLE, BlkPtr::HOLE, filled, last, BlkPtr::HOLE];
    for endian in [Endian::Little, Endian::Big] {
        let raw: Vec<u8> = pointers.iter().flat_map(|bp| bp.encode(endian)).collect();
        assert_eq!(BlkPtr::encode_all(&pointers, endian), raw);
        assert_eq!(BlkPtr::decode_all(&raw, endian), pointers);
        assert_eq!(BlkPtr::decode_all(raw.get(..200).unwrap_or(&[]), endian), [BlkPtr::HOLE]);
    }
    assert!(BlkPtr::decode_all(&[], Endian::Little).is_empty());
}
