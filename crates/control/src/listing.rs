//! Datasets and snapshots listed with their properties: one request can answer for all below a dataset, so that a long list does not need one for each.
//!
//! OpenZFS: `zfs_ioc_dataset_list_next`, `zfs_ioc_snapshot_list_next`, `zfs_ioc_objset_stats`, `dsl_prop_get_all`.

use std::collections::HashSet;

use base::Errno;
use nvlist::{NvList, Value as Nv};
use pool::prop::PropValue;
use pool::{Dataset, Entry, Error as PoolError, Kind, ListOptions, Source};

use crate::read_only::plain;
use crate::{Error, Failed, ReadOnlyControl};

/// The properties in a dataset's list.
const PROPS: &str = "props";
/// What asks for the properties that a dataset has of its own, and their list.
const STORED: &str = "stored";
/// What asks for the snapshot that a dataset was cloned from, and the list about it.
const ORIGIN: &str = "origin";
/// The source of a value that came with a stream (OpenZFS: `ZPROP_SOURCE_VAL_RECVD`).
const RECEIVED: &str = "$recvd";
/// Pairs in the list of a dataset with its properties, if it is simple and if not.
const SIMPLE: usize = 4;
const WHOLE: usize = 9;
/// Properties that one request names.
const WANTED_MAX: usize = 1 << 10;

impl ReadOnlyControl {
    pub(crate) fn objset_stats(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let dataset = self.view.dataset(name)?;
        if ["simple", ORIGIN, STORED].iter().any(|key| input.contains(key)) {
            return Ok(known(&dataset, input.contains(ORIGIN), input.contains(STORED))?);
        }
        match wanted(input)? {
            Some(names) if !names.is_empty() => props(&dataset, &names),
            _ => all_props(&dataset),
        }
    }

    pub(crate) fn dataset_list(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let (snapshots, special) = (input.contains("snapshots"), input.contains("special"));
        let options = ListOptions { snapshots, special, ..ListOptions::DATASETS };
        self.list(name, input, &options, |dataset| dataset.name() != name)
    }

    pub(crate) fn snapshot_list(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let bound = |key: &str| input.get_u64(key).filter(|txg| *txg != 0);
        let (min, max) = (bound("snap_iter_min_txg"), bound("snap_iter_max_txg"));
        let is_meant = |dataset: &Dataset| {
            let txg = dataset.phys().creation_txg.0;
            dataset.is_snapshot()
                && dataset.name() != name
                && min.is_none_or(|min| txg >= min)
                && max.is_none_or(|max| txg <= max)
        };
        if input.contains("special") {
            let all = self.view.dataset(name).and_then(|head| head.snapshots()).map_err(not_found)?;
            return answer(all.into_iter().filter(is_meant), input);
        }
        let options = ListOptions { snapshots: true, ..ListOptions::DATASETS };
        self.list(name, input, &options, is_meant)
    }

    /// Lists what is below a dataset, as many levels as are asked for.
    fn list(
        &self,
        name: &str,
        input: &NvList,
        options: &ListOptions,
        is_meant: impl Fn(&Dataset) -> bool,
    ) -> Result<NvList, Failed> {
        let depth = input.get_u64("depth").unwrap_or(1);
        let options = ListOptions { depth: Some(u32::try_from(depth).unwrap_or(u32::MAX)), ..*options };
        if name.contains('#') {
            return Err(Error::Invalid(format!("'{name}' is a bookmark")).into());
        }
        let all = self.view.list(name, &options).map_err(not_found)?.into_iter();
        let datasets = all.filter_map(|entry| match entry {
            Entry::Dataset(dataset) => Some(dataset),
            Entry::Bookmark(_) => None,
        });
        answer(datasets.filter(is_meant), input)
    }
}

/// The error for a list below a dataset.
fn not_found(e: PoolError) -> Failed {
    match e {
        PoolError::NoSuchDataset { .. } => Failed { errno: Errno::ESRCH, ..e.into() },
        e => e.into(),
    }
}

/// What is asked for of each of these datasets.
fn answer(datasets: impl Iterator<Item = Dataset>, input: &NvList) -> Result<NvList, Failed> {
    let (simple, own, wanted) = (input.contains("simple"), input.contains(STORED), wanted(input)?);
    let mut out = NvList::new();
    for dataset in datasets {
        let mut list = stats(&dataset, simple)?;
        match wanted.as_deref() {
            None => {}
            Some([]) => list.insert(PROPS, all_props(&dataset)?),
            Some(names) => list.insert(PROPS, props(&dataset, names)?),
        }
        if own {
            list.insert(STORED, stored(&dataset)?);
        }
        out.insert(dataset.name(), list);
    }
    Ok(out)
}

