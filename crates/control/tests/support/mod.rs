//! A pool that requests go to.

use std::path::Path;
use std::sync::Arc;

use base::Env;
use control::{Caller, Control};
use pool::{CreateOptions, Hooks, Spa};
use vdev::create::{LayoutOptions, NewPool, VdevSpec, layout};
use vdev::{Device, FileDevice};
use zpl::create::{FsProps, create_fs};

/// The pool `t` with an empty file system, on a file in `dir`.
pub(crate) fn pool(dir: &Path) -> Control {
    pool_with(dir, |_| {})
}

/// As [`pool`], of vdevs that `alter` has changed.
pub(crate) fn pool_with(dir: &Path, alter: impl FnOnce(&mut NewPool)) -> Control {
    std::fs::create_dir_all(dir).unwrap();
    let spec = VdevSpec::parse(&[dir.join("a").display().to_string()]).unwrap();
    let open = |path: &str| -> Option<Arc<dyn Device>> {
        Some(Arc::new(FileDevice::create(Path::new(path), 96 << 20).unwrap()))
    };
    let hooks = Hooks { env: Env::seeded(3), used_by: Some(Arc::new(zpl::UsedByBonus)), ..Hooks::default() };
    let mut new = layout(&spec, &open, LayoutOptions::default(), &hooks.env).unwrap();
    alter(&mut new);
    let mut options = CreateOptions::new("t");
    options.populate = Some(Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default())));
    Control::new(Spa::create(new, options, hooks).unwrap(), Caller::default())
}
