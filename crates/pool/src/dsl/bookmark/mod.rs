//! Bookmarks: where a snapshot was (OpenZFS: `dsl_bookmark.c`).

mod write;

use std::sync::Arc;

use base::ObjectId;
use dmu::ZapValue;
use ondisk::dsl::{BookmarkPhys, RedactEntry, RedactionListPhys, dataset_keys};

use crate::spa::mos;
use crate::spa::prop::{BOOK, PropValue, Value, find};
use crate::{Dataset, Error, Pool};

/// Entries of a redaction list that are read at once.
const REDACT_ENTRIES_MAX: u64 = 1 << 24;

/// A bookmark of a dataset.
#[derive(Clone, Debug)]
pub struct Bookmark {
    dataset: Dataset,
    name: String,
    phys: BookmarkPhys,
}

/// The blocks that a redacted send leaves out.
#[derive(Clone, Debug)]
pub struct RedactionList {
    /// How far it was made, and for which snapshots.
    pub header: RedactionListPhys,
    /// The blocks, in order.
    pub entries: Vec<RedactEntry>,
}

impl Bookmark {
    /// The full name, `pool/fs#mark`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name after the `#`.
    #[must_use]
    pub fn short_name(&self) -> &str {
        self.name.rsplit('#').next().unwrap_or("")
    }

    /// The head that it is a bookmark of.
    #[must_use]
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// Its stored form.
    #[must_use]
    pub fn phys(&self) -> &BookmarkPhys {
        &self.phys
    }

    /// The native property `name`; `None` if bookmarks do not have it, or this one does not know it.
    ///
    /// # Errors
    /// When the redaction list cannot be read.
    pub fn prop(&self, name: &str) -> Result<Option<PropValue>, Error> {
        let Some(def) = find(name).filter(|def| def.is_valid_for(BOOK)) else { return Ok(None) };
        let p = &self.phys;
        let space = |n: u64| p.has_space().then_some(n);
        let number = match def.name {
            "type" => return Ok(Some(PropValue::text("bookmark"))),
            "name" => return Ok(Some(PropValue::text(self.name.clone()))),
            "guid" => Some(p.guid.0),
            "createtxg" => Some(p.creation_txg.0),
            "creation" => Some(p.creation_time),
            "ivsetguid" => Some(p.ivset_guid.0).filter(|n| *n != 0),
            "referenced" => space(p.referenced_bytes_refd),
            "logicalreferenced" => space(p.uncompressed_bytes_refd),
            "redact_snaps" => {
                let Some(list) = self.redaction_header()? else { return Ok(None) };
                let guids: Vec<String> = list.snaps.iter().map(ToString::to_string).collect();
                let text = if guids.is_empty() { "none".to_string() } else { guids.join(",") };
                return Ok(Some(PropValue::text(text)));
            }
            _ => None,
        };
        Ok(number.map(PropValue::computed))
    }

    /// All visible properties of it, in the order of `zfs get all`.
    ///
    /// # Errors
    /// When the redaction list cannot be read.
    pub fn props(&self) -> Result<Vec<(&'static str, PropValue)>, Error> {
        let mut all = Vec::new();
        for def in crate::spa::prop::DATASET.iter().filter(|def| def.visible && def.is_valid_for(BOOK)) {
            if let Some(value) = self.prop(def.name)? {
                all.push((def.name, value));
            }
        }
        Ok(all)
    }

