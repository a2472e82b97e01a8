//! Listing what a pool holds, in the order of `zfs list`.

use std::cmp::Ordering;
use std::sync::Arc;

use base::Guid;

use crate::{Bookmark, Dataset, Dir, Error, Kind, Pool};

/// The datasets that [`Pool::list`] lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListOptions {
    /// How many levels below the start; 0 only the start itself, `None` all. Snapshots and bookmarks are one level below
    /// their dataset.
    pub depth: Option<u32>,
    /// File systems.
    pub filesystems: bool,
    /// Volumes.
    pub volumes: bool,
    /// Snapshots.
    pub snapshots: bool,
    /// Bookmarks.
    pub bookmarks: bool,
    /// OpenZFS's own: `$ORIGIN` and such, `%recv`, and snapshots with such names.
    pub special: bool,
}

impl ListOptions {
    /// File systems and volumes, all levels.
    pub const DATASETS: ListOptions = ListOptions {
        depth: None,
        filesystems: true,
        volumes: true,
        snapshots: false,
        bookmarks: false,
        special: false,
    };
    /// Everything that users see, all levels.
    pub const ALL: ListOptions =
        ListOptions { depth: None, filesystems: true, volumes: true, snapshots: true, bookmarks: true, special: false };
}

/// One line of a list.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A file system, volume or snapshot.
    Dataset(Dataset),
    /// A bookmark.
    Bookmark(Bookmark),
}

impl Entry {
    /// The full name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Entry::Dataset(ds) => ds.name(),
            Entry::Bookmark(mark) => mark.name(),
        }
    }

    /// The dataset, unless it is a bookmark.
    #[must_use]
    pub fn dataset(&self) -> Option<&Dataset> {
        match self {
            Entry::Dataset(ds) => Some(ds),
            Entry::Bookmark(_) => None,
        }
    }

    fn snapshot_txg(&self) -> Option<u64> {
        self.dataset().filter(|ds| ds.is_snapshot()).map(|ds| ds.phys().creation_txg.0)
    }

    /// The order of `zfs list`: by name of the dataset, the dataset before its snapshots, these by age.
    #[must_use]
    pub fn list_order(&self, other: &Entry) -> Ordering {
        let head = |name: &str| name.find('@').unwrap_or(name.len());
        let (a, b) = (self.name(), other.name());
        let (a_head, b_head) = (a.get(..head(a)), b.get(..head(b)));
        a_head.cmp(&b_head).then_with(|| self.snapshot_txg().cmp(&other.snapshot_txg())).then_with(|| a.cmp(b))
    }
}

impl Pool {
    /// All that `opts` asks for from the dataset `under` down, `under` included, in the order of `zfs list`.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`] for `under`, or when the MOS cannot be read.
    pub fn list(self: &Arc<Self>, under: &str, opts: &ListOptions) -> Result<Vec<Entry>, Error> {
        let mut all = Vec::new();
        if under.contains(['@', '#']) {
            all.push(match under.contains('#') {
                true => Entry::Bookmark(self.bookmark(under)?),
                false => Entry::Dataset(self.dataset(under)?),
            });
            return Ok(all);
        }
        // each directory with the levels that are still allowed below it
        let mut stack = vec![(self.dir(under)?, opts.depth.unwrap_or(u32::MAX))];
        while let Some((dir, depth)) = stack.pop() {
            if let Some(head) = dir.head()? {
                collect(&head, depth, opts, &mut all)?;
            }
            if depth > 0 {
                let below = dir.children()?.into_iter().filter(|d: &Dir| opts.special || !d.is_special());
                stack.extend(below.map(|d| (d, depth - 1)));
            }
        }
        all.sort_by(Entry::list_order);
        Ok(all)
    }
}

impl Pool {
    /// The file system, volume or snapshot with this guid. All of them are looked at until it is found.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn dataset_by_guid(self: &Arc<Self>, guid: Guid) -> Result<Option<Dataset>, Error> {
        let mut stack = vec![self.root_dir()?];
        while let Some(dir) = stack.pop() {
            if let Some(head) = dir.head()? {
                if head.guid() == guid {
                    return Ok(Some(head));
                }
                for (name, id) in head.snapshot_names()? {
                    if self.dataset_phys(id)?.guid == guid {
                        return Dataset::open_snapshot(&dir, id, &name).map(Some);
                    }
                }
            }
            stack.extend(dir.children()?);
        }
        Ok(None)
    }
}

fn collect(head: &Dataset, depth: u32, opts: &ListOptions, all: &mut Vec<Entry>) -> Result<(), Error> {
    // when both are wanted, the kind need not be known, and the object set not be read
    let wanted = (opts.filesystems && opts.volumes)
        || match head.kind()? {
            Kind::Filesystem => opts.filesystems,
            Kind::Volume => opts.volumes,
            _ => opts.special,
        };
    if depth > 0 && opts.snapshots {
        let shown = |snap: &Dataset| opts.special || !snap.short_name().contains(['$', '%']);
        all.extend(head.snapshots()?.into_iter().filter(shown).map(Entry::Dataset));
    }
    if depth > 0 && opts.bookmarks {
        all.extend(head.bookmarks()?.into_iter().map(Entry::Bookmark));
    }
    if wanted && (opts.filesystems || opts.volumes || opts.special) {
        all.push(Entry::Dataset(head.clone()));
    }
    Ok(())
}
