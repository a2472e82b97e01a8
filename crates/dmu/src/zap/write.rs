//! Changes to ZAPs (OpenZFS: `zap_create`, `zap_add`, `zap_update`, `zap_remove`, `zap_increment` and their kin).

use std::sync::Arc;

use base::ObjectId;
use ondisk::zap::{FatHeader, MZAP_NAME_LEN};
use ondisk::zap_edit::{self, LeafKey, LeafValue};
use ondisk::{DNODE_SHIFT, ObjectType};

use super::fat_write::{Mode, Target};
use super::micro::Micro;
use super::norm::normalise;
use super::value::ZapValue;
use super::{Body, Zap, hash, live};
use crate::{Error, NewObject, Objset, Tx};

/// Longest name, its NUL included (OpenZFS: `ZAP_MAXNAMELEN_NEW`); only directories may have names longer than 256.
const MAX_NAME: usize = 1024;
const MAX_NAME_OLD: usize = 256;
/// Longest value in bytes (OpenZFS: `ZAP_MAXVALUELEN`).
const MAX_VALUE: usize = 8 << 10;

/// The parameters of a new ZAP (OpenZFS: the arguments of `zap_create_flags_dnsize` and `zap_create_norm_dnsize`). Zeros
/// take the defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewZap {
    /// Type of the object.
    pub object_type: ObjectType,
    /// The object's number; `None` to have one chosen.
    pub id: Option<ObjectId>,
    /// The normalisation of names (U8_TEXTPREP flags).
    pub normflags: u64,
    /// The `FLAG_` constants of [`FatHeader`]; with any of them the ZAP is fat from the start.
    pub flags: u64,
    /// log2 of the block size, for a ZAP with flags; 0 for 14.
    pub block_shift: u8,
    /// log2 of the size of indirect blocks; 0 for the default.
    pub indirect_shift: u8,
    /// Type of the bonus buffer.
    pub bonus_type: ObjectType,
    /// Bytes of the bonus buffer.
    pub bonus_len: usize,
    /// Slots of the dnode; 0 for 1.
    pub slots: usize,
    /// The salt of the hashes; 0 to have one generated.
    pub salt: u64,
}

