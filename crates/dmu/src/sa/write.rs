//! Changes to attributes (OpenZFS: `sa_setup`, `sa_bulk_update`, `sa_replace_all_by_template`, `sa_build_layouts`).
//!
//! A value of the same length is changed in place. Any other change rebuilds the buffers: attributes keep their order,
//! new ones come last, and those that do not fit in the bonus buffer go to the spill block. The sequence of attributes in
//! each of the two is a layout; a sequence not used before gets the next number.
//!
//! A change can be taken back without a new layout, which might not be had: before buffers are rebuilt, the layouts are entered that the attributes
//! get which are there so far. The file may have others now, if another program has divided them otherwise.

use std::borrow::Cow;
use std::sync::Arc;

use base::{Endian, ObjectId};
use ondisk::sa::{SA_LAYOUT_EMPTY, SA_LENGTHS_OFFSET, SA_MAGIC, SaHeader, SaRegistration, SaSwap};
use ondisk::{BLKPTR_SIZE, DnodePhys, ObjectType, znode};
use zio::Buf;

use super::table::{Layout, State};
use super::{Attr, SaTable};
use crate::{Error, Object, Objset, Tx, Zap};

/// The fixed part of a header.
const HEADER: usize = 8;
/// The largest spill block (OpenZFS: `SPA_OLD_MAXBLOCKSIZE`).
const SPILL_MAX: usize = 128 << 10;
/// The largest layout number that a header can name; also the limit of attributes in the registry.
const LAYOUT_MAX: u16 = 0x3ff;

/// An attribute and its new value: integers in the byte order of this machine.
pub type SaValue<'a> = (Attr, Cow<'a, [u8]>);

/// An attribute as it is stored in a buffer.
struct Piece<'a> {
    number: u16,
    /// True if the header holds its length.
    variable: bool,
    value: Cow<'a, [u8]>,
}

/// A buffer split into its attributes.
struct Taken<'a> {
    pieces: Vec<Piece<'a>>,
    /// The offset of each piece.
    starts: Vec<usize>,
    /// True if a piece can be changed in place: the buffer is little-endian already.
    in_place: bool,
}

fn to_little(swap: SaSwap, value: &mut Cow<'_, [u8]>, from: Endian) {
    // the swap that leaves values unchanged on this machine is the one that turns big-endian into little-endian on it,
    // and the reverse
    match from {
        Endian::Little => {}
        Endian::Big if Endian::NATIVE == Endian::Little => swap.to_native(value.to_mut(), from),
        Endian::Big => swap.to_native(value.to_mut(), Endian::Little),
    }
}

impl SaTable {
    /// Loads the table, and registers the attributes not registered yet, so that files can be created.
    ///
    /// # Errors
    /// As [`SaTable::load`]; when the registry cannot be written.
    pub fn setup(tx: &Tx, objset: &Arc<Objset>, sa_attrs_object: ObjectId) -> Result<SaTable, Error> {
        let table = SaTable::load(objset, sa_attrs_object)?;
        table.register(tx)?;
        Ok(table)
    }

    /// Enters all attributes in the registry.
    fn register(&self, tx: &Tx) -> Result<(), Error> {
        let Some((objset, master)) = self.master() else { return Ok(()) };
        let done = |state: &State| state.registered.len() == Attr::ALL.len() && state.registered_since <= tx.txg();
        if done(&self.state().read()) {
            return Ok(());
        }
        let _growing = self.growing().lock();
        let missing: Vec<(Attr, SaRegistration)> = {
            let state = self.state().read();
            let missing = Attr::ALL.iter().filter(|attr| !state.registered.contains(attr));
            missing
                .filter_map(|attr| {
                    let (length, swap) = attr.registration();
                    Some((*attr, SaRegistration { number: *state.attrs.get(attr)?, length, swap: swap as u8 }))
                })
                .collect()
        };
        let registry = part(tx, objset, *master, "REGISTRY", ObjectType::SA_ATTR_REGISTRATION)?;
        registry.object().share(tx)?;
        for (attr, registration) in missing {
            registry.update_u64(tx, attr.name(), registration.to_word())?;
            self.state().write().add_registered(attr, registration);
        }
        self.state().write().registered_since = tx.txg();
        Ok(())
    }

