//! Packing: the bytes that OpenZFS's `nvlist_pack()` would write.

use base::Endian;

use crate::reader::{NAME_MAX, deeper, native_pair_size, native_value_offset};
use crate::{Encoding, Error, Limits, NvList, NvString, Value};

impl NvList {
    /// The packed list, with the 4-byte header. `endian` is the byte order that the header names; numbers have it in the native encoding,
    /// while XDR is always big-endian. OpenZFS: `nvlist_pack()`.
    ///
    /// # Errors
    /// A name or string holds a NUL or is too long, lists are nested deeper than the default [`Limits`], or the result would exceed 2³¹ bytes.
    pub fn pack(&self, encoding: Encoding, endian: Endian) -> Result<Vec<u8>, Error> {
        let mut packed = Vec::new();
        self.pack_into(encoding, endian, &mut packed)?;
        Ok(packed)
    }

    /// Like [`NvList::pack`], appended to a buffer. After an error the buffer holds an incomplete list.
    ///
    /// # Errors
    /// As [`NvList::pack`].
    pub fn pack_into(&self, encoding: Encoding, endian: Endian, packed: &mut Vec<u8>) -> Result<(), Error> {
        let start = packed.len();
        packed.reserve(self.packed_size_hint());
        packed.extend_from_slice(&[encoding as u8, u8::from(endian == Endian::Little), 0, 0]);
        let xdr = encoding == Encoding::Xdr;
        let mut writer = Writer { start, xdr, order: if xdr { Endian::Big } else { endian }, phantom: 0, out: packed };
        writer.word(0);
        writer.word(self.flags());
        writer.pairs(self, Limits::default().depth)?;
        // OpenZFS allocates the size that it computed, see `reader`
        let phantom = writer.phantom;
        writer.zeros(phantom);
        writer.check_size(writer.out.len() - start, 0)
    }
}

struct Writer<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
    xdr: bool,
    order: Endian,
    /// Bytes that the XDR sizes so far include although they were not written.
    phantom: usize,
}

