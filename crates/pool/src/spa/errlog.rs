//! The list of blocks known to be damaged (OpenZFS: `spa_errlog.c`).

use base::{ObjectId, Txg};

use dmu::{Tx, Zap, ZapValue};
use ondisk::ObjectType;
use vdev::LostBlock;

use crate::spa::mos::Mos;
use crate::spa::{Spa, mos, scan};
use crate::{Error, Pool};

/// The log of errors up to now, in the MOS directory.
pub(crate) const LAST: &str = "errlog_last";
/// The log of the scrub under way.
pub(crate) const SCRUB: &str = "errlog_scrub";

/// A damaged block, as a scrub or a reader recorded it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ErrorEntry {
    /// The dataset object: of the very dataset in old pools, of the head with feature `head_errlog`.
    pub objset: ObjectId,
    /// The object in it.
    pub object: ObjectId,
    /// The level of the block.
    pub level: i64,
    /// Its number.
    pub blkid: u64,
    /// When it was born, with feature `head_errlog`.
    pub birth: Option<Txg>,
    /// Whether it stands in the log of errors up to now, not in that of the scrub under way.
    pub last: bool,
}

/// A record of four hexadecimal numbers with colons between them.
fn numbers(name: &str) -> Option<[u64; 4]> {
    let mut parts = name.split(':').map(|part| u64::from_str_radix(part, 16).ok());
    let all = [parts.next()??, parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(all)
}

impl ErrorEntry {
    /// The entry of a block that a read found lost.
    fn of_lost(mos: &Mos, lost: &LostBlock, by_head: bool) -> ErrorEntry {
        let LostBlock { objset, object, level, blkid, birth } = *lost;
        let objset = if by_head { head_of(mos, objset) } else { objset };
        ErrorEntry { objset, object, level, blkid, birth: by_head.then_some(birth), last: true }
    }
}

/// The head of the directory of a dataset: losses of a snapshot are listed under it (OpenZFS: `get_head_ds`).
pub(crate) fn head_of(mos: &Mos, objset: ObjectId) -> ObjectId {
    let dir = || mos.dataset_phys(objset).and_then(|phys| mos.dir_phys(phys.dir_obj));
    // without a known head the entry names the dataset itself
    if objset == ObjectId::MOS { ObjectId::MOS } else { dir().map_or(objset, |dir| dir.head_dataset_obj) }
}

impl Pool {
    /// The blocks known to be damaged.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn errlog(&self) -> Result<Vec<ErrorEntry>, Error> {
        self.errlog_with(&[])
    }

    /// The blocks known to be damaged, with those that reads have `met` and that are not in the log yet.
    ///
    /// # Errors
    /// As [`Pool::errlog`].
    pub fn errlog_with(&self, met: &[LostBlock]) -> Result<Vec<ErrorEntry>, Error> {
        let by_head = self.feature_enabled("head_errlog");
        let mut all = read(&self.mos, LAST, by_head)?;
        all.append(&mut read(&self.mos, SCRUB, by_head)?);
        all.extend(met.iter().map(|lost| ErrorEntry::of_lost(&self.mos, lost, by_head)));
        all.sort();
        all.dedup_by(|a, b| {
            (a.objset, a.object, a.level, a.blkid, a.birth) == (b.objset, b.object, b.level, b.blkid, b.birth)
        });
        Ok(all)
    }
}

impl Spa {
    /// Adds blocks that were found lost by others who read the pool; they are entered in the error log with the next txg.
    pub fn note_lost(&self, blocks: &[LostBlock]) {
        let errors = self.zio().live_tree().errors();
        if blocks.iter().filter(|block| errors.note_lost(**block)).count() > 0 {
            self.txgs().note_work();
        }
    }

    /// Enters the blocks that reads have found lost in the error log: that of the scan under way, or that of all errors (OpenZFS:
    /// `spa_errlog_sync`).
    pub(crate) fn sync_errlog(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        let lost = self.zio().live_tree().errors().take_lost();
        if lost.is_empty() {
            return Ok(());
        }
        let own = Tx::syncing(tx.txg());
        let entered = self.enter_lost(mos, &own, &lost);
        // a log that cannot be read is no reason to stop; one that is half changed is
        entered.or_else(|error| if own.is_used() { Err(error) } else { Ok(()) })
    }

    fn enter_lost(&self, mos: &Mos, tx: &Tx, lost: &[LostBlock]) -> Result<(), Error> {
        let by_head = self.feature_enabled(mos, "head_errlog")?;
        let entries: Vec<_> = lost.iter().map(|lost| ErrorEntry::of_lost(mos, lost, by_head)).collect();
        let which = if scan::is_under_way(mos)? { SCRUB } else { LAST };
        write(mos, tx, which, &entries, by_head)
    }
}

/// The entries of the log `which`.
pub(crate) fn read(mos: &Mos, which: &str, by_head: bool) -> Result<Vec<ErrorEntry>, Error> {
    let (mut all, last) = (Vec::new(), which == LAST);
    let Some(id) = mos.id_of(which)?.filter(|id| id.is_some()) else { return Ok(all) };
    for (name, value) in mos::named_entries(&mos.zap(id)?)? {
        let broken = || Error::corrupt(id, format!("error log entry '{name}'"));
        if !by_head {
            let [objset, object, level, blkid] = numbers(&name).ok_or_else(broken)?;
            let (objset, object) = (ObjectId(objset), ObjectId(object));
            all.push(ErrorEntry { objset, object, level: level as i64, blkid, birth: None, last });
            continue;
        }
        let objset = u64::from_str_radix(&name, 16).map(ObjectId).map_err(|_| broken())?;
        for (inner, _) in mos::named_entries(&mos.zap(value.id())?)? {
            let [object, level, blkid, birth] = numbers(&inner).ok_or_else(broken)?;
            let (object, birth) = (ObjectId(object), Some(Txg(birth)));
            all.push(ErrorEntry { objset, object, level: level as i64, blkid, birth, last });
        }
    }
    Ok(all)
}

