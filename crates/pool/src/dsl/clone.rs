//! Clones of snapshots (OpenZFS: `dsl_dataset_clone_check`, `dsl_dataset_clone_sync`).

use std::sync::Arc;

use base::ObjectId;
use dmu::{Objset, Zap};
use ondisk::dsl::dir_keys;
use ondisk::{ObjectType, ZilHeader};

use crate::dsl::Refusal;
use crate::dsl::create::NEW_BLOCKS;
use crate::dsl::deadlist::Deadlist;
use crate::dsl::lookup::{Live, check_name};
use crate::dsl::props::write::When;
use crate::dsl::refused;
use crate::spa::{Spa, TaskCx};
use crate::{Error, Value};

impl Spa {
    /// Creates `name` as a clone of the snapshot `origin`. A clone of an encrypted snapshot has its origin's key.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`] without the snapshot; [`Error::Refused`] as [`Spa::create_dataset`], [`Refusal::CrossPool`],
    /// [`Refusal::NotSnapshot`].
    pub fn clone_dataset(self: &Arc<Self>, origin: &str, name: &str, props: Vec<(String, Value)>) -> Result<(), Error> {
        check_name(name)?;
        if name.split(['/', '@']).next() != origin.split(['/', '@']).next() {
            return Err(refused(name, Refusal::CrossPool));
        }
        let (origin, name) = (origin.to_string(), name.to_string());
        self.growing_task(NEW_BLOCKS, move |cx| {
            let from = cx.spa.find_snapshot(cx.mos, &origin)?;
            let (parent, tail) = cx.spa.check_new(cx.mos, &name)?;
            let kind = cx.spa.contents_of(&from)?;
            cx.spa.check_new_props(cx.mos, parent, (kind, When::Later), &props)?;
            let ds = cx.clone_snapshot(&from, parent, tail)?;
            cx.zero_zil(&ds)?;
            cx.spa.store_new_props(cx.mos, cx.tx, &ds, &props)?;
            let what = format!("origin={origin} ({})", from.id);
            cx.spa.log_live(cx.mos, cx.tx, &ds, "clone", &what)
        })
    }
}

impl TaskCx<'_> {
    /// Creates a clone of snapshot `origin` below directory `parent`.
    pub(in crate::dsl) fn clone_snapshot(&self, origin: &Live, parent: ObjectId, name: &str) -> Result<Live, Error> {
        let (spa, mos, tx) = (self.spa, self.mos, self.tx);
        // what cannot be read is not cloned: the log in its root block must be left out
        Objset::open(spa.zio().clone(), origin.id, &origin.phys.bp)?;
        mos.key_uses(origin.phys.dir_obj)?;
        let dir = self.new_dir(parent, name)?;
        let id = spa.create_head(mos, tx, dir, Some(origin.id))?;
        self.share_key(origin, dir, id)?;
        if spa.feature_enabled(mos, "livelist")? {
            let livelist = Deadlist::create(mos, tx)?;
            spa.zapify(mos, tx, dir)?.add_id(tx, dir_keys::LIVELIST, livelist)?;
            spa.feature_increment(mos, tx, "livelist")?;
        }
        mos.live(id)
    }

    /// Removes the intent log from the root block of `ds`: the one in a snapshot's root block belongs to the dataset that the snapshot was taken
    /// of, and a dataset made from the snapshot has none (OpenZFS: `dsl_dataset_zero_zil`). The MACs of a root block do not cover it, so this needs
    /// no key.
    pub(in crate::dsl) fn zero_zil(&self, ds: &Live) -> Result<(), Error> {
        let (spa, mos) = (self.spa, self.mos);
        let phys = mos.dataset_phys(ds.id)?;
        let objset = Objset::open_writable(spa.zio().clone(), ds.id, &phys.bp)?;
        if objset.phys().zil_header == ZilHeader::empty() {
            return Ok(());
        }
        objset.set_zil_header(self.tx, ZilHeader::empty())?;
        spa.add_open_dataset(mos, objset, phys.dir_obj).map(drop)
    }

    /// The ZAP in which directory `dir` lists the heads that were cloned of its snapshots.
    pub(in crate::dsl) fn clones_zap(&self, dir: ObjectId) -> Result<Zap, Error> {
        let (mos, tx) = (self.mos, self.tx);
        let id = match mos.dir_phys(dir)?.clones {
            ObjectId::NONE => mos.new_zap(tx, ObjectType::DSL_CLONES)?,
            id => id,
        };
        mos.edit_dir(tx, dir, |dir| dir.clones = id)?;
        mos.zap(id)
    }
}
