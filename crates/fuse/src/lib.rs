//! Serves a file system at a mount point, by FUSE.
//!
//! # What it is
//! A [`Mount`] is a [`zpl::live::Vfs`] that the kernel shows at a mount point: a live file system ([`zpl::live::Zfs`]) or one that does not
//! change ([`zpl::live::Still`]). The kernel sends requests through `/dev/fuse`; a few threads ([`Options::threads`], each with a descriptor
//! of its own) take them, call the `Vfs`, and answer. The protocol is the crate `fuser`'s; mounting and unmounting is done here
//! ([`kernel`]), because the mount table is to name the dataset as the source (the type is `fuse.zfs`), a failure is to keep its error
//! number, and a mount is to be undone gently, lazily or by force.
//!
//! # Numbers of files
//! The kernel names a file by a number, the node id. It is the object number; the root directory alone is 1 there, which no file can have,
//! as it is the master node's. `stat` shows the object number for the root as well. An object number can be used again, so an inode has a
//! generation, the txg in which its object was allocated. A request for a file whose generation is not the one that the kernel was told
//! fails with ESTALE, and the kernel looks the name up again. What is checked of a file and what is done to it then is one step, in which its file system
//! is not replaced ([`pinned`]). For a file that is open its handle is asked, as its number may be another's after a rollback.
//!
//! Which files the kernel knows is in a table ([`known`]): for each the generation, how often it was looked up and not forgotten, and the
//! name by which. A file that loses its last name while the kernel knows it (a working directory, an `O_PATH` descriptor) is held until the
//! kernel forgets it; open files are held by their handles. Files that it forgets are freed a moment later, many in one transaction ([`leaving`]).
//!
//! # Who may do what
//! *With `acltype=off` or `posix` the kernel decides* (`default_permissions`, and `FUSE_POSIX_ACL` for the ACLs). It compares modes, POSIX
//! ACLs, owners, the sticky bit and capabilities, as it does in front of OpenZFS's module, and it alone knows the caller exactly:
//! supplementary groups, capabilities, user namespaces, credentials that another kernel module (overlayfs, nfsd) has put on. It also lets
//! names be cached, since a cached name is passed only by those who may search its directory. To the engine, which checks again, such a
//! caller has the capabilities that stand for what the kernel has decided ([`caller`]). What only the engine knows it decides alone: flags
//! (immutable, append-only, …), quotas, projects, quarantine.
//!
//! *With `acltype=nfsv4` the engine decides*, as the kernel knows nothing of these ACLs, and the mode is only a summary of one. Then the
//! engine gets the caller as he is, and names are not cached, so that each step of a path is a request that the engine checks. Of device
//! files, FIFOs and sockets the kernel does not ask who opens them: the first have no effect then (`nodev`), the others are open to
//! whoever may search their directories.
//!
//! A request tells user, group and thread. Supplementary groups and capabilities are read from `/proc/TID/status` where a decision needs
//! them. They are not kept: the thread waits for its request, so that what is read is what it has, whereas a program that gives up a group
//! or a capability, and then opens a file, must not be judged by what it had before. What a race means: if the thread is killed meanwhile,
//! or its number is another's by then, the user and the group of the request hold nevertheless. Where those of the thread differ (another
//! module's credentials, or another thread), the caller has no groups beside his own, and as root all capabilities; those of the thread, if it is
//! root's and only the group is another. Capabilities in another user namespace do not count. `access` is answered for the real user of a set-uid
//! program. Attributes `security.*` and `trusted.*` are the kernel's to decide in any case.
//!
//! # Caches
//! The kernel caches names, attributes, targets of links, ACLs and data. All changes through the mount pass it, so that none of these goes
//! stale by them. What a command changes behind the mount must be told: [`Notifier::changed`] for a file, [`Notifier::renamed`] for a name,
//! [`Notifier::all_changed`] after a rollback or a receive. Hence attributes and names are valid for long ([`Options::cache`]; those of a file that is not on
//! disk yet for a second, as the space that it uses is known then), and pages
//! stay over `open`, and are only dropped on request. Of the names of a file with several hard links one is cached, so that the table of known
//! files has all that [`Notifier::all_changed`] has to name. Where case or normalization of names is ignored names are not cached, as the kernel
//! does not know which of them are one. Nor are the names and attributes of files of whose changes nobody tells
//! ([`zpl::live::Vfs::is_told`]), which are those of `.zfs`. Answers that are under way when a change is told, and may be older, are waited for before
//! ([`under_way`], [`notify`]).
//!
//! Data that is written goes to the engine at once. FUSE's write-back cache is never used: what `write` has acknowledged would not be in a
//! snapshot. Pages that are written through `mmap` reach the engine when the kernel flushes them, with `msync` at the latest, as with
//! OpenZFS's module; if there is no space for all of a request, that fails. A file that is open for reading and writing, and thus may be mapped
//! for writing, has no holes for `lseek`, as the engine cannot tell which pages have changed. A file with a flag that forbids writes (immutable,
//! append-only, read-only) cannot be mapped for writing; pages that were changed before it got the flag are written all the same. What is written
//! to such a file passes by the cache; pages of it that readers have there are dropped before the write is answered. Pages that were changed before a
//! rollback or receive has replaced the contents, and that the kernel writes behind it, are of the former contents and dropped ([`mapped`]).
//!
//! What is appended goes to the end that the engine knows. If that is not where the kernel has put it in its cache, because the file changed
//! behind the mount, the pages are dropped once the write is answered. The requests of one long write are sent one by one, so that they are
//! appended in order.
//!
//! # Mounts inside of a mount
//! If the kernel believes that a directory is gone, or another, it takes away all that is mounted there and below. It believes it whenever a lookup
//! of a name that it knows fails, for whatever reason, and whenever it is told to forget a name ([`below`]). So a lookup that fails for another
//! reason than that there is no such name, be it that the caller may not search the directory, fails with ENOMEM where other file systems
//! are mounted behind the name: that alone leaves them. And a name behind which there are mounts is not forgotten but looked up again.
//!
//! # Set-id bits
//! With `FUSE_HANDLE_KILLPRIV_V2` it is for the engine to clear them on writes, truncations and changes of owners, and to remove
//! capabilities of programs; otherwise the kernel would ask for `security.capability` before each write. The request of a write says
//! whether the caller may keep them. As the kernel does not look at the mode again after a change of the contents, its cached attributes
//! are dropped if bits may have been cleared.
//!
//! # Waiting
//! Synchronous writes, copies of ranges and changes of sizes may take long, and many at a time make the intent log efficient. They are
//! handed to threads of their own ([`waiters`]), as many as wait, up to a limit, beyond which they wait for a thread. Of the `fsync`s that come while the
//! intent log is written nobody waits: the one who writes it next answers them all ([`zpl::live::Vfs::fsync_then`]). Half of the threads that take requests
//! may do that themselves, as a thread that has to be woken costs more than the rest of an `fsync`; beyond these it is one of the other threads. Everything
//! else is answered by the thread that took the request.
//!
//! # Copies
//! What is read is sent to the kernel from the memory of the cache, if it is within one block ([`zpl::live::Vfs::lend`]); otherwise it is put together in a
//! buffer of the thread.
//!
//! # The end
//! A mount ends when it is unmounted, by [`Mount::unmount`] or by anybody else; the threads see the end of the device, and [`Mount::wait`]
//! returns. If only the connection ends, as by an abort in `/sys/fs/fuse/connections`, the mount is taken out of the tree, since nobody would
//! answer there. A live file system is mounted once at a time: its mount has the say over properties that options replace. A lazy unmount takes the mount out of the tree at once, and it ends when the last user has gone. If this process dies the kernel
//! answers ENOTCONN at the mount point until that is unmounted ([`unmount_dead`]); the pool is as after a crash, and its intent log has what was synced.
//!
//! # Block devices
//! A [`DeviceDirectory`] shows block devices as regular files in a tree of directories: whatever implements [`Devices`], in the place of a `Vfs` ([`mod@devices`]). Its type is `fuse.zvol`.
//!
//! # Limits
//! * `fuser` 0.18 knows no `FUSE_STATX`, `FUSE_TMPFILE`, `FUSE_SYNCFS`: `statx` shows no time of birth, `O_TMPFILE` fails with EOPNOTSUPP.
//! * The access time changes when data is read from the engine, not when the kernel has it cached.
//! * A thread of `fuser` 0.18 panics if a file gets a time of `i64::MIN` seconds with nanoseconds, and its request is never answered; the
//!   development version of `fuser` is mended. No file is shown with such a time; who sets one nevertheless stops a thread.
//! * `acltype` is what it was at mounting until the end of the mount, as that says who decides.
//! * `mount -o remount` by others than [`Mount::remount`] changes what the kernel does, and this side is not told of it: after `remount,ro` reads still set access times, as the
//!   options of mounting say.
//! * `sync(1)` and `syncfs` do not reach this side; `fsync` does, and a txg is synced every few seconds.
//! * With `acltype=nfsv4` FIFOs and sockets are open to whoever may search their directories.
//! * Mounts inside are left alone if this process sees them: those of another mount namespace alone may be taken away. There, whom a mount with
//!   `acltype=nfsv4` refuses gets ENOMEM instead of EACCES. Before Linux 6.2 a name with mounts behind it is only looked up again when it has been
//!   cached for [`Options::cache`], whatever is told of it.
//! * `access` of a program that is not set-uid counts the capabilities in effect, as it cannot be told from `chdir`; Linux itself would count none
//!   of a user other than root.
//! * A caller of another PID namespace has the number 0: he is taken for a user without other groups, or for root with all capabilities.
//! * `pwritev2` with `RWF_APPEND` appends at the end that the kernel knows, and with `RWF_NOAPPEND` it appends to a file opened to append: requests
//!   do not tell of either.
//! * A file whose attributes cannot be read is listed with the inode number 0. The C library before glibc 2.37 leaves such entries out.
#![forbid(unsafe_code)]

mod attributes;
mod below;
mod caller;
mod contents;
mod convert;
mod devices;
mod end;
mod error;
mod ioctl;
mod kernel;
mod known;
mod leaving;
mod left;
mod mapped;
mod mount;
mod names;
mod notify;
mod options;
mod pinned;
mod requests;
mod served;
mod under_way;
mod waiters;
mod xattrs;

pub use devices::{Device, DeviceDirectory, Devices, Entry, Found, Identity, Kind};
pub use error::Error;
pub use left::{Seen, all_mounts, is_available, unmount_dead};
pub use mount::{Mount, Unmount};
pub use notify::Notifier;
pub use options::Options;
