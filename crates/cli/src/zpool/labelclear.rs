//! `zpool labelclear`.

use std::path::{Path, PathBuf};

use ondisk::label::key;
use vdev::Access;
use vdev::create::InUse;
use vdev::{device, label};

use super::newdevs::owners;
use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, cause, failed, usage};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let names = call.args.names();
    let word = match names.as_slice() {
        [] => return Err(usage("missing vdev name")),
        [word] => word,
        _ => return Err(usage("too many arguments")),
    };
    let path = find(word)?;
    let shown = console::as_said(Path::new(word), &path);
    let shown = shown.display();
    let device = device::open(&path, Access::Read).map_err(|e| match &e {
        vdev::Error::Open { source, .. } => failed(format!("failed to open {shown}: {}", cause(source))),
        other => failed(format!("failed to open {shown}: {other}")),
    })?;
    if label::read_labels(&*device).iter().all(Result::is_err) {
        return Err(failed(format!("failed to read label from {shown}")));
    }
    check(&path, &shown, call.args.has('f'))?;
    let cleared = device::open(&path, Access::Write).and_then(|device| label::clear(&*device));
    cleared.map_err(|e| failed(format!("failed to clear label for {shown}: {e}")))?;
    Ok(0)
}

/// The device that a word names: a path, or a disk's short name.
fn find(word: &str) -> Result<PathBuf, Failure> {
    let in_dev = Path::new("/dev").join(word);
    match console::path(word) {
        path if path.exists() => Ok(path),
        _ if word.starts_with('/') => Err(failed(format!("failed to open {word}: No such file or directory"))),
        _ if in_dev.exists() => Ok(in_dev),
        _ => Err(failed(format!("failed to find device {word}, try specifying absolute path instead"))),
    }
}

/// Refuses to clear a device that a pool may need.
fn check(path: &Path, shown: &dyn std::fmt::Display, force: bool) -> Result<(), Failure> {
    let found =
        vdev::create::in_use_path(path).map_err(|e| failed(format!("failed to check state for {shown}: {e}")))?;
    let member = |what: &str, name: &str| {
        let hint = if force { ". Offline the disk first to clear its label." } else { "" };
        Err(failed(format!("{shown} is a member ({what}) of pool \"{name}\"{hint}")))
    };
    let aside = match &found {
        Some(InUse::Spare { leaf }) => Some(("SPARE", owners(*leaf, key::SPARES))),
        Some(InUse::L2cache { leaf }) => Some(("L2CACHE", owners(*leaf, key::L2CACHE))),
        _ => None,
    };
    if let Some((what, pools)) = aside {
        return pools.first().map_or(Ok(()), |name| member(what, name));
    }
    let Some(InUse::Pool { name, guid, state, .. }) = found else { return Ok(()) };
    let imported = here().all()?.iter().any(|pool| pool.guid == guid);
    if imported || state == "active" {
        return member("ACTIVE", &name);
    }
    if force {
        return Ok(());
    }
    Err(failed(format!("use '-f' to override the following error:\n{shown} is a member of {state} pool \"{name}\"")))
}
