//! Intent-log blocks and records (FORMAT.md §14)
