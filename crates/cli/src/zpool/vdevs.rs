//! The vdevs of a pool as commands show them: names, states, space.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base::Guid;
use control::stats::{VdevStat, VdevStats, figures};
use nvlist::NvList;
use ondisk::label::key;
use site::Query;
use site::suspended::Suspended;
use vdev::{Health, IoFigures, QueueDepths, VdevAux, VdevConfig, VdevErrors, VdevState, VdevType};

use super::leaf_work::{Progress, Work};
use crate::console;
use crate::error::{Failure, failed};
use crate::pools;
use crate::shown;

/// The naming of leaves: the options -g, -L and -P, and the environment variables of OpenZFS.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NameFlags {
    guid: bool,
    follow: bool,
    path: bool,
}

impl NameFlags {
    /// Whole paths.
    pub(super) const PATHS: NameFlags = NameFlags { guid: false, follow: false, path: true };

    /// Takes them from the options of a command.
    pub(super) fn of(args: &crate::args::Parsed) -> NameFlags {
        let set = |name: &str| console::var(name).is_some_and(|v| v == "1" || v == "YES" || v == "yes" || v == "on");
        NameFlags {
            guid: args.has('g') || set("ZPOOL_VDEV_NAME_GUID"),
            follow: args.has('L') || set("ZPOOL_VDEV_NAME_FOLLOW_LINKS"),
            path: args.has('P') || set("ZPOOL_VDEV_NAME_PATH"),
        }
    }
}

/// The allocation class of a top-level vdev; the order is that of the sections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    Normal,
    Dedup,
    Special,
    Logs,
}

impl Class {
    /// The classes with a section of their own.
    pub(super) const SECTIONS: [Class; 3] = [Class::Dedup, Class::Special, Class::Logs];

    /// The title of the section, and the key in JSON.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Class::Normal => "normal",
            Class::Dedup => "dedup",
            Class::Special => "special",
            Class::Logs => "logs",
        }
    }
}

/// The name of the root among other vdevs.
pub(super) const ROOT: &str = "root-0";

/// The space of a top-level vdev, in bytes, parity included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub(super) size: u64,
    pub(super) allocated: u64,
    /// In percent; `None` if it is not known.
    pub(super) fragmentation: Option<u64>,
    /// Bytes that only the checkpoint holds.
    pub(super) checkpoint: u64,
}

/// A vdev with everything below it.
#[derive(Clone, Debug)]
pub(super) struct Vdev {
    pub(super) kind: VdevType,
    pub(super) guid: Guid,
    pub(super) state: VdevState,
    pub(super) aux: VdevAux,
    pub(super) errors: VdevErrors,
    pub(super) class: Class,
    /// The path of the device, or its last known path.
    pub(super) path: Option<String>,
    /// The physical path, and the device id, if recorded.
    pub(super) phys_path: Option<String>,
    pub(super) devid: Option<String>,
    /// It missed writes, and needs a resilver.
    pub(super) stale: bool,
    /// Whether a resilver brings it what it missed.
    pub(super) resilvering: bool,
    /// The device is absent.
    pub(super) not_present: bool,
    pub(super) removing: bool,
    pub(super) non_allocating: bool,
    whole_disk: bool,
    /// The type name of an inner vdev.
    type_name: String,
    /// The space of a top-level vdev.
    pub(super) space: Option<Space>,
    /// The size in bytes of a leaf's device.
    pub(super) device_size: Option<u64>,
    /// Bytes by which it could grow.
    pub(super) growth: u64,
    /// Slow operations of a leaf.
    pub(super) slow: u64,
    /// The progress of initializing and of trimming.
    work: [Progress; 2],
    /// The I/O since the import.
    pub(super) io: IoFigures,
    /// I/Os that wait, and that are active.
    pub(super) queue: QueueDepths,
    pub(super) children: Vec<Vdev>,
}

impl Vdev {
    /// The name in a pool called `pool`, on one line whatever the label says.
    pub(super) fn name(&self, pool: &str, flags: NameFlags) -> String {
        shown::on_one_line(&self.raw_name(pool, flags)).into_owned()
    }

    /// The path of the device, or its last known path, as words.
    pub(super) fn shown_path(&self) -> String {
        shown::on_one_line(self.path.as_deref().unwrap_or("")).into_owned()
    }

