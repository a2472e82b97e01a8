//! Options of a mount, as users write them (OpenZFS: `option_map`).

use mounts::{Flag, How};

/// Words that say something about a mount that Zuse heeds.
const FLAGS: [(&str, Flag, bool); 25] = [
    ("ro", Flag::ReadOnly, true),
    ("rw", Flag::ReadOnly, false),
    ("atime", Flag::Atime, true),
    ("noatime", Flag::Atime, false),
    ("relatime", Flag::Relatime, true),
    ("norelatime", Flag::Relatime, false),
    ("strictatime", Flag::Relatime, false),
    ("exec", Flag::Exec, true),
    ("noexec", Flag::Exec, false),
    ("dev", Flag::Devices, true),
    ("devices", Flag::Devices, true),
    ("nodev", Flag::Devices, false),
    ("nodevices", Flag::Devices, false),
    ("suid", Flag::Setuid, true),
    ("setuid", Flag::Setuid, true),
    ("nosuid", Flag::Setuid, false),
    ("nosetuid", Flag::Setuid, false),
    ("mand", Flag::Nbmand, true),
    ("nbmand", Flag::Nbmand, true),
    ("nomand", Flag::Nbmand, false),
    ("nonbmand", Flag::Nbmand, false),
    // as mount(8) has them: each is several
    ("user", Flag::Exec, false),
    ("users", Flag::Exec, false),
    ("owner", Flag::Setuid, false),
    ("group", Flag::Setuid, false),
];

/// Words for others, or without an effect here.
const PASSED: [&str; 32] = [
    "defaults",
    "auto",
    "noauto",
    "nouser",
    "nousers",
    "noowner",
    "nogroup",
    "_netdev",
    "nofail",
    "quiet",
    "loud",
    "async",
    "diratime",
    "nodiratime",
    "iversion",
    "noiversion",
    "lazytime",
    "nolazytime",
    "silent",
    "xattr",
    "noxattr",
    "dirxattr",
    "saxattr",
    "posixacl",
    "acl",
    "noacl",
    "nostrictatime",
    "comment",
    "sub",
    "nosub",
    "bind",
    "rbind",
];

/// Beginnings of words with a value that are for others.
const PASSED_VALUES: [&str; 7] = ["context=", "fscontext=", "defcontext=", "rootcontext=", "x-", "X-", "comment="];

/// The options of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::zfs) struct Options {
    flags: Vec<(Flag, bool)>,
    /// It is mounted, and its options are to change.
    pub(in crate::zfs) remount: bool,
    /// All users may use a mount that is not root's.
    allow_other: bool,
    /// It is `zfs mount` that mounts (`zfsutil`).
    pub(in crate::zfs) by_zfs: bool,
}

impl Options {
    /// Reads the options in these lists.
    ///
    /// # Errors
    /// The first word that is none.
    pub(in crate::zfs) fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<Options, String> {
        let mut options = Options::default();
        let words = lists.into_iter().flat_map(|list| list.split(','));
        for word in words.map(str::trim).filter(|word| !word.is_empty()) {
            options.add(word)?;
        }
        Ok(options)
    }

    fn add(&mut self, word: &str) -> Result<(), String> {
        match word {
            "remount" => self.remount = true,
            "zfsutil" => self.by_zfs = true,
            "allow_other" => self.allow_other = true,
            _ if PASSED.contains(&word) || PASSED_VALUES.iter().any(|begin| word.starts_with(begin)) => {}
            _ => match FLAGS.iter().find(|(known, ..)| *known == word) {
                Some((_, flag, value)) => self.flags.push((*flag, *value)),
                None => return Err(word.to_owned()),
            },
        }
        // who lets users mount means this, unless another word follows
        if matches!(word, "user" | "users" | "owner" | "group") {
            self.flags.extend([(Flag::Setuid, false), (Flag::Devices, false)]);
        }
        Ok(())
    }

    /// Puts them in the place of properties; the last one of a kind counts.
    pub(in crate::zfs) fn apply(&self, how: &mut How) {
        self.flags.iter().for_each(|(flag, value)| how.set_option(*flag, *value));
        if self.allow_other {
            how.allow_other();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_applied() {
        let options = Options::parse(["ro,noexec", "defaults,exec,x-systemd.automount"]).unwrap();
        let mut how = How::default();
        options.apply(&mut how);
        assert!(how.value(Flag::ReadOnly) && how.value(Flag::Exec) && !options.remount);
        assert_eq!(Options::parse(["ro,bogus=1"]), Err("bogus=1".to_owned()));
        let options = Options::parse(["user,remount,zfsutil"]).unwrap();
        let mut how = How::default();
        options.apply(&mut how);
        assert!(!how.value(Flag::Exec) && !how.value(Flag::Setuid) && !how.value(Flag::Devices));
        assert!(options.remount && options.by_zfs);
    }
}
