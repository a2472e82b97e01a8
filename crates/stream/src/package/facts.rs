//! What a package needs to know of datasets: whoever makes one tells it.

use base::{Guid, Txg};
use nvlist::NvList;

use super::Error;

/// A file system or volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its full name.
    pub name: String,
    /// Its guid.
    pub guid: Guid,
    /// The txg in which it was made.
    pub txg: Txg,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snap {
    /// Its full name.
    pub name: String,
    /// Its guid.
    pub guid: Guid,
    /// The txg in which it was made.
    pub txg: Txg,
}

impl Snap {
    /// Its name within its dataset.
    #[must_use]
    pub fn short_name(&self) -> &str {
        self.name.split_once('@').map_or("", |(_, short)| short)
    }
}

/// More about a file system or volume that is a member of a package.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Details {
    /// The snapshot that it was cloned from.
    pub origin: Option<Snap>,
    /// The dataset whose key opens it; `None` if it is not encrypted.
    pub encryption_root: Option<String>,
    /// The properties that are sent with it.
    pub props: NvList,
}

/// Tells of the datasets of a pool. Nothing is asked about a dataset that is not sent but its name, its age and its snapshots, and nothing that is in the object set of one
/// that is: a package of whole snapshots can be made though their file system is lost.
pub trait Facts {
    /// The snapshots of a dataset, oldest first.
    ///
    /// # Errors
    /// [`Error::Facts`], as of all of these.
    fn snapshots(&self, head: &str) -> Result<Vec<Snap>, Error>;

    /// The snapshot that a dataset has by this name, if any.
    ///
    /// # Errors
    /// [`Error::Facts`].
    fn snapshot(&self, head: &str, name: &str) -> Result<Option<Snap>, Error>;

    /// The properties that are sent with these snapshots of a dataset, in their order, oldest first: a list for each.
    ///
    /// # Errors
    /// [`Error::Facts`].
    fn props(&self, head: &str, snaps: &[Snap]) -> Result<Vec<NvList>, Error>;

    /// The file systems and volumes directly below one, by name.
    ///
    /// # Errors
    /// [`Error::Facts`].
    fn children(&self, head: &str) -> Result<Vec<Head>, Error>;

    /// More about a file system or volume.
    ///
    /// # Errors
    /// [`Error::Facts`].
    fn details(&self, head: &str) -> Result<Details, Error>;

    /// The holds on a snapshot: tags with their times.
    ///
    /// # Errors
    /// [`Error::Facts`].
    fn holds(&self, snapshot: &str) -> Result<NvList, Error>;
}
