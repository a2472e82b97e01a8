//! Keys of encrypted datasets that a command is given: typed (a terminal, or standard input if that is not a terminal),
//! in files, and of new datasets. [`site::keys`] finds those of earlier commands.

mod given;
mod new;
mod places;
mod prompt;
mod roots;
mod typed;

pub(crate) use given::{load_all, load_from, load_given};
pub(crate) use new::{Material, for_new, for_new_pool, material_for};
pub(crate) use places::{keep, remember_change, remember_new};
pub(crate) use roots::without_key;
pub(crate) use typed::{check, load};
