//! Devices: leaves, mirror, raidz, dRAID, removed devices; labels; finding pools.
#![forbid(unsafe_code)]

mod columns;
mod config;
mod device;
mod draid;
mod error;
mod gf;
pub mod import;
mod indirect;
pub mod label;
mod leaf;
mod node;
mod raidz;
mod read;
mod repair;
mod report;
mod scratch;
mod source;
mod status;
mod stripe;
#[cfg(test)]
mod test_pool;
mod tree;

pub use config::{VdevConfig, VdevType};
pub use device::{Device, FileDevice, MemoryDevice};
pub use error::Error;
pub use leaf::Leaf;
pub use ondisk::indirect::IndirectMapping;
pub use report::{FaultKind, LeafFault, ReadReport};
pub use source::{DirectSource, LeafSource, ReadCx, ReadMode, WindowSource};
pub use status::{VdevAux, VdevState, VdevStatus};
pub use tree::{TopVdev, VdevTree};

#[cfg(test)]
mod tests;
