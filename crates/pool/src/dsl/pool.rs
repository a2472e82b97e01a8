//! The datasets of a pool open for writing, and their part in its life (OpenZFS: `dsl_pool.c`).

use std::sync::{Arc, Weak};

use base::{ObjectId, Txg};
use dmu::{Objset, Tx};
use ondisk::ObjsetType;
use parking_lot::Mutex;

use crate::dsl::intent_log::Logs;
use crate::dsl::open_datasets::{OpenDataset, OpenDatasets};
use crate::dsl::space::Used;
use crate::dsl::{DatasetStats, WithoutKey, props};
use crate::spa::bpobj::Delta;
use crate::spa::create::{NewRoot, Populate, stored};
use crate::spa::datasets::{DatasetNames, Datasets, LostLogs};
use crate::spa::feature::write::{PROJECT_QUOTA, USEROBJ_ACCOUNTING};
use crate::spa::mos::Mos;
use crate::spa::zthr::Next;
use crate::spa::{Spa, TaskCx};
use crate::{Error, Pool, Value};

/// The directory that the MOS's own space is booked to.
const MOS_DIR: &str = "$MOS";

/// The state of a pool's datasets (OpenZFS: `dsl_pool_t`).
#[derive(Default)]
pub(crate) struct DslPool {
    pub(in crate::dsl) open_datasets: OpenDatasets,
    pub(in crate::dsl) logs: Logs,
    /// The figures of those that are open.
    pub(in crate::dsl) stats: Mutex<Vec<Weak<DatasetStats>>>,
}

impl Datasets for Spa {
    fn check_root_props(props: &[(String, Value)]) -> Result<(), Error> {
        props::write::check_root_props(props)
    }

    fn create_dirs(&self, mos: &Mos, tx: &Tx) -> Result<ObjectId, Error> {
        let root = self.create_dir(mos, tx, None)?;
        self.create_dir(mos, tx, Some((root, MOS_DIR)))?;
        self.create_dir(mos, tx, Some((root, "$FREE")))?;
        Ok(root)
    }

    fn create_root(self: &Arc<Self>, mos: &Mos, tx: &Tx, dir: ObjectId, new: NewRoot) -> Result<(), Error> {
        let origin = self.create_origin(mos, tx, dir)?;
        let head = self.create_head(mos, tx, dir, Some(origin))?;
        let plan = match new.key {
            Some(key) => self.key_of_new(mos, self.name(), dir, Some(key), WithoutKey::Off)?,
            None => None,
        };
        if let Some(plan) = plan {
            TaskCx { spa: self, mos, tx }.put_key(dir, head, plan)?;
        }
        // the very first blocks are already written as the properties demand
        let props = mos.zap(mos.dir_phys(dir)?.props_zapobj)?;
        for (name, value) in &new.props {
            props.update_value(tx, name, &stored(value))?;
        }
        self.fill_root(mos, tx, (dir, head), new.populate)
    }

    fn claim(&self, pool: &Arc<Pool>, lost_ok: LostLogs) -> Result<Vec<ObjectId>, Error> {
        self.claim_logs(pool, lost_ok)
    }

    fn resume_destroys(&self) -> Result<(), Error> {
        self.resume_freeing()
    }

    fn opened(self: &Arc<Self>, claimed: &[ObjectId]) -> Result<(), Error> {
        self.close_claimed(claimed);
        self.destroy_inconsistent()
    }

    fn enter_pass(&self) -> impl Sized + '_ {
        self.dsl.open_datasets.working()
    }

    fn sync_logs_of(&self, tx: &Tx) -> Result<(), Error> {
        self.sync_logs(tx)
    }

    fn sync_dirty(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        self.sync_datasets(mos, tx)?;
        self.dsl.open_datasets.release_sources(tx.txg());
        Ok(())
    }

    fn sync_destroys(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        self.sync_destroyed(mos, tx)
    }

    fn free_slice(&self, mos: &Mos, tx: &Tx) -> Result<Next, Error> {
        self.free_destroyed(mos, tx)
    }

    fn mos_grew(&self, mos: &Mos, tx: &Tx, delta: Delta) -> Result<(), Error> {
        let Some(root) = mos.id_of("root_dataset")? else { return Ok(()) };
        let children = mos.zap_if(mos.dir_phys(root)?.child_dir_zapobj)?;
        match children.map(|zap| zap.lookup_id(MOS_DIR)).transpose()?.flatten() {
            Some(dir) => mos.did_use(tx, dir, Used::Head, delta),
            None => Ok(()),
        }
    }

    fn task_ended(&self) {
        self.dsl.open_datasets.settle();
    }

    fn txg_synced(&self, txg: Txg) {
        self.clean_logs(txg);
    }

    fn pause_logs(self: &Arc<Self>) -> Result<impl Sized, Error> {
        self.suspend_logs()
    }

    fn end_logs(&self) {
        self.close_logs();
    }

    fn log_figures(&self) -> Vec<(&'static str, u64)> {
        self.dsl.logs.stats.named()
    }
}

impl DatasetNames for Pool {
    fn dataset_name(self: &Arc<Self>, id: ObjectId) -> Result<String, Error> {
        Ok(self.dataset_by_id(id)?.name().to_string())
    }
}

impl Spa {
    /// Makes the object set of the root file system in directory and dataset `(dir, id)`.
    fn fill_root(
        &self,
        mos: &Mos,
        tx: &Tx,
        (dir, id): (ObjectId, ObjectId),
        populate: Option<Populate>,
    ) -> Result<(), Error> {
        let objset = Objset::create(self.zio().clone(), id, ObjsetType::Zfs, self.accounting_flags(mos)?, tx)?;
        if let Some(populate) = populate {
            populate(&objset, tx)?;
        }
        self.dsl.open_datasets.insert(OpenDataset::new(objset, self.policy_of(mos, dir)?, 0));
        if self.hooks_used_by() {
            for name in [USEROBJ_ACCOUNTING, PROJECT_QUOTA] {
                if self.feature_enabled(mos, name)? {
                    self.activate_dataset_feature(mos, tx, id, name)?;
                }
            }
        }
        Ok(())
    }
}
