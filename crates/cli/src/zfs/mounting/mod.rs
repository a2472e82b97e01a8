//! Mounting and unmounting, as commands do it: what of a file system says where and how it is mounted, and OpenZFS's messages (OpenZFS:
//! `libzfs_mount.c`).
//!
//! A command in a server has the table of mounts ([`console::mounts`]); then mounts follow what commands do to datasets: [`changes`] for names and mount
//! points, [`follow_props`] for the other properties, [`mount_new`] for what is created, [`of_pool`] for imports and exports. Without a table none of
//! this does anything.

pub(in crate::zfs) mod changes;
pub(in crate::zfs) mod of_pool;
pub(in crate::zfs) mod options;
pub(in crate::zfs) mod snapdir;

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use base::Errno;
use control::Failed;
use mounts::{Entry, Flag, How, Mounts, Source, Unmount, has_entries, make_point};
use pool::Pool;
use pool::prop::{self, Source as PropSource};

use super::listed::{Listed, Wanted};
use super::select::{self, told};
use super::session::Session;
use super::words;
use crate::columns::Column;
use crate::console::{self, here};
use crate::error::{Failure, failed};
use crate::names::{Types, pool_of};
use crate::{keys, pools};
use options::Options;

/// The properties that are looked at.
const PROPS: [&str; 15] = [
    "mountpoint",
    "canmount",
    "overlay",
    "zoned",
    "keystatus",
    "encryptionroot",
    "inconsistent",
    "redacted",
    "readonly",
    "atime",
    "relatime",
    "exec",
    "devices",
    "setuid",
    "nbmand",
];

/// Values of `canmount`.
pub(super) const CANMOUNT_OFF: u64 = 0;
pub(super) const CANMOUNT_ON: u64 = 1;
pub(super) const CANMOUNT_NOAUTO: u64 = 2;

/// What is asked of file systems that may be mounted.
pub(super) fn wanted() -> Wanted {
    Wanted::props(&PROPS)
}

/// What says where, how and whether a file system is mounted.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) name: String,
    /// The property `mountpoint`: a path, `legacy`, `none`.
    pub(super) mountpoint: String,
    /// That is not set here, but comes from above.
    pub(super) is_inherited: bool,
    pub(super) canmount: u64,
    pub(super) overlay: bool,
    pub(super) zoned: bool,
    pub(super) lacks_key: bool,
    pub(super) encryption_root: Option<String>,
    pub(super) inconsistent: bool,
    pub(super) redacted: bool,
    /// How it is mounted without options.
    pub(super) how: How,
}

impl Facts {
    pub(super) fn of(dataset: &Listed) -> Result<Facts, Failure> {
        let cannot = |e: Failed| failed(told(&e, dataset.name()));
        let is = |name: &str, default: bool| match dataset.number(name) {
            Ok(number) => Ok(number.map_or(default, |number| number != 0)),
            Err(e) => Err(cannot(e)),
        };
        let column = prop::find("mountpoint").map(Column::native);
        let mountpoint = column.map(|column| dataset.cell(&column, false)).transpose()?.flatten();
        let mut values = How::default();
        for flag in Flag::ALL {
            values.set_prop(flag, is(flag.property(), values.value(flag))?);
        }
        Ok(Facts {
            name: dataset.name().to_owned(),
            is_inherited: mountpoint
                .as_ref()
                .is_some_and(|cell| matches!(cell.source, PropSource::Default | PropSource::Inherited(_))),
            mountpoint: mountpoint.map(|cell| cell.text).unwrap_or_default(),
            canmount: dataset.number("canmount").map_err(cannot)?.unwrap_or(CANMOUNT_ON),
            overlay: is("overlay", true)?,
            zoned: is("zoned", false)?,
            lacks_key: dataset.lacks_key().map_err(cannot)?,
            encryption_root: dataset.text("encryptionroot").map_err(cannot)?,
            inconsistent: is("inconsistent", false)?,
            redacted: is("redacted", false)?,
            how: values,
        })
    }

    /// Those of a file system as it is now.
    pub(super) fn now(name: &str) -> Result<Facts, Failure> {
        Facts::of(&select::find_with(name, Types::FILESYSTEMS, &wanted())?)
    }

    /// The path of its mount point, if it has one.
    pub(super) fn point(&self) -> Option<&Path> {
        self.mountpoint.starts_with('/').then(|| Path::new(&self.mountpoint))
    }

    pub(super) fn is_legacy(&self) -> bool {
        self.mountpoint == "legacy"
    }

    /// Where it is to be mounted, if it can be (OpenZFS: `zfs_is_mountable`).
    pub(super) fn mountable(&self, force: bool) -> Option<&Path> {
        let bars = self.canmount == CANMOUNT_OFF || self.zoned || (self.redacted && !force);
        self.point().filter(|_| !bars)
    }

