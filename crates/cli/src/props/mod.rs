//! Properties as users set them: names, words and numbers, checked before anything is changed.
//!
//! Everything that is refused is refused in OpenZFS's words. [`values`] knows what text stands for a value of a native property, by the tables
//! of the `pool` crate; [`pool`] and [`dataset`] know what each property allows beyond its type, [`valid`] what it allows for one dataset, [`shares`] how it
//! may be shared; [`compat`] the sets of features that the
//! property `compatibility` names.

pub(crate) mod compat;
pub(crate) mod dataset;
pub(crate) mod pool;
mod shares;
pub(crate) mod valid;
pub(crate) mod values;

/// A property as it was said: name and text.
pub(crate) type Said = (String, String);
