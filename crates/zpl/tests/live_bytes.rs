//! Files created next to those of the OpenZFS kernel module: the attributes on disk are the same, byte for byte.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use base::ObjectId;
use dmu::sa::Attr;
use oracle::fixtures;
use pool::{Hooks, ImportOptions, Kind as DatasetKind, ListOptions, Spa};
use vdev::{Device, FileDevice};
use zpl::live::{Cred, NewFile, Zfs};
use zpl::{FileFlags, FileSystem, Kind, Node};

/// Value of the property `acltype`.
const ACLTYPE_POSIX: u64 = 1;
/// Attributes that cannot be the same, because they depend on the time of creation.
const OF_THE_TIME: [Attr; 3] = [Attr::Gen, Attr::Ctime, Attr::Crtime];

fn import(images: &fixtures::Unpacked) -> Arc<Spa> {
    let open = |path: std::path::PathBuf| -> (std::path::PathBuf, Arc<dyn Device>) {
        let device = FileDevice::open_read_write(&path).unwrap();
        (path, Arc::new(device))
    };
    let found = vdev::import::scan_devices(images.images().into_iter().map(open).collect());
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    Spa::import(found.first().unwrap(), &options, Hooks::default()).unwrap()
}

/// Returns all files in a file system, each with its directory.
fn walk(fs: &FileSystem, dir: ObjectId, found: &mut Vec<(u64, Node)>) {
    for entry in fs.read_dir(dir).unwrap().map(Result::unwrap) {
        let node = fs.node(entry.object).unwrap();
        if node.kind() == Kind::Directory {
            walk(fs, entry.object, found);
        }
        found.push((dir.0, node));
    }
}

/// True if a file was not changed visibly, except for its contents and times.
fn is_as_made(node: &Node) -> bool {
    const CHANGED_LATER: u64 = !(FileFlags::ARCHIVE.0 | FileFlags::AV_MODIFIED.0 | FileFlags::PROJID.0 | 0x1ff);
    let attrs = node.attrs();
    let plain = attrs.links == if node.kind() == Kind::Directory { 2 } else { 1 };
    let empty = node.kind() != Kind::Directory || attrs.size == 2;
    let extras = node.raw_attr(Attr::Dxattr).is_some() || attrs.xattr_dir.is_some();
    let flags = attrs.flags.0 & CHANGED_LATER == 0 && attrs.flags.has(FileFlags::ACL_TRIVIAL);
    plain && empty && !extras && flags && node.object().spill().unwrap().is_none()
}

/// Creates a file like `node` next to it, and compares them. Returns false if its owner cannot create it.
fn compare(zfs: &Zfs, dir: ObjectId, node: &Node) -> bool {
    let attrs = node.attrs();
    let parent = zfs.getattr(dir).unwrap();
    if parent.mode & 0o2000 != 0 && parent.gid() != attrs.gid() {
        // its group was changed later
        return false;
    }
    let cred = Cred::user(attrs.uid(), attrs.gid(), []);
    let target = if node.kind() == Kind::Symlink { node.target().unwrap() } else { Vec::new() };
    let new = NewFile {
        rdev: attrs.rdev.unwrap_or(0),
        target: &target,
        times: Some((attrs.atime, attrs.mtime)),
        ..NewFile::new(node.kind(), attrs.mode & 0o7777)
    };
    let name = format!("like {}", node.id());
    let Ok((id, _)) = zfs.create(&cred, dir, name.as_bytes(), &new) else { return false };
    let made = zfs.fs().node(id).unwrap();
    let (ours, theirs) = (made.object(), node.object());
    let what = format!("{:?} {}", node.kind(), node.id());
    assert_eq!(
        (ours.phys().slots(), ours.phys().bonus_type),
        (theirs.phys().slots(), theirs.phys().bonus_type),
        "{what}"
    );
    assert_eq!(ours.phys().blkptr.len(), theirs.phys().blkptr.len(), "{what}");
    let header = usize::from(u16::from_le_bytes([theirs.bonus()[4], theirs.bonus()[5]]) >> 10) * 8;
    assert_eq!(ours.bonus()[..header], theirs.bonus()[..header], "header of {what}");
    assert_eq!(ours.bonus().len(), theirs.bonus().len(), "{what}");
    for attr in Attr::ALL.iter().filter(|attr| !OF_THE_TIME.contains(attr)) {
        let size_counts = *attr != Attr::Size || node.kind() != Kind::File;
        if size_counts {
            assert_eq!(made.raw_attr(*attr), node.raw_attr(*attr), "{attr:?} of {what}");
        }
    }
    // with the attributes that cannot be the same copied, all bytes agree
    let mut bytes = ours.bonus().to_vec();
    let masked = [(8, 16), (16, 24), (88, 120)];
    for (from, to) in masked {
        bytes[header + from..header + to].copy_from_slice(&theirs.bonus()[header + from..header + to]);
    }
    assert!(bytes == theirs.bonus(), "bytes of {what}");
    true
}

#[test]
fn attributes_are_the_kernels() {
    let images = fixtures::unpack_private("posix-a");
    let spa = import(&images);
    let mut compared: BTreeMap<u8, usize> = BTreeMap::new();
    let view = spa.view().unwrap();
    for entry in view.list(view.name(), &ListOptions::ALL).unwrap() {
        let Some(dataset) = entry.dataset().filter(|dataset| !dataset.is_snapshot()) else { continue };
        if dataset.kind().unwrap() != DatasetKind::Filesystem {
            continue;
        }
        let Ok(zfs) = Zfs::open(&spa, dataset.name()) else { continue };
        // a POSIX ACL changes the mode and leaves the NFSv4 ACL unchanged
        if zfs.settings().acltype == ACLTYPE_POSIX {
            continue;
        }
        let mut found = Vec::new();
        walk(zfs.fs(), zfs.fs().root(), &mut found);
        for (dir, node) in found.iter().filter(|(_, node)| is_as_made(node)) {
            if compare(&zfs, ObjectId(*dir), node) {
                *compared.entry(node.kind().number()).or_default() += 1;
            }
        }
    }
    let kinds = [Kind::File, Kind::Directory, Kind::Symlink].map(Kind::number);
    assert!(kinds.iter().all(|kind| compared.contains_key(kind)), "{compared:?}");
    drop(view);
    spa.export().unwrap();
}
