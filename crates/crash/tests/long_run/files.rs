//! Threads that change the files of a directory of their own, and the comparison of a file system with what they expect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use base::ObjectId;
use crash::Rng;
use parking_lot::Mutex;
use zuse::zpl::live::{Cred, NewFile, RenameMode, SetAttr};
use zuse::zpl::{FileSystem, Kind};

use crate::world::{Fs, Work, World, failed};

/// Expected files of a directory. Contents are shared with snapshots of the model.
pub type Dir = BTreeMap<String, Arc<Vec<u8>>>;

/// Names that a writer uses.
const NAMES: u64 = 12;
/// The longest file, and the longest write, in bytes.
const FILE_MAX: usize = 384 << 10;
const WRITE_MAX: u64 = 96 << 10;

/// A thread that changes files.
pub struct Writer<'a> {
    world: &'a World,
    fs: &'a Fs,
    dir: ObjectId,
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
        let model = Arc::new(Mutex::new(Dir::new()));
        fs.dirs.lock().insert(name, model.clone());
        Writer { world, fs, dir, model, rng: Rng::new(seed) }
    }

    fn name(&self) -> String {
        format!("f{}", self.rng.below(NAMES))
    }

    /// The object of file `name`, which is made if it is not there.
    fn file(&self, name: &str) -> Result<ObjectId, String> {
        let zfs = &self.fs.zfs;
        if self.model.lock().contains_key(name) {
            return Ok(zfs.lookup(&Cred::ROOT, self.dir, name.as_bytes()).map_err(failed("lookup"))?.0);
        }
        let made = zfs.create(&Cred::ROOT, self.dir, name.as_bytes(), &NewFile::new(Kind::File, 0o644));
        let (id, _) = made.map_err(failed("create"))?;
        self.model.lock().insert(name.to_owned(), Arc::default());
        Ok(id)
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some(data) = self.model.lock().get_mut(name) {
            change(Arc::make_mut(data));
        }
    }

    fn write(&self, name: &str, sync: bool) -> Result<(), String> {
        let id = self.file(name)?;
        let offset = self.rng.below(FILE_MAX as u64);
        let len = (1 + self.rng.below(WRITE_MAX)).min(FILE_MAX as u64 - offset) as usize;
        let mut data = vec![0; len];
        self.rng.fill(&mut data);
        // half of it compresses
        data.iter_mut().skip(len / 2).for_each(|byte| *byte &= 3);
        let began = Instant::now();
        match sync {
            true => self.fs.zfs.write_sync(&Cred::ROOT, id, Some(offset), &data).map(drop),
            false => self.fs.zfs.write(&Cred::ROOT, id, offset, &data),
        }
        .map_err(failed("write"))?;
        self.world.figures.wrote(began.elapsed(), sync);
        self.change(name, |whole| {
            let (from, to) = (offset as usize, offset as usize + len);
            whole.resize(whole.len().max(to), 0);
            whole[from..to].copy_from_slice(&data);
        });
        Ok(())
    }

    fn append(&self, name: &str) -> Result<(), String> {
        let id = self.file(name)?;
        let mut data = vec![0; 1 + self.rng.index(4000)];
        self.rng.fill(&mut data);
        self.fs.zfs.append(&Cred::ROOT, id, &data).map_err(failed("append"))?;
        self.change(name, |whole| whole.extend_from_slice(&data));
        Ok(())
    }

    fn truncate(&self, name: &str) -> Result<(), String> {
        let id = self.file(name)?;
        let size = self.rng.below(FILE_MAX as u64);
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.fs.zfs.setattr(&Cred::ROOT, id, &set).map_err(failed("truncate"))?;
        self.change(name, |whole| whole.resize(size as usize, 0));
        Ok(())
    }

    fn punch(&self, name: &str) -> Result<(), String> {
        let id = self.file(name)?;
        let from = self.rng.below(FILE_MAX as u64);
        let to = from + 1 + self.rng.below(FILE_MAX as u64 / 2);
        self.fs.zfs.punch(&Cred::ROOT, id, from..to).map_err(failed("punch"))?;
        self.change(name, |whole| {
            let to = whole.len().min(to as usize);
            whole.get_mut(from as usize..to).unwrap_or_default().fill(0);
        });
        Ok(())
    }

    fn read(&self, name: &str) -> Result<(), String> {
        let Some(expected) = self.model.lock().get(name).cloned() else { return Ok(()) };
        let id = self.file(name)?;
        let mut found = vec![0; expected.len() + 1];
        let read = self.fs.zfs.read(id, 0, &mut found).map_err(failed("read"))?;
        found.truncate(read);
        if found == *expected { Ok(()) } else { Err(format!("{} {name} differs from what was written", self.fs.name)) }
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), String> {
        if from == to || !self.model.lock().contains_key(from) {
            return Ok(());
        }
        let (from_name, to_name) = (from.as_bytes(), to.as_bytes());
        let zfs = &self.fs.zfs;
        zfs.rename(&Cred::ROOT, self.dir, from_name, self.dir, to_name, RenameMode::Replace)
            .map_err(failed("rename"))?;
        let mut model = self.model.lock();
        let data = model.remove(from).unwrap();
        model.insert(to.to_owned(), data);
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        if self.model.lock().contains_key(name) {
            self.fs.zfs.unlink(&Cred::ROOT, self.dir, name.as_bytes()).map_err(failed("unlink"))?;
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
                let id = self.file(&name)?;
                self.fs.zfs.fsync(id).map_err(failed("fsync"))
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
            if bytes != **data {
                let at = bytes.iter().zip(data.iter()).position(|(a, b)| a != b);
                return Err(format!("{path}: {} bytes, expected {}; first difference {at:?}", bytes.len(), data.len()));
            }
        }
    }
    Ok(())
}
