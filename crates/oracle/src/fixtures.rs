//! The committed pools and streams of `fixtures/` (its README describes each), and the recorded truth beside them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::Value;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

/// The unit in which zeros become holes in an unpacked image.
const HOLE_BYTES: usize = 64 << 10;

/// The folder of all fixtures.
#[must_use]
pub fn fixture_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// The folder of the fixture `name`.
#[must_use]
pub fn dir(name: &str) -> PathBuf {
    fixture_root().join(name)
}

/// The fixtures that hold images of devices, sorted by name.
///
/// # Panics
/// If the fixtures are not there.
#[must_use]
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = entries(&fixture_root())
        .into_iter()
        .filter(|path| path.is_dir() && !images(path).is_empty())
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    names
}

/// The images of a fixture, unpacked into a temporary directory that is removed with the last clone of this.
#[derive(Debug, Clone)]
pub struct Unpacked {
    /// The directory of the `*.img` files.
    pub dir: PathBuf,
    _keep: Arc<tempfile::TempDir>,
}

impl Unpacked {
    /// The unpacked images, sorted by name.
    #[must_use]
    pub fn images(&self) -> Vec<PathBuf> {
        let mut found = entries(&self.dir);
        found.retain(|p| p.extension().is_some_and(|e| e == "img"));
        found.sort();
        found
    }
}

/// Unpacks the images of fixture `name`, sparsely. All callers share the result while one of them holds it: treat it as read-only.
///
/// # Panics
/// If there is no such fixture or no space.
#[must_use]
pub fn unpack(name: &str) -> Unpacked {
    type Slot = Arc<Mutex<Option<(PathBuf, Weak<tempfile::TempDir>)>>>;
    static CACHE: Mutex<Option<HashMap<String, Slot>>> = Mutex::new(None);
    let slot = {
        let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(cache.get_or_insert_default().entry(name.to_owned()).or_default())
    };
    // a lock per fixture, so that two fixtures can be unpacked at the same time but each only once
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((dir, keep)) = slot.as_ref()
        && let Some(keep) = keep.upgrade()
    {
        return Unpacked { dir: dir.clone(), _keep: keep };
    }
    let fresh = unpack_private(name);
    *slot = Some((fresh.dir.clone(), Arc::downgrade(&fresh._keep)));
    fresh
}

/// Like [`unpack`], but a private copy that the caller may damage.
///
/// # Panics
/// As [`unpack`].
#[must_use]
pub fn unpack_private(name: &str) -> Unpacked {
    let from = dir(name);
    let sources = images(&from);
    assert!(!sources.is_empty(), "fixture {name}: no images in {}", from.display());
    let temp = tempfile::Builder::new().prefix(&format!("zuse-{name}-")).tempdir().expect("a folder for images");
    for source in sources {
        let stem = source.file_stem().expect("name of an image");
        let target = temp.path().join(stem);
        unpack_file(&source, &target).unwrap_or_else(|e| panic!("unpacking {}: {e}", source.display()));
    }
    Unpacked { dir: temp.path().to_owned(), _keep: Arc::new(temp) }
}

/// Decompresses one zstd file to `target`, leaving holes for zeros.
///
/// # Errors
/// Errors of the file system or the decompressor.
pub fn unpack_file(source: &Path, target: &Path) -> io::Result<()> {
    let out = File::create(target)?;
    let mut end = 0u64;
    inflate(source, &mut |chunk| {
        for piece in chunk.chunks(HOLE_BYTES) {
            if !is_zero(piece) {
                out.write_all_at(piece, end)?;
            }
            end += piece.len() as u64;
        }
        Ok(())
    })?;
    out.set_len(end)
}

/// A zstd file, decompressed into memory.
///
/// # Panics
/// If it cannot be read.
#[must_use]
pub fn read_zst(path: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    inflate(path, &mut |chunk| {
        all.extend_from_slice(chunk);
        Ok(())
    })
    .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    all
}

