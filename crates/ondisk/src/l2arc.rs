//! L2ARC device header and log blocks (FORMAT.md §18)
