//! The point at which an interrupted receive can go on (property `receive_resume_token`).

use base::Endian;
use codec::fletcher::fletcher4;
use codec::{Compress, compress};
use nvlist::{Encoding, NvList};
use ondisk::dsl::dataset_keys as keys;

use crate::{Dataset, Error};

/// The clone into which an incremental stream is received until it is whole.
const RECEIVE_CLONE: &str = "%recv";

impl Dataset {
    /// The token with which an interrupted receive goes on: of this dataset, or of the hidden clone that receives for it.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn receive_resume_token(&self) -> Result<Option<String>, Error> {
        if self.is_snapshot() {
            return Ok(None);
        }
        if let Some(state) = self.resume_state()? {
            return token(&state).map(Some);
        }
        let Some(clone) = self.receiving()? else { return Ok(None) };
        clone.resume_state()?.map(|state| token(&state)).transpose()
    }

    /// The hidden clone that receives for a head, whose name may be longer than names can be.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn receiving(&self) -> Result<Option<Dataset>, Error> {
        if self.is_snapshot() {
            return Ok(None);
        }
        self.dir().child(RECEIVE_CLONE)?.map_or(Ok(None), |dir| dir.head())
    }

    /// Returns the contents of the token, as a list.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn resume_state(&self) -> Result<Option<NvList>, Error> {
        let Some(zap) = self.extension()? else { return Ok(None) };
        let Some(to_guid) = zap.lookup_u64(keys::RESUME_TOGUID)? else { return Ok(None) };
        let mut list = NvList::new();
        for (key, name) in [
            (keys::RESUME_FROMGUID, "fromguid"),
            (keys::RESUME_OBJECT, "object"),
            (keys::RESUME_OFFSET, "offset"),
            (keys::RESUME_BYTES, "bytes"),
        ] {
            if let Some(n) = zap.lookup_u64(key)? {
                list.insert(name, n);
            }
        }
        list.insert("toguid", to_guid);
        if let Some(name) = zap.lookup(keys::RESUME_TONAME)?.and_then(|v| v.str().map(str::to_owned)) {
            list.insert("toname", name);
        }
        for (key, name) in [
            (keys::RESUME_LARGEBLOCK, "largeblockok"),
            (keys::RESUME_EMBEDOK, "embedok"),
            (keys::RESUME_COMPRESSOK, "compressok"),
            (keys::RESUME_RAWOK, "rawok"),
        ] {
            if zap.lookup(key)?.is_some() {
                list.insert(name, nvlist::Value::Boolean);
            }
        }
        for (key, name) in
            [(keys::REDACTED_DATASETS, "redact_snaps"), (keys::RESUME_REDACT_BOOKMARK_SNAPS, "book_redact_snaps")]
        {
            if let Some(value) = zap.lookup(key)? {
                list.insert(name, value.u64s());
            }
        }
        Ok(Some(list))
    }
}

/// `1-CHECKSUM-SIZE-BYTES`: the list, packed in native order and deflated.
fn token(state: &NvList) -> Result<String, Error> {
    let what = "receive_resume_token";
    let packed = state.pack(Encoding::Native, Endian::NATIVE).map_err(|source| Error::Nvlist { what, source })?;
    let limit = packed.len() + 128;
    let deflated = compress(Compress::Gzip6, None, &packed, limit);
    let deflated = deflated.ok_or_else(|| Error::Bug(format!("{what}: {} bytes became over {limit}", packed.len())))?;
    let sum = fletcher4(&deflated, Endian::NATIVE)[0];
    let hex: String = deflated.iter().map(|b| format!("{b:02x}")).collect();
    Ok(format!("1-{sum:x}-{:x}-{hex}", packed.len()))
}
