//! The registry and the layouts of an object set.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use base::{ObjectId, Txg};
use parking_lot::{Mutex, RwLock};

use ondisk::ObjectType;
use ondisk::sa::{SA_LAYOUT_EMPTY, SaHeader, SaRegistration, SaSwap};

use super::{Attr, SaAttrs};
use crate::{Error, Object, Objset, Zap};

/// Length and kind of the attributes that need no registration: numbers 0 to 15, used by file systems before ZPL 5.
const LEGACY: [(u16, SaSwap); 16] = {
    const fn words(n: u16) -> (u16, SaSwap) {
        (8 * n, SaSwap::Words)
    }
    let one = words(1);
    let time = words(2);
    [time, time, time, time, one, one, one, one, one, one, one, one, one, one, words(4), (88, SaSwap::Bytes)]
};

/// The system attributes of an object set and their layouts. Cheap to clone; clones share additions.
#[derive(Clone, Default)]
pub struct SaTable(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: RwLock<State>,
    /// The object set and the object that names the registry and the layouts; `None` where there is none.
    master: Option<(Arc<Objset>, ObjectId)>,
    /// Held while the registry or the layouts grow on disk.
    growing: Mutex<()>,
}

/// The decoded registry and layouts.
#[derive(Default)]
pub(super) struct State {
    layouts: HashMap<u16, Arc<Layout>>,
    /// The first txg with a layout that was entered since the table was loaded.
    pub(super) since: HashMap<u16, Txg>,
    /// Layout numbers by their sequence of attribute numbers.
    pub(super) numbers: HashMap<Vec<u16>, u16>,
    /// The attributes by number: registered ones and those of old file systems.
    pub(super) fields: HashMap<u16, Field>,
    /// The numbers of attributes: the registered ones, those of old file systems, and the numbers that the others will
    /// get.
    pub(super) attrs: HashMap<Attr, u16>,
    /// Attributes of [`Attr::ALL`] that are in the registry.
    pub(super) registered: HashSet<Attr>,
    /// The first txg with all of them, if any was entered since the table was loaded.
    pub(super) registered_since: Txg,
}

/// A layout: the attributes that follow a header that names it.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    pub(super) fields: Vec<Field>,
    /// The number of fields whose length is in the header.
    pub(super) variable: usize,
}

impl Layout {
    /// The attributes of a buffer of this layout, each with its position. One that does not fit ends the iteration with
    /// its length as the error.
    pub(super) fn places<'a>(
        &'a self,
        header: &'a SaHeader,
        buf: &'a [u8],
    ) -> impl Iterator<Item = Result<(&'a Field, Range<usize>), usize>> + 'a {
        let (mut at, mut variable) = (SaHeader::data_offset(self.variable), 0);
        self.fields.iter().map(move |field| {
            let len = match usize::from(field.length) {
                0 => {
                    variable += 1;
                    header.length(buf, variable - 1).unwrap_or(usize::MAX)
                }
                len => len,
            };
            let place = at..at.checked_add(len).filter(|end| *end <= buf.len()).ok_or(len)?;
            at = place.end.next_multiple_of(8);
            Ok((field, place))
        })
    }
}

/// One attribute of a layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// The attribute; `None` for one that is not of the ZPL.
    pub(super) attr: Option<Attr>,
    /// Its number.
    pub(super) number: u16,
    /// Bytes; 0 if the length is in the header.
    pub(super) length: u16,
    pub(super) swap: SaSwap,
}

