//! Reads one pair after another from packed bytes, without building anything.
//!
//! The reader is the trust boundary: every value that it returns has been checked against the buffer and for consistency. Both encodings
//! yield the same [`Pair`].
//!
//! Two pitfalls of XDR as OpenZFS writes it:
//! * The encoded size includes the length word of an *empty* number array, which is not written. So the size of a pair, and of everything
//!   that contains it, is 4 too large per such array (`phantom` here), and nothing can be skipped by its size: nested lists must be walked.
//! * Numbers of 8 and 16 bits fill a 32-bit word. The kernel zero-extends them, user space sign-extends. Both are read; the kernel's form
//!   is written, since the kernel refuses the other.

use base::Endian;

use crate::{DataType, Encoding, Error};

/// The size of `nvlist_t` in a native image.
pub(crate) const NATIVE_LIST: usize = 24;

/// The longest name: its size, NUL included, is an `int16_t`.
pub(crate) const NAME_MAX: usize = i16::MAX as usize - 1;

/// Bytes of a pair in OpenZFS's memory, which is also its native encoding.
pub(crate) const fn native_pair_size(name: usize, value: usize) -> usize {
    native_value_offset(name) + value.next_multiple_of(8)
}

/// Offset of the value in a native pair.
pub(crate) const fn native_value_offset(name: usize) -> usize {
    (16 + name + 1).next_multiple_of(8)
}

/// A pair whose header has been checked, and whose value too unless it contains lists.
#[derive(Clone, Copy)]
pub(crate) struct Pair<'a> {
    /// Offset of the pair.
    pub(crate) at: usize,
    pub(crate) name: &'a [u8],
    pub(crate) ty: DataType,
    pub(crate) count: usize,
    /// For numbers, the elements; for a string, its bytes; for strings, all of them as packed; for lists in native form, their headers.
    pub(crate) data: &'a [u8],
    /// The encoded size that the pair claims (XDR only).
    size: usize,
    /// The reader's `phantom` before the pair.
    phantom: usize,
}

impl Pair<'_> {
    /// True if lists follow, which the caller must read or skip.
    pub(crate) fn has_lists(&self) -> bool {
        matches!(self.ty, DataType::NvList | DataType::NvListArray)
    }

    fn corrupt(&self, what: &'static str) -> Error {
        Error::Pair { offset: self.at, what }
    }
}

/// A cursor over a packed list.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Bytes that the sizes so far include but that do not exist.
    phantom: usize,
    pub(crate) encoding: Encoding,
    /// The writer's byte order, as the header says.
    pub(crate) endian: Endian,
}

impl<'a> Reader<'a> {
    /// A reader positioned after the 4-byte header.
    pub(crate) fn new(packed: &'a [u8]) -> Result<Reader<'a>, Error> {
        let (encoding, endian) = Encoding::of(packed)?;
        Ok(Reader { bytes: packed, at: 4, phantom: 0, encoding, endian })
    }

    /// The reader's offset.
    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    /// Bytes left.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The byte order of numbers.
    pub(crate) fn order(&self) -> Endian {
        match self.encoding {
            Encoding::Xdr => Endian::Big,
            Encoding::Native => self.endian,
        }
    }

    /// Bytes that one number of a type takes in this encoding.
    pub(crate) fn stride(&self, ty: DataType) -> usize {
        match (self.encoding, ty) {
            (Encoding::Native, _) | (_, DataType::ByteArray) => ty.width(),
            (Encoding::Xdr, _) => ty.width().next_multiple_of(4),
        }
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let tail = self.bytes.get(self.at..).unwrap_or_default();
        let Some(bytes) = tail.get(..len) else {
            return Err(Error::Truncated { offset: self.bytes.len(), needed: len - tail.len() });
        };
        self.at += len;
        Ok(bytes)
    }

    #[inline]
    fn word(&mut self) -> Result<u32, Error> {
        let order = self.order();
        let bytes = self.take(4)?;
        Ok(order.u32(*bytes.first_chunk().unwrap_or(&[0; 4])))
    }

    fn version(&self, offset: usize, version: u32) -> Result<(), Error> {
        match version as i32 {
            0 => Ok(()),
            version => Err(Error::Version { offset, version }),
        }
    }

    /// Reads the version and flags that begin a list (in native form only the outermost) and returns the flags.
    pub(crate) fn list_header(&mut self) -> Result<u32, Error> {
        let offset = self.at;
        let version = self.word()?;
        self.version(offset, version)?;
        self.word()
    }

    /// Reads up to the first pair of list number `which` of a pair (they must be read in order), and returns that list's flags.
    pub(crate) fn nested_header(&mut self, pair: &Pair<'a>, which: usize) -> Result<u32, Error> {
        if self.encoding == Encoding::Xdr {
            return self.list_header();
        }
        let header = pair.data.chunks_exact(NATIVE_LIST).nth(which);
        let header = header.and_then(|h| h.first_chunk::<8>());
        let [a, b, c, d, flags @ ..] = *header.ok_or_else(|| pair.corrupt("a list without a header"))?;
        self.version(pair.at, self.order().u32([a, b, c, d]))?;
        Ok(self.order().u32(flags))
    }

    /// Reads the next pair of a list; `None` after the last. Lists in the pair, if any, are still to be read.
    #[inline]
    pub(crate) fn pair(&mut self) -> Result<Option<Pair<'a>>, Error> {
        match self.encoding {
            Encoding::Xdr => self.xdr_pair(),
            Encoding::Native => self.native_pair(),
        }
    }

