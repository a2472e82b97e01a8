//! The numbers of files in a mount with a control directory.
//!
//! | 16@48 | 48@0 | file |
//! |---|---|---|
//! | 0 | an object number | of the file system |
//! | 0 | the numbers below 2^48, downwards | the control directories, and the roots of snapshots, as OpenZFS numbers them |
//! | the slot of a snapshot | an object number | of that snapshot |

use base::ObjectId;

use crate::Error;
use crate::filesystem::ZFSCTL_INO_SNAPDIRS;

/// The numbers of the control directories (OpenZFS: `ZFSCTL_INO_ROOT`, `ZFSCTL_INO_SHARES`, `ZFSCTL_INO_SNAPDIR`).
const INO_ROOT: u64 = 0x0000_ffff_ffff_ffff;
const INO_SHARES: u64 = 0x0000_ffff_ffff_fffe;
const INO_SNAPDIR: u64 = 0x0000_ffff_ffff_fffd;
/// The least number of the root of a snapshot. Objects with such numbers would need a file system of 2^56 bytes of dnodes.
const SNAPDIRS_MIN: u64 = 1 << 47;
/// Bits of an object number.
const OBJECT_BITS: u32 = 48;

/// A control directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ControlDir {
    /// `.zfs`.
    Root,
    /// `.zfs/snapshot`.
    Snapshots,
    /// `.zfs/shares`.
    Shares,
}

impl ControlDir {
    pub(super) const fn id(self) -> ObjectId {
        ObjectId(match self {
            ControlDir::Root => INO_ROOT,
            ControlDir::Snapshots => INO_SNAPDIR,
            ControlDir::Shares => INO_SHARES,
        })
    }

    pub(super) const fn name(self) -> &'static [u8] {
        match self {
            ControlDir::Root => b".zfs",
            ControlDir::Snapshots => b"snapshot",
            ControlDir::Shares => b"shares",
        }
    }
}

/// The file that a number stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// A file of the file system.
    Live(ObjectId),
    Control(ControlDir),
    /// The root of the snapshot in this dataset object.
    SnapshotRoot(ObjectId),
    /// Another file of the snapshot in a slot.
    InSnapshot {
        slot: u16,
        object: ObjectId,
    },
}

impl Target {
    pub(super) const fn of(id: ObjectId) -> Target {
        let slot = (id.0 >> OBJECT_BITS) as u16;
        match id.0 {
            number if slot != 0 => Target::InSnapshot { slot, object: ObjectId(number & ((1 << OBJECT_BITS) - 1)) },
            INO_ROOT => Target::Control(ControlDir::Root),
            INO_SHARES => Target::Control(ControlDir::Shares),
            INO_SNAPDIR => Target::Control(ControlDir::Snapshots),
            number if number >= SNAPDIRS_MIN => Target::SnapshotRoot(ObjectId(ZFSCTL_INO_SNAPDIRS - number)),
            _ => Target::Live(id),
        }
    }
}

/// Returns the number of the root of a snapshot.
///
/// # Errors
/// EIO for an object number that no dataset has.
pub(super) fn snapshot_root(dataset: ObjectId) -> Result<ObjectId, Error> {
    let number = ZFSCTL_INO_SNAPDIRS.checked_sub(dataset.0).filter(|number| *number >= SNAPDIRS_MIN);
    number.map(ObjectId).ok_or_else(|| Error::corrupt(dataset, "object number of a snapshot", dataset.0))
}

/// Returns the number of a file of the snapshot in a slot other than its root.
///
/// # Errors
/// EIO for an object number that no file has.
pub(super) fn in_snapshot(slot: u16, object: ObjectId) -> Result<ObjectId, Error> {
    match object.0 >> OBJECT_BITS {
        0 => Ok(ObjectId(u64::from(slot) << OBJECT_BITS | object.0)),
        _ => Err(Error::corrupt(object, "object number", object.0)),
    }
}

/// Returns the number of a file of the file system: its object number.
///
/// # Errors
/// EIO for one that stands for another file here.
pub(super) fn live(object: ObjectId) -> Result<ObjectId, Error> {
    match Target::of(object) {
        Target::Live(id) => Ok(id),
        _ => Err(Error::corrupt(object, "object number", object.0)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_number_stands_for_one_file() {
        for dir in [ControlDir::Root, ControlDir::Snapshots, ControlDir::Shares] {
            assert_eq!(Target::of(dir.id()), Target::Control(dir));
            assert!(live(dir.id()).is_err());
        }
        for dataset in [0, 1, 77, (1 << 47) - 4].map(ObjectId) {
            assert_eq!(Target::of(snapshot_root(dataset).unwrap()), Target::SnapshotRoot(dataset));
        }
        for (slot, object) in [(1, 0), (1, 34), (u16::MAX, (1 << 48) - 1)] {
            let object = ObjectId(object);
            assert_eq!(Target::of(in_snapshot(slot, object).unwrap()), Target::InSnapshot { slot, object });
        }
        for object in [0, 34, (1 << 47) - 1].map(ObjectId) {
            assert_eq!((Target::of(object), live(object).unwrap()), (Target::Live(object), object));
        }
        assert_eq!(snapshot_root(ObjectId(5)).unwrap(), ObjectId(0xffff_ffff_fffc - 5));
        for hostile in [1 << 47, (1 << 47) - 3, u64::MAX].map(ObjectId) {
            assert!(snapshot_root(hostile).is_err(), "{hostile}");
        }
        assert!(in_snapshot(1, ObjectId(1 << 48)).is_err() && live(ObjectId(1 << 47)).is_err());
    }
}
