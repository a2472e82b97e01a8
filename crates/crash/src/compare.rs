//! Comparison of an object set with the model.

use std::sync::Arc;

use base::ObjectId;
use dmu::{Object, Objset, Zap, ZapValue};

use crate::model::{Data, Entries, Model, Thing};

/// The error is a description of the difference, or of a failed read.
pub type Result<T> = std::result::Result<T, String>;

/// Adds context to an error.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: std::fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| format!("{}: {e}", what()))
    }
}

/// Compares all objects with all their bytes and entries.
///
/// # Errors
/// The first difference.
pub fn compare(objset: &Arc<Objset>, model: &Model) -> Result<()> {
    let found = objset.objects().map(|object| object.map(|object| object.id()));
    let found: Vec<ObjectId> = found.collect::<std::result::Result<_, _>>().context(|| "objects".to_string())?;
    let wanted: Vec<ObjectId> = model.objects.keys().copied().collect();
    if found != wanted {
        return Err(format!("the objects are {found:?}, not {wanted:?}"));
    }
    for (id, thing) in &model.objects {
        let object = objset.object(*id).context(|| format!("object {id}"))?;
        let same = match &**thing {
            Thing::Data(data) => compare_data(&object, data),
            Thing::Zap(zap) => compare_zap(object, zap),
        };
        same.context(|| format!("object {id}"))?;
    }
    Ok(())
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, wanted: T) -> Result<()> {
    if found == wanted { Ok(()) } else { Err(format!("{what} is {found:?}, not {wanted:?}")) }
}

/// Compares bytes, and reports the first difference.
pub(crate) fn same_bytes(what: impl FnOnce() -> String, found: &[u8], wanted: &[u8]) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    let at = found.iter().zip(wanted).position(|(a, b)| a != b).unwrap_or(found.len().min(wanted.len()));
    let some = |bytes: &[u8]| bytes.get(at..).map(|rest| rest[..rest.len().min(8)].to_vec()).unwrap_or_default();
    let (lens, zeros) = ((found.len(), wanted.len()), found.iter().all(|byte| *byte == 0));
    let (found, wanted) = (some(found), some(wanted));
    Err(format!(
        "{}: byte {at} of {lens:?}: {found:x?}, not {wanted:x?}{}",
        what(),
        if zeros { "; all zeros" } else { "" }
    ))
}

fn compare_data(object: &Object, data: &Data) -> Result<()> {
    same("number of slots", object.phys().slots(), data.slots)?;
    same("block size", object.block_size(), data.block_size)?;
    same_bytes(|| "bonus buffer".to_string(), object.bonus(), &data.bonus)?;
    let spill = object.spill().context(|| "spill block".to_string())?;
    same("whether there is a spill block", spill.is_some(), data.spill.is_some())?;
    if let (Some(found), Some(wanted)) = (&spill, &data.spill) {
        same_bytes(|| "spill block".to_string(), found, wanted)?;
    }
    let zeros = vec![0; data.block_size as usize];
    for (number, wanted) in &data.blocks {
        let found = object.block(*number).context(|| format!("block {number}"))?;
        same_bytes(|| format!("block {number}"), found.as_deref().unwrap_or(&zeros), wanted)?;
    }
    // everything else must be zeros
    let mut at = 0;
    while let Some(found) = object.next_data(at).context(|| format!("data from {at}"))? {
        let number = found / data.block_size;
        if !data.blocks.contains_key(&number) {
            let block = object.block(number).context(|| format!("block {number}"))?;
            same_bytes(|| format!("freed block {number}"), block.as_deref().unwrap_or(&zeros), &zeros)?;
        }
        at = (number + 1).saturating_mul(data.block_size);
    }
    Ok(())
}

fn compare_zap(object: Object, wanted: &Entries) -> Result<()> {
    same("number of slots", object.phys().slots(), wanted.slots)?;
    let zap = Zap::open(object).context(|| "ZAP".to_string())?;
    same("number of entries", zap.count(), wanted.entries.len() as u64)?;
    let mut seen = 0;
    for entry in zap.entries().context(|| "entries".to_string())? {
        let entry = entry.context(|| "entries".to_string())?;
        let name = entry.name_lossy().into_owned();
        let Some((width, ints)) = wanted.entries.get(&name) else { return Err(format!("entry {name:?} was removed")) };
        same(&format!("entry {name:?}"), &entry.value, &ZapValue::from_ints(*width, ints))?;
        seen += 1;
    }
    same("number of entries listed", seen, wanted.entries.len())?;
    // look up some of them by name: it is slow
    for (name, (width, ints)) in wanted.entries.iter().step_by(1 + wanted.entries.len() / 50) {
        let found = zap.lookup(name).context(|| format!("entry {name:?}"))?;
        same(&format!("entry {name:?}"), found.as_ref(), Some(&ZapValue::from_ints(*width, ints)))?;
    }
    match zap.lookup("no such name").context(|| "lookup".to_string())? {
        Some(found) => Err(format!("an entry that was never added: {found:?}")),
        None => Ok(()),
    }
}
