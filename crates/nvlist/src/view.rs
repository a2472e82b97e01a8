//! A packed list, read in place.

use std::marker::PhantomData;

use base::Endian;

use crate::reader::{Pair, Reader, deeper};
use crate::{DataType, Encoding, Error, Limits, NvList, NvString, Uniqueness, Value};

/// A packed list, borrowed: for a lookup in a label or a stream header without building a list.
///
/// A lookup reads and checks pair after pair up to the one asked for; later pairs are not read. For more than a few lookups in a large
/// list, use [`NvList::unpack`].
///
/// If a corrupt list of unique names repeats one, the first is returned here, while `unpack` refuses the list.
#[derive(Clone, Copy)]
pub struct NvListRef<'a> {
    /// Positioned at the first pair.
    reader: Reader<'a>,
    flags: u32,
    /// Further levels of nesting allowed.
    depth: usize,
}

impl<'a> NvListRef<'a> {
    /// A view of the list at the start of `packed`; bytes after the list are ignored.
    ///
    /// # Errors
    /// The header is cut short or unknown. Pairs are checked when they are read.
    pub fn new(packed: &'a [u8]) -> Result<NvListRef<'a>, Error> {
        let mut reader = Reader::new(packed)?;
        let flags = reader.list_header()?;
        Ok(NvListRef { reader, flags, depth: Limits::default().depth })
    }

    /// The list's encoding.
    #[must_use]
    pub fn encoding(&self) -> Encoding {
        self.reader.encoding
    }

    /// The byte order of the machine that packed it.
    #[must_use]
    pub fn endian(&self) -> Endian {
        self.reader.endian
    }

    /// The list's uniqueness.
    #[must_use]
    pub fn uniqueness(&self) -> Uniqueness {
        Uniqueness::from_flags(self.flags)
    }

    /// The pairs in order. The iterator ends after an error.
    #[must_use]
    pub fn pairs(&self) -> Pairs<'a> {
        Pairs { reader: self.reader, depth: self.depth, open: None, done: false }
    }

    /// Checks everything, and returns the number of bytes that the list takes (for a nested list, the offset of its end).
    ///
    /// # Errors
    /// The first error found.
    pub fn check(&self) -> Result<usize, Error> {
        let mut reader = self.reader;
        reader.skip_pairs(self.depth)?;
        Ok(reader.offset())
    }

    /// The first pair of a name.
    ///
    /// # Errors
    /// This pair or one before it is corrupt.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Result<Option<ValueRef<'a>>, Error> {
        let name = name.as_ref();
        let found = self.pairs().find(|pair| pair.as_ref().map_or(true, |p| p.name == name));
        Ok(found.transpose()?.map(|p| p.value))
    }

    /// The number in the first pair of a name, if it is a `Uint64`.
    ///
    /// # Errors
    /// As [`NvListRef::get`].
    pub fn get_u64(&self, name: impl AsRef<[u8]>) -> Result<Option<u64>, Error> {
        Ok(match self.get(name)? {
            Some(ValueRef::Uint64(v)) => Some(v),
            _ => None,
        })
    }

    /// The text in the first pair of a name, if it is a `String` of UTF-8.
    ///
    /// # Errors
    /// As [`NvListRef::get`].
    pub fn get_str(&self, name: impl AsRef<[u8]>) -> Result<Option<&'a str>, Error> {
        Ok(match self.get(name)? {
            Some(ValueRef::String(text)) => std::str::from_utf8(text).ok(),
            _ => None,
        })
    }

    /// The list in the first pair of a name, if it is an `NvList`.
    ///
    /// # Errors
    /// As [`NvListRef::get`].
    pub fn get_nvlist(&self, name: impl AsRef<[u8]>) -> Result<Option<NvListRef<'a>>, Error> {
        Ok(match self.get(name)? {
            Some(ValueRef::NvList(list)) => Some(list),
            _ => None,
        })
    }

    /// Builds the list, with the default [`Limits`].
    ///
    /// # Errors
    /// As [`NvList::unpack`].
    pub fn to_nvlist(&self) -> Result<NvList, Error> {
        crate::decode::list(&mut self.reader.clone(), self.flags, &Limits::default())
    }
}

/// The pairs of an [`NvListRef`].
#[derive(Clone)]
pub struct Pairs<'a> {
    reader: Reader<'a>,
    depth: usize,
    /// The last pair returned, if its lists are still to be skipped.
    open: Option<Pair<'a>>,
    done: bool,
}

