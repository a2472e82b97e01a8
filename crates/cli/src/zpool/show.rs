//! The output of `zpool import` for pools that could be imported (OpenZFS: `show_import`).

use control::stats::{Activity, VdevStats};
use control::{Failed, Ioc};
use nvlist::NvList;
use ondisk::label::key;
use site::Session;
use site::import::{is_foreign, trial};
use site::tryimport::{
    AUX, AUX_BAD_GUID_SUM, AUX_NO_REPLICAS, AUX_UNSUP_FEAT, AUX_VERSION_NEWER, LOAD_INFO, OLDER_STATE, UNSUP_FEAT,
};
use vdev::import::{Candidate, PoolState};
use vdev::{VdevAux, VdevState};

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

impl View {
    /// Reads them from a configuration ([`Ioc::PoolTryImport`]). `foreign` says whether another host uses the pool.
    pub(super) fn of(config: &NvList, foreign: bool) -> View {
        let info = config.get_nvlist(LOAD_INFO);
        let root = config.get_nvlist(key::VDEV_TREE);
        let vdevs = root.and_then(|_| Vdevs::of(config).ok());
        let mut view = View {
            state: VdevState::CantOpen,
            aux: "corrupted data",
            faulted: true,
            reason: Reason::CorruptPool,
            vdevs,
            features: Vec::new(),
            comment: config.get_str(key::COMMENT).map(str::to_owned),
        };
        let Some(aux) = info.and_then(|info| info.get_u64(AUX)) else {
            let (state, aux) = root.map(VdevStats::of).unwrap_or_default().health();
            if let Some(vdevs) = &view.vdevs {
                view.reason = reason::of_pool(config, vdevs, &Activity::of(config), 0, Some(foreign));
            }
            return View { state, aux: aux.message(), faulted: false, ..view };
        };
        let is_older = info.is_some_and(|info| info.contains(OLDER_STATE));
        let (reason, aux) = match aux {
            AUX_VERSION_NEWER => (Reason::VersionNewer, "newer version"),
            AUX_UNSUP_FEAT => (Reason::UnsupportedFeature, "unsupported feature(s)"),
            AUX_BAD_GUID_SUM if is_older => (Reason::OlderState, "missing device"),
            AUX_BAD_GUID_SUM => (Reason::BadGuidSum, "missing device"),
            AUX_NO_REPLICAS => {
                let reason = view.vdevs.as_ref().map_or(Reason::CorruptPool, |vdevs| reason::of_vdevs(vdevs, false, 0));
                let none = reason == Reason::MissingDevReplicated;
                (if none { Reason::MissingDev } else { reason }, VdevAux::NoReplicas.message())
            }
            _ => return view,
        };
        let features = info.and_then(|info| info.get_nvlist(UNSUP_FEAT));
        view.features = features.into_iter().flatten().map(|(feature, _)| feature.to_owned()).collect();
        View { reason, aux, faulted: false, ..view }
    }
}

fn look(session: &Session, candidate: &Candidate) -> Result<View, Failed> {
    let foreign = candidate.state == PoolState::Active && candidate.hostid.unwrap_or(0) != 0 && is_foreign(candidate);
    Ok(View::of(&session.call(Ioc::PoolTryImport, "", &trial(candidate))?, foreign))
}

/// A candidate as `zpool import` shows it (OpenZFS: `show_import`).
pub(super) fn show(session: &Session, candidate: &Candidate) -> Result<String, Failed> {
    let view = look(session, candidate)?;
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
    Ok(text)
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
