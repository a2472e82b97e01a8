//! The configuration of a vdev, as labels and the MOS hold it.

use base::{Guid, ObjectId, Txg};
use nvlist::NvList;
use ondisk::label::key;

use crate::Error;
use crate::draid::Draid;
use crate::raidz::Raidz;

/// Deeper than any tree that OpenZFS makes (root, raidz, spare, replacing, leaf).
const DEPTH_MAX: usize = 8;
/// Vdevs of a pool that are accepted.
const VDEVS_MAX: usize = 1 << 16;

/// The largest sector size of a vdev, as a power of two (OpenZFS: `ASHIFT_MAX`).
pub const ASHIFT_MAX: u64 = 16;

/// The type of a vdev (OpenZFS: `VDEV_TYPE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VdevType {
    /// The pool.
    Root,
    /// Every child holds everything.
    Mirror,
    /// A mirror of a device and the one that is to replace it.
    Replacing,
    /// A mirror of a failed device and the spare that stands in for it.
    Spare,
    /// Rows of data and parity over the children.
    Raidz,
    /// Rows of data and parity over changing subsets of the children, with spare room spread over all.
    Draid,
    /// A spare made of the spare room of a dRAID.
    DraidSpare,
    /// A block device.
    Disk,
    /// A file.
    File,
    /// A top-level vdev that could not be found.
    Missing,
    /// The place of a top-level vdev that was removed without trace (a log).
    Hole,
    /// A removed top-level vdev whose data lies on others.
    Indirect,
}

impl VdevType {
    /// Its name in a configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            VdevType::Root => "root",
            VdevType::Mirror => "mirror",
            VdevType::Replacing => "replacing",
            VdevType::Spare => "spare",
            VdevType::Raidz => "raidz",
            VdevType::Draid => "draid",
            VdevType::DraidSpare => "dspare",
            VdevType::Disk => "disk",
            VdevType::File => "file",
            VdevType::Missing => "missing",
            VdevType::Hole => "hole",
            VdevType::Indirect => "indirect",
        }
    }

    /// The type of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<VdevType> {
        use VdevType::{Disk, Draid, DraidSpare, File, Hole, Indirect, Mirror, Missing, Raidz, Replacing, Root, Spare};
        [Root, Mirror, Replacing, Spare, Raidz, Draid, DraidSpare, Disk, File, Missing, Hole, Indirect]
            .into_iter()
            .find(|t| t.name() == name)
    }

    /// Whether it has a device of its own.
    #[must_use]
    pub const fn is_leaf(self) -> bool {
        matches!(self, VdevType::Disk | VdevType::File)
    }

    /// Whether each child holds a full copy.
    #[must_use]
    pub const fn is_mirror_like(self) -> bool {
        matches!(self, VdevType::Mirror | VdevType::Replacing | VdevType::Spare)
    }
}

/// One vdev of a `vdev_tree`, with its children. Numbers that a vdev of its type has no use for are zero.
#[derive(Debug, Clone)]
pub struct VdevConfig {
    /// Its type.
    pub kind: VdevType,
    /// Its place among its siblings; for a top-level vdev the number in block addresses.
    pub id: u64,
    /// Its identity.
    pub guid: Guid,
    /// The path at which the device was last seen.
    pub path: Option<String>,
    /// Base-2 logarithm of the sector size (top-level vdevs).
    pub ashift: u64,
    /// Allocatable bytes (top-level vdevs).
    pub asize: u64,
    /// Columns of parity (raidz, draid).
    pub nparity: u64,
    /// Object that lists the space maps of the metaslabs (top-level vdevs).
    pub ms_array: ObjectId,
    /// Base-2 logarithm of the bytes of a metaslab (top-level vdevs).
    pub ms_shift: u64,
    /// Whether it only holds intent logs.
    pub is_log: bool,
    /// Space map of the txgs that the leaf missed; 0 if none.
    pub dtl: ObjectId,
    /// The txg in which it was added.
    pub create_txg: Txg,
    /// The administrator took it offline.
    pub offline: bool,
    /// Too many errors.
    pub faulted: bool,
    /// Errors, but in use.
    pub degraded: bool,
    /// The device was pulled out.
    pub removed: bool,
    /// The device was not there when the configuration was written.
    pub not_present: bool,
    /// Why it is faulted or degraded: `err_exceeded` or `external`.
    pub aux_state: Option<String>,
    /// The txg in which a resilver of it began; 0 if none runs.
    pub resilver_txg: Txg,
    /// The txg in which a sequential rebuild of it began; 0 if none runs.
    pub rebuild_txg: Txg,
    /// Whether its data is being moved away.
    pub removing: bool,
    /// Its own ZAP as a top-level vdev; 0 if none.
    pub top_zap: ObjectId,
    /// Its own ZAP as a leaf; 0 if none.
    pub leaf_zap: ObjectId,
    /// `log`, `special` or `dedup`, where the configuration says (OpenZFS keeps it in the top ZAP).
    pub alloc_bias: Option<String>,
    /// Mapping object of a removed vdev; 0 if none.
    pub indirect_object: ObjectId,
    /// Births object of a removed vdev; 0 if none.
    pub indirect_births: ObjectId,
    /// The vdev that was removed before this one.
    pub prev_indirect_vdev: Option<u64>,
    /// Whether a RAID-Z expansion is under way.
    pub raidz_expanding: bool,
    /// The txgs in which expansions of a RAID-Z ended, ascending.
    pub raidz_expand_txgs: Vec<Txg>,
    /// Data columns of a group (draid).
    pub draid_ndata: u64,
    /// Distributed spares (draid).
    pub draid_nspares: u64,
    /// Groups of a slice (draid).
    pub draid_ngroups: u64,
    /// Children of a failure group (draid with failure domains), else `None`.
    pub draid_nchildren: Option<u64>,
    /// Number of a distributed spare (dspare).
    pub spare_id: u64,
    /// The dRAID of a distributed spare (dspare).
    pub spare_top_guid: Guid,
    /// The vdevs below.
    pub children: Vec<VdevConfig>,
    /// All that the configuration says of this vdev, children included.
    pub raw: NvList,
}

