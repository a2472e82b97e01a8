//! Mounting and unmounting.
//!
//! Root mounts by the system call, which names the source and the type as the mount table is to show them. Other users mount with the help of
//! `fusermount3`, which has the right to, checks that the mount point is theirs, and hands over the descriptor through a socket; it is
//! its standard input.
//!
//! A mount point is opened before it is mounted on, and what is unmounted is looked at from its directory, so that nobody who may write one of the
//! directories above can put another one in its place meanwhile. A mount is found by its number in `/proc/self/mountinfo`, wherever it was moved
//! to. Numbers are used again, and so are those of devices, as soon as they are free: of two mounts of this process one may get those of the other,
//! whose end is not seen yet. So there is a second number that is never used again, since Linux 6.8; before that the source has to do.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, IoSliceMut, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::{Error, Options, Seen, Unmount};

pub(crate) const DEVICE: &str = "/dev/fuse";
/// The types in the mount table, without what all of FUSE have in front: file systems, and directories of devices.
pub(crate) const FILE_SYSTEM: &str = "zfs";
pub(crate) const DEVICES: &str = "zvol";
const HELPER: &str = "fusermount3";
/// The environment variable that tells the helper its descriptor.
const HELPER_FD: &str = "_FUSE_COMMFD";
/// What it says of a mount that is used; it speaks no other language.
const HELPER_BUSY: &str = "Device or resource busy";
/// Where connections can be ended by their users, if that is mounted: a folder for each, by the minor number of its device.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// How often, and in what intervals, it is tried again to unmount what is busy.
const TRIES: usize = 5;
const INTERVAL: Duration = Duration::from_millis(10);
/// How long dirty pages may take to be written out before a mount is ended by force.
const WRITE_OUT_MAX: Duration = Duration::from_secs(5);
/// What `statx` is asked for (Linux: `STATX_MNT_ID_UNIQUE`).
const MNT_ID_UNIQUE: u32 = 0x4000;
/// The type of a directory, in octal.
const ROOT_MODE: u32 = 0o40000;

/// A mount in the tree.
pub(crate) struct Place {
    /// The mount point where it was mounted.
    pub(crate) path: PathBuf,
    seat: Seat,
    /// Its number that is no other one's, if the kernel has such numbers.
    unique: Option<u64>,
    /// `fusermount3` mounted it.
    pub(crate) is_by_helper: bool,
}

impl Place {
    /// Returns the device in the mount table.
    pub(crate) fn device(&self) -> &str {
        &self.seat.device
    }
}

/// A line of the mount table.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seat {
    /// The number of the mount.
    id: u64,
    /// That of the mount in which it is.
    above: u64,
    /// The device that it shows.
    device: String,
    /// The directory there that it shows.
    root: PathBuf,
    /// The mount point.
    path: PathBuf,
    /// The options of the mount.
    options: String,
    /// The type of the file system.
    kind: String,
    /// What is mounted.
    source: String,
}

/// Returns the type that the mount table has for one of ours.
fn full_type(kind: &str) -> String {
    format!("fuse.{kind}")
}

/// Mounts, as a type of ours, and returns the connection to the kernel.
pub(crate) fn mount(
    point: &Path,
    kind: &str,
    options: &Options,
    kernel_decides: bool,
) -> Result<(OwnedFd, Place), Error> {
    let at = |source: io::Error| Error::MountPoint { path: point.to_owned(), source };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(point, flags, Mode::empty()).map_err(|error| at(error.into()))?;
    let path = std::fs::read_link(by_descriptor(&directory)).map_err(at)?;
    if options.source.is_empty() || options.source.contains([',', '\\', '\0', '\n']) {
        return Err(Error::Name { name: options.source.clone() });
    }
    let before = table().map_err(at)?;
    let (device, is_by_helper) = match mount_as_root((&directory, &path), kind, options, kernel_decides)? {
        Some(device) => (device, false),
        None => (mount_by_helper(&path, kind, options, kernel_decides)?, true),
    };
    let found = table().and_then(|table| new_mount(&before, &table, &path, (kind, &options.source)));
    match found {
        Ok(seat) => {
            let at = place_of(&seat).ok().filter(|(above, name)| mount_at(above, name) == Ok(Some(seat.id)));
            let unique = at.and_then(|(above, name)| unique_at(&above, name));
            Ok((device, Place { path, seat, unique, is_by_helper }))
        }
        // it is not known by what number; with the device its connection ends
        Err(source) => Err(Error::Mount { path, source }),
    }
}

