//! Properties as users set them: names, words and numbers, checked before anything is changed.
//!
//! Every refusal is in OpenZFS's words. [`values`] parses the text of a native property's value by the tables of the
//! `pool` crate; [`pool`] and [`dataset`] know what each property allows beyond its type, [`valid`] what it allows for
//! one dataset, [`shares`] how it may be shared; [`compat`] knows the sets of features that the property
//! `compatibility` names.

pub(crate) mod compat;
pub(crate) mod dataset;
pub(crate) mod pool;
mod shares;
pub(crate) mod valid;
pub(crate) mod values;

/// A property as the user gave it: name and text.
pub(crate) type Said = (String, String);
