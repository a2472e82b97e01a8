//! The JSON fields of a vdev, and the format of numbers in JSON.

use nvlist::NvList;
use pool::prop::{nicebytes, nicenum};
use vdev::{VdevAux, VdevState};

use super::activity::ctime;
use super::vdevs::{Class, NameFlags, Vdev};
use crate::columns::number_or_text;

/// The format of numbers.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub(super) parsable: bool,
    pub(super) as_int: bool,
}

impl Numbers {
    pub(super) fn put(self, list: &mut NvList, key: &str, n: u64, nice: fn(u64) -> String) {
        let text = if self.parsable { n.to_string() } else { nice(n) };
        match self.as_int {
            true => list.insert(key, n),
            false => list.insert(key, text),
        }
    }

    pub(super) fn count(self, list: &mut NvList, key: &str, n: u64) {
        self.put(list, key, n, nicenum);
    }

    pub(super) fn bytes(self, list: &mut NvList, key: &str, n: u64) {
        self.put(list, key, n, nicebytes);
    }

    pub(super) fn time(self, list: &mut NvList, key: &str, n: u64) {
        self.put(list, key, n, ctime);
    }

    /// Adds an exact number, whatever the options.
    pub(super) fn plain(self, list: &mut NvList, key: &str, n: u64) {
        list.insert(key, number_or_text(&n.to_string(), self.as_int));
    }
}

/// The JSON fields of each vdev (OpenZFS: `fill_vdev_info`).
pub(super) fn describe_vdev(pool: &str, vdev: &Vdev, flags: NameFlags, as_int: bool, class: Option<&str>) -> NvList {
    let mut list = NvList::new();
    list.insert("name", vdev.name(pool, flags));
    list.insert("vdev_type", vdev.kind.name());
    list.insert("guid", number_or_text(&vdev.guid.to_string(), as_int));
    for (key, text) in [("path", &vdev.path), ("phys_path", &vdev.phys_path), ("devid", &vdev.devid)] {
        if let Some(text) = text {
            list.insert(key, text.as_str());
        }
    }
    let of_tree = match vdev.class {
        Class::Logs => "log",
        class => class.title(),
    };
    list.insert("class", class.unwrap_or(of_tree));
    list.insert("state", state(vdev.state));
    list
}

pub(super) const fn state(state: VdevState) -> &'static str {
    match state {
        VdevState::CantOpen => "CANT_OPEN",
        other => other.name(),
    }
}

/// The state of a spare, where it is another word than that of a device.
pub(super) fn spare_state(vdev: &Vdev) -> Option<&'static str> {
    match (vdev.aux, vdev.state) {
        (VdevAux::Spared, _) => Some("INUSE"),
        (_, VdevState::Healthy) => Some("AVAIL"),
        _ => None,
    }
}

pub(super) const fn aux(aux: VdevAux) -> &'static str {
    match aux {
        VdevAux::None => "NONE",
        VdevAux::OpenFailed => "OPEN_FAILED",
        VdevAux::NoReplicas => "NO_REPLICAS",
        VdevAux::ErrExceeded => "ERR_EXCEEDED",
        VdevAux::External => "EXTERNAL",
        VdevAux::BadLabel => "BAD_LABEL",
        VdevAux::Spared => "SPARED",
    }
}
