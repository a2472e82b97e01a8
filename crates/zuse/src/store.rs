//! A pool for programs: opening, creating, and its datasets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Env;
use codec::crypt::Suite;
use ondisk::ObjsetType;
use pool::{
    CreateOptions, Dataset, Hooks, ListOptions, OpenOptions, Populate, PropSource, Refusal, Spa, Value, WithoutKey,
    check_new_pool_name, prop,
};
use site::{Silent, Site};
use vdev::create::{LayoutOptions, VdevSpec, in_use_path, layout};
use vdev::import::{Candidate, scan};
use vdev::{Access, Device, MemoryDevice, device};
use zpl::create::{FsProps, create_fs, create_volume};
use zpl::live::Zfs;
use zpl::{FileSystem, UsedByBonus};

use crate::kept::Kept;
use crate::{CaughtUp, Error, Files, Key, Objects};

/// The size of a volume's blocks, unless told otherwise (OpenZFS: `ZVOL_DEFAULT_BLOCKSIZE`).
const VOLBLOCKSIZE: u64 = 16 << 10;
/// Values of property `encryption`: the usual cipher, and none.
const CRYPT_ON: u64 = 1;
const CRYPT_OFF: u64 = 2;
/// Value of property `casesensitivity`: names are the same in any case.
const CASE_INSENSITIVE: u64 = 1;

/// A pool that is open, for reading or for writing. Cheap to clone.
///
/// Changes are written when the last handle is dropped: of the pool, of its [`Files`] and [`Objects`]. An error then cannot be reported: to make
/// sure that everything is on disk, call [`Pool::sync`], or [`Pool::export`], which also lets other machines open the pool without forcing the
/// import.
///
/// ```
/// # fn main() -> Result<(), zuse::Error> {
/// let pool = zuse::Pool::in_memory("tank", 128 << 20)?;
/// pool.create("tank/home", &[])?;
/// pool.files("tank/home")?.write(b"hello.txt", b"Hello!\n")?;
/// pool.snapshot("tank/home@monday")?;
/// assert_eq!(pool.file_system("tank/home@monday")?.resolve(b"hello.txt")?.size(), 7);
/// pool.export()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Pool(Mode);

#[derive(Clone, Debug)]
enum Mode {
    Reading(Arc<pool::Pool>),
    Writing(Arc<Kept>),
}

/// The hooks through which the upper layers serve a pool that no other process can meet: it is new, or in memory.
fn hooks() -> Hooks {
    Hooks { used_by: Some(Arc::new(UsedByBonus)), ..Hooks::default() }
}

/// The site of a program that uses the library: it respects the processes that have the same pools, and is told nothing.
fn site() -> Site {
    Site::new(Arc::new(Silent))
}

impl Pool {
    /// Opens the pool on these devices (or files, or directories of them) for reading. Nothing is changed, not even that it was opened.
    ///
    /// # Errors
    /// [`Error::NoPool`], [`Error::SeveralPools`]; when the pool is damaged beyond reading.
    pub fn open<P: AsRef<Path>>(paths: &[P], name: Option<&str>) -> Result<Pool, Error> {
        Ok(Pool(Mode::Reading(site().read(|| find(paths, name), &OpenOptions::default())?)))
    }

    /// Opens the pool on these devices for writing. They are locked until it is closed. Devices that missed writes are resilvered: this waits a few
    /// seconds for the end, which [`Pool::caught_up`] tells. A resilver that takes longer, and a scrub that was not finished, go on in the
    /// background.
    ///
    /// # Errors
    /// As [`Pool::open`]; when another program or machine has the pool, or it uses features that are not written here.
    pub fn open_writable<P: AsRef<Path>>(paths: &[P], name: Option<&str>) -> Result<Pool, Error> {
        let spa = site::import::for_now(find(paths, name)?.lock()?, &(Arc::new(site::Silent) as _))?;
        // what is not done now is told by the pool's health, and does not keep anybody from working
        let _told = crate::catch_up(&spa);
        Ok(Pool::of_spa(spa))
    }

    /// Returns whether all writable devices are up to date; if not, a resilver may be running ([`Pool::scan`]), or
    /// [`Pool::resilver`] can be called.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the pool was opened for reading.
    pub fn caught_up(&self) -> Result<CaughtUp, Error> {
        Ok(CaughtUp::of(self.spa()?))
    }

