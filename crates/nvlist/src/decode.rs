//! Building a list from its packed form, within limits.

use crate::names::long_size;
use crate::reader::{Pair, Reader, deeper};
use crate::view::ValueRef;
use crate::{DataType, Error, NvList, NvString, Value};

/// Bounds on a decoded list. A packed list that exceeds one is an error, found before the memory is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Levels of lists nested in the outermost. OpenZFS: 100 in user space, 20 in the kernel.
    pub depth: usize,
    /// Pairs, including those of nested lists.
    pub pairs: usize,
    /// Heap bytes of the decoded list, as [`NvList::heap_size`] counts them (the decoder estimates up to twice as much, for growth).
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { depth: 100, pairs: 8 << 20, bytes: 2 << 30 }
    }
}

impl NvList {
    /// Decodes the list at the start of `packed`, in either encoding and byte order, within the default [`Limits`]. OpenZFS:
    /// `nvlist_unpack()`.
    ///
    /// # Errors
    /// The bytes are corrupt (the error says where) or exceed a limit. A list flagged as unique by name that repeats a name is an error.
    pub fn unpack(packed: &[u8]) -> Result<NvList, Error> {
        Ok(NvList::unpack_with(packed, &Limits::default())?.0)
    }

    /// Like [`NvList::unpack`], within `limits`; also returns the number of bytes that the list took.
    ///
    /// # Errors
    /// As [`NvList::unpack`].
    pub fn unpack_with(packed: &[u8], limits: &Limits) -> Result<(NvList, usize), Error> {
        let mut reader = Reader::new(packed)?;
        let flags = reader.list_header()?;
        let list = list(&mut reader, flags, limits)?;
        Ok((list, reader.offset()))
    }
}

/// Decodes the list whose first pair is next in `reader`.
pub(crate) fn list(reader: &mut Reader<'_>, flags: u32, limits: &Limits) -> Result<NvList, Error> {
    let mut decoder = Decoder { reader, limits, pairs: 0, bytes: 0 };
    decoder.list(flags, limits.depth)
}

struct Decoder<'r, 'a, 'l> {
    reader: &'r mut Reader<'a>,
    limits: &'l Limits,
    pairs: usize,
    bytes: usize,
}

/// Bytes charged for a list's first allocations.
const LIST_COST: usize = 512;

/// Upper bound on the memory of a pair without its value: a slot and a name in vectors that double, and its share of the index.
fn pair_cost(name: &[u8]) -> usize {
    2 * (96 + long_size(name.len())) + 40
}

impl<'a> Decoder<'_, 'a, '_> {
    fn list(&mut self, flags: u32, depth: usize) -> Result<NvList, Error> {
        self.charge(LIST_COST)?;
        let mut list = NvList::with_raw_flags(flags);
        while let Some(pair) = self.reader.pair()? {
            self.pairs += 1;
            if self.pairs > self.limits.pairs {
                return Err(Error::Limit { what: "pairs", limit: self.limits.pairs });
            }
            self.charge(pair_cost(pair.name))?;
            let value = self.value(&pair, depth)?;
            if !list.insert_new(pair.name, value) {
                return Err(Error::Duplicate { offset: pair.at, name: NvString::from(pair.name) });
            }
        }
        Ok(list)
    }

    fn charge(&mut self, bytes: usize) -> Result<(), Error> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.limits.bytes {
            return Err(Error::Limit { what: "bytes of memory", limit: self.limits.bytes });
        }
        Ok(())
    }

    fn value(&mut self, pair: &Pair<'a>, depth: usize) -> Result<Value, Error> {
        match pair.ty {
            DataType::NvList => {
                self.charge(size_of::<NvList>())?;
                let list = self.nested(pair, 0, depth)?;
                self.reader.close(pair)?;
                Ok(Value::NvList(Box::new(list)))
            }
            DataType::NvListArray => self.lists(pair, depth),
            _ => {
                let value = ValueRef::leaf(pair, self.reader);
                let heap = match &value {
                    ValueRef::String(text) => text.len(),
                    ValueRef::StringArray(strings) => strings.size() + strings.len() * size_of::<NvString>(),
                    _ if pair.ty.is_array() => pair.count * pair.ty.width(),
                    _ => 0,
                };
                self.charge(heap)?;
                value.to_value()
            }
        }
    }

    fn nested(&mut self, pair: &Pair<'a>, which: usize, depth: usize) -> Result<NvList, Error> {
        let depth =
            deeper(depth).map_err(|_| Error::Limit { what: "levels of nested lists", limit: self.limits.depth })?;
        let flags = self.reader.nested_header(pair, which)?;
        self.list(flags, depth)
    }

    fn lists(&mut self, pair: &Pair<'a>, depth: usize) -> Result<Value, Error> {
        // an empty list takes at least 4 bytes, so at least this many bytes must follow
        let needed = pair.count.saturating_mul(4);
        if needed > self.reader.left() {
            return Err(Error::Truncated {
                offset: self.reader.offset() + self.reader.left(),
                needed: needed - self.reader.left(),
            });
        }
        self.charge(pair.count * size_of::<NvList>())?;
        let mut lists = Vec::with_capacity(pair.count);
        for which in 0..pair.count {
            lists.push(self.nested(pair, which, depth)?);
        }
        self.reader.close(pair)?;
        Ok(Value::NvListArray(lists))
    }
}
