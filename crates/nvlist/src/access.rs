//! Getters by type.

use crate::{DataType, Error, NvList, NvString, Value};

impl NvList {
    fn wrong(&self, name: &[u8], expected: DataType) -> Error {
        let name_text = NvString::from(name);
        match self.get(name) {
            Some(found) => Error::WrongType { name: name_text, expected, found: found.data_type() },
            None => Error::Missing { name: name_text },
        }
    }

    /// The value of a `BooleanValue`, or true if there is a bare `Boolean` of the name.
    #[must_use]
    pub fn get_bool(&self, name: impl AsRef<[u8]>) -> Option<bool> {
        let name = name.as_ref();
        match self.get(name)? {
            Value::Boolean => Some(true),
            Value::BooleanValue(v) => Some(*v),
            // a list that is unique by name and type may hold both
            _ => {
                let bare = self.get_typed(name, DataType::Boolean).map(|_| true);
                bare.or_else(|| self.get_boolean_value(name))
            }
        }
    }

    /// The text of a `String` that is UTF-8.
    #[must_use]
    pub fn get_str(&self, name: impl AsRef<[u8]>) -> Option<&str> {
        self.get_string(name)?.to_str()
    }

    /// Like [`NvList::get_str`], but an error instead of `None`.
    ///
    /// # Errors
    /// There is no pair of this name, or none of this type, or it is not UTF-8.
    pub fn require_str(&self, name: impl AsRef<[u8]>) -> Result<&str, Error> {
        let name = name.as_ref();
        let text = self.require_string(name)?.to_str();
        text.ok_or_else(|| Error::NotText { name: name.into() })
    }

    /// The list in an `NvList`, mutable.
    pub fn get_nvlist_mut(&mut self, name: impl AsRef<[u8]>) -> Option<&mut NvList> {
        match self.get_mut(name)? {
            Value::NvList(list) => Some(list),
            _ => None,
        }
    }

    /// The lists in an `NvListArray`, mutable.
    pub fn get_nvlist_array_mut(&mut self, name: impl AsRef<[u8]>) -> Option<&mut Vec<NvList>> {
        match self.get_mut(name)? {
            Value::NvListArray(lists) => Some(lists),
            _ => None,
        }
    }
}

macro_rules! getters {
    ($($get:ident $require:ident $variant:ident -> $out:ty, |$v:ident| $body:expr;)*) => {
        impl NvList {$(
            #[doc = concat!("The value of the first `", stringify!($variant), "` of this name.")]
            #[must_use]
            pub fn $get(&self, name: impl AsRef<[u8]>) -> Option<$out> {
                match self.get_typed(name, DataType::$variant)? {
                    Value::$variant($v) => Some($body),
                    _ => None,
                }
            }

            #[doc = concat!("Like [`NvList::", stringify!($get), "`], but an error instead of `None`.")]
            ///
            /// # Errors
            /// There is no pair of this name, or none of this type.
            pub fn $require(&self, name: impl AsRef<[u8]>) -> Result<$out, Error> {
                let name = name.as_ref();
                self.$get(name).ok_or_else(|| self.wrong(name, DataType::$variant))
            }
        )*}
    };
}

getters! {
    get_byte require_byte Byte -> u8, |v| *v;
    get_i8 require_i8 Int8 -> i8, |v| *v;
    get_u8 require_u8 Uint8 -> u8, |v| *v;
    get_i16 require_i16 Int16 -> i16, |v| *v;
    get_u16 require_u16 Uint16 -> u16, |v| *v;
    get_i32 require_i32 Int32 -> i32, |v| *v;
    get_u32 require_u32 Uint32 -> u32, |v| *v;
    get_i64 require_i64 Int64 -> i64, |v| *v;
    get_u64 require_u64 Uint64 -> u64, |v| *v;
    get_hrtime require_hrtime Hrtime -> i64, |v| *v;
    get_f64 require_f64 Double -> f64, |v| *v;
    get_boolean_value require_boolean_value BooleanValue -> bool, |v| *v;
    get_string require_string String -> &NvString, |v| v;
    get_byte_array require_byte_array ByteArray -> &[u8], |v| v;
    get_bool_array require_bool_array BooleanArray -> &[bool], |v| v;
    get_i8_array require_i8_array Int8Array -> &[i8], |v| v;
    get_u8_array require_u8_array Uint8Array -> &[u8], |v| v;
    get_i16_array require_i16_array Int16Array -> &[i16], |v| v;
    get_u16_array require_u16_array Uint16Array -> &[u16], |v| v;
    get_i32_array require_i32_array Int32Array -> &[i32], |v| v;
    get_u32_array require_u32_array Uint32Array -> &[u32], |v| v;
    get_i64_array require_i64_array Int64Array -> &[i64], |v| v;
    get_u64_array require_u64_array Uint64Array -> &[u64], |v| v;
    get_string_array require_string_array StringArray -> &[NvString], |v| v;
    get_nvlist require_nvlist NvList -> &NvList, |v| v;
    get_nvlist_array require_nvlist_array NvListArray -> &[NvList], |v| v;
}
