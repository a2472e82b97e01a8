//! How a file system is mounted.

use zpl::live::Temporary;

/// A property whose value an option of a mount can replace (OpenZFS: `get_numeric_property`, the namespace properties).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flag {
    /// Nothing can be changed.
    ReadOnly,
    /// Reads set access times.
    Atime,
    /// They do so where it is due.
    Relatime,
    /// Programs can be executed.
    Exec,
    /// Device files have their effect.
    Devices,
    /// Set-id bits have their effect.
    Setuid,
    /// Locks are mandatory.
    Nbmand,
}

impl Flag {
    /// All of them.
    pub const ALL: [Flag; 7] =
        [Flag::ReadOnly, Flag::Atime, Flag::Relatime, Flag::Exec, Flag::Devices, Flag::Setuid, Flag::Nbmand];

    /// Returns the name of the property.
    #[must_use]
    pub const fn property(self) -> &'static str {
        match self {
            Flag::ReadOnly => "readonly",
            Flag::Atime => "atime",
            Flag::Relatime => "relatime",
            Flag::Exec => "exec",
            Flag::Devices => "devices",
            Flag::Setuid => "setuid",
            Flag::Nbmand => "nbmand",
        }
    }

    /// Returns the flag with this property.
    #[must_use]
    pub fn of_property(name: &str) -> Option<Flag> {
        Flag::ALL.into_iter().find(|flag| flag.property() == name)
    }

    /// Returns the value of the property by default.
    const fn default(self) -> bool {
        !matches!(self, Flag::ReadOnly | Flag::Nbmand)
    }
}

/// The values of all flags for a mount: those of the properties, and those that options put in their place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct How {
    props: [bool; Flag::ALL.len()],
    options: [Option<bool>; Flag::ALL.len()],
    allow_other: bool,
}

impl How {
    /// A mount without options, of a file system with these values of properties.
    #[must_use]
    pub fn of_props(value: impl Fn(Flag) -> bool) -> How {
        How { props: Flag::ALL.map(value), options: [None; Flag::ALL.len()], allow_other: false }
    }

    // an array has a place for each flag
    #[allow(clippy::indexing_slicing)]
    fn place(flag: Flag) -> usize {
        flag as usize
    }

    /// Puts the value of an option in the place of a property.
    #[allow(clippy::indexing_slicing)]
    pub fn set_option(&mut self, flag: Flag, value: bool) {
        self.options[How::place(flag)] = Some(value);
    }

    /// Lets all users use a mount that is not root's.
    pub fn allow_other(&mut self) {
        self.allow_other = true;
    }

    /// Puts in the place of properties what holds for mounts that are not root's.
    pub(crate) fn bind_to_user(&mut self) {
        [Flag::Setuid, Flag::Devices].into_iter().for_each(|flag| self.set_option(flag, false));
    }

    /// Takes a new value of a property, which also ends an option.
    #[allow(clippy::indexing_slicing)]
    pub fn set_prop(&mut self, flag: Flag, value: bool) {
        self.props[How::place(flag)] = value;
        self.options[How::place(flag)] = None;
    }

    /// Returns the value of the property.
    #[must_use]
    #[allow(clippy::indexing_slicing)]
    pub fn prop(&self, flag: Flag) -> bool {
        self.props[How::place(flag)]
    }

    /// Returns the value of an option, if one was given.
    #[must_use]
    #[allow(clippy::indexing_slicing)]
    pub fn option(&self, flag: Flag) -> Option<bool> {
        self.options[How::place(flag)]
    }

    /// Returns the value that has effect.
    #[must_use]
    #[allow(clippy::indexing_slicing)]
    pub fn value(&self, flag: Flag) -> bool {
        self.option(flag).unwrap_or(self.props[How::place(flag)])
    }

    /// Returns the value that takes the place of the property, if it is another one.
    #[must_use]
    #[allow(clippy::indexing_slicing)]
    pub fn temporary(&self, flag: Flag) -> Option<bool> {
        self.option(flag).filter(|value| *value != self.props[How::place(flag)])
    }

    /// Returns the options of the mount.
    pub(crate) fn fuse_options(&self, source: &str) -> fuse::Options {
        let options = fuse::Options::new(source);
        fuse::Options {
            allow_other: options.allow_other || self.allow_other,
            read_only: self.value(Flag::ReadOnly),
            exec: self.value(Flag::Exec),
            setuid: self.value(Flag::Setuid),
            devices: self.value(Flag::Devices),
            atime: Some(self.value(Flag::Atime)),
            relatime: Some(self.value(Flag::Relatime)),
            ..options
        }
    }

    /// Returns the values that the file system takes in the place of its properties: it follows these by itself.
    pub(crate) fn engine_values(&self) -> Temporary {
        let option = |flag| self.option(flag);
        Temporary {
            readonly: option(Flag::ReadOnly),
            atime: option(Flag::Atime),
            relatime: option(Flag::Relatime),
            acltype: None,
        }
    }
}

impl Default for How {
    fn default() -> How {
        How::of_props(Flag::default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_take_the_place_of_properties_until_these_are_set() {
        let mut how = How::default();
        assert!(how.value(Flag::Exec) && !how.value(Flag::ReadOnly) && how.temporary(Flag::Exec).is_none());
        how.set_option(Flag::Exec, false);
        how.set_option(Flag::Atime, true);
        assert_eq!((how.value(Flag::Exec), how.temporary(Flag::Exec)), (false, Some(false)));
        // it is what the property says
        assert_eq!((how.value(Flag::Atime), how.temporary(Flag::Atime)), (true, None));
        how.set_prop(Flag::Exec, true);
        assert_eq!((how.value(Flag::Exec), how.option(Flag::Exec)), (true, None));
        for flag in Flag::ALL {
            assert_eq!(Flag::of_property(flag.property()), Some(flag));
        }
    }
}
