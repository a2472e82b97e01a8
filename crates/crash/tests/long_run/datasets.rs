//! Threads that take snapshots and verify, send, receive, clone and destroy them, and threads that make and destroy file systems.

use std::collections::BTreeMap;
use std::io::{BufReader, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use crash::Rng;
use zuse::stream::recv::{self, RecvArgs};
use zuse::stream::send::{SendFlags, send};
use zuse::stream::{Reader, Record};

use crate::content::Content;
use crate::files::{Dir, compare};
use crate::world::{POOL, Work, World, failed};

/// The longest rest between two snapshots, in milliseconds.
const REST_MS: u64 = 1500;

/// A thread that works with snapshots.
pub struct Snapshots<'a> {
    world: &'a World,
    n: u64,
    rng: Rng,
}

impl<'a> Snapshots<'a> {
    pub fn new(world: &'a World, n: u64, seed: u64) -> Snapshots<'a> {
        Snapshots { world, n, rng: Rng::new(seed) }
    }

    /// Takes a snapshot of a file system while nobody changes it, and returns its name and contents.
    fn take(&self) -> Result<(String, BTreeMap<String, Dir>), String> {
        let fs = self.rng.pick(&self.world.file_systems);
        let snapshot = format!("{}@s{}", fs.name, self.world.serial());
        let _quiet = fs.quiet.write();
        let dirs = fs.dirs.lock();
        let contents = dirs.iter().map(|(name, dir)| (name.clone(), dir.lock().clone())).collect();
        drop(dirs);
        self.world.pool.snapshot(&snapshot).map_err(failed("snapshot"))?;
        Ok((snapshot, contents))
    }

    fn verify(&self, name: &str, contents: &BTreeMap<String, Dir>) -> Result<(), String> {
        let found = self.world.pool.file_system(name).map_err(failed(name))?;
        compare(&found, contents).map_err(failed(name))
    }

    /// Sends the snapshot to a new file system, compares that, and destroys it.
    fn send(&self, snapshot: &str, contents: &BTreeMap<String, Dir>) -> Result<(), String> {
        let (pool, target) = (&self.world.pool, format!("{POOL}/received{}", self.world.serial()));
        let from = pool.dataset(snapshot).map_err(failed(snapshot))?;
        let flags = SendFlags { compress: self.rng.percent(50), embed: self.rng.percent(50), ..SendFlags::default() };
        let mut stream = tempfile::tempfile().map_err(failed("a file for the stream"))?;
        send(&from, None, &flags, &mut stream, &Default::default()).map_err(failed("send"))?;
        drop(from);
        stream.seek(SeekFrom::Start(0)).map_err(failed("a file for the stream"))?;
        let mut reader = Reader::new(BufReader::new(stream));
        let entry = reader.next_record().map_err(failed("stream"))?.ok_or("an empty stream")?;
        let payload = entry.payload.to_vec();
        let Record::Begin(begin) = entry.header.record else { return Err("a stream without a beginning".to_owned()) };
        let args = RecvArgs { target: format!("{target}@1"), ..RecvArgs::default() };
        recv::receive(self.world.spa(), &mut reader, &begin, &payload, &args, &Default::default())
            .map_err(failed("receive"))?;
        self.verify(&args.target, contents)?;
        self.verify(&target, contents)?;
        pool.destroy(&args.target).map_err(failed("destroy what was received"))?;
        pool.destroy(&target).map_err(failed("destroy what was received"))
    }

    /// Makes a clone, changes it, and destroys it.
    fn clone(&self, snapshot: &str, contents: &BTreeMap<String, Dir>) -> Result<(), String> {
        let (pool, clone) = (&self.world.pool, format!("{POOL}/clone{}", self.world.serial()));
        pool.clone_snapshot(snapshot, &clone).map_err(failed("clone"))?;
        let files = pool.files(&clone).map_err(failed("open the clone"))?;
        for (dir, files_there) in contents.iter().take(2) {
            for name in files_there.keys().take(2) {
                files.write(format!("{dir}/{name}").as_bytes(), b"of the clone").map_err(failed("change the clone"))?;
            }
        }
        drop(files);
        self.verify(snapshot, contents)?;
        pool.destroy(&clone).map_err(failed("destroy the clone"))
    }
}

impl Work for Snapshots<'_> {
    fn step(&mut self) -> Result<(), String> {
        self.world.rest(Duration::from_millis(self.rng.below(REST_MS) + self.n));
        let (snapshot, contents) = self.take()?;
        match self.rng.below(4) {
            0 | 1 => self.send(&snapshot, &contents)?,
            2 => self.clone(&snapshot, &contents)?,
            _ => self.verify(&snapshot, &contents)?,
        }
        self.world.pool.destroy(&snapshot).map_err(failed("destroy the snapshot"))
    }
}

/// A thread whose file systems live for a moment.
pub struct ShortLived<'a> {
    world: &'a World,
    n: u64,
    rng: Rng,
}

impl<'a> ShortLived<'a> {
    pub fn new(world: &'a World, n: u64, seed: u64) -> ShortLived<'a> {
        ShortLived { world, n, rng: Rng::new(seed) }
    }
}

impl Work for ShortLived<'_> {
    fn step(&mut self) -> Result<(), String> {
        self.world.rest(Duration::from_millis(self.rng.below(REST_MS) + self.n));
        let (pool, name) = (&self.world.pool, format!("{POOL}/short{}", self.world.serial()));
        pool.create(&name, &[]).map_err(failed("create"))?;
        let mut expected = Dir::new();
        let files = pool.files(&name).map_err(failed("open"))?;
        files.create_dir(b"d", 0o755).map_err(failed("mkdir"))?;
        for n in 0..self.rng.below(20) {
            let mut data = vec![0; self.rng.index(200 << 10)];
            self.rng.fill(&mut data);
            files.write(format!("d/{n}").as_bytes(), &data).map_err(failed("write"))?;
            expected.insert(n.to_string(), Arc::new(Content::new(data)));
        }
        for n in 0..self.rng.below(10) {
            if expected.remove(&n.to_string()).is_some() {
                files.remove_file(format!("d/{n}").as_bytes()).map_err(failed("remove"))?;
            }
        }
        drop(files);
        let renamed = format!("{name}-renamed");
        pool.rename(&name, &renamed).map_err(failed("rename"))?;
        pool.sync().map_err(failed("sync"))?;
        let found = pool.file_system(&renamed).map_err(failed("open for reading"))?;
        compare(&found, &BTreeMap::from([("d".to_owned(), expected)])).map_err(failed(&renamed))?;
        drop(found);
        pool.destroy(&renamed).map_err(failed("destroy"))
    }
}
