//! The `zuse` binary.
fn main() {}
