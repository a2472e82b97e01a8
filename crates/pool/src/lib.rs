//! The SPA and the DSL: pools, datasets, properties.
