//! The pool's history ring (FORMAT.md §6.1)
