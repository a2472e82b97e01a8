//! `-s`: the space of each vdev, reads, and the errors of each device.

use std::io::{self, Write};
use std::sync::Arc;

use pool::prop::nicenum;
use pool::{AllocClass, Pool};
use vdev::{TopVdev, VdevConfig};

use crate::error::Failure;

use super::text::trouble;

/// The figures of one vdev.
#[derive(Default)]
struct Line {
    /// Bytes in total and allocated; `None` for a device below a top-level vdev.
    space: Option<(u64, u64)>,
    /// Reads and their bytes; known for the pool alone.
    reads: Option<(u64, u64)>,
    read_errors: u64,
    checksum_errors: u64,
}

/// Shows the pool and all its vdevs.
pub(super) fn show(out: &mut dyn Write, pool: &Arc<Pool>) -> Result<(), Failure> {
    writeln!(out, "{:27} capacity   operations   bandwidth  ---- errors ----", "")?;
    writeln!(out, "description                used avail  read write  read write  read write cksum")?;
    let stats = pool.zio().stats();
    let (mut size, mut used) = (0, 0);
    for top in pool.tree().tops().iter().filter(|top| pool.vdev_class(top) != AllocClass::Log) {
        let (of_top, used_of_top) = space_of(pool, top)?.unwrap_or_default();
        (size, used) = (u64::saturating_add(size, of_top), u64::wrapping_add(used, used_of_top));
    }
    let line =
        Line { space: Some((size, used)), reads: Some((stats.blocks.get(), stats.bytes.get())), ..Line::default() };
    line.print(out, 0, pool.name(), "")?;
    for top in pool.tree().tops().iter().filter(|top| top.is_concrete() || top.is_indirect()) {
        let suffix = match pool.vdev_class(top) {
            AllocClass::Log => " (log)",
            AllocClass::Special => " (special)",
            AllocClass::Dedup => " (dedup)",
            _ => "",
        };
        show_vdev(out, pool, top.config(), 2, suffix, space_of(pool, top)?)?;
    }
    Ok(())
}

/// The size, and the bytes allocated by the space maps alone, as everywhere in zdb.
fn space_of(pool: &Arc<Pool>, top: &TopVdev) -> Result<Option<(u64, u64)>, Failure> {
    if !top.is_concrete() {
        return Ok(None);
    }
    let metaslabs = pool.metaslabs(top.id()).map_err(trouble)?;
    let used = metaslabs.iter().filter_map(|m| m.header.as_ref()).map(|h| h.alloc as u64);
    let size = metaslabs.iter().map(|m| m.size).fold(0, u64::saturating_add);
    Ok(Some((size, used.fold(0, u64::wrapping_add))))
}

fn show_vdev(
    out: &mut dyn Write,
    pool: &Pool,
    vdev: &VdevConfig,
    indent: usize,
    suffix: &str,
    space: Option<(u64, u64)>,
) -> io::Result<()> {
    let errors = pool.zio().stats().leaves().get(&vdev.guid).copied().unwrap_or_default();
    let name = match (&vdev.path, vdev.nparity) {
        (Some(_), _) => found_at(pool, vdev),
        (None, 0) => vdev.kind.name().to_owned(),
        (None, parity) => format!("{}{parity}", vdev.kind.name()),
    };
    let line = Line { space, reads: None, read_errors: errors.io, checksum_errors: errors.checksum };
    line.print(out, indent, &name, suffix)?;
    vdev.children.iter().try_for_each(|child| show_vdev(out, pool, child, indent + 2, "", None))
}

/// The path at which a device was found, or else the one in its configuration.
pub(super) fn found_at(pool: &Pool, vdev: &VdevConfig) -> String {
    let device = pool.tree().leaf(vdev.guid).and_then(|leaf| leaf.device());
    device.map(|d| d.name()).or_else(|| vdev.path.clone()).unwrap_or_default()
}

impl Line {
    fn print(&self, out: &mut dyn Write, indent: usize, name: &str, suffix: &str) -> io::Result<()> {
        let width = (indent + name.len()) as i64 - 25 - if self.space.is_some() { 0 } else { 12 };
        let suffix = match usize::try_from(width) {
            Ok(width) => format!("{suffix:>width$}"),
            Err(_) => format!("{suffix:<width$}", width = width.unsigned_abs() as usize),
        };
        let space = match self.space {
            Some((size, used)) => format!("{:>6}{:>6}", nicenum(used), nicenum(size.saturating_sub(used))),
            None => String::new(),
        };
        let known = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), nicenum);
        let (ops, bytes) = (known(self.reads.map(|r| r.0)), known(self.reads.map(|r| r.1)));
        let (io, sums) = (nicenum(self.read_errors), nicenum(self.checksum_errors));
        let zero = "0";
        writeln!(
            out,
            "{:indent$}{name}{suffix}{space} {ops:>5} {zero:>5} {bytes:>5} {zero:>5} {io:>5} {zero:>5} {sums:>5}",
            ""
        )
    }
}
