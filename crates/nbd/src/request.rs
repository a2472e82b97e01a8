//! Requests: their header, and which of them are valid.

use crate::Zero;
use crate::negotiate::Chosen;
use crate::proto::{Fields, PAYLOAD_MAX, REQUEST_MAGIC, cmd, cmd_flag, error};

/// Bytes of the header of a request.
pub(crate) const HEADER: usize = 28;

/// The header of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) flags: u16,
    pub(crate) kind: u16,
    /// What the client knows the request by.
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// A request that is valid. Ranges are within the export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    Read { offset: u64, len: u32, whole: bool },
    Write { offset: u64, durable: bool },
    Flush,
    Trim { offset: u64, len: u32, durable: bool },
    Zero { offset: u64, len: u32, how: Zero, durable: bool },
    Cache { offset: u64, len: u32 },
    Status { offset: u64, len: u32, one: bool },
}

/// The error that is the reply to a request, and a message for a person.
pub(crate) type Refused = (u32, &'static str);

const READ_ONLY: Refused = (error::EPERM, "the export is read-only");
const NO_SUCH: Refused = (error::EINVAL, "there is no such request");
const BAD_FLAG: Refused = (error::EINVAL, "a flag is not one of this request");
const BEYOND: Refused = (error::EINVAL, "the range ends beyond the export");
const NO_SPACE: Refused = (error::ENOSPC, "the range ends beyond the export");

impl Header {
    /// Decodes a header. `None`: it is something else, and where the next one begins is not known.
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Option<Header> {
        let mut fields = Fields::new(bytes);
        if fields.u32()? != REQUEST_MAGIC {
            return None;
        }
        let (flags, kind) = (fields.u16()?, fields.u16()?);
        Some(Header { flags, kind, cookie: fields.u64()?, offset: fields.u64()?, len: fields.u32()? })
    }

    /// Returns the bytes of the payload that follows.
    pub(crate) fn payload(&self) -> u32 {
        if self.kind == cmd::WRITE { self.len } else { 0 }
    }

    /// Returns what it counts among the bytes in flight: its data, also where that is zeros, or is only read ahead.
    pub(crate) fn cost(&self) -> usize {
        match self.kind {
            cmd::READ | cmd::WRITE => self.len as usize,
            cmd::WRITE_ZEROES if self.flags & cmd_flag::NO_HOLE != 0 => self.len as usize,
            cmd::CACHE => self.len.min(PAYLOAD_MAX) as usize,
            _ => 0,
        }
    }

    /// Checks the request against what its client has negotiated.
    ///
    /// # Errors
    /// The reply to one that is not valid.
    pub(crate) fn check(&self, chosen: &Chosen) -> Result<Command, Refused> {
        let (offset, len) = (self.offset, self.len);
        let has = |flag| self.flags & flag != 0;
        // FUA may come with all requests
        let (changes, flags, beyond) = match self.kind {
            cmd::READ => (false, if chosen.structured { cmd_flag::DF } else { 0 }, BEYOND),
            cmd::WRITE => (true, 0, NO_SPACE),
            cmd::TRIM => (true, 0, BEYOND),
            cmd::WRITE_ZEROES => (true, cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO, NO_SPACE),
            cmd::FLUSH | cmd::CACHE => (false, 0, BEYOND),
            cmd::BLOCK_STATUS => (false, cmd_flag::REQ_ONE, BEYOND),
            _ => return Err(NO_SUCH),
        };
        if self.flags & !(flags | cmd_flag::FUA) != 0 {
            return Err(BAD_FLAG);
        }
        if changes && chosen.export.is_read_only() {
            return Err(READ_ONLY);
        }
        if offset.checked_add(len.into()).is_none_or(|end| end > chosen.size) {
            return Err(beyond);
        }
        let durable = has(cmd_flag::FUA);
        match self.kind {
            cmd::READ if len > PAYLOAD_MAX => {
                let number = if chosen.structured { error::EOVERFLOW } else { error::EINVAL };
                Err((number, "the read is longer than the maximum payload"))
            }
            cmd::READ => Ok(Command::Read { offset, len, whole: has(cmd_flag::DF) }),
            cmd::WRITE => Ok(Command::Write { offset, durable }),
            cmd::TRIM => Ok(Command::Trim { offset, len, durable }),
            cmd::WRITE_ZEROES => {
                let how = Zero { hole: !has(cmd_flag::NO_HOLE), fast: has(cmd_flag::FAST_ZERO) };
                Ok(Command::Zero { offset, len, how, durable })
            }
            cmd::FLUSH if (offset, len) != (0, 0) => Err((error::EINVAL, "a flush has no range")),
            cmd::FLUSH => Ok(Command::Flush),
            cmd::CACHE => Ok(Command::Cache { offset, len }),
            cmd::BLOCK_STATUS if !chosen.allocation => Err((error::EINVAL, "no metadata context is selected")),
            cmd::BLOCK_STATUS if len == 0 => Err((error::EINVAL, "the range is empty")),
            cmd::BLOCK_STATUS => Ok(Command::Status { offset, len, one: has(cmd_flag::REQ_ONE) }),
            _ => Err(NO_SUCH),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::Memory;

    const SIZE: u64 = 1 << 30;

    fn chosen(read_only: bool) -> Chosen {
        let memory = if read_only { Memory::new(0).read_only() } else { Memory::new(0) };
        Chosen::new(Arc::new(memory), SIZE)
    }

    fn request(kind: u16, flags: u16, offset: u64, len: u32) -> Header {
        Header { flags, kind, cookie: 7, offset, len }
    }

    #[test]
    fn a_header_is_what_the_specification_says() {
        let mut bytes = [0; HEADER];
        let fields: [&[u8]; 6] = [&[0x25, 0x60, 0x95, 0x13], &[0, 1], &[0, 6], &[9; 8], &[1; 8], &[0, 0, 2, 0]];
        bytes.copy_from_slice(&fields.concat());
        let header =
            Header { flags: 1, kind: 6, cookie: 0x0909_0909_0909_0909, offset: 0x0101_0101_0101_0101, len: 512 };
        assert_eq!(Header::decode(&bytes), Some(header));
        bytes[3] = 0x14;
        assert_eq!(Header::decode(&bytes), None);
    }

    #[test]
    fn ranges_end_within_the_export() {
        let all = [
            (cmd::READ, error::EINVAL),
            (cmd::WRITE, error::ENOSPC),
            (cmd::TRIM, error::EINVAL),
            (cmd::WRITE_ZEROES, error::ENOSPC),
            (cmd::CACHE, error::EINVAL),
            (cmd::BLOCK_STATUS, error::EINVAL),
        ];
        for (kind, number) in all {
            assert!(request(kind, 0, SIZE - 1, 1).check(&chosen(false)).is_ok(), "{kind}");
            for (offset, len) in [(SIZE - 1, 2), (SIZE, 1), (u64::MAX, 1), (u64::MAX - 1, u32::MAX)] {
                let refused = request(kind, 0, offset, len).check(&chosen(false));
                assert_eq!(refused.map_err(|(number, _)| number), Err(number), "{kind} {offset} {len}");
            }
        }
        let long = request(cmd::READ, 0, 0, PAYLOAD_MAX + 1);
        assert_eq!(long.check(&chosen(false)).map_err(|(number, _)| number), Err(error::EOVERFLOW));
        let simple = Chosen { structured: false, ..chosen(false) };
        assert_eq!(long.check(&simple).map_err(|(number, _)| number), Err(error::EINVAL));
        assert!(request(cmd::READ, 0, 0, PAYLOAD_MAX).check(&simple).is_ok());
        assert!(request(cmd::WRITE_ZEROES, 0, 0, SIZE as u32).check(&chosen(false)).is_ok());
    }

    #[test]
    fn a_read_only_export_refuses_what_changes_it() {
        for kind in 0..=9 {
            let checked = request(kind, 0, 0, u32::from(kind != cmd::FLUSH)).check(&chosen(true));
            let number = checked.map(drop).map_err(|(number, _)| number);
            let expected = match kind {
                cmd::WRITE | cmd::TRIM | cmd::WRITE_ZEROES => Err(error::EPERM),
                cmd::READ | cmd::FLUSH | cmd::CACHE | cmd::BLOCK_STATUS => Ok(()),
                // NBD_CMD_DISC has no reply
                _ => Err(error::EINVAL),
            };
            assert_eq!(number, expected, "{kind}");
        }
    }

    #[test]
    fn what_takes_long_counts_among_the_bytes_in_flight() {
        let long = 1 << 30;
        assert_eq!(request(cmd::WRITE_ZEROES, cmd_flag::NO_HOLE, 0, long).cost(), long as usize);
        assert_eq!(request(cmd::CACHE, 0, 0, long).cost(), PAYLOAD_MAX as usize);
        for kind in [cmd::WRITE_ZEROES, cmd::TRIM, cmd::BLOCK_STATUS] {
            assert_eq!(request(kind, 0, 0, long).cost(), 0, "{kind}");
        }
    }

    #[test]
    fn flags_belong_to_their_requests() {
        let valid = [
            (cmd::READ, cmd_flag::DF),
            (cmd::WRITE, 0),
            (cmd::FLUSH, 0),
            (cmd::TRIM, 0),
            (cmd::CACHE, 0),
            (cmd::WRITE_ZEROES, cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO),
            (cmd::BLOCK_STATUS, cmd_flag::REQ_ONE),
        ];
        for (kind, of_kind) in valid {
            for bit in 0..16 {
                let flag = 1 << bit;
                let len = u32::from(kind != cmd::FLUSH);
                let checked = request(kind, flag, 0, len).check(&chosen(false));
                assert_eq!(checked.is_ok(), (of_kind | cmd_flag::FUA) & flag != 0, "{kind} {flag}");
            }
        }
        let simple = Chosen { structured: false, allocation: false, ..chosen(false) };
        assert!(request(cmd::READ, cmd_flag::DF, 0, 1).check(&simple).is_err());
        assert!(request(cmd::BLOCK_STATUS, 0, 0, 1).check(&simple).is_err());
        assert!(request(cmd::FLUSH, 0, 1, 0).check(&simple).is_err());
    }
}