/// Returns the path that leads to an open file, wherever that is by now.
fn by_descriptor(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Opens the device of FUSE. Some systems let only root, and others mount by the descriptor that the helper has opened.
pub(crate) fn open_device() -> io::Result<File> {
    File::options().read(true).write(true).open(DEVICE)
}

/// Mounts by the system call; `None` if this user may not.
fn mount_as_root(
    (directory, path): (&OwnedFd, &Path),
    kind: &str,
    options: &Options,
    kernel_decides: bool,
) -> Result<Option<OwnedFd>, Error> {
    let device = match open_device() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        device => device.map_err(Error::Device)?,
    };
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!("fd={},rootmode={ROOT_MODE:o},user_id={user},group_id={group}", device.as_raw_fd());
    for (option, set) in [("allow_other", options.allow_other), ("default_permissions", kernel_decides)] {
        if set {
            data += ",";
            data += option;
        }
    }
    let flags = flags_of(options, kernel_decides);
    // no name contains a NUL
    let data = CString::new(data).unwrap_or_default();
    match rustix::mount::mount(
        options.source.as_str(),
        by_descriptor(directory),
        full_type(kind),
        flags,
        data.as_c_str(),
    ) {
        Ok(()) => Ok(Some(device.into())),
        Err(Errno::PERM) => Ok(None),
        Err(source) => Err(Error::Mount { path: path.to_owned(), source: source.into() }),
    }
}

fn flags_of(options: &Options, kernel_decides: bool) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOEXEC, !options.exec);
    flags.set(MountFlags::NOSUID, !options.setuid);
    flags.set(MountFlags::NODEV, is_without_devices(options, kernel_decides));
    flags.set(MountFlags::NOATIME, options.atime == Some(false));
    flags
}

/// Changes the options of what [`mount`] mounted, wherever it is by now. Nothing is done if it is mounted no more. Only root may; for others that fails
/// if this side cannot do without.
pub(crate) fn remount(place: &Place, options: &Options, kernel_decides: bool) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Mount { path: place.path.clone(), source };
    let table = table().map_err(failed)?;
    let Some(seat) = place.seat.find(&table) else { return Ok(()) };
    let (above, name) = place_of(&seat).map_err(|error| failed(error.into()))?;
    // it may be below another mount, whose options would be changed
    let at = mount_at(&above, name).map_err(|error| failed(error.into()))?;
    if at != Some(seat.id) {
        return Err(failed(Errno::BUSY.into()));
    }
    let flags = flags_of(options, kernel_decides);
    match rustix::mount::mount_remount(by_descriptor(&above).join(name), flags, c"") {
        Err(Errno::PERM) if does_for(&seat.options, flags) => Ok(()),
        changed => changed.map_err(|error| failed(error.into())),
    }
}

/// Returns whether a mount with these options in the table does for others, which differ in access times: the file system itself knows of them. Only the kernel
/// sees to it that nothing is open for writing, or written to memory that is mapped, in what becomes read-only.
fn does_for(options: &str, flags: MountFlags) -> bool {
    let is_set = |word: &str| options.split(',').any(|option| option == word);
    let is_as_wanted = |(word, flag)| is_set(word) == flags.contains(flag);
    let same = [
        ("ro", MountFlags::RDONLY),
        ("noexec", MountFlags::NOEXEC),
        ("nosuid", MountFlags::NOSUID),
        ("nodev", MountFlags::NODEV),
    ];
    same.into_iter().all(is_as_wanted)
}

