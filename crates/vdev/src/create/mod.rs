//! New vdevs: the words of a command line, what may be used, and the configuration that comes of it.
//!
//! [`VdevSpec::parse`] takes the words behind `zpool create POOL` or `zpool add POOL`, [`resolve`] finds the devices. [`in_use`] tells of a device what is on it. [`replication`]
//! tells what is uneven about the new vdevs, which `-f` overrides. [`layout`] makes the configuration: guids, sector sizes, sizes of
//! vdevs and metaslabs.
//!
//! OpenZFS: `zpool_vdev.c`, `vdev_open`, `vdev_metaslab_set_size`.

mod inuse;
mod layout;
mod replication;
mod resolve;
mod spec;

pub use inuse::{InUse, in_use, in_use_path};
pub use layout::{LayoutOptions, NewPool, TXG_INITIAL, layout, metaslab_shift};
pub use replication::{complaint, replication};
pub use resolve::resolve;
pub use spec::{Bias, DraidSpec, Group, SpecError, TopSpec, VdevSpec};

#[cfg(test)]
mod tests;
