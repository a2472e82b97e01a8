//! Range trees, space maps, log space maps.
