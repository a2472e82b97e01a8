//! Test support: fixtures and OpenZFS's own tools.
