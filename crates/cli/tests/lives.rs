//! Random lives of pools, by the command line: thousands of commands, some killed at random, devices that leave and
//! return; the contents are compared with a model, and OpenZFS's own engine opens the pool after each kill and at each
//! end.
//!
//! `ZUSE_LIVES` is the number of lives, `ZUSE_SEED` the seed of the first, `ZUSE_STEPS` the number of commands per
//! life, `ZUSE_KILLS` the percentage of commands that are killed. With `ZUSE_SECONDS` lives are run for that long.
//! `ZUSE` is another binary to run. The files of a failed life stay at the path in its report.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, unreachable_pub)]

#[path = "lives/model.rs"]
mod model;
#[path = "lives/ops.rs"]
mod ops;
#[path = "lives/world.rs"]
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crash::{Rng, number_from_env};

use model::{Contents, Head, Model, Seen, difference};
use ops::{Draw, Op, Partly};
use world::{Ended, POOL, VOLUME, World};

/// Lives by default.
const LIVES: u64 = 6;
/// Commands of a life.
const STEPS: u64 = 45;
/// Commands of a hundred that are killed.
const KILLS: u64 = 10;
/// A killed command lives for at most this many microseconds.
const KILL_AFTER: u64 = 90_000;
/// The vdevs of pools; the number of devices that may be away at a time.
const VDEVS: [(&str, usize); 6] = [
    ("d0", 0),
    ("mirror d0 d1", 1),
    ("raidz1 d0 d1 d2", 1),
    ("mirror d0 d1 mirror d2 d3", 1),
    ("raidz2 d0 d1 d2 d3", 1),
    ("d0 d1 log d2", 0),
];
/// Bytes of a log device that is added and removed.
const LOG: u64 = 64 << 20;
/// Errors that a command may fail with though it fits the model.
const EXCUSES: [&str; 3] = ["out of space", "No space left", "quota"];

/// The number of pools that OpenZFS's engine accepted.
#[derive(Default)]
struct Taken {
    crashed: AtomicU64,
    exported: AtomicU64,
    commands: AtomicU64,
}

/// A life in progress.
struct Life<'a> {
    rng: Rng,
    draw: Draw,
    model: Model,
    world: World,
    /// The number of devices that may be away.
    spare: usize,
    away: Option<String>,
    /// The contents of the pool when its checkpoint was taken.
    checkpointed: Option<Model>,
    /// The number of log devices created.
    logs: u64,
    taken: &'a Taken,
}

type Outcome = Result<(), String>;

