//! Names of users and groups of the host, from `/etc/passwd` and `/etc/group`.

use std::collections::HashMap;
use std::sync::OnceLock;

/// Users or groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// A user.
    User,
    /// A group.
    Group,
}

/// (name, id) of each line; names may be repeated.
fn table(who: Who) -> &'static [(String, u64)] {
    static USERS: OnceLock<Vec<(String, u64)>> = OnceLock::new();
    static GROUPS: OnceLock<Vec<(String, u64)>> = OnceLock::new();
    let (table, path) = match who {
        Who::User => (&USERS, "/etc/passwd"),
        Who::Group => (&GROUPS, "/etc/group"),
    };
    table.get_or_init(|| parse(&std::fs::read(path).unwrap_or_default()))
}

fn parse(file: &[u8]) -> Vec<(String, u64)> {
    let text = String::from_utf8_lossy(file);
    let line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with(['+', '-', '#']))?;
        Some((name.to_owned(), fields.nth(1)?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// The name of an id: the first line that has it.
#[must_use]
pub fn name_of(who: Who, id: u64) -> Option<&'static str> {
    static NAMES: OnceLock<[HashMap<u64, &'static str>; 2]> = OnceLock::new();
    let by_id = |who| table(who).iter().rev().map(|(name, id)| (*id, name.as_str())).collect();
    let [users, groups] = NAMES.get_or_init(|| [by_id(Who::User), by_id(Who::Group)]);
    let names = if who == Who::User { users } else { groups };
    names.get(&id).copied()
}

/// The id of a name.
#[must_use]
pub fn id_of(who: Who, name: &str) -> Option<u64> {
    table(who).iter().find(|(n, _)| n == name).map(|(_, id)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_passwd() {
        assert_eq!(parse(b"root:x:0:0:r:/root:/bin/sh\n+nis\nbad\na:x:7:\n"), [("root".into(), 0), ("a".into(), 7)]);
    }
}
