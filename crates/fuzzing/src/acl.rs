//! Access control lists. The first byte is the form and byte order, the second the count, then entries.

use base::Endian;
use zpl::{Acl, FuidTable, PosixAcl};

/// Decodes bytes as NFSv4 and POSIX lists, and formats the result.
///
/// # Panics
/// On a bug in the library: a list has a different number of entries than requested.
pub fn fuzz_acl(data: &[u8]) {
    if let Ok(posix) = PosixAcl::decode(data) {
        assert_eq!(posix.to_string().lines().count(), posix.0.len());
    }
    let [how, count, rest @ ..] = data else { return };
    let endian = if how & 1 == 0 { Endian::Little } else { Endian::Big };
    let decoded = if how & 2 == 0 {
        Acl::decode(rest, (*count).into(), endian)
    } else {
        Acl::decode_old(rest, (*count).into(), endian)
    };
    if let Ok(aces) = decoded {
        assert_eq!(aces.len(), usize::from(*count));
        let acl = Acl { aces, is_trivial: false };
        assert_eq!(acl.show(&FuidTable::default()).lines().count(), acl.aces.len());
    }
}