    /// The header of the redaction list, if there is one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn redaction_header(&self) -> Result<Option<RedactionListPhys>, Error> {
        let id = self.phys.redaction_obj;
        if id.is_none() {
            return Ok(None);
        }
        let object = self.dataset.pool().mos.object(id)?;
        let format = |source| Error::Format { object: id, source };
        // more snapshots than the bonus holds make the header move to the spill block
        if let Some((spill, endian)) = object.spill_with_endian()? {
            return RedactionListPhys::decode(&spill, endian).map(Some).map_err(format);
        }
        RedactionListPhys::decode(object.bonus(), object.endian()).map(Some).map_err(format)
    }

    /// The redaction list, if there is one.
    ///
    /// # Errors
    /// When it cannot be read, or says that it is longer than it is.
    pub fn redaction_list(&self) -> Result<Option<RedactionList>, Error> {
        let Some(header) = self.redaction_header()? else { return Ok(None) };
        let id = self.phys.redaction_obj;
        let object = self.dataset.pool().mos.object(id)?;
        let stored = object.most_bytes() / RedactEntry::SIZE as u64;
        if header.num_entries > stored.min(REDACT_ENTRIES_MAX) {
            return Err(Error::corrupt(id, format!("redaction list claims {} entries", header.num_entries)));
        }
        let words = object.read_u64s(0, header.num_entries as usize * 4)?;
        let entries = words.as_chunks::<4>().0.iter().map(RedactEntry::from_words).collect();
        Ok(Some(RedactionList { header, entries }))
    }
}

/// A bookmark by its name behind the `#`, or why it cannot be understood.
pub type MaybeBookmark = (String, Result<Bookmark, Error>);

impl Dataset {
    /// The bookmarks of a head, sorted by name.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn bookmarks(&self) -> Result<Vec<Bookmark>, Error> {
        self.readable_bookmarks()?.into_iter().map(|(_, mark)| mark).collect()
    }

    /// As [`Dataset::bookmarks`], each with its name behind the `#`, and the error of one that cannot be understood.
    ///
    /// # Errors
    /// When their list cannot be read.
    pub fn readable_bookmarks(&self) -> Result<Vec<MaybeBookmark>, Error> {
        let zap = match self.field_id(dataset_keys::BOOKMARK_NAMES)? {
            Some(id) => self.pool().mos.zap(id)?,
            None => return Ok(Vec::new()),
        };
        let mut entries = mos::named_entries(&zap)?;
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        let object = zap.object().id();
        let one = |(name, value): (String, ZapValue)| {
            let mark = self.make_bookmark(object, &name, &value);
            (name, mark)
        };
        Ok(entries.into_iter().map(one).collect())
    }

    /// The bookmark `name` of a head.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`], or when the MOS cannot be read.
    pub fn bookmark(&self, name: &str) -> Result<Bookmark, Error> {
        let missing = || Error::no_dataset(&format!("{}#{name}", self.name()));
        let id = self.field_id(dataset_keys::BOOKMARK_NAMES)?.ok_or_else(missing)?;
        let value = self.pool().mos.zap(id)?.lookup(name)?.ok_or_else(missing)?;
        self.make_bookmark(id, name, &value)
    }

    fn make_bookmark(&self, object: ObjectId, name: &str, value: &ZapValue) -> Result<Bookmark, Error> {
        let phys = BookmarkPhys::from_words(&value.u64s()).map_err(|source| Error::Format { object, source })?;
        Ok(Bookmark { dataset: self.clone(), name: format!("{}#{name}", self.name()), phys })
    }
}

impl Pool {
    /// The bookmark of this full name.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`], [`Error::InvalidName`], or when the MOS cannot be read.
    pub fn bookmark(self: &Arc<Self>, name: &str) -> Result<Bookmark, Error> {
        let (head, mark) = name
            .split_once('#')
            .ok_or_else(|| Error::InvalidName { name: name.to_string(), why: "the name of a bookmark has a '#'" })?;
        self.dataset(head)?.bookmark(mark)
    }
}

/// The value of a bookmark's property as a number.
impl Bookmark {
    /// A numeric property; `None` where [`Bookmark::prop`] gives none or text.
    ///
    /// # Errors
    /// When the redaction list cannot be read.
    pub fn number(&self, name: &str) -> Result<Option<u64>, Error> {
        Ok(self.prop(name)?.and_then(|p| match p.value {
            Value::Number(n) => Some(n),
            Value::String(_) => None,
        }))
    }
}
