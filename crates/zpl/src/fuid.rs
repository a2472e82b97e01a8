//! File-system unique ids: a Windows domain's index over a 32-bit id (OpenZFS: `zfs_fuid.c`).

use std::collections::HashMap;
use std::sync::Arc;

use base::{ObjectId, bytes};
use dmu::Objset;
use nvlist::NvList;

use crate::Error;

/// The maximum size of a table; OpenZFS adds one entry per domain that a file server ever met.
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// A user's or group's id as stored (OpenZFS: FUID): domain index 32@32, id in the domain 32@0. Index 0 is POSIX.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Fuid(pub u64);

impl Fuid {
    /// Returns the index of the domain in the [`FuidTable`]; 0 for a POSIX id.
    #[must_use]
    pub const fn domain_index(self) -> u64 {
        self.0 >> 32
    }

    /// Returns the id within its domain.
    #[must_use]
    pub const fn rid(self) -> u32 {
        self.0 as u32
    }

    /// Returns the id that `stat` shows: Linux does not map domains, so it is the id alone.
    #[must_use]
    pub const fn posix_id(self) -> u32 {
        self.0 as u32
    }
}

/// The domains of a file system, by index.
#[derive(Clone, Debug, Default)]
pub struct FuidTable {
    domains: HashMap<u64, String>,
}

impl FuidTable {
    /// Loads the table from its object, whose bonus buffer holds the size of the packed list in its data.
    ///
    /// # Errors
    /// If it cannot be read or is not such a list.
    pub fn load(objset: &Arc<Objset>, object: ObjectId) -> Result<FuidTable, Error> {
        let holder = objset.object(object)?;
        let size =
            bytes::u64(holder.bonus(), 0, holder.endian()).ok_or(Error::Missing { object, what: "FUID table size" })?;
        let room = holder.most_bytes().min(MAX_TABLE_BYTES);
        if size == 0 {
            return Ok(FuidTable::default());
        }
        let len = usize::try_from(size).ok().filter(|_| size <= room).ok_or(Error::corrupt(
            object,
            "size of the FUID table",
            size,
        ))?;
        FuidTable::decode(&holder.read_vec(0, len)?).map_err(|source| Error::NvList {
            object,
            what: "FUID table",
            source,
        })
    }

    /// Decodes the packed list.
    ///
    /// # Errors
    /// If it is not a valid list, or an entry lacks its domain or index.
    pub fn decode(packed: &[u8]) -> Result<FuidTable, nvlist::Error> {
        let list = NvList::unpack(packed)?;
        let mut domains = HashMap::new();
        for entry in list.require_nvlist_array("fuid_nvlist")? {
            domains.insert(entry.require_u64("fuid_idx")?, entry.require_str("fuid_domain")?.to_owned());
        }
        Ok(FuidTable { domains })
    }

    /// Returns the domain (a SID) with index `index`; `None` for POSIX ids and unknown indices.
    #[must_use]
    pub fn domain(&self, index: u64) -> Option<&str> {
        self.domains.get(&index).map(String::as_str)
    }

    /// Returns all domains and their indices, in order of the index.
    #[must_use]
    pub fn domains(&self) -> Vec<(u64, &str)> {
        let mut all: Vec<_> = self.domains.iter().map(|(index, domain)| (*index, domain.as_str())).collect();
        all.sort_unstable();
        all
    }

    /// Formats an id: the number for a POSIX id, else the SID.
    #[must_use]
    pub fn show(&self, id: Fuid) -> String {
        match (id.domain_index(), self.domain(id.domain_index())) {
            (0, _) => id.rid().to_string(),
            (_, Some(domain)) => format!("{domain}-{}", id.rid()),
            (index, None) => format!("?{index}-{}", id.rid()),
        }
    }
}