    /// The number of the layout of these attributes; a new layout is entered on disk.
    fn layout_number(&self, tx: &Tx, object: &Object, attrs: &[u16]) -> Result<u16, Error> {
        if attrs.is_empty() {
            return Ok(SA_LAYOUT_EMPTY);
        }
        if let Some(number) = self.state().read().number_in(tx.txg(), attrs) {
            return Ok(number);
        }
        let Some((objset, master)) = self.master() else {
            return Err(object.corrupt("object of attribute layouts", 0));
        };
        let _growing = self.growing().lock();
        let layouts = part(tx, objset, *master, "LAYOUTS", ObjectType::SA_ATTR_LAYOUTS)?;
        // this txg gets all layouts that a newer one has entered
        layouts.object().share(tx)?;
        self.state().write().since.values_mut().for_each(|since| *since = tx.txg().min(*since));
        if let Some(number) = self.state().read().number_in(tx.txg(), attrs) {
            return Ok(number);
        }
        // 0 and 1 are built in
        let mut number = layouts.count() + 2;
        while layouts.lookup(number.to_string())?.is_some() {
            number += 1;
        }
        let number = u16::try_from(number).ok().filter(|number| *number <= LAYOUT_MAX);
        let number = number.ok_or_else(|| object.corrupt("number of attribute layouts", layouts.count()))?;
        let words: Vec<u64> = attrs.iter().copied().map(u64::from).collect();
        layouts.add(tx, number.to_string(), 2, &words)?;
        let mut state = self.state().write();
        state.since.insert(number, tx.txg());
        state.add_layout(number, attrs);
        Ok(number)
    }

