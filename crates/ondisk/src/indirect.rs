//! Mappings of removed devices (FORMAT.md §11)
