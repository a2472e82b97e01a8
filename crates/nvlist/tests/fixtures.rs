//! Reads every list in the fixtures (real pools and streams made by the kernel module) and packs it to the same bytes again.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use nvlist::{Encoding, Limits, NvList, NvListRef};
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

const LABEL: usize = 256 << 10;
/// Offset of the configuration in a label, and its maximum size.
const CONFIG: (usize, usize) = (16 << 10, 112 << 10);

fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let mut all: Vec<_> = fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    all.sort();
    assert!(all.len() > 20, "fixtures are missing");
    all
}

fn with_suffix(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    found.retain(|p| p.file_name().unwrap().to_str().unwrap().ends_with(suffix));
    found.sort();
    found
}

/// The decompressed bytes of a `.zst` file, read on demand.
struct Zst {
    file: BufReader<File>,
    context: DCtx<'static>,
}

impl Zst {
    fn open(path: &Path) -> Zst {
        let mut context = DCtx::create();
        context.set_parameter(DParameter::WindowLogMax(27)).unwrap();
        Zst { file: BufReader::new(File::open(path).unwrap()), context }
    }
}

impl Read for Zst {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut out = OutBuffer::around(buf);
        while out.pos() == 0 {
            let packed = self.file.fill_buf()?;
            let end = packed.is_empty();
            let mut input = InBuffer::around(packed);
            self.context
                .decompress_stream(&mut out, &mut input)
                .map_err(|e| std::io::Error::other(zstd_safe::get_error_name(e)))?;
            let used = input.pos;
            self.file.consume(used);
            if end {
                break;
            }
        }
        Ok(out.pos())
    }
}

/// The first and the last two labels of an image, whose size is only known at its end.
fn labels(image: &Path) -> Vec<Vec<u8>> {
    let mut zst = Zst::open(image);
    let mut first = vec![0; 2 * LABEL];
    zst.read_exact(&mut first).unwrap();
    // of the rest, keep the last pieces; labels are aligned to their size, counted from the end of the last whole one
    let (mut size, mut tail) = (first.len(), Vec::new());
    let mut piece = vec![0; 1 << 20];
    loop {
        let got = zst.read(&mut piece).unwrap();
        if got == 0 {
            break;
        }
        size += got;
        tail.extend_from_slice(&piece[..got]);
        if tail.len() > 8 << 20 {
            tail.drain(..tail.len() - (1 << 20));
        }
    }
    let beyond = size % LABEL;
    let end = tail.len() - beyond;
    let last = tail[end - 2 * LABEL..end].to_vec();
    first.chunks(LABEL).chain(last.chunks(LABEL)).map(<[u8]>::to_vec).collect()
}

/// Unpacks a list, compares it with the view, packs it again, and returns it.
fn round_trip(packed: &[u8], what: &str) -> NvList {
    let (list, consumed) = NvList::unpack_with(packed, &Limits::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (encoding, endian) = Encoding::of(packed).unwrap();
    let again = list.pack(encoding, endian).unwrap();
    assert_eq!(&again[..consumed], &packed[..consumed], "{what}");
    assert!(again[consumed..].iter().all(|b| *b == 0), "{what}");
    let view = NvListRef::new(packed).unwrap();
    assert_eq!(view.check(), Ok(consumed), "{what}");
    for (name, value) in list.iter_bytes() {
        assert_eq!(&view.get(name).unwrap().unwrap().to_value().unwrap(), value, "{what}");
    }
    // the other encoding holds the same list
    let other = if encoding == Encoding::Xdr { Encoding::Native } else { Encoding::Xdr };
    assert_eq!(NvList::unpack(&list.pack(other, endian.swapped()).unwrap()).as_ref(), Ok(&list), "{what}");
    list
}

#[test]
fn labels_pack_to_the_same_bytes() {
    let mut read = BTreeMap::new();
    for fixture in fixtures() {
        let name = fixture.file_name().unwrap().to_str().unwrap().to_owned();
        for image in with_suffix(&fixture, ".img.zst") {
            for (at, label) in labels(&image).iter().enumerate() {
                let config = &label[CONFIG.0..][..CONFIG.1];
                let what = format!("label {at} of {}", image.display());
                // a device that is not (or no longer) in a pool has empty labels; a damaged one may contain anything
                if config.iter().all(|b| *b == 0) {
                    continue;
                }
                if NvList::unpack(config).is_err() && name.starts_with("deg") {
                    continue;
                }
                let config = round_trip(config, &what);
                assert!(config.contains("guid") || config.contains("pool_guid"), "{what}: {config:?}");
                *read.entry(name.clone()).or_insert(0) += 1;
            }
        }
    }
    let total: usize = read.values().sum();
    assert!(total > 300, "only {total} labels: {read:?}");
}

#[test]
fn stream_headers_pack_to_the_same_bytes() {
    let mut begins = 0;
    let mut lists = 0;
    for fixture in fixtures() {
        for archive in with_suffix(&fixture, "streams.tar.zst") {
            let mut archive = tar::Archive::new(Zst::open(&archive));
            for entry in archive.entries().unwrap() {
                let mut stream = entry.unwrap();
                let name = format!("{} of {}", stream.path().unwrap().display(), fixture.display());
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).unwrap();
                for (at, payload) in begin_payloads(&bytes) {
                    begins += 1;
                    if !payload.is_empty() {
                        lists += 1;
                        round_trip(payload, &format!("BEGIN at {at} in {name}"));
                    }
                }
            }
        }
    }
    assert!(begins > 100 && lists > 20, "{begins} BEGIN records with {lists} lists");
}

/// The payloads of all BEGIN records, found by their magic number: this crate knows no other record.
fn begin_payloads(stream: &[u8]) -> Vec<(usize, &[u8])> {
    const MAGIC: u64 = 0x0002_f5ba_cbac;
    let word = |at: usize, len: usize| {
        stream.get(at..at + len).map(|b| b.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b)))
    };
    let mut found = Vec::new();
    for at in (0..stream.len()).step_by(8) {
        // type 0, magic, and a header type of 1 or 2
        if word(at, 4) == Some(0)
            && word(at + 8, 8) == Some(MAGIC)
            && matches!(word(at + 16, 8).map(|v| v & 3), Some(1 | 2))
        {
            let len = word(at + 4, 4).unwrap() as usize;
            if let Some(payload) = stream.get(at + 312..).and_then(|rest| rest.get(..len)) {
                found.push((at, payload));
            }
        }
    }
    found
}
