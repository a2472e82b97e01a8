//! New vdevs as requests name them: the tree that `zpool` makes of a command line (OpenZFS: `make_root_vdev`).

use std::path::Path;

use base::Guid;
use nvlist::NvList;
use ondisk::label::key;
use vdev::create::{Bias, DraidSpec, Group, TopSpec, VdevSpec};

use crate::Error;

/// New vdevs, spares and caches: what `config` of [`Ioc::PoolCreate`](crate::Ioc::PoolCreate) and [`Ioc::VdevAdd`](crate::Ioc::VdevAdd) says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewVdevs {
    /// The vdevs with the paths of their devices.
    pub spec: VdevSpec,
    /// Base-2 logarithm of the sector size, if it is not that of the devices.
    pub ashift: Option<u64>,
    /// Spares that other pools have, with the guid by which they know them.
    pub shared: Vec<(String, Guid)>,
}

impl NewVdevs {
    /// The tree that a request takes.
    #[must_use]
    pub fn to_list(&self) -> NvList {
        let mut root = NvList::new();
        root.insert(key::TYPE, "root");
        root.insert(key::CHILDREN, self.spec.tops.iter().map(|top| self.top(top)).collect::<Vec<NvList>>());
        let spare = |path: &String| {
            let mut list = leaf(path);
            if let Some((_, guid)) = self.shared.iter().find(|(shared, _)| shared == path) {
                list.insert(key::GUID, guid.0);
            }
            list
        };
        if !self.spec.spares.is_empty() {
            root.insert(key::SPARES, self.spec.spares.iter().map(spare).collect::<Vec<NvList>>());
        }
        if !self.spec.l2cache.is_empty() {
            root.insert(key::L2CACHE, self.spec.l2cache.iter().map(|path| leaf(path)).collect::<Vec<NvList>>());
        }
        root
    }

    fn top(&self, top: &TopSpec) -> NvList {
        let mut list = match top.paths.as_slice() {
            [only] if top.group == Group::Single => leaf(only),
            paths => {
                let mut list = NvList::new();
                list.insert(key::CHILDREN, paths.iter().map(|path| leaf(path)).collect::<Vec<NvList>>());
                list
            }
        };
        match top.group {
            Group::Single => {}
            Group::Mirror => list.insert(key::TYPE, "mirror"),
            Group::Raidz(parity) => {
                list.insert(key::TYPE, "raidz");
                list.insert(key::NPARITY, parity);
            }
            Group::Draid(draid) => {
                list.insert(key::TYPE, "draid");
                list.insert(key::NPARITY, draid.nparity);
                list.insert(key::DRAID_NDATA, draid.ndata);
                list.insert(key::DRAID_NSPARES, draid.nspares);
                list.insert(key::DRAID_NGROUPS, draid.ngroups);
                list.insert(key::DRAID_NCHILDREN, draid.nchildren);
            }
        }
        list.insert(key::IS_LOG, u64::from(top.bias == Some(Bias::Log)));
        if let Some(bias) = top.bias {
            list.insert(key::ALLOCATION_BIAS, bias.name());
        }
        if let Some(ashift) = self.ashift {
            list.insert(key::ASHIFT, ashift);
        }
        list
    }

    /// Decodes and checks the tree of a request.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no tree of vdevs that a pool can have.
    pub fn of_list(list: &NvList) -> Result<NewVdevs, Error> {
        if list.get_str(key::TYPE) != Some("root") {
            return Err(invalid("the tree of new vdevs has no root"));
        }
        let mut new = NewVdevs::default();
        for top in children(list, key::CHILDREN) {
            new.spec.tops.push(top_of(top)?);
            let ashift = top.get_u64(key::ASHIFT).filter(|ashift| *ashift != 0);
            if new.ashift.is_some_and(|before| ashift != Some(before)) {
                return Err(invalid("new vdevs with sectors of several sizes"));
            }
            new.ashift = ashift;
        }
        for spare in children(list, key::SPARES) {
            let path = path_of(spare)?;
            new.shared.extend(spare.get_u64(key::GUID).map(|guid| (path.clone(), Guid(guid))));
            new.spec.spares.push(path);
        }
        new.spec.l2cache = children(list, key::L2CACHE).iter().map(path_of).collect::<Result<_, _>>()?;
        if new.spec.paths().next().is_none() {
            return Err(invalid("no new vdevs"));
        }
        Ok(new)
    }
}

fn leaf(path: &str) -> NvList {
    let is_file = std::fs::metadata(Path::new(path)).is_ok_and(|meta| meta.is_file());
    let mut list = NvList::new();
    list.insert(key::TYPE, if is_file { "file" } else { "disk" });
    list.insert(key::PATH, path);
    list
}

fn children<'a>(list: &'a NvList, name: &str) -> &'a [NvList] {
    list.get_nvlist_array(name).unwrap_or_default()
}

fn path_of(list: &NvList) -> Result<String, Error> {
    match (list.get_str(key::TYPE), list.get_str(key::PATH)) {
        (Some("file" | "disk"), Some(path)) if !path.is_empty() => Ok(path.to_owned()),
        _ => Err(invalid("a device of a new vdev has no path")),
    }
}

/// The numbers that the configuration of a new top-level vdev may have.
const NUMBERS: [&str; 6] =
    [key::NPARITY, key::DRAID_NDATA, key::DRAID_NCHILDREN, key::DRAID_NSPARES, key::DRAID_NGROUPS, key::IS_LOG];

