//! Tests of the whole read path on pools made by hand, and on hostile ones.
#![allow(clippy::unwrap_used)]

mod attrs;
mod hostile;
pub(crate) mod live;
mod objects;
mod swapped;
mod zaps;
