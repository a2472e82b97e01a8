//! `-l DEVICE`: the labels of a device, each different configuration and uberblock once.
//!
//! A label is shown whether or not its checksum is right, so that a damaged one can be inspected: that is why the
//! device is read here and not through `vdev::label`, which returns only valid ones.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use nvlist::{Limits, NvList};
use ondisk::Uberblock;
use ondisk::label::{self as layout, LABELS, key};

use crate::console;
use crate::error::{Outcome, cause};
use crate::pools::stdout;

use super::options::Options;
use super::{l2arc, labelstats, uberblock};

/// The state of a cache device in its label.
const STATE_L2CACHE: u64 = 4;
const RULE: &str = "------------------------------------";
/// Limits on a configuration: one packed area holds no more.
const LIMITS: Limits = Limits { depth: 20, pairs: 1 << 16, bytes: 16 << 20 };

/// One of the four labels.
struct Label {
    valid: bool,
    config: Option<Config>,
    /// The uberblocks by slot of the ring.
    uberblocks: Vec<Option<Slot>>,
    header_printed: bool,
}

struct Config {
    list: NvList,
    /// The packed form: equal configurations are shown once.
    packed: Vec<u8>,
}

struct Slot {
    ub: Uberblock,
    raw: Vec<u8>,
}

/// Shows the labels of `device`. Exit status 0 if all are readable, 1 if some are not, 2 if none has a configuration.
pub(super) fn run(options: &Options, device: &str) -> Outcome {
    let mut out = stdout();
    let Some(path) = find(device) else {
        writeln!(out, "failed to find device {device}, try specifying absolute path instead")?;
        out.flush()?;
        return Ok(1);
    };
    let mut file = match File::open(console::path(&path)) {
        Ok(file) => file,
        Err(e) => {
            writeln!(out, "cannot open '{}': {}", path.display(), cause(&e))?;
            out.flush()?;
            return Ok(1);
        }
    };
    let size = file.seek(SeekFrom::End(0)).unwrap_or(0);
    let mut failed = false;
    let mut ashift = 9;
    let mut labels = Vec::new();
    for n in 0..LABELS {
        let label = read(&file, size, n, &mut ashift);
        if label.is_none() && !options.has('q') && !options.json {
            writeln!(out, "failed to read label {n}")?;
        }
        failed |= label.as_ref().is_none_or(|l| l.config.is_none());
        labels.push(label);
    }
    if options.json {
        writeln!(out, "{}", json(&path, &labels).to_json())?;
    } else {
        show(&mut out, options, &mut labels, ashift)?;
        failed |= is_cache(&labels) && !l2arc::show(&mut out, options, &file)?;
    }
    out.flush()?;
    Ok(match labels.iter().flatten().any(|l| l.config.is_some()) {
        false => 2,
        true => u8::from(failed),
    })
}

/// The device of this name; a name without a folder may be one of the system's disks.
fn find(name: &str) -> Option<PathBuf> {
    const FOLDERS: [&str; 8] = [
        "/dev/disk/by-vdev",
        "/dev/mapper",
        "/dev/disk/by-partlabel",
        "/dev/disk/by-partuuid",
        "/dev/disk/by-label",
        "/dev/disk/by-uuid",
        "/dev/disk/by-id",
        "/dev",
    ];
    let plain = PathBuf::from(name);
    if plain.is_absolute() || console::path(&plain).exists() {
        return Some(plain);
    }
    let found = FOLDERS.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())?;
    // a whole disk that was given to ZFS has its data in the first partition
    let is_disk = std::fs::metadata(&found).is_ok_and(|m| m.file_type().is_block_device());
    let part = |end: &str| PathBuf::from(format!("{}{end}", found.display()));
    let first = ["-part1", "p1", "1"].iter().map(|end| part(end)).find(|path| path.exists());
    Some(first.filter(|_| is_disk).unwrap_or(found))
}

/// Reads label `n`; `ashift` is that of the last configuration met. `None` if it cannot be read.
fn read(file: &File, size: u64, n: usize, ashift: &mut u64) -> Option<Label> {
    let offset = layout::offset(size, n)?;
    let mut bytes = vec![0; layout::LABEL_SIZE as usize];
    file.read_exact_at(&mut bytes, offset).ok()?;
    let start = layout::CONFIG_OFFSET as usize;
    let area = bytes.get(start..start + layout::CONFIG_SIZE)?;
    let valid = zuse::codec::embedded::verify_label(area, offset + layout::CONFIG_OFFSET).is_ok();
    let config = NvList::unpack_with(area, &LIMITS).ok().map(|(list, used)| {
        *ashift = list.get_nvlist(key::VDEV_TREE).and_then(|tree| tree.get_u64(key::ASHIFT)).unwrap_or(9);
        Config { list, packed: area.get(..used).unwrap_or(area).to_vec() }
    });
    let slot_bytes = 1usize << layout::uberblock_shift(*ashift);
    let ring = bytes.get(layout::RING_OFFSET as usize..)?;
    let uberblocks = ring.chunks(slot_bytes).take(layout::uberblock_count(*ashift)).map(|raw| {
        let ub = Uberblock::decode(raw).ok()?;
        Some(Slot { ub, raw: raw.get(..Uberblock::SIZE).unwrap_or(raw).to_vec() })
    });
    Some(Label { valid, config, uberblocks: uberblocks.collect(), header_printed: false })
}

