//! The small enums of the format.

use std::fmt;

use crate::Error;

/// The type of a pair's value. OpenZFS: `data_type_t`; the numbers are those on disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum DataType {
    Boolean = 1,
    Byte = 2,
    Int16 = 3,
    Uint16 = 4,
    Int32 = 5,
    Uint32 = 6,
    Int64 = 7,
    Uint64 = 8,
    String = 9,
    ByteArray = 10,
    Int16Array = 11,
    Uint16Array = 12,
    Int32Array = 13,
    Uint32Array = 14,
    Int64Array = 15,
    Uint64Array = 16,
    StringArray = 17,
    Hrtime = 18,
    NvList = 19,
    NvListArray = 20,
    BooleanValue = 21,
    Int8 = 22,
    Uint8 = 23,
    BooleanArray = 24,
    Int8Array = 25,
    Uint8Array = 26,
    Double = 27,
}

impl DataType {
    /// All types, by number.
    pub const ALL: [DataType; 27] = [
        DataType::Boolean,
        DataType::Byte,
        DataType::Int16,
        DataType::Uint16,
        DataType::Int32,
        DataType::Uint32,
        DataType::Int64,
        DataType::Uint64,
        DataType::String,
        DataType::ByteArray,
        DataType::Int16Array,
        DataType::Uint16Array,
        DataType::Int32Array,
        DataType::Uint32Array,
        DataType::Int64Array,
        DataType::Uint64Array,
        DataType::StringArray,
        DataType::Hrtime,
        DataType::NvList,
        DataType::NvListArray,
        DataType::BooleanValue,
        DataType::Int8,
        DataType::Uint8,
        DataType::BooleanArray,
        DataType::Int8Array,
        DataType::Uint8Array,
        DataType::Double,
    ];

    /// The type with this number on disk, if there is one.
    #[must_use]
    pub fn from_number(number: i32) -> Option<DataType> {
        let at = usize::try_from(number).ok()?.checked_sub(1)?;
        DataType::ALL.get(at).copied()
    }

