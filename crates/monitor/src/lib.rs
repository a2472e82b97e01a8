//! What programs read beside the commands: kstats and tunables as files, and metrics for Prometheus.
//!
//! # The files
//! A [`Tree`] has OpenZFS's two trees: `kstat/zfs/…`, as Linux has it below `/proc/spl`, with the text of the SPL ([`layout`]), and `parameters/…`, as it is below `/sys/module/zfs`. A
//! [`KstatMount`] shows it at a mount point, by FUSE. Files are made when they are read, of what is in memory: nothing in the tree waits for a device, a request, or a pool that is suspended.
//! The directories of pools come and go with these. Which figures are kept and which are always 0 is in `docs/monitoring.md`, and in [`names`].
//!
//! # The endpoint
//! An [`Endpoint`] answers `GET /metrics` over HTTP ([`http`]). What is in memory is read for each scrape ([`metrics`]). What requests to a pool tell (its space, its vdevs, its datasets) is asked for in a thread
//! of its own, one for each pool; a scrape waits for it for a moment, and otherwise shows what was known last, and how old that is. So a pool that waits for its devices holds up neither a scrape nor
//! the figures of other pools. A scrape is made in memory before any of it is sent: no lock of a pool is held for a client.
//!
//! # Bounds
//! Clients of the endpoint, the time that each has, the length of a request; files of the tree that are open at once, and the length of what is written to a parameter.
//!
//! # Absent
//! Words for users, options, requests that change something but tunables.
//!
//! OpenZFS: `spl-kstat.c`, `spa_stats.c`, `dataset_kstats.c`, the parameters of its module.
#![forbid(unsafe_code)]

mod address;
mod asked;
mod files;
mod http;
pub mod layout;
mod metrics;
mod mount;
pub mod names;
mod tree;

pub use address::Address;
pub use http::Endpoint;
pub use metrics::source as metrics_of;
pub use mount::KstatMount;
pub use tree::Tree;
