//! Scrub and resilver state (FORMAT.md §6.3)
