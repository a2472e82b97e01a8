//! Gang headers: the structure, and blocks assembled from hostile headers.

use base::Endian;
use base::bytes::with_bits;
use codec::embedded;
use ondisk::gang::GangHeader;
use ondisk::{BlkPtr, Dva};

use crate::{blkptr, tape};

/// Takes bytes as: an operation, the size of the gang block in sectors, its header, the rest of the device. The header is given a valid
/// checksum, or it would be refused at once.
///
/// # Panics
/// On a bug in the library: see [`blkptr::fuzz_blkptr`]; or a header does not survive encoding.
pub fn fuzz_gang(data: &[u8]) {
    let [flags, sectors, rest @ ..] = data else { return };
    let endian = if flags & 1 == 0 { Endian::Little } else { Endian::Big };
    let (dynamic, vdev) = (flags & 2 != 0, u64::from(flags >> 2 & 1));
    let size = if dynamic && vdev == 1 { 4096 } else { 512 };
    let mut device = rest.to_vec();
    device.resize(device.len().next_multiple_of(512).max(size), 0);
    let Some(header) = device.get_mut(..size) else { return };
    embedded::seal_gang(header, vdev, 0, 1, endian);
    let Ok(decoded) = GangHeader::decode(header, endian) else { panic!("a whole header does not decode") };
    let pointers = decoded.blkptrs.len() * ondisk::BLKPTR_SIZE;
    let again = decoded.encode(size, endian);
    assert_eq!(again.as_deref().map(|raw| raw.get(..pointers)), Ok(header.get(..pointers)), "the header changes");

    let dva = Dva::new(vdev, 0, size as u64, true);
    let mut words = [0; 16];
    (words[0], words[1], words[10]) = (dva.word0, dva.word1, 1);
    let sectors = u64::from(*sectors);
    let fields = [
        (0, 16, sectors),
        (16, 16, sectors),
        (32, 7, 2),
        (40, 8, 2),
        (48, 8, 19),
        (63, 1, u64::from(endian == Endian::Little)),
    ];
    words[6] = fields.into_iter().fold(0, |word, (low, width, value)| with_bits(word, low, width, value));
    let zio = tape::pool(&device);
    zio.set_dynamic_gang(dynamic);
    blkptr::read(&zio, &BlkPtr { words });
}