    /// Makes a pool of vdevs as `zpool create` takes them: `["mirror", "/a.img", "/b.img"]`. Files of `file_size` bytes are made of paths that do
    /// not exist.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let (a, b) = (dir.path().join("a.img"), dir.path().join("b.img"));
    /// # let (a, b) = (a.to_str().unwrap_or_default(), b.to_str().unwrap_or_default());
    /// let pool = zuse::Pool::create_new("tank", &["mirror", a, b], 128 << 20)?;
    /// pool.export()?;
    /// let again = zuse::Pool::open(&[a, b], None)?;
    /// assert_eq!(again.name(), "tank");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InUse`] if there is a pool, or a file system, on one of them; [`Error::Layout`], [`Error::Devices`].
    pub fn create_new(name: &str, vdevs: &[&str], file_size: u64) -> Result<Pool, Error> {
        check_name(name)?;
        let words: Vec<String> = vdevs.iter().map(|word| (*word).to_owned()).collect();
        let spec = VdevSpec::parse(&words)?;
        let is_there = |path: &str| device::exists(Path::new(path));
        for (path, _) in spec.paths().filter(|(path, _)| is_there(path)) {
            let found = in_use_path(Path::new(path))?;
            if let Some(why) = found.and_then(|found| found.refusal(path, true, false, false)) {
                return Err(Error::InUse { why });
            }
        }
        let mut new = NewFiles::default();
        let mut open = |(path, _): (&str, bool)| -> Result<(String, Arc<dyn Device>), vdev::Error> {
            let file = Path::new(path);
            let device = match is_there(path) {
                true => device::open(file, Access::Write)?,
                false => new.create(file, file_size)?,
            };
            Ok((path.to_owned(), device))
        };
        let devices: Vec<_> = spec.paths().map(&mut open).collect::<Result<_, _>>()?;
        let pool = make(name, &spec, &devices, hooks())?;
        new.keep();
        Ok(pool)
    }

    /// Makes a pool of `bytes` bytes of memory, which is gone with it. For tests and experiments.
    ///
    /// # Errors
    /// When it is too small (64 MiB at least).
    pub fn in_memory(name: &str, bytes: u64) -> Result<Pool, Error> {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::writable(bytes).named("memory"));
        let words = ["memory".to_owned()];
        make(name, &VdevSpec::parse(&words)?, &[("memory".to_owned(), device)], hooks())
    }

    /// A pool that was opened by other means, for writing.
    #[must_use]
    pub fn of_spa(spa: Arc<Spa>) -> Pool {
        Pool(Mode::Writing(Kept::new(spa)))
    }

    /// The pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            Mode::Reading(pool) => pool.name(),
            Mode::Writing(spa) => spa.name(),
        }
    }

    /// The pool as it is on disk now, for reading: space, features, history, properties, and all else that can be asked.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn view(&self) -> Result<Arc<pool::Pool>, Error> {
        match &self.0 {
            Mode::Reading(pool) => Ok(pool.clone()),
            Mode::Writing(spa) => Ok(spa.view()?),
        }
    }

    /// The engine that writes the pool, with all its operations.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the pool was opened for reading.
    pub fn spa(&self) -> Result<&Arc<Spa>, Error> {
        self.kept().map(|kept| &**kept as &Arc<Spa>)
    }

    fn kept(&self) -> Result<&Arc<Kept>, Error> {
        match &self.0 {
            Mode::Writing(kept) => Ok(kept),
            Mode::Reading(pool) => Err(Error::ReadOnly { pool: pool.name().to_owned() }),
        }
    }

    /// Waits until all changes are on disk.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn sync(&self) -> Result<(), Error> {
        match &self.0 {
            Mode::Writing(spa) => Ok(spa.sync()?),
            Mode::Reading(_) => Ok(()),
        }
    }

    /// Writes everything, and lets the pool go: it can be opened anywhere.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn export(&self) -> Result<(), Error> {
        match &self.0 {
            Mode::Writing(spa) => Ok(spa.export()?),
            Mode::Reading(_) => Ok(()),
        }
    }
}

