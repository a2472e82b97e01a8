//! The output of `zpool import` for pools that could be imported (OpenZFS: `show_import`).

use std::collections::HashMap;

use base::Guid;
use pool::Pool;
use site::devices;
use site::import::is_foreign;
use vdev::import::{Candidate, PoolState};
use vdev::{VdevAux, VdevState, VdevTree};

use super::activity::Activity;
use super::reason::{self, Reason};
use super::vdevs::{Class, NameFlags, Vdev, Vdevs};
use crate::columns::in_line;

/// The known facts about a candidate, as far as it opens.
pub(super) struct View {
    pub(super) vdevs: Option<Vdevs>,
    state: VdevState,
    aux: &'static str,
    /// Set if the metadata is damaged, not the devices.
    faulted: bool,
    pub(super) reason: Reason,
    features: Vec<String>,
    comment: Option<String>,
}

fn look(candidate: &Candidate) -> View {
    let devices = devices::paths(candidate);
    let foreign = candidate.state == PoolState::Active && candidate.hostid.unwrap_or(0) != 0 && is_foreign(candidate);
    match Pool::open(candidate, &pool::OpenOptions::default()) {
        Ok(pool) => {
            let vdevs = Vdevs::of_pool(&pool, &devices).ok();
            let status = pool.tree().status();
            let reason = match (&vdevs, Activity::of(&pool)) {
                (Some(vdevs), Ok(activity)) => reason::of_pool(&pool, vdevs, &activity, 0, Some(foreign)),
                _ => Reason::CorruptPool,
            };
            View {
                state: status.state,
                aux: status.aux.message(),
                faulted: false,
                reason,
                vdevs,
                features: Vec::new(),
                comment: pool.config().get_str("comment").map(str::to_owned),
            }
        }
        Err(e) => look_at_labels(candidate, &devices, &e),
    }
}

/// A pool that does not open: the facts from its labels and devices.
pub(super) fn look_at_labels(candidate: &Candidate, devices: &HashMap<Guid, String>, why: &pool::Error) -> View {
    let find = |guid| candidate.device(guid).map(|d| d.device.clone());
    let tree = candidate.vdev_config().and_then(|config| VdevTree::open(&config, &find));
    let vdevs = tree.ok().map(|tree| Vdevs::of_tree(&tree, devices));
    let broken_devices = vdevs.as_ref().map(|v| reason::of_vdevs(v, false, 0)).filter(|r| *r != Reason::Ok);
    let mut view = View {
        state: VdevState::CantOpen,
        aux: "corrupted data",
        faulted: true,
        reason: Reason::CorruptPool,
        vdevs,
        features: Vec::new(),
        comment: candidate.config.get_str("comment").map(str::to_owned),
    };
    match why {
        pool::Error::Version(_) => {
            (view.reason, view.aux, view.faulted) = (Reason::VersionNewer, "newer version", false)
        }
        pool::Error::Features(features) => {
            view.features.clone_from(features);
            (view.reason, view.aux, view.faulted) = (Reason::UnsupportedFeature, "unsupported feature(s)", false);
        }
        pool::Error::MissingVdevs(_) => {
            (view.reason, view.aux, view.faulted) = (Reason::BadGuidSum, "missing device", false);
        }
        pool::Error::Behind { .. } => {
            (view.reason, view.aux, view.faulted) = (Reason::OlderState, "missing device", false);
        }
        _ => {
            if let Some(reason) = broken_devices {
                let none = matches!(reason, Reason::MissingDevReplicated);
                view.reason = if none { Reason::MissingDev } else { reason };
                view.aux = VdevAux::NoReplicas.message();
                view.faulted = false;
            }
        }
    }
    view
}

/// A candidate as `zpool import` shows it (OpenZFS: `show_import`).
pub(super) fn show(candidate: &Candidate) -> String {
    let view = look(candidate);
    let indent = if view.comment.is_some() { " " } else { "" };
    let health = if view.faulted { "FAULTED" } else { view.state.name() };
    let destroyed = if candidate.state == PoolState::Destroyed { " (DESTROYED)" } else { "" };
    let name = &candidate.name;
    let mut text =
        format!("{indent}  pool: {name}\n{indent}    id: {}\n{indent} state: {health}{destroyed}\n", candidate.guid);
    let status = view.reason.import_status(indent);
    if !status.is_empty() {
        text.push_str(&format!("{indent}status: {status}"));
        for feature in &view.features {
            text.push_str(&format!("\t{}\n", in_line(feature)));
        }
    }
    text.push_str(&format!("{indent}action: {}", view.reason.import_action(view.state, indent)));
    if let Some(comment) = &view.comment {
        text.push_str(&format!("comment: {}\n", in_line(comment)));
    }
    if view.faulted {
        match candidate.state {
            PoolState::Destroyed => text.push_str(&format!(
                "\t{indent}The pool was destroyed, but can be imported using the '-Df' flags.\n"
            )),
            PoolState::Active => text.push_str(&format!(
                "\t{indent}The pool may be active on another system, but can be imported using\n\t{indent}the '-f' flag.\n"
            )),
            PoolState::Exported => {}
        }
    }
    if let Some(id) = view.reason.message_id() {
        text.push_str(&format!("{indent}   see: https://openzfs.github.io/openzfs-docs/msg/{id}\n"));
    }
    text.push_str(&format!("{indent}config:\n\n"));
    text.push_str(&config(name, &view, health));
    if view.reason == Reason::BadGuidSum {
        text.push_str(&format!(
            "\n\t{indent}Additional devices are known to be part of this pool, though their\n\
             \t{indent}exact configuration cannot be determined.\n"
        ));
    }
    text
}

/// The tree of a candidate.
fn config(name: &str, view: &View, health: &str) -> String {
    let Some(vdevs) = &view.vdevs else { return format!("\t{name:<10}  {health}\n") };
    let flags = NameFlags::default();
    // the root counts as "root-0"
    let width = vdevs.width(name, flags).max(name.len()).max(10);
    let mut text = String::new();
    let aux = if view.state == VdevState::CantOpen { view.aux } else { "" };
    let gap = if aux.is_empty() { "" } else { "  " };
    text.push_str(&format!("\t{name:<width$}  {health}{gap}{aux}\n"));
    for top in vdevs.root.of_class(Class::Normal) {
        line(&mut text, name, top, 2, width);
    }
    for (title, members) in [("cache", &vdevs.l2cache), ("spares", &vdevs.spares)] {
        if !members.is_empty() {
            text.push_str(&format!("\t{title}\n"));
        }
        for vdev in members {
            text.push_str(&format!("\t  {}\n", vdev.name(name, flags)));
        }
    }
    for class in Class::SECTIONS {
        let mut members = vdevs.root.of_class(class).peekable();
        if members.peek().is_some() {
            text.push_str(&format!("\t{}\t\n", class.title()));
        }
        for vdev in members {
            line(&mut text, name, vdev, 2, width);
        }
    }
    text
}

fn line(text: &mut String, pool: &str, vdev: &Vdev, depth: usize, width: usize) {
    let mut shown = vdev.clone();
    // in this list a missing device is named by its path
    shown.not_present = false;
    let name = shown.name(pool, NameFlags::default());
    let aux = vdev.aux.message();
    let gap = if aux.is_empty() { "" } else { "  " };
    let room = width.saturating_sub(depth);
    text.push_str(&format!("\t{:depth$}{name:<room$}  {}{gap}{aux}\n", "", vdev.state.name()));
    for child in vdev.children.iter().filter(|c| !c.is_hidden()) {
        line(text, pool, child, depth + 2, width);
    }
}