    /// OpenZFS's name of the type, such as `DATA_TYPE_UINT64`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DataType::Boolean => "DATA_TYPE_BOOLEAN",
            DataType::Byte => "DATA_TYPE_BYTE",
            DataType::Int16 => "DATA_TYPE_INT16",
            DataType::Uint16 => "DATA_TYPE_UINT16",
            DataType::Int32 => "DATA_TYPE_INT32",
            DataType::Uint32 => "DATA_TYPE_UINT32",
            DataType::Int64 => "DATA_TYPE_INT64",
            DataType::Uint64 => "DATA_TYPE_UINT64",
            DataType::String => "DATA_TYPE_STRING",
            DataType::ByteArray => "DATA_TYPE_BYTE_ARRAY",
            DataType::Int16Array => "DATA_TYPE_INT16_ARRAY",
            DataType::Uint16Array => "DATA_TYPE_UINT16_ARRAY",
            DataType::Int32Array => "DATA_TYPE_INT32_ARRAY",
            DataType::Uint32Array => "DATA_TYPE_UINT32_ARRAY",
            DataType::Int64Array => "DATA_TYPE_INT64_ARRAY",
            DataType::Uint64Array => "DATA_TYPE_UINT64_ARRAY",
            DataType::StringArray => "DATA_TYPE_STRING_ARRAY",
            DataType::Hrtime => "DATA_TYPE_HRTIME",
            DataType::NvList => "DATA_TYPE_NVLIST",
            DataType::NvListArray => "DATA_TYPE_NVLIST_ARRAY",
            DataType::BooleanValue => "DATA_TYPE_BOOLEAN_VALUE",
            DataType::Int8 => "DATA_TYPE_INT8",
            DataType::Uint8 => "DATA_TYPE_UINT8",
            DataType::BooleanArray => "DATA_TYPE_BOOLEAN_ARRAY",
            DataType::Int8Array => "DATA_TYPE_INT8_ARRAY",
            DataType::Uint8Array => "DATA_TYPE_UINT8_ARRAY",
            DataType::Double => "DATA_TYPE_DOUBLE",
        }
    }

    /// True if the type holds any number of elements.
    #[must_use]
    pub const fn is_array(self) -> bool {
        matches!(
            self,
            DataType::ByteArray
                | DataType::Int16Array
                | DataType::Uint16Array
                | DataType::Int32Array
                | DataType::Uint32Array
                | DataType::Int64Array
                | DataType::Uint64Array
                | DataType::StringArray
                | DataType::NvListArray
                | DataType::BooleanArray
                | DataType::Int8Array
                | DataType::Uint8Array
        )
    }

    /// Bytes of one number of the type in memory; 0 for strings, lists and the bare boolean.
    pub(crate) const fn width(self) -> usize {
        match self {
            DataType::Boolean | DataType::String | DataType::StringArray | DataType::NvList | DataType::NvListArray => {
                0
            }
            DataType::Byte
            | DataType::ByteArray
            | DataType::Int8
            | DataType::Int8Array
            | DataType::Uint8
            | DataType::Uint8Array => 1,
            DataType::Int16 | DataType::Int16Array | DataType::Uint16 | DataType::Uint16Array => 2,
            DataType::Int32
            | DataType::Int32Array
            | DataType::Uint32
            | DataType::Uint32Array
            | DataType::BooleanValue
            | DataType::BooleanArray => 4,
            DataType::Int64
            | DataType::Int64Array
            | DataType::Uint64
            | DataType::Uint64Array
            | DataType::Hrtime
            | DataType::Double => 8,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The behaviour of a list when a name is added that it already has. OpenZFS: the flags of `nvlist_alloc()`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Uniqueness {
    /// Both pairs are kept (no flag).
    None,
    /// The new pair replaces all pairs of that name and is appended at the end (`NV_UNIQUE_NAME`).
    #[default]
    Name,
    /// The new pair replaces the one of that name and type and is appended at the end (`NV_UNIQUE_NAME_TYPE`).
    NameAndType,
}

impl Uniqueness {
    /// The flag word on disk.
    #[must_use]
    pub const fn flags(self) -> u32 {
        match self {
            Uniqueness::None => 0,
            Uniqueness::Name => 1,
            Uniqueness::NameAndType => 2,
        }
    }

    /// The meaning of a flag word; bits other than the two known ones are ignored.
    #[must_use]
    pub const fn from_flags(flags: u32) -> Uniqueness {
        if flags & 1 != 0 {
            Uniqueness::Name
        } else if flags & 2 != 0 {
            Uniqueness::NameAndType
        } else {
            Uniqueness::None
        }
    }
}

/// A packed form. OpenZFS: `NV_ENCODE_NATIVE`, `NV_ENCODE_XDR`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Encoding {
    /// The image of the C structures, in the writer's byte order: ioctl buffers, history records, old streams.
    Native = 0,
    /// XDR, always big-endian: labels, pool configuration, streams.
    Xdr = 1,
}

impl Encoding {
    /// The encoding and the writer's byte order, from the 4-byte header of a packed list.
    ///
    /// # Errors
    /// The bytes are fewer than four, or one of the two is unknown.
    pub fn of(packed: &[u8]) -> Result<(Encoding, base::Endian), Error> {
        let Some(&[encoding, order, _, _]) = packed.first_chunk::<4>() else {
            return Err(Error::Truncated { offset: packed.len(), needed: 4 - packed.len() });
        };
        let encoding = match encoding {
            0 => Encoding::Native,
            1 => Encoding::Xdr,
            other => return Err(Error::Encoding(other)),
        };
        let order = match order {
            0 => base::Endian::Big,
            1 => base::Endian::Little,
            other => return Err(Error::ByteOrder(other)),
        };
        Ok((encoding, order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_the_types_are_their_places() {
        for (at, ty) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(ty as usize, at + 1);
            assert_eq!(DataType::from_number(ty as i32), Some(ty));
        }
        assert_eq!(DataType::from_number(0), None);
        assert_eq!(DataType::from_number(28), None);
        assert_eq!(DataType::from_number(-1), None);
    }
}
