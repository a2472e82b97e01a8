//! `zpool create`.

use std::path::PathBuf;

use base::Errno;
use control::Control;
use nvlist::{NvList, Value as Nv};
use pool::feature::{self, FEATURES};
use pool::{Kind, Value};
use site::{Imported, records};
use vdev::create::Group;

use super::newdevs::NewVdevs;
use crate::args::{Parsed, SIZE};
use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, cause, failed, usage};
use crate::keys::{self, Material};
use crate::props::compat::Compat;
use crate::props::dataset;
use crate::props::pool::{self as pool_props, LATER, When};
use crate::props::valid::{Target, valid};
use crate::props::{Said, values};
use crate::{messages, names, pools, writable, zfs};

/// The version of pools with features.
const VERSION_FEATURES: u64 = 5000;
/// The version of new file systems (OpenZFS: `ZPL_VERSION`).
const ZPL_VERSION: u64 = 5;

/// The options of the command.
#[derive(Debug, Default)]
struct Options {
    force: bool,
    dry_run: bool,
    no_features: bool,
    size: Option<u64>,
    temporary: Option<String>,
    altroot: Option<String>,
    compat: Option<String>,
    mountpoint: Option<String>,
    props: Vec<Said>,
    fs_props: Vec<Said>,
}

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let mut options = options(&call.args)?;
    let operands = call.args.names();
    let Some((name, words)) = operands.split_first() else { return Err(usage("missing pool name argument")) };
    if words.is_empty() {
        return Err(usage("missing vdev specification"));
    }
    if name.contains('/') {
        return Err(failed(format!(
            "cannot create '{name}': invalid character '/' in pool name\nuse 'zfs create' to create a dataset"
        )));
    }
    let new = NewVdevs::find(words, options.size)?;
    new.check(None, options.force)?;
    if new.spec.tops.is_empty() {
        return Err(failed("invalid vdev specification: at least one toplevel vdev must be specified"));
    }
    check_mountpoint(&options, name)?;
    if let Some(mountpoint) = options.mountpoint.take() {
        dataset::add(&mut options.fs_props, "mountpoint", &mountpoint).map_err(failed)?;
    }
    if options.dry_run {
        print!("would create '{name}' with the following layout:\n\n{}", new.show(name));
        return Ok(0);
    }
    create(name, &new, &options)?;
    Ok(0)
}

/// Parses the options, in the order in which they were given: the first error is reported.
fn options(args: &Parsed) -> Result<Options, Failure> {
    let mut options =
        Options { force: args.has('f'), dry_run: args.has('n'), no_features: args.has('d'), ..Options::default() };
    for (option, value) in &args.options {
        let value = value.to_string_lossy();
        match option {
            'R' => {
                pool_props::add(&mut options.props, "altroot", &value).map_err(failed)?;
                options.altroot = Some(value.into_owned());
            }
            'm' => options.mountpoint = Some(value.into_owned()),
            'o' => options.pool_property(&value)?,
            'O' => {
                let said = value.split_once('=').ok_or_else(|| failed("missing '=' for -O option"))?;
                match said {
                    ("mountpoint", path) => options.mountpoint = Some(path.to_owned()),
                    (name, value) => dataset::add(&mut options.fs_props, name, value).map_err(failed)?,
                }
            }
            't' => {
                if value.contains('/') {
                    return Err(failed(format!(
                        "cannot create '{value}': invalid character '/' in temporary name\n\
                         use 'zfs create' to create a dataset"
                    )));
                }
                pool_props::add(&mut options.props, "tname", &value).map_err(failed)?;
                options.temporary = Some(value.into_owned());
            }
            &SIZE => options.size = Some(values::number(&value).map_err(|why| usage(format!("--size: {why}")))?),
            _ => {}
        }
    }
    Ok(options)
}

impl Options {
    fn pool_property(&mut self, said: &str) -> Result<(), Failure> {
        let (name, value) = said.split_once('=').ok_or_else(|| failed("missing '=' for -o option"))?;
        pool_props::add(&mut self.props, name, value).map_err(failed)?;
        match name {
            "version" if value.parse().is_ok_and(|version: u64| version < VERSION_FEATURES) => self.no_features = true,
            "altroot" => self.altroot = Some(value.to_owned()),
            "compatibility" => self.compat = Some(value.to_owned()),
            _ => {}
        }
        Ok(())
    }
}

