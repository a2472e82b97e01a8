//! Send streams and the tools for them.