/// The names of the properties that are asked for, each once.
fn wanted(input: &NvList) -> Result<Option<Vec<&str>>, Error> {
    let Some(Nv::StringArray(names)) = input.get(PROPS) else { return Ok(None) };
    let mut seen = HashSet::new();
    let wanted: Vec<&str> = names.iter().filter_map(|name| name.to_str()).filter(|name| seen.insert(*name)).collect();
    match wanted.len() {
        n if n > WANTED_MAX => {
            Err(Error::Invalid(format!("{n} properties are asked for, and at most {WANTED_MAX} are told")))
        }
        _ => Ok(Some(wanted)),
    }
}

fn all_props(dataset: &Dataset) -> Result<NvList, Failed> {
    let props = dataset.props()?;
    let mut out = NvList::with_capacity(props.len());
    props.iter().for_each(|(name, value)| out.insert(name, prop(dataset, value)));
    Ok(out)
}

/// Returns those of these properties that a dataset has. One of a family that cannot be computed, as the space written since a snapshot that is not there, is left out.
fn props(dataset: &Dataset, names: &[&str]) -> Result<NvList, Failed> {
    let mut out = NvList::with_capacity(names.len());
    for name in names {
        match dataset.prop(name) {
            Ok(Some(value)) => out.insert(name, prop(dataset, &value)),
            Ok(None) => {}
            Err(_) if name.contains(['@', '#']) => {}
            Err(e) => {
                let mut failed = Failed::from(e);
                failed.out.insert(name, failed.errno);
                return Err(failed);
            }
        }
    }
    Ok(out)
}

/// What is told of a dataset without its object set.
fn known(dataset: &Dataset, origin: bool, own: bool) -> Result<NvList, PoolError> {
    let mut out = stats(dataset, true)?;
    out.insert("name", dataset.name());
    if origin && let Some(origin) = dataset.origin()? {
        out.insert(ORIGIN, known(&origin, false, false)?);
    }
    if own {
        if let Some(root) = dataset.encryption_root()? {
            out.insert("encryption_root", root);
        }
        out.insert(STORED, stored(dataset)?);
    }
    Ok(out)
}

/// The properties that can be set, as they are stored on the dataset itself: in `value` what is set here, in `received` what came with a stream. A stream tells them, and
/// not the values in force, of which a mount point has the root of the import in front.
fn stored(dataset: &Dataset) -> Result<NvList, PoolError> {
    let mut out = NvList::new();
    for stored in dataset.stored_props()? {
        let mut prop = NvList::new();
        for (key, value) in [("value", &stored.value), ("received", &stored.received)] {
            if let Some(value) = value {
                prop.insert(key, plain(value));
            }
        }
        out.insert(stored.name, prop);
    }
    Ok(out)
}

/// A property of a dataset: `value`, in `source` the dataset where it is set, and in `received` what came with a stream.
fn prop(dataset: &Dataset, value: &PropValue) -> NvList {
    let mut prop = NvList::with_capacity(if value.received.is_some() { 3 } else { 2 });
    prop.insert("value", plain(&value.value));
    match &value.source {
        Source::None | Source::Temporary => {}
        Source::Default => prop.insert("source", ""),
        Source::Local => prop.insert("source", dataset.name()),
        Source::Inherited(from) => prop.insert("source", from.as_str()),
        Source::Received => prop.insert("source", RECEIVED),
    }
    if let Some(received) = &value.received {
        prop.insert("received", plain(received));
    }
    prop
}

/// Facts about a dataset that are read quickly (OpenZFS: `dmu_objset_stats_t`); if that is to be `simple`, only what its own object tells: neither its type, for which its root
/// block is read, nor its origin.
fn stats(dataset: &Dataset, simple: bool) -> Result<NvList, PoolError> {
    let mut out = NvList::with_capacity(if simple { SIMPLE } else { WHOLE });
    out.insert("dds_creation_txg", dataset.phys().creation_txg.0);
    out.insert("dds_guid", dataset.guid().0);
    out.insert("dds_is_snapshot", u8::from(dataset.is_snapshot()));
    if simple {
        return Ok(out);
    }
    out.insert("dds_num_clones", dataset.phys().num_children.saturating_sub(1));
    let kind: i32 = match dataset.head_kind()? {
        Kind::Filesystem => 2,
        Kind::Volume => 3,
        _ => 0,
    };
    out.insert("dds_type", kind);
    out.insert("dds_inconsistent", u8::from(dataset.is_inconsistent()));
    // it is listed also where these cannot be read
    out.insert("dds_redacted", u8::from(dataset.is_redacted().unwrap_or(false)));
    let origin = dataset.origin().ok().flatten().map_or_else(String::new, |origin| origin.name().to_owned());
    out.insert("dds_origin", origin);
    Ok(out)
}