/// Refuses a mount point that is in use: mounting would hide the files there.
fn check_mountpoint(options: &Options, pool: &str) -> Result<(), Failure> {
    let root = options.altroot.as_deref().unwrap_or("");
    if options.altroot.is_some() && !root.starts_with('/') {
        return Err(failed(format!("invalid alternate root '{root}': must be an absolute path")));
    }
    let place = match options.mountpoint.as_deref() {
        Some("legacy" | "none") => return Ok(()),
        Some(path) if !path.starts_with('/') => {
            return Err(failed(format!("invalid mountpoint '{path}': must be an absolute path, 'legacy', or 'none'")));
        }
        Some(path) => format!("{root}{path}"),
        None => format!("{root}/{pool}"),
    };
    match std::fs::read_dir(&place).map(|mut entries| entries.next().is_some()) {
        Ok(true) => Err(failed(format!(
            "mountpoint '{place}' exists and is not empty\nuse '-m' option to provide a different default"
        ))),
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(failed(format!("mountpoint '{place}' : {}\nuse '-m' option to provide a different default", cause(&e))))
        }
        _ => Ok(()),
    }
}

fn create(name: &str, new: &NewVdevs, options: &Options) -> Result<(), Failure> {
    let compat = match options.compat.as_deref() {
        Some(value) => Compat::load_and_tell(value).map_err(failed)?,
        None => Compat::all(),
    };
    let mut features = features(options, &compat);
    let doing = format!("cannot create '{name}'");
    let cannot = |why: String| failed(format!("{doing}: {why}"));
    for name in [Some(name), options.temporary.as_deref()].into_iter().flatten() {
        names::check_new_pool(name).map_err(|why| cannot(format!("{why}\npool name may have been omitted")))?;
    }
    let props = pool_props::check(&options.props, When::Create, name, 1).map_err(cannot)?;
    let mut root = root_props(options).map_err(cannot)?;
    check_versions(&props, &root, &features).map_err(cannot)?;
    let encrypts = enabled_with(&features).contains(&"encryption");
    let visible = options.temporary.as_deref().unwrap_or(name);
    let check_name = || match here().find(visible)? {
        Some(_) => Err(cannot("pool already exists".to_owned())),
        None => Ok(()),
    };
    check_name()?;
    let domains = |top: &vdev::create::TopSpec| match top.group {
        Group::Draid(draid) => draid.nchildren != top.paths.len() as u64,
        _ => false,
    };
    if new.spec.tops.iter().any(domains) {
        features.extend(LATER);
    }
    if new.has_duplicates() {
        return Err(cannot(
            "one or more vdevs refer to the same device, or one of\nthe devices is part of an active md or lvm device"
                .to_owned(),
        ));
    }
    let shared = new.shared_spares();
    let made = new.create_files().map_err(|e| cannot(of_device(&e)))?;
    let devices: Vec<PathBuf> = new.spec.paths().map(|(path, _)| PathBuf::from(path)).collect();
    let key = keys::for_new_pool(&mut root, encrypts).map_err(cannot)?;
    let ashift = props.iter().find(|(name, _)| name == "ashift").and_then(|(_, value)| value.number());
    let mut input = new.request(ashift.filter(|ashift| *ashift != 0), &shared);
    input.insert("props", pool_props_list(options, &features, props, &root, key.as_ref()));
    // time may have passed while the key was typed
    let names = records::reserve(&**here().front(), visible, None)?;
    check_name()?;
    let control = make(name, &input).map_err(cannot)?;
    let spa = control.spa();
    made.keep();
    let load_guid = spa.view().map_or(0, |view| view.load_guid());
    let record = Imported {
        guid: spa.guid(),
        name: visible.to_owned(),
        name_on_disk: name.to_owned(),
        devices,
        readonly: false,
        altroot: options.altroot.clone(),
        load_guid,
        ..Imported::default()
    };
    let remembered = here().remember_new(&record, spa);
    drop(names);
    writable::close(spa, &doing)?;
    remembered?;
    if let Some(key) = &key {
        let location = root.get_str("keylocation").unwrap_or("prompt");
        keys::remember_change(visible, &pools::query(&record)?, Some((location, key)))?;
    }
    zfs::mount_root(visible, spa)
}

