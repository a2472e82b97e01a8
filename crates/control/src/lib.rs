//! Requests to a pool: one name-value list in, one name-value list out.
//!
//! # What it is
//! A [`Control`] answers requests ([`Ioc`]) about an open pool; a [`ReadOnlyControl`] those that change nothing, about a state that was opened for reading. Names, keys and types are those of OpenZFS's ioctls and of `libzfs_core`, so
//! that whoever knows those knows these: `snaps`, `props`, `holds`, `hidden_args` with `wkeydata`, lists from name to errno where several things failed.
//!
//! A [`Caller`] is who asks: the history names him, and requests name his open [`Files`] by number, from which streams are received and to which they are
//! sent. Devices that requests name are opened by [`Devices`], which locks them as the program does it.
//!
//! # How a request goes
//! The door that takes requests of other processes checks whether the caller may make it ([`Ioc::check_caller`]). Its name is held against the kind that the request takes
//! ([`NameKind`]), the pool against the states in which it takes it ([`PoolCheck`]), and its list against the keys of the request, by name and type ([`Ioc`]); what is in it is decoded (`decode`); values of properties are
//! held against what the pool can do ([`feature_of`]); then one method of [`pool::Spa`] does the work, all or none of it.
//!
//! # Absent
//! Texts for users, and terminals.
//!
//! OpenZFS: `zfs_ioctl.c`, `libzfs_core.c`.
#![forbid(unsafe_code)]

mod all_kept;
mod caller;
mod cancel;
mod control;
mod create_pool;
mod datasets;
mod decode;
mod devices;
mod diff;
mod error;
mod error_log;
mod events;
mod ioc;
mod kept;
mod keys;
mod leaf_work;
mod listing;
mod names;
mod needs;
mod new_vdevs;
mod objects;
mod policy;
mod pools;
mod props;
mod quotas;
mod read_only;
mod snapshots;
pub mod stats;
mod streams;
mod traced;
mod upkeep;
mod userspace;
mod vdevs;

pub use all_kept::AllKept;
pub use caller::{Caller, Files, Source};
pub use cancel::{CancelToken, Canceller};
pub use control::Control;
pub use create_pool::TRANSIENT;
pub use devices::{Devices, Opened, Plain};
pub use diff::DiffRecord;
pub use error::{Error, Failed};
pub use error_log::ERROR_WORDS;
pub use events::{EventSource, Events};
pub use ioc::Ioc;
pub use kept::Kept;
pub use names::NameKind;
pub use needs::{Facts, Need, Needs, Permissions};
pub use new_vdevs::NewVdevs;
pub use policy::{On, Permission, PoolCheck, Who, view};
pub use props::feature_of;
pub use read_only::ReadOnlyControl;
pub use traced::traced;
