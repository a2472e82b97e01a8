//! Writable object sets.

mod halves;
mod model;
mod numbers;
mod placed;
pub(super) mod pool;
mod syncs;
mod zaps;
