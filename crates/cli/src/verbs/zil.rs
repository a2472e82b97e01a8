//! `zuse zil ls`: the records of intent logs that are in no synced txg yet.

use std::collections::HashMap;
use std::io::{self, Write};

use base::ObjectId;
use ondisk::zil::{RawRecord, Record, TxType};
use pool::{Dataset, Kind, ListOptions};
use serde_json::{Map, Value, json};
use zpl::FileSystem;

use super::flags::JSON;
use super::session::Session;
use crate::args::Parsed;
use crate::error::{Failure, Outcome, failed, usage};
use crate::pools::stdout;

pub(super) fn run(parsed: &Parsed) -> Outcome {
    let names = parsed.names();
    let (verb, names) = names.split_first().ok_or_else(|| usage("missing command"))?;
    if verb != "ls" {
        return Err(usage(format!("unrecognized command 'zil {verb}'")));
    }
    if names.is_empty() {
        return Err(usage("missing pool or dataset argument"));
    }
    let mut session = Session::new(parsed)?;
    let mut out = stdout();
    for name in names {
        list(&mut session, name, parsed.has(JSON) || parsed.has('j'), &mut out)?;
    }
    out.flush()?;
    Ok(0)
}

/// Lists the logs of a dataset and of all below it.
fn list(session: &mut Session, name: &str, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let cannot = |e: pool::Error| failed(format!("cannot open '{name}': {e}"));
    let (wanted, below) = name.split_once('/').map_or((name, None), |(pool, below)| (pool, Some(below)));
    let pool = session.pool(wanted)?;
    session.provide_keys(&pool)?;
    let under = below.map_or(pool.name().to_owned(), |below| format!("{}/{below}", pool.name()));
    let all = pool.list(&under, &ListOptions::DATASETS).map_err(cannot)?;
    for dataset in all.iter().filter_map(|entry| entry.dataset()) {
        one(dataset, json, out).map_err(|e| match e {
            Trouble::Pool(e) => failed(format!("{}: {e}", dataset.name())),
            Trouble::Output(e) => Failure::Output(e),
        })?;
    }
    Ok(())
}

enum Trouble {
    Pool(pool::Error),
    Output(io::Error),
}

impl From<pool::Error> for Trouble {
    fn from(e: pool::Error) -> Trouble {
        Trouble::Pool(e)
    }
}

impl From<io::Error> for Trouble {
    fn from(e: io::Error) -> Trouble {
        Trouble::Output(e)
    }
}

fn one(dataset: &Dataset, json: bool, out: &mut dyn Write) -> Result<(), Trouble> {
    if dataset.phys().bp.is_hole() {
        return Ok(());
    }
    let objset = dataset.objset()?;
    if objset.phys().zil_header.log.is_hole() {
        return Ok(());
    }
    let log = zil::read_log(&objset);
    let synced = dataset.pool().uberblock().txg;
    let files = match dataset.kind() {
        Ok(Kind::Filesystem) => FileSystem::open(dataset).ok(),
        _ => None,
    };
    let mut names = Names { files, known: HashMap::new() };
    let (mut records, mut bytes) = (0u64, 0u64);
    for (raw, sealed) in log.due(synced) {
        let line = line(&raw, sealed, &mut names);
        (records, bytes) = (records + 1, bytes.saturating_add(raw.header.reclen));
        if json {
            let mut object = Map::from_iter([("dataset".to_owned(), json!(dataset.name()))]);
            object.extend(line);
            writeln!(out, "{}", Value::Object(object))?;
        } else {
            if records == 1 {
                writeln!(out, "{}:", dataset.name())?;
            }
            writeln!(out, "{}", human(&line))?;
        }
    }
    let total = json!({"dataset": dataset.name(), "records": records, "bytes": bytes});
    match (json, records) {
        (_, 0) => {}
        (true, _) => writeln!(out, "{total}")?,
        (false, _) => writeln!(out, "{records} records, {bytes} bytes")?,
    }
    Ok(())
}

/// Paths of objects: those on disk, and those that earlier records of the log name.
struct Names {
    files: Option<FileSystem>,
    known: HashMap<ObjectId, Vec<u8>>,
}