    /// Checks, after its lists were read, that a pair has the size that it claims.
    pub(crate) fn close(&self, pair: &Pair<'a>) -> Result<(), Error> {
        let read = self.at - pair.at + self.phantom - pair.phantom;
        if self.encoding == Encoding::Xdr && read != pair.size {
            return Err(pair.corrupt("its encoded size is not that of its contents"));
        }
        Ok(())
    }

    /// Skips the lists of a pair. `depth` is the number of further levels of nesting allowed.
    pub(crate) fn skip_lists(&mut self, pair: &Pair<'a>, depth: usize) -> Result<(), Error> {
        for which in 0..pair.count {
            let depth = deeper(depth)?;
            self.nested_header(pair, which)?;
            self.skip_pairs(depth)?;
        }
        self.close(pair)
    }

    /// Skips to the end of a list.
    pub(crate) fn skip_pairs(&mut self, depth: usize) -> Result<(), Error> {
        while let Some(pair) = self.pair()? {
            if pair.has_lists() {
                self.skip_lists(&pair, depth)?;
            }
        }
        Ok(())
    }

    fn xdr_pair(&mut self) -> Result<Option<Pair<'a>>, Error> {
        let at = self.at;
        let corrupt = |what| Error::Pair { offset: at, what };
        let (size, decoded) = (self.word()? as usize, self.word()? as usize);
        match (size, decoded) {
            (0, 0) => return Ok(None),
            (0, _) | (_, 0) => return Err(corrupt("one of its two sizes is zero")),
            _ => {}
        }
        let phantom = self.phantom;
        let name = self.xdr_string()?;
        let (number, count) = (self.word()? as i32, self.word()? as usize);
        let ty = DataType::from_number(number).ok_or(Error::Type { offset: at, number })?;
        check_count(ty, count).map_err(corrupt)?;
        if name.len() > NAME_MAX {
            return Err(corrupt("its name is too long"));
        }
        // the value, and the bytes that it takes in memory
        let (data, value) = match ty {
            DataType::NvList => (&[][..], NATIVE_LIST),
            DataType::NvListArray => (&[][..], count.saturating_mul(8 + NATIVE_LIST)),
            DataType::String => {
                let text = self.xdr_string()?;
                (text, text.len() + 1)
            }
            DataType::StringArray => self.xdr_strings(count)?,
            _ => (self.xdr_numbers(at, ty, count)?, count.saturating_mul(ty.width())),
        };
        let pair = Pair { at, name, ty, count, data, size, phantom };
        if value > i32::MAX as usize || native_pair_size(name.len(), value) != decoded {
            return Err(corrupt("its decoded size is not that of its contents"));
        }
        if !pair.has_lists() {
            self.close(&pair)?;
        }
        Ok(Some(pair))
    }

    /// Reads a length, the bytes, and padding to 4.
    #[inline]
    fn xdr_string(&mut self) -> Result<&'a [u8], Error> {
        let at = self.at;
        let corrupt = |what| Error::Pair { offset: at, what };
        let len = self.word()? as usize;
        let text = self.take(len)?;
        if text.contains(&0) {
            return Err(corrupt("a string contains a NUL"));
        }
        if self.take(len.wrapping_neg() % 4)?.iter().any(|b| *b != 0) {
            return Err(corrupt("the padding of a string is not zero"));
        }
        Ok(text)
    }

    fn xdr_strings(&mut self, count: usize) -> Result<(&'a [u8], usize), Error> {
        let start = self.at;
        let mut size = count.saturating_mul(8);
        for _ in 0..count {
            size = size.saturating_add(self.xdr_string()?.len() + 1);
        }
        Ok((self.bytes.get(start..self.at).unwrap_or_default(), size))
    }

    fn xdr_numbers(&mut self, at: usize, ty: DataType, count: usize) -> Result<&'a [u8], Error> {
        let corrupt = |what| Error::Pair { offset: at, what };
        if ty.is_array() && ty != DataType::ByteArray {
            if count == 0 {
                self.phantom += 4;
                return Ok(&[]);
            }
            if self.word()? as usize != count {
                return Err(corrupt("its two element counts differ"));
            }
        }
        let data = self.take(count.saturating_mul(self.stride(ty)))?;
        if ty == DataType::ByteArray && self.take(count.wrapping_neg() % 4)?.iter().any(|b| *b != 0) {
            return Err(corrupt("the padding of a byte array is not zero"));
        }
        let (words, _) = data.as_chunks::<4>();
        let mut words = words.iter().map(|w| u32::from_be_bytes(*w));
        let fits = match ty {
            DataType::BooleanValue | DataType::BooleanArray => words.all(|w| w <= 1),
            _ if ty == DataType::ByteArray => true,
            // zero- or sign-extended
            _ if ty.width() == 1 => words.all(|w| w <= 0xff || w >= 0xffff_ff80),
            _ if ty.width() == 2 => words.all(|w| w <= 0xffff || w >= 0xffff_8000),
            _ => true,
        };
        if !fits {
            return Err(corrupt("a number is outside its type"));
        }
        Ok(data)
    }

    fn native_pair(&mut self) -> Result<Option<Pair<'a>>, Error> {
        let (at, order) = (self.at, self.order());
        let corrupt = |what| Error::Pair { offset: at, what };
        let size = self.word()? as usize;
        if size == 0 {
            return Ok(None);
        }
        self.at = at;
        let pair = self.take(size)?;
        let Some((head, rest)) = pair.split_first_chunk::<16>() else {
            return Err(corrupt("its size is too small"));
        };
        let [_, _, _, _, n0, n1, _, _, c0, c1, c2, c3, t0, t1, t2, t3] = *head;
        let name_size = order.u16([n0, n1]) as usize;
        let count = order.u32([c0, c1, c2, c3]) as usize;
        let number = order.u32([t0, t1, t2, t3]) as i32;
        let Some(Some((0, name))) = rest.get(..name_size).map(|n| n.split_last().map(|(z, n)| (*z, n))) else {
            return Err(corrupt("its name does not end"));
        };
        if name.contains(&0) || name.len() > NAME_MAX {
            return Err(corrupt("its name is not as long as it claims"));
        }
        let ty = DataType::from_number(number).ok_or(Error::Type { offset: at, number })?;
        check_count(ty, count).map_err(corrupt)?;
        let value = pair.get(native_value_offset(name.len())..).unwrap_or_default();
        let Some((data, used)) = native_value(ty, count, value) else {
            return Err(corrupt("its value does not fit"));
        };
        if native_pair_size(name.len(), used) != size {
            return Err(corrupt("its size is not that of its contents"));
        }
        let bits = |w: &[u8; 4]| order.u32(*w);
        let booleans = matches!(ty, DataType::BooleanValue | DataType::BooleanArray);
        if booleans && data.as_chunks::<4>().0.iter().any(|w| bits(w) > 1) {
            return Err(corrupt("a number is outside its type"));
        }
        Ok(Some(Pair { at, name, ty, count, data, size, phantom: 0 }))
    }
}