impl<'a> Pairs<'a> {
    fn step(&mut self) -> Result<Option<PairRef<'a>>, Error> {
        if let Some(pair) = self.open.take() {
            self.reader.skip_lists(&pair, self.depth)?;
        }
        let Some(pair) = self.reader.pair()? else {
            return Ok(None);
        };
        let value = match pair.ty {
            DataType::NvList | DataType::NvListArray => {
                self.open = Some(pair);
                let lists = ListsRef { reader: self.reader, pair, depth: self.depth };
                match (pair.ty, lists.iter().next()) {
                    (DataType::NvList, Some(list)) => ValueRef::NvList(list?),
                    _ => ValueRef::NvListArray(lists),
                }
            }
            _ => ValueRef::leaf(&pair, &self.reader),
        };
        Ok(Some(PairRef { name: pair.name, value }))
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Result<PairRef<'a>, Error>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let pair = self.step().transpose();
        self.done = !matches!(pair, Some(Ok(_)));
        pair
    }
}

/// A pair of an [`NvListRef`].
#[derive(Clone, Copy)]
pub struct PairRef<'a> {
    /// The name's bytes.
    pub name: &'a [u8],
    /// The value.
    pub value: ValueRef<'a>,
}

/// A borrowed [`Value`].
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub enum ValueRef<'a> {
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
    Hrtime(i64),
    Double(f64),
    BooleanValue(bool),
    String(&'a [u8]),
    ByteArray(&'a [u8]),
    BooleanArray(Elements<'a, bool>),
    Int8Array(Elements<'a, i8>),
    Uint8Array(Elements<'a, u8>),
    Int16Array(Elements<'a, i16>),
    Uint16Array(Elements<'a, u16>),
    Int32Array(Elements<'a, i32>),
    Uint32Array(Elements<'a, u32>),
    Int64Array(Elements<'a, i64>),
    Uint64Array(Elements<'a, u64>),
    StringArray(StringsRef<'a>),
    NvList(NvListRef<'a>),
    NvListArray(ListsRef<'a>),
}

macro_rules! leaves {
    ($(($scalar:ident, $array:ident)),*; $($only:ident),*) => {
        impl<'a> ValueRef<'a> {
            /// The value of a checked pair without lists.
            pub(crate) fn leaf(pair: &Pair<'a>, reader: &Reader<'a>) -> ValueRef<'a> {
                let order = reader.order();
                match pair.ty {
                    $(DataType::$scalar => ValueRef::$scalar(Element::read(pair.data, order)),
                    DataType::$array => ValueRef::$array(Elements::of(pair, reader)),)*
                    $(DataType::$only => ValueRef::$only(Element::read(pair.data, order)),)*
                    DataType::String => ValueRef::String(pair.data),
                    DataType::ByteArray => ValueRef::ByteArray(pair.data),
                    DataType::StringArray => ValueRef::StringArray(StringsRef {
                        data: pair.data,
                        count: pair.count,
                        encoding: reader.encoding,
                    }),
                    DataType::Boolean | DataType::NvList | DataType::NvListArray => ValueRef::Boolean,
                }
            }

            /// The value, owned.
            ///
            /// # Errors
            /// A list in it is corrupt or beyond the default [`Limits`].
            pub fn to_value(&self) -> Result<Value, Error> {
                Ok(match self {
                    $(ValueRef::$scalar(v) => Value::$scalar(*v),
                    ValueRef::$array(v) => Value::$array(v.to_vec()),)*
                    $(ValueRef::$only(v) => Value::$only(*v),)*
                    ValueRef::Boolean => Value::Boolean,
                    ValueRef::String(v) => Value::String((*v).into()),
                    ValueRef::ByteArray(v) => Value::ByteArray(v.to_vec()),
                    ValueRef::StringArray(v) => {
                        let mut strings = Vec::with_capacity(v.len());
                        strings.extend(v.iter().map(NvString::from));
                        Value::StringArray(strings)
                    }
                    ValueRef::NvList(v) => Value::NvList(Box::new(v.to_nvlist()?)),
                    ValueRef::NvListArray(v) => {
                        Value::NvListArray(v.iter().map(|list| list?.to_nvlist()).collect::<Result<_, _>>()?)
                    }
                })
            }
        }
    };
}

leaves! {
    (BooleanValue, BooleanArray), (Int8, Int8Array), (Uint8, Uint8Array), (Int16, Int16Array), (Uint16, Uint16Array),
    (Int32, Int32Array), (Uint32, Uint32Array), (Int64, Int64Array), (Uint64, Uint64Array);
    Byte, Hrtime, Double
}

/// A number as packed: in its own width or in a wider word.
pub(crate) trait Element: Copy {
    fn read(bytes: &[u8], order: Endian) -> Self;
}

/// The low bytes of a number of any width.
#[inline]
fn low<const N: usize>(bytes: &[u8], order: Endian) -> [u8; N] {
    let low = match order {
        Endian::Big => bytes.last_chunk(),
        Endian::Little => bytes.first_chunk(),
    };
    *low.unwrap_or(&[0; N])
}

macro_rules! elements {
    ($($ty:ty),*) => {$(
        impl Element for $ty {
            #[inline]
            fn read(bytes: &[u8], order: Endian) -> $ty {
                match order {
                    Endian::Big => <$ty>::from_be_bytes(low(bytes, order)),
                    Endian::Little => <$ty>::from_le_bytes(low(bytes, order)),
                }
            }
        }
    )*};
}

elements!(u8, i8, u16, i16, u32, i32, u64, i64, f64);

impl Element for bool {
    fn read(bytes: &[u8], order: Endian) -> bool {
        u8::read(bytes, order) != 0
    }
}

/// The numbers of an array, borrowed as packed.
#[derive(Clone, Copy)]
pub struct Elements<'a, T> {
    data: &'a [u8],
    stride: usize,
    order: Endian,
    of: PhantomData<T>,
}

#[allow(private_bounds)]
impl<'a, T: Element> Elements<'a, T> {
    fn of(pair: &Pair<'a>, reader: &Reader<'a>) -> Elements<'a, T> {
        Elements { data: pair.data, stride: reader.stride(pair.ty).max(1), order: reader.order(), of: PhantomData }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.data.len() / self.stride
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The numbers in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + use<'a, T> {
        let order = self.order;
        self.data.chunks_exact(self.stride).map(move |bytes| T::read(bytes, order))
    }

    /// The numbers, owned.
    #[must_use]
    pub fn to_vec(&self) -> Vec<T> {
        let mut numbers = Vec::with_capacity(self.len());
        numbers.extend(self.iter());
        numbers
    }
}

/// The strings of an array, borrowed as packed.
#[derive(Clone, Copy)]
pub struct StringsRef<'a> {
    data: &'a [u8],
    count: usize,
    encoding: Encoding,
}

impl<'a> StringsRef<'a> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The total size of the strings as packed.
    pub(crate) fn size(&self) -> usize {
        self.data.len()
    }

    /// The strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (mut rest, encoding) = (self.data, self.encoding);
        (0..self.count).map_while(move |_| {
            let (text, used) = match encoding {
                Encoding::Native => {
                    let len = rest.iter().position(|b| *b == 0)?;
                    (rest.get(..len)?, len + 1)
                }
                Encoding::Xdr => {
                    let len = u32::from_be_bytes(*rest.first_chunk()?) as usize;
                    (rest.get(4..)?.get(..len)?, 4 + len.next_multiple_of(4))
                }
            };
            rest = rest.get(used..)?;
            Some(text)
        })
    }
}

/// The lists of an array, borrowed as packed.
#[derive(Clone, Copy)]
pub struct ListsRef<'a> {
    /// Positioned after the pair's header.
    reader: Reader<'a>,
    pair: Pair<'a>,
    depth: usize,
}

impl<'a> ListsRef<'a> {
    /// The number that the pair claims; not yet checked.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pair.count
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pair.count == 0
    }

    /// The lists in order. The iterator ends after an error.
    pub fn iter(&self) -> impl Iterator<Item = Result<NvListRef<'a>, Error>> + use<'a> {
        let (mut reader, pair, depth) = (self.reader, self.pair, self.depth);
        let mut which = 0;
        std::iter::from_fn(move || {
            if which >= pair.count {
                return None;
            }
            let list = (|| {
                let depth = deeper(depth)?;
                if which > 0 {
                    reader.skip_pairs(depth)?;
                }
                let flags = reader.nested_header(&pair, which)?;
                Ok(NvListRef { reader, flags, depth })
            })();
            which = if list.is_ok() { which + 1 } else { pair.count };
            Some(list)
        })
    }
}