/// One top-level vdev, checked as the words of a command line are.
fn top_of(list: &NvList) -> Result<TopSpec, Error> {
    // of another type it would be overlooked, and a log device become one of data for good
    if let Some(name) = NUMBERS.into_iter().find(|name| list.contains(name) && list.get_u64(name).is_none()) {
        return Err(invalid(format!("'{name}' of a new vdev is not a number")));
    }
    if list.contains(key::ALLOCATION_BIAS) && list.get_str(key::ALLOCATION_BIAS).is_none() {
        return Err(invalid("the purpose of a new vdev is not a text"));
    }
    let number = |name: &str| list.get_u64(name).unwrap_or(0);
    let word = match list.get_str(key::TYPE) {
        Some("file" | "disk") => None,
        Some("mirror") => Some("mirror".to_owned()),
        Some("raidz") => Some(format!("raidz{}", number(key::NPARITY))),
        Some("draid") => Some(format!(
            "draid{}:{}d:{}c:{}s",
            number(key::NPARITY),
            number(key::DRAID_NDATA),
            number(key::DRAID_NCHILDREN),
            number(key::DRAID_NSPARES)
        )),
        other => return Err(invalid(format!("a new vdev of type '{}'", other.unwrap_or_default()))),
    };
    let paths: Vec<String> = match word {
        Some(_) => children(list, key::CHILDREN).iter().map(path_of).collect::<Result<_, _>>()?,
        None => vec![path_of(list)?],
    };
    let words: Vec<String> = word.into_iter().chain(paths.iter().cloned()).collect();
    let parsed = VdevSpec::parse(&words).map_err(|e| invalid(e.to_string()))?;
    let [TopSpec { group, paths: read, .. }] = parsed.tops.as_slice() else {
        return Err(invalid("a new vdev whose devices have the names of vdevs"));
    };
    let is_right = *read == paths
        && match group {
            Group::Draid(DraidSpec { ngroups, .. }) => *ngroups == number(key::DRAID_NGROUPS),
            _ => true,
        };
    let bias = match (number(key::IS_LOG), list.get_str(key::ALLOCATION_BIAS)) {
        (0, None) => None,
        (0, Some("special")) => Some(Bias::Special),
        (0, Some("dedup")) => Some(Bias::Dedup),
        (1, None | Some("log")) if matches!(group, Group::Single | Group::Mirror) => Some(Bias::Log),
        _ => return Err(invalid("a new vdev with an impossible purpose")),
    };
    if is_right { Ok(TopSpec { group: *group, bias, paths }) } else { Err(invalid("a new vdev of impossible shape")) }
}

fn invalid(why: impl Into<String>) -> Error {
    Error::Invalid(why.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(words: &str) -> NewVdevs {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        NewVdevs { spec: VdevSpec::parse(&words).unwrap(), ..NewVdevs::default() }
    }

    #[test]
    fn what_is_named_is_what_is_read() {
        let devices = |n: u32| (0..n).map(|n| format!("/d{n}")).collect::<Vec<_>>().join(" ");
        for words in [
            "/a".to_owned(),
            "mirror /a /b mirror /c /d".to_owned(),
            "log /l /a".to_owned(),
            format!("raidz2 {} special mirror /s /t dedup /u log mirror /l /m spare /v cache /w", devices(5)),
            format!("draid2:4d:2s {}", devices(11)),
            format!("draid1:2d:6c:1s {}", devices(12)),
        ] {
            let new = NewVdevs { ashift: Some(12), ..of(&words) };
            assert_eq!(NewVdevs::of_list(&new.to_list()).unwrap(), new, "{words}");
        }
        let shared = NewVdevs { shared: vec![("/s".to_owned(), Guid(7))], ..of("/a spare /s") };
        assert_eq!(NewVdevs::of_list(&shared.to_list()).unwrap(), shared);
    }

    #[test]
    fn impossible_trees_are_refused() {
        let tree = |change: &dyn Fn(&mut NvList)| {
            let mut root = of("raidz1 /a /b /c").to_list();
            let mut top = root.get_nvlist_array(key::CHILDREN).unwrap()[0].clone();
            change(&mut top);
            root.insert(key::CHILDREN, vec![top]);
            NewVdevs::of_list(&root).map(drop).map_err(|e| e.errno().raw())
        };
        assert_eq!(tree(&|_| {}), Ok(()));
        assert_eq!(tree(&|top| top.insert(key::NPARITY, 3u64)), Err(22));
        assert_eq!(tree(&|top| top.insert(key::NPARITY, 0u64)), Err(22));
        assert_eq!(tree(&|top| top.insert(key::NPARITY, "1")), Err(22));
        assert_eq!(tree(&|top| top.insert(key::IS_LOG, true)), Err(22));
        assert_eq!(tree(&|top| top.insert(key::ALLOCATION_BIAS, 1u64)), Err(22));
        assert_eq!(tree(&|top| top.insert(key::TYPE, "replacing")), Err(22));
        assert_eq!(tree(&|top| top.insert(key::IS_LOG, 1u64)), Err(22));
        assert_eq!(tree(&|top| top.insert(key::CHILDREN, Vec::<NvList>::new())), Err(22));
        assert_eq!(tree(&|top| top.insert(key::CHILDREN, vec![leaf("/a"), leaf("mirror"), leaf("/c")])), Err(22));
        assert_eq!(NewVdevs::of_list(&NvList::new()).map_err(|e| e.errno().raw()), Err(22));
    }
}
