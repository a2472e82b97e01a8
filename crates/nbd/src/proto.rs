//! The numbers of the protocol, and its fields. All are big-endian.

use std::io::{self, Read};

use base::{Endian, bytes};

/// Begins the greeting of a server.
pub(crate) const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Begins the options of newstyle negotiation.
pub(crate) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Begins a reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins a request.
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins a simple reply.
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a chunk of a structured reply.
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The maximum length of a read or write, which clients need not ask for (the specification's default).
pub const PAYLOAD_MAX: u32 = 32 << 20;

/// Flags of the server's greeting, and of the client's answer to it.
pub(crate) mod handshake {
    /// Fixed newstyle negotiation.
    pub(crate) const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No zeros after the reply to `NBD_OPT_EXPORT_NAME`.
    pub(crate) const NO_ZEROES: u16 = 1 << 1;
    /// The zeros that older clients expect.
    pub(crate) const ZEROES: usize = 124;
}

/// Options that a client sends.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub(crate) mod rep {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub(crate) const ERR_POLICY: u32 = (1 << 31) + 2;
    pub(crate) const ERR_INVALID: u32 = (1 << 31) + 3;
    pub(crate) const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    pub(crate) const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub(crate) const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Types of information about an export.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
pub(crate) mod flag {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(crate) const SEND_CACHE: u16 = 1 << 10;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Types of requests.
pub(crate) mod cmd {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const CACHE: u16 = 5;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub(crate) mod cmd_flag {
    /// The reply waits for stable storage.
    pub(crate) const FUA: u16 = 1 << 0;
    /// Zeros are written, not freed.
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    /// A read is answered with one chunk.
    pub(crate) const DF: u16 = 1 << 2;
    /// One extent is asked for.
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    /// Zeros that would take as long as a write are refused.
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
}

/// Structured replies.
pub(crate) mod chunk {
    /// The flag of the last chunk of a reply.
    pub(crate) const DONE: u16 = 1 << 0;
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR: u16 = (1 << 15) + 1;
}

/// The context `base:allocation`.
pub(crate) mod allocation {
    pub(crate) const NAME: &[u8] = b"base:allocation";
    /// Stands for all contexts of its namespace in a query.
    pub(crate) const WILDCARD: &[u8] = b"base:";
    /// Its number in replies.
    pub(crate) const ID: u32 = 1;
    /// Nothing is allocated.
    pub(crate) const HOLE: u32 = 1 << 0;
    /// It reads as zeros.
    pub(crate) const ZERO: u32 = 1 << 1;
}

/// Error numbers of replies: they are the protocol's, not the system's.
pub(crate) mod error {
    pub(crate) const EPERM: u32 = 1;
    pub(crate) const EIO: u32 = 5;
    pub(crate) const ENOMEM: u32 = 12;
    pub(crate) const EINVAL: u32 = 22;
    pub(crate) const ENOSPC: u32 = 28;
    pub(crate) const EOVERFLOW: u32 = 75;
    pub(crate) const ENOTSUP: u32 = 95;
}

/// Fields of a message that has come, one after the other. `None`: it is too short.
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Fields<'a> {
        Fields(message)
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(field)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        bytes::u16(self.take(2)?, 0, Endian::Big)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        bytes::u32(self.take(4)?, 0, Endian::Big)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        bytes::u64(self.take(8)?, 0, Endian::Big)
    }

    /// A string behind its length of 32 bits.
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(usize::try_from(len).ok()?)
    }

    /// Returns whether all fields have been taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads and drops bytes, as many as a client has announced.
///
/// # Errors
/// When the client closes the connection before.
pub(crate) fn skip(input: &mut impl Read, len: u64) -> io::Result<()> {
    let mut scratch = [0; 8 << 10];
    let mut left = len;
    while left > 0 {
        let now = usize::try_from(left).unwrap_or(usize::MAX).min(scratch.len());
        input.read_exact(scratch.get_mut(..now).unwrap_or_default())?;
        left -= now as u64;
    }
    Ok(())
}

/// Bytes of a message for which memory is taken before they have come.
const AHEAD: usize = 256 << 10;

/// Reads a part of a message whose length is within its bound. Memory grows with the bytes that come.
///
/// # Errors
/// When the client closes the connection before.
pub(crate) fn take(input: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    let mut taken = Vec::new();
    while taken.len() < len {
        let had = taken.len();
        let now = (len - had).min(had.max(AHEAD));
        if had == 0 {
            taken = vec![0; now];
        } else {
            taken.resize(had + now, 0);
        }
        input.read_exact(taken.get_mut(had..).unwrap_or_default())?;
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_with_what_comes() {
        let sent: Vec<u8> = (0..5 * AHEAD).map(|n| (n % 251) as u8).collect();
        for len in [0, 1, AHEAD, AHEAD + 1, 5 * AHEAD] {
            assert!(take(&mut sent.as_slice(), len).is_ok_and(|taken| Some(taken.as_slice()) == sent.get(..len)));
        }
        assert!(take(&mut sent.as_slice(), 5 * AHEAD + 1).is_err());
        let mut input = sent.as_slice();
        assert!(skip(&mut input, 3 * AHEAD as u64).is_ok() && input.len() == 2 * AHEAD);
        assert!(skip(&mut input, 2 * AHEAD as u64 + 1).is_err());
    }

    #[test]
    fn fields_end_with_the_message() {
        let mut fields = Fields::new(&[0, 0, 0, 2, b'a', b'b', 1, 2]);
        assert_eq!(fields.string(), Some(&b"ab"[..]));
        assert_eq!((fields.u16(), fields.u16(), fields.is_empty()), (Some(0x0102), None, true));
        assert_eq!(Fields::new(&[0xff, 0xff, 0xff, 0xff, 1]).string(), None);
    }
}
