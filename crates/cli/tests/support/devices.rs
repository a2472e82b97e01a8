//! Devices in a folder, and pools that are made of them.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use oracle::judge;

use crate::support::Session;

/// A folder for devices, and the state of what is imported from it.
pub struct Lab {
    pub dir: tempfile::TempDir,
    pub session: Session,
}

impl Lab {
    pub fn new() -> Lab {
        Lab { dir: tempfile::tempdir().unwrap(), session: Session::empty() }
    }

    pub fn dir(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// A sparse file of this many MiB.
    pub fn file(&self, name: &str, mib: u64) -> String {
        let file = std::fs::File::create(self.dir.path().join(name)).unwrap();
        file.set_len(mib << 20).unwrap();
        self.path(name)
    }

    /// A command line in which `/x` is device x of this lab.
    pub fn words(&self, line: &str) -> Vec<String> {
        line.split(' ').map(|word| word.strip_prefix('/').map_or(word.to_owned(), |name| self.path(name))).collect()
    }

    pub fn ok(&self, line: &str) -> String {
        let words = self.words(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.session.ok(&words)
    }

    pub fn fails(&self, line: &str, code: i32, says: &str) {
        let words = self.words(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.session.fails(&words, code, &says.replace("DIR", self.dir()));
    }

    /// Exports a pool, and checks that OpenZFS finds nothing wrong with it.
    pub fn export_and_judge(&self, pool: &str) {
        self.ok(&format!("zpool export {pool}"));
        judge::no_leaks(self.dir.path(), pool);
    }
}
