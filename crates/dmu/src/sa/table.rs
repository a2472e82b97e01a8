//! The registry and the layouts of an object set.

use std::collections::HashMap;
use std::sync::Arc;

use ondisk::ObjectType;
use ondisk::sa::{SA_LAYOUT_EMPTY, SaRegistration, SaSwap};

use super::{Attr, SaAttrs};
use crate::{Error, Object, Objset, Zap};

/// Length and kind of the attributes that need no registration: 0 to 15 of file systems before ZPL 5.
const LEGACY: [(u16, SaSwap); 16] = {
    const fn words(n: u16) -> (u16, SaSwap) {
        (8 * n, SaSwap::Words)
    }
    let one = words(1);
    let time = words(2);
    [time, time, time, time, one, one, one, one, one, one, one, one, one, one, words(4), (88, SaSwap::Bytes)]
};

/// The system attributes of an object set: which there are, and in what layouts. Cheap to clone.
#[derive(Clone, Default)]
pub struct SaTable(Arc<Inner>);

#[derive(Default)]
struct Inner {
    layouts: HashMap<u16, Layout>,
}

/// A layout: what follows a header that names it.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    pub(super) fields: Vec<Field>,
    /// How many fields have their length in the header.
    pub(super) variable: usize,
}

/// One attribute of a layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// Which; `None` for one that is not of the ZPL.
    pub(super) attr: Option<Attr>,
    /// Bytes; 0 if the header tells.
    pub(super) length: u16,
    pub(super) swap: SaSwap,
}

impl SaTable {
    /// Reads the registry and the layouts. `sa_attrs_object` is the value of `SA_ATTRS` in the master node; 0 for a file system
    /// before ZPL 5, which has neither.
    ///
    /// # Errors
    /// When the ZAPs cannot be read (in an encrypted dataset without its key, for one) or are not what they should be.
    pub fn load(objset: &Arc<Objset>, sa_attrs_object: u64) -> Result<SaTable, Error> {
        let (mut registry, mut layouts) = (Vec::new(), Vec::new());
        if sa_attrs_object != 0 {
            let master = Zap::open(objset.object(sa_attrs_object)?)?;
            let list = |name| match master.lookup_u64(name)? {
                None | Some(0) => Ok(Vec::new()),
                Some(object) => Zap::open(objset.object(object)?)?.entries()?.collect::<Result<Vec<_>, Error>>(),
            };
            registry.extend(list("REGISTRY")?.into_iter().map(|e| (e.name, SaRegistration::from(e.value.first()))));
            for entry in list("LAYOUTS")? {
                let number = std::str::from_utf8(&entry.name).ok().and_then(|name| name.parse().ok());
                layouts.extend(number.zip(entry.value.u16s()));
            }
        }
        Ok(SaTable::from_parts(&registry, &layouts))
    }

    /// The table of these attributes (name and registration) and layouts (number and attribute numbers). Attributes 0 to 15 of old
    /// file systems need no registration. A layout of an attribute that is not registered, or of unknown kind, is left out: what is
    /// laid out so cannot be read.
    #[must_use]
    pub fn from_parts(registry: &[(Vec<u8>, SaRegistration)], layouts: &[(u16, Vec<u16>)]) -> SaTable {
        let legacy = Attr::ALL.iter().zip(LEGACY).enumerate();
        let legacy = legacy.map(|(n, (attr, (length, swap)))| (n as u16, Field { attr: Some(*attr), length, swap }));
        let registered = registry.iter().filter_map(|(name, reg)| {
            let attr = Attr::ALL.iter().copied().find(|attr| attr.name().as_bytes() == name);
            Some((reg.number, Field { attr, length: reg.length, swap: SaSwap::from_u8(reg.swap)? }))
        });
        let fields: HashMap<u16, Field> = legacy.chain(registered).collect();
        let layout = |attrs: &[u16]| {
            let fields: Option<Vec<Field>> = attrs.iter().map(|attr| fields.get(attr).copied()).collect();
            let variable = fields.as_ref()?.iter().filter(|field| field.length == 0).count();
            Some(Layout { fields: fields?, variable })
        };
        let mut inner = Inner::default();
        inner.layouts.insert(SA_LAYOUT_EMPTY, Layout::default());
        inner.layouts.extend(layouts.iter().filter_map(|(number, attrs)| Some((*number, layout(attrs)?))));
        SaTable(Arc::new(inner))
    }

    /// The attributes of a file, those in its spill block included. An unreadable spill block is told by
    /// [`SaAttrs::spill_error`], and costs the attributes in it only.
    ///
    /// # Errors
    /// [`Error::WrongType`] if the bonus buffer is none of a file; else if its contents cannot be.
    pub fn attrs(&self, object: &Object) -> Result<SaAttrs, Error> {
        let mut attrs = self.attrs_without_spill(object)?;
        if object.phys().bonus_type == ObjectType::SA {
            attrs.add_spill(self, object);
        }
        Ok(attrs)
    }

    /// The attributes of a file that stand in its dnode: all that every file has. Nothing is read from disk (but the target of a
    /// long symbolic link before ZPL 5).
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

    pub(super) fn layout(&self, number: u16) -> Option<&Layout> {
        self.0.layouts.get(&number)
    }
}

impl std::fmt::Debug for SaTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SaTable({} layouts)", self.0.layouts.len())
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
}