    /// Sets attributes of a file and keeps its others. Attributes that it does not have are added.
    ///
    /// # Errors
    /// When the file's attributes cannot be read; [`Error::Refused`] for a value of a wrong length, for attributes that take more
    /// than a spill block, and for new attributes of a file of ZPL before 5.
    pub fn update(&self, tx: &Tx, object: &Object, values: &[SaValue<'_>]) -> Result<(), Error> {
        if object.live().is_some_and(|live| self.places_of(&live.state.read().newest, values).is_some()) {
            self.register(tx)?;
            // the layout may be another by now
            if object.patch_bonus(tx, |phys| self.places_of(phys, values))? {
                return Ok(());
            }
        }
        let object = object.reload()?;
        match object.phys().bonus_type {
            ObjectType::SA => self.update_sa(tx, &object, values),
            ObjectType::ZNODE => update_znode(tx, &object, values),
            found => Err(wrong_type(&object, found)),
        }
    }

    /// Returns the offsets of the values in the bonus buffer of a file, and their bytes, if all are there, with these lengths and in the byte order of this
    /// machine.
    fn places_of<'a>(&self, phys: &DnodePhys, values: &'a [SaValue<'_>]) -> Option<Vec<(usize, &'a [u8])>> {
        if phys.bonus_type != ObjectType::SA || Endian::NATIVE != Endian::Little {
            return None;
        }
        let header = SaHeader::decode(&phys.bonus).ok()?.filter(|header| header.endian == Endian::Little)?;
        let state = self.state().read();
        let layout = state.layout(header.layout)?;
        let mut found: Vec<Option<usize>> = vec![None; values.len()];
        let numbers: Vec<u16> = values.iter().map(|(attr, _)| state.attrs.get(attr).copied()).collect::<Option<_>>()?;
        for place in layout.places(&header, &phys.bonus) {
            let (field, place) = place.ok()?;
            for ((found, number), (_, value)) in found.iter_mut().zip(&numbers).zip(values) {
                if *number == field.number && value.len() == place.len() {
                    found.get_or_insert(place.start);
                }
            }
        }
        found.into_iter().zip(values).map(|(at, (_, value))| Some((at?, &**value))).collect()
    }

    /// Sets all attributes of a file, in this order: the file has no others afterwards. The type of its bonus buffer
    /// becomes that of system attributes.
    ///
    /// # Errors
    /// As [`SaTable::update`].
    pub fn replace_all(&self, tx: &Tx, object: &Object, values: &[SaValue<'_>]) -> Result<(), Error> {
        let object = object.reload()?;
        self.register(tx)?;
        let pieces: Result<Vec<Piece<'_>>, Error> = values.iter().map(|value| self.piece(&object, value)).collect();
        self.build(tx, &object, &pieces?)
    }

    /// Removes attributes from a file; those that it does not have are ignored.
    ///
    /// # Errors
    /// As [`SaTable::update`]; [`Error::Refused`] for a file of ZPL before 5, which always has all of its attributes.
    pub fn remove(&self, tx: &Tx, object: &Object, attrs: &[Attr]) -> Result<(), Error> {
        let object = object.reload()?;
        if object.phys().bonus_type != ObjectType::SA {
            return Err(wrong_type(&object, object.phys().bonus_type));
        }
        let spill = object.spill()?;
        let bonus = self.take(&object, object.bonus())?;
        let spill = spill.as_ref().map(|spill| self.take(&object, spill)).transpose()?;
        let numbers: Vec<u16> = {
            let state = self.state().read();
            attrs.iter().filter_map(|attr| state.attrs.get(attr).copied()).collect()
        };
        let mut pieces = bonus.pieces;
        pieces.extend(spill.map(|spill| spill.pieces).unwrap_or_default());
        let before = pieces.len();
        pieces.retain(|piece| !numbers.contains(&piece.number));
        if pieces.len() == before { Ok(()) } else { self.build(tx, &object, &pieces) }
    }

    fn piece<'v>(&self, object: &Object, (attr, value): &'v SaValue<'_>) -> Result<Piece<'v>, Error> {
        let field = {
            let state = self.state().read();
            state.attrs.get(attr).and_then(|number| state.fields.get(number)).copied()
        };
        let field = field.ok_or_else(|| object.corrupt("attribute, not registered,", *attr as u64))?;
        let wrong = field.length != 0 && usize::from(field.length) != value.len();
        if wrong || value.len() > usize::from(u16::MAX) {
            return Err(refused(object, "length of an attribute", value.len() as u64));
        }
        let mut value = Cow::Borrowed(&**value);
        if Endian::NATIVE == Endian::Big {
            to_little(field.swap, &mut value, Endian::Big);
        }
        Ok(Piece { number: field.number, variable: field.length == 0, value })
    }

    /// Splits a buffer that begins with a header into its pieces.
    fn take<'b>(&self, object: &Object, buf: &'b [u8]) -> Result<Taken<'b>, Error> {
        let mut taken = Taken { pieces: Vec::new(), starts: Vec::new(), in_place: true };
        let Some(header) = SaHeader::decode(buf).map_err(|source| object.format(source))? else { return Ok(taken) };
        let layout: Arc<Layout> = self
            .layout(header.layout)
            .ok_or_else(|| object.corrupt("attribute layout, not registered,", header.layout.into()))?;
        taken.in_place = header.endian == Endian::Little;
        for place in layout.places(&header, buf) {
            let (field, place) = place.map_err(|len| object.corrupt("length of an attribute", len as u64))?;
            taken.starts.push(place.start);
            let mut value = Cow::Borrowed(buf.get(place).unwrap_or_default());
            to_little(field.swap, &mut value, header.endian);
            taken.pieces.push(Piece { number: field.number, variable: field.length == 0, value });
        }
        Ok(taken)
    }