impl VdevConfig {
    /// Reads a `vdev_tree` list and all below.
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown type, a tree that is too deep or too large, or a leaf with children;
    /// [`Error::Nvlist`] where a name that every vdev has is missing.
    pub fn parse(list: &NvList) -> Result<VdevConfig, Error> {
        let mut left = VDEVS_MAX;
        Self::parse_below(list, DEPTH_MAX, &mut left)
    }

    /// Bytes that a raidz or dRAID allocates for a block of `psize` bytes, at the width that it has now; `None` if it is neither, or cannot be
    /// (OpenZFS: `vdev_raidz_asize`, `vdev_draid_asize`).
    #[must_use]
    pub fn striped_asize(&self, psize: u64) -> Option<u64> {
        let ashift = u32::try_from(Some(self.ashift).filter(|shift| *shift <= ASHIFT_MAX)?).ok()?;
        match self.kind {
            VdevType::Raidz => Some(Raidz::new(self).ok()?.psize_to_asize(psize, Txg(u64::MAX), ashift)),
            VdevType::Draid => Some(Draid::new(self).ok()?.psize_to_asize(psize, ashift)),
            _ => None,
        }
    }

    fn parse_below(list: &NvList, depth: usize, left: &mut usize) -> Result<VdevConfig, Error> {
        let guid = Guid(list.get_u64(key::GUID).unwrap_or(0));
        *left = left.checked_sub(1).ok_or_else(|| Error::config(guid, "too many vdevs"))?;
        let name = list.require_str(key::TYPE)?;
        let kind =
            VdevType::from_name(name).ok_or_else(|| Error::config(guid, format!("unknown vdev type '{name}'")))?;
        let below = list.get_nvlist_array(key::CHILDREN).unwrap_or(&[]);
        if !below.is_empty() && depth == 0 {
            return Err(Error::config(guid, "the tree is too deep"));
        }
        if !below.is_empty() && (kind.is_leaf() || kind == VdevType::DraidSpare) {
            return Err(Error::config(guid, format!("a {name} with children")));
        }
        let children =
            below.iter().map(|c| Self::parse_below(c, depth - 1, left)).collect::<Result<Vec<_>, Error>>()?;
        Ok(Self::flat(list, kind, guid, children))
    }