fn is_cache(labels: &[Option<Label>]) -> bool {
    let configs = labels.iter().flatten().filter_map(|l| l.config.as_ref());
    configs.into_iter().any(|c| c.list.get_u64(key::POOL_STATE) == Some(STATE_L2CACHE))
}

/// The labels with the same configuration.
fn alike(labels: &[Option<Label>], packed: &[u8]) -> Vec<usize> {
    with(labels, |label| label.config.as_ref().is_some_and(|c| c.packed == packed))
}

/// The labels with this uberblock in any slot.
fn holding(labels: &[Option<Label>], raw: &[u8]) -> Vec<usize> {
    with(labels, |label| label.uberblocks.iter().flatten().any(|slot| slot.raw == raw))
}

fn with(labels: &[Option<Label>], fits: impl Fn(&Label) -> bool) -> Vec<usize> {
    labels.iter().enumerate().filter(|(_, l)| l.as_ref().is_some_and(&fits)).map(|(n, _)| n).collect()
}

fn numbers(labels: &[usize]) -> String {
    labels.iter().map(|n| format!("{n} ")).collect()
}

fn show(out: &mut dyn Write, options: &Options, labels: &mut [Option<Label>], ashift: u64) -> std::io::Result<()> {
    let quiet = options.has('q');
    for n in 0..labels.len() {
        let Some(label) = labels.get(n).and_then(Option::as_ref) else { continue };
        let mut header = Header { number: n, valid: label.valid, printed: label.header_printed || quiet };
        match &label.config {
            Some(config) if !quiet => {
                let same = alike(labels, &config.packed);
                if options.level('l') >= 3 || same.first() == Some(&n) {
                    header.print(out)?;
                    write!(out, "{}", config.list.dump_escaped(4))?;
                    writeln!(out, "    labels = {}", numbers(&same))?;
                    if options.level('l') >= 2 {
                        let room = layout::CONFIG_SIZE - layout::TRAILER_SIZE;
                        labelstats::print(out, &config.list, room, options.level('l'))?;
                    }
                }
            }
            Some(_) => {}
            None if quiet => {}
            None => writeln!(out, "failed to unpack label {n}")?,
        }
        if options.has('u') {
            show_ring(out, options, labels, label, &mut header, ashift)?;
        }
        let printed = header.printed;
        if let Some(label) = labels.get_mut(n).and_then(Option::as_mut) {
            label.header_printed = printed;
        }
    }
    Ok(())
}

/// The heading of a label, which comes before whatever is shown of it first.
struct Header {
    number: usize,
    valid: bool,
    printed: bool,
}

impl Header {
    fn print(&mut self, out: &mut dyn Write) -> std::io::Result<()> {
        if std::mem::replace(&mut self.printed, true) {
            return Ok(());
        }
        let verdict = if self.valid { "" } else { "(Bad label cksum)" };
        writeln!(out, "{RULE}\nLABEL {} {verdict}\n{RULE}", self.number)
    }
}

fn show_ring(
    out: &mut dyn Write,
    options: &Options,
    labels: &[Option<Label>],
    label: &Label,
    header: &mut Header,
    ashift: u64,
) -> std::io::Result<()> {
    let level = options.level('u');
    let count = layout::uberblock_count(ashift);
    for n in 0..count {
        let Some(slot) = label.uberblocks.get(n).and_then(Option::as_ref) else {
            if level >= 2 {
                header.print(out)?;
                writeln!(out, "    Uberblock[{n}] invalid")?;
            }
            continue;
        };
        let same = holding(labels, &slot.raw);
        // the last slot belongs to the multihost check, which rewrites it continually
        let is_multihost = slot.ub.mmp.is_some_and(|mmp| mmp.delay_ns != 0) && n + 1 >= count;
        if (level < 3 && same.first() != Some(&header.number)) || (level < 4 && is_multihost) {
            continue;
        }
        header.print(out)?;
        uberblock::print(out, &slot.ub, level, &format!("    Uberblock[{n}]\n"), "")?;
        writeln!(out, "        labels = {}", numbers(&same))?;
    }
    Ok(())
}

/// All labels as a list.
fn json(path: &Path, labels: &[Option<Label>]) -> NvList {
    let mut configs: Vec<NvList> = Vec::new();
    let mut uberblocks: Vec<NvList> = Vec::new();
    for (n, label) in labels.iter().enumerate() {
        let Some(label) = label else { continue };
        if let Some(config) = &label.config {
            let same = alike(labels, &config.packed);
            if same.first() == Some(&n) {
                let mut entry = NvList::new();
                entry.insert("labels", same.iter().map(|n| *n as u64).collect::<Vec<u64>>());
                entry.insert("valid", label.valid);
                entry.insert("config", config.list.clone());
                configs.push(entry);
            }
        }
        for (slot, found) in label.uberblocks.iter().enumerate() {
            let Some(found) = found else { continue };
            let same = holding(labels, &found.raw);
            if same.first() == Some(&n) {
                let mut entry = uberblock::list(&found.ub);
                entry.insert("slot", slot as u64);
                entry.insert("labels", same.iter().map(|n| *n as u64).collect::<Vec<u64>>());
                uberblocks.push(entry);
            }
        }
    }
    let mut all = super::json::schema();
    all.insert("device", path.display().to_string());
    all.insert("labels", configs);
    all.insert("uberblocks", uberblocks);
    all
}
