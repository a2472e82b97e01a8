//! The contents of objects, by type: the choice of a viewer, and the small viewers.

use std::io;

use base::bytes;
use dmu::Object;
use nvlist::NvList;
use ondisk::ObjectType;

use super::bonus::Bonus;
use super::subject::Subject;
use super::{Cx, dsl, lists, zap, znode};

/// Limit on the bytes of an array that are shown.
const ARRAY_MAX: u64 = 1 << 20;

/// The viewers, each for the types that are shown alike.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Viewer {
    Nothing,
    Zap,
    ZapShape,
    Directory,
    Registry,
    Layouts,
    Words,
    List,
    Bpobj,
    Subobjs,
    DslDir,
    DslDataset,
    History,
    Znode,
    Unknown,
}

fn viewer(kind: ObjectType) -> Viewer {
    /// Self-describing ZAPs and arrays of words, as data and as metadata.
    const NEW_ZAP: [u8; 2] = [0x84, 0xc4];
    const NEW_WORDS: [u8; 2] = [0x83, 0xc3];
    match kind {
        ObjectType::OBJECT_ARRAY | ObjectType::UINT64_OTHER => Viewer::Words,
        ObjectType::PACKED_NVLIST_SIZE | ObjectType::FUID_SIZE => Viewer::List,
        ObjectType::BPOBJ_HDR => Viewer::Bpobj,
        ObjectType::BPOBJ_SUBOBJ => Viewer::Subobjs,
        ObjectType::DSL_DIR => Viewer::DslDir,
        ObjectType::DSL_DATASET => Viewer::DslDataset,
        ObjectType::SPA_HISTORY_OFFSETS => Viewer::History,
        ObjectType::ZNODE | ObjectType::SA => Viewer::Znode,
        ObjectType::DIRECTORY_CONTENTS => Viewer::Directory,
        ObjectType::DDT_ZAP => Viewer::ZapShape,
        ObjectType::SA_ATTR_REGISTRATION => Viewer::Registry,
        ObjectType::SA_ATTR_LAYOUTS => Viewer::Layouts,
        ObjectType(n) if NEW_ZAP.contains(&n) => Viewer::Zap,
        ObjectType(n) if NEW_WORDS.contains(&n) => Viewer::Words,
        kind if kind.is_self_describing() || !kind.is_valid() => Viewer::Unknown,
        kind if kind.is_zap() => Viewer::Zap,
        _ => Viewer::Nothing,
    }
}

/// Prints the contents of the bonus buffer.
pub(super) fn bonus(cx: &mut Cx<'_>, subject: &mut Subject, object: &Object) -> io::Result<()> {
    let bonus = Bonus::of(object);
    match viewer(object.phys().bonus_type) {
        Viewer::Words => {
            let words: Vec<u64> = bytes::u64s(&bonus.bytes, bonus.endian).collect();
            words_of(cx, &words, false)
        }
        Viewer::List => packed_list(cx, object, bonus.word(0)),
        Viewer::Bpobj => lists::header(cx, object, &bonus),
        Viewer::DslDir => dsl::directory(cx, &bonus),
        Viewer::DslDataset => dsl::dataset(cx, &bonus),
        Viewer::History => history(cx, &bonus),
        Viewer::Znode => znode::show(cx, subject, object),
        other => by_object(cx, object, other),
    }
}

/// Prints the contents of the object's blocks.
pub(super) fn contents(cx: &mut Cx<'_>, subject: &mut Subject, object: &Object) -> io::Result<()> {
    match viewer(object.phys().object_type) {
        Viewer::Words => words(cx, object),
        Viewer::Znode => znode::show(cx, subject, object),
        // these have everything in the bonus buffer
        Viewer::List | Viewer::Bpobj | Viewer::DslDir | Viewer::DslDataset | Viewer::History => Ok(()),
        other => by_object(cx, object, other),
    }
}

fn by_object(cx: &mut Cx<'_>, object: &Object, viewer: Viewer) -> io::Result<()> {
    match viewer {
        Viewer::Zap => zap::show(cx, object),
        Viewer::ZapShape => zap::show_shape(cx, object),
        Viewer::Directory => zap::directory(cx, object),
        Viewer::Registry => zap::registry(cx, object),
        Viewer::Layouts => zap::layouts(cx, object),
        Viewer::Subobjs => lists::subobjs(cx, object),
        Viewer::Unknown => writeln!(cx.out, "\tUNKNOWN OBJECT TYPE"),
        _ => Ok(()),
    }
}

fn words(cx: &mut Cx<'_>, object: &Object) -> io::Result<()> {
    if cx.level < 6 {
        return Ok(());
    }
    let size = object.most_bytes();
    let shown = size.min(ARRAY_MAX);
    match object.read_u64s(0, (shown / 8) as usize) {
        Ok(words) => words_of(cx, &words, shown != size),
        Err(e) => {
            cx.complain(&e);
            writeln!(cx.out, "got error 5 from dmu_read")
        }
    }
}

fn words_of(cx: &mut Cx<'_>, words: &[u64], cut: bool) -> io::Result<()> {
    if cx.level < 6 {
        return Ok(());
    }
    write!(cx.out, "\t\t[")?;
    for (n, word) in words.iter().enumerate() {
        let gap = match n {
            0 => "",
            n if n % 4 == 0 => ",\n\t\t",
            _ => ", ",
        };
        write!(cx.out, "{gap}{word:x}")?;
    }
    writeln!(cx.out, "{}]", if cut { ", ... " } else { "" })
}

/// Prints the packed list of `size` bytes that an object holds.
fn packed_list(cx: &mut Cx<'_>, object: &Object, size: u64) -> io::Result<()> {
    let limit = object.most_bytes().min(base::tunable::ZFS_MAX_NVLIST_BYTES.get());
    let bytes = match usize::try_from(size).ok().filter(|_| size <= limit) {
        Some(size) => object.read_vec(0, size),
        None => {
            return writeln!(cx.out, "got error 22 from nvlist_unpack");
        }
    };
    let Some(bytes) = cx.told(bytes) else {
        return writeln!(cx.out, "got error 5 from dmu_read");
    };
    match NvList::unpack(&bytes) {
        Ok(list) => write!(cx.out, "{}", list.dump_escaped(8)),
        Err(e) => {
            cx.complain(&e);
            writeln!(cx.out, "got error 14 from nvlist_unpack")
        }
    }
}

fn history(cx: &mut Cx<'_>, bonus: &Bonus) -> io::Result<()> {
    let names = ["pool_create_len", "phys_max_off", "bof", "eof", "records_lost"];
    names.iter().enumerate().try_for_each(|(n, name)| writeln!(cx.out, "\t\t{name} = {}", bonus.word(n)))
}
