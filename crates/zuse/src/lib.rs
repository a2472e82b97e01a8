//! Zuse as a library: the curated public face.
