//! Writable object sets.

mod model;
mod numbers;
mod placed;
mod pool;
mod syncs;
mod zaps;
