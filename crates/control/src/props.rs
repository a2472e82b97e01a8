//! Properties set and unset.

use std::sync::Arc;

use nvlist::NvList;
use pool::prop::BLOCK_MAX;
use pool::{PropSource, Spa, Value};

use crate::decode::{Props, require_list, require_str};
use crate::{Control, Error, Failed};

/// The feature that a value of a property needs, if any (OpenZFS: `zfs_check_settable`).
#[must_use]
pub fn feature_of(name: &str, value: &Value) -> Option<&'static str> {
    let number = value.number().unwrap_or(0);
    match name {
        "recordsize" | "volblocksize" if number > 128 << 10 => Some("large_blocks"),
        "dnodesize" if number != 0 => Some("large_dnode"),
        "longname" if number != 0 => Some("longname"),
        "compression" if number & 0x7f == 16 => Some("zstd_compress"),
        "compression" if number == 15 => Some("lz4_compress"),
        // bit 8 is "verify"
        "checksum" | "dedup" => match number & 0xff {
            11 => Some("sha512"),
            12 => Some("skein"),
            13 => Some("edonr"),
            14 => Some("blake3"),
            _ => None,
        },
        "encryption" if number != 2 => Some("encryption"),
        _ => None,
    }
}

/// Whether the pool has what these values need.
pub(crate) fn check_settable(spa: &Arc<Spa>, props: &[(String, Value)]) -> Result<(), Error> {
    let view = spa.view()?;
    for (name, value) in props {
        if name == "recordsize" && value.number().is_none_or(|size| size > BLOCK_MAX) {
            return Err(Error::OutOfRange(name.clone()));
        }
        if feature_of(name, value).is_some_and(|feature| !view.feature_enabled(feature)) {
            return Err(Error::NotSupported(name.clone()));
        }
    }
    Ok(())
}

impl Control {
    pub(crate) fn set_prop(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let mut props = Props::decode(Some(require_list(input, "props")?))?;
        // what cannot be is told by name, and nothing is set
        Props::of_dataset(input.get_nvlist("props")).map_err(|e| tell(e, &props.values))?;
        let defaults: Vec<(&'static str, u64)> =
            zpl::create::DEFAULT_QUOTAS.iter().filter_map(|prop| Some((*prop, props.take_number(prop)?))).collect();
        self.set_version(name, &mut props)?;
        let source = if input.contains("received") { PropSource::Received } else { PropSource::Local };
        let each = |e: Error| tell(e, &props.values);
        check_settable(&self.spa, &props.values).map_err(each)?;
        if !props.values.is_empty() {
            self.spa.set_props(name, &props.values, source).map_err(|e| each(e.into()))?;
        }
        self.set_default_quotas(name, &defaults)?;
        self.set_quotas(name, &props.quotas)?;
        Ok(NvList::new())
    }

    /// The version of a file system is a matter of its files: it stays what it is.
    fn set_version(&self, name: &str, props: &mut Props) -> Result<(), Failed> {
        let Some(version) = props.take_number("version") else { return Ok(()) };
        let now = self.spa.view()?.dataset(name)?.zpl_props()?.map_or(0, |zpl| zpl.version);
        if version == now {
            return Ok(());
        }
        let mut failed = Failed::from(Error::NotSupported(format!("version {version}")));
        failed.out.insert("version", failed.errno);
        Err(failed)
    }

    pub(crate) fn inherit_prop(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let prop = require_str(input, "prop")?;
        self.done(self.spa.inherit_prop(name, prop, input.contains("received")))
    }
}

/// A failure that tells which property it is about.
pub(crate) fn tell(error: Error, props: &[(String, Value)]) -> Failed {
    let named = match &error {
        Error::Pool(pool::Error::Refused { name, .. }) | Error::NotSupported(name) | Error::OutOfRange(name) => {
            Some(name)
        }
        _ => None,
    };
    let named = named.filter(|named| props.iter().any(|(name, _)| name == *named)).cloned();
    let named = named.or_else(|| match props {
        [(only, _)] => Some(only.clone()),
        _ => None,
    });
    let mut failed = Failed::from(error);
    if let Some(name) = named {
        let errno = failed.errno;
        failed.out.insert(name, errno);
    }
    failed
}
