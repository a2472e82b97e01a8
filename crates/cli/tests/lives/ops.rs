//! Random commands, and the effect of each on the model.

use std::sync::Arc;

use crash::Rng;
use sha2::{Digest, Sha256};

use super::model::{Contents, Head, Model, Snapshot};
use super::world::{POOL, VOLUME, World};

/// Limit on heads, beside the pool's own.
const HEADS: usize = 9;
/// Limit on the snapshots of a head.
const SNAPSHOTS: usize = 5;
/// Limit on the bytes of a file.
const FILE: u64 = 300 << 10;

/// The effect of a command that succeeds.
pub type Effect = Box<dyn Fn(&mut Model)>;

/// The effects that a command may leave when it is killed in its middle.
pub enum Partly {
    /// All of it or nothing.
    Never,
    /// Any content of this file, or no file.
    File(String, String),
    /// Any bytes at the start of this volume.
    Volume(String),
    /// This head without some of its snapshots.
    Snapshots(String),
}

/// A command.
pub struct Op {
    pub args: Vec<String>,
    pub input: Vec<u8>,
    pub effect: Effect,
    pub partly: Partly,
}

/// The source of the next names and numbers.
#[derive(Default)]
pub struct Draw {
    last: u64,
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn op(line: &str, effect: impl Fn(&mut Model) + 'static) -> Option<Op> {
    Some(Op { args: words(line), input: Vec::new(), effect: Box::new(effect), partly: Partly::Never })
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that compress well, badly or not at all, and sometimes are those of another file.
fn bytes(rng: &Rng, most: u64) -> Vec<u8> {
    let small = rng.percent(40);
    let mut data = vec![0; 1 + rng.below(if small { 4000 } else { most }) as usize];
    let (mut at, len) = (0, data.len());
    while at < len {
        let end = len.min(at + 1 + rng.below(64 << 10) as usize);
        match rng.below(4) {
            0 => rng.fill(&mut data[at..end]),
            1 => data[at..end].fill(rng.below(3) as u8),
            2 => data[at..end].iter_mut().enumerate().for_each(|(n, byte)| *byte = (n % 251) as u8),
            // just enough noise that a block fails to become smaller
            _ => {
                let middle = at + (end - at) * 7 / 8;
                rng.fill(&mut data[at..middle]);
            }
        }
        at = end;
    }
    data
}

impl Draw {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A command that fits the model; `None` if the drawn one does not.
    pub fn command(&mut self, rng: &Rng, model: &Model, world: &World) -> Option<Op> {
        match rng.below(100) {
            0..30 => put(rng, model),
            30..35 => remove(rng, model),
            35..39 => rename_file(rng, model),
            39..44 => copy(rng, model),
            44..50 => self.create(rng, model, world),
            50..53 => volume_write(rng, model),
            53..64 => self.snapshot(rng, model),
            64..68 => destroy_snapshot(rng, model),
            68..71 => rollback(rng, model),
            71..75 => self.clone(rng, model),
            75..77 => promote(rng, model),
            77..79 => self.rename(rng, model),
            79..82 => destroy(rng, model),
            82..87 => set(rng, model),
            87..93 => self.receive(rng, model, world),
            93..95 => op(&format!("zpool scrub -w {POOL}"), |_| {}),
            95..97 => op(&format!("zpool sync {POOL}"), |_| {}),
            _ => op(&format!("verify -q {POOL}"), |_| {}),
        }
    }

    fn name(&mut self) -> String {
        format!("{POOL}/n{}", self.number())
    }

    fn create(&mut self, rng: &Rng, model: &Model, world: &World) -> Option<Op> {
        if model.heads.len() > HEADS {
            return None;
        }
        let name = self.name();
        let mut line = "zfs create".to_owned();
        let encrypted = rng.percent(30);
        if encrypted {
            line += &format!(" -o encryption=on -o keyformat=raw -o keylocation={}", world.key());
        }
        for (prop, values) in PROPS {
            if rng.percent(35) {
                line += &format!(" -o {prop}={}", rng.pick(values));
            }
        }
        let volume = rng.percent(20);
        let contents = if volume { Contents::Volume(Arc::new(vec![0; VOLUME])) } else { Contents::Files([].into()) };
        line += &if volume { format!(" -V {VOLUME}") } else { format!(" -o recordsize={}", rng.pick(&RECORDSIZES)) };
        let head = Head { contents, snapshots: Vec::new(), origin: None, encrypted };
        op(&format!("{line} {name}"), move |model| {
            model.heads.insert(name.clone(), head.clone());
        })
    }

    fn snapshot(&mut self, rng: &Rng, model: &Model) -> Option<Op> {
        let guids: Vec<u64> = model.heads.iter().map(|_| self.number()).collect();
        let snap = format!("s{}", self.number());
        let short = snap.clone();
        let take = move |model: &mut Model, heads: &[String]| {
            for (name, guid) in heads.iter().zip(&guids) {
                let head = model.heads.get_mut(name).unwrap();
                let contents = head.contents.clone();
                head.snapshots.push(Snapshot { name: short.clone(), guid: *guid, contents });
            }
        };
        if rng.percent(20) {
            let heads: Vec<String> = model.heads.keys().cloned().collect();
            return op(&format!("zfs snapshot -r {POOL}@{snap}"), move |model| take(model, &heads));
        }
        let (name, head) = head(rng, model, |_| true)?;
        if head.snapshots.len() >= SNAPSHOTS {
            return None;
        }
        op(&format!("zfs snapshot {name}@{snap}"), move |model| take(model, std::slice::from_ref(&name)))
    }

    fn clone(&mut self, rng: &Rng, model: &Model) -> Option<Op> {
        let (origin, head) = head(rng, model, |head| !head.snapshots.is_empty())?;
        if model.heads.len() > HEADS {
            return None;
        }
        let snapshot = rng.pick(&head.snapshots).clone();
        let name = self.name();
        let line = format!("zfs clone {origin}@{} {name}", snapshot.name);
        let origin = Some((origin, snapshot.guid));
        let new = Head { contents: snapshot.contents, snapshots: Vec::new(), origin, encrypted: head.encrypted };
        op(&line, move |model| {
            model.heads.insert(name.clone(), new.clone());
        })
    }

    fn rename(&mut self, rng: &Rng, model: &Model) -> Option<Op> {
        let (from, _) = head(rng, model, |_| true).filter(|(name, _)| name != POOL)?;
        let to = self.name();
        op(&format!("zfs rename {from} {to}"), move |model| model.rename(&from, &to))
    }

    /// Receives a whole snapshot into a new dataset, or an increment into one that has an older snapshot.
    fn receive(&mut self, rng: &Rng, model: &Model, world: &World) -> Option<Op> {
        let (from, head) = head(rng, model, |head| !head.snapshots.is_empty())?;
        let n = rng.index(head.snapshots.len());
        let snapshot = head.snapshots[n].clone();
        let guid = |head: &Head| head.snapshots.last().map(|snapshot| snapshot.guid);
        let follows = |(name, target): (&String, &Head)| {
            let base = head.snapshots[..n].iter().find(|base| Some(base.guid) == guid(target))?;
            (*name != from && !target.encrypted && !head.encrypted).then(|| (name.clone(), base.name.clone()))
        };
        let mut line = "zfs send".to_owned();
        for flag in ["-L", "-e", "-c"] {
            if rng.percent(40) {
                line += &format!(" {flag}");
            }
        }
        let stream = world.stream().display().to_string();
        if let Some((target, base)) = model.heads.iter().find_map(follows)
            && rng.percent(70)
        {
            let send = format!("{line} -i @{base} {from}@{}", snapshot.name);
            let to = target.clone();
            return received(&send, &format!("zfs receive -F {target}"), &stream, move |model| {
                let head = model.heads.get_mut(&to).unwrap();
                head.contents = snapshot.contents.clone();
                head.snapshots.push(snapshot.clone());
            });
        }
        if model.heads.len() > HEADS {
            return None;
        }
        let to = self.name();
        let send = format!("{line} {from}@{}", snapshot.name);
        let contents = snapshot.contents.clone();
        let new = Head { contents, snapshots: vec![snapshot], origin: None, encrypted: false };
        received(&send, &format!("zfs receive {to}"), &stream, move |model| {
            model.heads.insert(to.clone(), new.clone());
        })
    }
}

/// A receive; the stream is made first, by the words after the `|`.
fn received(send: &str, receive: &str, stream: &str, effect: impl Fn(&mut Model) + 'static) -> Option<Op> {
    let mut op = op(receive, effect)?;
    op.input = format!("{send} > {stream}").into_bytes();
    Some(op)
}

/// Properties, and values for them.
const PROPS: [(&str, &[&str]); 6] = [
    ("compression", &["off", "lz4", "gzip-1", "gzip-9", "zstd", "zstd-fast-5", "zle", "lzjb"]),
    ("checksum", &["on", "sha256", "off", "blake3"]),
    ("dedup", &["on", "off", "off"]),
    ("copies", &["1", "2"]),
    ("redundant_metadata", &["all", "most"]),
    ("logbias", &["latency", "throughput"]),
];
const RECORDSIZES: [&str; 4] = ["4K", "16K", "128K", "1M"];

fn head(rng: &Rng, model: &Model, fits: impl Fn(&Head) -> bool) -> Option<(String, Head)> {
    let all: Vec<_> = model.heads.iter().filter(|(_, head)| fits(head)).collect();
    if all.is_empty() {
        return None;
    }
    let (name, head) = rng.pick(&all);
    Some(((*name).clone(), (*head).clone()))
}

fn files(head: &Head) -> Option<Vec<String>> {
    match &head.contents {
        Contents::Files(files) => Some(files.keys().cloned().collect()),
        Contents::Volume(_) => None,
    }
}

/// A file that exists.
fn file(rng: &Rng, model: &Model) -> Option<(String, String)> {
    let (name, head) = head(rng, model, |head| files(head).is_some_and(|files| !files.is_empty()))?;
    Some((name, rng.pick(&files(&head)?).clone()))
}

/// A file that may or may not exist.
fn any_file(rng: &Rng, model: &Model) -> Option<(String, String)> {
    let (name, _) = head(rng, model, |head| files(head).is_some())?;
    Some((name, format!("f{}", rng.below(10))))
}

fn put(rng: &Rng, model: &Model) -> Option<Op> {
    let (fs, path) = any_file(rng, model)?;
    let data = bytes(rng, FILE);
    let sum = sha256(&data);
    let (head, name) = (fs.clone(), path.clone());
    let mut op = op(&format!("put {fs}:/{path}"), move |model| {
        model.files(&head).insert(name.clone(), sum.clone());
    })?;
    op.input = data;
    op.partly = Partly::File(fs, path);
    Some(op)
}

fn remove(rng: &Rng, model: &Model) -> Option<Op> {
    let (fs, path) = file(rng, model)?;
    op(&format!("rm {fs}:/{path}"), move |model| {
        model.files(&fs).remove(&path);
    })
}

fn rename_file(rng: &Rng, model: &Model) -> Option<Op> {
    let (fs, from) = file(rng, model)?;
    let to = format!("f{}", rng.below(10));
    if from == to {
        return None;
    }
    op(&format!("mv {fs}:/{from} {fs}:/{to}"), move |model| {
        let files = model.files(&fs);
        if let Some(sum) = files.remove(&from) {
            files.insert(to.clone(), sum);
        }
    })
}

fn copy(rng: &Rng, model: &Model) -> Option<Op> {
    let ((from_fs, from), (fs, to)) = (file(rng, model)?, any_file(rng, model)?);
    if (&from_fs, &from) == (&fs, &to) {
        return None;
    }
    let (head, name) = (fs.clone(), to.clone());
    let mut op = op(&format!("cp -a {from_fs}:/{from} {fs}:/{to}"), move |model| {
        let sum = model.files(&from_fs)[&from].clone();
        model.files(&head).insert(name.clone(), sum);
    })?;
    op.partly = Partly::File(fs, to);
    Some(op)
}

fn volume_write(rng: &Rng, model: &Model) -> Option<Op> {
    let (name, _) = head(rng, model, |head| matches!(head.contents, Contents::Volume(_)))?;
    let data = bytes(rng, VOLUME as u64);
    let (head, front) = (name.clone(), data.clone());
    let mut op = op(&format!("put {name}"), move |model| {
        if let Contents::Volume(bytes) = &mut model.heads.get_mut(&head).unwrap().contents {
            Arc::make_mut(bytes)[..front.len()].copy_from_slice(&front);
        }
    })?;
    op.input = data;
    op.partly = Partly::Volume(name);
    Some(op)
}

fn destroy_snapshot(rng: &Rng, model: &Model) -> Option<Op> {
    let (name, head) = head(rng, model, |head| !head.snapshots.is_empty())?;
    let snapshot = rng.pick(&head.snapshots).clone();
    if model.clones_of(&name).iter().any(|(_, guid)| *guid == snapshot.guid) {
        return None;
    }
    op(&format!("zfs destroy {name}@{}", snapshot.name), move |model| {
        model.heads.get_mut(&name).unwrap().snapshots.retain(|other| other.guid != snapshot.guid);
    })
}

fn rollback(rng: &Rng, model: &Model) -> Option<Op> {
    let (name, head) = head(rng, model, |head| !head.snapshots.is_empty())?;
    let last = head.snapshots.last()?.clone();
    op(&format!("zfs rollback {name}@{}", last.name), move |model| {
        model.heads.get_mut(&name).unwrap().contents = last.contents.clone();
    })
}

fn promote(rng: &Rng, model: &Model) -> Option<Op> {
    let (name, clone) = head(rng, model, |head| head.origin.is_some())?;
    let (origin, _) = clone.origin.as_ref()?;
    let taken = |snapshot: &Snapshot| clone.snapshots.iter().any(|own| own.name == snapshot.name);
    // snapshots of the same name would conflict; a pool's own dataset cannot become a clone
    if origin == POOL || model.heads[origin].snapshots.iter().any(taken) {
        return None;
    }
    op(&format!("zfs promote {name}"), move |model| model.promote(&name))
}

fn destroy(rng: &Rng, model: &Model) -> Option<Op> {
    let (name, _) = head(rng, model, |_| true)?;
    if name == POOL || !model.clones_of(&name).is_empty() {
        return None;
    }
    let head = name.clone();
    let mut op = op(&format!("zfs destroy -r {name}"), move |model| {
        model.heads.remove(&head);
    })?;
    op.partly = Partly::Snapshots(name);
    Some(op)
}

fn set(rng: &Rng, model: &Model) -> Option<Op> {
    let (name, head) = head(rng, model, |_| true)?;
    let (prop, values) = rng.pick(&PROPS);
    // a dataset that is received under another one keeps what it has
    let inherit = rng.percent(20) && head.origin.is_none();
    match inherit {
        true => op(&format!("zfs inherit {prop} {name}"), |_| {}),
        false => op(&format!("zfs set {prop}={} {name}", rng.pick(values)), |_| {}),
    }
}
