//! Names that a pool can have (OpenZFS: `pool_namecheck`, `zpool_name_valid`).

use std::fmt;

/// A pool's name must leave room for `/$ORIGIN@$ORIGIN` behind it.
const NAME_MAX: usize = 239;
/// Words that begin the description of a vdev.
const VDEV_WORDS: [&str; 3] = ["mirror", "raidz", "draid"];

/// Why no pool is called so. It is displayed in OpenZFS's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadPoolName {
    /// It is too long.
    TooLong,
    /// A character that no name has.
    Character(char),
    /// Its first character is no letter.
    NoLetter,
    /// The word means something else to the commands.
    Reserved,
}

impl BadPoolName {
    /// The rule in words.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            BadPoolName::TooLong => "name is too long",
            BadPoolName::Character(_) => "invalid character in pool name",
            BadPoolName::NoLetter => "name must begin with a letter",
            BadPoolName::Reserved => "name is reserved",
        }
    }
}

impl fmt::Display for BadPoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadPoolName::Character(bad) => write!(f, "invalid character '{bad}' in pool name"),
            other => f.write_str(other.why()),
        }
    }
}

/// Whether a pool can have the name.
///
/// # Errors
/// [`BadPoolName`].
pub fn check_pool_name(name: &str) -> Result<(), BadPoolName> {
    if name.len() > NAME_MAX {
        return Err(BadPoolName::TooLong);
    }
    if let Some(bad) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || "-_.: ".contains(*c))) {
        return Err(BadPoolName::Character(bad));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(BadPoolName::NoLetter);
    }
    if VDEV_WORDS.contains(&name) { Err(BadPoolName::Reserved) } else { Ok(()) }
}

/// Whether a pool can get the name: what begins like a vdev cannot be told from one.
///
/// # Errors
/// [`BadPoolName`].
pub fn check_new_pool_name(name: &str) -> Result<(), BadPoolName> {
    check_pool_name(name)?;
    let reserved = VDEV_WORDS.iter().chain(&["spare"]).any(|word| name.starts_with(word)) || name == "log";
    if reserved { Err(BadPoolName::Reserved) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_vdevs() {
        for good in ["tank", "a b", "c0d0", "x.y-z_1:2", "logs"] {
            assert_eq!(check_new_pool_name(good), Ok(()), "{good}");
        }
        for reserved in ["mirror", "mirror-1", "raidz2", "draid", "spares", "log"] {
            assert_eq!(check_new_pool_name(reserved), Err(BadPoolName::Reserved), "{reserved}");
        }
        assert_eq!(check_pool_name("mirror-1"), Ok(()));
        assert_eq!(check_new_pool_name(""), Err(BadPoolName::NoLetter));
        assert_eq!(check_new_pool_name("9x"), Err(BadPoolName::NoLetter));
        assert_eq!(check_new_pool_name("a/b"), Err(BadPoolName::Character('/')));
        assert_eq!(
            check_new_pool_name("a%b").map_err(|e| e.to_string()),
            Err("invalid character '%' in pool name".into())
        );
        assert_eq!(check_new_pool_name(&"x".repeat(240)), Err(BadPoolName::TooLong));
    }
}
