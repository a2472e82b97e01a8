//! Sets of features that the property `compatibility` names (OpenZFS: `zpool_load_compat`).
//!
//! A set is a file of the administrator's, else one of the distribution's, else one of those that OpenZFS comes with, which are built in ([`known`]).

mod known;

use std::io::Read;
use std::path::{Path, PathBuf};

use pool::feature::{FEATURES, Feature};

/// The folder of the administrator's files, and that of the distribution's.
const FOLDERS: [&str; 2] = ["/etc/zfs/compatibility.d", "/usr/share/zfs/compatibility.d"];
/// Larger files are not read (OpenZFS: `ZPOOL_COMPAT_MAXSIZE`).
const FILE_MAX: u64 = 16384;
/// Bytes of an unknown word that are shown.
const WORD_MAX: usize = 32;

/// The features that a value of `compatibility` allows.
#[derive(Debug, PartialEq)]
pub(crate) struct Compat {
    /// Names of features.
    features: Vec<&'static str>,
    /// The oddities of the files that are tolerated.
    pub(crate) warning: Option<String>,
}

impl Compat {
    /// All features, for a pool without the property.
    pub(crate) fn all() -> Compat {
        Compat { features: FEATURES.iter().map(|f| f.name).collect(), warning: None }
    }

    /// Loads the set that `value` names, or says what is wrong with it.
    pub(crate) fn load(value: &str) -> Result<Compat, String> {
        load_from(value, &FOLDERS.map(PathBuf::from))
    }

    /// The same for a command that prints the warning, and whose message begins with `Error: …`.
    pub(crate) fn load_and_tell(value: &str) -> Result<Compat, String> {
        let compat = Compat::load(value).map_err(|why| format!("Error: {why}"))?;
        if let Some(warning) = &compat.warning {
            eprintln!("Warning: {warning}");
        }
        Ok(compat)
    }

    /// Returns whether the set allows a feature.
    pub(crate) fn allows(&self, feature: &Feature) -> bool {
        self.features.contains(&feature.name)
    }
}

fn load_from(value: &str, folders: &[PathBuf]) -> Result<Compat, String> {
    match value {
        "" | "off" => return Ok(Compat::all()),
        "legacy" => return Ok(Compat { features: Vec::new(), warning: None }),
        _ => {}
    }
    let mut compat = Compat::all();
    let (mut unreadable, mut unknown) = (String::new(), String::new());
    let (mut any, mut from_administrator) = (false, false);
    for name in value.split(',').filter(|name| !name.is_empty()) {
        // a name is not a path
        let files = folders.iter().enumerate().filter(|_| !name.contains('/'));
        let found = files.filter_map(|(n, folder)| Some((n, open(&folder.join(name))?))).next();
        let own = match found {
            None => known::features(name),
            Some((_, None)) => None,
            Some((folder, Some(text))) => {
                let before = unknown.len();
                let own = words(&text, &mut unknown);
                from_administrator |= folder == 0 && unknown.len() > before;
                Some(own)
            }
        };
        let Some(own) = own else {
            unreadable += &format!("{name} ");
            continue;
        };
        any = true;
        compat.features.retain(|feature| own.contains(feature));
    }
    if !unreadable.is_empty() {
        return Err(format!("could not read/parse feature file(s): {unreadable}"));
    }
    if !any {
        return Err("no valid compatibility files specified".to_owned());
    }
    if from_administrator {
        return Err(format!("invalid feature name(s) in local compatibility files: {unknown}"));
    }
    if !unknown.is_empty() {
        compat.warning = Some(format!("unrecognized feature name(s) in distribution compatibility files: {unknown}"));
    }
    Ok(compat)
}

/// The text of an existing file; the inner `None` if it is not a valid set.
fn open(path: &Path) -> Option<Option<String>> {
    let file = std::fs::File::open(path).ok()?;
    let mut bytes = Vec::new();
    let read = file.take(FILE_MAX + 1).read_to_end(&mut bytes).is_ok();
    let good = read && bytes.len() as u64 <= FILE_MAX && bytes.last() == Some(&b'\n');
    Some(good.then(|| String::from_utf8_lossy(&bytes).into_owned()))
}

/// The features of a file; words that are not features are added to `unknown`.
fn words(text: &str, unknown: &mut String) -> Vec<&'static str> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or("");
        for word in line.split([',', ' ', '\t']).filter(|word| !word.is_empty()) {
            match pool::feature::by_name(word) {
                Some(feature) => found.push(feature.name),
                None => {
                    let shown = word.chars().take(WORD_MAX).map(|c| if c.is_ascii_graphic() { c } else { '?' });
                    unknown.extend(shown.chain([' ']));
                }
            }
        }
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_intersected() {
        let dir = tempfile::tempdir().unwrap();
        let folders = [dir.path().join("etc"), dir.path().join("usr")];
        for folder in &folders {
            std::fs::create_dir(folder).unwrap();
        }
        let write = |n: usize, name: &str, text: &str| std::fs::write(folders[n].join(name), text).unwrap();
        write(0, "a", "# comment\nlz4_compress, hole_birth # more\nembedded_data\n");
        write(1, "b", "lz4_compress\thole_birth bookmarks\n");
        write(1, "odd", "lz4_compress no_such\n");
        write(0, "bad", "no_such lz4_compress\n");
        write(0, "open", "lz4_compress");
        let load = |value: &str| load_from(value, &folders);

        assert_eq!(load("off").unwrap(), Compat::all());
        assert_eq!(load("legacy").unwrap().features, Vec::<&str>::new());
        assert_eq!(load("a").unwrap().features, ["lz4_compress", "hole_birth", "embedded_data"]);
        assert_eq!(load("a,b").unwrap().features, ["lz4_compress", "hole_birth"]);
        let odd = load("odd").unwrap();
        assert_eq!(odd.features, ["lz4_compress"]);
        assert_eq!(
            odd.warning.as_deref(),
            Some("unrecognized feature name(s) in distribution compatibility files: no_such ")
        );
        assert_eq!(load("x,a,open").unwrap_err(), "could not read/parse feature file(s): x open ");
        assert_eq!(load("bad").unwrap_err(), "invalid feature name(s) in local compatibility files: no_such ");
        assert_eq!(load(",").unwrap_err(), "no valid compatibility files specified");
        // a built-in set; a file of the same name takes precedence
        assert!(load("a,openzfs-2.1-linux").unwrap() == load("a").unwrap());
        write(1, "zol-0.6.1", "bookmarks\n");
        assert_eq!(load("zol-0.6.1").unwrap().features, ["bookmarks"]);
        assert_eq!(load("../usr/b").unwrap_err(), "could not read/parse feature file(s): ../usr/b ");
    }
}
