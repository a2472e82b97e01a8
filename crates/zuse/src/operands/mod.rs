//! The operands of a copy: the names that copies get, what is refused, and which of them can share hard links.

mod into;
mod out;

pub use into::{InDest, InError, InOperand, place_in};
pub use out::{OutError, OutOperand};

use crate::Target;

/// The file systems that the files of a copy come from, by number: files of one may be hard links to each other.
#[derive(Debug)]
pub(crate) struct Origins(Vec<Option<String>>);

impl Default for Origins {
    fn default() -> Origins {
        Origins(vec![None])
    }
}

impl Origins {
    /// The number of a dataset, or of the host, which is `None` and 0.
    pub(crate) fn number(&mut self, origin: Option<&str>) -> u32 {
        let known = self.0.iter().position(|known| known.as_deref() == origin);
        let number = known.unwrap_or_else(|| {
            self.0.push(origin.map(str::to_owned));
            self.0.len() - 1
        });
        u32::try_from(number).unwrap_or(u32::MAX)
    }
}

/// The last name of a target, for its copy: the file's, or the dataset's.
#[must_use]
pub fn base_name(target: &Target) -> Vec<u8> {
    let path = target.path();
    let trimmed = path.strip_suffix(b"/").unwrap_or(path);
    match trimmed.rsplit(|b| *b == b'/').next() {
        Some(name) if !name.is_empty() => name.to_vec(),
        _ => target.dataset.rsplit('/').next().unwrap_or(&target.dataset).as_bytes().to_vec(),
    }
}

/// The name that a copy of `source` gets in a directory that exists; `None`: the copy is the directory itself, as for the root of a dataset
/// (`pool/fs:/`) or a name that leads up, as `cp -a root/. dest` would.
fn name_in_directory(source: &Target) -> Option<Vec<u8>> {
    let name = base_name(source);
    let is_root = source.path.as_ref().is_some_and(Vec::is_empty) || name == b"..";
    (!is_root).then_some(name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_last_name_of_what_is_named() {
        for (target, name) in [
            ("tank/home:/a/b", Some("b")),
            ("tank/home:/a/b/", Some("b")),
            ("tank/home:/", None),
            ("tank/home:/a/..", None),
            ("tank/home", Some("home")),
            ("tank", Some("tank")),
        ] {
            let target = Target::parse(target.as_bytes()).unwrap();
            assert_eq!(name_in_directory(&target).as_deref(), name.map(str::as_bytes), "{target}");
        }
    }

    #[test]
    fn operands_of_one_dataset_have_one_number() {
        let mut origins = Origins::default();
        let numbers = [Some("a"), None, Some("b"), Some("a"), None].map(|origin| origins.number(origin));
        assert_eq!(numbers, [1, 0, 2, 1, 0]);
    }
}