/// Datasets. Names are full: `tank/home`, `tank/home@monday`.
impl Pool {
    /// A dataset or snapshot, as it is on disk: its properties, space, snapshots, clones.
    ///
    /// # Errors
    /// If there is none.
    pub fn dataset(&self, name: &str) -> Result<Dataset, Error> {
        Ok(self.view()?.dataset(name)?)
    }

    /// The names of `top` and all datasets below it, in the order of `zfs list`.
    ///
    /// # Errors
    /// If there is no dataset `top`.
    pub fn datasets(&self, top: &str) -> Result<Vec<String>, Error> {
        let all = self.view()?.list(top, &ListOptions::DATASETS)?;
        Ok(all.iter().filter_map(pool::Entry::dataset).map(|dataset| dataset.name().to_owned()).collect())
    }

    /// The names of the snapshots of a dataset, without what stands before the `@`, the oldest first.
    ///
    /// # Errors
    /// If there is no such dataset.
    pub fn snapshots(&self, dataset: &str) -> Result<Vec<String>, Error> {
        let all = self.dataset(dataset)?.snapshots()?;
        Ok(all.iter().map(|snapshot| snapshot.short_name().to_owned()).collect())
    }

    /// Makes a file system with these properties. A property with words takes the word or its number, any other one the number or text that
    /// the format has. Below an encrypted file system it is encrypted with the same key; for one with a key of its own see
    /// [`Pool::create_encrypted`].
    ///
    /// # Errors
    /// If the name is taken, its parent missing, a property no property or its value none that it can have; if `encryption` is asked for and
    /// there is no key to inherit.
    pub fn create(&self, name: &str, props: &[(&str, Value)]) -> Result<(), Error> {
        self.make_fs(name, Said::new(props)?, None)
    }

    /// Makes a volume of `size` bytes.
    ///
    /// # Errors
    /// As [`Pool::create`]; if the size is no multiple of the block size.
    pub fn create_volume(&self, name: &str, size: u64, props: &[(&str, Value)]) -> Result<(), Error> {
        self.make_volume(name, size, Said::new(props)?, None)
    }

    pub(crate) fn make_fs(&self, name: &str, mut said: Said, key: Option<&Key>) -> Result<(), Error> {
        let above = name.rsplit_once('/').and_then(|(parent, _)| self.dataset(parent).ok());
        let above = above.map(|parent| parent.zpl_props()).transpose()?.flatten();
        // what is fixed for good is as it is said, else as above
        let mut pick = |name: &str| {
            let inherited = || above.as_ref().and_then(|zpl| zpl.get(name));
            said.take_number(name).or_else(inherited).unwrap_or(0)
        };
        let normalization = pick("normalization");
        let props = FsProps {
            normalization,
            utf8only: pick("utf8only") != 0 || normalization != 0,
            casesensitivity: pick("casesensitivity"),
            ..root_of(&Env::system())
        };
        let props = FsProps { version: said.take_number("version").unwrap_or(props.version), ..props };
        let ignores_case = props.casesensitivity == CASE_INSENSITIVE;
        let init: Populate = Box::new(move |objset, tx| create_fs(objset, tx, &props));
        self.make_dataset(name, (ObjsetType::Zfs, ignores_case), said, key, init)
    }

    pub(crate) fn make_volume(&self, name: &str, size: u64, mut said: Said, key: Option<&Key>) -> Result<(), Error> {
        let block = said.take_number("volblocksize").unwrap_or(VOLBLOCKSIZE);
        said.0.retain(|(name, _)| name != "volsize");
        said.0.extend([("volsize".to_owned(), Value::Number(size)), ("volblocksize".to_owned(), Value::Number(block))]);
        let init: Populate = Box::new(move |objset, tx| create_volume(objset, tx, size, block));
        self.make_dataset(name, (ObjsetType::Zvol, false), said, key, init)
    }

