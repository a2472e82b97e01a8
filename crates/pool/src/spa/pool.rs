//! The open pool.

use std::sync::{Arc, OnceLock, Weak};

use base::{Guid, ObjectId, Txg};
use dmu::Objset;
use nvlist::NvList;
use ondisk::Uberblock;
use ondisk::label::key;
use vdev::VdevTree;
use zio::Zio;

use crate::dsl::Names;
use crate::spa::Spa;
use crate::spa::feature::{FeatureState, State};
use crate::spa::metaslab::SpaceState;
use crate::spa::mos::Mos;
use crate::spa::mos::known::{Known, OfObject};
use crate::{Error, LoadErrors, OpenOptions};

/// Spares, and caches, of a pool that are accepted.
const AUX_DEVICES_MAX: usize = 1 << 12;

/// Findings while the pool was opened, beyond what its vdevs' status tells.
#[derive(Clone, Debug, Default)]
pub struct LoadInfo {
    /// Newer states of the pool that could not be used, with the reason.
    pub skipped: Vec<(Txg, String)>,
    /// Numbers of top-level vdevs that cannot be opened.
    pub missing_tops: Vec<u64>,
    /// Whether the sum of the guids of all vdevs is not the one of the uberblock: devices are missing or too many.
    pub guid_sum_differs: bool,
    /// Whether the state was chosen by a rewind (to a txg, or to the checkpoint).
    pub rewound: bool,
    /// The damage of the last txgs, if it was looked for ([`OpenOptions::verify`](crate::OpenOptions::verify)).
    pub errors: LoadErrors,
}

/// The configuration as an object of the MOS has it.
pub(crate) struct StoredConfig(pub(crate) NvList);

impl OfObject for StoredConfig {}

/// A pool, open for reading (OpenZFS: `spa_t` and `dsl_pool_t`).
///
/// Nothing in it changes but caches; threads share it. Locks are held for a look into a map, never over I/O, and none is taken
/// while another is held.
pub struct Pool {
    pub(crate) name: String,
    pub(crate) guid: Guid,
    pub(crate) uberblock: Uberblock,
    pub(crate) config: Arc<StoredConfig>,
    pub(crate) mos: Mos,
    pub(crate) zio: Arc<Zio>,
    /// The vdevs of its txg. Reads and writes of blocks take the current tree ([`Zio::tree`]).
    pub(crate) tree: Arc<VdevTree>,
    pub(crate) features: Vec<FeatureState>,
    pub(crate) biases: Vec<crate::spa::open::AllocBias>,
    pub(crate) root_dir_obj: ObjectId,
    pub(crate) origin_snap_obj: Option<ObjectId>,
    pub(crate) options: OpenOptions,
    pub(crate) load_info: LoadInfo,
    pub(crate) load_guid: u64,
    pub(crate) names: Names,
    /// What was read of the MOS, which views share.
    pub(crate) known: Known,
    pub(crate) space_state: OnceLock<Arc<SpaceState>>,
    pub(crate) adjusted: OnceLock<u64>,
    /// The guard that keeps the blocks of a view of a pool that is written.
    pub(crate) entered: OnceLock<Arc<Txg>>,
    /// The writer of the pool that this is a view of; none if it is open for reading.
    pub(crate) spa: Weak<Spa>,
}

impl Pool {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its identity.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.guid
    }

    /// Version of its format: 1 to 28, or 5000 with features.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.uberblock.version
    }

    /// The state that is open.
    #[must_use]
    pub fn uberblock(&self) -> &Uberblock {
        &self.uberblock
    }

    /// Returns whether this process has the pool open for a change, of which this is the state at some time.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.spa.strong_count() > 0
    }

    /// Whether blocks of this state may have been reused since, because space was needed: what is read of it may fail. One that nobody changes never is.
    #[must_use]
    pub fn is_overtaken(&self) -> bool {
        self.zio.is_overtaken() || self.spa.upgrade().is_some_and(|spa| spa.views.is_overtaken(self.uberblock.txg))
    }

    /// The configuration as the MOS has it.
    #[must_use]
    pub fn config(&self) -> &NvList {
        &self.config.0
    }

    /// The meta object set.
    #[must_use]
    pub fn mos(&self) -> &Arc<Objset> {
        &self.mos.objset
    }

    /// The reader of its blocks.
    #[must_use]
    pub fn zio(&self) -> &Arc<Zio> {
        &self.zio
    }

    /// Its vdevs.
    #[must_use]
    pub fn tree(&self) -> &Arc<VdevTree> {
        &self.tree
    }

    /// How it was opened.
    #[must_use]
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Findings meanwhile.
    #[must_use]
    pub fn load_info(&self) -> &LoadInfo {
        &self.load_info
    }

    /// A number that tells this opening of the pool from others.
    #[must_use]
    pub fn load_guid(&self) -> u64 {
        self.load_guid
    }

    /// The number of the object that the MOS directory has under `key`, if it has that key.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn mos_lookup(&self, key: &str) -> Result<Option<ObjectId>, Error> {
        self.mos.id_of(key)
    }

    /// The words of an entry of the MOS directory.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn mos_words(&self, key: &str) -> Result<Option<Vec<u64>>, Error> {
        Ok(self.mos.directory.lookup(key)?.map(|v| v.u64s()))
    }

    /// The pool's features: all that are known here, then the unknown ones that the pool has. All are disabled before version 5000.
    #[must_use]
    pub fn features(&self) -> &[FeatureState] {
        &self.features
    }

    fn feature(&self, name: &str) -> State {
        let found = self.features.iter().find(|f| f.def.is_some_and(|d| d.name == name));
        found.map_or(State::Disabled, |f| f.state)
    }

    /// Whether the pool may use the feature of this name.
    #[must_use]
    pub fn feature_enabled(&self, name: &str) -> bool {
        self.feature(name) != State::Disabled
    }

    /// Whether something in the pool needs the feature of this name.
    #[must_use]
    pub fn feature_active(&self, name: &str) -> bool {
        self.feature(name) == State::Active
    }

    /// The host that used the pool last, by the MOS: id and name.
    #[must_use]
    pub fn host(&self) -> (Option<u64>, Option<&str>) {
        (self.config().get_u64(key::HOSTID), self.config().get_str(key::HOSTNAME))
    }

    /// The spare devices that the MOS lists: their configurations.
    ///
    /// # Errors
    /// When the MOS cannot be read, or lists more than any pool has.
    pub fn spares(&self) -> Result<Vec<NvList>, Error> {
        self.aux_devices(key::SPARES)
    }

    /// The cache devices that the MOS lists: their configurations.
    ///
    /// # Errors
    /// When the MOS cannot be read, or lists more than any pool has.
    pub fn l2cache(&self) -> Result<Vec<NvList>, Error> {
        self.aux_devices(key::L2CACHE)
    }

    fn aux_devices(&self, what: &'static str) -> Result<Vec<NvList>, Error> {
        let Some(id) = self.mos.id_of(what)?.filter(|id| id.is_some()) else { return Ok(Vec::new()) };
        let mut list = self.mos.nvlist(id, what)?;
        let devices = list.get_nvlist_array_mut(what).map(std::mem::take).unwrap_or_default();
        match devices.len() {
            n if n > AUX_DEVICES_MAX => Err(Error::corrupt(
                id,
                format!("'{}' has {n} {what}, and at most {AUX_DEVICES_MAX} are read", self.name),
            )),
            _ => Ok(devices),
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pool {} ({}) at txg {}", self.name, self.guid, self.uberblock.txg)
    }
}
