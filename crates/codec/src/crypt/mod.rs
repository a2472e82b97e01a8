//! Native encryption: keys, block ciphers, message authentication codes.
//!
//! **Keys.** The user's 32-byte *wrapping key* (a key file, or PBKDF2 of a passphrase) unwraps the *key object* of an encryption root and
//! its children: AES over {master key ‖ HMAC key}, with guid, suite and version authenticated. Blocks are never encrypted with the master
//! key itself: each block pointer holds a salt, and the block's AES key is HKDF-SHA512 of master key and salt. A writer uses a salt for 400
//! million blocks, so few keys are in use at a time, and a [`DatasetKey`] caches the last few.
//!
//! **Level 0.** Three kinds of blocks, by object type:
//! * *data*: the whole block (as compressed) is encrypted;
//! * *dnode blocks* and *intent-log blocks*: the parts that scrub, claim and raw send must read without the key stay clear (block pointers,
//!   record headers, dnode cores); they are authenticated, except the bits that may change on the way to another pool, and the rest is
//!   encrypted in one operation, as if it were contiguous;
//! * *authenticated only*: types that must stay readable; the MAC is HMAC-SHA512 of the block as compressed.
//!
//! **Above level 0.** An indirect block's MAC is a plain SHA-512 over its children's MACs and portable properties, because a raw receive
//! must be able to recompute it without the key. The object set's block completes the tree with two HMACs: *portable* over the meta-dnode,
//! *local* over the accounting dnodes, which are not sent.
//!
//! MACs, salts and IVs are byte strings, but a block pointer stores them in words that are byteswapped with it: they are the words' bytes
//! in the byte order that the pointer records as its writer's. Here a salt is a `u64`: its eight bytes read low byte first, as `ondisk`
//! returns it.
//!
//! Key material is wiped when dropped. OpenZFS: `zio_crypt.c`, `dsl_crypt.c`, `hkdf.c`.

mod aead;
mod auth;
mod dnode;
mod key;
mod parts;
mod pointer;
#[cfg(test)]
mod tests;
mod wrap;
mod zil;

pub use auth::{indirect_mac, verify_indirect_mac, verify_indirect_mac_any};
pub use key::DatasetKey;
pub use wrap::{WrappedKey, WrappingKey};
/// Memory that is wiped when dropped, for key material.
pub use zeroize::Zeroizing;

use crate::Error;

/// Version of the key format that is written today; 0 is the format before the release of 0.8, which includes more in the MACs. OpenZFS:
/// `ZIO_CRYPT_KEY_CURRENT_VERSION`.
pub const KEY_VERSION: u64 = 1;

/// A cipher suite, with its number in the key object. OpenZFS: `enum zio_encrypt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Suite {
    /// AES-128 in CCM mode.
    Aes128Ccm = 3,
    /// AES-192 in CCM mode.
    Aes192Ccm = 4,
    /// AES-256 in CCM mode.
    Aes256Ccm = 5,
    /// AES-128 in GCM mode.
    Aes128Gcm = 6,
    /// AES-192 in GCM mode.
    Aes192Gcm = 7,
    /// AES-256 in GCM mode: what `encryption=on` means.
    Aes256Gcm = 8,
}

impl Suite {
    /// The suite with this number, or `None`.
    #[must_use]
    pub fn from_u64(n: u64) -> Option<Suite> {
        Some(match n {
            3 => Suite::Aes128Ccm,
            4 => Suite::Aes192Ccm,
            5 => Suite::Aes256Ccm,
            6 => Suite::Aes128Gcm,
            7 => Suite::Aes192Gcm,
            8 => Suite::Aes256Gcm,
            _ => return None,
        })
    }

    /// Its name as a property value.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Suite::Aes128Ccm => "aes-128-ccm",
            Suite::Aes192Ccm => "aes-192-ccm",
            Suite::Aes256Ccm => "aes-256-ccm",
            Suite::Aes128Gcm => "aes-128-gcm",
            Suite::Aes192Gcm => "aes-192-gcm",
            Suite::Aes256Gcm => "aes-256-gcm",
        }
    }

    /// Length of its master key and block keys in bytes. (The wrapping key always has 32.)
    #[must_use]
    pub fn key_len(self) -> usize {
        match self {
            Suite::Aes128Ccm | Suite::Aes128Gcm => 16,
            Suite::Aes192Ccm | Suite::Aes192Gcm => 24,
            Suite::Aes256Ccm | Suite::Aes256Gcm => 32,
        }
    }

    /// True if its mode is GCM, false if it is CCM.
    #[must_use]
    pub fn is_gcm(self) -> bool {
        matches!(self, Suite::Aes128Gcm | Suite::Aes192Gcm | Suite::Aes256Gcm)
    }
}

/// True if blocks and bonus buffers of this object type are encrypted in an encrypted dataset; if not, they are authenticated. OpenZFS:
/// `DMU_OT_IS_ENCRYPTED`.
#[must_use]
pub fn is_encrypted_type(object_type: u8) -> bool {
    /// The encrypted ones of the numbered types, as a bit set.
    const ENCRYPTED: u64 = {
        let types = [9, 10, 18, 19, 20, 22, 23, 25, 26, 33, 34, 35, 39, 40, 44, 45, 46, 47, 49];
        let mut bits = 0u64;
        let mut i = 0;
        while i < types.len() {
            bits |= 1 << types[i];
            i += 1;
        }
        bits
    };
    match object_type {
        // Self-describing types carry a bit for it.
        0x80.. => object_type & 0x20 != 0,
        0..=63 => ENCRYPTED >> object_type & 1 != 0,
        _ => false,
    }
}

/// Compares MACs in constant time.
fn same_mac(a: &[u8], b: &[u8], what: &'static str) -> Result<(), Error> {
    use subtle::ConstantTimeEq;
    if bool::from(a.ct_eq(b)) { Ok(()) } else { Err(Error::Authentication(what)) }
}