    fn make_dataset(
        &self,
        name: &str,
        (os_type, ignores_case): (ObjsetType, bool),
        mut said: Said,
        key: Option<&Key>,
        init: Populate,
    ) -> Result<(), Error> {
        let crypt = said.take_number("encryption");
        let cipher = match crypt {
            None | Some(CRYPT_OFF) => None,
            Some(CRYPT_ON) => Some(Suite::Aes256Gcm),
            Some(n) => Some(Suite::from_u64(n).ok_or_else(|| refused("encryption", "no such cipher"))?),
        };
        if crypt == Some(CRYPT_OFF) && key.is_some() {
            return Err(refused("encryption", "a key for what is not encrypted"));
        }
        if key.is_none() && said.0.iter().any(|(name, _)| name == "keylocation") {
            return Err(refused("keylocation", "the place of a key that is not there"));
        }
        let without_key = match (crypt, cipher) {
            (Some(CRYPT_OFF), _) => WithoutKey::Off,
            (_, Some(cipher)) => WithoutKey::Cipher(cipher),
            _ => WithoutKey::Inherit,
        };
        let key = key.map(|key| key.for_new(cipher.unwrap_or(Suite::Aes256Gcm), &mut said)).transpose()?;
        let new = pool::NewDataset { name: name.to_owned(), os_type, props: said.0, key, without_key, ignores_case };
        Ok(self.spa()?.create_dataset(new, init)?)
    }

    /// Takes a snapshot `dataset@name`.
    ///
    /// # Errors
    /// If the name is taken, the dataset missing.
    pub fn snapshot(&self, name: &str) -> Result<(), Error> {
        Ok(self.spa()?.snapshot(&[name.to_owned()], &[])?)
    }

    /// Makes the dataset `name` from a snapshot; both share what neither changes.
    ///
    /// # Errors
    /// If the snapshot is missing, the name taken.
    pub fn clone_snapshot(&self, snapshot: &str, name: &str) -> Result<(), Error> {
        Ok(self.spa()?.clone_dataset(snapshot, name, Vec::new())?)
    }

    /// Turns a clone and its origin around: the clone takes the snapshots.
    ///
    /// # Errors
    /// If it is no clone, or names of snapshots collide.
    pub fn promote(&self, clone: &str) -> Result<(), Error> {
        Ok(self.spa()?.promote(clone)?)
    }

    /// Renames a dataset.
    ///
    /// # Errors
    /// If the new name is taken, or in another pool.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        Ok(self.spa()?.rename(from, to)?)
    }

    /// Takes a dataset back to its latest snapshot. Open [`Files`] and [`Objects`] of it must be opened anew.
    ///
    /// # Errors
    /// If it has none.
    pub fn rollback(&self, dataset: &str) -> Result<String, Error> {
        Ok(self.spa()?.rollback(dataset, None)?)
    }

    /// Destroys a snapshot, or a dataset that has neither snapshots nor children.
    ///
    /// # Errors
    /// If something stands on it.
    pub fn destroy(&self, name: &str) -> Result<(), Error> {
        let spa = self.spa()?;
        match name.contains('@') {
            true => Ok(spa.destroy_snapshots(&[name.to_owned()], false)?),
            false => Ok(spa.destroy_head(name)?),
        }
    }

    /// The value of a property, its default included.
    ///
    /// # Errors
    /// If there is no such dataset.
    pub fn get(&self, dataset: &str, prop: &str) -> Result<Option<Value>, Error> {
        Ok(self.dataset(dataset)?.prop(prop)?.map(|prop| prop.value))
    }

    /// Sets properties, all or none: values as [`Pool::create`] takes them. A name with a colon is a property of one's own.
    ///
    /// ```
    /// # fn main() -> Result<(), zuse::Error> {
    /// # let pool = zuse::Pool::in_memory("tank", 128 << 20)?;
    /// use zuse::pool::Value;
    /// pool.set("tank", &[("org.example:owner", Value::String("me".into()))])?;
    /// assert_eq!(pool.get("tank", "org.example:owner")?.map(|v| v.to_string()), Some("me".into()));
    /// # pool.export()
    /// # }
    /// ```
    ///
    /// # Errors
    /// If a value cannot be; then none is set.
    pub fn set(&self, dataset: &str, props: &[(&str, Value)]) -> Result<(), Error> {
        Ok(self.spa()?.set_props(dataset, &Said::new(props)?.0, PropSource::Local)?)
    }
}

/// Contents of datasets.
impl Pool {
    /// The files of a file system, to be changed.
    ///
    /// # Errors
    /// If it is none, or a snapshot; if its key is not loaded.
    pub fn files(&self, dataset: &str) -> Result<Files, Error> {
        let kept = self.kept()?;
        Ok(Files::of_pool(Zfs::open(kept, dataset)?, kept.clone()))
    }

