//! The block reference table (FORMAT.md §13)
