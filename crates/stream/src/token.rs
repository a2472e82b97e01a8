//! Resume tokens: `1-CHECKSUM-SIZE-BYTES`, the value of `receive_resume_token`.
//!
//! CHECKSUM is the first word of the fletcher4 over the bytes, SIZE the length of the nvlist that they inflate to, all in
//! hexadecimal. OpenZFS: `zfs_send_resume_token_to_nvlist()`.

use base::{Endian, tunable};
use codec::fletcher::fletcher4;
use codec::{Compress, decompress};
use nvlist::NvList;

use crate::Error;

/// The version of tokens.
const VERSION: u64 = 1;
/// The maximum expansion of a deflate stream.
const MAX_INFLATE: u64 = 1032;

fn corrupt(why: impl Into<String>) -> Error {
    Error::Token(why.into())
}

/// Decodes the nvlist in a token.
///
/// # Errors
/// [`Error::Token`], with OpenZFS's description of the error.
pub fn decode(token: &str) -> Result<NvList, Error> {
    let (version, sum, size, payload) = split(token).ok_or_else(|| corrupt("invalid format"))?;
    if version != VERSION {
        return Err(corrupt(format!("invalid version {version}")));
    }
    let packed = unhex(payload).ok_or_else(|| corrupt("payload is not hex-encoded"))?;
    // The sum is over words of the machine that made the token, which the token does not name.
    let sums = [Endian::Little, Endian::Big].map(|e| fletcher4(&packed, e)[0]);
    if !sums.contains(&sum) {
        return Err(corrupt("incorrect checksum"));
    }
    let limit = tunable::ZFS_MAX_NVLIST_BYTES.get().min((packed.len() as u64).saturating_mul(MAX_INFLATE));
    let inflated = Some(size).filter(|size| *size <= limit).and_then(|size| usize::try_from(size).ok());
    let mut list = vec![0; inflated.ok_or_else(|| corrupt("decompression failed"))?];
    decompress(Compress::Gzip6, &packed, &mut list).map_err(|_| corrupt("decompression failed"))?;
    NvList::unpack(&list).map_err(|_| corrupt("nvlist_unpack failed"))
}

/// Splits a token into version, checksum, size, and the hexadecimal bytes after the last dash.
fn split(token: &str) -> Option<(u64, u64, u64, &str)> {
    let mut fields = token.splitn(4, '-');
    let version = fields.next()?.trim_start().parse().ok()?;
    let sum = u64::from_str_radix(fields.next()?, 16).ok()?;
    let size = u64::from_str_radix(fields.next()?, 16).ok()?;
    let rest = fields.next()?;
    Some((version, sum, size, rest.rsplit('-').next()?))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    text.as_bytes().as_chunks::<2>().0.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// From the fixture stresume-a.
    const TOKEN: &str = "1-badc0da0a-b8-789c636064000310a500c4ec50360710e72765a52697303088439460caa7a515a79630c001489e0d493ea9b224\
                         b518481f4814c5aabf243fbd34338581e15aefbc86b7bfc2053590e439c1f27989b9a90c0cc545c989fa450e860c48000034f31608";

    fn why(token: &str) -> String {
        decode(token).unwrap_err().to_string()
    }

    #[test]
    fn a_token_of_a_real_receive_is_read() {
        let list = decode(TOKEN).unwrap();
        assert_eq!(list.get_str("toname"), Some("srca/r@1"));
        assert!(list.get_u64("object").is_some() && list.get_u64("toguid").is_some());
    }

    #[test]
    fn what_is_wrong_is_said_as_openzfs_says_it() {
        assert_eq!(why("abc"), "resume token is corrupt (invalid format)");
        assert_eq!(why(&TOKEN.replacen('1', "2", 1)), "resume token is corrupt (invalid version 2)");
        assert_eq!(why(&TOKEN.replace("789c", "78zz")), "resume token is corrupt (payload is not hex-encoded)");
        assert_eq!(why(&TOKEN.replace("789c", "789d")), "resume token is corrupt (incorrect checksum)");
        assert_eq!(why(&TOKEN.replace("-b8-", "-b9-")), "resume token is corrupt (decompression failed)");
        assert_eq!(why(&TOKEN.replace("-b8-", "-ffffffffffffffff-")), "resume token is corrupt (decompression failed)");
    }
}