impl SaTable {
    /// Reads the registry and the layouts. `sa_attrs_object` is the value of `SA_ATTRS` in the master node; 0 for a file system
    /// before ZPL 5, which has neither.
    ///
    /// # Errors
    /// When the ZAPs cannot be read (for example in an encrypted dataset without its key) or are malformed.
    pub fn load(objset: &Arc<Objset>, sa_attrs_object: ObjectId) -> Result<SaTable, Error> {
        let (mut registry, mut layouts) = (Vec::new(), Vec::new());
        if sa_attrs_object.is_some() {
            let master = Zap::open(objset.object(sa_attrs_object)?)?;
            let list = |name| match master.lookup_id(name)? {
                None | Some(ObjectId::NONE) => Ok(Vec::new()),
                Some(object) => Zap::open(objset.object(object)?)?.entries()?.collect::<Result<Vec<_>, Error>>(),
            };
            registry.extend(list("REGISTRY")?.into_iter().map(|e| (e.name, SaRegistration::from(e.value.first()))));
            for entry in list("LAYOUTS")? {
                let number = std::str::from_utf8(&entry.name).ok().and_then(|name| name.parse().ok());
                layouts.extend(number.zip(entry.value.u16s()));
            }
        }
        let state = State::new(&registry, &layouts);
        let master = sa_attrs_object.is_some().then(|| (objset.clone(), sa_attrs_object));
        Ok(SaTable(Arc::new(Inner { state: RwLock::new(state), master, growing: Mutex::new(()) })))
    }

    /// The table of these attributes (name and registration) and layouts (number and attribute numbers). Attributes 0 to
    /// 15 of old file systems need no registration. A layout with an attribute that is not registered, or of unknown
    /// kind, is left out: buffers in that layout cannot be read.
    #[must_use]
    pub fn from_parts(registry: &[(Vec<u8>, SaRegistration)], layouts: &[(u16, Vec<u16>)]) -> SaTable {
        let inner = Inner { state: RwLock::new(State::new(registry, layouts)), ..Inner::default() };
        SaTable(Arc::new(inner))
    }

    pub(super) fn state(&self) -> &RwLock<State> {
        &self.0.state
    }

    pub(super) fn master(&self) -> Option<&(Arc<Objset>, ObjectId)> {
        self.0.master.as_ref()
    }

    pub(super) fn growing(&self) -> &Mutex<()> {
        &self.0.growing
    }

    /// The attributes of a file, those in its spill block included. An unreadable spill block is reported by
    /// [`SaAttrs::spill_error`], and only its attributes are missing.
    ///
    /// # Errors
    /// [`Error::WrongType`] if the bonus buffer is not that of a file; else if its contents are malformed.
    pub fn attrs(&self, object: &Object) -> Result<SaAttrs, Error> {
        let mut attrs = self.attrs_without_spill(object)?;
        if object.phys().bonus_type == ObjectType::SA {
            attrs.add_spill(self, object);
        }
        Ok(attrs)
    }

    /// The attributes of a file that are in its dnode, which include all that every file has. Nothing is read from disk
    /// (except the target of a long symbolic link before ZPL 5).
    ///
    /// # Errors
    /// As [`SaTable::attrs`].
    pub fn attrs_without_spill(&self, object: &Object) -> Result<SaAttrs, Error> {
        match object.phys().bonus_type {
            ObjectType::SA => SaAttrs::from_bonus(self, object),
            ObjectType::ZNODE => SaAttrs::from_znode(object),
            found => Err(Error::WrongType {
                objset: object.objset().id(),
                object: object.id(),
                found,
                wanted: "a file (by its bonus buffer)",
            }),
        }
    }

    pub(super) fn layout(&self, number: u16) -> Option<Arc<Layout>> {
        self.0.state.read().layouts.get(&number).cloned()
    }
}