    fn flat(list: &NvList, kind: VdevType, guid: Guid, children: Vec<VdevConfig>) -> VdevConfig {
        let number = |name| list.get_u64(name).unwrap_or(0);
        let text = |name| list.get_str(name).map(str::to_owned);
        // a flag is a number in some versions, a mere presence in others
        let flag = |name| list.get_u64(name).map_or_else(|| list.contains(name), |n| n != 0);
        let mut expand_txgs: Vec<Txg> =
            list.get_u64_array(key::RAIDZ_EXPAND_TXGS).unwrap_or(&[]).iter().map(|t| Txg(*t)).collect();
        expand_txgs.sort();
        // pools from before raidz2 do not say that raidz has one parity column
        let nparity = list.get_u64(key::NPARITY).unwrap_or(u64::from(kind == VdevType::Raidz));
        VdevConfig {
            kind,
            guid,
            children,
            id: number(key::ID),
            path: text(key::PATH),
            ashift: number(key::ASHIFT),
            asize: number(key::ASIZE),
            nparity,
            ms_array: ObjectId(number(key::METASLAB_ARRAY)),
            ms_shift: number(key::METASLAB_SHIFT),
            is_log: flag(key::IS_LOG),
            dtl: ObjectId(number(key::DTL)),
            create_txg: Txg(number(key::CREATE_TXG)),
            offline: flag(key::OFFLINE),
            faulted: flag(key::FAULTED),
            degraded: flag(key::DEGRADED),
            removed: flag(key::REMOVED),
            not_present: flag(key::NOT_PRESENT),
            aux_state: text(key::AUX_STATE),
            resilver_txg: Txg(number(key::RESILVER_TXG)),
            rebuild_txg: Txg(number(key::REBUILD_TXG)),
            removing: flag(key::REMOVING),
            top_zap: ObjectId(number(key::VDEV_TOP_ZAP)),
            leaf_zap: ObjectId(number(key::VDEV_LEAF_ZAP)),
            alloc_bias: text(key::ALLOCATION_BIAS),
            indirect_object: ObjectId(number(key::INDIRECT_OBJECT)),
            indirect_births: ObjectId(number(key::INDIRECT_BIRTHS)),
            prev_indirect_vdev: list.get_u64(key::PREV_INDIRECT_VDEV),
            raidz_expanding: flag(key::RAIDZ_EXPANDING),
            raidz_expand_txgs: expand_txgs,
            draid_ndata: number(key::DRAID_NDATA),
            draid_nspares: number(key::DRAID_NSPARES),
            draid_ngroups: number(key::DRAID_NGROUPS),
            draid_nchildren: list.get_u64(key::DRAID_NCHILDREN),
            spare_id: number(key::SPARE_ID),
            spare_top_guid: Guid(number(key::TOP_GUID)),
            raw: list.clone(),
        }
    }

    /// Whether the pool's administrator or its own failures took it out of use: its bytes may be old or wrong.
    #[must_use]
    pub fn is_out_of_use(&self) -> bool {
        self.offline || self.faulted || self.removed
    }

    /// Whether it is the same vdev as `other`, with the same ones below.
    pub(crate) fn has_shape_of(&self, other: &VdevConfig) -> bool {
        (self.guid, self.kind, self.children.len()) == (other.guid, other.kind, other.children.len())
            && self.children.iter().zip(&other.children).all(|(own, others)| own.has_shape_of(others))
    }

    /// This vdev and all below it, parents first.
    pub fn walk(&self) -> impl Iterator<Item = &VdevConfig> {
        let mut stack = vec![self];
        std::iter::from_fn(move || {
            let next = stack.pop()?;
            stack.extend(next.children.iter().rev());
            Some(next)
        })
    }

    /// The object of its properties, if it has one.
    #[must_use]
    pub fn props_zap(&self) -> ObjectId {
        let root = ObjectId(self.raw.get_u64(key::VDEV_ROOT_ZAP).unwrap_or(0));
        [root, self.top_zap, self.leaf_zap].into_iter().find(|id| id.is_some()).unwrap_or(ObjectId::NONE)
    }

    /// The leaves below (or this one).
    pub fn leaves(&self) -> impl Iterator<Item = &VdevConfig> {
        self.walk().filter(|v| v.kind.is_leaf())
    }

    /// The name in `zpool status`: `raidz2-0`, `mirror-1`, `draid1:2d:4c:0s-0`, the path of a leaf.
    #[must_use]
    pub fn name(&self) -> String {
        let id = self.id;
        match self.kind {
            VdevType::Disk | VdevType::File | VdevType::DraidSpare => {
                self.path.clone().unwrap_or_else(|| self.guid.to_string())
            }
            VdevType::Raidz => format!("raidz{}-{id}", self.nparity),
            VdevType::Draid => {
                let (p, d, w, s) = (self.nparity, self.draid_ndata, self.children.len() as u64, self.draid_nspares);
                match self.draid_nchildren {
                    Some(c) if c < w => format!("draid{p}:{d}d:{c}c:{w}w:{s}s-{id}"),
                    _ => format!("draid{p}:{d}d:{w}c:{s}s-{id}"),
                }
            }
            VdevType::Root => "root".to_owned(),
            kind => format!("{}-{id}", kind.name()),
        }
    }
}
