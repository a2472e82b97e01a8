//! The recorded output of zdb on the fixtures, so that zdb need not run each time.
//!
//! The committed images never change, so zdb's output for the same arguments does not either; and zdb takes a second of CPU time where ours
//! takes a twentieth. `fixtures/zdb-said.txt` holds, for each call, a digest of the output of OpenZFS 2.4's zdb (in the form in which the
//! test compares it, with the images' directory as `DIR`). If our output has the same digest, it has the same bytes. If it has not, or
//! nothing is recorded, zdb itself is run and its output compared.
//!
//! `ZUSE_ASK=all` runs zdb each time; `ZUSE_ASK=record` does so and rewrites the record.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::fixtures::{self, Unpacked};
use crate::judge;

/// A call of zdb on the images of a fixture.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The fixture.
    pub fixture: &'a str,
    /// Its images.
    pub images: &'a Unpacked,
    /// The arguments of zdb.
    pub args: &'a [&'a str],
}

impl Call<'_> {
    /// zdb's output, as reduced by `seen`, if it is not known to equal `ours`; `None` if it is, or if there is neither a record nor a zdb.
    ///
    /// # Panics
    /// Our output differs from the record, and zdb is not installed to show the difference.
    #[must_use]
    pub fn differs(&self, ours: &str, seen: impl Fn(&Output) -> String) -> Option<String> {
        self.differs_at(self.key(), ours, seen)
    }

    /// Like [`Call::differs`], if `seen` returns only `part` of the output or rephrases it: that part is recorded separately.
    ///
    /// # Panics
    /// As [`Call::differs`].
    #[must_use]
    pub fn part_differs(&self, part: &str, ours: &str, seen: impl Fn(&Output) -> String) -> Option<String> {
        self.differs_at(format!("{} ({part})", self.key()), ours, seen)
    }

    fn differs_at(&self, key: String, ours: &str, seen: impl Fn(&Output) -> String) -> Option<String> {
        let ask = std::env::var("ZUSE_ASK").unwrap_or_default();
        let recorded = record(|record| record.get(&key).cloned());
        let differs = recorded.as_ref().map(|digest| *digest != self.digest(ours));
        if ask.is_empty() && differs == Some(false) {
            return None;
        }
        let Some(output) = judge::run("zdb", self.args) else {
            assert!(
                differs != Some(true),
                "{key}: differs from zdb's recorded output (zdb is not installed to show how)"
            );
            return None;
        };
        let theirs = seen(&output);
        if ask == "record" {
            let digest = self.digest(&theirs);
            record(|record| {
                record.insert(key, digest);
                write(record);
            });
        }
        Some(theirs)
    }

    /// The key of the call in the record.
    fn key(&self) -> String {
        let args: Vec<String> = self.args.iter().map(|arg| self.placeless(arg)).collect();
        format!("{} {}", self.fixture, args.join(" "))
    }

    fn digest(&self, text: &str) -> String {
        let digest = Sha256::digest(self.placeless(text).as_bytes());
        digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The text with the paths of images and fixtures replaced.
    fn placeless(&self, text: &str) -> String {
        let place = |path: &std::path::Path| path.to_string_lossy().into_owned();
        text.replace(&place(&self.images.dir), "DIR").replace(&place(&fixtures::fixture_root()), "FIXTURES")
    }
}

type Record = BTreeMap<String, String>;

fn path() -> PathBuf {
    fixtures::fixture_root().join("zdb-said.txt")
}

/// Runs `with` on the record, a map from call to digest.
fn record<T>(with: impl FnOnce(&mut Record) -> T) -> T {
    static RECORD: Mutex<Option<Record>> = Mutex::new(None);
    let mut record = RECORD.lock().unwrap_or_else(PoisonError::into_inner);
    with(record.get_or_insert_with(read))
}

fn read() -> Record {
    let text = fs::read_to_string(path()).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(digest, call)| (call.to_owned(), digest.to_owned())).collect()
}

fn write(record: &Record) {
    let lines: String = record.iter().map(|(call, digest)| format!("{digest} {call}\n")).collect();
    fs::write(path(), lines).unwrap_or_else(|e| panic!("{}: {e}", path().display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_the_record_is_shown() {
        let images = fixtures::unpack("mirror-a");
        let device = images.images().first().map(|path| path.to_string_lossy().into_owned()).expect("an image");
        let call = Call { fixture: "mirror-a", images: &images, args: &["-ll", &device] };
        assert!(record(|record| record.contains_key(&call.key())), "{}", call.key());
        if judge::tool("zdb").is_some() {
            let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(call.differs("something else", said).is_some_and(|theirs| theirs.contains("pmirrora")));
        }
    }
}
