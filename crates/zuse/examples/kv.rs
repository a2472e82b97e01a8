//! A key–value store in a pool: transactions and snapshots, on raw objects. Keys are names of a ZAP, values its values.
//!
//! ```text
//! kv /tmp/kv.img set a=1 b=2     both, or neither
//! kv /tmp/kv.img get a
//! kv /tmp/kv.img del a
//! kv /tmp/kv.img snap before
//! kv /tmp/kv.img get a before    as it was
//! kv /tmp/kv.img list [SNAP]
//! ```

use std::path::Path;
use std::process::ExitCode;

use zuse::dmu::Zap;
use zuse::{Error, Objects, Pool};

/// The pool, and the dataset in it.
const POOL: &str = "kv";
const STORE: &str = "kv/store";
/// Bytes of a new pool's file.
const SIZE: u64 = 256 << 20;
/// What a change of one key writes at most, about.
const KEY_BYTES: u64 = 16 << 10;

/// Keys and values; cheap to clone.
#[derive(Clone)]
struct Store {
    pool: Pool,
    objects: Objects,
}

impl Store {
    /// Opens the store in the file `path`, or makes it.
    fn open(path: &str) -> Result<Store, Error> {
        let pool = if Path::new(path).exists() {
            Pool::open_writable(&[path], Some(POOL))?
        } else {
            let pool = Pool::create_new(POOL, &[path], SIZE)?;
            pool.create(STORE, &[])?;
            pool
        };
        Ok(Store { objects: pool.objects(STORE)?, pool })
    }

    /// Sets (`Some`) and removes (`None`) keys, all or none, and waits until that is on disk.
    fn commit(&self, changes: &[(&str, Option<&str>)]) -> Result<(), Error> {
        let table = self.objects.table();
        self.objects.change(KEY_BYTES * changes.len() as u64, |tx| {
            for (key, value) in changes {
                match value {
                    Some(value) => table.update(tx, key, 1, &value.bytes().map(u64::from).collect::<Vec<_>>())?,
                    None => drop(table.remove(tx, key)?),
                }
            }
            Ok(())
        })?;
        self.pool.sync()
    }

    /// The table as it is, or as it was at a snapshot.
    fn table(&self, snapshot: Option<&str>) -> Result<Zap, Error> {
        match snapshot {
            None => Ok(self.objects.table().clone()),
            Some(name) => Ok(self.pool.objects_at(&format!("{STORE}@{name}"))?.table().clone()),
        }
    }

    fn get(&self, key: &str, snapshot: Option<&str>) -> Result<Option<String>, Error> {
        let value = self.table(snapshot)?.lookup(key)?;
        Ok(value.and_then(|value| value.as_bytes().map(|bytes| String::from_utf8_lossy(bytes).into_owned())))
    }

    fn keys(&self, snapshot: Option<&str>) -> Result<Vec<String>, Error> {
        let entries = self.table(snapshot)?.entries()?;
        let mut keys = entries.map(|entry| Ok(entry?.name_lossy().into_owned())).collect::<Result<Vec<_>, Error>>()?;
        keys.sort();
        Ok(keys)
    }
}

fn run(args: &[&str]) -> Result<bool, Error> {
    let [path, verb, rest @ ..] = args else { return Ok(false) };
    let store = Store::open(path)?;
    match (*verb, rest) {
        ("set", pairs) if !pairs.is_empty() => {
            let changes: Option<Vec<_>> =
                pairs.iter().map(|pair| pair.split_once('=').map(|(key, value)| (key, Some(value)))).collect();
            let Some(changes) = changes else { return Ok(false) };
            store.commit(&changes)?;
        }
        ("del", keys) => store.commit(&keys.iter().map(|key| (*key, None)).collect::<Vec<_>>())?,
        ("get", [key, snapshot @ ..]) => match store.get(key, snapshot.first().copied())? {
            Some(value) => println!("{value}"),
            None => eprintln!("{key}: not set"),
        },
        ("list", snapshot) => store.keys(snapshot.first().copied())?.iter().for_each(|key| println!("{key}")),
        ("snap", [name]) => store.pool.snapshot(&format!("{STORE}@{name}"))?,
        _ => return Ok(false),
    }
    store.pool.export()?;
    Ok(true)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("usage: kv FILE set KEY=VALUE ... | del KEY ... | get KEY [SNAP] | list [SNAP] | snap NAME");
            ExitCode::from(2)
        }
        Err(e) => {
            eprintln!("kv: {e}");
            ExitCode::FAILURE
        }
    }
}
