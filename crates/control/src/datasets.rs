//! Datasets made, destroyed, promoted, renamed and rolled back.

use std::sync::Arc;
use std::time::Duration;

use base::ObjectId;
use dmu::{Objset, Tx, Zap};
use nvlist::NvList;
use ondisk::ObjsetType;
use pool::{Dataset, Init, Kind, NewDataset, ZplProps};
use stream::recv;
use zpl::create::{FsProps, create_fs, create_volume};

use crate::decode::{Props, require_str};
use crate::keys::new_key;
use crate::props::check_settable;
use crate::{Caller, Control, Error, Failed};

/// Numbers of kinds of datasets (OpenZFS: `dmu_objset_type_t`).
const OST_ZFS: i32 = 2;
const OST_ZVOL: i32 = 3;
/// A volume's blocks, unless told otherwise (OpenZFS: `ZVOL_DEFAULT_BLOCKSIZE`).
const VOLBLOCKSIZE: u64 = 16 << 10;
/// A file system that ignores case (OpenZFS: `ZFS_CASE_INSENSITIVE`); in one of the kind *mixed* the names of snapshots are exact.
const CASE_INSENSITIVE: u64 = 1;
/// The activity that a file system can be waited for: the queue of deleted files.
const WAIT_DELETEQ: i32 = 0;
/// The dataset below another that holds what is being received for it (OpenZFS: `recv_clone_name`).
const RECEIVED: &str = "/%recv";

impl Control {
    pub(crate) fn create(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        if name.contains(['@', '%', '#']) {
            return Err(Error::Invalid(format!("'{name}' is not the name of a dataset")).into());
        }
        let mut props = Props::of_dataset(input.get_nvlist("props"))?;
        check_settable(&self.spa, &props.values)?;
        let (os_type, NewContents { init, ignores_case }) = match input.get_i32("type") {
            Some(OST_ZFS) => (ObjsetType::Zfs, self.new_fs(name, &mut props)?),
            Some(OST_ZVOL) => (ObjsetType::Zvol, new_volume(&mut props)?),
            _ => return Err(Error::Invalid("neither a file system nor a volume".to_owned()).into()),
        };
        let (key, without_key) = new_key(&mut props, input.get_nvlist("hidden_args"))?;
        let values = std::mem::take(&mut props.values);
        let new = NewDataset { name: name.to_owned(), os_type, props: values, key, without_key, ignores_case };
        self.spa.create_dataset(new, init)?;
        self.finish_new(name, &props)
    }

    /// Sets in a new dataset what it must be there for; if that cannot be, it goes again.
    fn finish_new(&self, name: &str, props: &Props) -> Result<NvList, Failed> {
        if let Err(e) = self.set_quotas(name, &props.quotas) {
            self.spa.destroy_head(name)?;
            return Err(e.into());
        }
        Ok(NvList::new())
    }

    /// What fills a new file system: what is fixed for good comes from its properties, else from its parent.
    fn new_fs(&self, name: &str, props: &mut Props) -> Result<NewContents, Error> {
        let parent = self.parent(name)?;
        let inherited = match parent.kind()? {
            Kind::Filesystem => parent.zpl_props()?,
            _ => return Err(Error::WrongParent(name.to_owned())),
        };
        fill_fs(props, inherited.as_ref(), &self.caller, self.spa.env().now())
    }

    /// Destroys a dataset; `FS/%recv` is what an interrupted receive left for `FS`.
    pub(crate) fn destroy(&self, name: &str) -> Result<NvList, Failed> {
        match name.strip_suffix(RECEIVED) {
            Some(fs) => recv::discard(&self.spa, fs).map_err(Error::Receive)?,
            None => self.spa.destroy_head(name)?,
        }
        Ok(NvList::new())
    }

    fn parent(&self, name: &str) -> Result<Dataset, Error> {
        let (parent, _) =
            name.rsplit_once('/').ok_or_else(|| Error::Invalid(format!("'{name}' is a pool's own dataset")))?;
        Ok(self.spa.view()?.dataset(parent)?)
    }

    pub(crate) fn clone_from(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let origin = require_str(input, "origin")?;
        let mut props = Props::of_dataset(input.get_nvlist("props"))?;
        if name.contains(['@', '%', '#']) || !origin.contains('@') {
            return Err(Error::Invalid(format!("'{origin}' cannot be cloned as '{name}'")).into());
        }
        self.check_pool(origin)?;
        check_settable(&self.spa, &props.values)?;
        self.spa.clone_dataset(origin, name, std::mem::take(&mut props.values))?;
        self.finish_new(name, &props)
    }

