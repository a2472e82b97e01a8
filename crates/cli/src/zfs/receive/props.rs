//! `-o` and `-x`: properties given with a stream (OpenZFS: `zfs_receive_checkprops`, `zfs_setup_cmdline_props`).

use nvlist::{NvList, Value as Nv};
use pool::Kind;
use pool::prop::{self, FS, VOL};

use crate::args::Parsed;
use crate::error::{Failure, failed, usage};
use crate::keys::{self, Material};
use crate::pools;
use crate::props::valid::{Target, add_said, valid};

/// The properties that describe a key.
const KEY_PARAMS: [&str; 4] = ["encryption", "keyformat", "keylocation", "pbkdf2iters"];

/// The properties on the command line.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    /// `-o`.
    set: Vec<crate::props::Said>,
    /// `-x`.
    excluded: Vec<String>,
}

/// The dataset that a stream is received into.
pub(super) struct Into<'a> {
    pub(super) name: &'a str,
    pub(super) kind: Kind,
    /// Set if it is new, and its stream is not raw: it can have a key.
    pub(super) may_have_key: bool,
    /// Set if it is the first of its package.
    pub(super) top: bool,
}

impl Said {
    pub(super) fn new(args: &Parsed) -> Result<Said, Failure> {
        let mut said = Said::default();
        for (option, value) in &args.options {
            let value = value.to_string_lossy();
            match option {
                'o' => add_said(&mut said.set, &value).map_err(usage)?,
                'x' if value.contains('=') => return Err(usage("invalid property name: '='")),
                'x' if said.excluded.iter().any(|name| *name == value) => {
                    return Err(usage(format!("property '{value}' specified multiple times")));
                }
                'x' => said.excluded.push(value.into_owned()),
                _ => {}
            }
        }
        if let Some((name, _)) = said.set.iter().find(|(name, _)| said.excluded.contains(name)) {
            return Err(usage(format!("property '{name}' specified multiple times")));
        }
        Ok(said)
    }

    /// `-o origin=`.
    pub(super) fn take_origin(&mut self) -> Option<String> {
        let place = self.set.iter().position(|(name, _)| name == "origin")?;
        Some(self.set.remove(place).1)
    }

    /// Refuses properties that can never be given.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let names = self.set.iter().map(|(name, _)| name).chain(&self.excluded);
        for name in names {
            let good = match prop::find(name) {
                None => prop::is_user_property(name),
                Some(_) if KEY_PARAMS.contains(&name.as_str()) => true,
                Some(def) => !def.is_read_only() && !matches!(def.name, "version" | "volsize"),
            };
            if !good {
                return Err(failed(format!("cannot receive: invalid property '{name}'")));
            }
        }
        Ok(())
    }

    /// The properties to be set and inherited on one dataset, and the key that it gets; excluded properties are
    /// removed from those in the stream.
    pub(super) fn local(&self, into: &Into<'_>, came: &mut NvList) -> Result<(NvList, Option<Material>), Failure> {
        let cannot = |why: String| failed(format!("cannot receive: {why}"));
        let mask = if into.kind == Kind::Volume { VOL } else { FS };
        let mut inherited = NvList::new();
        let mut set = Vec::new();
        for name in self.set.iter().map(|(name, _)| name).chain(&self.excluded) {
            let def = prop::find(name);
            if def.is_some_and(|def| !def.is_valid_for(mask)) {
                eprintln!("Warning: {}: property '{name}' does not apply to datasets of this type", into.name);
                continue;
            }
            let inheritable = def.is_none_or(|def| def.is_inheritable());
            let value = self.set.iter().find(|(n, _)| n == name);
            match value {
                Some(_) if KEY_PARAMS.contains(&name.as_str()) && !(into.may_have_key && into.top) => {}
                // the other datasets inherit it from the top
                Some(said) if into.top || !inheritable => set.push(said.clone()),
                None if !inheritable => drop(came.remove(name)),
                _ => inherited.insert(name, Nv::Boolean),
            }
        }
        // only a size that is set depends on it
        let source = if set.is_empty() { None } else { pools::of_dataset(into.name)? };
        let large_blocks = source.map(|source| pools::has_feature(&source, "large_blocks")).transpose();
        let large_blocks = large_blocks.map_err(|e| cannot(e.to_string()))?.unwrap_or(false);
        let target = Target { kind: into.kind, existing: None, large_blocks, zoned: false, key_params: true };
        let mut local = valid(&set, &target).map_err(cannot)?;
        let wants_key = KEY_PARAMS.iter().any(|name| local.contains(name));
        let key = if wants_key { keys::for_new(into.name, &mut local).map_err(cannot)? } else { None };
        local.merge(&inherited);
        Ok((local, key))
    }
}
