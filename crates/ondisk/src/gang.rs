//! Gang headers (FORMAT.md §2.3)
