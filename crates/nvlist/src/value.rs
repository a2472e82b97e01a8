//! Values and strings.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use crate::{DataType, NvList};

/// A C string: bytes that are usually UTF-8 but need not be (attribute names, file names).
///
/// The packed forms terminate strings with NUL, so a string that contains a NUL cannot be packed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NvString(Box<[u8]>);

impl NvString {
    /// The bytes, without a NUL at the end.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, if the bytes are UTF-8.
    #[must_use]
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The text, with U+FFFD for bytes that are not UTF-8.
    #[must_use]
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// The bytes, owned.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_vec()
    }
}

impl Deref for NvString {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for NvString {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for NvString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_string_lossy().fmt(f)
    }
}

impl fmt::Debug for NvString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl From<&[u8]> for NvString {
    fn from(bytes: &[u8]) -> NvString {
        NvString(bytes.into())
    }
}

impl From<Vec<u8>> for NvString {
    fn from(bytes: Vec<u8>) -> NvString {
        NvString(bytes.into())
    }
}

impl From<&str> for NvString {
    fn from(text: &str) -> NvString {
        NvString(text.as_bytes().into())
    }
}

impl From<String> for NvString {
    fn from(text: String) -> NvString {
        NvString(text.into_bytes().into())
    }
}

impl PartialEq<str> for NvString {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other.as_bytes()
    }
}

impl PartialEq<&str> for NvString {
    fn eq(&self, other: &&str) -> bool {
        *self.0 == *other.as_bytes()
    }
}

/// The value of a pair. OpenZFS: the data of an `nvpair_t`.
///
/// `From` makes the value of the obvious type; `Byte`, `Hrtime` and `ByteArray` must be constructed by name.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Value {
    /// A name without a value.
    Boolean,
    Byte(u8),
    Int8(i8),
    Uint8(u8),
    Int16(i16),
    Uint16(u16),
    Int32(i32),
    Uint32(u32),
    Int64(i64),
    Uint64(u64),
    /// Nanoseconds.
    Hrtime(i64),
    Double(f64),
    BooleanValue(bool),
    String(NvString),
    ByteArray(Vec<u8>),
    BooleanArray(Vec<bool>),
    Int8Array(Vec<i8>),
    Uint8Array(Vec<u8>),
    Int16Array(Vec<i16>),
    Uint16Array(Vec<u16>),
    Int32Array(Vec<i32>),
    Uint32Array(Vec<u32>),
    Int64Array(Vec<i64>),
    Uint64Array(Vec<u64>),
    StringArray(Vec<NvString>),
    NvList(Box<NvList>),
    NvListArray(Vec<NvList>),
}

impl Value {
    /// The type.
    #[must_use]
    pub const fn data_type(&self) -> DataType {
        match self {
            Value::Boolean => DataType::Boolean,
            Value::Byte(_) => DataType::Byte,
            Value::Int8(_) => DataType::Int8,
            Value::Uint8(_) => DataType::Uint8,
            Value::Int16(_) => DataType::Int16,
            Value::Uint16(_) => DataType::Uint16,
            Value::Int32(_) => DataType::Int32,
            Value::Uint32(_) => DataType::Uint32,
            Value::Int64(_) => DataType::Int64,
            Value::Uint64(_) => DataType::Uint64,
            Value::Hrtime(_) => DataType::Hrtime,
            Value::Double(_) => DataType::Double,
            Value::BooleanValue(_) => DataType::BooleanValue,
            Value::String(_) => DataType::String,
            Value::ByteArray(_) => DataType::ByteArray,
            Value::BooleanArray(_) => DataType::BooleanArray,
            Value::Int8Array(_) => DataType::Int8Array,
            Value::Uint8Array(_) => DataType::Uint8Array,
            Value::Int16Array(_) => DataType::Int16Array,
            Value::Uint16Array(_) => DataType::Uint16Array,
            Value::Int32Array(_) => DataType::Int32Array,
            Value::Uint32Array(_) => DataType::Uint32Array,
            Value::Int64Array(_) => DataType::Int64Array,
            Value::Uint64Array(_) => DataType::Uint64Array,
            Value::StringArray(_) => DataType::StringArray,
            Value::NvList(_) => DataType::NvList,
            Value::NvListArray(_) => DataType::NvListArray,
        }
    }