    /// The files of a file system or snapshot as they are on disk, to be read.
    ///
    /// # Errors
    /// As [`Pool::files`].
    pub fn file_system(&self, dataset: &str) -> Result<FileSystem, Error> {
        Ok(FileSystem::open(&self.dataset(dataset)?)?)
    }

    /// The raw objects of a file system, to be changed. See [`Objects`].
    ///
    /// # Errors
    /// As [`Pool::files`].
    pub fn objects(&self, dataset: &str) -> Result<Objects, Error> {
        Objects::of_pool(self.kept()?, dataset)
    }

    /// The raw objects of a file system or snapshot as they are on disk, to be read.
    ///
    /// # Errors
    /// As [`Pool::files`].
    pub fn objects_at(&self, dataset: &str) -> Result<Objects, Error> {
        Objects::read(&self.dataset(dataset)?)
    }
}

/// Files that were made for a pool: they go if it does not come to be.
#[derive(Default)]
struct NewFiles(Vec<PathBuf>);

impl NewFiles {
    fn create(&mut self, path: &Path, size: u64) -> Result<Arc<dyn Device>, vdev::Error> {
        let device = device::open(path, Access::Create(size))?;
        self.0.push(path.to_owned());
        Ok(device)
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            // the error that is told is the one that led here
            let _ = device::remove(path);
        }
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    check_new_pool_name(name).map_err(|why| Error::PoolName { name: name.to_owned(), why })
}

/// Properties as a program says them, each with a value that it can have: the word of a property is its number.
#[derive(Debug, Default)]
pub(crate) struct Said(Vec<(String, Value)>);

impl Said {
    pub(crate) fn new(props: &[(&str, Value)]) -> Result<Said, Error> {
        let mut said = Vec::with_capacity(props.len());
        for (name, value) in props {
            let word = value.text().and_then(|text| prop::find(name)?.index_value(text));
            let value = word.map_or_else(|| value.clone(), Value::Number);
            prop::check_value(name, &value).map_err(|bad| refused(name, bad.why()))?;
            said.push(((*name).to_owned(), value));
        }
        Ok(Said(said))
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        let place = self.0.iter().position(|(said, _)| said == name)?;
        Some(self.0.remove(place).1)
    }

    pub(crate) fn take_number(&mut self, name: &str) -> Option<u64> {
        self.take(name)?.number()
    }
}

fn refused(name: &str, why: &'static str) -> Error {
    pool::Error::Refused { name: name.to_owned(), why: Refusal::Invalid(why) }.into()
}

fn find<P: AsRef<Path>>(paths: &[P], name: Option<&str>) -> Result<Candidate, Error> {
    let paths: Vec<PathBuf> = paths.iter().map(|path| path.as_ref().to_owned()).collect();
    let mut found = scan(&paths)?;
    found.retain(|candidate| name.is_none_or(|name| candidate.name == name));
    if found.len() > 1 {
        return Err(Error::SeveralPools { names: found.into_iter().map(|candidate| candidate.name).collect() });
    }
    found.pop().ok_or(Error::NoPool { name: name.map(str::to_owned) })
}

fn make(name: &str, spec: &VdevSpec, devices: &[(String, Arc<dyn Device>)], hooks: Hooks) -> Result<Pool, Error> {
    check_name(name)?;
    let find = |path: &str| devices.iter().find(|(p, _)| p == path).map(|(_, device)| device.clone());
    let new = layout(spec, &find, LayoutOptions::default(), &hooks.env)?;
    let options = CreateOptions { populate: Some(new_root(&hooks.env)), ..CreateOptions::new(name) };
    Ok(Pool::of_spa(Spa::create(new, options, hooks)?))
}

/// Fills the file system of a new pool.
fn new_root(env: &Env) -> Populate {
    let props = root_of(env);
    Box::new(move |objset, tx| create_fs(objset, tx, &props))
}

/// The root directory of a new file system is of whoever runs the program.
fn root_of(env: &Env) -> FsProps {
    FsProps {
        uid: rustix::process::getuid().as_raw().into(),
        gid: rustix::process::getgid().as_raw().into(),
        now: env.now(),
        ..FsProps::default()
    }
}
