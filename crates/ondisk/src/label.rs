//! The areas of a device label (FORMAT.md §1)
