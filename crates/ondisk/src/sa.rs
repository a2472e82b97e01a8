//! System attribute headers (FORMAT.md §8)
