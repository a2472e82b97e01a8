//! Checks of names (OpenZFS: `zfs_namecheck.c`, `zfs_validate_name`).

/// A set of dataset kinds, for commands that take some of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Types {
    pub(crate) filesystems: bool,
    pub(crate) volumes: bool,
    pub(crate) snapshots: bool,
    pub(crate) bookmarks: bool,
}

impl Types {
    /// None.
    pub(crate) const NONE: Types = Types { filesystems: false, volumes: false, snapshots: false, bookmarks: false };
    /// File systems, volumes and snapshots.
    pub(crate) const DATASETS: Types = Types { filesystems: true, volumes: true, snapshots: true, bookmarks: false };
    /// Everything.
    pub(crate) const ALL: Types = Types { bookmarks: true, ..Types::DATASETS };
    /// Snapshots.
    pub(crate) const SNAPSHOTS: Types = Types { snapshots: true, ..Types::NONE };
    /// Bookmarks.
    pub(crate) const BOOKMARKS: Types = Types { bookmarks: true, ..Types::NONE };
    /// File systems.
    pub(crate) const FILESYSTEMS: Types = Types { filesystems: true, ..Types::NONE };
    /// Volumes.
    pub(crate) const VOLUMES: Types = Types { volumes: true, ..Types::NONE };
    /// File systems and volumes.
    pub(crate) const HEADS: Types = Types { snapshots: false, ..Types::DATASETS };

    /// Parses the value of an option `-t`.
    pub(crate) fn parse(words: &str) -> Result<Types, String> {
        let mut types = Types::NONE;
        for word in words.split(',') {
            match word {
                "filesystem" | "fs" => types.filesystems = true,
                "volume" | "vol" => types.volumes = true,
                "snapshot" | "snap" => types.snapshots = true,
                "bookmark" => types.bookmarks = true,
                "all" => types = Types::ALL,
                _ => return Err(format!("invalid type '{word}'")),
            }
        }
        Ok(types)
    }
}

const NAME_MAX: usize = 255;

/// Why `name` cannot be the name of one of `types`, in OpenZFS's words.
pub(crate) fn check(name: &str, types: Types) -> Result<(), String> {
    let no = |why: &str| Err(why.to_owned());
    if !types.snapshots && name.contains('@') {
        return no("snapshot delimiter '@' is not expected here");
    }
    if types == Types::SNAPSHOTS && !name.contains('@') {
        return no("missing '@' delimiter in snapshot name");
    }
    if !types.bookmarks && name.contains('#') {
        return no("bookmark delimiter '#' is not expected here");
    }
    if types == Types::BOOKMARKS && !name.contains('#') {
        return no("missing '#' delimiter in bookmark name");
    }
    if name.len() > NAME_MAX {
        return no("name is too long");
    }
    if name.starts_with('/') {
        return no("leading slash in name");
    }
    if name.ends_with('/') {
        return no("trailing slash in name");
    }
    components(name)
}

/// Why `name` cannot be the name of something new: a `%` is reserved for the temporary names of a receive.
pub(crate) fn check_new(name: &str, types: Types) -> Result<(), String> {
    if name.contains('%') {
        check(&name.replace('%', ""), types)?;
        return Err("invalid character % in name".to_owned());
    }
    check(name, types)
}

fn components(name: &str) -> Result<(), String> {
    let empty = "empty component or misplaced '@' or '#' delimiter in name";
    let mut delimited = false;
    for (n, component) in name.split_inclusive(['/', '@', '#']).enumerate() {
        let (word, end) = match component.strip_suffix(['/', '@', '#']) {
            Some(word) => (word, component.chars().last()),
            None => (component, None),
        };
        if word.is_empty() {
            return Err(empty.to_owned());
        }
        if let Some(bad) = word.chars().find(|c| !(c.is_ascii_alphanumeric() || "-_.: %".contains(*c))) {
            return Err(format!("invalid character '{bad}' in name"));
        }
        if word == "." || word == ".." {
            let what = if word == "." { "self reference, '.'" } else { "parent reference, '..'" };
            return Err(format!("{what} is found in name"));
        }
        if delimited && end.is_some() {
            return Err(match end {
                Some('/') => "trailing slash in name",
                _ => "multiple '@' and/or '#' delimiters in name",
            }
            .to_owned());
        }
        delimited |= matches!(end, Some('@' | '#'));
        if n == 0 && !word.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Err("pool doesn't begin with a letter".to_owned());
        }
    }
    if name.is_empty() || name.ends_with(['@', '#']) { Err(empty.to_owned()) } else { Ok(()) }
}