    fn raw_name(&self, pool: &str, flags: NameFlags) -> String {
        if self.kind == VdevType::Root {
            return pool.to_owned();
        }
        let Some(path) = self.path.as_deref() else {
            return if flags.guid { self.guid.to_string() } else { self.type_name.clone() };
        };
        if self.not_present || flags.guid {
            return self.guid.to_string();
        }
        let mut name = path.to_owned();
        if flags.follow
            && let Ok(real) = std::fs::canonicalize(path)
        {
            name = real.to_string_lossy().into_owned();
        }
        if self.kind == VdevType::Disk && !flags.path {
            name = strip_dev(&name).to_owned();
        }
        if self.whole_disk && self.kind != VdevType::DraidSpare && !flags.path {
            name = strip_partition(&name).to_owned();
        }
        name
    }

    /// The progress of work on all of it.
    pub(super) fn progress(&self, work: Work) -> Progress {
        let [initialize, trim] = self.work;
        match work {
            Work::Initialize => initialize,
            Work::Trim => trim,
        }
    }

    /// Returns whether `status` leaves it out.
    pub(super) fn is_hidden(&self) -> bool {
        matches!(self.kind, VdevType::Hole | VdevType::Indirect | VdevType::Missing)
    }

    /// The ordinary children that `list` shows: removed vdevs too.
    pub(super) fn listed(&self) -> impl Iterator<Item = &Vdev> {
        self.children.iter().filter(|v| v.class == Class::Normal && (!v.is_hidden() || v.kind == VdevType::Indirect))
    }

    /// The visible children of a class.
    pub(super) fn of_class(&self, class: Class) -> impl Iterator<Item = &Vdev> {
        self.children.iter().filter(move |v| v.class == class && !v.is_hidden())
    }

    /// This vdev and everything below it.
    pub(super) fn walk(&self) -> Vec<&Vdev> {
        let mut all = vec![self];
        let mut at = 0;
        while let Some(next) = all.get(at) {
            let children: Vec<&Vdev> = next.children.iter().collect();
            all.extend(children);
            at += 1;
        }
        all
    }

    /// The leaves that are devices.
    pub(super) fn leaves(&self) -> Vec<&Vdev> {
        self.walk().into_iter().filter(|v| v.children.is_empty() && v.kind != VdevType::Root).collect()
    }

    /// Returns whether nothing is wrong with its leaves.
    pub(super) fn is_well(&self) -> bool {
        self.leaves().iter().all(|leaf| leaf.state == VdevState::Healthy && leaf.errors.is_none() && !leaf.stale)
    }

    fn set_states(&mut self, states: &BTreeMap<Guid, Health>) {
        if let Some(health) = states.get(&self.guid) {
            (self.state, self.aux, self.not_present) = (health.state, health.aux, false);
        }
        self.children.iter_mut().for_each(|child| child.set_states(states));
    }

    /// The width needed by the names of this vdev and everything below it.
    pub(super) fn width(&self, pool: &str, flags: NameFlags, depth: usize) -> usize {
        let own = self.name(pool, flags).len() + depth;
        self.children.iter().map(|c| c.width(pool, flags, depth + 2)).fold(own, usize::max)
    }
}

/// A vdev that cannot be opened.
fn lost(kind: VdevType, aux: VdevAux) -> Vdev {
    Vdev {
        kind,
        guid: Guid(0),
        state: VdevState::CantOpen,
        aux,
        errors: VdevErrors::default(),
        class: Class::Normal,
        path: None,
        phys_path: None,
        devid: None,
        stale: false,
        resilvering: false,
        not_present: false,
        removing: false,
        non_allocating: false,
        whole_disk: false,
        type_name: kind.name().to_owned(),
        space: None,
        device_size: None,
        growth: 0,
        slow: 0,
        work: [Progress::default(); 2],
        io: IoFigures::default(),
        queue: QueueDepths::default(),
        children: Vec::new(),
    }
}

/// The name of a disk: its last component, below the folders that udev has for disks.
pub(super) fn strip_dev(path: &str) -> &str {
    const FOLDERS: [&str; 8] = [
        "/dev/disk/by-vdev/",
        "/dev/mapper/",
        "/dev/disk/by-partlabel/",
        "/dev/disk/by-partuuid/",
        "/dev/disk/by-label/",
        "/dev/disk/by-uuid/",
        "/dev/disk/by-id/",
        "/dev/disk/by-path/",
    ];
    FOLDERS.iter().chain(&["/dev/"]).find_map(|folder| path.strip_prefix(folder)).unwrap_or(path)
}