    /// Removes its mount point, if that comes from above and nothing is in it (OpenZFS: `remove_mountpoint`).
    pub(super) fn remove_point(&self) {
        if let Some(point) = self.mountable(false).filter(|_| self.is_inherited) {
            // one that is not empty stays
            let _ = std::fs::remove_dir(point);
        }
    }

    /// Why it is not mounted when it is named, or with all others (`None`: without a word) (OpenZFS: `share_mount_one`).
    pub(super) fn bar(&self, how: Ask) -> Result<(), Option<String>> {
        let said = |why: &str| Err(Some(why.to_owned()));
        let what = how.what;
        if self.zoned {
            return said("dataset is exported to a local zone");
        }
        match self.mountpoint.as_str() {
            "legacy" => {
                return Err(Some(format!("legacy mountpoint\nuse {what}(8) to {what} this filesystem")));
            }
            "none" => return said("no mountpoint set"),
            _ => {}
        }
        match self.canmount {
            CANMOUNT_OFF => return said("'canmount' property is set to 'off'"),
            CANMOUNT_NOAUTO if !how.named => return Err(None),
            _ => {}
        }
        if self.lacks_key && !how.loads_keys {
            return said("encryption key not loaded");
        }
        if self.inconsistent {
            return said(
                "Contains partially-completed state from \"zfs receive -s\", which can be resumed with \"zfs send -t\"",
            );
        }
        if self.redacted && !how.force {
            return said("Dataset is not complete, was created by receiving a redacted zfs send stream.");
        }
        Ok(())
    }
}

/// How a command asks for mounts, or shares.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// `mount`, `share`.
    pub(super) what: &'static str,
    /// The file system is named.
    pub(super) named: bool,
    pub(super) force: bool,
    pub(super) overlay: bool,
    pub(super) loads_keys: bool,
}

impl Ask {
    /// A mount that follows another command.
    pub(super) const FOLLOWS: Ask = Ask { what: "mount", named: true, force: false, overlay: false, loads_keys: false };
}

/// The open pool that a dataset is in.
pub(super) fn source(session: &Session, name: &str) -> Result<Source, Failure> {
    let pool = pool_of(name);
    match here().find(pool)? {
        Some(record) if record.readonly => Ok(still(pools::open(&record)?)),
        _ => Ok(Source::Live(Arc::clone(session.control(name)?.spa()))),
    }
}

/// A pool that is only read. As long as something of it is mounted, requests do not export it.
fn still(pool: Arc<Pool>) -> Source {
    let (machine, guid) = (here().machine(), pool.guid());
    Source::Still(pool, Arc::new(move || -> Box<dyn Any + Send + Sync> { Box::new(machine.mounted(guid)) }))
}

/// Mounts a file system where its properties say; one that cannot be is passed over (OpenZFS: `zfs_mount`).
pub(super) fn mount(
    table: &Mounts,
    source: &Source,
    facts: &Facts,
    options: &Options,
    ask: Ask,
) -> Result<(), Failure> {
    match facts.mountable(ask.force) {
        Some(point) => mount_at(table, source, facts, point, options, ask),
        None => Ok(()),
    }
}

/// Mounts a file system at a mount point, which is made if it is not there (OpenZFS: `zfs_mount_at`).
pub(super) fn mount_at(
    table: &Mounts,
    source: &Source,
    facts: &Facts,
    point: &Path,
    options: &Options,
    ask: Ask,
) -> Result<(), Failure> {
    let shown = point.display();
    let mut how = facts.how;
    if matches!(source, Source::Still(..)) {
        how.set_option(Flag::ReadOnly, true);
    }
    options.apply(&mut how);
    if facts.lacks_key {
        if !ask.loads_keys {
            return Err(failed(format!("cannot mount '{shown}': encryption key not loaded")));
        }
        load_key(facts)?;
    }
    if options.remount {
        return remount(table, facts, how);
    }
    make_point(point)
        .map_err(|e| failed(format!("cannot mount '{shown}': failed to create mountpoint: {}", strerror(e.errno()))))?;
    if !ask.overlay && !facts.overlay && has_entries(point) {
        return Err(failed(format!("cannot mount '{shown}': directory is not empty")));
    }
    table.mount(source, &facts.name, point, how).map_err(|e| match why_not_mounted(&facts.name, &e) {
        Failure::Failed(why) => failed(why + &advice_for_users(table, point, &e)),
        other => other,
    })
}

/// What a user can do who cannot mount inside of another mount of his.
fn advice_for_users(table: &Mounts, point: &Path, e: &mounts::Error) -> String {
    let is_by_helper = matches!(e, mounts::Error::Mount(fuse::Error::Helper { .. }));
    match table.containing(point).filter(|_| is_by_helper) {
        Some(outer) => {
            let outer = outer.name();
            format!(
                "\nfusermount3 works as root, and may not be let into the mount of '{outer}': set 'user_allow_other' in /etc/fuse.conf and mount \
                 '{outer}' again with '-o allow_other', or set canmount=off for '{outer}'"
            )
        }
        None => String::new(),
    }
}