/// True if device files have no effect: they must not, if the kernel does not check who opens them.
fn is_without_devices(options: &Options, kernel_decides: bool) -> bool {
    !options.devices || !kernel_decides
}

fn mount_by_helper(path: &Path, kind: &str, options: &Options, kernel_decides: bool) -> Result<OwnedFd, Error> {
    let failed = |source: io::Error| Error::Mount { path: path.to_owned(), source };
    let (ours, its) = UnixStream::pair().map_err(failed)?;
    let mut words = vec![format!("fsname={}", options.source), format!("subtype={kind}")];
    let given = [
        ("ro", options.read_only),
        ("noexec", !options.exec),
        ("nosuid", !options.setuid),
        ("nodev", is_without_devices(options, kernel_decides)),
        ("noatime", options.atime == Some(false)),
        ("allow_other", options.allow_other),
        ("default_permissions", kernel_decides),
    ];
    words.extend(given.into_iter().filter(|(_, set)| *set).map(|(word, _)| word.to_owned()));
    let mut helper = Command::new(HELPER);
    helper.args(["-o", &words.join(","), "--"]).arg(path);
    helper.env(HELPER_FD, "0").stdin(OwnedFd::from(its)).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = helper.spawn().map_err(failed)?;
    // the command keeps a copy of the descriptor, which would hide that the helper has ended
    drop(helper);
    let device = receive(&ours).map_err(failed);
    let out = child.wait_with_output().map_err(failed)?;
    match device? {
        Some(device) if out.status.success() => Ok(device),
        _ => Err(Error::Helper { said: said(&out.stderr) }),
    }
}

/// Returns the message of the helper, without its name.
fn said(message: &[u8]) -> String {
    let text = String::from_utf8_lossy(message);
    let text = text.trim();
    text.strip_prefix(HELPER).and_then(|text| text.strip_prefix(": ")).unwrap_or(text).to_owned()
}

/// Receives a descriptor; `None` if the other end is closed without one.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().next())
}

/// Unmounts what [`mount`] mounted, wherever it is by now. Returns whether it was still mounted.
pub(crate) fn unmount(place: &Place, how: Unmount) -> Result<bool, Error> {
    let failed = |source: io::Error| Error::Unmount { path: place.path.clone(), source };
    let table = table().map_err(failed)?;
    let Some(seat) = place.seat.find(&table) else { return Ok(false) };
    if mounts(&table).filter(|other| other.path == seat.path).last().as_ref() != Some(&seat) {
        return Err(failed(Errno::BUSY.into()));
    }
    let flags = match how {
        Unmount::Idle => UnmountFlags::NOFOLLOW,
        Unmount::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        Unmount::Forced => UnmountFlags::NOFOLLOW | UnmountFlags::FORCE,
    };
    match unmount_at(&seat, place.unique, flags) {
        // who uses it gets errors by now
        Err(Errno::BUSY) if how == Unmount::Forced => unmount(place, Unmount::Lazy),
        Err(Errno::PERM) => unmount_by_helper(&seat, how).map(|()| true),
        Err(source) => match self::table() {
            // another one was faster
            Ok(table) if place.seat.find(&table).is_none() => Ok(true),
            _ => Err(failed(source.into())),
        },
        Ok(done) => Ok(done),
    }
}

/// Unmounts by the directory above, in which the mount point stays as long as something is mounted on it. Returns `false` if what is there is
/// another mount with the same number.
fn unmount_at(seat: &Seat, unique: Option<u64>, flags: UnmountFlags) -> Result<bool, Errno> {
    let (above, name) = place_of(seat)?;
    if unique.is_some() && unique_at(&above, name) != unique {
        return Ok(false);
    }
    if unique.is_none() && mount_at(&above, name)? != Some(seat.id) {
        return Err(Errno::BUSY);
    }
    let path = by_descriptor(&above).join(name);
    patiently(|| rustix::mount::unmount(&path, flags), |error| *error == Errno::BUSY).map(|()| true)
}

