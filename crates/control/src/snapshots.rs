//! Snapshots, bookmarks and holds.

use base::Errno;
use nvlist::NvList;

use crate::decode::{Props, names, require_list};
use crate::{Control, Error, Failed};

impl Control {
    pub(crate) fn snapshot(&self, input: &NvList) -> Result<NvList, Failed> {
        let snaps = names(require_list(input, "snaps")?);
        let props = Props::decode(input.get_nvlist("props"))?;
        for (name, _) in &props.values {
            if !pool::prop::is_user_property(name) {
                return Err(Error::Invalid(format!("'{name}' cannot be set on a snapshot")).into());
            }
        }
        self.check_snapshots(&snaps)?;
        let mut heads: Vec<&str> = snaps.iter().filter_map(|name| Some(name.split_once('@')?.0)).collect();
        heads.sort_unstable();
        if let Some(twice) = heads.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::OtherPool(twice[0].to_owned()).into());
        }
        self.done(self.spa.snapshot(&snaps, &props.values))
    }

    pub(crate) fn destroy_snaps(&self, input: &NvList) -> Result<NvList, Failed> {
        let snaps = names(require_list(input, "snaps")?);
        self.check_snapshots(&snaps)?;
        self.done(self.spa.destroy_snapshots(&snaps, input.contains("defer")))
    }

    pub(crate) fn bookmark(&self, input: &NvList) -> Result<NvList, Failed> {
        let mut new = Vec::new();
        for (name, source) in input {
            self.check_pool(name)?;
            let source = source.as_str().ok_or_else(|| Error::Invalid(format!("source of '{name}' is no text")))?;
            new.push((name.to_owned(), source.to_owned()));
        }
        self.done(self.spa.bookmark(&new))
    }

    pub(crate) fn destroy_bookmarks(&self, input: &NvList) -> Result<NvList, Failed> {
        let marks = names(input);
        marks.iter().try_for_each(|name| self.check_pool(name))?;
        self.done(self.spa.destroy_bookmarks(&marks))
    }

    /// Holds what is there; what is not is told.
    pub(crate) fn hold(&self, input: &NvList) -> Result<NvList, Failed> {
        let mut holds = Vec::new();
        for (name, tag) in require_list(input, "holds")? {
            let tag = tag.as_str().ok_or_else(|| Error::Invalid(format!("tag for '{name}' is no text")))?;
            self.check_snapshots(&[name.to_owned()])?;
            holds.push((name.to_owned(), tag.to_owned()));
        }
        Ok(told_missing(self.spa.hold(&holds)?))
    }

    /// Releases what is there; what is not is told.
    pub(crate) fn release(&self, input: &NvList) -> Result<NvList, Failed> {
        let mut holds = Vec::new();
        for (name, tags) in input {
            self.check_snapshots(&[name.to_owned()])?;
            let tags = tags.as_nvlist().ok_or_else(|| Error::Invalid(format!("tags of '{name}' are no list")))?;
            holds.extend(names(tags).into_iter().map(|tag| (name.to_owned(), tag)));
        }
        Ok(told_missing(self.spa.release(&holds)?))
    }

    /// Snapshots of this pool are wanted.
    fn check_snapshots(&self, names: &[String]) -> Result<(), Error> {
        for name in names {
            if !name.contains('@') {
                return Err(Error::Invalid(format!("'{name}' is not a snapshot")));
            }
            self.check_pool(name)?;
        }
        Ok(())
    }
}

fn told_missing(missing: Vec<String>) -> NvList {
    let mut out = NvList::new();
    missing.into_iter().for_each(|name| out.insert(name, Errno::ENOENT));
    out
}
