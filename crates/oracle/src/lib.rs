//! Test support: fixtures and OpenZFS's own tools. Nothing here ships.
//!
//! [`fixtures`] unpacks the committed images of real pools and streams and reads the ground truth beside them. [`judge`] runs OpenZFS's
//! tools. Everything here panics on failure: a test without its fixture is meaningless.
#![forbid(unsafe_code)]

pub mod fixtures;
pub mod judge;
pub mod said;
mod watchdog;
