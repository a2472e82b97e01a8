//! Lists of block pointers (FORMAT.md §9.4)
