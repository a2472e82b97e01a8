//! Volumes of open pools as block devices for other programs.
//!
//! # What it is
//! A [`Device`] is a volume or a snapshot of one that somebody uses: an export of NBD ([`nbd::Export`]), and a file of a directory of devices ([`fuse::Device`]). [`Volumes`] is what there is of them in the pools of a
//! [`Machine`](site::Machine), by their names: for an NBD server ([`nbd::Exports`]) and for such a directory ([`fuse::Devices`]). It is looked at when somebody asks, so that volumes come, go and change their names without being told of.
//!
//! # Which there are
//! As with OpenZFS's `/dev/zvol` (`zvol_create_minors`, `zvol_os_create_minor`): a volume unless its `volmode` is `none` (`default`, `full`, `geom` and `dev` are one here, as nobody looks for partitions), a snapshot of it only with `snapdev=visible`
//! besides. Not there is a volume whose key is not loaded, and one that a receive has not completed.
//!
//! # Use
//! A volume is opened when the first client asks for it, and is in use until the last one has left: it cannot be destroyed or rolled back meanwhile (EBUSY), nor can its pool be exported. A snapshot is kept by a long hold. Names and sizes may change;
//! who uses a volume under its former name keeps it, and sees the new size.
//!
//! # Who may write
//! Nobody writes a snapshot, a volume of a pool that is imported to be read, or one with `readonly=on`, which takes effect at once also for those who use it.
//!
//! OpenZFS: `zvol.c`, `zvol_os.c`.
#![forbid(unsafe_code)]

mod catalogue;
mod device;
mod directory;
mod exports;

pub use catalogue::Volumes;
pub use device::Device;