/// The name of an entry, of its four numbers.
fn name_of(numbers: [u64; 4]) -> String {
    numbers.map(|n| format!("{n:x}")).join(":")
}

/// Enters errors in the log `which`, which is made if there is none; entries that are there stay (OpenZFS: `sync_error_list`).
/// `by_head`: feature `head_errlog` is enabled; [`ErrorEntry::objset`] is then the head's.
pub(crate) fn write(mos: &Mos, tx: &Tx, which: &str, entries: &[ErrorEntry], by_head: bool) -> Result<(), Error> {
    if entries.is_empty() {
        return Ok(());
    }
    let new = || Zap::create(tx, &mos.objset, ObjectType::ERROR_LOG);
    let log = match mos.id_of(which)?.filter(|id| id.is_some()) {
        Some(id) => mos.zap(id)?,
        None => {
            let log = new()?;
            mos.directory.update_id(tx, which, log.object().id())?;
            log
        }
    };
    // the name of the dataset, which OpenZFS leaves empty
    let nothing = ZapValue::from_text("");
    for entry in entries {
        let level = entry.level.cast_unsigned();
        if !by_head {
            let name = name_of([entry.objset.0, entry.object.0, level, entry.blkid]);
            log.update_value(tx, name, &nothing)?;
            continue;
        }
        let inner = match log.lookup_int(entry.objset.0)? {
            Some(id) => mos.zap(ObjectId(id))?,
            None => {
                let inner = new()?;
                log.update_int(tx, entry.objset.0, inner.object().id().0)?;
                inner
            }
        };
        let birth = entry.birth.unwrap_or_default();
        inner.update_value(tx, name_of([entry.object.0, level, entry.blkid, birth.0]), &nothing)?;
    }
    Ok(())
}

/// Frees the log `which` (OpenZFS: `delete_errlog`).
pub(crate) fn clear(mos: &Mos, tx: &Tx, which: &str, by_head: bool) -> Result<(), Error> {
    let Some(id) = mos.id_of(which)?.filter(|id| id.is_some()) else { return Ok(()) };
    if by_head {
        for (_, value) in mos::named_entries(&mos.zap(id)?)? {
            mos.objset.free_object(tx, value.id())?;
        }
    }
    mos.objset.free_object(tx, id)?;
    Ok(mos.directory.update_id(tx, which, ObjectId::NONE)?)
}

/// Forgets the errors of a head that was destroyed (OpenZFS: `spa_delete_dataset_errlog`).
pub(crate) fn forget(mos: &Mos, tx: &Tx, head: ObjectId) -> Result<(), Error> {
    for which in [LAST, SCRUB] {
        let Some(id) = mos.id_of(which)?.filter(|id| id.is_some()) else { continue };
        let log = mos.zap(id)?;
        // without feature `head_errlog` no entry has so short a name
        if let Some(inner) = log.lookup_int(head.0)? {
            log.remove_int(tx, head.0)?;
            mos.objset.free_object(tx, ObjectId(inner))?;
        }
    }
    Ok(())
}

/// Blocks born before txg `until`, which head `from` had and head `to` has taken over, are errors of the latter (OpenZFS:
/// `spa_swap_errlog`).
pub(crate) fn hand_over(mos: &Mos, tx: &Tx, from: ObjectId, to: ObjectId, until: Txg) -> Result<(), Error> {
    for which in [LAST, SCRUB] {
        let Some(id) = mos.id_of(which)?.filter(|id| id.is_some()) else { continue };
        let Some(old) = mos.zap(id)?.lookup_int(from.0)?.map(ObjectId) else { continue };
        let mut moved = Vec::new();
        for (name, _) in mos::named_entries(&mos.zap(old)?)? {
            let numbers = numbers(&name).ok_or_else(|| Error::corrupt(old, format!("error log entry '{name}'")))?;
            let [object, level, blkid, birth] = numbers;
            if birth < until.0 {
                mos.zap(old)?.remove(tx, &name)?;
                let (object, level, birth) = (ObjectId(object), level.cast_signed(), Some(Txg(birth)));
                moved.push(ErrorEntry { objset: to, object, level, blkid, birth, last: which == LAST });
            }
        }
        write(mos, tx, which, &moved, true)?;
    }
    Ok(())
}

/// A scrub has ended: its log is that of all errors now (OpenZFS: `spa_errlog_rotate`).
pub(crate) fn rotate(mos: &Mos, tx: &Tx, by_head: bool) -> Result<(), Error> {
    clear(mos, tx, LAST, by_head)?;
    let scrub = mos.id_of(SCRUB)?.unwrap_or(ObjectId::NONE);
    mos.directory.update_id(tx, LAST, scrub)?;
    Ok(mos.directory.update_id(tx, SCRUB, ObjectId::NONE)?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn entries_are_four_hexadecimal_numbers() {
        assert_eq!(super::numbers("36:1f:0:a"), Some([0x36, 0x1f, 0, 10]));
        assert_eq!(super::name_of([0x36, 0x1f, 0, 10]), "36:1f:0:a");
        assert_eq!(super::numbers("36:1f:0"), None);
        assert_eq!(super::numbers("36:1f:0:a:b"), None);
        assert_eq!(super::numbers("36:x:0:a"), None);
    }
}
