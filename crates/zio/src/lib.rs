//! Reading through block pointers; the ARC.
