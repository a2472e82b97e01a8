//! The space that each dataset uses, and how much there is left, as OpenZFS counts it.
//!
//! Most numbers are kept on disk and only read here. Two are computed. *Available* goes from the pool's root down: what the
//! parent has left, more by what is reserved here and not used, at most what the quota leaves. *Written* since a snapshot is
//! what is referred to now, less what was then, plus what has died since: whole lists of the deadlists between.

use base::{ObjectId, Txg};
use ondisk::dsl::{BookmarkPhys, DslDirPhys};

use crate::spa::bpobj::Space;
use crate::{Bookmark, Dataset, Dir, Error};

impl Dir {
    fn breakdown(&self) -> Option<&ondisk::dsl::UsedBreakdown> {
        let p = self.phys();
        (p.flags & DslDirPhys::FLAG_USED_BREAKDOWN != 0).then_some(&p.used_breakdown)
    }

    /// Bytes that may still be written here (OpenZFS: `dsl_dir_space_available`).
    ///
    /// # Errors
    /// When the pool's space cannot be computed.
    pub fn available(&self) -> Result<u64, Error> {
        let mut space = u64::MAX;
        let mut lineage: Vec<_> = self.inner.lineage().collect();
        lineage.reverse();
        for (n, dir) in lineage.into_iter().enumerate() {
            let p = dir.phys();
            let mut quota = if p.quota != 0 { p.quota } else { u64::MAX };
            if n == 0 {
                quota = quota.min(self.pool.adjusted_size()?);
            }
            if p.reserved > p.used_bytes && space != u64::MAX {
                space = space.saturating_add(p.reserved - p.used_bytes);
            }
            space = quota.checked_sub(p.used_bytes).map_or(0, |left| space.min(left));
        }
        Ok(space)
    }
}

impl Dataset {
    /// Returns the space that `zfs list` shows as USED: for a head its snapshots, children and reservations too, for a snapshot what only it holds.
    #[must_use]
    pub fn used(&self) -> u64 {
        if self.is_snapshot() { self.phys().unique_bytes } else { self.dir().phys().used_bytes }
    }

    /// Bytes of everything that it refers to.
    #[must_use]
    pub fn referenced(&self) -> u64 {
        self.phys().referenced_bytes
    }

    /// The same before compression, without parity and copies.
    #[must_use]
    pub fn logical_referenced(&self) -> u64 {
        self.phys().uncompressed_bytes
    }

    /// Returns [`Dataset::used`] before compression; `None` for a snapshot.
    #[must_use]
    pub fn logical_used(&self) -> Option<u64> {
        (!self.is_snapshot()).then(|| self.dir().phys().uncompressed_bytes)
    }

    /// Returns the space that is freed if the dataset is destroyed but its snapshots stay.
    #[must_use]
    pub fn used_by_dataset(&self) -> Option<u64> {
        self.head_breakdown().map(|u| u.head)
    }

    /// Returns the space that is freed if all its snapshots are destroyed.
    #[must_use]
    pub fn used_by_snapshots(&self) -> Option<u64> {
        self.head_breakdown().map(|u| u.snap)
    }

    /// Returns the space that is freed if all children are destroyed.
    #[must_use]
    pub fn used_by_children(&self) -> Option<u64> {
        self.head_breakdown().map(|u| u.child.saturating_add(u.child_rsrv))
    }

    /// Returns the space that is freed if `refreservation` is unset.
    #[must_use]
    pub fn used_by_refreservation(&self) -> Option<u64> {
        self.head_breakdown().map(|u| u.refrsrv)
    }

    fn head_breakdown(&self) -> Option<&ondisk::dsl::UsedBreakdown> {
        if self.is_snapshot() { None } else { self.dir().breakdown() }
    }

    /// Compression of all that is used (of a snapshot: referred to), in hundredths.
    #[must_use]
    pub fn compressratio(&self) -> u64 {
        if self.is_snapshot() {
            return self.refcompressratio();
        }
        let p = self.dir().phys();
        ratio(p.uncompressed_bytes, p.compressed_bytes)
    }

    /// Compression of what is referred to, in hundredths.
    #[must_use]
    pub fn refcompressratio(&self) -> u64 {
        ratio(self.phys().uncompressed_bytes, self.phys().compressed_bytes)
    }

