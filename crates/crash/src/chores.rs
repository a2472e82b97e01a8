//! Pool-wide operations during a run: snapshots, file systems, clones, their destruction, scrubs.
//!
//! A chore starts when everything is on disk and nothing is being freed, so that its txg is known: the open one. Only a few names are used,
//! so that a check can test the existence of each.

use std::sync::Arc;

use base::tunable::ZFS_SPA_DISCARD_MEMORY_LIMIT;
use base::{Errno, Guid};
use ondisk::{ObjectType, ObjsetType};
use pool::{Activity, LeafCommand, LeafOptions, NewDataset, Pool, ScanEnd, ScrubRange, Spa};

use crate::Rng;
use crate::compare::{Context, Result, compare};
use crate::driver::Driver;
use crate::model::{Data, Model, Thing};
use crate::pools::NAME;

/// Names of snapshots of the root file system, of file systems, and of clones.
const SNAPSHOTS: [&str; 3] = ["s0", "s1", "s2"];
const FILE_SYSTEMS: [&str; 2] = ["f0", "f1"];
const CLONES: [&str; 2] = ["c0", "c1"];
/// Block size of the object in a new file system, and its maximum number of blocks.
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 24;

/// The largest devices whose free space is overwritten and trimmed.
const WORKED_ON_MAX: u64 = 64 << 20;

fn full(name: &str, between: char) -> String {
    format!("{NAME}{between}{name}")
}

impl Driver {
    /// Does one pool-wide operation. Returns the txg that has to be on disk for it to be safe.
    ///
    /// # Errors
    /// The error of a refused operation.
    pub fn chore(&mut self) -> Result<u64> {
        self.sync()?;
        let spa = self.spa().clone();
        discard(&spa)?;
        spa.wait_freed().context(|| "wait for frees".to_string())?;
        let txg = spa.txgs().open().0;
        match self.rng().below(11) {
            0..3 => self.snapshot(&spa)?,
            3 => self.destroy_snapshot(&spa)?,
            4 => self.file_system(&spa)?,
            5 => self.clone_snapshot(&spa)?,
            6 => self.destroy_dataset(&spa)?,
            7 => {
                spa.checkpoint().context(|| "checkpoint".to_string())?;
                return Ok(self.txg());
            }
            8 | 9 => {
                work_on_free_space(&spa, self.rng())?;
                return Ok(self.txg());
            }
            _ => {
                let until = *self.rng().pick(&[Until::Whole, Until::Paused, Until::Begun]);
                scrub(&spa, until)?;
                return Ok(self.txg());
            }
        }
        if spa.txgs().synced().0 >= txg {
            self.reached(txg);
        }
        Ok(self.txg())
    }

    fn snapshot(&mut self, spa: &Arc<Spa>) -> Result<()> {
        let name = *self.rng().pick(&SNAPSHOTS);
        if self.model().snapshots.contains_key(name) {
            return Ok(());
        }
        self.note(|| format!("snapshot {name}"));
        spa.snapshot(&[full(name, '@')], &[]).context(|| format!("snapshot {name}"))?;
        let model = self.model_mut();
        let taken = Model { objects: model.objects.clone(), ..Model::default() };
        model.snapshots.insert(name, Arc::new(taken));
        Ok(())
    }

    fn destroy_snapshot(&mut self, spa: &Arc<Spa>) -> Result<()> {
        let name = *self.rng().pick(&SNAPSHOTS);
        let cloned = self.model().datasets.values().any(|(origin, _)| *origin == Some(name));
        if cloned || !self.model().snapshots.contains_key(name) {
            return Ok(());
        }
        self.note(|| format!("destroy snapshot {name}"));
        spa.destroy_snapshots(&[full(name, '@')], false).context(|| format!("destroy snapshot {name}"))?;
        self.model_mut().snapshots.remove(name);
        Ok(())
    }

    /// Creates a file system with one object, which is written in the txg after the one that it is created in.
    fn file_system(&mut self, spa: &Arc<Spa>) -> Result<()> {
        let name = *self.rng().pick(&FILE_SYSTEMS);
        if self.model().datasets.contains_key(name) {
            return Ok(());
        }
        self.note(|| format!("create {name}"));
        let new = NewDataset::inheriting(full(name, '/'), ObjsetType::Zfs);
        let made = spa.txgs().open().0;
        spa.create_dataset(new, Box::new(|_, _| Ok(()))).context(|| format!("create {name}"))?;
        self.model_mut().datasets.insert(name, (None, Arc::default()));
        self.reached(made);
        let dataset = spa.view().and_then(|view| view.dataset(&full(name, '/'))).context(|| name.to_string())?;
        let objset = spa.objset(&dataset).context(|| name.to_string())?;
        let mut data = Data { block_size: BLOCK, slots: 1, ..Data::default() };
        let mut bytes = vec![0; (self.rng().below(BLOCKS) * BLOCK) as usize + 100];
        self.rng().fill(&mut bytes);
        data.write(0, &bytes);
        let tx = spa.tx(bytes.len() as u64).context(|| format!("tx in {name}"))?;
        let new =
            dmu::NewObject { object_type: ObjectType::OTN_UINT8_DATA, block_size: BLOCK, ..dmu::NewObject::default() };
        let object = objset.alloc_object(&tx, &new).context(|| format!("object of {name}"))?;
        object.write(&tx, 0, &bytes).context(|| format!("write into {name}"))?;
        let written = tx.txg().0;
        drop(tx);
        spa.sync().context(|| "sync".to_string())?;
        let objects = [(object.id(), Arc::new(Thing::Data(data)))].into_iter().collect();
        self.model_mut().datasets.insert(name, (None, Arc::new(Model { objects, ..Model::default() })));
        self.reached(written);
        Ok(())
    }

