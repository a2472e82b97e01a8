//! The kinds of file systems under power cuts: plain, encrypted, deduplicated.

use std::sync::Arc;

use codec::crypt::{Suite, WrappingKey};
use ondisk::ObjsetType;
use pool::{KeyFormat, NewDataset, NewKey, Spa, Value};
use zuse::zpl::create::{FsProps, create_fs};

use crate::compare::{Context, Result};

/// The raw key of every encrypted file system here.
const KEY: [u8; 32] = [0x5a; 32];
/// The recordsize.
pub(crate) const RECORDSIZE: u64 = 16 << 10;
/// SHA-256 as a value of `dedup` (OpenZFS: `ZIO_CHECKSUM_SHA256`).
const DEDUP_SHA256: u64 = 8;

/// The way in which a file system stores its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Storage {
    /// With default properties.
    #[default]
    Plain,
    /// Encrypted with its own key, including its intent log.
    Encrypted,
    /// Equal blocks are stored once.
    Dedup,
}

impl Storage {
    /// Creates the file system `name`.
    pub(crate) fn create(self, spa: &Arc<Spa>, name: &str) -> Result<()> {
        let mut props = vec![("recordsize".to_owned(), Value::Number(RECORDSIZE))];
        if self == Storage::Dedup {
            props.push(("dedup".to_owned(), Value::Number(DEDUP_SHA256)));
        }
        let key = match self {
            Storage::Encrypted => Some(NewKey {
                cipher: Suite::Aes256Gcm,
                keyformat: KeyFormat::Raw,
                keylocation: "prompt".to_owned(),
                wrapping: key()?,
                pbkdf2_iters: 0,
                salt: 0,
            }),
            Storage::Plain | Storage::Dedup => None,
        };
        let os_type = ObjsetType::Zfs;
        let new = NewDataset { props, key, ..NewDataset::inheriting(name, os_type) };
        let init = Box::new(move |objset: &_, tx: &_| create_fs(objset, tx, &FsProps::default()));
        spa.create_dataset(new, init).context(|| format!("create {name}"))
    }
}

fn key() -> Result<WrappingKey> {
    WrappingKey::from_raw(&KEY).context(|| "the key".to_owned())
}

/// Loads the key of the file system `name` if it is encrypted and its key is not loaded.
pub(crate) fn unlock(spa: &Arc<Spa>, name: &str) -> Result<()> {
    let view = spa.view().context(|| "view".to_owned())?;
    let dataset = view.dataset(name).context(|| name.to_owned())?;
    if !dataset.is_encrypted().context(|| name.to_owned())? {
        return Ok(());
    }
    if dataset.key_status().context(|| name.to_owned())? == pool::KeyStatus::Available {
        return Ok(());
    }
    spa.load_key(name, &key()?).map(drop).context(|| format!("load the key of {name}"))
}
