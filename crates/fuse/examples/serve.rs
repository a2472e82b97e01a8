//! Serves a file system of a pool in one file until SIGINT or SIGTERM, or until somebody unmounts it: for running the suites of others by hand.
//!
//! `serve [-c BYTES] [-p PROPERTY=NUMBER]… [-o OPTION,…] IMAGE POOL[/DATASET][@SNAPSHOT] DIR`: `-c` makes the pool in a new file; options are `ro`,
//! `noatime`, `noexec`, `nosuid`, `nodev`. No lock keeps other processes from the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Env;
use fuse::{Mount, Options, Unmount};
use pool::{CreateOptions, Hooks, ImportOptions, Spa, Value};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};
use zpl::create::{FsProps, create_fs};
use zpl::live::{Still, Vfs, Zfs};

type Failure = Box<dyn std::error::Error>;

const USAGE: &str =
    "usage: serve [-c BYTES] [-p PROPERTY=NUMBER]... [-o OPTION,...] IMAGE POOL[/DATASET][@SNAPSHOT] DIR";

#[derive(Default)]
struct Args {
    create: Option<u64>,
    props: Vec<(String, u64)>,
    options: Vec<String>,
    operands: Vec<String>,
}

fn parse() -> Result<Args, Failure> {
    let (mut args, mut words) = (Args::default(), std::env::args().skip(1));
    while let Some(word) = words.next() {
        match word.as_str() {
            "-c" => args.create = Some(words.next().ok_or(USAGE)?.parse()?),
            "-p" => {
                let given = words.next().ok_or(USAGE)?;
                let (name, value) = given.split_once('=').ok_or(USAGE)?;
                args.props.push((name.to_owned(), value.parse()?));
            }
            "-o" => args.options.extend(words.next().ok_or(USAGE)?.split(',').map(str::to_owned)),
            _ => args.operands.push(word),
        }
    }
    Ok(args)
}

fn hooks() -> Hooks {
    Hooks { env: Env::system(), used_by: Some(Arc::new(zpl::UsedByBonus)), ..Hooks::default() }
}

fn create(image: &Path, pool: &str, bytes: u64, props: &[(String, u64)]) -> Result<Arc<Spa>, Failure> {
    let spec = VdevSpec::parse(&[image.display().to_string()])?;
    let open =
        |path: &str| -> Option<Arc<dyn Device>> { Some(Arc::new(FileDevice::create(Path::new(path), bytes).ok()?)) };
    let new = layout(&spec, &open, LayoutOptions { ashift: Some(12), ..LayoutOptions::default() }, &hooks().env)?;
    let mut create = CreateOptions::new(pool);
    create.fs_props = props.iter().map(|(name, value)| (name.clone(), Value::Number(*value))).collect();
    create.populate = Some(Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default())));
    Ok(Spa::create(new, create, hooks())?)
}

fn import(image: &Path) -> Result<Arc<Spa>, Failure> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(image)?);
    let found = vdev::import::scan_devices(vec![(image.to_owned(), device)]);
    let found = found.first().ok_or("no pool in the file")?;
    Ok(Spa::import(found, &ImportOptions::default(), hooks())?)
}

fn serve(spa: &Arc<Spa>, dataset: &str, dir: &Path, words: &[String]) -> Result<(), Failure> {
    let vfs: Arc<dyn Vfs> = if dataset.contains('@') {
        Arc::new(Still::open(&spa.view()?.dataset(dataset)?)?)
    } else {
        Arc::new(Zfs::open(spa, dataset)?)
    };
    let mut options = Options::new(dataset);
    for word in words {
        match word.as_str() {
            "ro" => options.read_only = true,
            "noatime" => options.atime = Some(false),
            "noexec" => options.exec = false,
            "nosuid" => options.setuid = false,
            "nodev" => options.devices = false,
            _ => return Err(format!("unknown option '{word}'").into()),
        }
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let mount = Arc::new(Mount::new(vfs, dir, &options)?);
    eprintln!("{dataset} is mounted at {}", mount.path().display());
    let (handle, at_signal) = (signals.handle(), mount.clone());
    let waiter = std::thread::Builder::new().spawn(move || {
        for _ in signals.forever() {
            match at_signal.unmount(Unmount::Idle) {
                Ok(()) => break,
                Err(error) => eprintln!("{error}"),
            }
        }
    })?;
    mount.wait()?;
    handle.close();
    let _ = waiter.join();
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args = parse()?;
    let [image, dataset, dir] = args.operands.as_slice() else { return Err(USAGE.into()) };
    let image = PathBuf::from(image);
    let name = dataset.split(['/', '@']).next().unwrap_or_default();
    let spa = match args.create {
        Some(bytes) => create(&image, name, bytes, &args.props)?,
        None => import(&image)?,
    };
    let served = serve(&spa, dataset, Path::new(dir), &args.options);
    spa.export()?;
    served
}
