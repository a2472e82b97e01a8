//! ZAP: hash tables on disk (OpenZFS: `zap.c` and its parts).
//!
//! [`Zap::open`] reads block 0, which says of which kind the ZAP is. A lookup hashes the (normalised) name. In a micro
//! ZAP it looks the hash up in an index built from the one block; in a fat ZAP the top bits of the hash index the pointer
//! table, which gives the leaf, in which a chain is followed. Names are normalised and case-folded by [`norm`], as the
//! ZAP's flags say.

mod entries;
mod fat;
mod fat_write;
pub(crate) mod hash;
mod like;
mod live;
mod micro;
mod micro_write;
mod norm;
#[cfg(test)]
mod tests;
mod unicode;
mod value;
mod write;

use std::sync::{Arc, OnceLock};

use base::ObjectId;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use ondisk::zap::{FatHeader, ZBT_MICRO};

pub use entries::Entries;
pub use norm::{MatchMode, normal_form_fits, normalise};
pub use value::{FatStats, ZapEntry, ZapMatch, ZapStats, ZapValue};
pub use write::NewZap;

use crate::{Error, Object};
use fat::Fat;
use micro::Micro;
use norm::Wanted;

/// The two forms of a ZAP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZapKind {
    /// One block of fixed entries: short names, one 64-bit value each.
    Micro,
    /// Header, pointer table, leaves.
    Fat,
}

/// An open ZAP (OpenZFS: `zap_t`). Cheap to clone; threads may share it. In a writable object set all handles of an
/// object share one state: changes through one are seen by the others.
#[derive(Clone)]
pub struct Zap(Arc<Inner>);

struct Inner {
    object: Object,
    /// Set before a handle is given out.
    body: OnceLock<RwLock<Body>>,
    /// Held while block 0 is read for the first time.
    loading: Mutex<()>,
    /// True if the object set is writable, so that this is the only state of the object.
    live: bool,
}

enum Body {
    Micro(Micro),
    Fat(Fat),
}

impl Body {
    fn read(object: &Object, live: bool) -> Result<Body, Error> {
        let (block, endian) =
            object.block_with_endian(0)?.ok_or_else(|| object.corrupt("first block of a ZAP, a hole,", 0))?;
        let body = match base::bytes::u64(&block, 0, endian) {
            Some(ZBT_MICRO) if live => Micro::parse_live(block, endian).map(Body::Micro),
            Some(ZBT_MICRO) => Micro::parse(block, endian).map(Body::Micro),
            _ if live => Fat::parse_live(block, endian).map(Body::Fat),
            _ => Fat::parse(block, endian).map(Body::Fat),
        };
        body.map_err(|source| object.format(source))
    }
}

impl Inner {
    fn new(object: Object, live: bool) -> Inner {
        Inner { object, body: OnceLock::new(), loading: Mutex::new(()), live }
    }

    fn with(self, body: Body) -> Inner {
        let _ = self.body.set(RwLock::new(body));
        self
    }

    fn cell(&self) -> &RwLock<Body> {
        self.body.get_or_init(|| RwLock::new(Body::Micro(Micro::none())))
    }
}

impl Zap {
    /// Opens the ZAP that `object` holds.
    ///
    /// # Errors
    /// [`Error::WrongType`] if the object's type is none that holds ZAPs; else when its first block cannot be read or is no ZAP.
    pub fn open(object: Object) -> Result<Zap, Error> {
        if !object.phys().object_type.is_zap() {
            let found = object.phys().object_type;
            return Err(Error::WrongType { objset: object.objset().id(), object: object.id(), found, wanted: "a ZAP" });
        }
        Zap::open_any(object)
    }

    /// Opens the ZAP that `object` holds, whatever the object's type says.
    ///
    /// # Errors
    /// When its first block cannot be read or is no ZAP.
    pub fn open_any(object: Object) -> Result<Zap, Error> {
        if object.objset().is_writable() {
            return live::open(object);
        }
        let body = Body::read(&object, false)?;
        Ok(Zap(Arc::new(Inner::new(object, false).with(body))))
    }

