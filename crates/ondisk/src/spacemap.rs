//! Space map headers and entries (FORMAT.md §10)