    fn clone_snapshot(&mut self, spa: &Arc<Spa>) -> Result<()> {
        let (name, origin) = (*self.rng().pick(&CLONES), *self.rng().pick(&SNAPSHOTS));
        let Some(content) = self.model().snapshots.get(origin).cloned() else { return Ok(()) };
        if self.model().datasets.contains_key(name) {
            return Ok(());
        }
        self.note(|| format!("clone {origin} to {name}"));
        let made = spa.clone_dataset(&full(origin, '@'), &full(name, '/'), Vec::new());
        made.context(|| format!("clone {origin} to {name}"))?;
        self.model_mut().datasets.insert(name, (Some(origin), content));
        Ok(())
    }

    fn destroy_dataset(&mut self, spa: &Arc<Spa>) -> Result<()> {
        let name = *self.rng().pick(&[FILE_SYSTEMS, CLONES].concat());
        if !self.model().datasets.contains_key(name) {
            return Ok(());
        }
        self.note(|| format!("destroy {name}"));
        spa.destroy_head(&full(name, '/')).context(|| format!("destroy {name}"))?;
        self.model_mut().datasets.remove(name);
        Ok(())
    }
}

/// Overwrites or trims the free space of one or all leaves; goes on first with what a cut has interrupted.
fn work_on_free_space(spa: &Arc<Spa>, rng: &Rng) -> Result<()> {
    let all: Vec<Guid> = spa.tree().config().leaves().map(|leaf| leaf.guid).collect();
    let one = [*rng.pick(&all)];
    let started = LeafCommand::Start(LeafOptions::default());
    // a tape keeps what is written, and what is discarded: it has no room for all of large devices
    let is_large =
        |leaf: &Guid| spa.tree().leaf(*leaf).and_then(|leaf| leaf.device()).is_some_and(|d| d.size() > WORKED_ON_MAX);
    if all.iter().any(is_large) {
        return Ok(());
    }
    let (leaves, trims) = if rng.percent(50) { (&all[..], true) } else { (&one[..], false) };
    let (activity, refused) = match trims {
        true => (Activity::Trim, spa.trim(leaves, started)),
        // a second time nothing would be done
        false => (
            Activity::Initialize,
            spa.initialize(leaves, LeafCommand::Uninit).and_then(|_| spa.initialize(leaves, started)),
        ),
    };
    let refused = refused.context(|| format!("{activity:?}"))?;
    if refused.iter().any(|(_, errno)| *errno != Errno::EBUSY) {
        return Err(format!("{activity:?}: {refused:?}"));
    }
    spa.wait_activity(activity).map(drop).context(|| format!("wait for {activity:?}"))
}

/// Discards the checkpoint that an earlier chore made, or finishes the discard that a cut interrupted: one vdev per txg.
fn discard(spa: &Arc<Spa>) -> Result<()> {
    ZFS_SPA_DISCARD_MEMORY_LIMIT.set(1);
    match spa.discard_checkpoint() {
        Err(pool::Error::NoCheckpoint) => {}
        discarded => discarded.context(|| "discard of a checkpoint".to_string())?,
    }
    spa.wait_activity(Activity::Discard).map(drop).context(|| "wait for a discard".to_string())
}

/// How far a scrub comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// To its end.
    Whole,
    /// It is paused at once.
    Paused,
    /// It is begun, and left to be resumed after the next import.
    Begun,
}

/// Begins or resumes a scrub. It must not find any block lost.
pub(crate) fn scrub(spa: &Arc<Spa>, until: Until) -> Result<()> {
    spa.scrub(ScrubRange::default()).context(|| "begin of a scrub".to_string())?;
    if until == Until::Paused {
        spa.scrub_pause().context(|| "pause of a scrub".to_string())?;
    }
    if until != Until::Whole {
        return Ok(());
    }
    match spa.scan_wait(&mut |_| {}).context(|| "scrub".to_string())? {
        ScanEnd::Finished(tally) if tally.lost_blocks > 0 => Err(format!("a scrub: {} blocks lost", tally.lost_blocks)),
        ScanEnd::Finished(_) => Ok(()),
        ScanEnd::Stopped => Err("a scrub did not complete".to_string()),
    }
}

/// Checks that the pool has the snapshots and file systems of `model`, with their contents, and no others.
pub(crate) fn check_datasets(pool: &Arc<Pool>, model: &Model) -> Result<()> {
    let snapshots = SNAPSHOTS.map(|name| (full(name, '@'), model.snapshots.get(name)));
    let others = FILE_SYSTEMS.iter().chain(&CLONES);
    let datasets = others.map(|name| (full(name, '/'), model.datasets.get(name).map(|(_, content)| content)));
    for (name, wanted) in snapshots.into_iter().chain(datasets) {
        match (pool.dataset(&name), wanted) {
            (Err(_), None) => {}
            (Ok(_), None) => return Err(format!("{name} exists, but should not")),
            (Err(why), Some(_)) => return Err(format!("{name} is missing: {why}")),
            (Ok(found), Some(wanted)) => {
                let objset = found.objset().context(|| name.clone())?;
                compare(&objset, wanted).context(|| name.clone())?;
            }
        }
    }
    Ok(())
}
