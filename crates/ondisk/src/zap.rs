//! ZAP blocks (FORMAT.md §7)
