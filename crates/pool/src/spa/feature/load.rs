//! The features that the pool uses, and the check that all are known here (OpenZFS: `zfeature.c`).

use std::collections::HashMap;
use std::sync::Arc;

use ondisk::label::key;
use vdev::import::Candidate;

use crate::Error;
use crate::spa::feature::{self, FEATURES, FeatureState, State};
use crate::spa::mos::known::{Known, NAME_BYTES, OfObject};
use crate::spa::mos::{self, Mos};

/// Checks the features that labels name as needed to read the MOS at all.
pub(crate) fn check_labels(candidate: &Candidate) -> Result<(), Error> {
    let newest = candidate.devices.iter().max_by_key(|d| d.label.txg());
    let Some(needed) = newest.and_then(|d| d.label.config.get_nvlist(key::FEATURES_FOR_READ)) else { return Ok(()) };
    let unknown: Vec<String> =
        needed.iter().map(|(guid, _)| guid.to_string()).filter(|guid| feature::by_guid(guid).is_none()).collect();
    if unknown.is_empty() { Ok(()) } else { Err(Error::Features(unknown)) }
}

/// A ZAP with a number for each feature.
#[derive(Default)]
struct Counts(HashMap<String, u64>);

impl OfObject for Counts {
    fn weight(&self) -> usize {
        self.0.keys().map(|guid| NAME_BYTES + guid.len()).sum::<usize>() + NAME_BYTES
    }
}

/// Returns the pool's features: the known ones in the order of the table, then unknown ones of the pool. Before version 5000 all are
/// disabled.
pub(crate) fn load(known: &Known, mos: &Mos, version: u64) -> Result<Vec<FeatureState>, Error> {
    let counts = |key: &str| -> Result<Arc<Counts>, Error> {
        let list = if version < 5000 { None } else { mos.id_of(key)? };
        let Some(list) = list else { return Ok(Arc::default()) };
        known.of(list, || {
            let entries = mos::named_entries(&mos.zap(list)?)?;
            Ok(Counts(entries.into_iter().map(|(guid, value)| (guid, value.first())).collect()))
        })
    };
    let (for_read, for_write) = (counts("features_for_read")?, counts("features_for_write")?);
    let enabled = counts("feature_enabled_txg")?;
    let (for_read, for_write, enabled) = (&for_read.0, &for_write.0, &enabled.0);
    let state_of = |guid: &str, def: Option<&'static feature::Feature>| {
        let refcount = for_read.get(guid).or_else(|| for_write.get(guid)).copied();
        FeatureState {
            def,
            guid: guid.to_string(),
            state: match refcount {
                None => State::Disabled,
                Some(0) => State::Enabled,
                Some(_) => State::Active,
            },
            refcount: refcount.unwrap_or(0),
            enabled_txg: enabled.get(guid).copied(),
            for_read: for_read.contains_key(guid),
        }
    };
    let mut all: Vec<FeatureState> = FEATURES.iter().map(|def| state_of(def.guid, Some(def))).collect();
    let mut unknown: Vec<&String> =
        for_read.keys().chain(for_write.keys()).filter(|guid| feature::by_guid(guid).is_none()).collect();
    unknown.sort();
    all.extend(unknown.into_iter().map(|guid| state_of(guid, None)));
    refuse_unknown(mos, &all)?;
    Ok(all)
}

/// Refuses unknown active features, except those that are only needed for writing.
fn refuse_unknown(mos: &Mos, all: &[FeatureState]) -> Result<(), Error> {
    let blocking: Vec<&FeatureState> =
        all.iter().filter(|f| f.def.is_none() && f.for_read && f.state == State::Active).collect();
    if blocking.is_empty() {
        return Ok(());
    }
    let descriptions = mos.named_zap("feature_descriptions")?;
    let mut names = Vec::new();
    for f in blocking {
        let text = match &descriptions {
            Some(zap) => zap.lookup(&f.guid)?.and_then(|v| v.str().map(str::to_owned)),
            None => None,
        };
        names.push(text.filter(|t| !t.is_empty()).map_or_else(|| f.guid.clone(), |t| format!("{} ({t})", f.guid)));
    }
    Err(Error::Features(names))
}

pub(crate) fn is_active(all: &[FeatureState], name: &str) -> bool {
    all.iter().any(|f| f.state == State::Active && f.def.is_some_and(|d| d.name == name))
}
