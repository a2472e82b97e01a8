//! Writable object sets.

mod halves;
mod model;
mod numbers;
mod placed;
pub(crate) mod pool;
mod syncs;
mod zaps;