impl Names {
    fn of(&mut self, object: ObjectId) -> Option<Vec<u8>> {
        if let Some(path) = self.known.get(&object) {
            return Some(path.clone());
        }
        let path = self.files.as_ref()?.path_of(object).ok()?;
        self.known.insert(object, path.clone());
        Some(path)
    }

    fn within(&mut self, dir: ObjectId, name: &[u8]) -> Option<Vec<u8>> {
        let mut path = self.of(dir)?;
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Some(path)
    }
}

fn line(raw: &RawRecord<'_>, sealed: bool, names: &mut Names) -> Map<String, Value> {
    let header = &raw.header;
    let kind = header.kind().map_or_else(|| format!("type {}", header.txtype), |kind| kind.name().to_owned());
    let mut line = Map::new();
    let mut put = |key: &str, value: Value| drop(line.insert(key.to_owned(), value));
    put("seq", json!(header.seq));
    put("txg", json!(header.txg.0));
    put("type", json!(kind));
    put("size", json!(header.reclen));
    if sealed {
        put("sealed", json!(true));
        return line;
    }
    let Ok(record) = raw.decode() else {
        put("broken", json!(true));
        return line;
    };
    let text = |bytes: &[u8]| json!(crate::shown::name(bytes));
    let of = |path: Option<Vec<u8>>| path.map_or(Value::Null, |path| json!(crate::shown::name(&path)));
    match &record {
        Record::Commit => {}
        Record::Create(new) => {
            put("directory", json!(new.doid.0));
            put("object", json!(new.foid.0));
            put("name", text(new.name));
            let path = match header.kind() {
                Some(TxType::Mkxattr) => names.within(new.doid, b"<xattrdir>"),
                _ => names.within(new.doid, new.name),
            };
            names.known.extend(path.clone().map(|path| (new.foid, path)));
            put("path", of(path));
        }
        Record::Remove { doid, name } => {
            put("directory", json!(doid.0));
            put("name", text(name));
            put("path", of(names.within(*doid, name)));
        }
        Record::Link { doid, link_obj, name } => {
            put("directory", json!(doid.0));
            put("object", json!(link_obj.0));
            put("name", text(name));
            put("path", of(names.within(*doid, name)));
        }
        Record::Rename(rename) => {
            put("directory", json!(rename.sdoid.0));
            put("name", text(rename.src));
            put("path", of(names.within(rename.sdoid, rename.src)));
            put("to_directory", json!(rename.tdoid.0));
            put("to_name", text(rename.dst));
            put("to_path", of(names.within(rename.tdoid, rename.dst)));
            // objects below it have other paths now: those on disk are out of date
            names.known.clear();
        }
        Record::Write(write) => {
            put("object", json!(write.foid.0));
            put("path", of(names.of(write.foid)));
            put("offset", json!(write.offset));
            put("length", json!(write.length));
            put("indirect", json!(write.data.is_none()));
        }
        Record::Truncate { foid, offset, length } => {
            put("object", json!(foid.0));
            put("path", of(names.of(*foid)));
            put("offset", json!(offset));
            put("length", json!(length));
        }
        Record::SetAttr(set) => {
            put("object", json!(set.foid.0));
            put("path", of(names.of(set.foid)));
        }
        Record::AclV0 { foid, .. } | Record::Acl { foid, .. } => {
            put("object", json!(foid.0));
            put("path", of(names.of(*foid)));
        }
        Record::SetSaXattr { foid, name, .. } => {
            put("object", json!(foid.0));
            put("path", of(names.of(*foid)));
            put("name", text(name));
        }
        Record::CloneRange { foid, offset, length, bps, .. } => {
            put("object", json!(foid.0));
            put("path", of(names.of(*foid)));
            put("offset", json!(offset));
            put("length", json!(length));
            put("blocks", json!(bps.len()));
        }
    }
    line
}

/// A record on one line: number, txg and type, then its other fields by name.
fn human(line: &Map<String, Value>) -> String {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let get = |key: &str| line.get(key).map(plain).unwrap_or_default();
    let mut text = format!(
        "  {:>8} txg {:>8}  {:<18}",
        get("seq"),
        get("txg"),
        get("type").trim_start_matches("TX_").to_lowercase()
    );
    for (key, value) in line.iter().filter(|(key, _)| !["seq", "txg", "type", "size"].contains(&key.as_str())) {
        if !value.is_null() {
            text += &format!(" {key} {}", plain(value));
        }
    }
    text
}