/// The properties of the root file system.
fn root_props(options: &Options) -> Result<NvList, String> {
    let zoned = options.fs_props.iter().any(|(name, value)| name == "zoned" && value == "on");
    let target = Target { kind: Kind::Filesystem, existing: None, large_blocks: true, zoned, key_params: true };
    let props = valid(&options.fs_props, &target)?;
    match props.get_u64("version").filter(|version| *version != ZPL_VERSION) {
        Some(version) => {
            Err(format!("file systems of version {version} are read by this version of Zuse, and not made"))
        }
        None => Ok(props),
    }
}

/// The features of the new pool: all that are allowed, except those that the user set.
fn features(options: &Options, compat: &Compat) -> Vec<&'static str> {
    let mut features = Vec::new();
    for def in FEATURES {
        let property = format!("feature@{}", def.name);
        let said = options.props.iter().find(|(name, _)| *name == property).map(|(_, value)| value.as_str());
        let by_default = !options.no_features && compat.allows(def) && !LATER.contains(&def.name);
        if said == Some("enabled") && !compat.allows(def) {
            eprintln!("Warning: feature \"{}\" enabled but is not in specified 'compatibility' feature set.", def.name);
        }
        if said.map_or(by_default, |said| said == "enabled") {
            features.push(def.name);
        }
    }
    features
}

/// Checks that the pool will have the features that its properties need.
fn check_versions(props: &[(String, Value)], root: &NvList, features: &[&'static str]) -> Result<(), String> {
    let version = props.iter().find(|(name, _)| name == "version").and_then(|(_, value)| value.number());
    if version.is_some_and(|version| version < VERSION_FEATURES) {
        return Err("pools without feature flags are read by this version of Zuse, and not made".to_owned());
    }
    let enabled = enabled_with(features);
    // encryption has a more specific message where the key is read
    let lacks = |(name, value): (&str, &Nv)| match value {
        Nv::Uint64(n) if name != "encryption" => {
            dataset::feature_of(name, &Value::Number(*n)).is_some_and(|feature| !enabled.contains(&feature))
        }
        _ => false,
    };
    match root.iter().any(lacks) {
        true => Err("operation not supported on this type of pool".to_owned()),
        false => Ok(()),
    }
}

/// The features, with those they depend on.
fn enabled_with(features: &[&'static str]) -> Vec<&'static str> {
    let mut enabled = features.to_vec();
    let mut at = 0;
    while let Some(def) = enabled.get(at).and_then(|name| feature::by_name(name)) {
        at += 1;
        let more: Vec<&'static str> = def.depends.iter().copied().filter(|name| !enabled.contains(name)).collect();
        enabled.extend(more);
    }
    enabled
}

/// The properties of a request, with those of the root file system and its key.
fn pool_props_list(
    options: &Options,
    features: &[&'static str],
    props: Vec<(String, Value)>,
    root: &NvList,
    key: Option<&Material>,
) -> NvList {
    let kept = |(name, _): &(String, Value)| !pool_props::is_transient(name) && !pool_props::is_feature(name);
    let mut list = NvList::new();
    for (name, value) in props.into_iter().filter(kept) {
        match value {
            Value::Number(n) => list.insert(&name, n),
            Value::String(text) => list.insert(&name, text),
        }
    }
    features.iter().for_each(|feature| list.insert(format!("feature@{feature}"), 0u64));
    options.altroot.iter().for_each(|altroot| list.insert("altroot", altroot));
    list.insert("root-props-nvl", root.clone());
    key.into_iter().for_each(|key| list.insert("hidden_args", key.hidden()));
    list
}

/// Creates the pool; its root file system belongs to the user who runs the command. Errors are in OpenZFS's words.
fn make(name: &str, input: &NvList) -> Result<Control, String> {
    here().create_pool(name, input, console::user()).map_err(|e| match (e.errno, *e.error) {
        (Errno::ENOSPC, _) => "one or more devices is out of space".to_owned(),
        (_, control::Error::Pool(e)) => messages::why(&e),
        (_, control::Error::Device(e)) => of_device(&e),
        (_, other) => other.to_string(),
    })
}

/// The error of a device, in OpenZFS's words.
pub(super) fn of_device(e: &vdev::Error) -> String {
    match e {
        vdev::Error::BelowMinimum { .. } => "one or more devices is less than the minimum size (64M)".to_owned(),
        vdev::Error::TooSmall { .. } => "one or more devices is less than the minimum size (64M)".to_owned(),
        vdev::Error::Busy { path, holder } => format!("{path} is in use{holder}"),
        vdev::Error::Open { path, source } => format!("cannot open '{path}': {}", cause(source)),
        other => other.to_string(),
    }
}