impl Writer<'_> {
    #[inline]
    fn word(&mut self, word: u32) {
        self.out.extend_from_slice(&self.order.put_u32(word));
    }

    #[inline]
    fn zeros(&mut self, count: usize) {
        self.out.resize(self.out.len() + count, 0);
    }

    /// Writes the pairs of a list and its terminator.
    fn pairs(&mut self, list: &NvList, depth: usize) -> Result<(), Error> {
        for (name, value) in list.iter_bytes() {
            if name.len() > NAME_MAX {
                return Err(unpackable(name, "its name is too long"));
            }
            if name.contains(&0) {
                return Err(unpackable(name, "its name holds a NUL"));
            }
            if self.xdr {
                self.xdr_pair(name, value, depth)?;
            } else {
                self.native_pair(name, value, depth)?;
            }
        }
        self.word(0);
        if self.xdr {
            self.word(0);
        }
        Ok(())
    }

    fn xdr_pair(&mut self, name: &[u8], value: &Value, depth: usize) -> Result<(), Error> {
        let (at, phantom) = (self.out.len(), self.phantom);
        let decoded = native_pair_size(name.len(), memory_size(value));
        self.check_size(at - self.start, decoded)?;
        self.word(0);
        self.word(decoded as u32);
        self.xdr_string(name);
        self.word(value.data_type() as u32);
        self.word(value.element_count() as u32);
        self.value(name, value)?;
        for list in lists(value) {
            let depth = deeper(depth)?;
            self.word(0);
            self.word(list.flags());
            self.pairs(list, depth)?;
        }
        let size = self.out.len() - at + self.phantom - phantom;
        self.check_size(at - self.start, size)?;
        if let Some(place) = self.out.get_mut(at..).and_then(|p| p.first_chunk_mut()) {
            *place = (size as u32).to_be_bytes();
        }
        Ok(())
    }

    fn native_pair(&mut self, name: &[u8], value: &Value, depth: usize) -> Result<(), Error> {
        let at = self.out.len();
        let size = native_pair_size(name.len(), memory_size(value));
        self.check_size(at - self.start, size)?;
        self.word(size as u32);
        self.out.extend_from_slice(&self.order.put_u16(name.len() as u16 + 1));
        self.out.extend_from_slice(&[0; 2]);
        self.word(value.element_count() as u32);
        self.word(value.data_type() as u32);
        self.out.extend_from_slice(name);
        self.out.resize(at + native_value_offset(name.len()), 0);
        self.value(name, value)?;
        self.out.resize(at + size, 0);
        for list in lists(value) {
            self.pairs(list, deeper(depth)?)?;
        }
        Ok(())
    }

    /// Writes the value, without padding to 8 bytes and without nested lists.
    fn value(&mut self, name: &[u8], value: &Value) -> Result<(), Error> {
        match value {
            Value::Boolean => {}
            Value::Byte(v) | Value::Uint8(v) => self.number(*v),
            Value::Int8(v) => self.number(*v),
            Value::Int16(v) => self.number(*v),
            Value::Uint16(v) => self.number(*v),
            Value::Int32(v) => self.number(*v),
            Value::Uint32(v) => self.number(*v),
            Value::Int64(v) | Value::Hrtime(v) => self.number(*v),
            Value::Uint64(v) => self.number(*v),
            Value::Double(v) => self.number(v.to_bits()),
            Value::BooleanValue(v) => self.number(*v),
            Value::ByteArray(v) => {
                self.out.extend_from_slice(v);
                self.zeros(if self.xdr { v.len().wrapping_neg() % 4 } else { 0 });
            }
            Value::Uint8Array(v) => self.numbers(v),
            Value::Int8Array(v) => self.numbers(v),
            Value::Int16Array(v) => self.numbers(v),
            Value::Uint16Array(v) => self.numbers(v),
            Value::Int32Array(v) => self.numbers(v),
            Value::Uint32Array(v) => self.numbers(v),
            Value::Int64Array(v) => self.numbers(v),
            Value::Uint64Array(v) => self.numbers(v),
            Value::BooleanArray(v) => self.numbers(v),
            Value::String(text) => self.string(name, text)?,
            Value::StringArray(texts) => {
                self.zeros(if self.xdr { 0 } else { 8 * texts.len() });
                for text in texts {
                    self.string(name, text)?;
                }
            }
            Value::NvList(_) | Value::NvListArray(_) if self.xdr => {}
            Value::NvList(list) => self.native_list_header(list),
            Value::NvListArray(lists) => {
                self.zeros(8 * lists.len());
                for list in lists {
                    self.native_list_header(list);
                }
            }
        }
        Ok(())
    }

    /// Writes an `nvlist_t`: version, flags, a pointer, two unused words.
    fn native_list_header(&mut self, list: &NvList) {
        self.word(0);
        self.word(list.flags());
        self.zeros(16);
    }

    #[inline]
    fn number<T: Number>(&mut self, number: T) {
        let bits = number.bits();
        match if self.xdr { T::WIDTH.max(4) } else { T::WIDTH } {
            1 => self.out.push(bits as u8),
            2 => self.out.extend_from_slice(&self.order.put_u16(bits as u16)),
            4 => self.word(bits as u32),
            _ => self.out.extend_from_slice(&self.order.put_u64(bits)),
        }
    }

    fn numbers<T: Number>(&mut self, numbers: &[T]) {
        if self.xdr && numbers.is_empty() {
            self.phantom += 4;
        } else if self.xdr {
            self.word(numbers.len() as u32);
        }
        for number in numbers {
            self.number(*number);
        }
    }

    fn string(&mut self, name: &[u8], text: &[u8]) -> Result<(), Error> {
        if text.contains(&0) {
            return Err(unpackable(name, "a string holds a NUL"));
        }
        if self.xdr {
            self.xdr_string(text);
        } else {
            self.out.extend_from_slice(text);
            self.out.push(0);
        }
        Ok(())
    }

    fn xdr_string(&mut self, text: &[u8]) {
        self.word(text.len() as u32);
        self.out.extend_from_slice(text);
        self.zeros(text.len().wrapping_neg() % 4);
    }

    /// Sizes are `int32_t` everywhere.
    fn check_size(&self, before: usize, size: usize) -> Result<(), Error> {
        const LIMIT: usize = i32::MAX as usize;
        if before.saturating_add(size) > LIMIT {
            return Err(Error::Limit { what: "packed bytes", limit: LIMIT });
        }
        Ok(())
    }
}

fn unpackable(name: &[u8], what: &'static str) -> Error {
    Error::Unpackable { name: NvString::from(name), what }
}

fn lists(value: &Value) -> &[NvList] {
    match value {
        Value::NvList(list) => std::slice::from_ref(list),
        Value::NvListArray(lists) => lists,
        _ => &[],
    }
}

/// Bytes of a value in OpenZFS's in-memory form.
fn memory_size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 1,
        Value::StringArray(texts) => texts.iter().map(|t| 8 + t.len() + 1).sum(),
        Value::NvList(_) => crate::reader::NATIVE_LIST,
        Value::NvListArray(lists) => (8 + crate::reader::NATIVE_LIST) * lists.len(),
        _ => value.element_count() * value.data_type().width(),
    }
}

/// A number that can be an element of an array.
trait Number: Copy {
    /// Bytes in memory.
    const WIDTH: usize;
    /// The number's bits, zero-extended.
    fn bits(self) -> u64;
}

macro_rules! numbers {
    ($($ty:ty: $unsigned:ty),*) => {$(
        impl Number for $ty {
            const WIDTH: usize = size_of::<$ty>();
            #[inline]
            fn bits(self) -> u64 {
                u64::from(self as $unsigned)
            }
        }
    )*};
}

numbers!(u8: u8, i8: u8, u16: u16, i16: u16, u32: u32, i32: u32, u64: u64, i64: u64);

impl Number for bool {
    const WIDTH: usize = 4;
    fn bits(self) -> u64 {
        self.into()
    }
}