    /// The number of elements, as the packed forms count them: 0 for the bare boolean, 1 for scalars, the length of arrays.
    #[must_use]
    pub fn element_count(&self) -> usize {
        match self {
            Value::Boolean => 0,
            Value::ByteArray(v) | Value::Uint8Array(v) => v.len(),
            Value::BooleanArray(v) => v.len(),
            Value::Int8Array(v) => v.len(),
            Value::Int16Array(v) => v.len(),
            Value::Uint16Array(v) => v.len(),
            Value::Int32Array(v) => v.len(),
            Value::Uint32Array(v) => v.len(),
            Value::Int64Array(v) => v.len(),
            Value::Uint64Array(v) => v.len(),
            Value::StringArray(v) => v.len(),
            Value::NvListArray(v) => v.len(),
            _ => 1,
        }
    }

    /// The text of a string that is UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(s) => s.to_str(),
            _ => None,
        }
    }

    /// The list, if the value is one.
    #[must_use]
    pub fn as_nvlist(&self) -> Option<&NvList> {
        match self {
            Value::NvList(list) => Some(list),
            _ => None,
        }
    }

    /// Any unsigned or non-negative number, widened.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::Uint64(v) => Some(v),
            Value::Byte(v) | Value::Uint8(v) => Some(v.into()),
            Value::Uint16(v) => Some(v.into()),
            Value::Uint32(v) => Some(v.into()),
            Value::Int8(v) => v.try_into().ok(),
            Value::Int16(v) => v.try_into().ok(),
            Value::Int32(v) => v.try_into().ok(),
            Value::Int64(v) | Value::Hrtime(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// Heap bytes that the value owns.
    pub(crate) fn heap_size(&self) -> usize {
        match self {
            Value::String(s) => s.len(),
            Value::ByteArray(v) | Value::Uint8Array(v) => v.capacity(),
            Value::BooleanArray(v) => v.capacity(),
            Value::Int8Array(v) => v.capacity(),
            Value::Int16Array(v) => v.capacity() * 2,
            Value::Uint16Array(v) => v.capacity() * 2,
            Value::Int32Array(v) => v.capacity() * 4,
            Value::Uint32Array(v) => v.capacity() * 4,
            Value::Int64Array(v) => v.capacity() * 8,
            Value::Uint64Array(v) => v.capacity() * 8,
            Value::StringArray(v) => v.capacity() * size_of::<NvString>() + v.iter().map(|s| s.len()).sum::<usize>(),
            Value::NvList(list) => size_of::<NvList>() + list.heap_size(),
            Value::NvListArray(v) => {
                v.capacity() * size_of::<NvList>() + v.iter().map(NvList::heap_size).sum::<usize>()
            }
            _ => 0,
        }
    }
}

macro_rules! from {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Value {
                Value::$variant(value.into())
            }
        }
    )*};
}

from! {
    bool => BooleanValue,
    i8 => Int8,
    u8 => Uint8,
    i16 => Int16,
    u16 => Uint16,
    i32 => Int32,
    u32 => Uint32,
    i64 => Int64,
    u64 => Uint64,
    f64 => Double,
    &str => String,
    String => String,
    NvString => String,
    Vec<bool> => BooleanArray,
    Vec<i8> => Int8Array,
    Vec<i16> => Int16Array,
    Vec<u16> => Uint16Array,
    Vec<i32> => Int32Array,
    Vec<u32> => Uint32Array,
    Vec<i64> => Int64Array,
    Vec<u64> => Uint64Array,
    &[u64] => Uint64Array,
    Vec<NvString> => StringArray,
    NvList => NvList,
    Box<NvList> => NvList,
    Vec<NvList> => NvListArray,
}

/// As OpenZFS's ioctls answer with error numbers: an `Int32`.
impl From<base::Errno> for Value {
    fn from(errno: base::Errno) -> Value {
        Value::Int32(errno.raw())
    }
}

impl From<()> for Value {
    fn from((): ()) -> Value {
        Value::Boolean
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Value {
        Value::String(text.as_str().into())
    }
}

impl From<Vec<String>> for Value {
    fn from(texts: Vec<String>) -> Value {
        Value::StringArray(texts.into_iter().map(NvString::from).collect())
    }
}

impl From<Vec<&str>> for Value {
    fn from(texts: Vec<&str>) -> Value {
        Value::StringArray(texts.into_iter().map(NvString::from).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_small() {
        assert_eq!(size_of::<Value>(), 32);
        assert_eq!(size_of::<Option<Value>>(), 32);
    }
}