/// One level less, or an error if the limit was reached.
pub(crate) fn deeper(depth: usize) -> Result<usize, Error> {
    depth.checked_sub(1).ok_or(Error::Limit { what: "levels of nested lists", limit: 0 })
}

/// True if a type may have this many elements.
fn check_count(ty: DataType, count: usize) -> Result<(), &'static str> {
    let allowed = match ty {
        DataType::Boolean => count == 0,
        _ if ty.is_array() => count <= i32::MAX as usize,
        _ => count == 1,
    };
    if allowed { Ok(()) } else { Err("its type does not have so many elements") }
}

/// The meaningful part of a native value, and the size of the whole value without padding.
fn native_value(ty: DataType, count: usize, value: &[u8]) -> Option<(&[u8], usize)> {
    match ty {
        DataType::String => {
            let len = value.iter().position(|b| *b == 0)?;
            Some((value.get(..len)?, len + 1))
        }
        DataType::StringArray => {
            let pointers = count.checked_mul(8)?;
            let mut rest = value.get(pointers..)?;
            let all = rest;
            for _ in 0..count {
                let len = rest.iter().position(|b| *b == 0)?;
                rest = rest.get(len + 1..)?;
            }
            let len = all.len() - rest.len();
            Some((all.get(..len)?, pointers + len))
        }
        DataType::NvList => Some((value.get(..NATIVE_LIST)?, NATIVE_LIST)),
        DataType::NvListArray => {
            let (pointers, lists) = (count.checked_mul(8)?, count.checked_mul(NATIVE_LIST)?);
            Some((value.get(pointers..)?.get(..lists)?, pointers + lists))
        }
        _ => {
            let len = count.checked_mul(ty.width())?;
            Some((value.get(..len)?, len))
        }
    }
}
