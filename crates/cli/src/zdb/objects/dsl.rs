//! Bonus buffers of the DSL: directories and datasets.

use std::io;

use ondisk::dsl::{DslDatasetPhys, DslDirPhys};
use zuse::zil::ShowBlkPtr;

use super::super::text::ctime;
use super::Cx;
use super::bonus::Bonus;

/// Prints a directory.
pub(super) fn directory(cx: &mut Cx<'_>, bonus: &Bonus) -> io::Result<()> {
    let Some(dd) = cx.told(DslDirPhys::decode(&bonus.bytes, bonus.endian)) else { return Ok(()) };
    writeln!(cx.out, "\t\tcreation_time = {}", ctime(dd.creation_time.cast_signed()))?;
    let ids = [
        ("head_dataset_obj", dd.head_dataset_obj.0),
        ("parent_dir_obj", dd.parent_obj.0),
        ("origin_obj", dd.origin_obj.0),
        ("child_dir_zapobj", dd.child_dir_zapobj.0),
    ];
    let space = [
        ("used_bytes", dd.used_bytes),
        ("compressed_bytes", dd.compressed_bytes),
        ("uncompressed_bytes", dd.uncompressed_bytes),
        ("quota", dd.quota),
        ("reserved", dd.reserved),
    ];
    let zaps = [("props_zapobj", dd.props_zapobj.0), ("deleg_zapobj", dd.deleg_zapobj.0)];
    let used = &dd.used_breakdown;
    let breakdown = [
        ("HEAD", used.head),
        ("SNAP", used.snap),
        ("CHILD", used.child),
        ("CHILD_RSRV", used.child_rsrv),
        ("REFRSRV", used.refrsrv),
    ];
    numbers(cx, &ids)?;
    nice(cx, &space)?;
    numbers(cx, &zaps)?;
    writeln!(cx.out, "\t\tflags = {:x}", dd.flags)?;
    for (name, n) in breakdown {
        let n = cx.number(n);
        writeln!(cx.out, "\t\tused_breakdown[{name}] = {n}")?;
    }
    numbers(cx, &[("clones", dd.clones.0)])
}

/// Prints a dataset.
pub(super) fn dataset(cx: &mut Cx<'_>, bonus: &Bonus) -> io::Result<()> {
    let Some(ds) = cx.told(DslDatasetPhys::decode(&bonus.bytes, bonus.endian)) else { return Ok(()) };
    numbers(
        cx,
        &[
            ("dir_obj", ds.dir_obj.0),
            ("prev_snap_obj", ds.prev_snap_obj.0),
            ("prev_snap_txg", ds.prev_snap_txg.0),
            ("next_snap_obj", ds.next_snap_obj.0),
            ("snapnames_zapobj", ds.snapnames_zapobj.0),
            ("num_children", ds.num_children),
            ("userrefs_obj", ds.userrefs_obj.0),
        ],
    )?;
    writeln!(cx.out, "\t\tcreation_time = {}", ctime(ds.creation_time.cast_signed()))?;
    numbers(cx, &[("creation_txg", ds.creation_txg.0), ("deadlist_obj", ds.deadlist_obj.0)])?;
    nice(
        cx,
        &[
            ("used_bytes", ds.referenced_bytes),
            ("compressed_bytes", ds.compressed_bytes),
            ("uncompressed_bytes", ds.uncompressed_bytes),
            ("unique", ds.unique_bytes),
        ],
    )?;
    numbers(cx, &[("fsid_guid", ds.fsid_guid), ("guid", ds.guid.0)])?;
    writeln!(cx.out, "\t\tflags = {:x}", ds.flags)?;
    numbers(cx, &[("next_clones_obj", ds.next_clones_obj.0), ("props_obj", ds.props_obj.0)])?;
    writeln!(cx.out, "\t\tbp = {}", ShowBlkPtr(&ds.bp))
}

fn numbers(cx: &mut Cx<'_>, lines: &[(&str, u64)]) -> io::Result<()> {
    lines.iter().try_for_each(|(name, n)| writeln!(cx.out, "\t\t{name} = {n}"))
}

fn nice(cx: &mut Cx<'_>, lines: &[(&str, u64)]) -> io::Result<()> {
    for (name, n) in lines {
        let n = cx.number(*n);
        writeln!(cx.out, "\t\t{name} = {n}")?;
    }
    Ok(())
}