/// Mixes words (the finisher of splitmix64).
fn mix(words: [u64; 3]) -> u64 {
    words.into_iter().fold(0x5a75_7365, |sum, word| {
        let z = (sum ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// A key with the integers that are stored for it.
struct Key {
    hash: u64,
    bytes: Vec<u8>,
    numints: u16,
}

impl Key {
    fn stored(&self) -> LeafKey<'_> {
        LeafKey { hash: self.hash, bytes: &self.bytes, numints: self.numints }
    }

    fn of_name(header: &FatHeader, name: &[u8]) -> Key {
        let hash = hash::of_name(header.salt, &normalise(name, header.normflags), header.hash_bits());
        let mut bytes = Vec::with_capacity(name.len() + 1);
        bytes.extend_from_slice(name);
        bytes.push(0);
        Key { hash, numints: bytes.len() as u16, bytes }
    }

    fn of_words(header: &FatHeader, key: &[u64]) -> Key {
        let hash = if header.flags & FatHeader::FLAG_PRE_HASHED_KEY != 0 {
            hash::keep(key.first().copied().unwrap_or(0), header.hash_bits())
        } else {
            hash::of_key(header.salt, key, header.hash_bits())
        };
        let bytes: Vec<u8> = key.iter().flat_map(|word| word.to_be_bytes()).collect();
        Key { hash, numints: key.len() as u16, bytes }
    }
}

impl ZapValue {
    /// A value of integers of `int_size` bytes: 1, 2, 4 or 8. Higher bits of an integer are cut off.
    #[must_use]
    pub fn from_ints(int_size: u8, ints: &[u64]) -> ZapValue {
        let skip = 8usize.saturating_sub(int_size.into());
        let bytes = ints.iter().flat_map(|int| int.to_be_bytes().into_iter().skip(skip)).collect();
        ZapValue { int_size, bytes }
    }

    /// A value of bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> ZapValue {
        ZapValue { int_size: 1, bytes: bytes.to_vec() }
    }

    /// A value of text, as OpenZFS stores properties: bytes with a NUL.
    #[must_use]
    pub fn from_text(text: &str) -> ZapValue {
        ZapValue { int_size: 1, bytes: text.bytes().chain([0]).collect() }
    }

    fn one_word(&self) -> Option<u64> {
        (self.int_size == 8 && self.bytes.len() == 8).then(|| self.first())
    }
}

/// The name of an entry whose key is a number (OpenZFS: `zap_add_int` and its kin).
fn int_name(key: u64) -> String {
    format!("{key:x}")
}

impl Zap {
    /// Creates a ZAP in a new object.
    ///
    /// # Errors
    /// When the object cannot be created.
    pub fn create(tx: &Tx, objset: &Arc<Objset>, object_type: ObjectType) -> Result<Zap, Error> {
        Zap::create_with(tx, objset, &NewZap { object_type, ..NewZap::default() })
    }

    /// Creates a ZAP with the parameters `new`.
    ///
    /// # Errors
    /// When the object cannot be created, or its number is taken.
    pub fn create_with(tx: &Tx, objset: &Arc<Objset>, new: &NewZap) -> Result<Zap, Error> {
        let block_shift = match (new.flags, new.block_shift) {
            (0, _) => DNODE_SHIFT as u8,
            (_, 0) => 14,
            (_, shift) => shift.clamp(10, 20),
        };
        let what = NewObject {
            object_type: new.object_type,
            block_size: 1 << block_shift,
            indirect_shift: new.indirect_shift,
            bonus_type: new.bonus_type,
            bonus_len: new.bonus_len,
            slots: new.slots,
            ..NewObject::default()
        };
        let object = match new.id {
            Some(id) => objset.claim_object(tx, id, &what)?,
            None => objset.alloc_object(tx, &what)?,
        };
        let salt = match new.salt {
            0 => mix([objset.id().0, object.id().0, tx.txg().0]),
            salt => salt,
        } | 1;
        let mut block = vec![0; 1 << block_shift];
        let head = zap_edit::micro_header(salt, new.normflags);
        block.iter_mut().zip(head).for_each(|(place, byte)| *place = byte);
        let to = Target { object: &object, tx };
        let micro = Micro::fresh(block, salt, new.normflags);
        let body = match new.flags {
            0 => to.write(0, micro.block.to_vec()).map(|()| Body::Micro(micro)),
            flags => micro.upgrade(&to, flags).map(Body::Fat),
        };
        match body {
            Ok(body) => Ok(live::made(object, body)),
            Err(error) => Err(unmade(tx, &object, error)),
        }
    }

    /// Creates a ZAP and enters its number under `name` in `parent` (OpenZFS: `zap_create_link`).
    ///
    /// # Errors
    /// As [`Zap::create`] and [`Zap::add`].
    pub fn create_link(tx: &Tx, parent: &Zap, name: &str, object_type: ObjectType) -> Result<Zap, Error> {
        let zap = Zap::create(tx, parent.object().objset(), object_type)?;
        match parent.add_id(tx, name, zap.object().id()) {
            Ok(()) => Ok(zap),
            Err(error) => Err(unmade(tx, zap.object(), error)),
        }
    }

    /// Turns an object that has no contents into a ZAP, whatever its type: a DSL directory or dataset becomes one when it
    /// is extended (OpenZFS: `mzap_create_impl`, as `dsl_dir_zapify` and `dmu_object_zapify` call it). The caller sets
    /// the type.
    ///
    /// # Errors
    /// When the object set is open for reading only.
    pub fn create_in(tx: &Tx, object: &crate::Object, normflags: u64) -> Result<Zap, Error> {
        let salt = mix([object.objset().id().0, object.id().0, tx.txg().0]) | 1;
        let size = usize::try_from(object.block_size()).unwrap_or(0).max(1 << DNODE_SHIFT);
        let mut block = vec![0; size];
        let head = zap_edit::micro_header(salt, normflags);
        block.iter_mut().zip(head).for_each(|(place, byte)| *place = byte);
        Target { object, tx }.write(0, block.clone())?;
        Ok(live::made(object.clone(), Body::Micro(Micro::fresh(block, salt, normflags))))
    }

    fn change<R>(&self, tx: &Tx, work: impl FnOnce(&Target<'_>, &mut Body) -> Result<R, Error>) -> Result<R, Error> {
        let object = self.object();
        if !self.0.live {
            return Err(Error::ReadOnly { objset: object.objset().id(), object: object.id() });
        }
        let to = Target { object, tx };
        let mut body = self.0.cell().write();
        let done = work(&to, &mut body);
        if let Body::Fat(fat) = &mut *body {
            fat.flush(&to).inspect_err(|error| tx.break_txg(error))?;
        }
        done
    }

    fn put_name(
        &self,
        to: &Target<'_>,
        body: &mut Body,
        name: &[u8],
        value: &ZapValue,
        mode: Mode,
    ) -> Result<(), Error> {
        let longest =
            if to.object.phys().object_type == ObjectType::DIRECTORY_CONTENTS { MAX_NAME } else { MAX_NAME_OLD };
        if name.is_empty() || name.len() >= longest || name.contains(&0) {
            return Err(to.refused("length of a ZAP entry's name", name.len() as u64));
        }
        check_value(to, value)?;
        if let Body::Micro(micro) = body {
            let fits = value.one_word().filter(|_| name.len() < MZAP_NAME_LEN);
            if let Some(word) = fits
                && micro.put(to, name, word, mode)?
            {
                return Ok(());
            }
            *body = Body::Fat(micro.upgrade(to, 0)?);
        }
        let Body::Fat(fat) = body else {
            let (objset, object) = (to.object.objset().id(), to.object.id());
            return Err(Error::Bug { objset, object, what: "a ZAP that was made fat is not" });
        };
        if fat.word_keys() {
            return Err(self.key_kind("has numbers for keys"));
        }
        let key = Key::of_name(&fat.header, name);
        fat.put(to, &key.stored(), None, &stored(value), mode)
    }

    fn put_words(
        &self,
        to: &Target<'_>,
        body: &mut Body,
        key: &[u64],
        value: &ZapValue,
        mode: Mode,
    ) -> Result<(), Error> {
        check_value(to, value)?;
        if key.is_empty() || key.len() * 8 > MAX_NAME_OLD {
            return Err(to.refused("length of a ZAP entry's key", key.len() as u64));
        }
        match body {
            Body::Fat(fat) if fat.word_keys() => {
                let key = Key::of_words(&fat.header, key);
                fat.put(to, &key.stored(), None, &stored(value), mode)
            }
            _ => Err(self.key_kind("has names for keys")),
        }
    }

    fn remove_name(&self, to: &Target<'_>, body: &mut Body, name: &[u8]) -> Result<bool, Error> {
        match body {
            Body::Micro(micro) => micro.remove(to, name),
            Body::Fat(fat) if fat.word_keys() => Err(self.key_kind("has numbers for keys")),
            Body::Fat(fat) => {
                let key = Key::of_name(&fat.header, name);
                fat.remove(to, &key.stored())
            }
        }
    }

    /// Adds an entry: `ints` are integers of `int_size` bytes.
    ///
    /// # Errors
    /// [`Error::KeyExists`]; [`Error::Refused`] for a name or value that is too long; [`Error::KeyKind`] if keys are numbers.
    pub fn add(&self, tx: &Tx, name: impl AsRef<[u8]>, int_size: u8, ints: &[u64]) -> Result<(), Error> {
        self.add_value(tx, name, &ZapValue::from_ints(int_size, ints))
    }

    /// Adds an entry of one 64-bit integer.
    ///
    /// # Errors
    /// As [`Zap::add`].
    pub fn add_u64(&self, tx: &Tx, name: impl AsRef<[u8]>, value: u64) -> Result<(), Error> {
        self.add_value(tx, name, &ZapValue::from_u64(value))
    }

    /// Adds an entry that names an object.
    ///
    /// # Errors
    /// As [`Zap::add`].
    pub fn add_id(&self, tx: &Tx, name: impl AsRef<[u8]>, id: ObjectId) -> Result<(), Error> {
        self.add_u64(tx, name, id.0)
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// As [`Zap::add`].
    pub fn add_value(&self, tx: &Tx, name: impl AsRef<[u8]>, value: &ZapValue) -> Result<(), Error> {
        self.change(tx, |to, body| self.put_name(to, body, name.as_ref(), value, Mode::Add))
    }

    /// Adds many entries, in the order of their hashes, so that each leaf is changed once; entries added before an error
    /// remain.
    ///
    /// # Errors
    /// As [`Zap::add`].
    pub fn add_many<N: AsRef<[u8]>>(&self, tx: &Tx, entries: &[(N, ZapValue)]) -> Result<(), Error> {
        let (salt, normflags) = (self.salt(), self.normflags());
        let mut order: Vec<(u64, usize)> = entries
            .iter()
            .enumerate()
            .map(|(n, (name, _))| (hash::of_name(salt, &normalise(name.as_ref(), normflags), 48), n))
            .collect();
        order.sort_unstable();
        self.change(tx, |to, body| {
            let entries = order.iter().filter_map(|(_, n)| entries.get(*n));
            for (name, value) in entries {
                self.put_name(to, body, name.as_ref(), value, Mode::Add)?;
            }
            Ok(())
        })
    }

    /// Sets an entry, whether or not it exists.
    ///
    /// # Errors
    /// As [`Zap::add`], but for [`Error::KeyExists`].
    pub fn update(&self, tx: &Tx, name: impl AsRef<[u8]>, int_size: u8, ints: &[u64]) -> Result<(), Error> {
        self.update_value(tx, name, &ZapValue::from_ints(int_size, ints))
    }

    /// Sets an entry to one 64-bit integer.
    ///
    /// # Errors
    /// As [`Zap::update`].
    pub fn update_u64(&self, tx: &Tx, name: impl AsRef<[u8]>, value: u64) -> Result<(), Error> {
        self.update_value(tx, name, &ZapValue::from_u64(value))
    }

    /// Sets an entry to the number of an object.
    ///
    /// # Errors
    /// As [`Zap::update`].
    pub fn update_id(&self, tx: &Tx, name: impl AsRef<[u8]>, id: ObjectId) -> Result<(), Error> {
        self.update_u64(tx, name, id.0)
    }

    /// Sets an entry.
    ///
    /// # Errors
    /// As [`Zap::update`].
    pub fn update_value(&self, tx: &Tx, name: impl AsRef<[u8]>, value: &ZapValue) -> Result<(), Error> {
        self.change(tx, |to, body| self.put_name(to, body, name.as_ref(), value, Mode::Update))
    }

    /// Removes the entry of exactly this name; `false` if there is none.
    ///
    /// # Errors
    /// When a block cannot be read or is broken; [`Error::KeyKind`] if keys are numbers.
    pub fn remove(&self, tx: &Tx, name: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.change(tx, |to, body| self.remove_name(to, body, name.as_ref()))
    }

    /// Adds to an entry's integer, which counts as 0 if the entry does not exist; an entry that becomes 0 is removed.
    /// Returns the new value. Wraps around, as in OpenZFS.
    ///
    /// # Errors
    /// As [`Zap::update`].
    pub fn increment(&self, tx: &Tx, name: impl AsRef<[u8]>, delta: i64) -> Result<u64, Error> {
        let name = name.as_ref();
        self.change(tx, |to, body| {
            let old = match body {
                Body::Micro(micro) => micro.exact(name).map_or(0, |entry| entry.value),
                Body::Fat(fat) if fat.word_keys() => return Err(self.key_kind("has numbers for keys")),
                Body::Fat(fat) => {
                    let key = Key::of_name(&fat.header, name);
                    let is = |leaf: &ondisk::zap::Leaf<'_>, entry: &ondisk::zap::LeafEntry| {
                        entry.name_numints == key.numints && leaf.array_is(entry.name_chunk, &key.bytes)
                    };
                    match fat.find(to.object, key.hash, is)? {
                        None => 0,
                        Some(value) => value.one_word().ok_or_else(|| {
                            to.object
                                .corrupt("size of an integer in a ZAP, to which is added,", value.bytes.len() as u64)
                        })?,
                    }
                }
            };
            let new = old.wrapping_add_signed(delta);
            match new {
                _ if delta == 0 => {}
                0 => drop(self.remove_name(to, body, name)?),
                new => self.put_name(to, body, name, &ZapValue::from_u64(new), Mode::Update)?,
            }
            Ok(new)
        })
    }

    /// The value under a number, whose name is the number in hexadecimal, as in OpenZFS (`zap_lookup_int_key`).
    ///
    /// # Errors
    /// As [`Zap::lookup`].
    pub fn lookup_int(&self, key: u64) -> Result<Option<u64>, Error> {
        self.lookup_u64(int_name(key))
    }

    /// Adds a value under a number (OpenZFS: `zap_add_int_key`; `zap_add_int` has the number as its value too).
    ///
    /// # Errors
    /// As [`Zap::add`].
    pub fn add_int(&self, tx: &Tx, key: u64, value: u64) -> Result<(), Error> {
        self.add_u64(tx, int_name(key), value)
    }

    /// Sets the value under a number (OpenZFS: `zap_update_int_key`).
    ///
    /// # Errors
    /// As [`Zap::update`].
    pub fn update_int(&self, tx: &Tx, key: u64, value: u64) -> Result<(), Error> {
        self.update_u64(tx, int_name(key), value)
    }

    /// Removes the entry under a number (OpenZFS: `zap_remove_int`).
    ///
    /// # Errors
    /// As [`Zap::remove`].
    pub fn remove_int(&self, tx: &Tx, key: u64) -> Result<bool, Error> {
        self.remove(tx, int_name(key))
    }

    /// Adds to the value under a number (OpenZFS: `zap_increment_int`).
    ///
    /// # Errors
    /// As [`Zap::increment`].
    pub fn increment_int(&self, tx: &Tx, key: u64, delta: i64) -> Result<u64, Error> {
        self.increment(tx, int_name(key), delta)
    }

    /// Adds an entry under a key of 64-bit words.
    ///
    /// # Errors
    /// [`Error::KeyExists`]; [`Error::Refused`] for a value that is too long; [`Error::KeyKind`] if keys are names.
    pub fn add_key(&self, tx: &Tx, key: &[u64], value: &ZapValue) -> Result<(), Error> {
        self.change(tx, |to, body| self.put_words(to, body, key, value, Mode::Add))
    }

    /// Sets the entry of a key of 64-bit words.
    ///
    /// # Errors
    /// As [`Zap::add_key`], but for [`Error::KeyExists`].
    pub fn update_key(&self, tx: &Tx, key: &[u64], value: &ZapValue) -> Result<(), Error> {
        self.change(tx, |to, body| self.put_words(to, body, key, value, Mode::Update))
    }

    /// Sets the entries of many keys of 64-bit words.
    ///
    /// # Errors
    /// As [`Zap::update_key`].
    pub fn update_keys(&self, tx: &Tx, entries: &[(&[u64], ZapValue)]) -> Result<(), Error> {
        self.change(tx, |to, body| {
            entries.iter().try_for_each(|(key, value)| self.put_words(to, body, key, value, Mode::Update))
        })
    }

    /// Removes the entry of a key of 64-bit words; `false` if there is none.
    ///
    /// # Errors
    /// When a block cannot be read or is broken; [`Error::KeyKind`] if keys are names.
    pub fn remove_key(&self, tx: &Tx, key: &[u64]) -> Result<bool, Error> {
        self.change(tx, |to, body| match body {
            Body::Fat(fat) if fat.word_keys() => {
                let key = Key::of_words(&fat.header, key);
                fat.remove(to, &key.stored())
            }
            _ => Err(self.key_kind("has names for keys")),
        })
    }
}

/// Frees an object that was made for a ZAP, as `error` ended that. Returns the error.
fn unmade(tx: &Tx, object: &crate::Object, error: Error) -> Error {
    if let Err(left) = object.objset().free_object(tx, object.id()) {
        tx.break_txg(&left);
    }
    error
}

fn stored(value: &ZapValue) -> LeafValue<'_> {
    LeafValue { int_size: value.int_size, bytes: &value.bytes }
}

fn check_value(to: &Target<'_>, value: &ZapValue) -> Result<(), Error> {
    if !matches!(value.int_size, 1 | 2 | 4 | 8) {
        return Err(to.refused("size of a ZAP value's integers", value.int_size.into()));
    }
    if value.bytes.len() > MAX_VALUE || !value.bytes.len().is_multiple_of(value.int_size.into()) {
        return Err(to.refused("length of a ZAP value", value.bytes.len() as u64));
    }
    Ok(())
}
