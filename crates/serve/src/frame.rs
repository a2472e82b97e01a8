//! The header of a frame, byte by byte.
//!
//! All numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0–3 | `ZSRV` |
//! | 4 | the version of the protocol, 1 |
//! | 5 | the kind of the frame ([`Kind`]) |
//! | 6–7 | the number of descriptors that come with it, at most [`DESCRIPTORS_MAX`] |
//! | 8–15 | the number of the request that it is about; 0 for none |
//! | 16–19 | the bytes of the body that follows |
//! | 20–23 | 0 |
//!
//! A kind that is not known is no error here: it can be answered, as the length of its body is known.

/// What every header begins with.
const MAGIC: [u8; 4] = *b"ZSRV";
/// The version of the protocol.
pub const VERSION: u8 = 1;
/// Bytes of a header.
pub const HEADER: usize = 24;
/// Descriptors that a frame may have: a command line needs four.
pub const DESCRIPTORS_MAX: usize = 8;

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The first frame of a server.
    Hello = 1,
    /// A request of `control`.
    Call = 2,
    /// The end of a request.
    Answer = 3,
    /// A request is to end. It has no body, and no answer of its own.
    Cancel = 4,
    /// A command line.
    Run = 5,
    /// A signal for a command line.
    Signal = 6,
    /// The server is to end. It has no body.
    End = 7,
}

impl Kind {
    const ALL: [Kind; 7] = [Kind::Hello, Kind::Call, Kind::Answer, Kind::Cancel, Kind::Run, Kind::Signal, Kind::End];

    /// The kind with this number; `None` if there is none.
    #[must_use]
    pub fn of(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The number of its kind ([`Kind::of`]).
    pub kind: u8,
    /// Descriptors that come with it.
    pub descriptors: usize,
    /// The request that it is about.
    pub id: u64,
    /// Bytes of its body.
    pub len: u32,
}

/// Why bytes are no header. What follows cannot be understood then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadHeader {
    /// Something else speaks at the other end.
    #[error("not a frame of this protocol")]
    Magic,
    /// Another version of the protocol.
    #[error("version {0} of the protocol is not {VERSION}")]
    Version(u8),
    /// More descriptors than a frame may have.
    #[error("{0} descriptors are too many")]
    Descriptors(u16),
    /// Bytes that have no meaning are not 0.
    #[error("reserved bytes are not 0")]
    Reserved,
}

impl Header {
    /// The bytes of a header. `descriptors` is within its bound.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        debug_assert!(self.descriptors <= DESCRIPTORS_MAX);
        let mut bytes = [0; HEADER];
        let descriptors = self.descriptors as u16;
        let fields: [&[u8]; 6] = [
            &MAGIC,
            &[VERSION, self.kind],
            &descriptors.to_le_bytes(),
            &self.id.to_le_bytes(),
            &self.len.to_le_bytes(),
            &[0; 4],
        ];
        bytes.copy_from_slice(&fields.concat());
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// As [`BadHeader`] says.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Header, BadHeader> {
        let [m0, m1, m2, m3, version, kind, d0, d1, id @ .., l0, l1, l2, l3, r0, r1, r2, r3] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(BadHeader::Magic);
        }
        if version != VERSION {
            return Err(BadHeader::Version(version));
        }
        let descriptors = u16::from_le_bytes([d0, d1]);
        if usize::from(descriptors) > DESCRIPTORS_MAX {
            return Err(BadHeader::Descriptors(descriptors));
        }
        if [r0, r1, r2, r3] != [0; 4] {
            return Err(BadHeader::Reserved);
        }
        let (id, len) = (u64::from_le_bytes(id), u32::from_le_bytes([l0, l1, l2, l3]));
        Ok(Header { kind, descriptors: descriptors.into(), id, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_what_the_table_says() {
        let header = Header { kind: Kind::Call as u8, descriptors: 3, id: 0x0102_0304_0506_0708, len: 0x0a0b_0c0d };
        let bytes = header.encode();
        assert_eq!(bytes[..8], [b'Z', b'S', b'R', b'V', 1, 2, 3, 0]);
        assert_eq!(bytes[8..], [8, 7, 6, 5, 4, 3, 2, 1, 0x0d, 0x0c, 0x0b, 0x0a, 0, 0, 0, 0]);
        assert_eq!(Header::decode(&bytes), Ok(header));
        let changed = |at: usize, to: u8| {
            let mut bytes = bytes;
            bytes[at] = to;
            Header::decode(&bytes).map(drop)
        };
        assert_eq!(changed(0, b'z'), Err(BadHeader::Magic));
        assert_eq!(changed(4, 2), Err(BadHeader::Version(2)));
        assert_eq!(changed(6, 9), Err(BadHeader::Descriptors(9)));
        assert_eq!(changed(23, 1), Err(BadHeader::Reserved));
        assert_eq!(changed(5, 200), Ok(()));
        assert_eq!((Kind::of(200), Kind::of(0), Kind::of(6)), (None, None, Some(Kind::Signal)));
    }
}
