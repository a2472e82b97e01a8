//! Files: the attributes in a bonus buffer, and the path of the file.

use std::io;

use base::ObjectId;
use dmu::Object;
use dmu::sa::{Attr, SaAttrs};
use nvlist::{NvList, Value};
use zpl::{FileFlags, FileSystem, Fuid, FuidTable};

use super::super::text::ctime;
use super::Cx;
use super::subject::Subject;

/// The attributes that must exist for anything to be shown.
const NEEDED: [Attr; 12] = [
    Attr::Uid,
    Attr::Gid,
    Attr::Links,
    Attr::Gen,
    Attr::Mode,
    Attr::Parent,
    Attr::Size,
    Attr::Atime,
    Attr::Mtime,
    Attr::Crtime,
    Attr::Ctime,
    Attr::Flags,
];
const S_IFMT: u64 = 0o170_000;
const S_IFLNK: u64 = 0o120_000;
/// Longest target of a symbolic link.
const TARGET_MAX: usize = 4096;
/// Size of an object set that has space accounting of projects.
const OBJSET_WITH_PROJECTS: u64 = 4096;

/// Prints the attributes of the file in an object.
pub(super) fn show(cx: &mut Cx<'_>, subject: &mut Subject, object: &Object) -> io::Result<()> {
    let Some(fs) = subject.fs.clone() else {
        return writeln!(cx.out, "Failed to get handle for SA znode");
    };
    let attrs = match fs.sa().attrs(object) {
        Ok(attrs) => attrs,
        Err(e) => {
            cx.complain(&e);
            return writeln!(cx.out, "Failed to get handle for SA znode");
        }
    };
    if let Some(e) = attrs.spill_error() {
        cx.complain(e);
    }
    if NEEDED.iter().any(|attr| attrs.get(*attr).is_none()) {
        return Ok(());
    }
    if cx.level > 4 {
        path(cx, subject, &fs, object.id())?;
    }
    let word = |attr| attrs.u64(attr).unwrap_or(0);
    if word(Attr::Mode) & S_IFMT == S_IFLNK && object.phys().bonus_type == ondisk::ObjectType::SA {
        target(cx, &attrs)?;
    }
    id(cx, &fs, "uid", word(Attr::Uid))?;
    id(cx, &fs, "gid", word(Attr::Gid))?;
    for (name, attr) in
        [("atime", Attr::Atime), ("mtime", Attr::Mtime), ("ctime", Attr::Ctime), ("crtime", Attr::Crtime)]
    {
        writeln!(cx.out, "\t{name}\t{}", ctime(attrs.time(attr).map_or(0, |(seconds, _)| seconds)))?;
    }
    writeln!(cx.out, "\tgen\t{}", word(Attr::Gen))?;
    writeln!(cx.out, "\tmode\t{:o}", word(Attr::Mode))?;
    writeln!(cx.out, "\tsize\t{}", word(Attr::Size))?;
    writeln!(cx.out, "\tparent\t{}", word(Attr::Parent))?;
    writeln!(cx.out, "\tlinks\t{}", word(Attr::Links))?;
    writeln!(cx.out, "\tpflags\t{:x}", word(Attr::Flags))?;
    let projects = subject.objset.rootbp().lsize() >= OBJSET_WITH_PROJECTS && cx.pool.feature_enabled("project_quota");
    if projects
        && FileFlags(word(Attr::Flags)).has(FileFlags::PROJID)
        && let Some(project) = attrs.u64(Attr::Projid)
    {
        writeln!(cx.out, "\tprojid\t{project}")?;
    }
    if let Some(xattr) = attrs.u64(Attr::Xattr) {
        writeln!(cx.out, "\txattr\t{xattr}")?;
    }
    if let Some(rdev) = attrs.u64(Attr::Rdev) {
        writeln!(cx.out, "\trdev\t{rdev:#018x}")?;
    }
    xattrs(cx, &attrs)
}

fn path(cx: &mut Cx<'_>, subject: &mut Subject, fs: &FileSystem, object: ObjectId) -> io::Result<()> {
    if subject.unlinked.contains(&object) {
        return writeln!(cx.out, "\tpath\ton delete queue");
    }
    match subject.paths.of(fs, object) {
        Some(path) => {
            cx.out.write_all(b"\tpath\t")?;
            cx.out.write_all(&path)?;
            writeln!(cx.out)
        }
        None => {
            subject.leaked += 1;
            writeln!(cx.out, "\tpath\tpath not found, possibly leaked")
        }
    }
}

fn target(cx: &mut Cx<'_>, attrs: &SaAttrs) -> io::Result<()> {
    match attrs.get(Attr::Symlink) {
        None | Some([]) => Ok(()),
        Some(target) if target.len() >= TARGET_MAX => {
            writeln!(cx.out, "symlink size {} is too large", target.len())
        }
        Some(target) => {
            cx.out.write_all(b"\ttarget\t")?;
            cx.out.write_all(base::bytes::until_nul(target))?;
            writeln!(cx.out)
        }
    }
}

fn id(cx: &mut Cx<'_>, fs: &FileSystem, name: &str, id: u64) -> io::Result<()> {
    let fuid = Fuid(id);
    if fuid.domain_index() == 0 {
        return writeln!(cx.out, "\t{name}     {id}");
    }
    let nothing = FuidTable::default();
    let table = cx.told(fs.fuids()).unwrap_or(&nothing);
    let domain = table.domain(fuid.domain_index()).unwrap_or("");
    writeln!(cx.out, "\t{name}     {id:x} [{domain}-{}]", fuid.rid().cast_signed())
}

/// Prints the extended attributes that are stored among the system attributes.
fn xattrs(cx: &mut Cx<'_>, attrs: &SaAttrs) -> io::Result<()> {
    let Some(packed) = attrs.get(Attr::Dxattr).filter(|packed| !packed.is_empty()) else { return Ok(()) };
    let Some(list) = cx.told(NvList::unpack(packed)) else { return Ok(()) };
    writeln!(cx.out, "\tSA xattrs: {} bytes, {} entries\n", packed.len(), list.len())?;
    for (name, value) in list.iter_bytes() {
        cx.out.write_all(b"\t\t")?;
        cx.out.write_all(name)?;
        cx.out.write_all(b" = ")?;
        let bytes: &[u8] = match value {
            Value::ByteArray(bytes) | Value::Uint8Array(bytes) => bytes,
            _ => &[],
        };
        let is_text = !cx.options.has('P') && bytes.iter().all(|b| matches!(b, b' '..=b'~'));
        if is_text {
            cx.out.write_all(bytes)?;
        } else {
            bytes.iter().try_for_each(|b| write!(cx.out, "\\{b:03o}"))?;
        }
        writeln!(cx.out)?;
    }
    Ok(())
}