    pub(crate) fn promote(&self, name: &str) -> Result<NvList, Failed> {
        self.spa.promote(name).map_err(|e| {
            let conflict = match &e {
                pool::Error::Many(all) => all.first().and_then(|(name, _)| name.rsplit('@').next()).map(str::to_owned),
                _ => None,
            };
            let mut failed = Failed::from(e);
            if let Some(name) = conflict {
                failed.out.insert("conflsnap", name);
            }
            failed
        })?;
        Ok(NvList::new())
    }

    pub(crate) fn rename(&self, from: &str, input: &NvList) -> Result<NvList, Failed> {
        let to = require_str(input, "target")?;
        self.check_pool(to)?;
        let recursive = input.contains("recursive");
        match (from.split_once('@'), to.split_once('@')) {
            (Some((fs, from)), Some((to_fs, to))) if fs == to_fs => {
                self.done(self.spa.rename_snapshot(fs, from, to, recursive))
            }
            (Some(_), Some(_)) => Err(Error::OtherPool(to.to_owned()).into()),
            (None, None) if !recursive => self.done(self.spa.rename(from, to)),
            _ => Err(Error::Invalid(format!("'{from}' cannot become '{to}'")).into()),
        }
    }

    pub(crate) fn rollback(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let target = self.spa.rollback(name, input.get_str("target"))?;
        let mut out = NvList::new();
        out.insert("target", target);
        Ok(out)
    }

    /// Nothing deletes in the background here: opening a file system drains its queue. Nothing is under way for which a stranger would wait.
    pub(crate) fn wait_fs(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        if input.get_i32("wait_activity") != Some(WAIT_DELETEQ) {
            return Err(Error::Invalid("no such activity".to_owned()).into());
        }
        if self.is_stranger {
            self.spa.view()?.dataset(name)?;
        } else {
            drop(zpl::live::Zfs::open(&self.spa, name)?);
            self.spa.sync()?;
        }
        let mut out = NvList::new();
        out.insert("wait_waited", false);
        Ok(out)
    }
}

/// A new dataset's contents.
pub(crate) struct NewContents {
    /// Makes them.
    pub(crate) init: Init,
    /// The names in it are the same in any case.
    ignores_case: bool,
}

/// What fills a new file system. What is fixed for good is taken out of its properties; the rest is as `above` has it.
pub(crate) fn fill_fs(
    props: &mut Props,
    above: Option<&ZplProps>,
    caller: &Caller,
    now: Duration,
) -> Result<NewContents, Error> {
    let mut pick = |key: &str| {
        let inherited = || above.and_then(|zpl| zpl.get(key));
        props.take_number(key).or_else(inherited).unwrap_or(0)
    };
    let normalization = pick("normalization");
    let utf8only = pick("utf8only") != 0 || normalization != 0;
    let casesensitivity = pick("casesensitivity");
    let quotas = zpl::create::DEFAULT_QUOTAS.map(|key| (key, pick(key)));
    let default = FsProps::default();
    let fs = FsProps {
        version: props.take_number("version").unwrap_or(default.version),
        normalization,
        utf8only,
        casesensitivity,
        uid: caller.uid.into(),
        gid: caller.gid.into(),
        now,
        ..default
    };
    if fs.version != default.version {
        return Err(Error::NotSupported(format!("version {}", fs.version)));
    }
    let ignores_case = casesensitivity == CASE_INSENSITIVE;
    let init = move |objset: &Arc<Objset>, tx: &Tx| {
        create_fs(objset, tx, &fs)?;
        if quotas.iter().all(|(_, value)| *value == 0) {
            return Ok(());
        }
        let master = Zap::open(objset.object(ObjectId::MASTER_NODE)?)?;
        quotas.iter().try_for_each(|(key, value)| master.update_u64(tx, key, *value))
    };
    Ok(NewContents { init: Box::new(init), ignores_case })
}

/// What fills a new volume.
fn new_volume(props: &mut Props) -> Result<NewContents, Error> {
    let block = props.take_number("volblocksize").unwrap_or(VOLBLOCKSIZE);
    let size = props.take_number("volsize").ok_or_else(|| Error::Invalid("a volume needs a size".to_owned()))?;
    if size == 0 || !size.is_multiple_of(block) || i64::try_from(size).is_err() {
        return Err(Error::Invalid("the size of a volume is a multiple of its blocks".to_owned()));
    }
    let init = Box::new(move |objset: &Arc<Objset>, tx: &Tx| create_volume(objset, tx, size, block));
    Ok(NewContents { init, ignores_case: false })
}