/// Why `name` cannot be the name of a pool (OpenZFS: `pool_namecheck`).
pub(crate) fn check_pool(name: &str) -> Result<(), String> {
    pool::check_pool_name(name).map_err(|bad| bad.to_string())
}

/// Why `name` cannot be the name of a new pool (OpenZFS: `zpool_name_valid`).
pub(crate) fn check_new_pool(name: &str) -> Result<(), String> {
    pool::check_new_pool_name(name).map_err(|bad| bad.to_string())
}

/// The pool that a name is in.
pub(crate) fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(name: &str, types: Types) -> String {
        check(name, types).err().unwrap_or_default()
    }

    #[test]
    fn a_bad_name_is_refused_for_its_reason() {
        assert_eq!(why("tank/a@b", Types::ALL), "");
        assert_eq!(why("tank/a b:c.d-e_f", Types::HEADS), "");
        assert_eq!(why("tank@b", Types::HEADS), "snapshot delimiter '@' is not expected here");
        assert_eq!(why("tank", Types::SNAPSHOTS), "missing '@' delimiter in snapshot name");
        assert_eq!(why("", Types::ALL), "empty component or misplaced '@' or '#' delimiter in name");
        assert_eq!(why("tank//a", Types::ALL), "empty component or misplaced '@' or '#' delimiter in name");
        assert_eq!(why("tank@", Types::ALL), "empty component or misplaced '@' or '#' delimiter in name");
        assert_eq!(why("tank/", Types::ALL), "trailing slash in name");
        assert_eq!(why("1tank", Types::ALL), "pool doesn't begin with a letter");
        assert_eq!(why("tank/../a", Types::ALL), "parent reference, '..' is found in name");
        assert_eq!(why("tank/a$", Types::ALL), "invalid character '$' in name");
        assert_eq!(why("a@b@c", Types::ALL), "multiple '@' and/or '#' delimiters in name");
        assert_eq!(check_new("tank/a%b", Types::HEADS), Err("invalid character % in name".to_owned()));
        assert_eq!(check_new("tank/a-b", Types::HEADS), Ok(()));
        let pool = |name: &str| check_new_pool(name).err().unwrap_or_default();
        assert_eq!(pool("../../etc"), "invalid character '/' in pool name");
        assert_eq!(pool("a%b"), "invalid character '%' in pool name");
        assert_eq!(pool(""), "name must begin with a letter");
        assert_eq!(pool("9tank"), "name must begin with a letter");
        for name in ["mirror", "mirror-1", "raidz2", "draid", "spares", "log"] {
            assert_eq!(pool(name), "name is reserved", "{name}");
        }
        assert_eq!(pool(&"x".repeat(240)), "name is too long");
        for name in ["tank", "logs", "c0t0d0", "a b:c.d-e_f"] {
            assert_eq!(pool(name), "", "{name}");
        }
        assert_eq!(check_pool("mirror-1"), Ok(()));
    }

    #[test]
    fn types_are_read_from_words() {
        assert_eq!(Types::parse("fs,snap"), Ok(Types { filesystems: true, snapshots: true, ..Types::NONE }));
        assert_eq!(Types::parse("all"), Ok(Types::ALL));
        assert_eq!(Types::parse("x"), Err("invalid type 'x'".into()));
    }
}