    /// The limit on what the dataset itself may refer to, 0 none.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn refquota(&self) -> Result<u64, Error> {
        self.own_number("refquota")
    }

    /// Space held for the dataset itself.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn refreservation(&self) -> Result<u64, Error> {
        self.own_number("refreservation")
    }

    fn own_number(&self, name: &str) -> Result<u64, Error> {
        if self.is_snapshot() {
            return Ok(0);
        }
        Ok(self.setting(name)?.and_then(|s| s.value.number()).unwrap_or(0))
    }

    /// Bytes that may still be written (OpenZFS: `dsl_dataset_space`).
    ///
    /// # Errors
    /// When the pool's space cannot be computed.
    pub fn available(&self) -> Result<u64, Error> {
        let mut available = self.dir().available()?;
        let (reserved, quota) = (self.refreservation()?, self.refquota()?);
        available = available.saturating_add(reserved.saturating_sub(self.phys().unique_bytes));
        if quota != 0 {
            available = available.min(quota.saturating_sub(self.referenced()));
        }
        Ok(available)
    }

    /// Returns the space that was written since the snapshot before; `None` where there is none.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn written(&self) -> Result<Option<u64>, Error> {
        let id = self.phys().prev_snap_obj;
        if id.is_none() {
            return Ok(None);
        }
        // the neighbour's numbers suffice; its name, which is costly, is not needed
        let prev = self.pool().dataset_phys(id)?;
        let dead = self.deadlist()?.map_or(Space::default(), |list| list.space());
        Ok(Some(self.referenced().wrapping_sub(prev.referenced_bytes).wrapping_add(dead.used)))
    }

    /// Returns the space that was written since `from`, an earlier snapshot of this dataset or of one that it is a clone of.
    ///
    /// # Errors
    /// [`Error::NotEarlier`], or when the MOS cannot be read.
    pub fn written_since(&self, from: &Dataset) -> Result<Space, Error> {
        let p = from.phys();
        let mark = BookmarkPhys {
            guid: p.guid,
            creation_txg: p.creation_txg,
            referenced_bytes_refd: p.referenced_bytes,
            compressed_bytes_refd: p.compressed_bytes,
            uncompressed_bytes_refd: p.uncompressed_bytes,
            ..BookmarkPhys::default()
        };
        if !self.is_later_than(from)? {
            return Err(Error::NotEarlier { from: from.name().to_string(), to: self.name().to_string() });
        }
        self.written_since_mark(&mark, from.name())
    }

    /// Returns the space that was written since `from`, a bookmark of this dataset that keeps account of it.
    ///
    /// # Errors
    /// [`Error::NotEarlier`], or when the MOS cannot be read.
    pub fn written_since_bookmark(&self, from: &Bookmark) -> Result<Space, Error> {
        if from.dataset().dir().id() != self.dir().id() || from.phys().creation_txg >= self.birth_limit() {
            return Err(Error::NotEarlier { from: from.name().to_string(), to: self.name().to_string() });
        }
        self.written_since_mark(from.phys(), from.name())
    }

    fn birth_limit(&self) -> Txg {
        if self.is_snapshot() { self.phys().creation_txg } else { Txg(u64::MAX) }
    }

    /// Whether `from` is a snapshot in this dataset's past (OpenZFS: `dsl_dataset_is_before`).
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn is_later_than(&self, from: &Dataset) -> Result<bool, Error> {
        Ok(from.is_snapshot() && self.is_after(from.dir().id(), from.phys().creation_txg)?)
    }

    /// Whether `from` marks a snapshot in this dataset's past.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn is_later_than_mark(&self, from: &Bookmark) -> Result<bool, Error> {
        self.is_after(from.dataset().dir().id(), from.phys().creation_txg)
    }

    /// Whether this comes after a snapshot of the directory `from_dir` that was taken in `from_txg`.
    fn is_after(&self, from_dir: ObjectId, from_txg: Txg) -> Result<bool, Error> {
        if from_txg >= self.birth_limit() {
            return Ok(false);
        }
        // from clone to origin, each in a directory of its own
        let (mut dir, mut limit) = (self.dir().clone(), self.birth_limit());
        loop {
            if from_txg >= limit {
                return Ok(false);
            }
            if dir.id() == from_dir {
                return Ok(true);
            }
            let id = dir.phys().origin_obj;
            if id.is_none() {
                return Ok(false);
            }
            let origin = self.pool().dataset_phys(id)?;
            if origin.creation_txg == from_txg && origin.dir_obj == from_dir {
                return Ok(true);
            }
            if origin.creation_txg >= limit {
                return Err(Error::corrupt(id, "origins do not grow older"));
            }
            limit = origin.creation_txg;
            dir = self.pool().dir_by_id(origin.dir_obj)?;
        }
    }

    fn written_since_mark(&self, mark: &BookmarkPhys, name: &str) -> Result<Space, Error> {
        let p = self.phys();
        let mut space = Space {
            used: p.referenced_bytes.wrapping_sub(mark.referenced_bytes_refd),
            comp: p.compressed_bytes.wrapping_sub(mark.compressed_bytes_refd),
            uncomp: p.uncompressed_bytes.wrapping_sub(mark.uncompressed_bytes_refd),
        };
        let mut at = p.clone();
        while at.prev_snap_txg > mark.creation_txg {
            space.add(
                self.pool()
                    .deadlist_of(&at)?
                    .map_or(Ok(Space::default()), |d| d.space_range(Txg(0), mark.creation_txg))?,
            );
            let prev = self.pool().dataset_phys(at.prev_snap_obj)?;
            if prev.prev_snap_txg >= at.prev_snap_txg {
                return Err(Error::corrupt(
                    at.prev_snap_obj,
                    format!("snapshots before '{}' do not grow older", self.name()),
                ));
            }
            at = prev;
        }
        if mark.flags & BookmarkPhys::FLAG_HAS_FBN != 0 {
            space.add(Space {
                used: mark.referenced_freed_before_next_snap,
                comp: mark.compressed_freed_before_next_snap,
                uncomp: mark.uncompressed_freed_before_next_snap,
            });
        } else if at.prev_snap_txg == mark.creation_txg {
            space.add(self.pool().deadlist_of(&at)?.map_or(Space::default(), |d| d.space()));
        } else {
            return Err(Error::NotEarlier { from: name.to_string(), to: self.name().to_string() });
        }
        Ok(space)
    }

    /// Returns the space that is freed by destroying the snapshots from `first` to this one, both included, and all between (OpenZFS:
    /// `dsl_dataset_space_wouldfree`).
    ///
    /// # Errors
    /// [`Error::NotEarlier`] if they are not snapshots of one dataset in that order, or when the MOS cannot be read.
    pub fn space_freed_with(&self, first: &Dataset) -> Result<Space, Error> {
        let same_line = self.is_snapshot() && first.is_snapshot() && first.dir().id() == self.dir().id();
        if !same_line || first.phys().creation_txg > self.phys().creation_txg {
            return Err(Error::NotEarlier { from: first.name().to_string(), to: self.name().to_string() });
        }
        // what died in the interval and was born in it
        let (mut space, born_after) = (Space::default(), first.phys().prev_snap_txg);
        let (mut at, mut id) = (first.phys().clone(), first.id());
        while id != self.id() {
            let next = self.pool().dataset_phys(at.next_snap_obj)?;
            if next.creation_txg <= at.creation_txg {
                return Err(Error::corrupt(at.next_snap_obj, "snapshots do not grow younger"));
            }
            space.add(
                self.pool()
                    .deadlist_of(&next)?
                    .map_or(Ok(Space::default()), |d| d.space_range(born_after, Txg(u64::MAX)))?,
            );
            id = at.next_snap_obj;
            at = next;
        }
        let after = self.pool().dataset_phys(at.next_snap_obj)?;
        space.add(
            self.pool()
                .deadlist_of(&after)?
                .map_or(Ok(Space::default()), |d| d.space_range(born_after, Txg(u64::MAX)))?,
        );
        Ok(space)
    }
}

fn ratio(uncompressed: u64, compressed: u64) -> u64 {
    (u128::from(uncompressed) * 100)
        .checked_div(u128::from(compressed))
        .map_or(100, |n| u64::try_from(n).unwrap_or(u64::MAX))
}
