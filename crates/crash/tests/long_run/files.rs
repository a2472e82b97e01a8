//! Threads that change the files of a directory of their own, and the comparison of a file system with what they expect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crash::Rng;
use parking_lot::Mutex;
use zuse::zpl::live::{Cred, NewFile};
use zuse::zpl::{FileSystem, Kind};

use crate::access::{Access, ByEngine, Mounted};
use crate::content::Content;
use crate::world::{Fs, Work, World, failed};

/// Expected files of a directory. Contents are shared with snapshots of the model.
pub type Dir = BTreeMap<String, Arc<Content>>;

/// Names that a writer uses.
const NAMES: u64 = 12;
/// The longest file, in bytes.
pub const FILE_MAX: usize = 384 << 10;
/// The longest write, in bytes.
const WRITE_MAX: u64 = 96 << 10;

/// A thread that changes files.
pub struct Writer<'a> {
    world: &'a World,
    fs: &'a Fs,
    dir: Box<dyn Access + 'a>,
    model: Arc<Mutex<Dir>>,
    rng: Rng,
}

impl<'a> Writer<'a> {
    pub fn new(world: &'a World, n: u64, seed: u64) -> Writer<'a> {
        let fs = &world.file_systems[n as usize % world.file_systems.len()];
        let name = format!("dir{n}");
        let _quiet = fs.quiet.read();
        let new = NewFile::new(Kind::Directory, 0o755);
        let dir = fs.zfs.create(&Cred::ROOT, fs.zfs.fs().root(), name.as_bytes(), &new).unwrap().0;
        // half of the writers of a file system that is mounted work there
        let is_mounted = (n + n / 8) % 2 == 1;
        let dir: Box<dyn Access> = match fs.mount.as_ref().filter(|_| is_mounted) {
            Some(mount) => Box::new(Mounted { dir: mount.path().join(&name) }),
            None => Box::new(ByEngine { zfs: &fs.zfs, dir }),
        };
        let model = Arc::new(Mutex::new(Dir::new()));
        fs.dirs.lock().insert(name, model.clone());
        Writer { world, fs, dir, model, rng: Rng::new(seed) }
    }

    fn name(&self) -> String {
        format!("f{}", self.rng.below(NAMES))
    }

    /// Makes the file if it is not there.
    fn file(&self, name: &str) -> Result<(), String> {
        if !self.model.lock().contains_key(name) {
            self.dir.create(name)?;
            self.model.lock().insert(name.to_owned(), Arc::default());
        }
        Ok(())
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some(data) = self.model.lock().get_mut(name) {
            Arc::make_mut(data).change(change);
        }
    }

    fn write(&self, name: &str, sync: bool) -> Result<(), String> {
        self.file(name)?;
        let offset = self.rng.below(FILE_MAX as u64);
        let len = (1 + self.rng.below(WRITE_MAX)).min(FILE_MAX as u64 - offset) as usize;
        let mut data = vec![0; len];
        self.rng.fill(&mut data);
        // half of it compresses
        data.iter_mut().skip(len / 2).for_each(|byte| *byte &= 3);
        let began = Instant::now();
        self.dir.write(name, offset, &data, sync)?;
        self.world.figures.wrote(began.elapsed(), sync);
        self.change(name, |whole| {
            let (from, to) = (offset as usize, offset as usize + len);
            whole.resize(whole.len().max(to), 0);
            whole[from..to].copy_from_slice(&data);
        });
        Ok(())
    }

    fn append(&self, name: &str) -> Result<(), String> {
        self.file(name)?;
        let mut data = vec![0; 1 + self.rng.index(4000)];
        self.rng.fill(&mut data);
        self.dir.append(name, &data)?;
        self.change(name, |whole| whole.extend_from_slice(&data));
        Ok(())
    }

    fn truncate(&self, name: &str) -> Result<(), String> {
        self.file(name)?;
        let size = self.rng.below(FILE_MAX as u64);
        self.dir.truncate(name, size)?;
        self.change(name, |whole| whole.resize(size as usize, 0));
        Ok(())
    }

    fn punch(&self, name: &str) -> Result<(), String> {
        self.file(name)?;
        let from = self.rng.below(FILE_MAX as u64);
        let to = from + 1 + self.rng.below(FILE_MAX as u64 / 2);
        self.dir.punch(name, from..to)?;
        self.change(name, |whole| {
            let to = whole.len().min(to as usize);
            whole.get_mut(from as usize..to).unwrap_or_default().fill(0);
        });
        Ok(())
    }

    fn read(&self, name: &str) -> Result<(), String> {
        let Some(expected) = self.model.lock().get(name).cloned() else { return Ok(()) };
        let mut found = vec![0; expected.len() + 1];
        let read = self.dir.read(name, &mut found)?;
        found.truncate(read);
        if found == **expected { Ok(()) } else { Err(format!("{} {name} differs from what was written", self.fs.name)) }
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), String> {
        if from == to || !self.model.lock().contains_key(from) {
            return Ok(());
        }
        self.dir.rename(from, to)?;
        let mut model = self.model.lock();
        let data = model.remove(from).unwrap();
        model.insert(to.to_owned(), data);
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        if self.model.lock().contains_key(name) {
            self.dir.remove(name)?;
            self.model.lock().remove(name);
        }
        Ok(())
    }
}

impl Work for Writer<'_> {
    fn step(&mut self) -> Result<(), String> {
        let _quiet = self.fs.quiet.read();
        let name = self.name();
        match self.rng.below(100) {
            0..35 => self.write(&name, false),
            35..40 => self.write(&name, true),
            40..50 => self.append(&name),
            50..56 => self.truncate(&name),
            56..62 => self.punch(&name),
            62..82 => self.read(&name),
            82..90 => self.rename(&name, &self.name()),
            90..98 => self.remove(&name),
            _ => {
                self.file(&name)?;
                self.dir.fsync(&name)
            }
        }
    }
}

/// Compares the directories of a file system with what is expected.
///
/// # Errors
/// The first difference.
pub fn compare(found: &FileSystem, expected: &BTreeMap<String, Dir>) -> Result<(), String> {
    for (name, files) in expected {
        let dir = found.resolve(name.as_bytes()).map_err(failed(name))?;
        let mut names: Vec<String> = Vec::new();
        for entry in found.read_dir(dir.id()).map_err(failed(name))? {
            names.push(String::from_utf8_lossy(&entry.map_err(failed(name))?.name).into_owned());
        }
        names.sort();
        if !names.iter().eq(files.keys()) {
            return Err(format!("{name} holds {names:?}, expected {:?}", files.keys()));
        }
        for (file, data) in files {
            let path = format!("{name}/{file}");
            let node = found.resolve(path.as_bytes()).map_err(failed(&path))?;
            let mut bytes = vec![0; node.size() as usize];
            node.read(0, &mut bytes).map_err(failed(&path))?;
            if bytes != ***data {
                let at = bytes.iter().zip(data.iter()).position(|(a, b)| a != b);
                return Err(format!("{path}: {} bytes, expected {}; first difference {at:?}", bytes.len(), data.len()));
            }
        }
    }
    Ok(())
}
