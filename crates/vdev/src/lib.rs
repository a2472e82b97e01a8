//! Devices: leaves, mirror, raidz, draid, indirect; labels.