    /// The object that holds it.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.0.object
    }

    fn body(&self) -> RwLockReadGuard<'_, Body> {
        self.0.cell().read()
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ZapKind {
        match &*self.body() {
            Body::Micro(_) => ZapKind::Micro,
            Body::Fat(_) => ZapKind::Fat,
        }
    }

    /// The normalisation of its names: OpenZFS's U8_TEXTPREP flags, 0 for none (see [`normalise`]).
    #[must_use]
    pub fn normflags(&self) -> u64 {
        match &*self.body() {
            Body::Micro(micro) => micro.normflags,
            Body::Fat(fat) => fat.header.normflags,
        }
    }

    /// The salt of its hashes.
    #[must_use]
    pub fn salt(&self) -> u64 {
        match &*self.body() {
            Body::Micro(micro) => micro.salt,
            Body::Fat(fat) => fat.header.salt,
        }
    }

    /// True if its keys are 64-bit words, not names.
    #[must_use]
    pub fn has_word_keys(&self) -> bool {
        matches!(&*self.body(), Body::Fat(fat) if fat.word_keys())
    }

    /// Number of entries: counted in a micro ZAP, taken from the header of a fat one.
    #[must_use]
    pub fn count(&self) -> u64 {
        match &*self.body() {
            Body::Micro(micro) => micro.count(),
            Body::Fat(fat) => fat.header.num_entries,
        }
    }

    /// Its shape, as zdb shows it. Leaves of a fat ZAP that cannot be read are left out.
    #[must_use]
    pub fn stats(&self) -> ZapStats {
        match &*self.body() {
            Body::Micro(micro) => {
                ZapStats { blocksize: micro.block_size(), num_entries: micro.count(), num_blocks: 1, fat: None }
            }
            Body::Fat(fat) => ZapStats {
                blocksize: fat.header.block_size as u64,
                num_entries: fat.header.num_entries,
                num_blocks: fat.header.freeblk,
                fat: Some(fat.stats(self.object())),
            },
        }
    }

    /// The value of exactly this name, if there is one.
    ///
    /// # Errors
    /// When a block cannot be read or is broken; [`Error::KeyKind`] if keys are numbers.
    pub fn lookup(&self, name: impl AsRef<[u8]>) -> Result<Option<ZapValue>, Error> {
        let name = name.as_ref();
        match &*self.body() {
            Body::Micro(micro) => Ok(micro.exact(name).map(|entry| ZapValue::from_u64(entry.value))),
            Body::Fat(fat) => {
                if fat.word_keys() {
                    return Err(self.key_kind("has numbers for keys"));
                }
                let hash =
                    hash::of_name(fat.header.salt, &normalise(name, fat.header.normflags), fat.header.hash_bits());
                fat.find(self.object(), hash, |leaf, entry| {
                    usize::from(entry.name_numints) == name.len() + 1 && leaf.array_is(entry.name_chunk, name)
                })
            }
        }
    }

    /// The first integer of the value of exactly this name. `None` if there is no such name.
    ///
    /// # Errors
    /// As [`Zap::lookup`].
    pub fn lookup_u64(&self, name: impl AsRef<[u8]>) -> Result<Option<u64>, Error> {
        match &*self.body() {
            Body::Micro(micro) => return Ok(micro.exact(name.as_ref()).map(|entry| entry.value)),
            Body::Fat(_) => {}
        }
        Ok(self.lookup(name)?.map(|value| value.first()))
    }

    /// The number of the object that this name stands for: [`Zap::lookup_u64`] of an entry that names an object.
    ///
    /// # Errors
    /// As [`Zap::lookup`].
    pub fn lookup_id(&self, name: impl AsRef<[u8]>) -> Result<Option<ObjectId>, Error> {
        Ok(self.lookup_u64(name)?.map(ObjectId))
    }

    /// The entry whose name matches `name` under `mode`; of several, the one with the lowest collision differentiator, as
    /// in OpenZFS.
    ///
    /// # Errors
    /// As [`Zap::lookup`]; [`Error::KeyKind`] for a mode other than exact if the ZAP does not normalise.
    pub fn lookup_norm(&self, name: impl AsRef<[u8]>, mode: MatchMode) -> Result<Option<ZapMatch>, Error> {
        self.names_only()?;
        if mode != MatchMode::Exact && self.normflags() == 0 {
            return Err(self.key_kind("does not normalise names"));
        }
        let wanted = Wanted::new(name.as_ref(), self.normflags(), mode);
        match &*self.body() {
            Body::Micro(micro) => Ok(micro.matching(&wanted).map(|(entry, conflict)| ZapMatch {
                name: entry.name.to_vec(),
                value: ZapValue::from_u64(entry.value),
                conflict,
            })),
            Body::Fat(fat) => {
                let hash = hash::of_name(fat.header.salt, wanted.hashed(), fat.header.hash_bits());
                fat.matching(self.object(), hash, &wanted)
            }
        }
    }

    /// The value of a key of 64-bit words.
    ///
    /// # Errors
    /// When a block cannot be read or is broken; [`Error::KeyKind`] if keys are names.
    pub fn lookup_key(&self, key: &[u64]) -> Result<Option<ZapValue>, Error> {
        let body = self.body();
        let Body::Fat(fat) = &*body else { return Err(self.key_kind("has names for keys")) };
        if !fat.word_keys() {
            return Err(self.key_kind("has names for keys"));
        }
        let bits = fat.header.hash_bits();
        let hash = if fat.header.flags & FatHeader::FLAG_PRE_HASHED_KEY != 0 {
            hash::keep(key.first().copied().unwrap_or(0), bits)
        } else {
            hash::of_key(fat.header.salt, key, bits)
        };
        let raw: Vec<u8> = key.iter().flat_map(|word| word.to_be_bytes()).collect();
        fat.find(self.object(), hash, |leaf, entry| {
            usize::from(entry.name_numints) == key.len() && leaf.array_is(entry.name_chunk, &raw)
        })
    }

    /// All entries, in the order of OpenZFS's cursor: by hash, for both kinds.
    ///
    /// # Errors
    /// None now; an unreadable leaf is an item of the iterator, its last.
    pub fn entries(&self) -> Result<Entries, Error> {
        self.entries_from(0)
    }

    /// The entries from a cursor on, in OpenZFS's serialised form ([`ZapEntry::cookie`], [`ZapEntry::next_cookie`]);
    /// `u64::MAX` is the end.
    ///
    /// # Errors
    /// As [`Zap::entries`].
    pub fn entries_from(&self, cookie: u64) -> Result<Entries, Error> {
        let (bits, max_cd) = match &*self.body() {
            Body::Fat(fat) if fat.header.hash_bits() == 48 => (48, 0xffff),
            _ => (28, u64::from(u32::MAX)),
        };
        let cd = cookie >> bits;
        let cd = if cd >= max_cd { 0 } else { cd as u32 };
        let at = (cookie != u64::MAX).then_some((cookie << (64 - bits), cd));
        Ok(Entries::new(self.clone(), at))
    }

    fn key_kind(&self, what: &'static str) -> Error {
        Error::KeyKind { objset: self.object().objset().id(), object: self.object().id(), what }
    }

    fn names_only(&self) -> Result<(), Error> {
        if self.has_word_keys() { Err(self.key_kind("has numbers for keys")) } else { Ok(()) }
    }
}

impl std::fmt::Debug for Zap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} ZAP in {:?}", self.kind(), self.object())
    }
}