/// The name of a whole disk without the partition that OpenZFS made on it.
pub(super) fn strip_partition(path: &str) -> &str {
    let digits = path.trim_end_matches(|c: char| c.is_ascii_digit());
    if digits.len() == path.len() {
        return path;
    }
    let stem = digits.strip_suffix("-part").or_else(|| {
        let p = digits.strip_suffix('p')?;
        p.ends_with(|c: char| c.is_ascii_digit()).then_some(p)
    });
    let disk = |s: &&str| s.contains("sd") || s.contains("vd") || s.contains("hd");
    stem.or_else(|| Some(digits).filter(disk)).unwrap_or(path)
}

/// The vdevs of a pool: the tree, cache devices, spares.
#[derive(Clone, Debug)]
pub(super) struct Vdevs {
    pub(super) root: Vdev,
    pub(super) l2cache: Vec<Vdev>,
    pub(super) spares: Vec<Vdev>,
}

impl Vdevs {
    /// The vdevs of a pool, as its configuration with figures tells of them ([`Ioc::PoolStats`]).
    pub(super) fn of(config: &NvList) -> Result<Vdevs, Failure> {
        let cannot = |e: vdev::Error| {
            failed(format!("cannot open '{}': {e}", config.get_str(key::POOL_NAME).unwrap_or_default()))
        };
        let none = NvList::new();
        let root = config.get_nvlist(key::VDEV_TREE).unwrap_or(&none);
        let aside = |key: &str| root.get_nvlist_array(key).unwrap_or(&[]).iter().map(aside).collect();
        Ok(Vdevs {
            root: make(&VdevConfig::parse(root).map_err(cannot)?, Class::Normal),
            l2cache: aside(key::L2CACHE),
            spares: aside(key::SPARES),
        })
    }

    /// The vdevs of an open pool.
    pub(super) fn ask(query: &Query) -> Result<Vdevs, Failure> {
        Vdevs::of(&brief_stats(query)?)
    }

    /// The vdevs of a pool of which nothing is found: the devices that it was imported from.
    pub(super) fn of_paths(paths: &[PathBuf]) -> Vdevs {
        let leaf = |path: &PathBuf| {
            let kind = if path.starts_with("/dev") { VdevType::Disk } else { VdevType::File };
            Vdev { path: Some(path.to_string_lossy().into_owned()), ..lost(kind, VdevAux::OpenFailed) }
        };
        let root = Vdev { children: paths.iter().map(leaf).collect(), ..lost(VdevType::Root, VdevAux::NoReplicas) };
        Vdevs { root, l2cache: Vec::new(), spares: Vec::new() }
    }

    /// Sets the states of vdevs as the process has them in which the pool is suspended.
    pub(super) fn set_states(&mut self, suspended: &Suspended) {
        self.root.set_states(&suspended.vdevs);
    }

    /// The vdev that an operand names, by guid, path or name; and whether it is a spare or a cache.
    pub(super) fn find(pool: &Query, wanted: &str) -> Result<Option<(Vdev, bool)>, Failure> {
        let vdevs = Vdevs::ask(pool)?;
        let flags = NameFlags::default();
        let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        let is = |vdev: &&Vdev| {
            vdev.guid.0.to_string() == wanted
                || (vdev.kind != VdevType::Root && vdev.name(pool.name(), flags) == wanted)
                || (vdev.kind == VdevType::Root && wanted == ROOT)
                || vdev.path.as_deref().is_some_and(|path| path == wanted || base(path) == wanted)
        };
        let aside = vdevs.spares.iter().chain(&vdevs.l2cache).find(is).map(|vdev| (vdev.clone(), true));
        let inside = vdevs.root.walk().into_iter().find(|vdev| !vdev.is_hidden() && is(vdev));
        Ok(aside.or_else(|| inside.map(|vdev| (vdev.clone(), false))))
    }

    /// The vdev with this guid.
    pub(super) fn by_guid(&self, guid: Guid) -> Option<&Vdev> {
        let inside = self.root.walk().into_iter().find(|vdev| vdev.guid == guid);
        inside.or_else(|| self.l2cache.iter().chain(&self.spares).find(|vdev| vdev.guid == guid))
    }

    /// The width needed by all names.
    pub(super) fn width(&self, pool: &str, flags: NameFlags) -> usize {
        let aside = self.l2cache.iter().chain(&self.spares).map(|v| v.width(pool, flags, 2));
        aside.fold(self.root.width(pool, flags, 0), usize::max)
    }
}