/// Tries again for a moment what fails as the mount is busy: it also is for as long as a child of this process has its descriptors, or somebody looks at it.
fn patiently<E>(mut unmount: impl FnMut() -> Result<(), E>, is_busy: impl Fn(&E) -> bool) -> Result<(), E> {
    let mut tries = TRIES;
    loop {
        match unmount() {
            Err(error) if is_busy(&error) && tries > 0 => tries -= 1,
            done => return done,
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Opens the directory above a mount; returns it and the name of the mount point there.
fn place_of(seat: &Seat) -> Result<(OwnedFd, &OsStr), Errno> {
    let (Some(above), Some(name)) = (seat.path.parent(), seat.path.file_name()) else { return Err(Errno::BUSY) };
    let above = rustix::fs::open(above, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok((above, name))
}

/// Returns the number of the mount at a name, which no other mount ever gets.
fn unique_at(above: &OwnedFd, name: &OsStr) -> Option<u64> {
    let wanted = StatxFlags::from_bits_retain(MNT_ID_UNIQUE);
    // it may be that nobody answers requests
    let how = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(above, name, how, wanted).ok()?;
    (stat.stx_mask & MNT_ID_UNIQUE != 0).then_some(stat.stx_mnt_id)
}

/// Returns the number of the mount at a name in the mount table.
fn mount_at(above: &OwnedFd, name: &OsStr) -> Result<Option<u64>, Errno> {
    let root = rustix::fs::openat(above, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", root.as_raw_fd())).unwrap_or_default();
    Ok(text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok()))
}

/// Unmounts lazily, by the helper. Returns whether it did.
pub(crate) fn unmount_path_by_helper(path: &Path) -> bool {
    let out = Command::new(HELPER).args(["-u", "-z", "--"]).arg(path).output();
    out.is_ok_and(|out| out.status.success())
}

/// Returns the mounts of our types.
pub(crate) fn ours(table: &str) -> Vec<Seen> {
    let seen = |seat: Seat| {
        let is_devices = seat.kind == full_type(DEVICES);
        let is_ours = is_devices || seat.kind == full_type(FILE_SYSTEM);
        is_ours.then_some(Seen { is_devices, source: seat.source, path: seat.path })
    };
    mounts(table).filter_map(seen).collect()
}

/// Has the kernel write out the pages of a mount that are dirty; waits for that awhile.
pub(crate) fn write_out(path: &Path) {
    let (tell, told) = channel();
    let path = path.to_owned();
    let sync = move || {
        let root = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let done = root.and_then(|root| rustix::fs::syncfs(&root));
        // nobody may wait any more
        let _ = tell.send(done);
    };
    if std::thread::Builder::new().name("fuse-sync".to_owned()).spawn(sync).is_ok() {
        let _ = told.recv_timeout(WRITE_OUT_MAX);
    }
}

/// Takes a mount of the mount table out of the tree; returns `false` if it is not there any more. Whoever can change the names on the way to its mount point cannot have another one taken away.
pub(crate) fn detach(seen: &Seen) -> Result<bool, Errno> {
    let table = table().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    let kind = full_type(if seen.is_devices { DEVICES } else { FILE_SYSTEM });
    let is_it = |seat: &Seat| seat.kind == kind && seat.path == seen.path && seat.source == seen.source;
    // the last one is on top
    let Some(seat) = mounts(&table).filter(is_it).last() else { return Ok(false) };
    unmount_at(&seat, None, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
}

fn unmount_by_helper(seat: &Seat, how: Unmount) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Unmount { path: seat.path.clone(), source };
    // before it is out of the tree: its number may be another's then
    let connection = if how == Unmount::Forced { connection(seat) } else { None };
    let ask = || {
        let mut helper = Command::new(HELPER);
        helper.args(if how == Unmount::Idle { &["-u"][..] } else { &["-u", "-z"] });
        let out = helper.arg("--").arg(&seat.path).output().map_err(failed)?;
        match said(&out.stderr) {
            _ if out.status.success() => Ok(()),
            said if said.ends_with(HELPER_BUSY) => Err(failed(Errno::BUSY.into())),
            said => Err(Error::Helper { said }),
        }
    };
    patiently(ask, Error::is_busy)?;
    if let Some(mut connection) = connection {
        // one that has ended meanwhile needs no end
        let _ = connection.write_all(b"1");
    }
    Ok(())
}

/// Returns the file that ends the connection of a mount when it is written: who uses the mount gets errors.
fn connection(seat: &Seat) -> Option<File> {
    let minor = seat.device.strip_prefix("0:")?;
    File::options().write(true).open(Path::new(CONNECTIONS).join(minor).join("abort")).ok()
}

impl Seat {
    /// Returns where the mount is by now, if it is mounted.
    fn find(&self, table: &str) -> Option<Seat> {
        let of = |seat: &Seat| (seat.id, seat.device.clone(), seat.source.clone());
        mounts(table).find(|other| of(other) == of(self))
    }
}

/// Returns whether a mount is in the tree that this process sees.
pub(crate) fn is_in_tree(place: &Place) -> bool {
    table().is_ok_and(|table| place.seat.find(&table).is_some())
}

pub(crate) fn table() -> io::Result<String> {
    std::fs::read_to_string("/proc/self/mountinfo")
}

/// Returns the mount that was made at a path between two mount tables; another one may have been put on top of it.
fn new_mount(before: &str, after: &str, path: &Path, (kind, source): (&str, &str)) -> io::Result<Seat> {
    let kind = full_type(kind);
    let is_ours = |seat: &Seat| seat.path == path && seat.kind == kind && seat.source == source;
    let is_new = |seat: &Seat| mounts(before).all(|old| old != *seat);
    let seat = mounts(after).filter(|seat| is_ours(seat) && is_new(seat)).last();
    seat.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Returns the places in the file system of a device where others are mounted, as paths from its root; none if the mount table cannot be read.
pub(crate) fn mounts_in(device: &str) -> Vec<PathBuf> {
    let Ok(table) = table() else { return Vec::new() };
    places_in(device, &table)
}

fn places_in(device: &str, table: &str) -> Vec<PathBuf> {
    let ours: Vec<Seat> = mounts(table).filter(|seat| seat.device == device).collect();
    let place = |inner: Seat| {
        let outer = ours.iter().find(|outer| outer.id == inner.above && outer.id != inner.id)?;
        Some(outer.root.join(inner.path.strip_prefix(&outer.path).ok()?))
    };
    mounts(table).filter_map(place).collect()
}

/// Returns the lines of a `mountinfo`.
fn mounts(text: &str) -> impl Iterator<Item = Seat> + Clone + '_ {
    text.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let (mut words, mut rest) = (left.split(' '), right.split(' '));
        Some(Seat {
            id: words.next()?.parse().ok()?,
            above: words.next()?.parse().ok()?,
            device: words.next()?.to_owned(),
            root: unescaped(words.next()?),
            path: unescaped(words.next()?),
            options: words.next()?.to_owned(),
            kind: rest.next()?.to_owned(),
            source: unescaped(rest.next()?).into_os_string().into_string().ok()?,
        })
    })
}

/// Decodes the octal numbers that stand for spaces and the like.
fn unescaped(word: &str) -> PathBuf {
    let (mut out, mut rest) = (Vec::new(), word.as_bytes());
    while let Some((first, behind)) = rest.split_first() {
        let number = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = number.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\');
        out.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { behind.get(3..).unwrap_or_default() } else { behind };
    }
    std::ffi::OsString::from_vec(out).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    const TABLE: &str = "36 35 98:0 / /mnt\\0401 rw,noatime shared:1 - fuse.zfs tank/a\\040b rw\n\
40 35 0:5 / /a\\134b rw - proc proc rw\nx\n";

    fn seat(id: u64, device: &str, path: &str) -> Seat {
        let (kind, source) = if id == 36 { ("fuse.zfs", "tank/a b") } else { ("proc", "proc") };
        let options = if id == 36 { "rw,noatime" } else { "rw" };
        let [device, kind, source, options] = [device, kind, source, options].map(str::to_owned);
        Seat { id, above: 35, device, root: "/".into(), path: path.into(), options, kind, source }
    }

    #[test]
    fn mounts_of_a_table() {
        let all: Vec<_> = mounts(TABLE).collect();
        assert_eq!(all, [seat(36, "98:0", "/mnt 1"), seat(40, "0:5", "/a\\b")]);
        // moved, and another one with the same number
        assert_eq!(seat(36, "98:0", "/elsewhere").find(TABLE), Some(seat(36, "98:0", "/mnt 1")));
        assert_eq!(seat(36, "98:1", "/mnt 1").find(TABLE), None);
        assert_eq!(Seat { source: "tank/b".to_owned(), ..seat(36, "98:0", "/mnt 1") }.find(TABLE), None);
        assert_eq!(unescaped("a\\9").as_os_str().as_bytes(), b"a\\9");
        assert!(mounts(&table().unwrap()).any(|seat| seat.path == Path::new("/proc")));
    }

    #[test]
    fn a_mount_of_another_is_not_taken_for_ours() {
        let path = Path::new("/mnt 1");
        assert_eq!(new_mount("", TABLE, path, ("zfs", "tank/a b")).unwrap(), seat(36, "98:0", "/mnt 1"));
        let upper = format!("{TABLE}41 36 0:9 / /mnt\\0401 rw - tmpfs none rw\n");
        assert_eq!(new_mount("", &upper, path, ("zfs", "tank/a b")).unwrap().id, 36);
        for (before, of) in [("", ("zfs", "tank")), ("", ("zvol", "tank/a b")), (TABLE, ("zfs", "tank/a b"))] {
            assert!(new_mount(before, TABLE, path, of).is_err(), "{of:?}");
        }
    }

    #[test]
    fn what_users_cannot_have_the_kernel_change() {
        let users = MountFlags::NOSUID | MountFlags::NODEV;
        for (options, flags, does) in [
            ("rw,nosuid,nodev,relatime", users, true),
            ("rw,nosuid,nodev,relatime", users | MountFlags::NOATIME, true),
            ("rw,nosuid,nodev,relatime", users | MountFlags::RDONLY, false),
            ("ro,nosuid,nodev", users | MountFlags::RDONLY, true),
            ("ro,nosuid,nodev", users, false),
            ("rw,nosuid,nodev", users | MountFlags::NOEXEC, false),
            ("rw,nosuid,nodev,noexec", users, false),
            ("rw,nosuid,nodev", MountFlags::NODEV, false),
        ] {
            assert_eq!(does_for(options, flags), does, "{options} {flags:?}");
        }
    }

    #[test]
    fn mounts_inside_of_one_and_of_its_bind_mounts() {
        let table = "36 35 0:50 / /m rw - fuse.zfs t rw\n\
40 36 0:5 / /m/d/e rw - tmpfs none rw\n\
41 40 0:6 / /m/d/e/below rw - tmpfs none rw\n\
42 35 0:50 /d /bind rw - fuse.zfs t rw\n\
43 42 0:7 / /bind/x rw - tmpfs none rw\n\
44 36 0:50 /x /m/y rw - fuse.zfs t rw\n";
        let places = places_in("0:50", table);
        assert_eq!(places, ["/d/e", "/d/x", "/y"].map(PathBuf::from));
        assert_eq!(places_in("0:9", table), [] as [PathBuf; 0]);
    }
}
