//! Partly encrypted blocks: the ranges that are encrypted, and the authenticated bytes of the rest.

use std::cell::RefCell;
use std::ops::Range;

use super::aead::Aead;
use crate::Error;

/// The parts of a block. Filled by the parsers of [`super::dnode`] and [`super::zil`]; one per thread is reused, so that a block costs no
/// allocation.
#[derive(Default)]
pub(super) struct Parts {
    /// The authenticated bytes, in the order and form in which the MAC takes them.
    pub(super) aad: Vec<u8>,
    /// The encrypted ranges, in order, not overlapping.
    pub(super) encrypted: Vec<Range<usize>>,
    /// The encrypted bytes, concatenated.
    gathered: Vec<u8>,
}

thread_local! {
    static PARTS: RefCell<Parts> = RefCell::default();
}

impl Parts {
    /// Decrypts or encrypts (returning the MAC) the parts of `block` that `parse` finds.
    pub(super) fn crypt(
        block: &mut [u8],
        parse: impl FnOnce(&[u8], &mut Parts) -> Result<(), Error>,
        cipher: &Aead,
        iv: &[u8; 12],
        mac: Option<&[u8; 16]>,
    ) -> Result<[u8; 16], Error> {
        PARTS.with_borrow_mut(|parts| {
            parts.aad.clear();
            parts.encrypted.clear();
            parts.gathered.clear();
            parse(block, parts)?;
            for r in &parts.encrypted {
                parts.gathered.extend(block.get(r.clone()).unwrap_or_default());
            }
            let mac = match mac {
                Some(mac) => cipher.decrypt(iv, &parts.aad, &mut parts.gathered, mac).map(|()| *mac)?,
                None => cipher.encrypt(iv, &parts.aad, &mut parts.gathered)?,
            };
            let mut rest = parts.gathered.as_slice();
            for r in &parts.encrypted {
                if let (Some(to), Some((from, more))) = (block.get_mut(r.clone()), rest.split_at_checked(r.len())) {
                    to.copy_from_slice(from);
                    rest = more;
                }
            }
            Ok(mac)
        })
    }
}
