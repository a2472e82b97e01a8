//! Hot spares, which take the place of devices that are gone or fail, and go when these are back (OpenZFS: the agent `zfs-retire` of its event daemon,
//! `spa_vdev_resilver_done`).
//!
//! A device that was pulled out, could not be opened, was given up or is degraded gets the first spare of the pool that can be used. The task of scans
//! attaches it, and resilvers it then. A device that somebody took offline gets none. When the device is put to use again by itself, or its errors
//! are cleared, it is noted that its spare is to go; the task detaches that when the device has everything.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::Guid;
use nvlist::NvList;
use ondisk::label::key;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{VdevAux, VdevConfig, VdevState, VdevTree, VdevType};

use crate::Error;
use crate::spa::Spa;
use crate::spa::attach::top_of;
use crate::spa::surgery::UNSPARE;

impl Spa {
    /// If a device needs a spare, it gets one soon. Returns whether one does.
    pub(crate) fn want_spares(&self) -> bool {
        let needs = needing(&self.tree()).next().is_some();
        if needs {
            self.scanner.spares_wanted.store(true, Ordering::Release);
            self.wake_scan();
        }
        needs
    }

    pub(crate) fn wake_scan(&self) {
        if let Some(spa) = self.this.upgrade() {
            self.background.scan.wake(&spa);
        }
    }

    /// Begins, in the background, what a pool needs to be whole again: spares for devices that are gone, a resilver of what devices have missed, and the end
    /// of replacements. Returns whether any of it is under way.
    ///
    /// # Errors
    /// As [`Spa::resilver`].
    pub fn mend(self: &Arc<Self>) -> Result<bool, Error> {
        self.unspare_returned();
        let mut begun = self.want_spares();
        if self.has_replaced() {
            self.wake_scan();
            begun = true;
        }
        Ok(self.resilver(false)? || begun)
    }

    /// Attaches spares where they are wanted. To be called by the task of scans between two slices.
    pub(crate) fn call_in_spares(self: &Arc<Self>) {
        // a device that fails from now on asks anew
        if !self.scanner.spares_wanted.swap(false, Ordering::AcqRel) {
            return;
        }
        let wanting: Vec<Guid> = needing(&self.tree()).map(|vdev| vdev.guid).collect();
        for guid in wanting {
            let Ok(spares) = self.view().and_then(|view| view.spares()) else { return };
            for spare in spares.iter().filter(|spare| self.is_free(spare)) {
                match self.attach_spare(guid, spare) {
                    Ok(()) => break,
                    Err(error) => tracing::debug!(target: "zuse::spa", %error, "a spare cannot be used"),
                }
            }
        }
    }

    fn is_free(&self, spare: &NvList) -> bool {
        let guid = Guid(spare.get_u64(key::GUID).unwrap_or(0));
        spare.get_str(key::TYPE) != Some(VdevType::DraidSpare.name()) && self.tree().leaf(guid).is_none()
    }

    fn attach_spare(self: &Arc<Self>, old: Guid, spare: &NvList) -> Result<(), Error> {
        let path = spare.get_str(key::PATH).unwrap_or_default();
        let device = (self.hooks.open_device)(path)?;
        let spec = VdevSpec::parse(&[path.to_owned()]).map_err(|e| Error::Bug(e.to_string()))?;
        let options = LayoutOptions { ashift: None, ..self.layout_options(None) };
        let new = layout(&spec, &|_| Some(device.clone()), options, self.env())?;
        self.attach(old, new, true, spare.get_u64(key::GUID).map(Guid))
    }

    /// The same for devices that were away when the pool was closed: those that are there and have missed something.
    pub(crate) fn unspare_returned(&self) {
        let tree = self.tree();
        let returned: Vec<Guid> = tree.stale_leaves().map(|leaf| leaf.guid()).collect();
        self.unspare(&returned);
    }

    /// Notes that the spares of these devices, which are in use again, are to go.
    pub(crate) fn unspare(&self, devices: &[Guid]) {
        let tree = self.tree();
        let is_back = |guid: &Guid| tree.leaf(*guid).is_some_and(|leaf| leaf.is_usable());
        let first_of_spare =
            |vdev: &VdevConfig| (vdev.kind == VdevType::Spare).then(|| vdev.children.first().map(|c| c.guid)).flatten();
        let firsts: Vec<Guid> = tree.config().walk().filter_map(first_of_spare).collect();
        let mut any = false;
        for guid in devices.iter().filter(|guid| firsts.contains(guid)).filter(|guid| is_back(guid)) {
            any |= self.edit_vdev(guid.0, &mut |vdev| vdev.insert(UNSPARE, 1u64));
        }
        if any {
            self.txgs.note_work();
            self.wake_scan();
        }
    }
}

/// The devices that need a spare and have none.
fn needing(tree: &VdevTree) -> impl Iterator<Item = &VdevConfig> {
    let families = tree.config().walk().filter(|vdev| !matches!(vdev.kind, VdevType::Spare | VdevType::Replacing));
    let children = families.flat_map(|vdev| &vdev.children).filter(|vdev| vdev.kind.is_leaf());
    let in_log = |vdev: &VdevConfig| top_of(tree, vdev.guid).is_some_and(|top| top.is_log);
    children
        .filter(|vdev| tree.leaf(vdev.guid).is_some_and(|leaf| fails(leaf.health())))
        .filter(move |vdev| !in_log(vdev))
}

fn fails(health: vdev::Health) -> bool {
    match health.state {
        VdevState::Removed | VdevState::CantOpen | VdevState::Faulted => true,
        VdevState::Degraded => health.aux == VdevAux::ErrExceeded,
        VdevState::Healthy | VdevState::Offline => false,
    }
}
