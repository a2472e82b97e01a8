//! Dedup tables and their log (FORMAT.md §13)