impl State {
    fn new(registry: &[(Vec<u8>, SaRegistration)], layouts: &[(u16, Vec<u16>)]) -> State {
        let mut state = State::default();
        for ((n, attr), (length, swap)) in (0..).zip(Attr::ALL).zip(LEGACY) {
            state.fields.insert(n, Field { attr: Some(*attr), number: n, length, swap });
            state.attrs.insert(*attr, n);
        }
        for (name, reg) in registry {
            let attr = Attr::ALL.iter().copied().find(|attr| attr.name().as_bytes() == name);
            let Some(swap) = SaSwap::from_u8(reg.swap) else { continue };
            state.fields.insert(reg.number, Field { attr, number: reg.number, length: reg.length, swap });
            if let Some(attr) = attr {
                state.attrs.insert(attr, reg.number);
                state.registered.insert(attr);
            }
        }
        // the others get the next numbers in their order, as OpenZFS expects
        let known = state.fields.keys().max().map_or(0, |last| usize::from(*last) + 1);
        let unknown = Attr::ALL.iter().filter(|attr| !state.attrs.contains_key(attr)).copied();
        // attributes beyond the last number have none
        let free = (known.max(registry.len())..).map_while(|number| u16::try_from(number).ok());
        let unknown: Vec<(Attr, u16)> = unknown.zip(free).collect();
        state.attrs.extend(unknown);
        state.layouts.insert(SA_LAYOUT_EMPTY, Arc::new(Layout::default()));
        for (number, attrs) in layouts {
            state.add_layout(*number, attrs);
        }
        state
    }

    /// The layout of a number.
    pub(super) fn layout(&self, number: u16) -> Option<&Layout> {
        self.layouts.get(&number).map(|layout| &**layout)
    }

    /// Adds an attribute that has been registered.
    pub(super) fn add_registered(&mut self, attr: Attr, reg: SaRegistration) {
        if let Some(swap) = SaSwap::from_u8(reg.swap) {
            self.fields.insert(reg.number, Field { attr: Some(attr), number: reg.number, length: reg.length, swap });
        }
        self.registered.insert(attr);
    }

    /// The number of the layout of these attributes, if `txg` has it.
    pub(super) fn number_in(&self, txg: Txg, attrs: &[u16]) -> Option<u16> {
        self.numbers.get(attrs).copied().filter(|number| self.since.get(number).is_none_or(|since| *since <= txg))
    }

    /// Adds a layout. One with an unknown attribute is left out.
    pub(super) fn add_layout(&mut self, number: u16, attrs: &[u16]) {
        let fields: Option<Vec<Field>> = attrs.iter().map(|attr| self.fields.get(attr).copied()).collect();
        if let Some(fields) = fields {
            let variable = fields.iter().filter(|field| field.length == 0).count();
            self.layouts.insert(number, Arc::new(Layout { fields, variable }));
            let first = self.numbers.entry(attrs.to_vec()).or_insert(number);
            *first = number.min(*first);
        }
    }
}

impl Attr {
    /// Its registration: length (0 if it varies) and kind (OpenZFS: `zfs_attr_table`).
    pub(super) fn registration(self) -> (u16, SaSwap) {
        let legacy = LEGACY.get(self as usize).copied();
        legacy.unwrap_or(match self {
            Attr::Symlink | Attr::Dxattr => (0, SaSwap::Bytes),
            Attr::Scanstamp => (32, SaSwap::Bytes),
            Attr::DaclAces => (0, SaSwap::Acl),
            _ => (8, SaSwap::Words),
        })
    }
}

impl std::fmt::Debug for SaTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SaTable({} layouts)", self.0.state.read().layouts.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_attributes_are_the_first_sixteen() {
        assert_eq!(Attr::ALL.get(15), Some(&Attr::ZnodeAcl));
        let bytes: usize = LEGACY.iter().map(|(length, _)| usize::from(*length)).sum();
        assert_eq!(bytes, ondisk::znode::ZNODE_PHYS_SIZE);
    }

    #[test]
    fn attributes_behind_the_last_number_have_none() {
        let last = |number| (b"com.example:other".to_vec(), SaRegistration { number, length: 8, swap: 0 });
        for (number, left) in [(u16::MAX, 0), (u16::MAX - 1, 1), (u16::MAX - 3, 3)] {
            let state = State::new(&[last(number)], &[]);
            assert_eq!(state.attrs.len(), LEGACY.len() + left);
            assert!(state.attrs.values().filter(|n| **n >= 16).all(|n| *n > number));
        }
    }
}