fn why_not_mounted(name: &str, e: &mounts::Error) -> Failure {
    let why = match e.errno() {
        Errno::EBUSY => "mountpoint or dataset is busy".to_owned(),
        Errno::EPERM => match e {
            mounts::Error::Mount(fuse::Error::Helper { .. }) => format!("Insufficient privileges ({e})"),
            _ => "Insufficient privileges".to_owned(),
        },
        // the kernel's is not the whole story
        Errno::EIO => format!("{} ({e})", strerror(Errno::EIO)),
        errno => strerror(errno),
    };
    failed(format!("cannot mount '{name}': {why}"))
}

fn strerror(errno: Errno) -> String {
    crate::error::cause(&std::io::Error::from(errno))
}

/// Changes the options of a file system that is mounted.
fn remount(table: &Mounts, facts: &Facts, how: How) -> Result<(), Failure> {
    let name = &facts.name;
    let Some(entry) = table.of(name) else {
        return Err(failed(format!("cannot mount '{name}': {}", strerror(Errno::EINVAL))));
    };
    table.remount(&entry, how).map_err(|e| why_not_mounted(name, &e))
}

/// Loads the key of a file system, as `zfs load-key` does.
fn load_key(facts: &Facts) -> Result<(), Failure> {
    let root = facts.encryption_root.as_deref().unwrap_or(&facts.name);
    let dataset = select::find(root, Types::HEADS)?;
    // the one that was mounted before may have loaded it
    if dataset.has_key().map_err(|e| failed(told(&e, root)))? {
        return Ok(());
    }
    let key = keys::load(dataset.source(), root, None)?;
    let location = dataset.text("keylocation").map_err(|e| failed(told(&e, root)))?.unwrap_or_default();
    keys::keep(dataset.source(), root, &location, &key)
}

/// Mounts a file system that was created, if there is a table of mounts and its properties want that (OpenZFS: `zfs_mount_and_share`).
pub(super) fn mount_new(session: &Session, name: &str) -> Result<(), Failure> {
    let Some(table) = console::mounts() else { return Ok(()) };
    let facts = Facts::now(name)?;
    if facts.canmount != CANMOUNT_ON {
        return Ok(());
    }
    mount(&table, &source(session, name)?, &facts, &Options::default(), Ask::FOLLOWS).map_err(|failure| match failure {
        Failure::Failed(why) => failed(format!("{why}\nfilesystem successfully created, but not mounted")),
        other => other,
    })
}

/// Unmounts one mount (OpenZFS: `unmount_one`).
pub(super) fn unmount(table: &Mounts, entry: &Arc<Entry>, force: bool) -> Result<(), Failure> {
    let how = if force { Unmount::Forced } else { Unmount::Idle };
    table.unmount(entry, how).map_err(|e| {
        let why = match e.errno() {
            Errno::EBUSY => "pool or dataset is busy".to_owned(),
            Errno::EPERM => words::of_errno(Errno::EPERM),
            errno => format!("unmount failed: {}", strerror(errno)),
        };
        failed(format!("cannot unmount '{}': {why}", entry.path().display()))
    })
}

/// Unmounts a dataset that is to be destroyed, if it is mounted. Returns what is known of it, if it was.
pub(super) fn unmount_doomed(name: &str, force: bool) -> Result<Option<Facts>, Failure> {
    let Some(table) = console::mounts() else { return Ok(None) };
    let Some(entry) = table.of(name) else { return Ok(None) };
    // it only tells of the mount point
    let facts = Facts::now(name).ok();
    unmount(&table, &entry, force)?;
    Ok(facts)
}

/// Lets the mounts of a dataset and of those below it follow properties that were set, or inherited: over an option of the mount where it was set itself
/// (OpenZFS: `zfs_mount_setattr`).
pub(super) fn follow_props<'a>(name: &str, props: impl IntoIterator<Item = &'a str>) -> Result<(), Failure> {
    let flags: Vec<Flag> = props.into_iter().filter_map(Flag::of_property).collect();
    let Some(table) = console::mounts().filter(|_| !flags.is_empty()) else { return Ok(()) };
    for entry in table.below(name).into_iter().filter(|entry| !entry.name().contains('@')) {
        let of = entry.name();
        let facts = Facts::now(&of)?;
        for flag in &flags {
            let value = facts.how.value(*flag);
            if of == name || entry.how().prop(*flag) != value {
                table.set(&entry, *flag, value).map_err(|e| {
                    failed(format!("cannot remount '{}': {}", entry.path().display(), strerror(e.errno())))
                })?;
            }
        }
    }
    Ok(())
}
