//! The vdevs of a pool as commands show them: names, states, space.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use base::Guid;
use nvlist::NvList;
use ondisk::label::key;
use pool::{AllocClass, Pool, VdevSpace};
use site::suspended::Suspended;
use vdev::{Health, VdevAux, VdevConfig, VdevErrors, VdevState, VdevStatus, VdevTree, VdevType};

use crate::error::{Failure, failed};
use crate::here::here;
use crate::shown;

/// The naming of leaves: the options -g, -L and -P, and the environment variables of OpenZFS.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NameFlags {
    guid: bool,
    follow: bool,
    path: bool,
}

impl NameFlags {
    /// Takes them from the options of a command.
    pub(super) fn of(args: &crate::args::Parsed) -> NameFlags {
        let set =
            |name: &str| std::env::var_os(name).is_some_and(|v| v == "1" || v == "YES" || v == "yes" || v == "on");
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
    /// The device is absent.
    pub(super) not_present: bool,
    pub(super) removing: bool,
    pub(super) non_allocating: bool,
    whole_disk: bool,
    /// The type name of an inner vdev.
    type_name: String,
    /// The space of a top-level vdev.
    pub(super) space: Option<VdevSpace>,
    /// The size in bytes of a leaf's device.
    pub(super) device_size: Option<u64>,
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

    fn set_errors(&mut self, errors: &BTreeMap<Guid, VdevErrors>) {
        self.errors = errors.get(&self.guid).copied().unwrap_or_default();
        self.children.iter_mut().for_each(|child| child.set_errors(errors));
    }

    fn set_states(&mut self, states: &BTreeMap<u64, Health>) {
        if let Some(health) = states.get(&self.guid.0) {
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
        not_present: false,
        removing: false,
        non_allocating: false,
        whole_disk: false,
        type_name: kind.name().to_owned(),
        space: None,
        device_size: None,
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
    /// The vdevs of an open pool.
    pub(super) fn of_pool(pool: &Arc<Pool>, devices: &HashMap<Guid, String>) -> Result<Vdevs, Failure> {
        let trouble = |e: pool::Error| failed(format!("cannot open '{}': {e}", pool.name()));
        let mut vdevs = Vdevs::of_tree(pool.tree(), devices);
        for (n, vdev) in vdevs.root.children.iter_mut().enumerate() {
            vdev.space = pool.vdev_space(n as u64).map_err(trouble)?;
            let class = pool.tree().top(n as u64).map(|top| pool.vdev_class(top));
            set_class(vdev, class.map_or(Class::Normal, class_of));
        }
        vdevs.l2cache = pool.l2cache().map_err(trouble)?.iter().map(|list| aside(list, devices)).collect();
        vdevs.spares = pool.spares().map_err(trouble)?.iter().map(|list| aside(list, devices)).collect();
        Ok(vdevs)
    }

    /// The vdevs of a tree alone.
    pub(super) fn of_tree(tree: &VdevTree, devices: &HashMap<Guid, String>) -> Vdevs {
        let root = make(tree.config(), &tree.status(), tree, devices);
        Vdevs { root, l2cache: Vec::new(), spares: Vec::new() }
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

    /// Sets the error counts of all vdevs: those that all commands have met since the import.
    pub(super) fn set_errors(&mut self, errors: &BTreeMap<Guid, VdevErrors>) {
        let aside = self.l2cache.iter_mut().chain(&mut self.spares);
        aside.chain([&mut self.root]).for_each(|vdev| vdev.set_errors(errors));
    }

    /// Sets the states of vdevs as the process has them in which the pool is suspended.
    pub(super) fn set_states(&mut self, suspended: &Suspended) {
        self.root.set_states(&suspended.vdevs);
    }

    /// The vdev that an operand names, by guid, path or name; and whether it is a spare or a cache.
    pub(super) fn find(pool: &Arc<Pool>, wanted: &str) -> Result<Option<(Vdev, bool)>, Failure> {
        let vdevs = Vdevs::of_pool(pool, &here().devices(pool))?;
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

    /// The width needed by all names.
    pub(super) fn width(&self, pool: &str, flags: NameFlags) -> usize {
        let aside = self.l2cache.iter().chain(&self.spares).map(|v| v.width(pool, flags, 2));
        aside.fold(self.root.width(pool, flags, 0), usize::max)
    }
}

const fn class_of(class: AllocClass) -> Class {
    match class {
        AllocClass::Log => Class::Logs,
        AllocClass::Special => Class::Special,
        AllocClass::Dedup => Class::Dedup,
        _ => Class::Normal,
    }
}

fn set_class(vdev: &mut Vdev, class: Class) {
    vdev.class = class;
    for child in &mut vdev.children {
        set_class(child, class);
    }
}

fn make(config: &VdevConfig, status: &VdevStatus, tree: &VdevTree, devices: &HashMap<Guid, String>) -> Vdev {
    let device = tree.leaf(config.guid).and_then(|leaf| leaf.device());
    let children = config.children.iter().zip(&status.children).map(|(c, s)| make(c, s, tree, devices)).collect();
    let text = |name: &str| config.raw.get_str(name).map(str::to_owned);
    let gone = config.kind.is_leaf() && device.is_none() && status.state == VdevState::CantOpen;
    Vdev {
        kind: config.kind,
        guid: config.guid,
        state: status.state,
        aux: status.aux,
        errors: status.errors,
        class: if config.is_log { Class::Logs } else { Class::Normal },
        path: devices.get(&config.guid).cloned().or_else(|| config.path.clone()),
        phys_path: text("phys_path"),
        devid: text("devid"),
        stale: status.is_stale,
        not_present: gone || config.not_present,
        removing: config.removing,
        non_allocating: config.raw.get_u64(key::NON_ALLOCATING).unwrap_or(0) != 0,
        whole_disk: config.raw.get_u64("whole_disk").unwrap_or(0) != 0,
        type_name: config.name(),
        space: None,
        device_size: device.filter(|_| status.state >= VdevState::Degraded).map(|d| d.size()),
        children,
    }
}

/// A cache device or spare, as the pool's list describes it. It is present if its label was found.
fn aside(list: &NvList, devices: &HashMap<Guid, String>) -> Vdev {
    let guid = Guid(list.get_u64(key::GUID).unwrap_or(0));
    let text = |name: &str| list.get_str(name).map(str::to_owned);
    let here = devices.get(&guid);
    let kind = list.get_str(key::TYPE).and_then(VdevType::from_name).unwrap_or(VdevType::File);
    let (state, aux) = match here.is_some() || kind == VdevType::DraidSpare {
        _ if list.get_u64(key::OFFLINE) == Some(1) => (VdevState::Offline, VdevAux::None),
        true => (VdevState::Healthy, VdevAux::None),
        false => (VdevState::CantOpen, VdevAux::OpenFailed),
    };
    Vdev {
        kind,
        guid,
        state,
        aux,
        errors: VdevErrors::default(),
        class: Class::Normal,
        path: here.cloned().or_else(|| text(key::PATH)),
        phys_path: text("phys_path"),
        devid: text("devid"),
        stale: false,
        not_present: false,
        removing: false,
        non_allocating: false,
        whole_disk: list.get_u64("whole_disk").unwrap_or(0) != 0,
        type_name: kind.name().to_owned(),
        space: None,
        device_size: here.and_then(|path| std::fs::metadata(path).ok()).map(|m| m.len()),
        children: Vec::new(),
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