    fn update_sa(&self, tx: &Tx, object: &Object, values: &[SaValue<'_>]) -> Result<(), Error> {
        self.register(tx)?;
        let new: Result<Vec<Piece<'_>>, Error> = values.iter().map(|value| self.piece(object, value)).collect();
        let new = new?;
        let bonus = self.take(object, object.bonus())?;
        if bonus.in_place
            && let Some(changed) = changed_in_place(&bonus, object.bonus(), &new)
        {
            return object.set_bonus(tx, &changed);
        }
        let spill_buf: Option<Buf> = object.spill()?;
        let spill = spill_buf.as_ref().map(|spill| self.take(object, spill)).transpose()?;
        // change each in place in its buffer, if all of them exist with the right length
        if let (Some(spill), Some(buf)) = (&spill, &spill_buf)
            && bonus.in_place
            && spill.in_place
        {
            let stands = |taken: &Taken<'_>, piece: &Piece<'_>| taken.pieces.iter().any(|old| fits(old, piece));
            let (here, there): (Vec<&Piece<'_>>, Vec<&Piece<'_>>) = new.iter().partition(|piece| stands(&bonus, piece));
            if there.iter().all(|piece| stands(spill, piece)) {
                let both = changed_in_place(&bonus, object.bonus(), here).zip(changed_in_place(spill, buf, there));
                return match both {
                    Some((bonus, spill)) => object.set_bonus_and_spill(tx, ObjectType::SA, &bonus, Some(spill)),
                    None => Ok(()),
                };
            }
        }
        let mut pieces = bonus.pieces;
        pieces.extend(spill.map(|spill| spill.pieces).unwrap_or_default());
        self.layouts_of(tx, object, Plan::of(object, &pieces).split(&pieces))?;
        for piece in new {
            match pieces.iter_mut().find(|old| old.number == piece.number) {
                Some(old) => old.value = piece.value,
                None => pieces.push(piece),
            }
        }
        self.build(tx, object, &pieces)
    }

    /// Enters the layouts that a file gets which has these attributes, in this order: to give it them later takes nothing new.
    ///
    /// # Errors
    /// When the layouts cannot be read or written.
    pub fn enter_layouts(&self, tx: &Tx, object: &Object, values: &[SaValue<'_>]) -> Result<(), Error> {
        self.register(tx)?;
        let pieces = values.iter().map(|value| self.piece(object, value)).collect::<Result<Vec<Piece<'_>>, Error>>()?;
        self.layouts_of(tx, object, Plan::of(object, &pieces).split(&pieces)).map(drop)
    }

    /// Returns the layouts of the attributes in the bonus buffer and of those in the spill block.
    fn layouts_of(
        &self,
        tx: &Tx,
        object: &Object,
        (front, back): (&[Piece<'_>], &[Piece<'_>]),
    ) -> Result<[u16; 2], Error> {
        let layout = |pieces: &[Piece<'_>]| -> Result<u16, Error> {
            let numbers: Vec<u16> = pieces.iter().map(|piece| piece.number).collect();
            self.layout_number(tx, object, &numbers)
        };
        Ok([layout(front)?, layout(back)?])
    }

    /// Rebuilds the bonus buffer and the spill block.
    fn build(&self, tx: &Tx, object: &Object, pieces: &[Piece<'_>]) -> Result<(), Error> {
        let (room, plan) = (room_of(object), Plan::of(object, pieces));
        if plan.spill_at.is_some() && room < BLKPTR_SIZE {
            return Err(refused(object, "room for the pointer to a spill block", room as u64));
        }
        if plan.total > SPILL_MAX {
            return Err(refused(object, "size of all attributes", plan.total as u64));
        }
        let (front, back) = plan.split(pieces);
        let [front_layout, back_layout] = self.layouts_of(tx, object, (front, back))?;
        let mut bonus = pack(front, front_layout);
        if plan.spill_at.is_some() {
            bonus.resize(bonus.len().max((room - BLKPTR_SIZE).min(plan.total + plan.header)), 0);
        }
        let spill = match plan.spill_at {
            None => None,
            Some(_) => {
                let mut spill = pack(back, back_layout);
                if spill.len() > SPILL_MAX {
                    return Err(refused(object, "size of all attributes", spill.len() as u64));
                }
                spill.resize(spill.len().next_multiple_of(512).max(512), 0);
                Some(spill)
            }
        };
        object.set_bonus_and_spill(tx, ObjectType::SA, &bonus, spill)
    }
}

/// The split of attributes between bonus buffer and spill block (OpenZFS: `sa_find_sizes`).
struct Plan {
    /// Bytes of all values.
    total: usize,
    /// Bytes of the bonus buffer's header.
    header: usize,
    /// The first piece of the spill block; `None` if all fit in the bonus buffer.
    spill_at: Option<usize>,
}

impl Plan {
    fn of(object: &Object, pieces: &[Piece<'_>]) -> Plan {
        Plan::new(pieces, room_of(object))
    }

    fn new(pieces: &[Piece<'_>], room: usize) -> Plan {
        let (mut total, mut header, mut extra) = (0usize, HEADER, 0);
        let (mut variable, mut could, mut spills) = (0, None, false);
        for (n, piece) in pieces.iter().enumerate() {
            total = total.next_multiple_of(8) + piece.value.len();
            if spills {
                continue;
            }
            variable += usize::from(piece.variable);
            let more = piece.variable && variable > 1;
            let with = header + if more { 2 } else { 0 };
            // from here on the pointer to a spill block would be in the way
            let here = could.is_none() && total + with.next_multiple_of(8) > room.saturating_sub(BLKPTR_SIZE);
            if more {
                if with + total < room {
                    header = with;
                    extra += if could.is_some() || here { 2 } else { 0 };
                } else {
                    could = could.or(Some(n));
                    spills = true;
                    continue;
                }
            }
            if here {
                could = Some(n);
            }
            spills = total + header.next_multiple_of(8) > room;
        }
        if spills {
            header -= extra;
        }
        Plan { total, header: header.next_multiple_of(8), spill_at: could.filter(|_| spills) }
    }

    /// The attributes of the bonus buffer, and those of the spill block.
    fn split<'p, 'v>(&self, pieces: &'p [Piece<'v>]) -> (&'p [Piece<'v>], &'p [Piece<'v>]) {
        pieces.split_at(self.spill_at.unwrap_or(pieces.len()).min(pieces.len()))
    }
}

/// Bytes of the bonus buffer.
fn room_of(object: &Object) -> usize {
    let phys = object.phys();
    phys.size().saturating_sub(64 + phys.blkptr.len() * BLKPTR_SIZE)
}

/// A header, and the pieces behind it.
fn pack(pieces: &[Piece<'_>], layout: u16) -> Vec<u8> {
    let variable = pieces.iter().filter(|piece| piece.variable).count();
    let header = SaHeader::data_offset(variable);
    let mut out = vec![0; header];
    let mut put = |at: usize, bytes: &[u8]| {
        out.iter_mut().skip(at).zip(bytes).for_each(|(place, byte)| *place = *byte);
    };
    put(0, &SA_MAGIC.to_le_bytes());
    put(4, &((header as u16 / 8) << 10 | layout).to_le_bytes());
    for (n, piece) in pieces.iter().filter(|piece| piece.variable).enumerate() {
        put(SA_LENGTHS_OFFSET + 2 * n, &(piece.value.len() as u16).to_le_bytes());
    }
    for piece in pieces {
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend_from_slice(&piece.value);
    }
    out
}

fn fits(old: &Piece<'_>, new: &Piece<'_>) -> bool {
    old.number == new.number && old.value.len() == new.value.len()
}

/// The buffer with these pieces changed, if each exists there with the same length.
fn changed_in_place<'a, 'v: 'a>(
    taken: &Taken<'_>,
    buf: &[u8],
    pieces: impl IntoIterator<Item = &'a Piece<'v>>,
) -> Option<Vec<u8>> {
    let mut out = buf.to_vec();
    for piece in pieces {
        let n = taken.pieces.iter().position(|old| fits(old, piece))?;
        let start = *taken.starts.get(n)?;
        out.get_mut(start..start + piece.value.len())?.copy_from_slice(&piece.value);
    }
    Some(out)
}

/// Changes fields of the old structure, without converting it.
fn update_znode(tx: &Tx, object: &Object, values: &[SaValue<'_>]) -> Result<(), Error> {
    let mut bonus = object.bonus().to_vec();
    znode::znode_to_native(&mut bonus, object.endian());
    for (attr, value) in values {
        let place = znode_place(*attr).filter(|(_, len)| *len == value.len());
        let place = place.and_then(|(start, len)| bonus.get_mut(start..start + len));
        place.ok_or_else(|| refused(object, "attribute of an old file", *attr as u64))?.copy_from_slice(value);
    }
    if Endian::NATIVE == Endian::Big {
        znode::znode_to_native(&mut bonus, Endian::Little);
    }
    object.set_bonus(tx, &bonus)
}

/// Start and length of an attribute in the old structure.
fn znode_place(attr: Attr) -> Option<(usize, usize)> {
    let (n, _) = Attr::ALL.iter().take(16).enumerate().find(|(_, other)| **other == attr)?;
    let len = |attr: &Attr| usize::from(attr.registration().0);
    let start = Attr::ALL.iter().take(n).map(len).sum();
    Some((start, len(&attr)))
}

/// The ZAP that the master object names, created if it is missing.
fn part(tx: &Tx, objset: &Arc<Objset>, master: ObjectId, name: &str, object_type: ObjectType) -> Result<Zap, Error> {
    let master = Zap::open(objset.object(master)?)?;
    match master.lookup_id(name)? {
        None | Some(ObjectId::NONE) => {
            master.object().share(tx)?;
            Zap::create_link(tx, &master, name, object_type)
        }
        Some(object) => Zap::open(objset.object(object)?),
    }
}

fn refused(object: &Object, what: &'static str, value: u64) -> Error {
    Error::Refused { objset: object.objset().id(), object: object.id(), what, value }
}

fn wrong_type(object: &Object, found: ObjectType) -> Error {
    Error::WrongType {
        objset: object.objset().id(),
        object: object.id(),
        found,
        wanted: "a file (by its bonus buffer)",
    }
}

/// Words as a value: in the order of this machine.
#[must_use]
pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::tests::live::pool::{TestPool, file};

    /// Another program has put attributes into a spill block that would fit into the bonus buffer.
    #[test]
    fn a_change_is_taken_back_without_a_new_layout() {
        let pool = TestPool::new();
        let tx = pool.tx(10);
        let (os, master, table) = pool.with_attributes(&tx);
        let file = file(&os, &tx, 1);
        let value = |attr: Attr, n: u64| (attr, Cow::Owned(words(&[n])));
        let values = [value(Attr::Mode, 1), value(Attr::Size, 2), value(Attr::Links, 3)];
        let [mode, size, links] = values.each_ref().map(|value| table.piece(&file, value).unwrap());
        let (front, back) = ([mode, size], [links]);
        let [bonus, spill] = table.layouts_of(&tx, &file, (&front, &back)).unwrap();
        let mut spill = pack(&back, spill);
        spill.resize(512, 0);
        file.set_bonus_and_spill(&tx, ObjectType::SA, &pack(&front, bonus), Some(spill)).unwrap();

        let layouts = || part(&tx, &os, master, "LAYOUTS", ObjectType::SA_ATTR_LAYOUTS).unwrap().count();
        table.update(&tx, &file, &[(Attr::Dxattr, Cow::Borrowed(b"first"))]).unwrap();
        let changed = layouts();
        table.remove(&tx, &file, &[Attr::Dxattr]).unwrap();
        assert_eq!(layouts(), changed);
        let now = table.attrs(&file.reload().unwrap()).unwrap();
        assert_eq!(now.present().collect::<Vec<_>>(), [Attr::Mode, Attr::Size, Attr::Links]);
        assert_eq!(now.get(Attr::Links).unwrap(), words(&[3]));
    }
}