/// The configuration of an open pool with the figures of its vdevs, without what takes a walk through the pool.
pub(super) fn brief_stats(query: &Query) -> Result<NvList, Failure> {
    pools::brief_stats(query).map_err(|e| failed(format!("cannot open '{}': {e}", query.name())))
}

/// As [`pools::whole_stats`].
pub(super) fn whole_stats(query: &Query) -> Result<NvList, Failure> {
    pools::whole_stats(query).map_err(|e| failed(format!("cannot open '{}': {e}", query.name())))
}

/// The class of a top-level vdev; what is below is of the same, which is `above`.
fn class_of(config: &VdevConfig, above: Class) -> Class {
    match config.alloc_bias.as_deref() {
        _ if config.is_log => Class::Logs,
        Some("log") => Class::Logs,
        Some("special") => Class::Special,
        Some("dedup") => Class::Dedup,
        _ => above,
    }
}

fn make(config: &VdevConfig, above: Class) -> Vdev {
    let class = class_of(config, above);
    let stats = VdevStats::of(&config.raw);
    let (state, aux) = stats.health();
    let text = |name: &str| config.raw.get_str(name).map(str::to_owned);
    let (size, fragmentation) = (stats.get(VdevStat::Space), stats.get(VdevStat::Fragmentation));
    Vdev {
        kind: config.kind,
        guid: config.guid,
        state,
        aux,
        errors: stats.errors(),
        class,
        path: config.path.clone(),
        phys_path: text(key::PHYS_PATH),
        devid: text(key::DEVID),
        stale: stats.get(VdevStat::ResilverDeferred) != 0,
        resilvering: stats.get(VdevStat::ScanProcessed) != 0 && state == VdevState::Healthy,
        not_present: config.not_present,
        removing: config.removing,
        non_allocating: stats.get(VdevStat::NoAlloc) != 0,
        whole_disk: config.raw.get_u64(key::WHOLE_DISK).unwrap_or(0) != 0,
        type_name: config.name(),
        space: (size > 0).then(|| Space {
            size,
            allocated: stats.get(VdevStat::Alloc),
            fragmentation: Some(fragmentation).filter(|n| *n != u64::MAX),
            checkpoint: stats.get(VdevStat::Checkpoint),
        }),
        device_size: Some(stats.get(VdevStat::Pspace)).filter(|size| *size > 0),
        growth: stats.get(VdevStat::Esize),
        slow: stats.get(VdevStat::SlowIos),
        work: [Progress::of(&stats, Work::Initialize), Progress::of(&stats, Work::Trim)],
        io: figures::io(&config.raw),
        queue: figures::queue(&config.raw),
        children: config.children.iter().map(|child| make(child, class)).collect(),
    }
}

/// A cache device or spare, as the pool's list describes it.
fn aside(list: &NvList) -> Vdev {
    let stats = VdevStats::of(list);
    let (state, aux) = stats.health();
    let text = |name: &str| list.get_str(name).map(str::to_owned);
    let kind = list.get_str(key::TYPE).and_then(VdevType::from_name).unwrap_or(VdevType::File);
    Vdev {
        guid: Guid(list.get_u64(key::GUID).unwrap_or(0)),
        state,
        path: text(key::PATH),
        phys_path: text(key::PHYS_PATH),
        devid: text(key::DEVID),
        whole_disk: list.get_u64(key::WHOLE_DISK).unwrap_or(0) != 0,
        errors: stats.errors(),
        device_size: Some(stats.get(VdevStat::Pspace)).filter(|size| *size > 0),
        slow: stats.get(VdevStat::SlowIos),
        io: figures::io(list),
        queue: figures::queue(list),
        ..lost(kind, aux)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_go_by_their_short_names() {
        assert_eq!(strip_dev("/dev/disk/by-id/ata-X"), "ata-X");
        assert_eq!(strip_dev("/dev/sda"), "sda");
        assert_eq!(strip_dev("/tmp/disk0.img"), "/tmp/disk0.img");
        assert_eq!(strip_partition("sda1"), "sda");
        assert_eq!(strip_partition("ata-X-part1"), "ata-X");
        assert_eq!(strip_partition("nvme0n1p1"), "nvme0n1");
        assert_eq!(strip_partition("loop0"), "loop0");
    }
}
