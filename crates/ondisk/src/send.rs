//! Records of a send stream (FORMAT.md §15)
