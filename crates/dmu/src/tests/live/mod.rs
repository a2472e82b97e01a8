//! Writable object sets.

mod model;
mod numbers;
mod pool;
mod syncs;
mod zaps;