/// The file `path` of fixture `name` as text; a `.zst` file is decompressed.
///
/// # Panics
/// If it is not there.
#[must_use]
pub fn text(name: &str, path: &str) -> String {
    let full = dir(name).join(path);
    let bytes = if path.ends_with(".zst") {
        read_zst(&full)
    } else {
        fs::read(&full).unwrap_or_else(|e| panic!("{}: {e}", full.display()))
    };
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The lines of [`text`].
#[must_use]
pub fn all_lines(name: &str, path: &str) -> Vec<String> {
    text(name, path).lines().map(str::to_owned).collect()
}

/// `manifest.json`: the kernel module's description of the pool.
///
/// # Panics
/// If it is not there or no JSON.
#[must_use]
pub fn manifest(name: &str) -> Value {
    json(name, "manifest.json")
}

/// `files.jsonl.zst`: every file of every file system and snapshot.
///
/// # Panics
/// If it is not there or no JSON.
#[must_use]
pub fn files(name: &str) -> Vec<Value> {
    json_lines(name, "files.jsonl.zst")
}

/// A JSON file of a fixture.
///
/// # Panics
/// If it is not there or no JSON.
#[must_use]
pub fn json(name: &str, path: &str) -> Value {
    serde_json::from_str(&text(name, path)).unwrap_or_else(|e| panic!("{name}/{path}: {e}"))
}

/// A file of a fixture with one JSON value per line.
///
/// # Panics
/// If it is not there or no JSON.
#[must_use]
pub fn json_lines(name: &str, path: &str) -> Vec<Value> {
    let text = text(name, path);
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{name}/{path}: {e}: {line}"));
    text.lines().filter(|line| !line.trim().is_empty()).map(parse).collect()
}

fn images(dir: &Path) -> Vec<PathBuf> {
    let mut found = entries(dir);
    found.retain(|p| p.to_str().is_some_and(|p| p.ends_with(".img.zst")));
    found.sort();
    found
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    all.map(|entry| entry.expect("an entry of a folder").path()).collect()
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, tail) = bytes.as_chunks::<64>();
    words.iter().all(|w| *w == [0; 64]) && tail.iter().all(|b| *b == 0)
}

/// Passes the decompressed contents of `path` to `sink`, in chunks of 1 MiB (the last one is shorter).
fn inflate(path: &Path, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let bad = |code| io::Error::other(zstd_safe::get_error_name(code));
    let mut source = BufReader::with_capacity(1 << 20, File::open(path)?);
    let mut context = DCtx::create();
    context.set_parameter(DParameter::WindowLogMax(27)).map_err(bad)?;
    let (mut input, mut output) = (vec![0; 256 << 10], vec![0; 1 << 20]);
    let mut filled = 0;
    loop {
        let got = source.read(&mut input)?;
        let mut from = InBuffer::around(input.get(..got).unwrap_or(&[]));
        loop {
            let mut to = OutBuffer::around_pos(output.as_mut_slice(), filled);
            context.decompress_stream(&mut to, &mut from).map_err(bad)?;
            filled = to.pos();
            if filled < output.len() {
                break;
            }
            sink(&output)?;
            filled = 0;
        }
        if got == 0 {
            return sink(output.get(..filled).unwrap_or(&[]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixture_unpacks_to_its_size_and_is_shared() {
        // no other test of this crate may use this fixture
        let first = unpack("degmirror-a");
        let second = unpack("degmirror-a");
        assert_eq!(first.dir, second.dir);
        let images = first.images();
        assert_eq!(images.len(), 2);
        let size = fs::metadata(&images[0]).expect("an image").len();
        assert!(size >= 64 << 20, "{size}");
        let dir = first.dir.clone();
        drop((first, second));
        assert!(!dir.exists());
    }

    #[test]
    fn the_truth_is_readable() {
        assert!(names().len() > 30);
        assert_eq!(manifest("basic-a")["pool"], "basica");
        assert!(!files("basic-a").is_empty());
        assert!(all_lines("basic-a", "zdb.txt.zst").iter().any(|l| l.contains("LABEL 0")));
    }
}
