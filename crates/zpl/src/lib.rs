//! POSIX files over objects, and volumes.