impl<'a> Life<'a> {
    fn begin(seed: u64, taken: &'a Taken) -> Life<'a> {
        let rng = Rng::new(seed);
        let (vdevs, spare) = *rng.pick(&VDEVS);
        let mut model = Model::default();
        let root = Head { contents: Contents::Files([].into()), snapshots: Vec::new(), origin: None, encrypted: false };
        model.heads.insert(POOL.to_owned(), root);
        let (draw, world) = (Draw::default(), World::new(vdevs));
        Life { rng, draw, model, world, spare, away: None, checkpointed: None, logs: 0, taken }
    }

    fn live(&mut self, steps: u64) -> Outcome {
        for _ in 0..steps {
            self.taken.commands.fetch_add(1, Ordering::Relaxed);
            match self.rng.below(100) {
                0..4 if self.spare > 0 => self.devices()?,
                4..8 => self.come_and_go()?,
                8..12 => self.compare()?,
                12..14 => self.log_device()?,
                14..16 => self.checkpoint()?,
                _ => self.command()?,
            }
        }
        self.end()
    }

    /// Takes a device away, or brings one back.
    fn devices(&mut self) -> Outcome {
        if let Some(device) = self.away.take() {
            self.world.come_back(&device);
            return Ok(());
        }
        let status = self.world.ok(&format!("zpool status {POOL}"))?;
        if !String::from_utf8_lossy(&status).contains("state: ONLINE") {
            // another one may be taken away once all are up to date
            // a scrub leaves out what only the checkpoint has
            let verb = if self.checkpointed.is_some() { "resilver" } else { "scrub -w" };
            self.world.ok(&format!("zpool {verb} {POOL}"))?;
            let status = self.world.ok(&format!("zpool status {POOL}"))?;
            let status = String::from_utf8_lossy(&status);
            return if status.contains("state: ONLINE") {
                Ok(())
            } else {
                Err(format!("after zpool {verb}:\n{status}"))
            };
        }
        let device = self.rng.pick(&self.world.devices).clone();
        self.world.leave(&device);
        self.away = Some(device);
        Ok(())
    }

    /// Adds or removes a log device.
    fn log_device(&mut self) -> Outcome {
        let images = self.world.images();
        let line = match self.log_of_pool()? {
            // a pool with a checkpoint keeps its devices
            Some(_) if self.checkpointed.is_some() => return Ok(()),
            Some(log) => format!("zpool remove {POOL} {}", images.join(log).display()),
            None => {
                self.logs += 1;
                let path = images.join(format!("log{}", self.logs));
                std::fs::File::create(&path).unwrap().set_len(LOG).unwrap();
                format!("zpool add {POOL} log {}", path.display())
            }
        };
        self.change(&line).map(drop)
    }

    /// The file of the log device that the pool has.
    fn log_of_pool(&mut self) -> Result<Option<String>, String> {
        let status = self.world.ok(&format!("zpool status {POOL}"))?;
        let status = String::from_utf8_lossy(&status);
        let mut names = status.split_whitespace().filter_map(|word| word.rsplit('/').next());
        Ok(names.find(|name| name.starts_with("log") && *name != "logs").map(str::to_owned))
    }

    /// Removes the files of log devices that the pool has no more. Of two that claim one place in the pool OpenZFS's import may take the wrong one, and
    /// then opens the other where its label says: in the world that was copied.
    fn remove_lost_logs(&mut self) -> Outcome {
        let kept = self.log_of_pool()?;
        for n in 1..=self.logs {
            let name = format!("log{n}");
            let path = self.world.images().join(&name);
            if kept.as_ref() != Some(&name) && path.exists() {
                std::fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Takes a checkpoint, discards it or rewinds to it.
    fn checkpoint(&mut self) -> Outcome {
        let Some(before) = self.checkpointed.take() else {
            // the next command shows whether a killed one was completed
            let before = self.model.clone();
            if self.change(&format!("zpool checkpoint {POOL}"))? {
                self.checkpointed = Some(before);
            } else {
                self.discard()?;
            }
            return Ok(());
        };
        if self.rng.percent(60) {
            return self.discard();
        }
        self.world.ok(&format!("zpool export {POOL}"))?;
        let images = self.world.images().display().to_string();
        self.world.ok(&format!("zpool import -l --rewind-to-checkpoint -d {images} {POOL}"))?;
        self.remove_lost_logs()?;
        self.model = before;
        self.compare()
    }

    /// Discards the checkpoint, if there is one.
    fn discard(&mut self) -> Outcome {
        let has = self.world.ok(&format!("zpool get -Hp -o value checkpoint {POOL}"))?;
        match has.trim_ascii() {
            b"-" => Ok(()),
            _ => self.world.ok(&format!("zpool checkpoint -d -w {POOL}")).map(drop),
        }
    }

    /// Runs a command that changes the pool but no contents, and may be killed; returns whether it was completed.
    fn change(&mut self, line: &str) -> Result<bool, String> {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let kill = self.kill();
        let ran = self.world.run(&args, &[], kill);
        match ran.ended {
            Ended::By(0) => Ok(true),
            Ended::By(status) => Err(format!("{line}: {status}: {}", ran.err)),
            Ended::Killed => {
                let crashed = self.world.copy();
                self.compare()?;
                self.take(crashed, &self.model.seen(), &self.taken.crashed).map(|()| false)
            }
        }
    }

    /// The time after which a command is killed, if it is.
    fn kill(&self) -> Option<Duration> {
        let killed = self.rng.percent(number_from_env("ZUSE_KILLS", KILLS));
        killed.then(|| Duration::from_micros(self.rng.below(KILL_AFTER)))
    }

    fn come_and_go(&mut self) -> Outcome {
        self.world.ok(&format!("zpool export {POOL}"))?;
        if self.rng.percent(30) {
            self.judge(&self.model.seen(), &self.taken.exported)?;
        }
        let images = self.world.images().display().to_string();
        self.world.ok(&format!("zpool import -l -d {images} {POOL}")).map(drop)
    }

    fn compare(&mut self) -> Outcome {
        let (expected, found) = (self.model.seen(), self.world.look()?);
        if expected == found { Ok(()) } else { Err(difference(&expected, &found)) }
    }

    fn command(&mut self) -> Outcome {
        let Some(mut op) = self.draw.command(&self.rng, &self.model, &self.world) else { return Ok(()) };
        if op.args[..2] == ["zfs", "receive"] {
            // the stream first
            let line = String::from_utf8_lossy(&op.input).into_owned();
            let (send, file) = line.split_once(" > ").unwrap();
            let stream = self.world.ok(send)?;
            std::fs::write(file, &stream).unwrap();
            op.input = stream;
        }
        let kill = self.kill();
        let ran = self.world.run(&op.args, &op.input, kill);
        match ran.ended {
            Ended::By(0) => (op.effect)(&mut self.model),
            Ended::By(_) if EXCUSES.iter().any(|excuse| ran.err.contains(excuse)) => self.adopt(&op)?,
            Ended::By(status) => return Err(format!("{}: {status}: {}", op.args.join(" "), ran.err)),
            Ended::Killed => self.killed(&op)?,
        }
        Ok(())
    }

    fn killed(&mut self, op: &Op) -> Outcome {
        let crashed = self.world.copy();
        // the leftovers of a receive are destroyed when the pool is imported for writing
        self.world.ok(&format!("zpool sync {POOL}"))?;
        if op.args.iter().any(|word| word == "encryption=on") {
            // a command that is killed between the txg and the record of the key leaves it to be loaded; there may be no such dataset, too
            let load: Vec<String> =
                ["zfs", "load-key"].into_iter().map(str::to_owned).chain(op.args.last().cloned()).collect();
            drop(self.world.run(&load, &[], None));
        }
        self.adopt(op)?;
        self.take(crashed, &self.model.seen(), &self.taken.crashed)
    }

    /// Finds out what a command that was not completed has done.
    fn adopt(&mut self, op: &Op) -> Outcome {
        let found = self.world.look()?;
        let mut after = self.model.clone();
        (op.effect)(&mut after);
        if found == after.seen() {
            self.model = after;
            return Ok(());
        }
        self.model.take_part(&op.partly, &found);
        let expected = self.model.seen();
        if found == expected {
            Ok(())
        } else {
            Err(format!("after {}: {}", op.args.join(" "), difference(&expected, &found)))
        }
    }

    /// Lets OpenZFS's engine open a copy of the pool.
    fn judge(&self, expected: &Seen, count: &AtomicU64) -> Outcome {
        self.take(self.world.copy(), expected, count)
    }

    fn take(&self, mut copy: World, expected: &Seen, count: &AtomicU64) -> Outcome {
        let taken = copy.zhack().and_then(|()| copy.zdb()).and_then(|()| {
            let images = copy.images().display().to_string();
            copy.ok(&format!("zpool import -l -d {images} {POOL}"))?;
            copy.ok(&format!("zpool sync {POOL}"))?;
            let found = copy.look()?;
            if found == *expected { Ok(()) } else { Err(difference(expected, &found)) }
        });
        count.fetch_add(1, Ordering::Relaxed);
        taken.map_err(|e| format!("{e}\nthe copy that was judged: {}", copy.keep().display()))
    }

    fn end(&mut self) -> Outcome {
        self.compare()?;
        self.world.ok(&format!("zpool export {POOL}"))?;
        self.world.zdb()?;
        self.judge(&self.model.seen(), &self.taken.exported)
    }
}

impl Model {
    /// Takes over, from what was found, the part that a command may have left.
    fn take_part(&mut self, partly: &Partly, found: &Seen) {
        match partly {
            Partly::Never => {}
            Partly::File(head, path) => {
                if let Some(Contents::Files(files)) = found.get(head) {
                    match files.get(path) {
                        Some(sum) => self.files(head).insert(path.clone(), sum.clone()),
                        None => self.files(head).remove(path),
                    };
                }
            }
            Partly::Volume(name) => {
                if let (Some(Contents::Volume(bytes)), Some(head)) = (found.get(name), self.heads.get_mut(name)) {
                    assert_eq!(bytes.len(), VOLUME);
                    head.contents = Contents::Volume(Arc::clone(bytes));
                }
            }
            Partly::Snapshots(name) => {
                if let Some(head) = self.heads.get_mut(name) {
                    head.snapshots.retain(|snapshot| found.contains_key(&format!("{name}@{}", snapshot.name)));
                }
            }
        }
    }
}

fn one(seed: u64, taken: &Taken) {
    let mut life = Life::begin(seed, taken);
    let outcome = life.live(number_from_env("ZUSE_STEPS", STEPS));
    if let Err(why) = outcome {
        let typed = life.world.typed.join("\n");
        panic!("ZUSE_SEED={seed} ZUSE_LIVES=1: {why}\nin {}:\n{typed}", life.world.keep().display());
    }
}

#[test]
fn lives() {
    let (first, lives) = (number_from_env("ZUSE_SEED", 1), number_from_env("ZUSE_LIVES", LIVES));
    let until = Instant::now() + Duration::from_secs(number_from_env("ZUSE_SECONDS", 0));
    let (next, taken) = (AtomicU64::new(0), Taken::default());
    let work = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= lives && Instant::now() >= until {
                return;
            }
            one(first + n, &taken);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..number_from_env("ZUSE_THREADS", 2) {
            scope.spawn(work);
        }
    });
    let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
    let (commands, crashed, exported) = (count(&taken.commands), count(&taken.crashed), count(&taken.exported));
    eprintln!("{commands} commands; OpenZFS's engine took {crashed} crashed and {exported} exported pools");
}
